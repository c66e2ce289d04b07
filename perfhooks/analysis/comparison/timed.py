"""The steps of runs: whether they saw the same data, so that steps of the same number are compared; and long ones."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core.statistics import LEAST_STEPS, level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.core.statistics import Level, Values
    from perfhooks.run.steps import Counted, Ints, Waits

_ALIKE: Final = 0.5
"""From this correlation on of what steps differ by from the one before, runs saw the same data: that of runs that did
not is 0, within 0.15 for `_FEWEST` steps. Of the times themselves it would be high where both only drift."""
_FEWEST: Final = 50


class TimedRun(NamedTuple):
    """One run."""

    steps: Counted
    waits: Waits | None
    """What its steps waited for processors; None where nobody measured it."""

    @property
    def is_enough(self) -> bool:
        """Whether those tell anything."""
        return len(self.steps.wall_ms) >= LEAST_STEPS

    def level(self, chosen: Ints | None = None, usual: Values | None = None) -> Level:
        """What its steps take.

        Args:
            chosen: Places of those that count; None for all.
            usual: See `perfhooks.core.statistics.level`.
        """
        place = np.arange(len(self.steps.numbers)) if chosen is None else chosen
        times = self.steps.all_ms[place], self.steps.is_far[place], usual
        if self.waits is None:
            return level(*times)
        return replace(level(*times, self.waits.shares(self.steps.numbers[place])), others=self.waits.others)


def paired(a: Sequence[TimedRun], b: Sequence[TimedRun]) -> tuple[list[Level], list[Level]] | None:
    """The levels of runs that saw the same data, by the steps that all have; None where they did not."""
    runs = [*a, *b]
    common = _common(runs)
    if not (a and b) or len(common) < _FEWEST:
        return None
    places = [np.searchsorted(run.steps.numbers, common) for run in runs]
    logs = np.log([run.steps.all_ms[place] for run, place in zip(runs, places, strict=True)])
    changes = np.diff(logs, axis=1)
    if not changes.std(axis=1).all() or np.corrcoef(changes)[0].min() < _ALIKE:
        return None
    # what is left is smaller than what a run differs by, as it is one of those that the usual step is the mean of
    hidden = (len(runs) / (len(runs) - 1)) ** 0.5
    usual = np.exp(logs.mean(axis=0))
    levels = [_wider(run.level(place, usual), hidden) for run, place in zip(runs, places, strict=True)]
    return levels[: len(a)], levels[len(a) :]


def _common(runs: Sequence[TimedRun]) -> Ints:
    """The numbers of the steps that all runs have; none where one was resumed and ran some twice."""
    numbers = [run.steps.numbers for run in runs]
    if not all((np.diff(each) > 0).all() for each in numbers):
        return np.zeros(0, np.int64)
    found = numbers[0]
    for each in numbers[1:]:
        found = np.intersect1d(found, each, assume_unique=True)
    return found


def _wider(found: Level, times: float) -> Level:
    return found.changed(lambda each: replace(each, below=each.below * times, above=each.above * times))


_LONG: Final = 1.5
"""Medians from which on a step is of another kind: noise of 10% reaches it once in a million steps."""
_MOSTLY: Final = 0.5
"""From this share of what they take more, they wait for data."""


class Stalls(NamedTuple):
    """The long steps of one side."""

    share: float
    """Of all steps, from 0 to 1."""
    times: float
    """How many times the typical step they take; 0 where there are none."""
    is_data: bool
    """Whether they wait for data meanwhile."""


def stalls(runs: Sequence[TimedRun]) -> Stalls:
    """The long steps of some runs of a training.

    Args:
        runs: At least one.
    """
    relative = np.concatenate([run.steps.all_ms / np.median(run.steps.all_ms) for run in runs])
    waits = np.concatenate([_waits(run) for run in runs])
    long = relative > _LONG
    if not long.any():
        return Stalls(0.0, 0.0, is_data=False)
    more = relative[long] - 1
    is_data = bool(np.nansum(np.minimum(waits[long], more)) >= _MOSTLY * more.sum())
    return Stalls(float(long.mean()), float(relative[long].mean()), is_data)


def _waits(run: TimedRun) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What each step waited for data more than the typical one did, in typical steps."""
    data = run.steps.all_data_ms
    usual = np.nanmedian(data) if np.isfinite(data).any() else 0.0
    found: np.ndarray[tuple[int], np.dtype[np.float64]] = (data - usual) / np.median(run.steps.all_ms)
    return found
