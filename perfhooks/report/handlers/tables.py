"""Tables of one window, as CSV."""

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
    sort_by: str = "self_cpu_ms"
    """A column, or a key of torch's tables as ``"cuda_time_total"``; largest first."""
    row_limit: int | None = None
    """Keep this many rows, the first ones; None keeps all."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        for unknown in (each for each in self.by if each not in _GROUPS):
            raise OptionError(f"by must be of {', '.join(map(repr, _GROUPS))}, got {unknown!r}")
        _check_rows("operators", self.sort_by, self.row_limit)
        _check_count("stack_depth", self.stack_depth)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        tables = capture.tables(trace)
        table = tables.operators(self.by, stack_depth=self.stack_depth, all_flops=self.all_flops)
        yield csv("operators.csv", _first_rows("operators", table, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class LabelTable:
    """How often each label ran and how long: ``rank0.labels.csv``, the user's own first."""

    sort_by: str | None = None
    """A column, or a key of torch's tables as ``"cpu_time_total"``; None has the user's own first, then by total."""
    row_limit: int | None = None
    """Keep this many rows, the first ones; None keeps all."""

    def __post_init__(self) -> None:
        _check_rows("labels", self.sort_by, self.row_limit)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        yield csv(LABELS, _first_rows("labels", capture.tables(trace).labels, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class FunctionTable:
    """The Python functions, as cProfile's: ``rank0.functions.csv``; it needs ``with_stack``."""

    sort_by: str = "self_ms"
    """A column, or a key of torch's tables as ``"cpu_time_total"``; largest first."""
    row_limit: int | None = None
    """Keep this many rows, the first ones; None keeps all."""

    def __post_init__(self) -> None:
        _check_rows("functions", self.sort_by, self.row_limit)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        table = capture.tables(trace).functions
        yield csv("functions.csv", _first_rows("functions", table, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class CategoryTable:
    """The time by kind of work, as GEMMs, attention and copies: ``rank0.categories.csv``."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, most time first."""
        yield csv("categories.csv", capture.tables(trace).categories)


@dataclass(frozen=True, kw_only=True)
class KernelTable:
    """What the devices ran: ``rank0.kernels.csv``; no file where no device was traced."""

    by_launch: bool = False
    """One row for each launching operator and kernel, rather than for each kernel."""
    sort_by: str = "total_ms"
    """A column, or a key of torch's tables as ``"cuda_time_total"``; largest first."""
    row_limit: int | None = None
    """Keep this many rows, the first ones; None keeps all."""

    def __post_init__(self) -> None:
        if not isinstance(self.by_launch, bool):
            raise OptionError(f"by_launch must be true or false, got {self.by_launch!r}")
        _check_rows("kernels", self.sort_by, self.row_limit)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file."""
        if trace.is_device_traced:
            tables = capture.tables(trace)
            table = tables.kernels_by_launch if self.by_launch else tables.kernels
            yield csv("kernels.csv", _first_rows("kernels", table, self.sort_by, self.row_limit))


@dataclass(frozen=True, kw_only=True)
class Modules:
    """What each ``nn.Module`` cost, forward and backward: ``rank0.modules.csv``; it needs ``with_stack``."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, in the order of the tree of modules."""
        yield csv("modules.csv", capture.tables(trace).modules)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory over time, ``rank0.memory.csv``, and who had allocated what lived at the peak, ``rank0.memory.peak.csv``.

    It needs ``profile_memory``, without which there are no files; with ``with_stack`` the second one tells the source.
    """

    rows: int = 2000
    """About how many rows each device has in the first file; the peak is one of them, exactly."""

    def __post_init__(self) -> None:
        _check_count("rows", self.rows)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Two files."""
        from perfhooks.trace.tables import memory

        if len(trace.instants.time):
            tables = capture.tables(trace)
            yield csv("memory.csv", memory.thinned(tables.memory, self.rows))
            yield csv("memory.peak.csv", tables.alive_at_peak)


def _check_count(name: str, value: object, otherwise: str = "") -> None:
    """Refuse what is no number of anything; None is let through where something ``otherwise`` is said of it.

    Raises:
        OptionError: It is none.
    """
    if not (value is None and otherwise) and (type(value) is not int or value < 1):
        raise OptionError(f"{name} must be an integer >= 1{otherwise}, got {value!r}")


def _check_rows(name: str, sort_by: str | None, row_limit: int | None) -> None:
    """Refuse an order or a number of rows that a table cannot have.

    Raises:
        OptionError: One of them.
    """
    if sort_by is not None:
        sort_keys.check(name, sort_by)
    _check_count("row_limit", row_limit, " or None")


def _first_rows(name: str, table: pl.DataFrame, sort_by: str | None, row_limit: int | None) -> pl.DataFrame:
    """The rows of a table that a file has, in its order; None is the table's own, and all rows."""
    rows = table if sort_by is None else sort_keys.ordered(name, table, sort_by)
    return rows.head(row_limit or rows.height)


def csv(name: str, table: pl.DataFrame) -> Artifact:
    """A table as CSV; milliseconds have six decimals, which is a nanosecond."""
    return Artifact(name, functools.partial(table.write_csv, float_precision=6))
