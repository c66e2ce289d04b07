"""Whether a rank takes longer than the others, or steps of equal work only differ by chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np

from perfhooks.statistics import student

if TYPE_CHECKING:
    Matrix: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[Any]]"
    from perfhooks.trace.nesting.intervals import Flags

CHANCE: Final = 0.01
"""How often at most any of the ranks of a window may be named though all have equal work: a page that is looked at
every day, and false once in a hundred windows, is still believed."""


def certain(excess: Matrix, *, alone: bool) -> Flags:
    """Which ranks' excess is more than chance makes of equal work: one by Student's t for each, shared by all ranks.

    The mean excess is divided by its error, from how much a rank's excess differs from step to step: its own, or that
    of all ranks together where that is more. The limit is the quantile for `CHANCE`, divided by the number of ranks. So
    two steps that agree are evidence, and three that do not are none.

    Args:
        excess: of each rank (row) in each step (column); NaN where it has no such step.
        alone: what to say where no rank has two steps, so that nothing is known of how steps differ.
    """
    known = np.isfinite(excess)
    steps = known.sum(axis=1)
    values = np.where(known, excess, 0.0)
    mean = values.sum(axis=1) / np.maximum(steps, 1)
    squares = np.where(known, (values - mean[:, None]) ** 2, 0.0).sum(axis=1)
    free = int(np.maximum(steps - 1, 0).sum())
    if not free:
        return np.full(len(excess), alone)
    spread = np.maximum(squares.sum() / free, squares / np.maximum(steps - 1, 1))
    error = np.sqrt(spread / np.maximum(steps, 1))
    # what one rank has more, the others have less: there is one independent excess less than there are ranks
    independent = max(free * (len(excess) - 1) // len(excess), 1)
    found: Flags = (steps > 0) & (mean > student(CHANCE / len(excess), independent) * error)
    return found
