from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core import labels, words
from perfhooks.trace.bounds import MAX_NUMBER, MIN_RECORDS
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import rates
from perfhooks.trace.names.messages import word
from perfhooks.trace.nesting import device, intervals, missing_work, starts, step_marks
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MS, NOTABLE
from perfhooks.trace.tables.step_columns import since_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks.trace.model import Ints, Trace

SEVERITIES: Final = ("error", "warning", "info")
"""``error``: numbers are wrong or missing; ``warning``: numbers may be wrong; ``info``: useful to know."""

_MIN_WARNING_RATIO: Final = 0.05
"""Minimum recorder overhead for a warning, as a fraction of the step time."""

_COUNTS: Final = re.compile(
    r"(Out-of-range|Invalid ext correlations|CPU GPU out-of-order|CUPTI stopped early\?) = (\d{1,18})"
)
_STOPPED: Final = re.compile(r"(?:collection|tracing|profiling|CUPTI).{0,60}stopp(?:ed|ing) early", re.IGNORECASE)
_RANGES: Final = "cuda_profiler_range"
_BUFFERS: Final = "Buffer Request"

_SCHEMA: Final = {"severity": pl.String, "name": pl.String, "count": pl.Int64, "text": pl.String, "first": pl.String}


class Check(NamedTuple):
    severity: str
    name: str
    times: int
    text: str
    first: str = ""


def table(trace: Trace) -> pl.DataFrame:
    """List the problems of a trace, by descending severity; a trace without problems has no rows.

    ``severity`` is one of `SEVERITIES`, ``count`` the number of occurrences, ``text`` the evidence, ``first`` the first
    occurrence.

    ``docs/traces.md`` explains each ``name``.
    """
    checks = [check for examine in _EXAMINATIONS for check in examine(trace)]
    checks.sort(key=lambda check: SEVERITIES.index(check.severity))
    return pl.DataFrame(checks, schema=_SCHEMA, orient="row", strict=False)


def _check_damage(trace: Trace) -> Iterator[Check]:
    for doubt in trace.doubts:
        severity = "info" if doubt.name == "unread-metadata" else "error" if doubt.name == "cut-off" else "warning"
        yield Check(severity, doubt.name, doubt.count, doubt.text)


def _check_log(trace: Trace) -> Iterator[Check]:
    lines = [line for key in ("INFO", "WARNING", "ERROR") for line in _log_lines(trace.metadata.get(key))]
    matches = [count for line in lines for count in _COUNTS.findall(line)]
    counts = {name: int(number) for name, number in matches if int(number)}
    stopped = [line for line in lines if _STOPPED.search(_COUNTS.sub("", line))]
    if "CUPTI stopped early?" in counts or stopped:
        text = "the recorder stopped collecting device events before the window ended"
        yield Check("error", "device-stopped", 1, text, stopped[0] if stopped else "log of the trace")
    for name, (severity, text) in _DROPPED.items():
        if name in counts:
            yield Check(severity, "records-dropped", min(counts[name], MAX_NUMBER), f"{name} = {counts[name]}: {text}")
    warned = [line for key in ("WARNING", "ERROR") for line in _log_lines(trace.metadata.get(key))]
    if warned:
        yield Check("info", "log-warnings", len(warned), "the recorder logged warnings", warned[0])


_DROPPED: Final = {
    "Out-of-range": (
        "info",
        "device records outside of the window: of warm-up steps, or of kernels missing at the start of the window",
    ),
    "Invalid ext correlations": ("warning", "records that could not be joined to an operator"),
    "CPU GPU out-of-order": ("warning", "dropped kernels, because their recorded start is before their launch"),
}


def _log_lines(log: object) -> list[str]:
    return [text for line in (log if isinstance(log, list) else [log]) if (text := word(line))]


