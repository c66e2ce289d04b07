"""What the rules look at: each table of a window computed once, over its whole steps, in milliseconds a step."""

from __future__ import annotations

import functools
import re
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import polars as pl

from perfhooks.analysis.findings import faces
from perfhooks.analysis.findings.finding import NOTABLE, Finding, basis, gain_of
from perfhooks.core import words
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import attribution, stages, step_kinds
from perfhooks.trace.names.origins import Origin
from perfhooks.trace.nesting import device, intervals, missing_work, parts, starts
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.nesting.step_marks import MarkedSteps, step_of
from perfhooks.trace.tables import collectives, device_time, gaps, idle, step_columns
from perfhooks.trace.tables.device_time import CAUSES, Idle
from perfhooks.trace.tables.steps import own_moments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.grouping import Groups
    from perfhooks.trace.nesting.intervals import Flags, Intervals

T = TypeVar("T")

OVERLAP: Final = "Gains of different findings may overlap."
BUSY: Final = "An upper bound: the program waited for CPUs, so these times are too long."
UNMEASURED: Final = "An upper bound: the gain of this advice was never measured under these conditions."

_SLOW_CALL_NS: Final = 50_000
"""A launch takes 5 to 10 us; HolisticTraceAnalysis calls one above 50 us an outlier. If the device works all the while,
its queue was full and the host waited for it."""
_COVERED: Final = 0.9  # of a call: the device worked all the while, but for what clocks disagree


def cached_per_window(make: Callable[[Evidence], T]) -> Callable[[Evidence], T]:
    """Compute a function of a window once for all rules."""

    @functools.wraps(make)
    def cached(seen: Evidence) -> T:
        if make not in seen.known:
            seen.known[make] = make(seen)
        value: T = seen.known[make]
        return value

    return cached


