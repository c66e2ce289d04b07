from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import attention
from perfhooks.analysis.findings.evidence import cached_per_window, top_lines
from perfhooks.analysis.findings.finding import HEAVY, MAJOR
from perfhooks.analysis.findings.kernels import FAR, by_shape, in_float64, matrices, shape_text
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import rates, traffic
from perfhooks.trace.names import device_work, operators, runtime_calls, work_kinds
from perfhooks.trace.nesting import autograd, device, host, intervals
from perfhooks.trace.tables import categories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
    from perfhooks.trace.model import Flags, Ints

SAVED: Final = 0.5
"""Fraction of the time of GEMMs that a faster type saves. On a CPU, float32 instead of float64 saved 35 to 56% in
linear layers and 99% in convolutions. The value is an assumption for tensor cores.
"""

_PLAIN_NAME: Final = re.compile(r"\w+(?:\([\w\s*,&]*\))?")
_LIBRARY_KERNEL: Final = re.compile(
    rf"{work_kinds.TRITON}|nvjet|cutlass|cublas|cudnn|cask|xmma|magma|cijk|rocblas|hipblas|miopen|mkldnn|"
    r"volta|turing|ampere|maxwell|hopper|blackwell|sm\d\d|gem[mv]\w*\d+x\d+|split_?k|marlin|machete",
    re.IGNORECASE,
)
"""Pattern of names of library kernels. Some names contain only an architecture or tile sizes, not the library."""


class Capability(enum.IntEnum):
    VOLTA = 7
    AMPERE = 8


def float32_products(window: Evidence) -> Iterator[Finding]:
    """Report float32 GEMMs and convolutions without tensor cores, if they take at least 5% of the step (`HEAVY`).

    Kernels are detected by name, on NVIDIA devices with tensor cores. If other GEMMs or convolutions run as TF32, or an
    operator allows TF32, the library itself chose the float32 kernels, and there is no finding. Kernels that are bound
    by memory do not count.
    """
    if window.gpu is None or window.gpu[1] < Capability.VOLTA:
        return
    rows = _without_tensor_cores(window, has_tf32=window.gpu[1] >= Capability.AMPERE)
    time_ms = window.device_ms(rows)
    gain = min(SAVED * time_ms, window.device_limit_ms)
    if window.share(time_ms) < HEAVY or not window.is_worth(gain):
        return
    name, major = window.gpu
    has_tf32 = major >= Capability.AMPERE
    text = window.texts(
        "float32-products",
        _version_of_products(window, rows),
        "" if has_tf32 else "float16",
        "gradient-scaler" if window.is_training and not has_tf32 else "",
        time_ms=time_ms,
    )
    evidence = [
        text("device", device_name=name, major=major),
        text("count", count=window.count_per_step(rows)),
        *window.by_name(rows),
    ]
    yield from window.finding(text, gain, bound_ms=min(time_ms, window.device_limit_ms), evidence=evidence)


def _without_tensor_cores(window: Evidence, *, has_tf32: bool) -> Ints:
    rows = window.work_named(device_work.FLOAT32_GEMM, Kind.KERNEL)
    rows = rows[~np.isin(rows, _memory_bound(window))]
    if not has_tf32:
        return rows
    tensor = window.trace.searched(device_work.TF32, Kind.KERNEL)
    is_convolution, convolves = _is_convolution(window, rows), _is_convolution(window, tensor)
    if convolves.any() or _has_tf32_allowed(window):
        rows, is_convolution = rows[~is_convolution], is_convolution[~is_convolution]
    return rows[is_convolution] if (~convolves).any() else rows


def _has_tf32_allowed(window: Evidence) -> bool:
    trace = window.trace
    rows = trace.named(Kind.OP, names=tuple(operators.ALLOW_TF32))
    arguments = {*zip(trace.name[rows].tolist(), trace.argument("inputs")[rows].tolist(), strict=True)}
    for name, text in arguments:
        values, index = trace.text(text), operators.ALLOW_TF32[trace.names[name]]
        if isinstance(values, list) and len(values) == index + 1 and values[index] == "True":
            return True
    return False


def _is_convolution(window: Evidence, rows: Ints) -> Flags:
    trace = window.trace
    is_convolution: Flags = (
        categories.of_work(trace)[np.searchsorted(trace.device_rows, rows)] == categories.CONVOLUTION
    )
    return is_convolution


