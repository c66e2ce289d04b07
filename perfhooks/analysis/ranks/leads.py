"""Who makes the other ranks wait, at every step: the frontier of the stages of a step.

Ranks meet once a step: in the backward pass, in which they bring their gradients together. So a step is looked at from
one meeting to the next, each rank by its own clock::

    rank 0   | update | data | forward | backward, of which waiting ~~~~~~~~~ |
    rank 1   | update | data ................. | forward | backward           |
                               ^ here rank 1 falls behind                     ^ here all have waited for it

Times are cumulated from one meeting on. The frontier of a stage is where the last rank is at its end; what it moves by
is the exposed time of the stage, and all of them sum to the step. Means would blame the backward pass, in which the
others wait. No clocks need to agree. Source: StageFrontier, arXiv 2606.06751.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import words
from perfhooks.core.statistics import CHANCE, FAR, LEAST_STEPS, MANY, MANY_SLOW, SLOW, beyond_others, certainty

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from perfhooks.core.statistics import Flags, Matrix, Values

    Ints: TypeAlias = NDArray[np.int64]

_LESS: Final = 0.25
"""Before a change, or after it, there is no lead where it is less than so much of what it is beside."""
_CHUNK: Final = 512
"""Steps that are cumulated at a time: those of a thousand ranks stay in the processor's cache."""
_CANDIDATES: Final = 16
"""Ranks that are looked at closely for a stage, of those that take longest for it on average."""
_LAST: Final = 4
"""One in so many steps, at the end, of which the average counts as well: what has just begun is seen there."""
_MOST_UNKNOWN: Final = 0.5
"""Stages that are not known for a larger share of the steps are not told apart."""


class RankSteps(NamedTuple):
    """What the timeline of one rank says; columns of equal length, in the order in which its steps ran.

    All but numbers are milliseconds, NaN where nobody told.
    """

    numbers: Ints
    wall_ms: Values
    data_ms: Values
    backward_ms: Values
    """From a step's begin until its last backward pass began."""
    update_ms: Values
    """And until that pass ended."""


class StageTimes(NamedTuple):
    """The steps that all ranks know."""

    names: tuple[str, ...]
    """In their order: those that all ranks tell."""
    numbers: Ints
    """Of the steps."""
    times: Ints
    """Nanoseconds: of each rank, for each stage, in each step."""


def alike(ranks: Sequence[RankSteps], roles: Sequence[int | None]) -> list[list[int]]:
    """Which ranks can be compared: those of one role that tell the same stages, by their places.

    Args:
        ranks: What each of them says.
        roles: Of each, as far as it is known: a stage of a pipeline does other work than the next one.
    """
    found: dict[tuple[int | None, bytes], list[int]] = {}
    for place, (rank, role) in enumerate(zip(ranks, roles, strict=True)):
        told = np.isfinite(rank[2:]).mean(axis=1) > 1 - _MOST_UNKNOWN if len(rank.numbers) else np.zeros(0, np.bool_)
        found.setdefault((role, told.tobytes()), []).append(place)
    return list(found.values())


def aligned(ranks: Sequence[RankSteps]) -> StageTimes | None:
    """The same steps of all ranks side by side, in as many stages as all of them tell; None of too few steps.

    Steps are matched by their numbers. The stages are ``update`` (from the end of the last backward pass, over the end
    of the step), ``data``, ``forward`` (until the backward pass begins) and ``backward``; without backward passes
    ``data`` and ``rest``; without any of it ``step``.
    """
    most = None
    for names in (("step",), _ALL, ("update", "forward", "backward"), ("data", "rest"), ("step",)):
        known = [_known(rank, names) for rank in ranks]
        numbers = reduce(_common, (each[0] for each in known)) if known else np.empty(0, np.int64)
        if most is None:
            most = len(numbers)
            if most < LEAST_STEPS:
                return None
        elif len(numbers) >= max(LEAST_STEPS, most * (1 - _MOST_UNKNOWN)):
            times = np.empty((len(known), len(names), len(numbers)), np.int64)
            for row, (mine, stages) in zip(times, known, strict=True):
                row[:] = stages[:, np.searchsorted(mine, numbers)]
            return StageTimes(names, numbers, times)
    return None


_ALL: Final = ("update", "data", "forward", "backward")


