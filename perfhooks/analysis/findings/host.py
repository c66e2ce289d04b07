"""The host keeps the device waiting: it cannot launch fast enough, waits for results, or computes itself."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import cached_per_window, most
from perfhooks.analysis.findings.replays import Replay, of_steps
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import captures, intervals
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

STARVED: Final = 0.2
"""Smallest share of the step in which the device idles because nothing was launched. Small gaps are everywhere; from a
fifth on, fewer or cheaper launches help."""
MANY_LAUNCHES: Final = 50
"""In a step. With fewer, launching is not what takes the time."""
PAUSE_NS: Final = 5_000_000
"""The device idling longer than this at once is no slow launching: between two launches lie some microseconds to some
hundreds of them. Then the host did something else, and the advice would be wrong (the two sampled ranks of a 128-rank
job pause for 10 to 70 ms at a time)."""
PAUSES: Final = 0.1
"""Smallest share of the step that is idle time in long pauses, or before one kernel."""

SLOW: Final = (
    *(device_time.OPERATORS, device_time.CODE, device_time.CALLS, device_time.NOTHING),
    device_time.LAUNCHING,
)
"""Causes of idle time that are the host's own pace: it neither waits nor does what has a name of its own."""

_BY_ITSELF: Final = tuple(cause for cause in SLOW if cause != device_time.NOTHING)
"""Those of them in which it was seen doing something."""

_LAUNCHES: Final = (
    "Make fewer and larger launches. torch.compile fuses small kernels, and in mode reduce-overhead replays "
    "them as one CUDA graph; {}a larger batch gives each launch more to do. If Python itself is slow, the flame graph "
    "shows where."
)
_ELSEWHERE: Final = (
    "Make fewer and larger launches. torch.compile fuses small kernels if it has a backend for the device; {}a larger "
    "batch gives each launch more to do. If Python itself is slow, the flame graph shows where."
)
_FUSED_ON_NPU: Final = "optimizer = torch_npu.optim.NpuFusedAdamW(params, lr=...)"
_FUSED: Final = "a fused optimizer updates all parameters in a few kernels; "
_REPLAYS: Final = (
    "Graphs are replayed already, and the host is slow between replays. Prepare the next inputs while "
    "the device works on this replay, in buffers that stay, and read results one step later; take into the graph what "
    "is launched around it."
)
_AHEAD: Final = "inputs.copy_(following, non_blocking=True)   # pinned; while the replay before it runs\ngraph.replay()"
_OF_THE_HOST: Final = (
    "Between two works of the device the host does something long that gives it none: preprocessing, logging, "
    "reading or writing files. Move it to a loader's worker or a thread, do it less often, or do it while the "
    "device works."
)
_ASIDE: Final = "executor.submit(log, values)   # concurrent.futures.ThreadPoolExecutor(1), made before the loop"
_OF_OPERATORS: Final = (
    "Between two works of the device the host runs operators of torch that give it none: hundreds of views, slices and "
    "checks, where lists of tensors are flattened, cut up or updated, or operators on the CPU. Do it once and keep the "
    "result, or do it less often: DistributedDataParallel, for one, sends all buffers before each forward pass unless "
    "broadcast_buffers=False. Where one operator takes long, it computes on the CPU, or prepares itself the first time."
)
_STACKS: Final = (
    "stacks were recorded, for which the recorder works at every call of Python: without them less of this remains"
)
_PREPARATION: Final = (
    "The host prepares each launch of this kernel longer than those of other kernels. Usual reasons: the kernel is "
    "compiled, tuned or looked up in each call, its arguments are checked in Python, or memory is allocated for it. Do "
    "this once and keep the result, or do it while the device works."
)
_SLACK_NS: Final = 5_000  # clocks of host and device agree to some microseconds


class _Preparation(NamedTuple):
    """Idle time before the launches of one kernel."""

    kernel: str
    idle: Flags
    """Which of `Evidence.idle` it is."""
    launches: int
    """Launches with idle time before them."""


