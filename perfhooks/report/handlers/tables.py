from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import OptionError
from perfhooks.report.handlers.artifact import Artifact
from perfhooks.run.layout import LABELS, STEPS
from perfhooks.trace.names import sort_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


_GROUPS: Final = ("shapes", "stack", "line", "module", "step")


@dataclass(frozen=True, kw_only=True)
class StepTable:
    """The parts of each step: ``rank0.steps.csv``, one row per step."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file."""
        yield csv(STEPS, capture.tables(trace).steps)


@dataclass(frozen=True, kw_only=True)
class OperatorTable:
    """The rows of ``key_averages()``: ``rank0.operators.csv``."""

    by: tuple[str, ...] = ()
    """Further keys besides the name: ``"shapes"``, ``"stack"``, ``"line"``, ``"module"``, ``"step"``."""
    stack_depth: int = 5
    """Number of innermost Python frames that distinguish one ``"stack"`` from another."""
    all_flops: bool = False
    """Whether to count also FLOPs of attention, all convolutions and their backward passes, which torch's table omits.
    """
    sort_by: str = "self_cpu_ms"
    """A column, or a key of torch's tables, for example ``"cuda_time_total"``; largest first."""
    row_limit: int | None = None
    """Maximum number of rows; None keeps all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        for unknown in (key for key in self.by if key not in _GROUPS):
            raise OptionError(f"by must be one or more of {', '.join(map(repr, _GROUPS))}, got {unknown!r}")
        _check_rows("operators", self.sort_by, self.row_limit)
        _check_count("stack_depth", self.stack_depth)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file."""
        tables = capture.tables(trace)
        table = tables.operators(self.by, stack_depth=self.stack_depth, all_flops=self.all_flops)
        yield csv("operators.csv", _first_rows("operators", table, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """Calls and times of labels: ``rank0.labels.csv``, labels of the user first."""

    sort_by: str | None = None
    """A column, or a key of torch's tables, for example ``"cpu_time_total"``. None sorts labels of the user first, then
    the longest first.
    """
    row_limit: int | None = None
    """Maximum number of rows; None keeps all."""

    def __post_init__(self) -> None:
        _check_rows("labels", self.sort_by, self.row_limit)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file."""
        yield csv(LABELS, _first_rows("labels", capture.tables(trace).labels, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class FunctionTable:
    """The Python functions, as by cProfile: ``rank0.functions.csv``; it needs ``with_stack``."""

    sort_by: str = "self_ms"
    """A column, or a key of torch's tables, for example ``"cpu_time_total"``; largest first."""
    row_limit: int | None = None
    """Maximum number of rows; None keeps all."""

    def __post_init__(self) -> None:
        _check_rows("functions", self.sort_by, self.row_limit)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file."""
        table = capture.tables(trace).functions
        yield csv("functions.csv", _first_rows("functions", table, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class CategoryTable:
    """The time of each kind of work, for example GEMMs, attention and copies: ``rank0.categories.csv``."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file, sorted by time, longest first."""
        yield csv("categories.csv", capture.tables(trace).categories)


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """Kernels, copies and memsets: ``rank0.kernels.csv``. There is no file if no device was traced."""

    by_launch: bool = False
    """One row for each pair of launching operator and kernel, instead of one row for each kernel."""
    sort_by: str = "total_ms"
    """A column, or a key of torch's tables, for example ``"cuda_time_total"``; largest first."""
    row_limit: int | None = None
    """Maximum number of rows; None keeps all."""

    def __post_init__(self) -> None:
        if not isinstance(self.by_launch, bool):
            raise OptionError(f"by_launch must be true or false, got {self.by_launch!r}")
        _check_rows("kernels", self.sort_by, self.row_limit)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file."""
        if trace.is_device_traced:
            tables = capture.tables(trace)
            table = tables.kernels_by_launch if self.by_launch else tables.kernels
            yield csv("kernels.csv", _first_rows("kernels", table, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class Modules:
    """Forward and backward time of each ``nn.Module``: ``rank0.modules.csv``; it needs ``with_stack``."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file, in the order of the tree of modules."""
        yield csv("modules.csv", capture.tables(trace).modules)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory over time, ``rank0.memory.csv``, and allocations alive at the peak, ``rank0.memory.peak.csv``.

    There are no files without ``profile_memory``. With ``with_stack``, the second file has lines of source.
    """

    rows: int = 2000
    """Approximate number of rows of each device in ``memory.csv``, always with the peak."""

    def __post_init__(self) -> None:
        _check_count("rows", self.rows)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return two files."""
        from perfhooks.trace.tables import memory

        if len(trace.instants.time):
            tables = capture.tables(trace)
            yield csv("memory.csv", memory.thinned(tables.memory, self.rows))
            yield csv("memory.peak.csv", tables.alive_at_peak)


def _check_count(name: str, value: object, otherwise: str = "") -> None:
    if not (value is None and otherwise) and (type(value) is not int or value < 1):
        raise OptionError(f"{name} must be an integer >= 1{otherwise}, got {value!r}")


def _check_rows(name: str, sort_by: str | None, row_limit: int | None) -> None:
    if sort_by is not None:
        sort_keys.check(name, sort_by)
    _check_count("row_limit", row_limit, " or None")


def _first_rows(name: str, table: pl.DataFrame, sort_by: str | None, row_limit: int | None) -> pl.DataFrame:
    rows = table if sort_by is None else sort_keys.ordered(name, table, sort_by)
    return rows.head(row_limit or rows.height)


def csv(name: str, table: pl.DataFrame) -> Artifact:
    """Write a table as CSV. Milliseconds have six decimals, which is a nanosecond."""
    return Artifact(name, functools.partial(table.write_csv, float_precision=6))
