from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import cached_per_window, top_lines
from perfhooks.analysis.findings.finding import DOMINANT, MAJOR
from perfhooks.analysis.findings.replays import Replay, check_replay
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import captures, intervals, starts
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables import device_time, idle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Flags

MANY_LAUNCHES: Final = 50
"""Minimum launches per step for a finding. Fewer launches do not limit the step."""

SLOW: Final = (
    *(device_time.OPERATORS, device_time.CODE, device_time.CALLS, device_time.NOTHING),
    device_time.LAUNCHING,
)
"""Causes of device idle time in which the launching thread did not wait."""

_ACTIVE: Final = tuple(cause for cause in SLOW if cause != device_time.NOTHING)


class _Preparation(NamedTuple):
    kernel: str
    idle: Flags
    launches: int


def launch_preparation(window: Evidence) -> Iterator[Finding]:
    """Report idle time of the device before launches of one kernel, if it takes at least 10% of the step (`MAJOR`).

    At least 90% (`intervals.NEARLY_ALL`) of the idle time between launches must precede this kernel. Idle time counts
    if the launching thread ran operators or code between operators, or if nothing was recorded on this thread. Kernels
    of one template, or with names that differ only in numbers, count as one kernel. The kernel is launched several
    times in a step, in at most half of all launches.
    """
    preparation = _find_preparation(window)
    if preparation is None:
        return
    kernel_ms = window.per_step(window.idle_for(*SLOW, among=preparation.idle))
    idle_ms = window.per_step(window.idle_for(*SLOW))
    holder = idle.holder(window.trace, window.idle_intervals(*SLOW, among=preparation.idle), window.tables.owners)
    has_stacks = len(window.trace.rows(Kind.PYTHON)) > 0
    text = window.texts("launch-preparation", kernel_ms=kernel_ms, kernel=preparation.kernel)
    evidence = [
        text(
            "launches",
            launches=preparation.launches / max(window.count, 1),
            each_ms=kernel_ms * window.count / preparation.launches,
        ),
        text("idle", idle_ms=idle_ms),
        *_holder_lines(text, window, holder),
        *_cause_lines(window, SLOW, preparation.idle),
        *top_lines(_named_sources(window, preparation.idle)),
        *([] if has_stacks else [text("record-stacks", option=window.option("with_stack"))]),
        *_stacks_note(text, window),
    ]
    yield from window.finding(text, min(kernel_ms, window.host_limit_ms), is_wait=True, evidence=evidence)


@cached_per_window
def _find_preparation(window: Evidence) -> _Preparation | None:
    gaps, trace = window.idle, window.trace
    slow = np.isin(gaps.cause, SLOW)
    between = slow & (gaps.place == device_time.PLACES.index("between"))
    if not window.is_device_traced or not between.any():
        return None
    names, family = _families(trace)
    length_of_family = summed(family[gaps.work[between]], gaps.length[between], len(names))
    if not length_of_family.any() or length_of_family.max() < intervals.NEARLY_ALL * gaps.length[between].sum():
        return None
    largest = int(length_of_family.argmax())
    of_family = family[gaps.work] == largest
    launches = len(np.unique(gaps.work[of_family & slow]))
    if launches <= window.count or (family[window.work] == largest).sum() > len(window.work) / 2:
        return None
    is_large = window.share(window.per_step(window.idle_for(*SLOW, among=of_family))) >= MAJOR
    return _Preparation(names[largest], of_family, launches) if is_large else None


@cached_per_trace
def _families(trace: Trace) -> tuple[list[str], Ints]:
    numbers = trace.names_of(Kind.KERNEL)
    texts = [device_work.family(trace.names[number]) for number in numbers]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    of_name = np.full(len(trace.names) + 1, -1)
    of_name[numbers] = [places[text] for text in texts]
    rows, graphs = trace.device_rows, trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    is_kernel = (trace.kind[rows] == Kind.KERNEL) & ~np.isin(trace.launches, graphs)
    return list(places), np.append(np.where(is_kernel, of_name[trace.name[rows]], -1), -1)


def _named_sources(window: Evidence, among: Flags) -> list[tuple[str, float]]:
    gaps, trace = window.idle_intervals(device_time.CODE, among=among), window.trace
    labels = [(trace.names[trace.name[row]] if row >= 0 else "") for row in gaps.row.tolist()]
    of_labels = zip(labels, (gaps.length * intervals.MS / max(window.count, 1)).tolist(), strict=True)
    sources = window.idle_sources(*(cause for cause in SLOW if cause != device_time.CODE), among=among)
    return [(name, ms) for name, ms in [*of_labels, *sources] if name and name not in device_time.CAUSES]


