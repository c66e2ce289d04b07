"""Tables of one window, as CSV."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final

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
        _check_count("row_limit", self.row_limit, " or None")
        _check_count("stack_depth", self.stack_depth)

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, most self CPU time first."""
        tables = capture.tables(trace)
        table = tables.operators(self.by, stack_depth=self.stack_depth, all_flops=self.all_flops)
        yield csv("operators.csv", table.head(self.row_limit or table.height))


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
    row_limit: int | None = None
    """Keep this many rows, those with the most time; None keeps all."""

    def __post_init__(self) -> None:
        if not isinstance(self.by_launch, bool):
            raise OptionError(f"by_launch must be true or false, got {self.by_launch!r}")
        _check_count("row_limit", self.row_limit, " or None")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, most time first."""
        if trace.is_device_traced:
            tables = capture.tables(trace)
            table = tables.kernels_by_launch if self.by_launch else tables.kernels
            yield csv("kernels.csv", table.head(self.row_limit or table.height))


@dataclass(frozen=True, kw_only=True)
class Modules:
    """What each ``nn.Module`` cost, forward and backward: ``rank0.modules.csv``; it needs ``with_stack``."""

    needs: ClassVar[str] = "with_stack"
    """The recording option without which there is nothing to make."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, in the order of the tree of modules."""
        yield csv("modules.csv", capture.tables(trace).modules)


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Memory over time, ``rank0.memory.csv``, and who had allocated what lived at the peak, ``rank0.memory.peak.csv``.

    It needs ``profile_memory``, without which there are no files; with ``with_stack`` the second one tells the source.
    """

    needs: ClassVar[str] = "profile_memory"
    """The recording option without which there is nothing to make."""

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


def csv(name: str, table: pl.DataFrame) -> Artifact:
    """A table as CSV; milliseconds have six decimals, which is a nanosecond."""
    return Artifact(name, functools.partial(table.write_csv, float_precision=6))
