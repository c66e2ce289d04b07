from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from perfhooks.trace.nesting import step_marks
from perfhooks.trace.nesting.intervals import MS

if TYPE_CHECKING:
    from perfhooks.trace.model import Column, Flags, Ints, Trace


def since_start(trace: Trace, time: Ints) -> Column:
    """Return times in ms since the start of the first slice of the trace."""
    begin = trace.start.min() if len(trace) else 0
    return (time - begin) * MS


def known(values: pl.Series) -> Column:
    return (values.drop_nulls() if values.null_count() else values).to_numpy()


def where(is_valid: Flags, values: Column | list[str]) -> pl.Series:
    dtype = pl.String if isinstance(values, list) else None
    return pl.Series(values, dtype=dtype).set(pl.Series(~is_valid), None)


def step_numbers(trace: Trace, time: Ints) -> pl.Series:
    """Return the step number at each time; null outside of steps, and for steps without numbers."""
    marks = step_marks.find(trace)
    index = step_marks.step_of(marks, time)
    numbers = pl.Series([*marks.number, None], dtype=pl.Int64)
    return numbers[np.where(index >= 0, index, len(marks.number))]