def _known(rank: RankSteps, names: tuple[str, ...]) -> tuple[Ints, Ints]:
    """The numbers of the steps of which one rank tells these stages, each once and in order; and the stages' times."""
    wall, data, backward, update = ((column * 1e6).round() for column in rank[1:])
    follows = np.diff(rank.numbers, prepend=rank.numbers[:1]) == 1
    before = np.where(follows, np.roll(wall - update, 1), np.nan)  # what is left of the step before
    known_data = np.minimum(data, wall if names[-1] == "rest" else backward)
    columns = {
        ("step",): (wall,),
        ("data", "rest"): (known_data, wall - known_data),
        ("update", "forward", "backward"): (before, backward, update - backward),
        _ALL: (before, known_data, backward - known_data, update - backward),
    }[names]
    stages = np.array(columns)
    is_known = np.isfinite(stages).all(axis=0) & (stages >= 0).all(axis=0)
    numbers, stages = rank.numbers[is_known], stages[:, is_known].astype(np.int64)
    # a loop that was resumed ran some steps twice: the last time counts
    later = np.minimum.accumulate(numbers[::-1])[::-1]
    counts = numbers < np.append(later[1:], np.iinfo(np.int64).max)
    return numbers[counts], stages[:, counts]


def _common(a: Ints, b: Ints) -> Ints:
    """The numbers that are in both, each of which has them in order and once."""
    if not len(b):
        return b
    found: Ints = a[b[np.searchsorted(b, a).clip(max=len(b) - 1)] == a]
    return found


class Frontier(NamedTuple):
    """Columns by stage and step."""

    exposed: Ints
    """By how much the frontier moves in the stage, in nanoseconds: these sum to the longest rank's step."""
    leader: Ints
    """The row of the rank that is last at its end."""


def frontier(times: Ints) -> Frontier:
    """Who is last at the end of each stage, and by how much that is later than the last one of the stage before.

    Args:
        times: By rank, stage and step; nanoseconds.
    """
    front, leader = np.empty(times.shape[1:], np.int64), np.empty(times.shape[1:], np.int64)
    for place, ends in _ends(times):
        leader[place] = ends.argmax(axis=0)
        front[place] = ends.max(axis=0)
    return Frontier(np.diff(front, axis=0, prepend=0), leader)


def _front(times: Ints, rows: slice | Flags = slice(None)) -> Ints:
    """When the last of some ranks has ended each stage of each step."""
    front = np.empty(times.shape[1:], np.int64)
    for place, ends in _ends(times, rows):
        front[place] = ends.max(axis=0)
    return front


def _ends(times: Ints, rows: slice | Flags = slice(None)) -> Iterator[tuple[tuple[int, slice], Ints]]:
    """When each rank has ended a stage of some steps; and which stage and steps these are."""
    _, stages, steps = times.shape
    for first in range(0, steps, _CHUNK):
        part = slice(first, first + _CHUNK)
        ends = np.zeros_like(times[rows, 0, part])
        for stage in range(stages):
            ends += times[rows, stage, part]
            yield (stage, part), ends


class Lead(NamedTuple):
    """A rank that the others wait for."""

    row: int
    stage: int
    since: int | None
    """The step with which it began; None where it led from the first step on."""
    until: int | None
    """The last step of it; None where it goes on."""
    lead_ms: float
    """By how much it is behind in the stage: the median of the steps in which it is."""
    percent: float
    """In how many of 100 steps of that time it is."""
    cost_ms: float
    """What a step of that time would be shorter without those that lead this stage: the mean."""
    total_ms: float
    """The same of all those steps."""


def leads(stages: StageTimes) -> list[Lead]:
    """The ranks that lead a stage by evidence, what costs most first: the one rule of the house.

    A rank is behind in a stage by what it takes longer for it than the others, as far as it is also behind
    at the end of the stage: who was early and waits is not. It leads where the mean of that is `SLOW` of the step or
    more (among `MANY` ranks `MANY_SLOW`, and `FAR` more than ranks usually differ), and more than chance makes of equal
    ranks in one of a hundred looks; of a step counts no more than what one
    takes, so that one long pause is no evidence. Where it changes once, the time before or after may lead alone. Of
    more than half of the ranks none leads: then the others are fast.
    """
    times, ranks = stages.times, len(stages.times)
    if ranks <= 1:  # nobody waits for one alone
        return []
    front = _front(times)
    step = float(np.median(front[-1]))
    chance = CHANCE / (ranks * len(stages.names))
    found: list[Lead] = []
    ends = np.zeros_like(times[:, 0])
    for stage in range(len(stages.names)):
        own = times[:, stage]
        ends += own
        means = own.sum(axis=1) / own.shape[1]
        least = _least(means, step)
        behind = _behind(own, ends, _candidates(own, means))
        parts = {row: _part(each, step, least, chance) for row, each in behind.items()}
        mine = [_Suspect(row, stage, part, behind[row]) for row, part in parts.items() if part is not None]
        if mine and 2 * len(mine) <= ranks:
            gains = _gains(times, front, [suspect.row for suspect in mine], stage)
            found += [_lead(stages.numbers, suspect, gains, max(least, SLOW * step)) for suspect in mine]
    return sorted((lead for lead in found if lead.cost_ms > 0), key=lambda lead: -lead.total_ms)


