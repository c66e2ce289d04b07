"""Find the rank that the others wait for, from the timelines of a run; see `perfhooks.analysis.ranks.leads`."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.analysis.ranks.leads import RankSteps, StageTimes, aligned, alike, frontier, leads, said
from perfhooks.core import words
from perfhooks.run import layout, steps

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perfhooks.analysis.ranks.leads import Lead
    from perfhooks.run.folder import Run

_MOST_BYTES: Final = 32 << 20
"""Of all timelines together: 500,000 steps, which are read and compared in a second. The last ones count."""
_SHOWN: Final = 8

ADVICE: Final = {
    "data": (
        "Look at what this rank reads: its disk or mount, the size of its part of the data, the load of its node. More "
        "loader workers on all ranks hide it if the disk allows."
    ),
    "forward": (
        "Look at what this rank does between its batch and the backward pass: longer sequences or larger batches than "
        "the others have, the load of its node. A recorded window of it beside another rank's shows the difference."
    ),
    "update": (
        "Look at what this rank does between its backward pass and the end of the step: logging, checkpoints and "
        "evaluation on one rank only, a busy processor."
    ),
}
OTHERWISE: Final = "Record the same window on this rank and on another one, and compare the two."


def of_run(
    run: Run, listing: layout.Listing, nodes: Mapping[int, str], roles: Mapping[int, int]
) -> list[dict[str, Any]]:
    """What the timelines of the ranks say of the loop in which they spent most time.

    Args:
        run: The run.
        listing: What is in its folder.
        nodes: The machines of ranks, as far as they are known.
        roles: Those of ranks where there are several, see `roles.of_ranks`.

    Returns:
        Plain data, for each group of ranks that do the same work (see `perfhooks.analysis.ranks.leads.alike`): its
        ``ranks``; ``stage``, the loop; ``steps``, ``first`` and ``last`` of those that all ranks know and nobody
        recorded; ``stages``, columns: ``name``, ``exposed_ms`` (the mean, whose sum is a step) and ``rank`` that is
        last at its end most often, with ``percent`` of the steps; ``leads``, see `perfhooks.analysis.ranks.leads.Lead`,
        with ``rank`` and ``text``. Nothing of one rank, or where there are too few steps.
    """
    ranks = sorted(layout.timeline.ranks(listing.files))
    most = _MOST_BYTES // max(len(ranks), 1)
    read = steps.read_last_of((run.timeline(rank) for rank in ranks), most)
    loops = {stage: [_counted(each.get(stage, steps.NONE)) for each in read] for stage in {*chain(*read)}}
    found = [_groups(stage, loops[stage], ranks, roles) for stage in sorted(loops)]
    named = nodes if len({*nodes.values()}) > 1 else {}
    longest = max(found, key=lambda groups: sum(int(each.stages.times.sum()) for each in groups), default=[])
    return [_told(group, named) for group in longest]


class _Group(NamedTuple):
    """Ranks that do the same work, and their steps."""

    loop: str
    ranks: list[int]
    stages: StageTimes


def _groups(loop: str, known: list[RankSteps], ranks: list[int], roles: Mapping[int, int]) -> list[_Group]:
    found = []
    for places in alike(known, [roles.get(rank) for rank in ranks]):
        stages = aligned([known[place] for place in places])
        if stages is not None and len(places) > 1:
            found.append(_Group(loop, [ranks[place] for place in places], stages))
    return found


def _counted(known: steps.Steps) -> RankSteps:
    chosen = known.is_idle & ~known.is_first
    times = (known.wall_ms, known.data_ms, known.backward_ms, known.update_ms)
    return RankSteps(known.numbers[chosen], *(column[chosen] for column in times))


def _told(group: _Group, nodes: Mapping[int, str]) -> dict[str, Any]:
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
        "leads": [_lead(each, group, nodes) for each in leads(stages)[:_SHOWN]],
    }


def _lead(lead: Lead, group: _Group, nodes: Mapping[int, str]) -> dict[str, Any]:
    rank, part = group.ranks[lead.row], group.stages.names[lead.stage]
    where = f" on {nodes[rank]}" if rank in nodes else ""
    text = f"Rank {rank}{where} {said(lead, part)}"
    return {"rank": rank, "part": part, "text": text, **{name: getattr(lead, name) for name in _TOLD}}


_TOLD: Final = ("since", "until", "lead_ms", "percent", "cost_ms", "total_ms")


def findings(told: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What to do about the ranks that led, in the form of `perfhooks.analysis.ranks.findings`."""
    return [
        {
            "rule": "led",
            "title": f"{lead['text']}.",
            "gain_ms": round(lead["cost_ms"], 6),
            "gain_percent": round(100 * lead["cost_ms"] / group["step_ms"], 2) if group["step_ms"] else None,
            "estimate": "How much sooner all ranks would have met without those that led in this part: the mean.",
            "evidence": (_evidence(group, lead),),
            "advice": ADVICE.get(lead["part"], OTHERWISE),
            "code": "",
            "rank": lead["rank"],
            "ranks": [lead["rank"]],
            "part": lead["part"],
            "windows": [],
        }
        for group in told
        for lead in group["leads"]
    ]


def _evidence(told: Mapping[str, Any], lead: Mapping[str, Any]) -> str:
    return (
        f"behind the others by {words.ms(lead['lead_ms'])}, the median of {lead['percent']:.0f}% of the steps, of "
        f"{told['steps']} steps between {told['first']} and {told['last']} that nobody recorded"
    )
