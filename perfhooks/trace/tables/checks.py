"""What makes a trace itself doubtful: whoever reads its numbers should know."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core import labels, words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import rates
from perfhooks.trace.names.messages import word
from perfhooks.trace.nesting import device, intervals, missing_work, starts, step_marks
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables.step_columns import since_start

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks.trace.model import Ints, Trace

SEVERITIES: Final = ("error", "warning", "info")
"""Numbers are wrong or missing; numbers may be; worth knowing when reading them."""

_NOTABLE: Final = 0.01  # of the window
_HEAVY: Final = 0.05
_MOSTLY: Final = 0.5  # of the steps' time
_TAIL: Final = 8  # kernel launches at the end of a window that have no kernel

_COUNTS: Final = re.compile(
    r"(Out-of-range|Invalid ext correlations|CPU GPU out-of-order|CUPTI stopped early\?) = (\d{1,18})"
)
_STOPPED: Final = re.compile(r"(?:collection|tracing|profiling|CUPTI).{0,60}stopp(?:ed|ing) early", re.IGNORECASE)
_LIMIT: Final = 2**62
_RANGES: Final = "cuda_profiler_range"
_BUFFERS: Final = "Buffer Request"

_SCHEMA: Final = {"severity": pl.String, "name": pl.String, "count": pl.Int64, "text": pl.String, "first": pl.String}


class Check(NamedTuple):
    """One doubt about a trace: a row of the table."""

    severity: str
    name: str
    """One word for programs."""
    times: int
    """How often it was found."""
    text: str
    """The evidence, for people."""
    first: str = ""
    """Where it was seen first."""


def table(trace: Trace) -> pl.DataFrame:
    """List what is doubtful about a trace, the gravest first; a sound trace has no rows.

    ``severity`` is ``error`` (numbers are wrong or missing), ``warning`` (they may be) or ``info`` (worth knowing);
    ``count`` how often it was found, ``text`` the evidence, ``first`` where it was seen first.

    * ``cut-off``, ``dropped-events``, ``unread-metadata``: the file is damaged (`Trace.doubts`).
    * ``unknown-tasks``: tasks of an Ascend NPU whose type is unknown, so that they do not count as work.
    * ``device-stopped``: the recorder says so in its log; or launches, at least 8 to the end, have no kernel.
    * ``counters-only``: the trace is one of CUPTI's range profiler, which counts and does not time.
    * ``clocks-locked``: hardware counters were sampled (torch's `PerformanceMetricsConfig`), for which CUPTI holds the
      clocks: the device is as fast as that clock, and not as fast as in a training.
    * ``no-device-work``: kernels were launched, but no work of a device is there.
    * ``launches-without-kernel``: a launch whose correlation no work of a device has.
    * ``recorded-a-start``: half of the steps' time or more went into what a program does once (`starts.by_kind`), as
      compiling and loading kernels; what a step takes later is not in this window.
    * ``launched-before-window``: work whose launch was made before recording began (`device.before_window`); it belongs
      to no step.
    * ``kernels-without-launch``: other work whose correlation no call has; info below 1%, and where no calls were
      recorded at all, so that work is given to steps by the time at which it ran.
    * ``clocks-apart``: host and devices have different clocks.
    * ``kernels-before-launch``: work that began before its call did: the clocks of host and device disagree.
    * ``nested-kernels``: work of devices that lies within other work of its stream; counted once.
    * ``step-with-few-kernels``: a step with fewer than 80% of the kernels of each neighbour; info where its launches
      are as few.
    * ``unequal-replays``: replays of one graph with different numbers of kernels.
    * ``no-compute-kernels``: operators computed, but no kernel did.
    * ``overflowed-kernels``: kernels that last beyond the end of work that followed them on their stream.
    * ``rate-above-peak``: an operator that would be faster than the peak of its device (`rates.is_above_peak`).
    * ``frames-without-end``: Python frames that were never closed (`frame_ends.close`).
    * ``records-without-time``, ``records-without-length``: records that are dropped (`Trace.doubts`).
    * ``overlapping-steps``, ``missing-steps``: marks of one thread that overlap; gaps and repetitions in their numbers.
    * ``no-steps``: no ``ProfilerStep#N``, so there is one row for all.
    * ``records-dropped``: counts that Kineto writes into the trace's log.
    * ``log-warnings``: what else the recorder warned of.
    * ``buffer-requests``: CUPTI asked for memory during the steps, which distorts them (kineto#1020).
    * ``profiler-overhead``: the time of ``overhead`` events of the recorder itself; info from 1% of the steps' time,
      warning from 5%. Launches that wait for room in a full queue, and kernels that the driver loads, are none.

    Args:
        trace: any trace.
    """
    found = [check for examine in _EXAMINATIONS for check in examine(trace)]
    found.sort(key=lambda check: SEVERITIES.index(check.severity))
    return pl.DataFrame(found, schema=_SCHEMA, orient="row", strict=False)


def _damage(trace: Trace) -> Iterator[Check]:
    for doubt in trace.doubts:
        severity = "info" if doubt.name == "unread-metadata" else "error" if doubt.name == "cut-off" else "warning"
        yield Check(severity, doubt.name, doubt.count, doubt.text)


def _log(trace: Trace) -> Iterator[Check]:
    lines = [line for key in ("INFO", "WARNING", "ERROR") for line in _lines(trace.metadata.get(key))]
    counted = [found for line in lines for found in _COUNTS.findall(line)]
    counts = {name: int(number) for name, number in counted if int(number)}
    stopped = [line for line in lines if _STOPPED.search(_COUNTS.sub("", line))]
    if "CUPTI stopped early?" in counts or stopped:
        text = "the recorder stopped collecting from the device before the window ended"
        yield Check("error", "device-stopped", 1, text, stopped[0] if stopped else "log of the trace")
    for name, (severity, text) in _DROPPED.items():
        if name in counts:
            yield Check(severity, "records-dropped", min(counts[name], _LIMIT), f"{name} = {counts[name]}: {text}")
    warned = [line for key in ("WARNING", "ERROR") for line in _lines(trace.metadata.get(key))]
    if warned:
        yield Check("info", "log-warnings", len(warned), "the recorder warned of something", warned[0])


_DROPPED: Final = {
    "Out-of-range": (
        "info",
        "records of the device from outside of the window: of warm-up steps, or kernels lost at its start",
    ),
    "Invalid ext correlations": ("warning", "records that could not be joined to an operator"),
    "CPU GPU out-of-order": ("warning", "kernels that seemed to run before their launch, and were dropped"),
}


def _lines(log: object) -> list[str]:
    """The lines that Kineto keeps in a trace, as a list or, in some builds, as one text."""
    return [text for line in (log if isinstance(log, list) else [log]) if (text := word(line))]


def _launches(trace: Trace) -> Iterator[Check]:
    calls = device.launch_calls(trace)
    calls = calls[trace.correlation[calls] > 0]
    lost = missing_work.lost_launches(trace)
    if not len(lost):
        return
    if not trace.is_device_traced and not len(_counter_ranges(trace)):
        text = f"{len(lost)} launches, but no work of any device: it was not recorded, or all of it was lost"
        yield Check("error", "no-device-work", len(lost), text, _where(trace, lost))
    if not trace.is_device_traced:
        return
    kept = calls[~np.isin(calls, lost)]
    tail = lost[trace.start[lost] > trace.start[kept].max(initial=np.iinfo(np.int64).min)]
    if len(tail) >= _TAIL:
        text = f"the last {len(tail)} launches have no kernel: the device was not recorded to the end"
        yield Check("error", "device-stopped", len(tail), text, _where(trace, tail))
        lost = lost[~np.isin(lost, tail)]
    if len(lost):
        text = f"{len(lost)} of {len(calls)} launches have no kernel: its record was lost, and its time is missing"
        yield Check("warning", "launches-without-kernel", len(lost), text, _where(trace, lost))


def _counters(trace: Trace) -> Iterator[Check]:
    rows = _counter_ranges(trace)
    if len(rows):
        text = (
            f"{len(rows)} ranges of CUPTI's range profiler: it counted what kernels did, one kernel after the other, "
            "and recorded none of their times; the tables of the device are empty"
        )
        yield Check("info", "counters-only", len(rows), text, _where(trace, rows))


def _counter_ranges(trace: Trace) -> Ints:
    """The ranges of the range profiler; their length is that of the whole divided by their number, and says nothing."""
    named = np.array([*(name == _RANGES for name in trace.categories), False])
    return np.flatnonzero(named[trace.category])


def _orphans(trace: Trace) -> Iterator[Check]:
    work = trace.device_rows
    before = device.before_window(trace)
    if before.any():
        yield _before(trace, work[before])
    orphans = work[(trace.launches < 0) & ~before]
    if not len(orphans):
        return
    text = f"{len(orphans)} of {len(work)} kernels, copies and memsets have no launch in the trace"
    if not len(trace.rows(Kind.RUNTIME)):
        severity, why = "info", "no calls of the runtime were recorded, so they belong to the step in which they ran"
    elif len(orphans) <= max(missing_work.STRAY * len(work), 1):
        severity, why = "info", "they belong to the step in which they ran"
    else:
        severity, why = "warning", "they belong to no operator, and to the step in which they ran"
    yield Check(severity, "kernels-without-launch", len(orphans), f"{text}: {why}", _where(trace, orphans))


def _before(trace: Trace, rows: Ints) -> Check:
    taken = intervals.total(intervals.of_slices(trace, rows)) * MS
    text = (
        f"{len(rows)} kernels, copies and memsets ({words.ms(taken)}) were launched before the window: they are in "
        "the table of kernels, and in no step"
    )
    return Check("info", "launched-before-window", len(rows), text, _where(trace, rows))


def _nested(trace: Trace) -> Iterator[Check]:
    work, holder = trace.device_rows, device.holders_on_stream(trace)
    inner = work[holder >= 0]
    if len(inner):
        text = (
            f"{len(inner)} of {len(work)} kernels, copies and memsets lie within others of the same stream, as where "
            "calls of a library are recorded beside their kernels: what holds others counts without them, so no moment "
            "of a stream counts twice"
        )
        yield Check("info", "nested-kernels", len(inner), text, _where(trace, inner))


def _early(trace: Trace) -> Iterator[Check]:
    work, launch = trace.device_rows, trace.launches
    lead = trace.start[launch] - trace.start[work] if len(work) else work
    early = work[(launch >= 0) & (lead > 0)]
    if not len(early) and not device.clocks(trace).agree:
        text = "no work of a device ran near the time of the host: the clocks disagree, when it worked is unknown"
        yield Check("error", "clocks-apart", len(work), text, _where(trace, work))
    if len(early):
        most = int(lead[launch >= 0].max()) * MS
        consequence = "" if device.clocks(trace).agree else ", when the device worked is unknown"
        text = f"{len(early)} of {len(work)} began before their launch did, by up to {words.ms(most)}"
        text += f": the clocks disagree{consequence}"
        yield Check("error", "kernels-before-launch", len(early), text, _where(trace, early))


def _few_kernels(trace: Trace) -> Iterator[Check]:
    found, marks = missing_work.few_kernels(trace), step_marks.find(trace)
    if found is None:
        return
    for severity, chosen, why in (
        ("warning", found.is_lost, "though it launched as many: kernels were lost, its device times are unknown"),
        ("info", found.is_less, "and launched as few: it did less"),
    ):
        rows = np.flatnonzero(chosen)
        if len(rows):
            first = rows[0]
            counts = f"{found.kernels[first]} kernels, its neighbours {found.usual[first]} or more"
            text = f"step {marks.number[first]}: {counts}, {why}"
            yield Check(severity, "step-with-few-kernels", len(rows), text, _step(trace, marks, first))


def _replays(trace: Trace) -> Iterator[Check]:
    short = missing_work.short_replays(trace)
    if len(short.calls):
        text = (
            f"replays of one graph differ by {short.missing} kernels: {len(short.calls)} replays lack records, "
            "the device times of their steps are unknown"
        )
        yield Check("warning", "unequal-replays", len(short.calls), text, _where(trace, short.calls))


def _computation(trace: Trace) -> Iterator[Check]:
    if missing_work.lacks_computation(trace):
        ops = trace.rows(Kind.OP)
        seen = f"{len(ops)} operators ran, but no kernel that computes" if len(ops) else "copies, but no kernel"
        text = f"{seen} was recorded: the times of the device are unknown"
        yield Check("error", "no-compute-kernels", 1, text, _where(trace, ops if len(ops) else trace.device_rows))


def _rates(trace: Trace) -> Iterator[Check]:
    called, sums = rates.calls(trace), rates.of_calls(trace)
    name = trace.name[called.row]
    by_name = {column: summed(name, values, len(trace.names)) for column, values in sums.items()}
    for number in np.flatnonzero(rates.is_above_peak(by_name)).tolist():
        times = int((name == number).sum())
        ratio = by_name["ceiling_ps"][number] / max(1000 * by_name["ceiling_ns"][number], 1)
        text = (
            f"{trace.names[number]} at {ratio:.3g} times the peak of the device: work of it is missing, or it computes "
            "less than its shapes say, as causal attention does; its rate is not shown"
        )
        yield Check("warning", "rate-above-peak", times, text, _where(trace, called.row[name == number]))


def _marks(trace: Trace) -> Iterator[Check]:
    found = step_marks.find(trace)
    if found.number == [None]:
        text = "no ProfilerStep marks: the tables have one row for the whole trace"
        yield Check("info", "no-steps", 1, text)
        return
    numbers = np.array(found.number, np.int64)
    crossing, jumping = [], []
    for thread in intervals.distinct(found.thread):
        mine = np.flatnonzero(found.thread == thread)
        crossing += mine[1:][found.start[mine][1:] < np.maximum.accumulate(found.end[mine])[:-1]].tolist()
        jumping += mine[1:][numbers[mine][1:] - 1 != numbers[mine][:-1]].tolist()
    if crossing:
        text = f"{len(crossing)} step marks begin before the one before them ends: their times are counted twice"
        yield Check("warning", "overlapping-steps", len(crossing), text, _step(trace, found, crossing[0]))
    if jumping:
        text = f"step {numbers[jumping[0]]} follows step {numbers[jumping[0] - 1]}: marks are missing or out of order"
        yield Check("warning", "missing-steps", len(jumping), text, _step(trace, found, jumping[0]))


def _overhead(trace: Trace) -> Iterator[Check]:
    found = step_marks.find(trace)
    window = intervals.union(found.start, found.end)
    every = device.recorder_overhead(trace)
    inside = every[intervals.within(window, trace.start[every], trace.end[every]) > 0]
    buffers = inside[[_BUFFERS in trace.names[name] for name in trace.name[inside]]] if len(inside) else inside
    whole = intervals.total(window)
    if len(buffers):
        taken, share = _share(trace, buffers, window)
        text = f"the recorder waited for memory, for {words.ms(taken * MS)} ({words.share(share)} of the steps)"
        severity = "warning" if share >= _NOTABLE else "info"
        yield Check(severity, "buffer-requests", len(buffers), text, _where(trace, buffers))
    taken, share = _share(trace, inside, window)
    if whole and share >= _NOTABLE:
        names = ", ".join(sorted({trace.names[name] for name in trace.name[inside]}))
        text = f"{words.ms(taken * MS)} ({words.share(share)} of the steps) went into {names}"
        severity = "warning" if share >= _HEAVY else "info"
        yield Check(severity, "profiler-overhead", len(inside), text, _where(trace, inside))


def _start(trace: Trace) -> Iterator[Check]:
    found = step_marks.find(trace)
    window = intervals.union(found.start, found.end)
    spent = {name: intervals.intersect(moments, window) for name, moments in starts.by_kind(trace).items()}
    taken, whole = intervals.total(intervals.joined(*spent.values())), intervals.total(window)
    if whole and taken >= _MOSTLY * whole:
        into = ", ".join(
            f"{words.ms(intervals.total(each) * MS)} of {name}" for name, each in spent.items() if len(each)
        )
        share = words.share(taken / whole)
        text = f"{share} of the recorded time is a start ({into}): record later to see what a step takes"
        yield Check("warning", "recorded-a-start", 1, text)


def _share(trace: Trace, rows: Ints, window: intervals.Intervals) -> tuple[int, float]:
    """The nanoseconds of some slices inside of a window, and their share of it."""
    taken = intervals.total(intervals.intersect(intervals.of_slices(trace, rows), window))
    return taken, taken / max(intervals.total(window), 1)


_SAMPLED: Final = re.compile(r"^(?:SM Active|DRAM BW|HBM (?:BW|Read|Write)|NVLink [RT]X|PCIe)(?: \(%\))?$|\w__\w")
"""Counters that CUPTI samples inside the device, in torch's words (``_PM_METRIC_LABELS`` of torch 2.14) or CUPTI's own:
``sm__cycles_active.avg``. Firmware samples those of other vendors (``HBM 0/Read``) without a change of the clocks."""


def _locked(trace: Trace) -> Iterator[Check]:
    sampled = [name for name in trace.counters.names if _SAMPLED.search(name)]
    if sampled:
        yield Check("warning", labels.CLOCKS_CHECK, len(sampled), labels.CLOCKS_LOCKED, sampled[0])


_EXAMINATIONS: Final[tuple[Callable[[Trace], Iterator[Check]], ...]] = (
    *(_damage, _log, _locked, _launches, _counters, _orphans, _early, _nested, _few_kernels, _replays),
    *(_computation, _rates, _marks, _overhead, _start),
)


def _where(trace: Trace, rows: Ints) -> str:
    """The first of some slices: when, and what."""
    row = rows[np.argmin(trace.start[rows])]
    return f"{since_start(trace, trace.start[row]):.6g} ms: {trace.names[trace.name[row]]}"


def _step(trace: Trace, found: step_marks.MarkedSteps, place: int) -> str:
    return f"{since_start(trace, found.start[place]):.6g} ms: step {found.number[place]}"