def _holder_lines(text: FindingText, window: Evidence, holder: tuple[str, int] | None) -> list[EvidenceLine]:
    return [text("holder", name=holder[0], time_ms=holder[1] * intervals.MS / window.count)] if holder else []


def _stacks_note(text: FindingText, window: Evidence) -> list[EvidenceLine]:
    is_slower = len(window.trace.rows(Kind.PYTHON)) and not window.recording_ms
    return [text("stacks-cost")] if is_slower else []


def host_bound(window: Evidence) -> Iterator[Finding]:
    """Report idle time of the device due to slow launches, if it takes at least 20% of the step (`DOMINANT`).

    Idle time (`perfhooks.trace.tables.device_time`) counts if the launching thread ran operators, code between
    operators or the launch, or if nothing was recorded on this thread. Gaps longer than 5 ms do not count. Measured
    profiler overhead is subtracted. Without graph replays, a step must have at least `MANY_LAUNCHES`. There is no
    finding while a CUDA graph is captured.
    """
    trace = window.trace
    if not window.is_device_traced or captures.by_thread(trace):
        return
    counter = "launches" if window.mean("launches") else "kernels"
    launches, replays = window.mean(counter), len(window.matching(runtime_calls.GRAPH.pattern, Kind.RUNTIME))
    short = ~_is_long(window) & ~_is_preparation(window)
    starved_ms = window.per_step(window.idle_for(*SLOW, among=short)) - window.recording_ms
    gain = min(starved_ms, window.host_limit_ms)
    if (launches < MANY_LAUNCHES and not replays) or window.share(gain) < DOMINANT:
        return
    graph = check_replay(window) if trace.has_cuda and not replays else Replay()
    text = window.texts(
        "host-bound", *_versions_of_launching(window, has_replays=replays > 0), graph.version, starved_ms=starved_ms
    )
    sources = [source for source in window.idle_sources(*SLOW, among=short) if source[0] not in device_time.CAUSES]
    wall_ms = window.mean("wall_ms")
    evidence = [
        text(counter, launches=launches, wall_ms=wall_ms, every_ms=wall_ms / max(launches, 1)),
        text("causes", busy_ms=window.mean("device_busy_ms")),
        *_cause_lines(window, SLOW, short),
        *top_lines(sources),
        *graph.evidence(text),
        *_stacks_note(text, window),
    ]
    yield from window.finding(text, gain, is_wait=True, evidence=evidence)


def _versions_of_launching(window: Evidence, *, has_replays: bool) -> list[str]:
    trace = window.trace
    versions = ["" if window.is_training else "inference", "" if trace.has_cuda else "without-cuda"]
    versions += ["npu"] if trace.is_npu and window.is_training else []
    if has_replays:
        versions += ["replays", "cuda-replays" if trace.has_cuda else ""]
    return versions


def synchronisation(window: Evidence) -> Iterator[Finding]:
    """Report idle time of the device after waits of the host, if this idle time takes at least 1% of the step.

    The threshold is `evidence.NOTABLE`. Idle time counts if it begins during the wait of the host and ends with the
    next device work in the step, and at most up to the length of the wait.
    """
    waits = window.synchronisations.filter(pl.col("host_ms") > 0)
    if not waits.height or not window.is_device_traced:
        return
    origin = int(window.trace.start.min())
    begin = origin + np.rint(waits["start_ms"].to_numpy() * 1e6).astype(np.int64)
    end = begin + np.rint(waits["host_ms"].to_numpy() * 1e6).astype(np.int64)
    wait_ms = waits["host_ms"].to_numpy() / window.count
    gaps = np.minimum(_idle_after_waits(window, begin, end) * intervals.MS / window.count, wait_ms)
    gain = float(gaps.sum())
    if not window.is_worth(gain):
        return
    text = window.texts("synchronisation", idle_ms=gain)
    rows = waits.select("call", "operator", "line", "bytes").iter_rows()
    names = [
        location if size is None else text("copy", location=location, bytes=size)
        for call, operator, line, size in rows
        for location in [line or operator or call]
    ]
    evidence = [
        text("count", count=window.count_per_step(waits), together_ms=float(wait_ms.sum())),
        text("locations"),
        *top_lines([source for source in zip(names, gaps.tolist(), strict=True) if source[1]], 5),
    ]
    yield from window.finding(text, gain, is_wait=True, evidence=evidence)


