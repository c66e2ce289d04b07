"""Evidence from which rules compute the findings of one window."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import polars as pl

from perfhooks.analysis.findings import frameworks, texts
from perfhooks.analysis.findings.finding import Finding, basis, rest_ratio, unprofiled_ratio
from perfhooks.analysis.findings.texts import EvidenceLine, FindingText, RuleTexts
from perfhooks.analysis.findings.window_steps import WindowSteps
from perfhooks.core import labels
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import attribution, devices, stages
from perfhooks.trace.names.origins import Origin
from perfhooks.trace.nesting import device, intervals, parts, starts
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.nesting.intervals import NOTABLE
from perfhooks.trace.tables import collectives, device_time, gaps, idle
from perfhooks.trace.tables.device_time import CAUSES, Idle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence, Sized

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.grouping import Groups
    from perfhooks.trace.nesting.intervals import Flags, Intervals

T = TypeVar("T")


def cached_per_window(make: Callable[[Evidence], T]) -> Callable[[Evidence], T]:

    @functools.wraps(make)
    def cached(window: Evidence) -> T:
        if make not in window.cache:
            window.cache[make] = make(window)
        value: T = window.cache[make]
        return value

    return cached


class Evidence(WindowSteps):
    def __init__(self, capture: Capture, trace: Trace) -> None:
        super().__init__(capture, trace)
        self.cache: dict[object, Any] = {}

    @cached_property
    def idle(self) -> Idle:
        """Idle intervals of all devices. If the trace has no step marks, only gaps between device work count."""
        rows = idle.of_steps(self.trace, self.selected_marks)
        mask = (rows.place == device_time.PLACES.index("between")) | self.are_numbered
        mask &= intervals.within(self._own_work, rows.start, rows.end) == 0
        return Idle(*(column[mask] for column in rows))

    @cached_property
    def gaps(self) -> Groups:
        return gaps.by_gap(self.idle)

    def idle_for(self, *causes: int, among: Flags | None = None) -> Intervals:
        """Return the idle time with the given causes (indices into `device_time.CAUSES`)."""
        rows = self.idle_intervals(*causes, among=among)
        return self.clipped(intervals.union(rows.start, rows.end))

    def idle_intervals(self, *causes: int, among: Flags | None = None) -> Idle:
        mask = np.isin(self.idle.cause, causes) & (True if among is None else among)
        return Idle(*(column[mask] for column in self.idle))

    def idle_sources(self, *causes: int, among: Flags | None = None) -> list[tuple[str, float]]:
        rows = self.idle_intervals(*causes, among=among)
        columns = idle.explain(self.trace, rows, self.tables.owners).columns_of(self.trace, np.arange(len(rows.start)))
        texts = zip(*(columns[name].cast(pl.String).to_list() for name in ("cause", "name", "line")), strict=True)
        names = [" in ".join(filter(None, (name, line))) or cause for cause, name, line in texts]
        return list(zip(names, (rows.length * intervals.MS / max(self.count, 1)).tolist(), strict=True))

    @cached_property
    def host_limit_ms(self) -> float:
        return self.per_step(self.idle_for(*range(len(CAUSES)))) if self.is_device_traced else self.step_ms

    @cached_property
    def device_limit_ms(self) -> float:
        """Maximum gain in ms per step from less device time: the time that the host waits for the device."""
        trace = self.trace
        calls = trace.rows(Kind.RUNTIME)
        calls = calls[(trace.end - trace.start)[calls] > device.BLOCKED_NS]
        span = (trace.end - trace.start)[calls]
        covered = intervals.within(self.busy, trace.start[calls], trace.end[calls]) >= intervals.NEARLY_ALL * span
        waits = intervals.distinct(device.wait_calls(trace), calls[covered])
        wait = intervals.intersect(self.spans(waits), self.busy)
        return self.per_step(wait) + max(self.step_ms - self.mean("wall_ms"), 0.0)

    @property
    def is_busy(self) -> bool:
        """Whether CPU contention makes host times too long."""
        return self.circumstances.is_busy

    @cached_property
    def unprofiled_ms(self) -> float:
        """Mean time of an unprofiled step in ms, or of a profiled step if no unprofiled step was measured."""
        return self.capture.cost.idle_step_ms or self.step_ms

    @property
    def recording_ms(self) -> float:
        return max(self.step_ms - self.unprofiled_ms, 0.0)

    def _rest_ms(self, of: Intervals | None) -> float | None:
        """Return the step time minus the wait for data, in ms; None if the intervals ``of`` overlap this wait."""
        if of is not None:
            waits = intervals.intersect(of, parts.of_thread(self.trace, self.thread)[labels.DATA])
            if self.per_step(waits) > NOTABLE * self.per_step(of):
                return None
        return max(self.step_ms - self.mean("data_ms"), 0.0)

    def overhead_share(self, gain_ms: float, of: Intervals | None) -> float:
        length = 0.0 if of is None else self.per_step(of)
        if of is None or length <= 0:
            return 0.0
        return gain_ms / length * self._slices_in(of) / max(self._slices_in(self.windows), 1)

    def _slices_in(self, moments: Intervals) -> int:
        starts_ns = self._slice_starts
        first, last = (
            np.searchsorted(starts_ns, moments[:, 0], "left"),
            np.searchsorted(starts_ns, moments[:, 1], "left"),
        )
        return int((last - first).sum())

    @cached_property
    def _slice_starts(self) -> Ints:
        rows = self.trace.rows(*HOST)
        step_rows: Ints = rows[self.trace.thread[rows] == self.thread]
        return self.trace.start[step_rows]

    @cached_property
    def unnamed(self) -> Intervals:
        """Intervals of the steps outside of labels (forward, data, ...), operators, device work and one-time work."""
        ops = self.trace.rows(Kind.OP)
        operators = self.spans(ops[self.trace.thread[ops] == self.thread])
        parts_of_it = (*parts.of_thread(self.trace, self.thread).values(), *starts.by_kind(self.trace).values())
        named = intervals.joined(*parts_of_it, operators)
        return intervals.subtract(intervals.subtract(self.windows, named), self.busy)

    @property
    def named_share(self) -> float:
        total = intervals.total(self.windows)
        return 1 - intervals.total(self.unnamed) / total if total else 1.0

    @cached_property
    def is_training(self) -> bool:
        has_part = self.mean("backward_ms") > 0 or self.mean("optimizer_ms") > 0
        return has_part or stages.shown(self.trace) == stages.TRAIN

    def matching(self, pattern: str, *kinds: Kind) -> Ints:
        rows = self.trace.searched(pattern, *kinds)
        return rows[self.inside(self.trace.start[rows])]

    def with_prefix(self, prefix: str, *kinds: Kind) -> Ints:
        rows = self.trace.named(*kinds, prefix=prefix)
        return rows[self.inside(self.trace.start[rows])]

    @cached_property
    def work(self) -> Ints:
        """Device work launched in the steps, as indices into `Trace.device_rows`; empty if device times are unknown."""
        if not self.is_device_traced:
            return np.empty(0, np.int64)
        launched = device.launch_times(self.trace)
        trials = intervals.joined(*(spans for name, spans in self.startup.items() if name != starts.LOADING))
        mask = self.inside(launched) & ~intervals.covers(trials, launched)
        mask[np.searchsorted(self.trace.device_rows, self.trace.overflowed)] = False
        return np.flatnonzero(mask)

    def work_named(self, pattern: str, *kinds: Kind) -> Ints:
        rows = self.trace.searched(pattern, *kinds)
        return rows[np.isin(np.searchsorted(self.trace.device_rows, rows), self.work)]

    def launch_of(self, rows: Ints) -> Ints:
        return self.trace.launches[np.searchsorted(self.trace.device_rows, rows)]

    def device_ms(self, rows: Ints) -> float:
        """Return the device time of the work ``rows`` in ms per step; concurrent work counts once."""
        return self.per_step(intervals.of_slices(self.trace, rows))

    def launched_by(self, rows: Ints) -> Ints:
        owner = device.owners(self.trace)
        owned = np.flatnonzero(owner >= 0)
        if not len(owned):
            return owned
        callers = intervals.distinct(rows)
        holder = device.holders(self.trace, owner[owned], callers) if len(callers) else np.full(len(owned), -1)
        works = owned[(holder >= 0) | np.isin(owner[owned], callers)]
        return self.trace.device_rows[works[np.isin(works, self.work)]]

    def runs_on_device(self, rows: Ints) -> bool:
        launches = device.launch_calls(self.trace)
        return len(self.launched_by(rows)) > 0 or len(device.around(self.trace, launches, rows)) > 0

    def cost(self, rows: Ints) -> tuple[float, float]:
        """Return time and maximum gain of operators in ms per step: of the launched device work, else on the host."""
        work = self.launched_by(rows)
        if len(work):
            return self.device_ms(work), self.device_limit_ms
        if self.runs_on_device(rows):
            return 0.0, 0.0
        return self.per_step(self.spans(rows)), self.host_limit_ms

    def lines_of(self, rows: Ints) -> list[str | None]:
        return attribution.lines(self.trace, rows, self.tables.owners)

    def _frames(self, *origins: Origin) -> Ints:
        frames = self.trace.rows(Kind.PYTHON)
        return frames[attribution.names_of(self.trace, origins, self.tables.owners)[self.trace.name[frames]]]

    def by_name(self, rows: Ints) -> list[EvidenceLine]:
        return top_lines([(name[:80], time) for name, time in self._time_by_name(rows)])

    def _time_by_name(self, rows: Ints) -> Iterator[tuple[str, float]]:
        by_name = groups(self.trace.name[rows])
        times = np.bincount(by_name.of, weights=self.lengths(rows), minlength=len(by_name.first))
        for name, time in zip(self.trace.name[rows[by_name.first]].tolist(), times.tolist(), strict=True):
            yield self.trace.names[name], time

    def by_line(self, rows: Ints, callers: Ints | None = None) -> list[EvidenceLine]:
        """Return the lines with most time of the slices; ``callers`` are slices whose lines count instead."""
        lines = self.lines_of(rows if callers is None else callers)
        return top_lines([(line, span) for line, span in zip(lines, self.lengths(rows), strict=True) if line])

    def lengths(self, rows: Ints) -> list[float]:
        times: list[float] = ((self.trace.end - self.trace.start)[rows] * intervals.MS / max(self.count, 1)).tolist()
        return times

    def count_per_step(self, rows: Sized) -> float:
        return len(rows) / max(self.count, 1)

    def outermost(self, rows: Ints) -> Ints:
        return rows[device.holders(self.trace, rows, rows) < 0] if len(rows) else rows

    def own_time_in(self, moments: Intervals, *, whole: bool = False) -> list[tuple[str, float]]:
        """Return the functions of the user that ran on the step thread in the intervals, with self time in ms per step.

        With ``whole``, only calls that ran completely inside the intervals count.
        """
        frames = self._frames(Origin.USER, Origin.PERFHOOKS)
        called = attribution.called_from_open(self.trace, self.tables.owners)
        frames = intervals.distinct(np.append(frames, np.fromiter(called, np.int64)))
        frames = frames[self.trace.thread[frames] == self.thread]
        begin, end = self.trace.start[frames], self.trace.end[frames]
        overlap = intervals.within(moments, begin, end)
        mask = overlap == end - begin if whole else overlap > 0
        frames, overlap = frames[mask], overlap[mask]
        callers = device.holders(self.trace, frames, frames)
        is_nested = callers >= 0
        self_ns = overlap.copy()
        np.subtract.at(self_ns, np.searchsorted(frames, callers[is_nested]), overlap[is_nested])
        is_theirs = ~np.isin(frames, self._frames(Origin.PERFHOOKS))
        frames, self_ns = frames[is_theirs], self_ns[is_theirs]
        names = (called.get(frame) or attribution.frame_name(self.trace, frame) for frame in frames.tolist())
        return list(zip(map(str, names), (self_ns * intervals.MS / max(self.count, 1)).tolist(), strict=True))

    @property
    def thread(self) -> int:
        return int(self.marks.thread[0]) if self.count else -1

    def _in_steps(self, table: pl.DataFrame) -> pl.DataFrame:
        if not self.are_numbered or not table.height:
            return table
        return table.filter(pl.col("step").is_in(self.steps["step"].to_list()))

    @cached_property
    def operators(self) -> pl.DataFrame:
        return self._in_steps(self.tables.operators("step"))

    @cached_property
    def synchronisations(self) -> pl.DataFrame:
        return self._in_steps(self.tables.synchronisations)

    @cached_property
    def copies(self) -> pl.DataFrame:
        return self._in_steps(self.tables.copies)

    @cached_property
    def collectives(self) -> pl.DataFrame:
        table = self.tables.collectives
        around = pl.Series("around", collectives.operators(self.trace), dtype=pl.String)
        rows, work = collectives.rows(self.trace), self.trace.device_rows
        counts = ~np.isin(rows, work) | np.isin(rows, work[self.work])
        table = table.with_columns(pl.coalesce("operation", around, "name").alias("label"))
        return self._in_steps(table.filter(pl.Series(counts, dtype=pl.Boolean)))

    @cached_property
    def gpu(self) -> tuple[str, int] | None:
        properties = self.trace.metadata.get("deviceProperties")
        first = properties[0] if isinstance(properties, list) and properties else None
        name, major = (first.get("name"), first.get("computeMajor")) if isinstance(first, dict) else (None, None)
        is_known = isinstance(name, str) and type(major) is int and self.device == devices.NVIDIA
        return (str(name), int(major or 0)) if is_known else None

    @cached_property
    def device(self) -> devices.Device:
        return devices.of_trace(self.trace)

    def texts(self, rule: str, *versions: str, own: RuleTexts | None = None, **values: object) -> FindingText:
        device_type = f'"{self.device.type}"' if self.device.type else "device"
        common = {"unit": self.unit, "device": self.device, "device_type": device_type}
        package = frameworks.package(self.circumstances.framework)
        return FindingText(rule, {**common, **values}, versions, package, own)

    def option(self, name: str, value: bool | str = True) -> str:
        return frameworks.option(name, value, self.circumstances)

    def is_worth(self, gain_ms: float) -> bool:
        return self.step_ms > 0 and gain_ms >= NOTABLE * self.step_ms

    def share(self, milliseconds: float) -> float:
        return milliseconds / self.step_ms if self.step_ms else 0.0

    def finding(
        self,
        text: FindingText,
        gain_ms: float | None,
        *,
        evidence: Sequence[EvidenceLine],
        of: Intervals | None = None,
        is_measured: bool = False,
        is_wait: bool = False,
        doubts_others: bool = False,
        bound_ms: float | None = None,
        wait_ms: float | None = None,
        wait_share: float = 1.0,
    ) -> Iterator[Finding]:
        """Yield a finding if its gain in an unprofiled step is at least 1% of the step (`NOTABLE`).

        ``gain_ms`` and ``bound_ms`` (upper bound of the gain) are in ms of a profiled step. ``of`` are the host
        intervals that the fix shortens. With ``is_wait``, the gain must also exceed the run-queue wait of the step
        thread, because CPU contention lengthens waits.
        """
        share, times, basis_text, is_bound = 0.0, 1.0, "", gain_ms is not None and (self.is_busy or not is_measured)
        profiled_ms, estimate = gain_ms, text.estimate
        if is_bound and bound_ms is not None:
            profiled_ms, estimate = bound_ms, str(texts.shared("bound"))
        cpu_wait, most_ms = self.circumstances.queued or 0.0, None
        is_on_host = of is not None or (wait_ms is None and not self.uses_device)
        rest_ms = self._rest_ms(of) if is_on_host else None
        affected_ms = profiled_ms if bound_ms is None else bound_ms
        if profiled_ms is not None and affected_ms is not None:
            if self.is_start:
                return
            share = self.overhead_share(profiled_ms, of)
            if self.is_busy and of is not None:
                share = max(share, self.share(profiled_ms))
            data_ms = self.capture.cost.idle_data_ms if self.are_numbered else None
            is_unprofiled = wait_ms is not None and of is None  # the run's own clock measured this wait
            step_ms = self.unprofiled_ms if is_unprofiled else self.step_ms
            ratio = unprofiled_ratio(profiled_ms, share, step_ms, self.unprofiled_ms, is_bound=is_bound)
            ratio = min(ratio, rest_ratio(rest_ms, self.unprofiled_ms, data_ms))
            gain_ms, most_ms = profiled_ms * ratio, min(affected_ms * ratio, self.unprofiled_ms)
            if wait_ms is None and affected_ms:
                times = most_ms / affected_ms
            least = NOTABLE + (cpu_wait if is_wait and self.is_busy else 0.0)
            if gain_ms <= 0 or gain_ms < least * self.unprofiled_ms:
                return
            doubt = "busy" if self.is_busy else "overlap" if is_measured else "unmeasured"
            estimate = str(texts.shared(doubt, estimate=estimate))
            if self.capture.cost.idle_step_ms and wait_ms is None:
                basis_text = basis(self.step_ms, self.unprofiled_ms)
        finding = Finding.of_text(
            text,
            gain_ms=gain_ms,
            gain_percent=None if gain_ms is None else 100 * gain_ms / (self.unprofiled_ms or 1.0),
            estimate=estimate,
            evidence=tuple(evidence),
            is_bound=is_bound,
            doubts_others=doubts_others,
            profiled_ms=profiled_ms,
            overhead_share=share,
            wait_ms=wait_ms,
            wait_share=wait_share,
            affected_ms=affected_ms,
            rest_ms=rest_ms,
            most_ms=most_ms,
            basis=basis_text,
        )
        yield finding.scaled(times)


def top_lines(sources: Sequence[tuple[str | EvidenceLine, float]], limit: int = 3) -> list[EvidenceLine]:
    totals: dict[str, float] = {}
    names = {str(name): name for name, _ in sources}
    for name, value in sources:
        totals[str(name)] = totals.get(str(name), 0.0) + value
    ordered = sorted((item for item in totals.items() if item[1] > 0), key=lambda item: -item[1])[:limit]
    return [texts.shared("source", name=names[name], time_ms=value) for name, value in ordered]