def launch_preparation(window: Evidence) -> Iterator[Finding]:
    """The device idles for 10% of the step or more before launches of one kernel, and hardly between others.

    Source: `PAUSES`, `perfhooks.trace.tables.idle.MOST`. Idle time in which the thread that launched the kernel ran
    operators, code between them or nothing that was recorded. Kernels of one template, or with one name and different
    numbers, count as one. The kernel is launched several times in a step, and in at most half of all launches.

    Measured: never, because the advice depends on the preparation; the gain is an upper bound.
    """
    prepared = _prepared(window)
    if prepared is None:
        return
    spent, slow = window.per_step(window.idle_for(*SLOW, among=prepared.idle)), window.per_step(window.idle_for(*SLOW))
    often, each = f"{prepared.launches / max(window.count, 1):.3g}", spent * window.count / prepared.launches
    holder = idle.holder(window.trace, window.idle_intervals(*SLOW, among=prepared.idle), window.tables.owners)
    has_stacks = len(window.trace.rows(Kind.PYTHON)) > 0
    yield from window.finding(
        "launch-preparation",
        min(spent, window.host_limit_ms),
        is_wait=True,
        title=f"The device idles for {words.ms(spent)} of a {window.unit} before launches of {prepared.kernel}.",
        estimate="All of this time: it is gone if the launches are prepared while the device works.",
        evidence=[
            f"{often} launches of it in a {window.unit} follow idle time, {words.ms(each)} each",
            f"the host lets the device idle for {words.ms(slow)} of a {window.unit} in all; before this kernel:",
            *([f"{holder[0]}: {words.ms(holder[1] * intervals.MS / window.count)} of it"] if holder else []),
            *_by_cause(window, SLOW, prepared.idle),
            *most(_named_sources(window, prepared.idle)),
            *([] if has_stacks else [f"record with {window.option('with_stack')} to see the lines"]),
            *_stacks(window),
        ],
        advice=_PREPARATION,
        code="",
    )


@cached_per_window
def _prepared(window: Evidence) -> _Preparation | None:
    """Return the idle time before the one kernel that nearly all of it precedes, if it is worth a finding."""
    found, trace = window.idle, window.trace
    slow = np.isin(found.cause, SLOW)
    between = slow & (found.place == device_time.PLACES.index("between"))
    if not window.is_device_traced or not between.any():
        return None
    names, family = _families(trace)
    spent = summed(family[found.work[between]], found.length[between], len(names))
    if not spent.any() or spent.max() < idle.MOST * found.length[between].sum():
        return None
    largest = int(spent.argmax())
    mine = family[found.work] == largest
    launches = len(np.unique(found.work[mine & slow]))
    if launches <= window.count or (family[window.work] == largest).sum() > len(window.work) / 2:
        return None
    is_large = window.share(window.per_step(window.idle_for(*SLOW, among=mine))) >= PAUSES
    return _Preparation(names[largest], mine, launches) if is_large else None


@cached_per_trace
def _families(trace: Trace) -> tuple[list[str], Ints]:
    """Return the families of kernels, and the place of each of `Trace.device_rows` among them.

    The place of other work and of kernels of graphs is -1, and so is the last one, for work that is none.
    """
    numbers = trace.names_of(Kind.KERNEL)
    texts = [device_work.family(trace.names[number]) for number in numbers]
    places = {text: place for place, text in enumerate(dict.fromkeys(texts))}
    of_name = np.full(len(trace.names) + 1, -1)
    of_name[numbers] = [places[text] for text in texts]
    rows, graphs = trace.device_rows, trace.chosen(runtime_calls.GRAPH.search, Kind.RUNTIME)
    is_kernel = (trace.kind[rows] == Kind.KERNEL) & ~np.isin(trace.launches, graphs)
    return list(places), np.append(np.where(is_kernel, of_name[trace.name[rows]], -1), -1)


def _named_sources(window: Evidence, among: Flags) -> list[tuple[str, float]]:
    """The sources of idle time that have a name: operators, calls, lines, and labels of code between them."""
    found, trace = window.idle_intervals(device_time.CODE, among=among), window.trace
    labels = [(trace.names[trace.name[row]] if row >= 0 else "") for row in found.row.tolist()]
    of_labels = zip(labels, (found.length * intervals.MS / max(window.count, 1)).tolist(), strict=True)
    others = window.idle_sources(*(cause for cause in SLOW if cause != device_time.CODE), among=among)
    return [(name, spent) for name, spent in [*of_labels, *others] if name and name not in device_time.CAUSES]


def _stacks(window: Evidence) -> list[str]:
    """Return what recorded stacks add to the time of the host, if that is not known."""
    return [_STACKS] if len(window.trace.rows(Kind.PYTHON)) and not window.recording_ms else []


