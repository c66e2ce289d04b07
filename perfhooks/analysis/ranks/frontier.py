"""Report stragglers from the timelines of a run; see `perfhooks.analysis.ranks.leads`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.analysis.ranks.leads import (
    RankSteps,
    StageTimes,
    align_steps,
    describe_lead,
    frontier,
    group_comparable,
    leads,
)
from perfhooks.run import layout, steps

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.analysis.ranks.leads import Lead
    from perfhooks.run.folder import Run


def of_run(
    run: Run, listing: layout.Listing, nodes: Mapping[int, str], roles: Mapping[int, int], *, host_ahead: bool
) -> list[dict[str, Any]]:
    """Find the stragglers in the loop (training or validation) with the largest total time.

    If the hosts run ahead of their devices, host times do not show which rank is late.

    Returns:
        Plain data for each group of comparable ranks; empty for a single rank, or with too few steps:

        * ``ranks``, and ``stage``: the name of the loop;
        * ``steps``, ``first`` and ``last``: number and range of the common unprofiled steps;
        * ``stages``: the parts of a step (`leads.STAGE_TEXTS`), as columns ``name``, ``exposed_ms`` (mean; all rows sum
          to a step), and the ``rank`` that is last most often, in ``percent`` of the steps;
        * ``leads``: the fields of `leads.Lead`, with ``rank`` and ``text``; None if the hosts run ahead.
    """
    ranks = sorted(layout.timeline.ranks(listing.files))
    max_bytes = (32 << 20) // max(len(ranks), 1)  # reading 500,000 steps takes a second
    timelines = steps.read_last_of((run.timeline(rank) for rank in ranks), max_bytes)
    loops = {
        stage: [_select_counted(timeline.get(stage, steps.NONE)) for timeline in timelines]
        for stage in {*chain(*timelines)}
    }
    groups_by_loop = [_build_groups(stage, loops[stage], ranks, roles) for stage in sorted(loops)]
    node_names = nodes if len({*nodes.values()}) > 1 else {}
    longest = max(
        groups_by_loop,
        key=lambda loop_groups: sum(int(timeline.stages.times.sum()) for timeline in loop_groups),
        default=[],
    )
    described = [_describe_group(group, node_names) for group in longest]
    return [group | {"leads": None} for group in described] if host_ahead else described


class _Group(NamedTuple):
    loop: str
    ranks: list[int]
    stages: StageTimes


def _build_groups(loop: str, rank_steps: list[RankSteps], ranks: list[int], roles: Mapping[int, int]) -> list[_Group]:
    groups = []
    for rows in group_comparable(rank_steps, [roles.get(rank) for rank in ranks]):
        stages = align_steps([rank_steps[row] for row in rows])
        if stages is not None and len(rows) > 1:
            groups.append(_Group(loop, [ranks[row] for row in rows], stages))
    return groups


def _select_counted(timeline: steps.Steps) -> RankSteps:
    is_counted = timeline.is_idle & ~timeline.is_first
    times = (timeline.wall_ms, timeline.data_ms, timeline.backward_ms, timeline.update_ms)
    return RankSteps(timeline.numbers[is_counted], *(column[is_counted] for column in times))


def _describe_group(group: _Group, nodes: Mapping[int, str]) -> dict[str, Any]:
    loop, ranks, stages = group
    exposed, leader = frontier(stages.times)
    counts = np.array([np.bincount(row, minlength=len(ranks)) for row in leader])
    count = len(stages.numbers)
    return {
        "stage": loop,
        "ranks": ranks,
        "steps": count,
        "first": int(stages.numbers[0]),
        "last": int(stages.numbers[-1]),
        "step_ms": round(float(exposed.sum()) / count / 1e6, 6),
        "stages": {
            "name": list(stages.names),
            "exposed_ms": (exposed.mean(axis=1) / 1e6).round(6).tolist(),
            "rank": [ranks[row] for row in counts.argmax(axis=1)],
            "percent": (100 * counts.max(axis=1) / count).round(2).tolist(),
        },
        "leads": [_describe_lead(lead, group, nodes) for lead in leads(stages)[:8]],
    }


def _describe_lead(lead: Lead, group: _Group, nodes: Mapping[int, str]) -> dict[str, Any]:
    rank, part = group.ranks[lead.row], group.stages.names[lead.stage]
    where = f" on {nodes[rank]}" if rank in nodes else ""
    text = f"Rank {rank}{where} {describe_lead(lead, part)}"
    return {"rank": rank, "part": part, "text": text, **{name: getattr(lead, name) for name in _LEAD_FIELDS}}


_LEAD_FIELDS: Final = ("since", "until", "lead_ms", "percent", "cost_ms", "total_ms")