def device_pauses(window: Evidence) -> Iterator[Finding]:
    """Report unexplained pauses of the device of 5 ms or longer, if they take at least 10% of the step (`MAJOR`).

    Idle time (`perfhooks.trace.tables.device_time`) counts if the launching thread ran operators or code between
    operators. Idle time does not count if the launching thread waited for data or the device, validated, saved a
    checkpoint, allocated memory, or did one-time work.
    """
    if not window.is_device_traced:
        return
    long = _is_long(window) & ~_is_preparation(window)
    pauses = window.idle_for(*_ACTIVE, among=long)
    pause_ms = window.per_step(pauses)
    if window.share(pause_ms) < MAJOR:
        return
    is_in_operators = 2 * window.per_step(window.idle_for(device_time.OPERATORS, among=long)) > pause_ms
    holder = idle.holder(window.trace, window.idle_intervals(*_ACTIVE, among=long), window.tables.owners)
    text = window.texts("device-pauses", "operators" if is_in_operators else "", pause_ms=pause_ms)
    evidence = [
        text("count", count=window.count_per_step(np.unique(window.gaps.of[long]))),
        *_holder_lines(text, window, holder),
        *_cause_lines(window, _ACTIVE, long),
        *top_lines(window.idle_sources(*_ACTIVE, among=long), 4),
        *_stacks_note(text, window),
    ]
    yield from window.finding(text, min(pause_ms, window.host_limit_ms), evidence=evidence, of=pauses, is_wait=True)


def _is_preparation(window: Evidence) -> Flags:
    preparation = _find_preparation(window)
    return np.zeros(len(window.idle.start), np.bool_) if preparation is None else preparation.idle


def _is_long(window: Evidence) -> Flags:
    return (window.gaps.summed(window.idle.length) > starts.LOADING_NS)[window.gaps.of]


def _cause_lines(window: Evidence, causes: tuple[int, ...], among: Flags) -> list[EvidenceLine]:
    by_cause = [(device_time.CAUSES[cause], window.per_step(window.idle_for(cause, among=among))) for cause in causes]
    return top_lines([row for row in by_cause if row[1] > 0], len(causes))


def _idle_after_waits(window: Evidence, begin: Ints, end: Ints) -> Ints:
    idle_ns, gaps = np.zeros(len(begin), np.int64), window.gaps
    gap_start = window.idle.start[gaps.first]
    # count only gaps that begin at the end of device work of the step
    is_in_step = np.isin(gap_start, window.busy[:, 1])
    order = np.argsort(end, kind="stable")
    # the clocks of host and device differ by up to 5 us
    wait_index = np.append(order, -1)[np.searchsorted(end[order], gap_start - 5_000, "left")]
    has_work = window.idle.work[gaps.first] >= 0
    counts = is_in_step & has_work & (wait_index >= 0) & (begin[wait_index] < gap_start)
    gap_ns = gaps.summed(
        np.where(np.isin(window.idle.cause, (device_time.SYNC, device_time.LATENCY, *SLOW)), window.idle.length, 0)
    )
    np.add.at(idle_ns, wait_index[counts], gap_ns[counts])
    return idle_ns


def allocator_churn(window: Evidence) -> Iterator[Finding]:
    """Report ``cudaMalloc`` and ``cudaFree`` if a step calls them at least once, for at least 1% of its time.

    The threshold is `evidence.NOTABLE`. In a trace without step marks, which may contain the start of a program, calls
    count from the first release of memory after 10% of all launches (`perfhooks.trace.nesting.starts.is_first`). There
    is no finding if one-time work takes most of the recording.
    """
    rows = window.matching(runtime_calls.ALLOCATOR, Kind.RUNTIME)
    if not window.are_numbered:
        rows = _calls_after_release(window, rows)
    call_ms = window.per_step(window.spans(rows))
    gain = min(call_ms, window.per_step(window.idle_for(device_time.MEMORY)) if window.is_device_traced else call_ms)
    if len(rows) < window.count or not window.is_worth(gain):
        return
    if 2 * window.share(window.per_step(intervals.joined(*window.startup.values()))) > 1:
        return
    text = window.texts("allocator-churn", "" if window.is_device_traced else "untraced", call_ms=call_ms)
    evidence = [text("count", count=window.count_per_step(rows)), *window.by_name(rows), *window.by_line(rows)]
    yield from window.finding(text, gain, evidence=evidence, of=window.spans(rows))


def _calls_after_release(window: Evidence, rows: Ints) -> Ints:
    start = window.trace.start[rows]
    is_release = np.isin(rows, window.matching(runtime_calls.RELEASE, Kind.RUNTIME)) & ~starts.is_first(
        window.trace, rows
    )
    return rows[start >= start[is_release].min()] if is_release.any() else rows[:0]