def _version_of_products(window: Evidence, rows: Ints) -> str:
    share = window.device_ms(rows[_is_convolution(window, rows)]) / window.device_ms(rows)
    if share < 1 - intervals.NEARLY_ALL:
        return ""
    return "convolutions" if share > intervals.NEARLY_ALL else "convolutions-and-gemms"


def float64_products(window: Evidence) -> Iterator[Finding]:
    """Report GEMMs and convolutions of float64 tensors, if they take at least 5% of the step (`HEAVY`).

    ``record_shapes`` records the input types. Scalars (tensors without dimensions) do not count.

    The gain was measured on a CPU, see `SAVED`, and is an upper bound on a device.
    """
    rows = in_float64(window, window.matching(operators.GEMMS, Kind.OP))
    if not len(rows):
        return
    time_ms, limit = window.cost(rows)
    gain = min(SAVED * time_ms, limit)
    if window.share(time_ms) < HEAVY or not window.is_worth(gain):
        return
    slow = len(window.matching(operators.UNFOLDING, Kind.OP)) > 0
    text = window.texts("float64-products", time_ms=time_ms, saving=SAVED)
    yield from window.finding(
        text,
        gain,
        bound_ms=min(time_ms, limit),
        is_measured=not window.runs_on_device(rows),
        evidence=[
            *window.by_name(window.outermost(rows)),
            *([text("slow-path")] if slow else []),
            *window.by_line(window.outermost(rows)),
        ],
    )


def unaligned_products(window: Evidence) -> Iterator[Finding]:
    """Report GEMMs with unaligned rows on tensor cores, if they take at least 5% of the step (`HEAVY`).

    Rows are unaligned if they do not begin at multiples of 16 bytes (NVIDIA, "Matrix Multiplication Background User's
    Guide"). GEMMs of unfused attention do not count, because a fused kernel needs no padding. GEMMs that are bound by
    memory do not count, because padding increases the bytes that they read.

    Names of CUTLASS kernels contain the number of elements per load (``align1``). The sizes are those of the launching
    operators.
    """
    rows = window.work_named(device_work.UNALIGNED, Kind.KERNEL)
    rows = rows[~np.isin(rows, attention.unfused_work(window)) & ~np.isin(rows, _memory_bound(window))]
    time_ms = window.device_ms(rows)
    if not len(rows) or window.share(time_ms) < HEAVY:
        return
    multiples = sorted({str(_elements_per_load(window.trace.names[name])) for name in window.trace.name[rows].tolist()})
    text = window.texts("unaligned-products", time_ms=time_ms, multiples=" or ".join(multiples), multiple=multiples[0])
    sizes = _odd_sizes(text, window, rows) or [text("record-shapes", option=window.option("record_shapes"))]
    evidence = [text("count", count=window.count_per_step(rows)), *window.by_name(rows), *sizes]
    yield from window.finding(text, min(time_ms, window.device_limit_ms), evidence=evidence)


def _elements_per_load(kernel: str) -> int:
    return 8 if re.search(device_work.HALF, kernel) else 4


