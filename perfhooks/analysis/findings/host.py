from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import cached_per_window, top_lines
from perfhooks.analysis.findings.finding import DOMINANT, MAJOR
from perfhooks.analysis.findings.replays import Replay, check_replay
from perfhooks.core import words
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
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Flags

MANY_LAUNCHES: Final = 50
"""Minimum launches per step. Fewer do not limit the step."""

SLOW: Final = (
    *(device_time.OPERATORS, device_time.CODE, device_time.CALLS, device_time.NOTHING),
    device_time.LAUNCHING,
)
"""Causes of idle time without a wait of the host."""

_ACTIVE: Final = tuple(cause for cause in SLOW if cause != device_time.NOTHING)

_LAUNCHES: Final = (
    "Make fewer and larger launches: {compiler}{fused}a larger batch gives each launch more work. If Python code is "
    "slow, the flame graph shows it."
)
_FUSED_ON_NPU: Final = "optimizer = torch_npu.optim.NpuFusedAdamW(params, lr=...)"
_FUSED: Final = "a fused optimizer updates all parameters in a few kernels; "
_REPLAYS: Final = (
    "The host replays graphs, but is slow between replays. During a replay, prepare the next inputs in fixed "
    "buffers. Read results one step later. Move launches around the graph into the graph."
)
_NEXT_INPUTS: Final = (
    "inputs.copy_(following, non_blocking=True)   # pinned; during the previous replay\ngraph.replay()"
)
_LONG_CODE: Final = (
    "In these pauses the host does long work without launches: preprocessing, logging, or reading and writing files. "
    "Move it to a worker of the loader or to a thread, do it less often, or do it while the device works."
)
_IN_THREAD: Final = "executor.submit(log, values)   # concurrent.futures.ThreadPoolExecutor(1), created before the loop"
_LONG_OPERATORS: Final = (
    "In these pauses the host runs torch operators without launches. Typical cases are hundreds of views, slices and "
    "checks over lists of tensors, and operators on the CPU. Run them once and keep the result, or run them less "
    "often. For example, DistributedDataParallel sends all buffers before each forward pass unless "
    "broadcast_buffers=False. A single long operator computes on the CPU, or initialises itself in its first call."
)
_STACKS_COST: Final = "recorded stacks slow down every Python call: without stacks, this time is shorter"
_PREPARATION: Final = (
    "The host needs longer to prepare launches of this kernel than of other kernels. Usual causes: each call compiles, "
    "tunes or looks up the kernel, checks arguments in Python, or allocates memory. Do this once and keep the result, "
    "or do it while the device works."
)


class _Preparation(NamedTuple):
    kernel: str
    idle: Flags
    launches: int


def launch_preparation(window: Evidence) -> Iterator[Finding]:
    """The device idles for 10% of the step or more before launches of one kernel, and hardly before other launches.

    Source: `MAJOR`, `intervals.NEARLY_ALL`. Idle time counts if the launching thread ran operators, code between
    operators, or nothing that was recorded. Kernels of one template, or with names that differ only in numbers,
    count as one. The kernel is launched several times in a step, and in at most half of all launches.

    Not measured, because the gain depends on the preparation.
    """
    preparation = _find_preparation(window)
    if preparation is None:
        return
    kernel_ms = window.per_step(window.idle_for(*SLOW, among=preparation.idle))
    idle_ms = window.per_step(window.idle_for(*SLOW))
    launches = f"{preparation.launches / max(window.count, 1):.3g}"
    ms_each = kernel_ms * window.count / preparation.launches
    holder = idle.holder(window.trace, window.idle_intervals(*SLOW, among=preparation.idle), window.tables.owners)
    has_stacks = len(window.trace.rows(Kind.PYTHON)) > 0
    yield from window.finding(
        "launch-preparation",
        min(kernel_ms, window.host_limit_ms),
        is_wait=True,
        title=f"The device idles for {words.ms(kernel_ms)} of a {window.unit} before launches of {preparation.kernel}.",
        estimate="All of this time, if the launches are prepared while the device works.",
        evidence=[
            f"{launches} launches of this kernel in a {window.unit} follow idle time of {words.ms(ms_each)} each",
            (
                f"idle time of the device without launched work in a {window.unit}: {words.ms(idle_ms)}; before this "
                "kernel:"
            ),
            *([f"{holder[0]}: {words.ms(holder[1] * intervals.MS / window.count)} of it"] if holder else []),
            *_cause_lines(window, SLOW, preparation.idle),
            *top_lines(_named_sources(window, preparation.idle)),
            *([] if has_stacks else [f"record with {window.option('with_stack')} to see the lines"]),
            *_stacks_note(window),
        ],
        advice=_PREPARATION,
        code="",
    )


