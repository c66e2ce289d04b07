"""When something happened, as tables tell it: the number of the step, and milliseconds since the trace began."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from perfhooks.trace.nesting import step_marks
from perfhooks.trace.nesting.intervals import MS

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints, Trace


def since_start(trace: Trace, time: Ints) -> Column:
    """The milliseconds from the first slice of the trace to each moment."""
    begin = trace.start.min() if len(trace) else 0
    return (time - begin) * MS


def known(values: pl.Series) -> Column:
    """The values of a column of numbers that are known."""
    return (values.drop_nulls() if values.null_count() else values).to_numpy()


def where(known: Flags, values: Column | list[str]) -> pl.Series:
    """Values as a column, null where they are not known."""
    return pl.Series(values).set(pl.Series(~known), None)


def step_numbers(trace: Trace, time: Ints) -> pl.Series:
    """The number of the step in which each moment lies; null outside of steps, and where steps have no numbers."""
    found = step_marks.find(trace)
    place = step_marks.step_of(found, time)
    numbers = pl.Series([*found.number, None], dtype=pl.Int64)
    return numbers.gather(np.where(place >= 0, place, len(found.number)))