def _odd_sizes(text: FindingText, window: Evidence, rows: Ints) -> list[EvidenceLine]:
    trace = window.trace
    places = np.searchsorted(trace.device_rows, rows)
    owner, dims = device.owners(trace)[places], trace.argument("dims")
    padded: list[tuple[str | EvidenceLine, float]] = []
    for row, operator, time in zip(rows.tolist(), owner.tolist(), window.lengths(rows), strict=True):
        shapes = trace.text(int(dims[operator])) if operator >= 0 else None
        multiple = _elements_per_load(trace.names[trace.name[row]])
        odd = _not_multiples(shapes, multiple)
        if odd:
            pads = [text("pad", size=size, padded=-(-size // multiple) * multiple) for size in odd]
            name = trace.names[trace.name[operator]]
            padded.append((text("pads", operator=name, shapes=shape_text(shapes), pads=pads), time))
    return top_lines(padded)


def _not_multiples(shapes: object, multiple: int) -> list[int]:
    sizes = {size for shape in matrices(shapes) for size in shape[-2:] if isinstance(size, int)}
    return sorted(size for size in sizes if size > 1 and size % multiple)


def weight_bound_products(window: Evidence) -> Iterator[Finding]:
    """Report matrix products that are bound by reading their weights, if they take at least 10% of the step (`MAJOR`).

    Such products are GEMVs and GEMMs with few rows. By the recorded shapes, moving the data takes longer than
    computing, most of the bytes are the weight, and the kernel reaches at least 30% of the limit. Without shapes, GEMVs
    are detected by kernel names. Batched products do not count, because they have no weights. Products of the backward
    pass do not count, because their second factor may be an input.
    """
    rows = _weight_bound(window)
    time_ms = window.device_ms(rows)
    if window.share(time_ms) < MAJOR:
        return
    places = np.searchsorted(window.trace.device_rows, rows)
    actual_ns, minimum_ps = (rates.of_work(window.trace)[name][places] for name in ("least_ns", "least_ps"))
    has_shapes = actual_ns > 0
    gain = min(time_ms, window.device_limit_ms)
    is_known = window.is_worth(gain)
    text = window.texts("weight-bound-products", "" if is_known else "unknown", time_ms=time_ms)
    lines = window.by_name(rows)
    if has_shapes.any():
        lines = by_shape(text, window, places[has_shapes], actual_ns[has_shapes], minimum_ps[has_shapes] / 1000)[:3]
    evidence = [text("count", count=window.count_per_step(rows)), *lines]
    yield from window.finding(text, gain if is_known else None, evidence=evidence)


def _weight_bound(window: Evidence) -> Ints:
    trace, rows = window.trace, _memory_bound(window)
    owner = device.owners(trace)[np.searchsorted(trace.device_rows, rows)]
    in_backward = np.append(autograd.find(trace).inside, -1)[host.tree(trace).entry[owner]] >= 0
    moved, weights = traffic.per_call(trace, owner), traffic.weights_per_call(trace, owner)
    reads_weights = (owner < 0) | (moved <= 0) | (2 * weights > moved)
    return rows[reads_weights & ~in_backward]


@cached_per_window
def _memory_bound(window: Evidence) -> Ints:
    trace, places = window.trace, window.work
    sums, owner = rates.of_work(trace), device.owners(trace)[places]
    actual_ns, minimum_ps, in_memory = (sums[name][places] for name in ("least_ns", "least_ps", "memory_ns"))
    is_gemv = np.isin(trace.device_rows[places], window.work_named(device_work.GEMV, Kind.KERNEL))
    is_near = minimum_ps >= 1000 * FAR * actual_ns
    mask = np.where(actual_ns > 0, is_near & (in_memory > 0), is_gemv)
    mask &= (categories.of_work(trace)[places] == categories.GEMMS) | is_gemv
    mask &= ~np.isin(owner, trace.searched(operators.BATCHED_GEMMS, Kind.OP))
    rows: Ints = trace.device_rows[places[mask]]
    return rows


def own_products(window: Evidence) -> Iterator[Finding]:
    """Report matrix products by custom kernels, if they take at least 10% of the step (`MAJOR`).

    A custom kernel (for example in C or Triton) has a plain name that no library uses, and no library operator launched
    it. Kernels of a replayed graph do not count, because their launching operator is unknown.
    """
    trace = window.trace
    rows, launch = trace.device_rows[window.work], trace.launches[window.work]
    replays = trace.chosen(lambda name: runtime_calls.GRAPH.search(name) is not None, Kind.RUNTIME)
    # autograd functions are recorded as operators too, without a library prefix
    of_libraries = trace.chosen(lambda name: "::" in name, Kind.OP)
    is_alone = ~np.isin(device.owners(trace)[window.work], of_libraries) & (launch >= 0) & ~np.isin(launch, replays)
    rows = rows[is_alone & (trace.kind[rows] == Kind.KERNEL)]
    custom = {number for number in np.unique(trace.name[rows]).tolist() if _is_own_product(trace.names[number])}
    rows = rows[np.isin(trace.name[rows], list(custom))]
    time_ms = window.device_ms(rows)
    if not len(trace.rows(Kind.OP)) or window.share(time_ms) < MAJOR:
        return
    text = window.texts("own-products", time_ms=time_ms)
    evidence = [text("count", count=window.count_per_step(rows)), *window.by_name(rows)]
    yield from window.finding(text, min(time_ms, window.device_limit_ms), evidence=evidence)


def _is_own_product(name: str) -> bool:
    is_plain = _PLAIN_NAME.fullmatch(name) is not None and _LIBRARY_KERNEL.search(name) is None
    return is_plain and work_kinds.of_kernel(name) == "gemms"