class Evidence:
    """One window as the rules see it.

    A *step* here is one that counts (`perfhooks.trace.window.Tables`), is not one of the first steps of its program,
    and is of no other kind, such as one that validates (`perfhooks.trace.names.step_kinds`); without marks it is the
    whole recording. Figures are means over these steps.

    Two limits keep estimates honest. What the host saves shortens a step only while the device idles: `host_limit_ms`.
    What the device saves shortens it only where the host waits for the device: `device_limit_ms`.
    """

    def __init__(self, capture: Capture, trace: Trace) -> None:
        self.capture = capture
        self.told = capture.circumstances
        """What its process had to work with, and whose face recorded it."""
        self.trace = trace
        self.tables = capture.tables(trace)
        self.known: dict[object, Any] = {}
        """Values of functions with `cached_per_window`."""

    # --- steps ---

    @cached_property
    def steps(self) -> pl.DataFrame:
        """The table of steps."""
        return self.tables.steps.filter(pl.Series(self._usual, dtype=pl.Boolean))

    @cached_property
    def _usual(self) -> Flags:
        """Which of the steps that count are examined."""
        table = self.tables.steps
        usual, numbers = step_kinds.usual(table), table["step"].fill_null(0).to_numpy()
        known = usual & ~missing_work.unknown(self.trace).wall[self.tables.counting]
        usual = known if known.any() else usual
        later: Flags = usual & (numbers >= self.capture.first + self.capture.starting_steps)
        return later if later.any() else usual

    @cached_property
    def is_device_traced(self) -> bool:
        """Whether a device was seen working, and its times in the steps are known."""
        unknown = missing_work.unknown(self.trace).wall[self.chosen]
        return self.trace.is_device_traced and not unknown.any()

    @property
    def uses_device(self) -> bool:
        """Whether the program gave work to a device, whether or not the times of that work are known."""
        return self.trace.is_device_traced or len(device.launch_calls(self.trace)) > 0

    @cached_property
    def is_start(self) -> bool:
        """Whether all steps are among the first ones of their program: imports and first calls take their time."""
        until = self.capture.first + self.capture.starting_steps
        unnumbered = self.capture.first if self.capture.is_part else until
        is_starting: bool = (self.steps["step"].fill_null(unnumbered) < until).all()
        return self.count > 0 and is_starting

    @cached_property
    def marks(self) -> MarkedSteps:
        """The marks of the steps."""
        every, counting = self.tables.marks, np.flatnonzero(self.tables.counting)[self._usual]
        return MarkedSteps(
            [every.number[place] for place in counting.tolist()], *(each[counting] for each in every[1:])
        )

    @property
    def are_numbered(self) -> bool:
        """Whether there are steps, and not only one recording, whose beginning may be unlike everything after it."""
        return self.steps.height > 0 and self.steps["step"].null_count() == 0

    @property
    def unit(self) -> str:
        """What figures are for."""
        return "step" if self.are_numbered else "recording"

    @cached_property
    def count(self) -> int:
        """How many steps there are."""
        return self.steps.height

    @cached_property
    def numbers(self) -> str:
        """The steps, for people."""
        if not self.are_numbered:
            return "the whole recording"
        numbers = self.steps["step"].to_list()
        first, last = min(numbers), max(numbers)
        return words.steps(first, last)

    def mean(self, column: str) -> float:
        """The mean of a column of the table of steps; 0 where the trace does not tell."""
        values = step_columns.known(self.steps[column])
        return float(values.sum()) / self.count if len(values) else 0.0

    @cached_property
    def step_ms(self) -> float:
        """What a step takes: its wall time, or the work of its device where that goes on for longer than the step."""
        wall, busy = self.steps["wall_ms"].to_numpy(), self.steps["busy_ms"].fill_null(0).to_numpy()
        return float(np.maximum(wall, busy).mean()) if self.count else 0.0

    @cached_property
    def chosen(self) -> Flags:
        """Which of all marks of the trace are those of the steps."""
        found: Flags = self.tables.counting.copy()
        found[found] = self._usual
        return found

    @cached_property
    def windows(self) -> Intervals:
        """Moments of the steps, without the work of perfhooks."""
        return intervals.subtract(intervals.union(self.marks.start, self.marks.end), self._own_work)

    @cached_property
    def _own_work(self) -> Intervals:
        return own_moments(self.trace, self.tables.own_work)

    def inside(self, time: Ints) -> Flags:
        """Whether each moment lies in one of the steps."""
        return step_of(self.marks, time) >= 0

    # --- time ---

    @cached_property
    def startup(self) -> dict[str, Intervals]:
        """The one-time work in the steps, by its name.

        If the last step compiles, nothing tells that it is the first time.
        """
        found = {name: intervals.intersect(each, self.windows) for name, each in starts.spent(self.trace).items()}
        if self.are_numbered and len(found.get(starts.COMPILING, ())):
            begin, end = int(self.marks.start.max()), int(self.marks.end.max())
            if len(intervals.clip(found[starts.COMPILING], begin, end)):
                del found[starts.COMPILING]
        return {name: moments for name, moments in found.items() if len(moments)}

    @cached_property
    def _usual_moments(self) -> Intervals:
        """The moments of the steps without one-time work."""
        return intervals.subtract(self.windows, intervals.joined(*self.startup.values()))

    def spans(self, rows: Ints) -> Intervals:
        """The moments of some slices, in the steps and without one-time work."""
        return self.clipped(intervals.of_slices(self.trace, rows))

    def clipped(self, moments: Intervals) -> Intervals:
        """The part of some moments that lies in the steps and is no one-time work."""
        return intervals.intersect(moments, self._usual_moments)

    def per_step(self, moments: Intervals) -> float:
        """The length of a set, in milliseconds a step."""
        return intervals.total(moments) * intervals.MS / max(self.count, 1)

    @cached_property
    def busy(self) -> Intervals:
        """When any device worked; never if that is unknown."""
        return device.busy(self.trace) if self.is_device_traced else intervals.nothing()

    @cached_property
    def idle(self) -> Idle:
        """When no device worked, and why: disjoint stretches.

        Of a recording without steps only those between its first and its last work: nobody knows what lies before and
        after it. Stretches during the work of perfhooks are left out.
        """
        found = idle.of_steps(self.trace, self.chosen)
        kept = (found.place == device_time.PLACES.index("between")) | self.are_numbered
        kept &= intervals.within(self._own_work, found.start, found.end) == 0
        return Idle(*(each[kept] for each in found))

    @cached_property
    def gaps(self) -> Groups:
        """Which of these stretches lie in one gap between works of devices."""
        return gaps.together(self.idle)

    def idle_for(self, *causes: int, among: Flags | None = None) -> Intervals:
        """The idle time that has one of some causes.

        Args:
            causes: places in `device_time.CAUSES`.
            among: which of the idle stretches count; all if not given.
        """
        found = self.idle_stretches(*causes, among=among)
        return self.clipped(intervals.union(found.start, found.end))

    def idle_stretches(self, *causes: int, among: Flags | None = None) -> Idle:
        """The same as stretches."""
        found = np.isin(self.idle.cause, causes) & (True if among is None else among)
        return Idle(*(each[found] for each in self.idle))

    def idle_sources(self, *causes: int, among: Flags | None = None) -> list[tuple[str, float]]:
        """What was called in such idle time, or which line it was in, with its milliseconds a step."""
        chosen = self.idle_stretches(*causes, among=among)
        known = idle.told(self.trace, chosen, self.tables.owners).words(self.trace, np.arange(len(chosen.start)))
        spoken = zip(*(known[name].cast(pl.String).to_list() for name in ("cause", "name", "line")), strict=True)
        names = [" in ".join(filter(None, (name, line))) or cause for cause, name, line in spoken]
        return list(zip(names, (chosen.length * intervals.MS / max(self.count, 1)).tolist(), strict=True))

    @cached_property
    def host_limit_ms(self) -> float:
        """How much shorter a step can become by sparing the host: the time in which the device idles."""
        return self.per_step(self.idle_for(*range(len(CAUSES)))) if self.is_device_traced else self.step_ms

    @cached_property
    def device_limit_ms(self) -> float:
        """How much shorter a step can become by sparing the device: the time for which the host waits for it.

        That is calls that wait and calls that a full queue delays, while the device works, and the work that outlasts
        the steps.
        """
        trace = self.trace
        calls = trace.rows(Kind.RUNTIME)
        calls = calls[(trace.end - trace.start)[calls] > _SLOW_CALL_NS]
        span = (trace.end - trace.start)[calls]
        covered = intervals.within(self.busy, trace.start[calls], trace.end[calls]) >= _COVERED * span
        waits = intervals.distinct(device.wait_calls(trace), calls[covered])
        waited = intervals.intersect(self.spans(waits), self.busy)
        return self.per_step(waited) + max(self.step_ms - self.mean("wall_ms"), 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether the training waited for processors, so that times of the host are more than it needs."""
        return self.told.is_busy

    # --- without the recorder ---

    @cached_property
    def unrecorded_ms(self) -> float:
        """Time of an unprofiled step; of a profiled one if it is unknown."""
        return self.capture.cost.idle_step_ms or self.step_ms

    @property
    def recording_ms(self) -> float:
        """What recording added to a step."""
        return max(self.step_ms - self.unrecorded_ms, 0.0)

    @cached_property
    def unrecorded_data_ms(self) -> float | None:
        """How much of a step that nobody records is wait for data, by the run's own clock; None where it is not known.

        The clock knows of no step of another kind, and of no recording without steps.
        """
        waited = self.capture.cost.idle_data_ms
        is_known = waited is not None and self.capture.cost.idle_step_ms and self.are_numbered
        return min(waited, self.unrecorded_ms) if waited is not None and is_known else None

    @property
    def unrecorded_thread_ms(self) -> float | None:
        """How much of such a step the thread of the steps computes; None where that is not known."""
        return None if self.unrecorded_data_ms is None else self.capture.cost.idle_thread_ms

    def overhead_share(self, gain_ms: float, of: Intervals | None) -> float:
        """See `perfhooks.analysis.findings.finding.Finding.overhead_share`.

        The recorder works for every slice that it writes, so its time is spread evenly over the slices on the thread of
        the steps. Recording adds nothing to the time of a device.

        Args:
            gain_ms: A gain, in milliseconds of a profiled step.
            of: The moments of the host of which it is a part; None for time of a device.
        """
        length = 0.0 if of is None else self.per_step(of)
        if of is None or length <= 0:
            return 0.0
        return gain_ms / length * self._slices_in(of) / max(self._slices_in(self.windows), 1)

    def _slices_in(self, moments: Intervals) -> int:
        """How many slices began in some moments, on the thread of the steps."""
        begun = self._begun
        first, last = np.searchsorted(begun, moments[:, 0], "left"), np.searchsorted(begun, moments[:, 1], "left")
        return int((last - first).sum())

    @cached_property
    def _begun(self) -> Ints:
        rows = self.trace.rows(*HOST)
        mine: Ints = rows[self.trace.thread[rows] == self.thread]
        return self.trace.start[mine]  # of one thread they are sorted

    # --- what is known of a step ---

    @cached_property
    def unnamed(self) -> Intervals:
        """The moments of the steps in which nothing that has a name ran: no part, start, operator or device.

        That is the column ``other_ms``, less operators and what a device did then: they say what the step is spent on.
        """
        ops = self.trace.rows(Kind.OP)
        operators = self.spans(ops[self.trace.thread[ops] == self.thread])
        parts_of_it = (*parts.of_thread(self.trace, self.thread).values(), *starts.spent(self.trace).values())
        named = intervals.joined(*parts_of_it, operators)
        return intervals.subtract(intervals.subtract(self.windows, named), self.busy)

    @property
    def accounted(self) -> float:
        """The share of the steps' time of which is known what it was spent on."""
        whole = intervals.total(self.windows)
        return 1 - intervals.total(self.unnamed) / whole if whole else 1.0

    @cached_property
    def learns(self) -> bool:
        """Whether the trace shows gradients or an optimizer: else no advice mentions them."""
        has_part = self.mean("backward_ms") > 0 or self.mean("optimizer_ms") > 0
        return has_part or stages.shown(self.trace) == stages.TRAIN

    # --- slices and tables ---

    def named(self, pattern: str, *kinds: Kind) -> Ints:
        """The slices of these kinds in the steps in whose name a regular expression is found."""
        rows = self.trace.searched(pattern, *kinds)
        return rows[self.inside(self.trace.start[rows])]

    def starting(self, prefix: str, *kinds: Kind) -> Ints:
        """The slices of these kinds in the steps whose name begins so."""
        rows = self.trace.named(*kinds, prefix=prefix)
        return rows[self.inside(self.trace.start[rows])]

    @cached_property
    def work(self) -> Ints:
        """The work of devices that was launched in the steps: places in `Trace.device_rows`; none if it is doubtful.

        Trial runs of one-time work and records with a wrong length are left out.
        """
        if not self.is_device_traced:
            return np.empty(0, np.int64)
        launched = device.launch_times(self.trace)
        trials = intervals.joined(*(each for name, each in self.startup.items() if name != starts.LOADING))
        chosen = self.inside(launched) & ~intervals.covers(trials, launched)
        chosen[np.searchsorted(self.trace.device_rows, self.trace.overflowed)] = False
        return np.flatnonzero(chosen)

    def work_named(self, pattern: str, *kinds: Kind) -> Ints:
        """The work of devices that was launched in the steps and whose name matches a regular expression; slices."""
        rows = self.trace.searched(pattern, *kinds)
        return rows[np.isin(np.searchsorted(self.trace.device_rows, rows), self.work)]

    def launch_of(self, rows: Ints) -> Ints:
        """The call that launched each of some work of devices, or -1."""
        return self.trace.launches[np.searchsorted(self.trace.device_rows, rows)]

    def device_ms(self, rows: Ints) -> float:
        """How long some work of devices takes, in milliseconds a step; side by side it counts once."""
        return self.per_step(intervals.of_slices(self.trace, rows))

    def launched_by(self, rows: Ints) -> Ints:
        """The work of devices that some slices of the host, or what they called, launched; slices."""
        owner = device.owners(self.trace)
        known = np.flatnonzero(owner >= 0)
        if not len(known):
            return known
        chosen = intervals.distinct(rows)
        holder = device.holders(self.trace, owner[known], chosen) if len(chosen) else np.full(len(known), -1)
        mine = known[(holder >= 0) | np.isin(owner[known], chosen)]
        return self.trace.device_rows[mine[np.isin(mine, self.work)]]

    def runs_on_device(self, rows: Ints) -> bool:
        """Whether some operators gave work to a device, whether or not the times of that work are known."""
        launches = device.launch_calls(self.trace)
        return len(self.launched_by(rows)) > 0 or len(device.around(self.trace, launches, rows)) > 0

    def cost(self, rows: Ints) -> tuple[float, float]:
        """What some operators cost in a step, and the limit for what can be gained there, in milliseconds.

        Time of the device if they gave it work, else time of the host; 0 if the time of the device is unknown.
        """
        work = self.launched_by(rows)
        if len(work):
            return self.device_ms(work), self.device_limit_ms
        if self.runs_on_device(rows):
            return 0.0, 0.0
        return self.per_step(self.spans(rows)), self.host_limit_ms

    def where(self, rows: Ints) -> list[str | None]:
        """The innermost line of the user around each slice of the host, if stacks were recorded.

        Where it runs inside of an installed package, the line of that package in which it does is named as well, and
        alone where no line of the user is on the stack.
        """
        return attribution.lines(self.trace, rows, self.tables.owners)

    def _frames(self, origin: Origin) -> Ints:
        """The frames that are lines of somebody's."""
        frames = self.trace.rows(Kind.PYTHON)
        return frames[attribution.names_of(self.trace, (origin,), self.tables.owners)[self.trace.name[frames]]]

    def by_name(self, rows: Ints) -> list[str]:
        """The names under which some slices spent most time, as lines of evidence."""
        return most([(name[:80], time) for name, time in self._summed(rows)])

    def _summed(self, rows: Ints) -> Iterator[tuple[str, float]]:
        """The names of some slices and how long all of a name lasted, as milliseconds a step."""
        alike = groups(self.trace.name[rows])
        spent = np.bincount(alike.of, weights=self.lengths(rows), minlength=len(alike.first))
        for name, time in zip(self.trace.name[rows[alike.first]].tolist(), spent.tolist(), strict=True):
            yield self.trace.names[name], time

    def by_line(self, rows: Ints) -> list[str]:
        """The lines of source in which some slices of the host spent most time, as lines of evidence."""
        return most([(line, span) for line, span in zip(self.where(rows), self.lengths(rows), strict=True) if line])

    def lengths(self, rows: Ints) -> list[float]:
        """How long each slice lasted, as milliseconds a step."""
        found: list[float] = ((self.trace.end - self.trace.start)[rows] * intervals.MS / max(self.count, 1)).tolist()
        return found

    def often(self, rows: Sized) -> str:
        """How many of some things there are in a step, for people."""
        return f"{len(rows) / max(self.count, 1):.3g}"

    def outermost(self, rows: Ints) -> Ints:
        """Those of some slices of the host that none of them holds."""
        return rows[device.holders(self.trace, rows, rows) < 0] if len(rows) else rows

    def own_time_in(self, moments: Intervals, *, whole: bool = False) -> list[tuple[str, float]]:
        """The functions of the user that ran in some moments on the thread of the steps, as milliseconds a step.

        What another function of the user that they called took is not theirs.

        Args:
            moments: When.
            whole: Whether only those count that began and ended there, and not who waited for what was done then.
        """
        frames = self._frames(Origin.USER)
        frames = frames[self.trace.thread[frames] == self.thread]
        begin, end = self.trace.start[frames], self.trace.end[frames]
        spent = intervals.within(moments, begin, end)
        chosen = spent == end - begin if whole else spent > 0
        frames, spent = frames[chosen], spent[chosen]
        callers = device.holders(self.trace, frames, frames)
        known = callers >= 0
        theirs = spent.copy()
        np.subtract.at(theirs, np.searchsorted(frames, callers[known]), spent[known])
        names = (self.trace.names[name] for name in self.trace.name[frames].tolist())
        return list(zip(names, (theirs * intervals.MS / max(self.count, 1)).tolist(), strict=True))

    @property
    def thread(self) -> int:
        """The thread of the steps."""
        return int(self.marks.thread[0]) if self.count else -1

    def _of_steps(self, table: pl.DataFrame) -> pl.DataFrame:
        """The rows of a table that lie in the steps."""
        if not self.are_numbered or not table.height:
            return table
        return table.filter(pl.col("step").is_in(self.steps["step"].implode()))

    @cached_property
    def operators(self) -> pl.DataFrame:
        """The table of operators, by step."""
        return self._of_steps(self.tables.operators("step"))

    @cached_property
    def synchronisations(self) -> pl.DataFrame:
        """The table of synchronisations."""
        return self._of_steps(self.tables.synchronisations)

    @cached_property
    def copies(self) -> pl.DataFrame:
        """The table of copies."""
        return self._of_steps(self.tables.copies)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        """The table of collectives with a column ``label``: the operation, else the operator that launched it."""
        table = self.tables.collectives
        around = pl.Series("around", collectives.operators(self.trace), dtype=pl.String)
        rows, work = collectives.rows(self.trace), self.trace.device_rows
        counts = ~np.isin(rows, work) | np.isin(rows, work[self.work])
        table = table.with_columns(pl.coalesce("operation", around, "name").alias("label"))
        return self._of_steps(table.filter(pl.Series(counts, dtype=pl.Boolean)))

    @cached_property
    def gpu(self) -> tuple[str, int] | None:
        """The name and the major compute capability of the first device, if it is one of NVIDIA's."""
        listed = self.trace.metadata.get("deviceProperties")
        first = listed[0] if isinstance(listed, list) and listed else None
        name, major = (first.get("name"), first.get("computeMajor")) if isinstance(first, dict) else (None, None)
        is_known = isinstance(name, str) and type(major) is int and not re.search("AMD|Radeon|Instinct|Intel", name)
        return (str(name), int(major or 0)) if is_known else None

    # --- findings ---

    def said(self, advised: str, **values: object) -> str:
        """The lines to write, in the words of the face that recorded, see `perfhooks.analysis.findings.faces.said`."""
        return faces.said(advised, self.told.framework, **values)

    def option(self, name: str, value: bool | str = True) -> str:
        """An option of the recorder, as that face says it."""
        return faces.option(name, value, self.told)

    def is_worth(self, gain_ms: float) -> bool:
        """Whether a gain is more than what a step varies by anyway."""
        return self.step_ms > 0 and gain_ms >= NOTABLE * self.step_ms

    def share(self, milliseconds: float) -> float:
        """A time as a part of the step."""
        return milliseconds / self.step_ms if self.step_ms else 0.0

    def finding(
        self,
        rule: str,
        gain_ms: float | None,
        *,
        title: str,
        estimate: str,
        evidence: Sequence[str],
        advice: str,
        code: str,
        of: Intervals | None = None,
        is_measured: bool = False,
        is_wait: bool = False,
        doubts_others: bool = False,
        bound_ms: float | None = None,
        wait_ms: float | None = None,
        wait_share: float = 1.0,
    ) -> Iterator[Finding]:
        """A finding with its gain in an unprofiled step; none if that is below `NOTABLE`, or at the program's start.

        Args:
            rule: its name.
            gain_ms: gain in a profiled step; None if unknown.
            title: one sentence.
            estimate: how the gain was estimated.
            evidence: what was seen.
            advice: what to do.
            code: the lines to write.
            of: the moments of the host of which the gain is a part, see `overhead_share`.
            is_measured: whether following the advice was measured to help under these conditions; else the gain is an
                upper bound.
            is_wait: whether it is time in which one waits for another thread, process or device: where processors are
                short that grows unlike everything else, so it is said only if more is left of it than the thread of
                the steps waited for them itself.
            doubts_others: See `Finding`.
            bound_ms: the upper bound in a profiled step, if ``gain_ms`` is an estimate below it.
            wait_ms: See `Finding`.
            wait_share: See `Finding`.
        """
        share, is_bound = 0.0, gain_ms is not None and (self.is_busy or not is_measured)
        profiled_ms = gain_ms
        if is_bound and bound_ms is not None:
            profiled_ms, estimate = bound_ms, "The whole time that the advice is about."
        queued = self.told.queued or 0.0
        if profiled_ms is not None:
            if self.is_start:
                return
            share = self.overhead_share(profiled_ms, of)
            if self.is_busy and of is not None:  # a wait for a CPU makes all of the host's time longer
                share = max(share, self.share(profiled_ms))
            gain_ms = gain_of(profiled_ms, share, self.step_ms, self.unrecorded_ms)
            if gain_ms < (NOTABLE + (queued if is_wait and self.is_busy else 0.0)) * self.unrecorded_ms:
                return
            estimate = f"{estimate} {BUSY if self.is_busy else OVERLAP if is_measured else UNMEASURED}"
            if self.capture.cost.idle_step_ms and wait_ms is None:
                estimate += basis(self.step_ms, self.unrecorded_ms)
        yield Finding(
            rule=rule,
            title=title,
            gain_ms=gain_ms,
            gain_percent=None if gain_ms is None else 100 * gain_ms / (self.unrecorded_ms or 1.0),
            estimate=estimate,
            evidence=tuple(evidence),
            advice=advice,
            code=code,
            is_bound=is_bound,
            doubts_others=doubts_others,
            profiled_ms=profiled_ms,
            overhead_share=share,
            wait_ms=wait_ms,
            wait_share=wait_share,
        )


def most(sources: Sequence[tuple[str, float]], limit: int = 3) -> list[str]:
    """The sources that take most time, each summed, as lines of evidence."""
    summed: dict[str, float] = {}
    for name, value in sources:
        summed[name] = summed.get(name, 0.0) + value
    ordered = sorted((item for item in summed.items() if item[1] > 0), key=lambda item: -item[1])[:limit]
    return [f"{name}: {words.ms(value)}" for name, value in ordered]