SAID: Final = {
    "update": "between the backward pass and the end of the step",
    "data": "in waiting for data",
    "forward": "between its batch and the backward pass",
    "backward": "in the backward pass",
    "rest": "after its batch",
    "step": "in the step",
}
"""Where a rank leads."""
_ALWAYS: Final = 95.0
"""A lead in so many of 100 steps is one in all of them."""


def said(lead: Lead, name: str) -> str:
    """What is said of a rank after its name: that it led, since nobody but that rank can know why."""
    often = "" if lead.percent >= _ALWAYS else f" in {lead.percent:.0f}% of the steps"
    span = "".join(
        f" {word} step {step:,}" for word, step in (("from", lead.since), ("to", lead.until)) if step is not None
    )
    return (
        f"led {SAID[name]} by {words.ms(lead.lead_ms)}{often}{span}: the others waited {words.ms(lead.cost_ms)} a step"
    )


def _least(means: Values, step: float) -> float:
    """From how much on a rank leads a stage, on average."""
    if len(means) < MANY:
        return SLOW * step
    return max(MANY_SLOW * step, FAR * float(np.median(np.abs(means - np.median(means)))))


def _candidates(times: Ints, means: Values) -> list[int]:
    last = max(times.shape[1] // _LAST, LEAST_STEPS)
    longest = (mean.argsort()[::-1][:_CANDIDATES] for mean in (means, times[:, -last:].mean(axis=1)))
    return sorted(set(np.concatenate([*longest]).tolist()))


def _behind(own: Ints, ends: Ints, rows: list[int]) -> dict[int, Values]:
    """By how much ranks are behind the others in a stage, as far as they still are at the end of it."""
    return dict(zip(rows, np.minimum(_beyond(own, rows), _beyond(ends, rows)), strict=True))


def _beyond(times: Ints, rows: list[int]) -> Matrix:
    """What ranks take longer than the others: than their median, but of `MANY` than their mean, which is as robust."""
    if len(times) < MANY:
        return beyond_others(times.astype(np.float64))[rows]
    found: Matrix = times[rows] - (times.sum(axis=0) - times[rows]) / (len(times) - 1)
    return found


def _part(behind: Values, step: float, least: float, chance: float) -> slice | None:
    """The steps in which a rank leads by evidence; None where it does not."""
    bounded = np.clip(behind, -step, step)
    part = _changed(bounded)
    values = bounded[part]
    is_lead = values.mean() >= least and certainty(values, chance) >= 1
    return part if is_lead else None


def _changed(values: Values) -> slice:
    """All steps; or those before, or after, the one change at which there is a lead on one side only."""
    sums = np.cumsum(values - values.mean())[LEAST_STEPS - 1 : -LEAST_STEPS]
    if not len(sums):
        return slice(None)
    at = int(np.abs(sums).argmax()) + LEAST_STEPS
    before, after = float(values[:at].mean()), float(values[at:].mean())
    if before < _LESS * after:
        return slice(at, None)
    return slice(None, at) if after < _LESS * before else slice(None)


def _gains(times: Ints, front: Ints, rows: list[int], stage: int) -> Values:
    """What each step would be shorter in a stage if some ranks were not there."""
    others = np.ones(len(times), np.bool_)
    others[rows] = False
    ahead = front - _front(times, others)
    found: Values = ahead[stage] - (ahead[stage - 1] if stage else 0)
    return found


class _Suspect(NamedTuple):
    row: int
    stage: int
    part: slice
    """The steps in which it leads."""
    behind: Values


def _lead(numbers: Ints, suspect: _Suspect, gains: Values, clear: float) -> Lead:
    """What is told of a rank.

    Args:
        numbers: Of all steps.
        suspect: The rank.
        gains: See `_gains`.
        clear: By how much it is behind in steps that count as such.
    """
    part = suspect.part
    values, numbers = suspect.behind[part], numbers[part]
    is_behind = values >= min(clear, float(values.max()) / 2)
    cost = float(gains[part].mean()) / 1e6
    return Lead(
        row=suspect.row,
        stage=suspect.stage,
        since=int(numbers[0]) if part.start else None,
        until=int(numbers[-1]) if part.stop else None,
        lead_ms=float(np.median(values[is_behind])) / 1e6,
        percent=100 * float(is_behind.mean()),
        cost_ms=cost,
        total_ms=cost * len(numbers),
    )