def _check_launches(trace: Trace) -> Iterator[Check]:
    calls = device.launch_calls(trace)
    calls = calls[trace.correlation[calls] > 0]
    lost = missing_work.lost_launches(trace)
    if not len(lost):
        return
    if not trace.is_device_traced and not len(_counter_ranges(trace)):
        launches = words.count(len(lost), "kernel launch", "kernel launches")
        text = f"{launches}, but no device work: it was not recorded, or its records were lost"
        yield Check("error", "no-device-work", len(lost), text, _describe_first(trace, lost))
    if not trace.is_device_traced:
        return
    complete = trace.launches[trace.launches >= 0]
    tail = lost[trace.start[lost] > trace.start[complete].max(initial=np.iinfo(np.int64).min)]
    if len(tail) >= MIN_RECORDS:
        launches = words.count(len(tail), "launch", "launches")
        text = f"no kernel for the last {launches}: device recording stopped before the window ended"
        yield Check("error", "device-stopped", len(tail), text, _describe_first(trace, tail))
        lost = lost[~np.isin(lost, tail)]
    if len(lost):
        launches = words.count(len(calls), "launch", "launches")
        text = f"no kernel for {len(lost)} of {launches}: the record was lost, so kernel times are missing"
        yield Check("warning", "launches-without-kernel", len(lost), text, _describe_first(trace, lost))


def _check_counters(trace: Trace) -> Iterator[Check]:
    rows = _counter_ranges(trace)
    if len(rows):
        text = (
            f"{words.count(len(rows), 'range')} of CUPTI's range profiler, which runs kernels one by one, counts "
            "hardware events and records no times: the device tables are empty; record times in a "
            "window without the range profiler"
        )
        yield Check("info", "counters-only", len(rows), text, _describe_first(trace, rows))


def _counter_ranges(trace: Trace) -> Ints:
    named = np.array([*(name == _RANGES for name in trace.categories), False])
    return np.flatnonzero(named[trace.category])


def _check_orphans(trace: Trace) -> Iterator[Check]:
    work = trace.device_rows
    is_before_window = device.before_window(trace)
    if is_before_window.any():
        yield _before_window_check(trace, work[is_before_window])
    orphans = work[(trace.launches < 0) & ~is_before_window]
    if not len(orphans):
        return
    text = f"no launch in the trace for {len(orphans)} of {_count_work(len(work))}"
    if not len(trace.rows(Kind.RUNTIME)):
        severity, reason = "info", "no runtime calls were recorded, so this work counts in the step in which it ran"
    elif len(orphans) <= max(NOTABLE * len(work), 1):
        severity, reason = "info", "this work counts in the step in which it ran"
    else:
        severity, reason = "warning", "this work has no operator and counts in the step in which it ran"
    yield Check(severity, "kernels-without-launch", len(orphans), f"{text}: {reason}", _describe_first(trace, orphans))


def _before_window_check(trace: Trace, rows: Ints) -> Check:
    time_ms = intervals.total(intervals.of_slices(trace, rows)) * MS
    text = (
        f"launched before the window: {_count_work(len(rows))} ({words.ms(time_ms)}), in the table of kernels, but in "
        "no step"
    )
    return Check("info", "launched-before-window", len(rows), text, _describe_first(trace, rows))


def _check_nested(trace: Trace) -> Iterator[Check]:
    work, holder = trace.device_rows, device.holders_on_stream(trace)
    inner = work[holder >= 0]
    if len(inner):
        text = (
            f"within other work of the same stream: {len(inner)} of {_count_work(len(work))}, "
            "for example kernels within a recorded library call: outer work counts without its inner work, "
            "so no moment of a stream counts twice"
        )
        yield Check("info", "nested-kernels", len(inner), text, _describe_first(trace, inner))


def _check_clocks(trace: Trace) -> Iterator[Check]:
    work, launch = trace.device_rows, trace.launches
    lead = trace.start[launch] - trace.start[work] if len(work) else work
    early = work[(launch >= 0) & (lead > 0)]
    agree = device.clocks(trace).agree
    consequence = ": the clocks of host and device disagree" + ("" if agree else ", and busy times are unknown")
    late = work[device.overdue(trace)] if len(work) else work
    if len(late):
        text = f"ended after the host has waited for it: {len(late)} of {_count_work(len(work))}{consequence}"
        yield Check("error", "clocks-apart", len(late), text, _describe_first(trace, late))
    elif not len(early) and not agree:
        text = f"the recorded times of all device work are far from those of the host{consequence}"
        yield Check("error", "clocks-apart", len(work), text, _describe_first(trace, work))
    if len(early):
        max_lead = int(lead[launch >= 0].max()) * MS
        number = f"{len(early)} of {_count_work(len(work))}"
        text = f"began before its launch: {number}, by up to {words.ms(max_lead)}{consequence}"
        yield Check("error", "kernels-before-launch", len(early), text, _describe_first(trace, early))


