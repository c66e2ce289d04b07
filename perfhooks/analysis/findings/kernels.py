from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import attention
from perfhooks.analysis.findings.finding import DOMINANT, HEAVY, MAJOR
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks, rates
from perfhooks.trace.names import device_work, operators, ranges, work_kinds
from perfhooks.trace.nesting import device, intervals
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.tables import categories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
    from perfhooks.trace.model import Column, Ints

UNFOLDED: Final = 0.25
"""Fraction of the time of unfolding convolutions that oneDNN saves. Measured savings are 14 to 58%."""

_COMPILED: Final = rf"{work_kinds.TRITON}|{ranges.COMPILED}"
_FUSABLE_KINDS: Final = (categories.ELEMENTWISE, categories.REDUCTION, categories.COPIES)
_FUSABLE_OF_TORCH: Final = (categories.INDEXING, categories.QUANTISATION)
"""Categories in which only kernels of torch can be fused. Kernels of other libraries, such as FBGEMM, are large."""
FAR: Final = 0.3
"""Fraction of the roofline limit below which a kernel is slow. Most kernels reach 60 to 85% (H100) and 40 to 60%
(MI300X).
"""


def slow_convolution(window: Evidence) -> Iterator[Finding]:
    """Report convolutions by unfolding (``_slow_conv2d``, ...), if they take at least 5% of the step (`HEAVY`).

    There is no finding if oneDNN (on a device: cuDNN) is enabled, because torch then uses unfolding only if it is
    faster. If this setting is unknown, the library counts as enabled if it runs a convolution. In float64, a CPU has no
    other implementation; see `float64_products`.

    The gain was measured on a CPU, see `UNFOLDED`, and is an upper bound on a device.
    """
    rows = window.matching(operators.UNFOLDING, Kind.OP)
    rows = rows[~np.isin(rows, in_float64(window, rows))]
    if not len(rows):
        return
    on_device = window.runs_on_device(rows)
    time_ms, limit = window.cost(rows)
    gain = min(UNFOLDED * time_ms, limit)
    library = window.device.convolutions if on_device else "oneDNN"
    if window.share(time_ms) < HEAVY or not window.is_worth(gain) or not library:
        return
    if _is_library_on(window, on_device=on_device):
        return
    text = window.texts(
        "slow-convolution",
        "on-device" if on_device else "",
        library=library,
        backend="cudnn" if on_device else "mkldnn",
        time_ms=time_ms,
        saving=UNFOLDED,
    )
    yield from window.finding(
        text,
        gain,
        bound_ms=min(time_ms, limit),
        is_measured=not on_device,
        evidence=[*window.by_name(window.outermost(rows)), *window.by_line(window.outermost(rows))],
    )


def _is_library_on(window: Evidence, *, on_device: bool) -> bool:
    setting = window.capture.circumstances.cudnn if on_device else window.capture.circumstances.onednn
    return len(window.matching(operators.LIBRARY_CONVOLUTIONS, Kind.OP)) > 0 if setting is None else setting


def layout_conversions(window: Evidence) -> Iterator[Finding]:
    """Report kernels that convert images between NCHW and NHWC, if they take 1% of the step (`evidence.NOTABLE`)."""
    rows = window.work_named(device_work.LAYOUT, Kind.KERNEL)
    time_ms = window.device_ms(rows)
    gain = min(time_ms, window.device_limit_ms)
    if not window.is_worth(gain):
        return
    text = window.texts("layout-conversions", time_ms=time_ms)
    evidence = [text("count", count=window.count_per_step(rows)), *window.by_name(rows)]
    yield from window.finding(text, gain, evidence=evidence)


def shape_text(shapes: object) -> str:
    return " and ".join(" x ".join(map(str, shape)) for shape in matrices(shapes))


def matrices(shapes: object) -> list[list[object]]:
    return [shape for shape in shapes if isinstance(shape, list) and len(shape) > 1] if isinstance(shapes, list) else []


def in_float64(window: Evidence, rows: Ints) -> Ints:
    trace = window.trace
    types, dims = trace.argument("types")[rows], trace.argument("dims")[rows]
    pairs = set(zip(types.tolist(), dims.tolist(), strict=True))
    float64_pairs = {pair for pair in pairs if _has_float64(trace.text(pair[0]), trace.text(pair[1]))}
    mask = [pair in float64_pairs for pair in zip(types.tolist(), dims.tolist(), strict=True)]
    return rows[np.array(mask, np.bool_)]


def _has_float64(types: object, dims: object) -> bool:
    if not isinstance(types, list) or not isinstance(dims, list):
        return False
    return any(kind == "double" and bool(shape) for kind, shape in zip(types, dims, strict=False))