@cached_per_window
def _find_preparation(window: Evidence) -> _Preparation | None:
    """Return the idle time before the one kernel that follows nearly all of it."""
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
    """Return the families of kernels, and the family index of each of `Trace.device_rows`, or -1."""
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


def _stacks_note(window: Evidence) -> list[str]:
    return [_STACKS_COST] if len(window.trace.rows(Kind.PYTHON)) and not window.recording_ms else []


def host_bound(window: Evidence) -> Iterator[Finding]:
    """The device idles for 20% of the step or more because the host has not launched its next work yet.

    Source: `DOMINANT`, `MANY_LAUNCHES`; idle time (`perfhooks.trace.tables.device_time`) counts while the launching
    thread ran operators, code between operators, the launch, or no recorded code. Gaps longer than 5 ms do not count.
    Measured profiler overhead is subtracted. With replayed graphs, a few launches are enough. There is no finding while
    a graph is captured. Kernels and waits of the steps decide whether CUDA graphs fit
    (`perfhooks.analysis.findings.replays`).

    Not measured.
    """
    trace = window.trace
    if not window.is_device_traced or captures.by_thread(trace):
        return
    counter = "launches" if window.mean("launches") else "kernels"
    launches, replays = window.mean(counter), len(window.matching(runtime_calls.GRAPH.pattern, Kind.RUNTIME))
    short = ~_is_long(window) & ~_is_preparation(window)
    starved_ms = window.per_step(window.idle_for(*SLOW, among=short))
    gain = min(starved_ms - window.recording_ms, window.host_limit_ms)
    if (launches < MANY_LAUNCHES and not replays) or window.share(gain) < DOMINANT:
        return
    wall, busy = window.mean("wall_ms"), window.mean("device_busy_ms")
    graph = check_replay(window) if trace.has_cuda and not replays else Replay(fits=None)
    launching = _LAUNCHES.format(compiler=window.device.compiler, fused=_FUSED if window.is_training else "")
    yield from window.finding(
        "host-bound",
        gain,
        is_wait=True,
        title=f"The device idles for {words.ms(starved_ms)} of a {window.unit} because the host launches too slowly.",
        estimate=("The idle time of the device while the host did not wait or load data, without profiler overhead."),
        evidence=[
            f"{launches:.0f} {counter} in {words.ms(wall)}, one every {words.ms(wall / max(launches, 1))}",
            f"the device works for {words.ms(busy)}; its idle time by cause:",
            *_cause_lines(window, SLOW, short),
            *top_lines(
                [source for source in window.idle_sources(*SLOW, among=short) if source[0] not in device_time.CAUSES]
            ),
            *filter(None, [graph.evidence]),
            *_stacks_note(window),
        ],
        advice=_REPLAYS if replays else f"{launching} {graph.advice}".strip(),
        code=(_FUSED_ON_NPU if trace.is_npu and window.is_training else "")
        if not trace.has_cuda
        else _NEXT_INPUTS
        if replays
        else window.code_for("fewer launches")
        if window.is_training
        else window.code_for("one graph"),
    )