def _check_few_kernels(trace: Trace) -> Iterator[Check]:
    few, marks = missing_work.few_kernels(trace), step_marks.find(trace)
    if few is None:
        return
    for severity, is_chosen, reason in (
        ("warning", few.is_lost, "although it launched as many: kernels were lost, so its device times are unknown"),
        ("info", few.is_less, "and as few launches: this step had less work"),
    ):
        rows = np.flatnonzero(is_chosen)
        if len(rows):
            first = rows[0]
            counts = f"{words.count(int(few.kernels[first]), 'kernel')}, its neighbours {few.usual[first]} or more"
            text = f"step {marks.number[first]}: {counts}, {reason}"
            yield Check(severity, "step-with-few-kernels", len(rows), text, _describe_step(trace, marks, first))


def _check_replays(trace: Trace) -> Iterator[Check]:
    short = missing_work.short_replays(trace)
    if len(short.calls):
        text = (
            f"replays of one graph differ by {words.count(short.missing, 'kernel')}: without all records of "
            f"{words.count(len(short.calls), 'replay')}, the device times of these steps are unknown"
        )
        yield Check("warning", "unequal-replays", len(short.calls), text, _describe_first(trace, short.calls))


def _check_computation(trace: Trace) -> Iterator[Check]:
    if missing_work.lacks_computation(trace):
        ops = trace.rows(Kind.OP)
        problem = (
            f"{words.count(len(ops), 'operator')} ran, but no kernel that computes"
            if len(ops)
            else "copies, but no kernel"
        )
        text = f"{problem} was recorded: device times are unknown"
        yield Check(
            "error", "no-compute-kernels", 1, text, _describe_first(trace, ops if len(ops) else trace.device_rows)
        )


def _check_rates(trace: Trace) -> Iterator[Check]:
    rated_calls, sums = rates.calls(trace), rates.of_calls(trace)
    name = trace.name[rated_calls.row]
    by_name = {column: summed(name, values, len(trace.names)) for column, values in sums.items()}
    for number in np.flatnonzero(rates.is_above_peak(by_name)).tolist():
        times = int((name == number).sum())
        ratio = by_name["ceiling_ps"][number] / max(1000 * by_name["ceiling_ns"][number], 1)
        text = (
            f"{trace.names[number]} would run at {ratio:.3g} times the peak of the device: some of its kernels were "
            "not recorded, or it computes less than its shapes suggest (causal attention); its rate is not shown"
        )
        yield Check("warning", "rate-above-peak", times, text, _describe_first(trace, rated_calls.row[name == number]))


def _check_marks(trace: Trace) -> Iterator[Check]:
    steps = step_marks.find(trace)
    if not steps.number:
        if not len(trace.instants.time) and not trace.counters.names:
            yield Check("warning", "no-steps", 1, "neither operators nor device work were recorded")
        return
    if steps.number == [None]:
        text = "no ProfilerStep marks: the tables have one row for the whole trace; call step() in the training loop"
        yield Check("info", "no-steps", 1, text)
        return
    numbers = np.array(steps.number, np.int64)
    crossing, jumping = [], []
    for thread in intervals.distinct(steps.thread):
        on_thread = np.flatnonzero(steps.thread == thread)
        crossing += on_thread[1:][
            steps.start[on_thread][1:] < np.maximum.accumulate(steps.end[on_thread])[:-1]
        ].tolist()
        jumping += on_thread[1:][numbers[on_thread][1:] - 1 != numbers[on_thread][:-1]].tolist()
    if crossing:
        marks = words.count(len(crossing), "step mark begins", "step marks begin")
        text = f"{marks} before the previous mark ends: this time is counted twice"
        yield Check("warning", "overlapping-steps", len(crossing), text, _describe_step(trace, steps, crossing[0]))
    if jumping:
        text = f"step {numbers[jumping[0]]} follows step {numbers[jumping[0] - 1]}: marks are missing or out of order"
        yield Check("warning", "missing-steps", len(jumping), text, _describe_step(trace, steps, jumping[0]))


