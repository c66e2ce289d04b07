"""The tables of one window: each is computed when it is first asked for, and once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

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

STUB: Final = 0.1
"""Of the median step. The last mark of a recording is no step if it is shorter and no operator ran in it: an idle
``step()`` leaves one at the end of a recording that nobody stopped. Other short steps are steps: they differ in
kind."""


@dataclass(frozen=True)
class Tables:
    """The tables of one window, and which of its steps count; whoever asks gets the same ones.

    The steps that count are the whole ones: not the one that was still open when recording ended, nor a mark without a
    step (see `STUB`); if that leaves none, the marks that are steps. Without marks the whole recording is the one step.
    Everything that is said of steps is said of these: the file of steps, the line for the log, the page, the findings.

    What has been computed lies on the trace and goes with it.
    """

    trace: Trace
    rank: int | None = None
    """The rank of the process, for traces that do not know it."""
    stage: str | None = None
    """train, validate, test or predict, as recorded; None where nobody said it, for what the trace shows
    (`perfhooks.trace.names.stages.shown`)."""
    first: int = 0
    """The first step that counts; those before it warmed up."""
    unfinished: int | None = None
    """The step that was still open when recording ended."""
    own_work: tuple[tuple[float, float], ...] = ()
    """When perfhooks itself kept the thread of the steps waiting, which is no part of them; in seconds since 1970."""
    owners: Owners = ()
    """Whose code is whose; see `perfhooks.trace.names.attribution`."""

    @property
    def marks(self) -> step_marks.MarkedSteps:
        """All marks of steps, those that do not count among them."""
        return step_marks.find(self.trace)

    @property
    def counting(self) -> Flags:
        """Which of `marks` are steps that count."""
        return _counting(self.trace, self.first, self.unfinished)

    @property
    def steps(self) -> pl.DataFrame:
        """The table of the steps that count: `perfhooks.trace.tables.steps.table`."""
        return _steps(
            self.trace, self.rank, self.stage, first=self.first, unfinished=self.unfinished, own_work=self.own_work
        )

    def operators(self, by: Iterable[str] = (), *, stack_depth: int = 5, all_flops: bool = False) -> pl.DataFrame:
        """The table of operators: `perfhooks.trace.tables.operators.table`."""
        wanted = (by,) if isinstance(by, str) else tuple(by)
        owners = self.owners if "line" in wanted else ()
        return _operators(self.trace, wanted, stack_depth=stack_depth, all_flops=all_flops, owners=owners)

    @property
    def labels(self) -> pl.DataFrame:
        """The table of labels: `perfhooks.trace.tables.labels.table`."""
        return _labels(self.trace)

    @property
    def functions(self) -> pl.DataFrame:
        """The table of Python functions: `perfhooks.trace.tables.functions.table`."""
        return _plain(self.trace, functions.table)

    @property
    def kernels(self) -> pl.DataFrame:
        """The table of kernels: `perfhooks.trace.tables.kernels.table`."""
        return _plain(self.trace, kernels.table)

    @property
    def kernels_by_launch(self) -> pl.DataFrame:
        """The same by what launched them: `perfhooks.trace.tables.kernels.by_launch`."""
        return _plain(self.trace, kernels.by_launch)

    @property
    def categories(self) -> pl.DataFrame:
        """The table of categories: `perfhooks.trace.tables.categories.table`."""
        return _plain(self.trace, categories.table)

    @property
    def collectives(self) -> pl.DataFrame:
        """The table of collectives: `perfhooks.trace.tables.collectives.table`."""
        return _plain(self.trace, collectives.table)

    @property
    def copies(self) -> pl.DataFrame:
        """The table of copies: `perfhooks.trace.tables.copies.table`."""
        return _plain(self.trace, copies.table)

    @property
    def counters(self) -> pl.DataFrame:
        """The table of counters by step: `perfhooks.trace.tables.counters.table`."""
        return _plain(self.trace, counters.table)

    @property
    def counters_by_kernel(self) -> pl.DataFrame:
        """The same by kernel: `perfhooks.trace.tables.counters.by_kernel`."""
        return _plain(self.trace, counters.by_kernel)

    @property
    def synchronisations(self) -> pl.DataFrame:
        """The table of synchronisations: `perfhooks.trace.tables.synchronisations.table`."""
        return _sourced(self.trace, synchronisations.table, self.owners)

    @property
    def usual(self) -> Flags:
        """Which of `marks` count and are of no other kind, such as one that validates.

        Steps whose device times are unknown are left out, if those of others are known: all means are of one set.
        """
        found: Flags = self.counting.copy()
        found[found] = step_kinds.usual(self.steps)
        known: Flags = found & ~missing_work.unknown(self.trace).wall
        return known if known.any() else found

    @property
    def is_device_known(self) -> bool:
        """Whether the times of a device are known in the steps that are `usual`."""
        return self.trace.is_device_traced and not missing_work.unknown(self.trace).wall[self.usual].all()

    def idle(self, by: Iterable[str] = ()) -> pl.DataFrame:
        """Why devices idled in the steps that count: `perfhooks.trace.tables.idle.table`."""
        return idle.table(self.trace, self.counting, by_step="step" in by, owners=self.owners)

    @property
    def gaps(self) -> pl.DataFrame:
        """When they did for longest: `perfhooks.trace.tables.gaps.table`."""
        return gaps.table(self.trace, self.counting, owners=self.owners)

    def stacks(self, by: Literal["host", "device", "bytes"] = "host") -> dict[str, int]:
        """The folded stacks: `perfhooks.trace.tables.stacks.folded`."""
        return stacks.folded(self.trace, by)

    def calls(self, by: Literal["host", "device", "bytes"] = "host") -> Summed:
        """The same as a tree: `perfhooks.trace.tables.stacks.summed`."""
        return stacks.summed(self.trace, by)

    @property
    def modules(self) -> pl.DataFrame:
        """The table of modules: `perfhooks.trace.tables.modules.table`."""
        return _plain(self.trace, modules.table)

    @property
    def memory(self) -> pl.DataFrame:
        """Memory over time: `perfhooks.trace.tables.memory.over_time`."""
        return _plain(self.trace, memory.over_time)

    @property
    def memory_peak(self) -> pl.DataFrame:
        """When memory was highest: `perfhooks.trace.tables.memory.peak`."""
        return _plain(self.trace, memory.peak)

    @property
    def alive_at_peak(self) -> pl.DataFrame:
        """Who had allocated it then: `perfhooks.trace.tables.memory.alive_at_peak`."""
        return _sourced(self.trace, memory.alive_at_peak, self.owners)

    @property
    def checks(self) -> pl.DataFrame:
        """What makes the trace doubtful: `perfhooks.trace.tables.checks.table`."""
        return _plain(self.trace, checks.table)


@cached_per_trace
def _plain(trace: Trace, make: Callable[[Trace], pl.DataFrame]) -> pl.DataFrame:
    return make(trace)


@cached_per_trace
def _sourced(trace: Trace, make: Callable[..., pl.DataFrame], owners: Owners) -> pl.DataFrame:
    return make(trace, owners=owners)


@cached_per_trace
def _labels(trace: Trace) -> pl.DataFrame:
    return labels.of_operators(trace, Tables(trace).operators())


@cached_per_trace
def _counting(trace: Trace, first: int, unfinished: int | None) -> Flags:
    marks = step_marks.find(trace)
    wall: Ints = marks.end - marks.start
    is_finished = [number != unfinished and (number is None or number >= first) for number in marks.number]
    finished: Flags = np.array(is_finished, np.bool_)
    # a step that was cut short may have waited for what cut it: it does not tell how long a step is
    typical = np.median(wall[finished] if finished.any() else wall) if len(wall) else 0.0
    whole: Flags = np.ones(len(wall), np.bool_)
    # marks are sorted by time: only the last one can have been left by a step() after which nothing came
    if len(wall) and wall[-1] < STUB * typical:
        begun = trace.start[trace.rows(Kind.OP)]
        whole[-1] = bool(((begun >= marks.start[-1]) & (begun < marks.end[-1])).any())
    best = whole & finished
    return best if best.any() else whole


@cached_per_trace
def _steps(
    trace: Trace,
    rank: int | None,
    stage: str | None,
    *,
    first: int,
    unfinished: int | None,
    own_work: tuple[tuple[float, float], ...],
) -> pl.DataFrame:
    every = steps.table(trace, rank=rank, stage=stage, own_work=own_work)
    return every.filter(pl.Series(_counting(trace, first, unfinished), dtype=pl.Boolean))


@cached_per_trace
def _operators(trace: Trace, by: tuple[str, ...], *, stack_depth: int, all_flops: bool, owners: Owners) -> pl.DataFrame:
    return operators.table(trace, by, stack_depth=stack_depth, all_flops=all_flops, owners=owners)