def kernels_below_limit(window: Evidence) -> Iterator[Finding]:
    """Report kernels below 30% of the device's peak (`FAR`), if they take at least 10% of the step (`MAJOR`).

    Kernels of unfused attention do not count. Kernels below 10 us do not count, because constant overhead dominates
    them. The recorded shapes of the launching operators determine the operations and bytes of a kernel.
    """
    trace, places = window.trace, window.work
    sums = rates.of_work(trace)
    actual_ns, minimum_ns = sums["least_ns"][places], sums["least_ps"][places] / 1000
    far = (actual_ns >= device.LATENCY_NS) & (minimum_ns < FAR * actual_ns)
    places, actual_ns, minimum_ns = places[far], actual_ns[far], minimum_ns[far]
    rows = trace.device_rows[places]
    if window.share(window.device_ms(rows)) < MAJOR:
        return
    if len(other := np.flatnonzero(~np.isin(rows, attention.unfused_work(window)))) < len(rows):
        places, actual_ns, minimum_ns, rows = places[other], actual_ns[other], minimum_ns[other], rows[other]
    time_ms = window.device_ms(rows)
    if window.share(time_ms) < MAJOR:
        return
    of_peak = float(minimum_ns.sum() / actual_ns.sum())
    text = window.texts("kernels-below-limit", of_peak=of_peak, time_ms=time_ms)
    shapes = by_shape(text, window, places, actual_ns, minimum_ns)
    evidence = [text("count", count=window.count_per_step(rows), shapes=len(shapes)), *shapes[:3]]
    if device_peaks := peaks.of_trace(trace):
        name, _ = peaks.device(trace)
        evidence.append(text("limits", device_name=name, source=device_peaks.source))
    yield from window.finding(text, min(time_ms * (1 - of_peak), window.device_limit_ms), evidence=evidence)


def by_shape(
    text: FindingText, window: Evidence, places: Ints, actual_ns: Ints, minimum_ns: Column
) -> list[EvidenceLine]:
    trace = window.trace
    owner = device.owners(trace)[places]
    dims = trace.argument("dims")[owner]
    by_operator = groups(trace.name[owner], dims - dims.min(initial=0))
    total, minimum_of = (np.bincount(by_operator.of, weights=weights) for weights in (actual_ns, minimum_ns))
    lines = []
    for group in np.argsort(-total, kind="stable").tolist():
        row = int(owner[by_operator.first[group]])
        label = f"{trace.names[trace.name[row]]} {shape_text(trace.text(int(dims[by_operator.first[group]])))}".strip()
        line = text(
            "shape",
            shape=label,
            count=int((by_operator.of == group).sum()) / max(window.count, 1),
            time_ms=float(total[group]) * intervals.MS / max(window.count, 1),
            of_limit=float(minimum_of[group] / total[group]),
        )
        lines.append(line)
    return lines


def fusable_chains(window: Evidence) -> Iterator[Finding]:
    """Report chains of kernels that could be fused, if they take at least 20% of the step (`DOMINANT`).

    A chain consists of elementwise kernels, reductions and copies that are adjacent on their stream. Kernels of the
    optimizer do not count. There is no finding if compiled code runs, or if the device is busy for less than
    `intervals.MOST` of the step. A fused kernel reads and writes at least as much as the longest kernel of its chain,
    so the gain excludes the time of that kernel.
    """
    if window.share(window.mean("device_busy_ms")) < intervals.MOST or _is_compiled(window):
        return
    rows, chain = _chains(window)
    time_ms = window.device_ms(rows)
    if window.share(time_ms) < DOMINANT:
        return
    longest = np.zeros(int(chain.max()) + 1)
    np.maximum.at(longest, chain, window.lengths(rows))
    kinds = categories.of_work(window.trace)[np.searchsorted(window.trace.device_rows, rows)]
    text = window.texts("fusable-chains", "" if window.device.compiler else "without-compiler", time_ms=time_ms)
    shares = [
        text("category", category=categories.CATEGORIES[kind], category_ms=window.device_ms(rows[kinds == kind]))
        for kind in (*_FUSABLE_KINDS, *_FUSABLE_OF_TORCH)
        if (kinds == kind).any()
    ]
    evidence = [
        text("count", count=window.count_per_step(rows), categories=shares),
        text("busy", busy=window.share(window.mean("device_busy_ms"))),
        *window.by_name(rows),
    ]
    yield from window.finding(text, min(time_ms - float(longest.sum()), window.device_limit_ms), evidence=evidence)


def _is_compiled(window: Evidence) -> bool:
    return (
        len(window.matching(_COMPILED, Kind.OP, Kind.ANNOTATION)) > 0
        or len(window.work_named(_COMPILED, Kind.KERNEL)) > 0
    )


def _chains(window: Evidence) -> tuple[Ints, Ints]:
    trace = window.trace
    work = trace.device_rows
    kinds = categories.of_work(trace)
    of_torch = np.isin(work, window.work_named(device_work.OF_TORCH, Kind.KERNEL)) & np.isin(kinds, _FUSABLE_OF_TORCH)
    fusable = (np.isin(kinds, _FUSABLE_KINDS) | of_torch) & (trace.kind[work] == Kind.KERNEL)
    fusable &= ~np.isin(work, window.work_named(device_work.LAYOUT, Kind.KERNEL))
    stream = trace.thread[work]
    edges = np.flatnonzero(np.append(True, (np.diff(fusable) != 0) | (np.diff(stream) != 0)))
    length = np.diff(np.append(edges, len(work)))
    is_chain = fusable & np.repeat(length > 1, length)
    places = window.work[is_chain[window.work]]
    return work[places], np.repeat(np.arange(len(length)), length)[places]
