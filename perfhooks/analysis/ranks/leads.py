"""Find the rank that the other ranks wait for, from the times of unprofiled steps.

Ranks synchronize once per step, in the backward pass, where they reduce gradients. Each step is therefore measured from
one synchronization to the next, by each rank's own clock::

    rank 0   | update | data | forward | backward, waiting ~~~~~~~~~~~~~~~~~~ |
    rank 1   | update | data ................. | forward | backward           |
                               ^ here rank 1 falls behind                     ^ here all have waited for it

In this module, a stage is a part of a step, not a loop. The frontier of a stage is the time at which the last rank ends
the stage. The exposed time of a stage is the time from the previous stage's frontier to the frontier of the stage.
The exposed times of all stages sum to the step time. Source: StageFrontier, arXiv 2606.06751.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import words
from perfhooks.core.statistics import CHANCE, LEAST_STEPS, MANY, SLOW, are_late, beyond_others, least_delay

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from perfhooks.core.statistics import Flags, Matrix, Values

    Ints: TypeAlias = NDArray[np.int64]

_MAX_RATIO: Final = 0.25
"""Maximum mean delay before or after a late phase of a rank, as a ratio of the mean delay in the late phase."""


class RankSteps(NamedTuple):
    """Timeline of one rank: columns of equal length in ms; NaN if not measured."""

    numbers: Ints
    wall_ms: Values
    data_ms: Values
    backward_ms: Values
    """Time in ms from the start of each step to the start of the last backward pass of the step."""
    update_ms: Values
    """Time in ms from the start of each step to the optimizer update, which begins after the last backward pass."""


class StageTimes(NamedTuple):
    names: tuple[str, ...]
    numbers: Ints
    times: Ints


def group_comparable(ranks: Sequence[RankSteps], roles: Sequence[int | None]) -> list[list[int]]:
    """Return groups of indices into ``ranks``. All ranks of a group have the same role and the same measured stages."""
    groups: dict[tuple[int | None, bytes], list[int]] = {}
    for index, (rank, role) in enumerate(zip(ranks, roles, strict=True)):
        has_stage = 2 * np.isfinite(rank[2:]).mean(axis=1) > 1 if len(rank.numbers) else np.zeros(0, np.bool_)
        groups.setdefault((role, has_stage.tobytes()), []).append(index)
    return list(groups.values())


def align_steps(ranks: Sequence[RankSteps]) -> StageTimes | None:
    """Split the common steps of all ranks into the stages that all ranks measured; None with too few steps.

    The stages are ``update`` (to the end of the step), ``data``, ``forward`` (to the start of the backward pass) and
    ``backward``. Without backward passes the stages are ``data`` and ``rest``. If waits for data were not measured, the
    only stage is ``step``.
    """
    max_steps = None
    for names in (("step",), _ALL_STAGES, ("update", "forward", "backward"), ("data", "rest"), ("step",)):
        by_rank = [_extract_stages(rank, names) for rank in ranks]
        numbers = reduce(_find_common, (rank_steps[0] for rank_steps in by_rank)) if by_rank else np.empty(0, np.int64)
        if max_steps is None:
            max_steps = len(numbers)
            if max_steps < LEAST_STEPS:
                return None
        elif len(numbers) >= max(LEAST_STEPS, max_steps / 2):
            times = np.empty((len(by_rank), len(names), len(numbers)), np.int64)
            for row, (rank_numbers, stages) in zip(times, by_rank, strict=True):
                row[:] = stages[:, np.searchsorted(rank_numbers, numbers)]
            return StageTimes(names, numbers, times)
    return None


_ALL_STAGES: Final = ("update", "data", "forward", "backward")


def _extract_stages(rank: RankSteps, names: tuple[str, ...]) -> tuple[Ints, Ints]:
    wall, data, backward, update = ((column * 1e6).round() for column in rank[1:])
    follows = np.diff(rank.numbers, prepend=rank.numbers[:1]) == 1
    previous = np.where(follows, np.roll(wall - update, 1), np.nan)
    data_ns = np.minimum(data, wall if names[-1] == "rest" else backward)
    columns = {
        ("step",): (wall,),
        ("data", "rest"): (data_ns, wall - data_ns),
        ("update", "forward", "backward"): (previous, backward, update - backward),
        _ALL_STAGES: (previous, data_ns, backward - data_ns, update - backward),
    }[names]
    stages = np.array(columns)
    is_valid = np.isfinite(stages).all(axis=0) & (stages >= 0).all(axis=0)
    numbers, stages = rank.numbers[is_valid], stages[:, is_valid].astype(np.int64)
    # a loop resumed from a checkpoint repeats steps: use the last repetition
    later = np.minimum.accumulate(numbers[::-1])[::-1]
    counts = numbers < np.append(later[1:], np.iinfo(np.int64).max)
    return numbers[counts], stages[:, counts]


def _find_common(a: Ints, b: Ints) -> Ints:
    if not len(b):
        return b
    common: Ints = a[b[np.searchsorted(b, a).clip(max=len(b) - 1)] == a]
    return common


class Frontier(NamedTuple):
    exposed: Ints
    """Time in ns from the last rank's end of the previous stage to the last rank's end of this stage. All stages sum to
    the step.
    """
    leader: Ints


def frontier(times: Ints) -> Frontier:
    front, leader = np.empty(times.shape[1:], np.int64), np.empty(times.shape[1:], np.int64)
    for index, ends in _ends(times):
        leader[index] = ends.argmax(axis=0)
        front[index] = ends.max(axis=0)
    return Frontier(np.diff(front, axis=0, prepend=0), leader)


def _front(times: Ints, rows: slice | Flags = slice(None)) -> Ints:
    front = np.empty(times.shape[1:], np.int64)
    for index, ends in _ends(times, rows):
        front[index] = ends.max(axis=0)
    return front


def _ends(times: Ints, rows: slice | Flags = slice(None)) -> Iterator[tuple[tuple[int, slice], Ints]]:
    _, stages, steps = times.shape
    for first in range(0, steps, 512):
        part = slice(first, first + 512)
        ends = np.zeros_like(times[rows, 0, part])
        for stage in range(stages):
            ends += times[rows, stage, part]
            yield (stage, part), ends


class Lead(NamedTuple):
    row: int
    stage: int
    since: int | None
    """First step in which the rank is late; None if the rank is late from the start."""
    until: int | None
    lead_ms: float
    percent: float
    cost_ms: float
    """Estimated gain per step in ms if the stage had no stragglers."""
    total_ms: float


def leads(stages: StageTimes) -> list[Lead]:
    """Return the stragglers of each stage of the step, the most expensive first.

    In each stage, two differences of a rank to the other ranks are computed: how much longer the stage takes, and how
    much later it ends. The delay of the rank is the smaller difference, so a rank that begins early and waits has no
    delay. `perfhooks.core.statistics.are_late` decides whether a rank is a straggler. If the delay begins or ends
    during the run, only the steps with delay are tested.
    """
    times, ranks = stages.times, len(stages.times)
    if ranks <= 1:
        return []
    front = _front(times)
    step = float(np.median(front[-1]))
    chance = CHANCE / (ranks * len(stages.names))
    stragglers: list[Lead] = []
    ends = np.zeros_like(times[:, 0])
    for stage in range(len(stages.names)):
        stage_times = times[:, stage]
        ends += stage_times
        means = stage_times.sum(axis=1) / stage_times.shape[1]
        least = least_delay(means, step)
        behind = _find_delays(stage_times, ends, _find_candidates(stage_times, means))
        parts = {row: _find_span(delays, step, least, chance) for row, delays in behind.items()}
        suspects = [_Suspect(row, stage, part, behind[row]) for row, part in parts.items() if part is not None]
        if suspects and 2 * len(suspects) <= ranks:
            gains = _estimate_gains(times, front, [suspect.row for suspect in suspects], stage)
            stragglers += [_build_lead(stages.numbers, suspect, gains, max(least, SLOW * step)) for suspect in suspects]
    return sorted((lead for lead in stragglers if lead.cost_ms > 0), key=lambda lead: -lead.total_ms)


STAGE_TEXTS: Final = {
    "update": "between the backward pass and the end of the step",
    "data": "waiting for data",
    "forward": "between its batch and the backward pass",
    "backward": "in the backward pass",
    "rest": "after its batch",
    "step": "in the step",
}
_ALWAYS_PERCENT: Final = 95.0
"""Minimum percentage of late steps for which a message omits the percentage."""


def describe_lead(lead: Lead, name: str) -> str:
    """Return the message about a straggler, without the rank and the cause."""
    often = "" if lead.percent >= _ALWAYS_PERCENT else f" in {lead.percent:.0f}% of the steps"
    span = "".join(
        f" {word} step {step:,}" for word, step in (("from", lead.since), ("to", lead.until)) if step is not None
    )
    delay = f"{words.ms(lead.lead_ms)} {STAGE_TEXTS[name]}"
    return f"is late by {delay}{often}{span}: the other ranks wait {words.ms(lead.cost_ms)} a step"


def _find_candidates(times: Ints, means: Values) -> list[int]:
    # to find a recent delay, also compare means of the last quarter of the steps
    last = max(times.shape[1] // 4, LEAST_STEPS)
    longest = (mean.argsort()[::-1][:16] for mean in (means, times[:, -last:].mean(axis=1)))
    return sorted(set(np.concatenate([*longest]).tolist()))


def _find_delays(stage_times: Ints, ends: Ints, rows: list[int]) -> dict[int, Values]:
    return dict(zip(rows, np.minimum(_find_excess(stage_times, rows), _find_excess(ends, rows)), strict=True))


def _find_excess(times: Ints, rows: list[int]) -> Matrix:
    if len(times) < MANY:
        return beyond_others(times.astype(np.float64))[rows]
    excess: Matrix = times[rows] - (times.sum(axis=0) - times[rows]) / (len(times) - 1)
    return excess


def _find_span(behind: Values, step: float, least: float, chance: float) -> slice | None:
    bounded = np.clip(behind, -step, step)
    span = _split_at_change(bounded)
    return span if are_late(bounded[None, span], step, least, chance)[0] else None


def _split_at_change(values: Values) -> slice:
    sums = np.cumsum(values - values.mean())[LEAST_STEPS - 1 : -LEAST_STEPS]
    if not len(sums):
        return slice(None)
    at = int(np.abs(sums).argmax()) + LEAST_STEPS
    before, after = float(values[:at].mean()), float(values[at:].mean())
    if before < _MAX_RATIO * after:
        return slice(at, None)
    return slice(None, at) if after < _MAX_RATIO * before else slice(None)


def _estimate_gains(times: Ints, front: Ints, rows: list[int], stage: int) -> Values:
    remaining = np.ones(len(times), np.bool_)
    remaining[rows] = False
    gain = front - _front(times, remaining)
    stage_gain: Values = gain[stage] - (gain[stage - 1] if stage else 0)
    return stage_gain


class _Suspect(NamedTuple):
    row: int
    stage: int
    part: slice
    behind: Values


def _build_lead(numbers: Ints, suspect: _Suspect, gains: Values, clear: float) -> Lead:
    span = suspect.part
    values, numbers = suspect.behind[span], numbers[span]
    is_behind = values >= min(clear, float(values.max()) / 2)
    cost = float(gains[span].mean()) / 1e6
    return Lead(
        row=suspect.row,
        stage=suspect.stage,
        since=int(numbers[0]) if span.start else None,
        until=int(numbers[-1]) if span.stop else None,
        lead_ms=float(np.median(values[is_behind])) / 1e6,
        percent=100 * float(is_behind.mean()),
        cost_ms=cost,
        total_ms=cost * len(numbers),
    )
