"""Steps that take far longer than the typical one, as every fifth does: what a mean tells, and a median does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.comparing.timed import TimedRun

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