def synchronisation(window: Evidence) -> Iterator[Finding]:
    """The host waits for the device, which then idles until the next launch, for 1% of the step or more.

    Source: `evidence.NOTABLE`. Idle time counts if it begins in a wait that only a launch follows. It counts up to
    the length of the wait, because without the wait the host would launch earlier by that time.

    Not measured.
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
    names = list(itertools.starmap(_wait_text, waits.select("call", "operator", "line", "bytes").iter_rows()))
    sources = top_lines([source for source in zip(names, gaps.tolist(), strict=True) if source[1]], 5)
    yield from window.finding(
        "synchronisation",
        gain,
        is_wait=True,
        title=f"The device idles for {words.ms(gain)} of a {window.unit} after the host has waited for it.",
        estimate=(
            "The idle time of the device after each wait, up to the length of that wait. Without the wait, the host "
            "would launch the next work earlier by that time."
        ),
        evidence=[
            (
                f"{window.count_per_step(waits)} waits in a {window.unit}, "
                f"{words.ms(float(wait_ms.sum()))} of host time together"
            ),
            "idle time of the device after a wait, by the location of the wait:",
            *sources,
        ],
        advice=(
            "Keep values on the device, add them up there, and read them once every many steps. Reading a value "
            "(item(), cpu(), nonzero(), a condition on a tensor, print) makes the host wait for the device. Use "
            f"torch.where instead of indexing with masks. Remove {window.device.module}.synchronize(), which only "
            f"measurements need.{window.device.other_waits}"
        ),
        code=window.code_for("values read seldom"),
    )


def device_pauses(window: Evidence) -> Iterator[Finding]:
    """The device idles for 10% of the step or more in pauses of 5 ms or longer without another explanation.

    Source: `MAJOR`. Idle time (`perfhooks.trace.tables.device_time`) in gaps of that length counts if the
    launching thread ran operators or code between operators. It did not wait for data or the device, validate, save,
    allocate memory, or do one-time work.

    Not measured, because the gain depends on the work of the host.
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
    inside = [f"{holder[0]}: {words.ms(holder[1] * intervals.MS / window.count)} of it"] if holder else []
    yield from window.finding(
        "device-pauses",
        min(pause_ms, window.host_limit_ms),
        title=f"The device idles for {words.ms(pause_ms)} of a {window.unit}, in pauses of more than 5 ms.",
        estimate="All of this time, if the host does its work at another time or on another thread.",
        evidence=[
            (
                f"such pauses in a {window.unit}: {window.count_per_step(np.unique(window.gaps.of[long]))}; activity "
                "of the host:"
            ),
            *inside,
            *_cause_lines(window, _ACTIVE, long),
            *top_lines(window.idle_sources(*_ACTIVE, among=long), 4),
            *_stacks_note(window),
        ],
        advice=_LONG_OPERATORS if is_in_operators else _LONG_CODE,
        code="" if is_in_operators else _IN_THREAD,
        of=pauses,
        is_wait=True,
    )


def _wait_text(call: str, operator: str | None, line: str | None, size: int | None) -> str:
    location = line or operator or call
    return location if size is None else f"{location}, copying {words.size(size)}"


def _is_preparation(window: Evidence) -> Flags:
    preparation = _find_preparation(window)
    return np.zeros(len(window.idle.start), np.bool_) if preparation is None else preparation.idle


def _is_long(window: Evidence) -> Flags:
    return (window.gaps.summed(window.idle.length) > starts.LOADING_NS)[window.gaps.of]


def _cause_lines(window: Evidence, causes: tuple[int, ...], among: Flags) -> list[str]:
    by_cause = [(device_time.CAUSES[cause], window.per_step(window.idle_for(cause, among=among))) for cause in causes]
    return top_lines([row for row in by_cause if row[1] > 0], len(causes))


def _idle_after_waits(window: Evidence, begin: Ints, end: Ints) -> Ints:
    """Return the idle time after each wait during which the host launches, in ns."""
    idle_ns, gaps = np.zeros(len(begin), np.int64), window.gaps
    gap_start = window.idle.start[gaps.first]
    # exclude idle time from before the step, and after the last work
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
