"""Tables of one window, as CSV."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfhooks.errors import OptionError
from perfhooks.handlers.artifact import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from perfhooks.run import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """Where the time of each step went: ``rank0.steps.csv``, one row per step."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        yield _csv("steps.csv", step_rows(capture, trace))


def step_rows(capture: Capture, trace: Trace) -> pl.DataFrame:
    """The step table of a window; a step that was cut short is left out where there are whole ones."""
    import polars as pl

    from perfhooks.trace import steps

    table = steps.table(trace, rank=capture.rank, stage=capture.stage)
    whole = table.filter(pl.col("step").ne_missing(capture.unfinished_step))
    return whole if whole.height else table


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """The rows of ``key_averages()``: ``rank0.operators.csv``."""

    by: tuple[str, ...] = ()
    """What to tell apart besides the name: ``"shapes"``."""
    row_limit: int | None = None
    """Keep this many rows, those with the most self CPU time; None keeps all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        if self.row_limit is not None and (not isinstance(self.row_limit, int) or self.row_limit < 1):
            raise OptionError(f"row_limit must be an integer >= 1 or None, got {self.row_limit!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:  # noqa: ARG002 -- the form of a handler
        """One file, most self CPU time first."""
        from perfhooks.trace import operators

        table = operators.table(trace, by=self.by)
        yield _csv("operators.csv", table if self.row_limit is None else table.head(self.row_limit))


def _csv(name: str, table: pl.DataFrame) -> Artifact:
    """A table as CSV; milliseconds have six decimals, which is a nanosecond."""
    return Artifact(name, functools.partial(table.write_csv, float_precision=6))
