from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import step_kinds
from perfhooks.trace.nesting import missing_work, step_marks
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables import (
    categories,
    checks,
    collectives,
    copies,
    counters,
    functions,
    gaps,
    idle,
    kernels,
    labels,
    memory,
    modules,
    operators,
    stacks,
    steps,
    synchronisations,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.names.origins import Owners
    from perfhooks.trace.nesting.intervals import Flags
    from perfhooks.trace.tables.stacks import Summed


@dataclass(frozen=True)
class Tables:
    """Tables of one window, each computed on first access. Tables of steps contain complete steps only.

    The final step is incomplete if it was open at the end of the recording. In a recording without a known ``last``
    step, it is also incomplete if it is only the short mark of an extra ``step()`` call. If no step is complete,
    incomplete steps are used. In a trace without marks, the whole recording is one step.
    """

    trace: Trace
    rank: int | None = None
    """Rank of the process if the trace does not contain it."""
    stage: str | None = None
    """Recorded loop: train, validate, test or predict; None detects the loop from the trace
    (`perfhooks.trace.names.stages.shown`).
    """
    first: int = 0
    """Number of the first complete step. Earlier steps are warm-up."""
    last: int | None = None
    """Number of the last planned step, if known."""
    unfinished: int | None = None
    """Number of the step that was open at the end of the recording."""
    own_work: tuple[tuple[float, float], ...] = ()
    """Intervals in which perfhooks blocked the thread of the steps, in seconds since 1970. Step times exclude these
    intervals.
    """
    owners: Owners = ()
    """Origins of code files, for example user or installed; see `perfhooks.trace.names.origins`."""

    @property
    def marks(self) -> step_marks.MarkedSteps:
        """All ``ProfilerStep`` marks, including incomplete steps."""
        return step_marks.find(self.trace)

    @property
    def counting(self) -> Flags:
        """Whether the tables contain the step of each of `marks`."""
        return _counting(self.trace, self.first, self.last, self.unfinished)

    @property
    def steps(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.steps.table`."""
        return _steps(self.trace, self.rank, self.stage, self.own_work, tuple(self.counting.tolist()))

    def operators(self, by: Iterable[str] = (), *, stack_depth: int = 5, all_flops: bool = False) -> pl.DataFrame:
        """See `perfhooks.trace.tables.operators.table`."""
        group_keys = (by,) if isinstance(by, str) else tuple(by)
        owners = self.owners if "line" in group_keys else ()
        return _operators(self.trace, group_keys, stack_depth=stack_depth, all_flops=all_flops, owners=owners)

    @property
    def labels(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.labels.table`."""
        return _labels(self.trace)

    @property
    def functions(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.functions.table`."""
        return _cached_table(self.trace, functions.table)

    @property
    def kernels(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.kernels.table`."""
        return _cached_table(self.trace, kernels.table)

    @property
    def kernels_by_launch(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.kernels.by_launch`."""
        return _cached_table(self.trace, kernels.by_launch)

    @property
    def categories(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.categories.table`."""
        return _cached_table(self.trace, categories.table)

    @property
    def collectives(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.collectives.table`."""
        return _cached_table(self.trace, collectives.table)

    @property
    def copies(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.copies.table`."""
        return _cached_table(self.trace, copies.table)

    @property
    def counters(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.counters.table`."""
        return _cached_table(self.trace, counters.table)

    @property
    def counters_by_kernel(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.counters.by_kernel`."""
        return _cached_table(self.trace, counters.by_kernel)

    @property
    def synchronisations(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.synchronisations.table`."""
        return _cached_table_with_owners(self.trace, synchronisations.table, self.owners)

    @property
    def usual(self) -> Flags:
        """Whether each of `marks` counts in mean values, see `perfhooks.trace.names.step_kinds.usual`."""
        is_usual: Flags = self.counting.copy()
        is_usual[is_usual] = step_kinds.usual(self.steps)
        return is_usual

    @property
    def is_device_known(self) -> bool:
        """Whether the device times of the `usual` steps are available."""
        return self.trace.is_device_traced and not missing_work.unknown(self.trace).wall[self.usual].all()

    def idle(self, by: Iterable[str] = ()) -> pl.DataFrame:
        """See `perfhooks.trace.tables.idle.table`."""
        return idle.table(self.trace, self.counting, by_step="step" in by, owners=self.owners)

    @property
    def gaps(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.gaps.table`."""
        return gaps.table(self.trace, self.counting, owners=self.owners)

    def stacks(self, by: Literal["host", "device", "bytes"] = "host") -> dict[str, int]:
        """See `perfhooks.trace.tables.stacks.folded`."""
        return stacks.folded(self.trace, by)

    def calls(self, by: Literal["host", "device", "bytes"] = "host") -> Summed:
        """See `perfhooks.trace.tables.stacks.summed`."""
        return stacks.summed(self.trace, by)

    @property
    def modules(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.modules.table`."""
        return _cached_table(self.trace, modules.table)

    @property
    def memory(self) -> pl.DataFrame:
        """Memory over time: `perfhooks.trace.tables.memory.over_time`."""
        return _cached_table(self.trace, memory.over_time)

    @property
    def memory_peak(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.memory.peak`."""
        return _cached_table(self.trace, memory.peak)

    @property
    def alive_at_peak(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.memory.alive_at_peak`."""
        return _cached_table_with_owners(self.trace, memory.alive_at_peak, self.owners)

    @property
    def checks(self) -> pl.DataFrame:
        """See `perfhooks.trace.tables.checks.table`."""
        return _cached_table(self.trace, checks.table)


@cached_per_trace
def _cached_table(trace: Trace, make: Callable[[Trace], pl.DataFrame]) -> pl.DataFrame:
    return make(trace)


@cached_per_trace
def _cached_table_with_owners(trace: Trace, make: Callable[..., pl.DataFrame], owners: Owners) -> pl.DataFrame:
    return make(trace, owners=owners)


@cached_per_trace
def _labels(trace: Trace) -> pl.DataFrame:
    return labels.of_operators(trace, Tables(trace).operators())


@cached_per_trace
def _counting(trace: Trace, first: int, last: int | None, unfinished: int | None) -> Flags:
    marks = step_marks.find(trace)
    wall: Ints = marks.end - marks.start
    is_finished = [number != unfinished and (number is None or number >= first) for number in marks.number]
    finished: Flags = np.array(is_finished, np.bool_)
    # an interrupted step may include the wait for the interruption
    typical = np.median(wall[finished] if finished.any() else wall) if len(wall) else 0.0
    is_whole: Flags = np.ones(len(wall), np.bool_)
    # a step() after the last step leaves a short last mark, of less than a tenth of a step
    if len(wall) and marks.number[-1] != last and wall[-1] < 0.1 * typical:
        op_starts = trace.start[trace.rows(Kind.OP)]
        is_whole[-1] = bool(((op_starts >= marks.start[-1]) & (op_starts < marks.end[-1])).any())
    is_counting = is_whole & finished
    return is_counting if is_counting.any() else is_whole


@cached_per_trace
def _steps(
    trace: Trace,
    rank: int | None,
    stage: str | None,
    own_work: tuple[tuple[float, float], ...],
    counting: tuple[bool, ...],
) -> pl.DataFrame:
    all_steps = steps.table(trace, rank=rank, stage=stage, own_work=own_work)
    return all_steps.filter(pl.Series(counting, dtype=pl.Boolean))


@cached_per_trace
def _operators(trace: Trace, by: tuple[str, ...], *, stack_depth: int, all_flops: bool, owners: Owners) -> pl.DataFrame:
    return operators.table(trace, by, stack_depth=stack_depth, all_flops=all_flops, owners=owners)
