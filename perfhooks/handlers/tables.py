"""Tables of one window, as CSV."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perfhooks.errors import OptionError
from perfhooks.handlers.artifact import Artifact
from perfhooks.run.layout import STEPS

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


_GROUPS: Final = ("shapes", "stack", "line", "module", "step")


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """Where the time of each step went: ``rank0.steps.csv``, one row per step."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        yield csv(STEPS, capture.tables(trace).steps)


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """The rows of ``key_averages()``: ``rank0.operators.csv``."""

    by: tuple[str, ...] = ()
    """What to tell apart besides the name: ``"shapes"``, ``"stack"``, ``"line"``, ``"module"``, ``"step"``."""
    stack_depth: int = 5
    """How many Python frames, the innermost ones, tell one ``"stack"`` from another."""
    all_flops: bool = False
    """Count attention, every kind of convolution and its backward pass too, which torch's table lacks."""
    row_limit: int | None = None
    """Keep this many rows, those with the most self CPU time; None keeps all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        for unknown in (each for each in self.by if each not in _GROUPS):
            raise OptionError(f"by must be of {', '.join(map(repr, _GROUPS))}, got {unknown!r}")
        if self.row_limit is not None and (type(self.row_limit) is not int or self.row_limit < 1):
            raise OptionError(f"row_limit must be an integer >= 1 or None, got {self.row_limit!r}")
        if not isinstance(self.stack_depth, int) or self.stack_depth < 1:
            raise OptionError(f"stack_depth must be an integer >= 1, got {self.stack_depth!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, most self CPU time first."""
        tables = capture.tables(trace)
        table = tables.operators(self.by, stack_depth=self.stack_depth, all_flops=self.all_flops)
        yield csv("operators.csv", table if self.row_limit is None else table.head(self.row_limit))


@dataclass(frozen=True, kw_only=True)
class CategoryTable:
    """The time by kind of work, as GEMMs, attention and copies: ``rank0.categories.csv``."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, most time first."""
        yield csv("categories.csv", capture.tables(trace).categories)


def csv(name: str, table: pl.DataFrame) -> Artifact:
    """A table as CSV; milliseconds have six decimals, which is a nanosecond."""
    return Artifact(name, functools.partial(table.write_csv, float_precision=6))