def host_bound(window: Evidence) -> Iterator[Finding]:
    """The device idles for a fifth of the step or more because the host has not launched its next work yet.

    Source: `STARVED`, `MANY_LAUNCHES`. Idle time (`perfhooks.trace.tables.device_time`) in which the thread that
    launched the next work ran operators, code between them, the launch itself or nothing that was recorded, in gaps of
    up to `PAUSE_NS`; less what recording itself added, where that is known. Where graphs are replayed few launches are
    many. Silent where a graph is being captured: that is what it would advise. Whether CUDA graphs fit the steps is
    told by their kernels and waits (`perfhooks.analysis.findings.replays`).

    Measured: never; the gain is an upper bound.
    """
    trace = window.trace
    if not window.is_device_traced or captures.by_thread(trace):
        return
    counted = "launches" if window.mean("launches") else "kernels"
    launches, replays = window.mean(counted), len(window.named(runtime_calls.GRAPH.pattern, Kind.RUNTIME))
    short = ~_long(window) & ~_claimed(window)
    starved = window.per_step(window.idle_for(*SLOW, among=short))
    gain = min(starved - window.recording_ms, window.host_limit_ms)
    if (launches < MANY_LAUNCHES and not replays) or window.share(gain) < STARVED:
        return
    wall, busy = window.mean("wall_ms"), window.mean("device_busy_ms")
    graph = of_steps(window) if trace.has_cuda and not replays else Replay(fits=None)
    launching = (_LAUNCHES if trace.has_cuda else _ELSEWHERE).format(_FUSED if window.is_training else "")
    yield from window.finding(
        "host-bound",
        gain,
        is_wait=True,
        title=f"The device idles for {words.ms(starved)} of a {window.unit} because the host launches too slowly.",
        estimate=(
            "All the time in which the device had nothing queued and the host neither waited nor loaded data, less the "
            "time that recording added."
        ),
        evidence=[
            f"{launches:.0f} {counted} in {words.ms(wall)}, one every {words.ms(wall / max(launches, 1))}",
            f"the device works for {words.ms(busy)}; it idles for",
            *_by_cause(window, SLOW, short),
            *most([each for each in window.idle_sources(*SLOW, among=short) if each[0] not in device_time.CAUSES]),
            *filter(None, [graph.evidence]),
            *_stacks(window),
        ],
        advice=_REPLAYS if replays else f"{launching} {graph.advice}".strip(),
        code=(_FUSED_ON_NPU if trace.is_npu and window.is_training else "")
        if not trace.has_cuda
        else _AHEAD
        if replays
        else window.code_for("fewer launches")
        if window.is_training
        else window.code_for("one graph"),
    )


def synchronisation(window: Evidence) -> Iterator[Finding]:
    """The host waits for the device, which then idles until the host has launched again, for 1% of the step or more.

    Source: `evidence.NOTABLE`. What counts is idle time that begins in a wait, as far as the host then launches what is
    next and does nothing else that has a name; it is no more than the wait itself: without the wait the host would run
    ahead by so much.

    Measured: never; the gain is an upper bound.
    """
    waits = window.synchronisations.filter(pl.col("host_ms") > 0)
    if not waits.height or not window.is_device_traced:
        return
    origin = int(window.trace.start.min())
    begin = origin + np.rint(waits["start_ms"].to_numpy() * 1e6).astype(np.int64)
    end = begin + np.rint(waits["host_ms"].to_numpy() * 1e6).astype(np.int64)
    held = waits["host_ms"].to_numpy() / window.count
    gaps = np.minimum(_gaps_after(window, begin, end) * intervals.MS / window.count, held)
    gain = float(gaps.sum())
    if not window.is_worth(gain):
        return
    names = list(itertools.starmap(_wait, waits.select("call", "operator", "line", "bytes").iter_rows()))
    sources = most([each for each in zip(names, gaps.tolist(), strict=True) if each[1]], 5)
    yield from window.finding(
        "synchronisation",
        gain,
        is_wait=True,
        title=f"The device idles for {words.ms(gain)} of a {window.unit} after the host has waited for it.",
        estimate=(
            "The time for which the device idles after each wait, no more than that wait itself took: without it the "
            "host would have launched the next work meanwhile."
        ),
        evidence=[
            (
                f"{window.count_per_step(waits)} waits in a {window.unit}; the host waits "
                f"{words.ms(float(held.sum()))} in them"
            ),
            "idle time of the device that begins in a wait, by the place of the wait:",
            *sources,
        ],
        advice=(
            "Reading a value on the host (item(), cpu(), nonzero(), a condition on a tensor, print) makes it wait "
            "until the device has done everything before. torch.cuda.synchronize() does so too; only measuring needs "
            "it. Keep such values on the device, add them up there, and read them once every many steps. Make masks "
            "with torch.where instead of indices. To find the rest, "
            'torch.cuda.set_sync_debug_mode("warn").'
        ),
        code=window.code_for("values read seldom"),
    )