def _check_overhead(trace: Trace) -> Iterator[Check]:
    marks = step_marks.find(trace)
    window = intervals.union(marks.start, marks.end)
    records = device.recorder_overhead(trace)
    inside = records[intervals.within(window, trace.start[records], trace.end[records]) > 0]
    buffers = inside[[_BUFFERS in trace.names[name] for name in trace.name[inside]]] if len(inside) else inside
    window_ns = intervals.total(window)
    if len(buffers):
        time_ns, share = _time_and_ratio(trace, buffers, window)
        cost = f"{words.ms(time_ns * MS)} ({words.share(share)} of the steps)"
        text = f"the recorder allocated its own buffers during the steps; this took {cost} and made them longer"
        severity = "warning" if share >= NOTABLE else "info"
        yield Check(severity, "buffer-requests", len(buffers), text, _describe_first(trace, buffers))
    time_ns, share = _time_and_ratio(trace, inside, window)
    if window_ns and share >= NOTABLE:
        names = ", ".join(sorted({trace.names[name] for name in trace.name[inside]}))
        text = f"{words.ms(time_ns * MS)} ({words.share(share)} of the steps) are recorder overhead: {names}"
        severity = "warning" if share >= _MIN_WARNING_RATIO else "info"
        yield Check(severity, "profiler-overhead", len(inside), text, _describe_first(trace, inside))


def _check_start(trace: Trace) -> Iterator[Check]:
    marks = step_marks.find(trace)
    window = intervals.union(marks.start, marks.end)
    by_kind = {name: intervals.intersect(moments, window) for name, moments in starts.by_kind(trace).items()}
    one_time_ns, window_ns = intervals.total(intervals.joined(*by_kind.values())), intervals.total(window)
    if window_ns and 2 * one_time_ns >= window_ns:
        details = ", ".join(
            f"{words.ms(intervals.total(kind_moments) * MS)} of {name}"
            for name, kind_moments in by_kind.items()
            if len(kind_moments)
        )
        share = words.share(one_time_ns / window_ns)
        text = f"{share} of the recorded time is one-time work ({details}): record later steps to see their normal time"
        yield Check("warning", "recorded-a-start", 1, text)


def _time_and_ratio(trace: Trace, rows: Ints, window: intervals.Intervals) -> tuple[int, float]:
    time_ns = intervals.total(intervals.intersect(intervals.of_slices(trace, rows), window))
    return time_ns, time_ns / max(intervals.total(window), 1)


_SAMPLED: Final = re.compile(r"^(?:SM Active|DRAM BW|HBM (?:BW|Read|Write)|NVLink [RT]X|PCIe)(?: \(%\))?$|\w__\w")
"""Counters that CUPTI samples inside the device, with names of torch (``_PM_METRIC_LABELS`` of torch 2.14) or CUPTI."""


def _check_locked(trace: Trace) -> Iterator[Check]:
    sampled = [name for name in trace.counters.names if _SAMPLED.search(name)]
    if sampled:
        yield Check("warning", labels.CLOCKS_CHECK, len(sampled), labels.CLOCKS_LOCKED, sampled[0])


_EXAMINATIONS: Final[tuple[Callable[[Trace], Iterator[Check]], ...]] = (
    *(
        _check_damage,
        _check_log,
        _check_locked,
        _check_launches,
        _check_counters,
        _check_orphans,
        _check_clocks,
        _check_nested,
        _check_few_kernels,
        _check_replays,
    ),
    *(_check_computation, _check_rates, _check_marks, _check_overhead, _check_start),
)


def _count_work(rows: int) -> str:
    return words.count(rows, "kernel, copy or memset", "kernels, copies and memsets")


def _describe_first(trace: Trace, rows: Ints) -> str:
    row = rows[np.argmin(trace.start[rows])]
    return f"{since_start(trace, trace.start[row]):.6g} ms: {trace.names[trace.name[row]]}"


def _describe_step(trace: Trace, marks: step_marks.MarkedSteps, index: int) -> str:
    return f"{since_start(trace, marks.start[index]):.6g} ms: step {marks.number[index]}"
