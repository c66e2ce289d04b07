from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core.statistics import LEAST_STEPS, level

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.core.statistics import Level, Values
    from perfhooks.run.steps import Counted, Ints, Waits

_MIN_CORRELATION: Final = 0.5
"""Two runs read the same data if the changes of their step times correlate by at least this value. For different data,
the correlation was at most 0.15.
"""
_MIN_COMMON: Final = 50
"""Minimum common steps to detect equal data. By chance, less than 0.1% of run pairs correlate by 0.5 over 50 steps."""


class TimedRun(NamedTuple):
    steps: Counted
    waits: Waits | None

    @property
    def is_enough(self) -> bool:
        return len(self.steps.wall_ms) >= LEAST_STEPS

    def level(self, chosen: Ints | None = None, usual: Values | None = None) -> Level:
        index = np.arange(len(self.steps.numbers)) if chosen is None else chosen
        times = self.steps.all_ms[index], self.steps.is_far[index], usual
        if self.waits is None:
            return level(*times)
        return replace(level(*times, self.waits.shares(self.steps.numbers[index])), others=self.waits.others)


def match_steps(a: Sequence[TimedRun], b: Sequence[TimedRun]) -> tuple[list[Level], list[Level]] | None:
    """Return the step times of each run in the common steps; None if the runs read different data."""
    runs = [*a, *b]
    common = _find_common(runs)
    if not (a and b) or len(common) < _MIN_COMMON:
        return None
    indices = [np.searchsorted(run.steps.numbers, common) for run in runs]
    logs = np.log([run.steps.all_ms[index] for run, index in zip(runs, indices, strict=True)])
    changes = np.diff(logs, axis=1)
    if not changes.std(axis=1).all() or np.corrcoef(changes)[0].min() < _MIN_CORRELATION:
        return None
    # correct deviations from the mean, which are too small because the mean contains the run itself
    factor = (len(runs) / (len(runs) - 1)) ** 0.5
    usual = np.exp(logs.mean(axis=0))
    levels = [_widen(run.level(index, usual), factor) for run, index in zip(runs, indices, strict=True)]
    return levels[: len(a)], levels[len(a) :]


def _find_common(runs: Sequence[TimedRun]) -> Ints:
    numbers = [run.steps.numbers for run in runs]
    if not all((np.diff(values) > 0).all() for values in numbers):
        return np.zeros(0, np.int64)
    common = numbers[0]
    for values in numbers[1:]:
        common = np.intersect1d(common, values, assume_unique=True)
    return common


def _widen(run_level: Level, times: float) -> Level:
    return run_level.changed(
        lambda estimate: replace(estimate, below=estimate.below * times, above=estimate.above * times)
    )


_MIN_LONG_RATIO: Final = 1.5
"""Minimum length of a long step, as a multiple of the median. With noise of 10%, one step in a million is as long."""


class Stalls(NamedTuple):
    share: float
    times: float
    is_data: bool


def stalls(runs: Sequence[TimedRun]) -> Stalls:
    relative = np.concatenate([run.steps.all_ms / np.median(run.steps.all_ms) for run in runs])
    waits = np.concatenate([_excess_waits(run) for run in runs])
    long = relative > _MIN_LONG_RATIO
    if not long.any():
        return Stalls(0.0, 0.0, is_data=False)
    excess = relative[long] - 1
    is_data = bool(2 * np.nansum(np.minimum(waits[long], excess)) >= excess.sum())
    return Stalls(float(long.mean()), float(relative[long].mean()), is_data)


def _excess_waits(run: TimedRun) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    data = run.steps.all_data_ms
    usual = np.nanmedian(data) if np.isfinite(data).any() else 0.0
    waits: np.ndarray[tuple[int], np.dtype[np.float64]] = (data - usual) / np.median(run.steps.all_ms)
    return waits