def device_pauses(window: Evidence) -> Iterator[Finding]:
    """The device idles for 10% of the step or more in pauses of 5 ms or longer that nothing else explains.

    Source: `PAUSES`, `PAUSE_NS`. Idle time (`perfhooks.trace.tables.device_time`) in gaps of that length in which the
    thread that launched the next work ran operators or code between them: it did not wait for data or the device,
    validate, save, ask for memory, or do what is done once.

    Measured: never, for the advice depends on what the host does; the gain is an upper bound.
    """
    if not window.is_device_traced:
        return
    long = _long(window) & ~_claimed(window)
    pauses = window.idle_for(*_BY_ITSELF, among=long)
    spent = window.per_step(pauses)
    if window.share(spent) < PAUSES:
        return
    is_in_operators = 2 * window.per_step(window.idle_for(device_time.OPERATORS, among=long)) > spent
    holder = idle.holder(window.trace, window.idle_intervals(*_BY_ITSELF, among=long), window.tables.owners)
    inside = [f"{holder[0]}: {words.ms(holder[1] * intervals.MS / window.count)} of it"] if holder else []
    yield from window.finding(
        "device-pauses",
        min(spent, window.host_limit_ms),
        title=f"The device has nothing to do for {words.ms(spent)} of a {window.unit}, in pauses of more than 5 ms "
        "at once.",
        estimate="As much as the host can do at another time, or on another thread, is gained.",
        evidence=[
            f"such pauses in a {window.unit}: {window.count_per_step(np.unique(window.gaps.of[long]))}; meanwhile:",
            *inside,
            *_by_cause(window, _BY_ITSELF, long),
            *most(window.idle_sources(*_BY_ITSELF, among=long), 4),
            *_stacks(window),
        ],
        advice=_OF_OPERATORS if is_in_operators else _OF_THE_HOST,
        code="" if is_in_operators else _ASIDE,
        of=pauses,
        is_wait=True,
    )


def _wait(call: str, operator: str | None, line: str | None, size: int | None) -> str:
    """Where the host waited, and for how much data if it was for a copy."""
    where = line or operator or call
    return where if size is None else f"{where}, copying {words.size(size)}"


def _claimed(window: Evidence) -> Flags:
    """Which idle stretches `launch_preparation` explains."""
    prepared = _prepared(window)
    return np.zeros(len(window.idle.start), np.bool_) if prepared is None else prepared.idle


def _long(window: Evidence) -> Flags:
    """Which idle stretches lie in gaps longer than `PAUSE_NS`."""
    return (window.gaps.summed(window.idle.length) > PAUSE_NS)[window.gaps.of]


def _by_cause(window: Evidence, causes: tuple[int, ...], among: Flags) -> list[str]:
    """The idle time of each cause, most first."""
    spent = [(device_time.CAUSES[cause], window.per_step(window.idle_for(cause, among=among))) for cause in causes]
    return most([each for each in spent if each[1] > 0], len(causes))


def _gaps_after(window: Evidence, begin: Ints, end: Ints) -> Ints:
    """How long the device idles after each wait because the host launches, in nanoseconds.

    A gap counts for the first wait that has not ended when it begins, but for what clocks disagree (`_SLACK_NS`).
    """
    found, gaps = np.zeros(len(begin), np.int64), window.gaps
    since = window.idle.start[gaps.first]
    # what is idle when a step begins was not begun by a wait, and after the last work nothing is launched
    began = np.isin(since, window.busy[:, 1])
    order = np.argsort(end, kind="stable")
    place = np.append(order, -1)[np.searchsorted(end[order], since - _SLACK_NS, "left")]
    followed = window.idle.work[gaps.first] >= 0
    counts = began & followed & (place >= 0) & (begin[place] < since)
    spent = gaps.summed(
        np.where(np.isin(window.idle.cause, (device_time.SYNC, device_time.LATENCY, *SLOW)), window.idle.length, 0)
    )
    np.add.at(found, place[counts], spent[counts])
    return found
