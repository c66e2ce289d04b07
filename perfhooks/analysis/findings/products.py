"""Products of matrices that are dearer than they need be: their precision, their sizes, their kernels."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import attention
from perfhooks.analysis.findings.evidence import cached_per_window, most
from perfhooks.analysis.findings.finding import FAR_HEAVY, HEAVY
from perfhooks.analysis.findings.kernels import FAR, by_shape, in_float64, matrices, written
from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import rates
from perfhooks.trace.names import device_work, operators, runtime_calls, work_kinds
from perfhooks.trace.nesting import device
from perfhooks.trace.tables import categories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Flags, Ints

SAVED: Final = 0.5
"""Of the time of GEMMs that move to tensor cores, the share that the advice is about. A careful figure: on an A100
TF32 has eight times the peak of float32; memory takes its share."""
HALVED: Final = 0.5
"""Of the time of GEMMs in float64, saved by float32 on a CPU, about the middle: with one thread, forward, backward and
update, 35% in layers of 64 (where GEMMs were a fifth of the step), 56% in layers of 512 and 1,024, 99% in convolutions
(float64 has no fast path) and all of it in an LSTM, whose other operators became faster as well."""
TENSOR_CORES: Final = 7
"""The compute capability from which NVIDIA's devices have tensor cores (Volta)."""
TF32: Final = 8
"""The compute capability from which tensor cores take float32 as TF32 (Ampere)."""

_WEIGHTS: Final = 0.5
"""Smallest part of the elements of an operator's matrices that is its weights."""
_AUTOCAST: Final = 'with torch.autocast("cuda", dtype=torch.float16):\n    output = model(batch)'
_SOME: Final = 0.1
"""Of the time of products: a kind of them that takes less is not named."""
_PLAIN: Final = re.compile(r"\w+(?:\([\w\s*,&]*\))?")
"""A function in no namespace and from no template, with its arguments where it is C."""
_OF_LIBRARY: Final = re.compile(
    rf"{work_kinds.TRITON}|nvjet|cutlass|cublas|cudnn|cask|xmma|magma|cijk|rocblas|hipblas|miopen|mkldnn|"
    r"volta|turing|ampere|maxwell|hopper|blackwell|sm\d\d|gem[mv]\w*\d+x\d+|split_?k|marlin|machete",
    re.IGNORECASE,
)
"""Libraries have plain names, too: generated kernels have the architecture and their tiles in theirs."""


def float32_products(window: Evidence) -> Iterator[Finding]:
    """Kernels that multiply float32 on plain cores take 5% of the step or more, on a device that has tensor cores.

    Source: `HEAVY`, `SAVED`; the kernels by their names, the device by its compute capability. Devices of other makers
    than NVIDIA tell neither. If other GEMMs or convolutions run as TF32, or an operator says that they may, TF32 is on,
    and the library chose plain cores itself. Products that are bound by reading weights do not count.

    Measured: never; the gain is an upper bound.
    """
    if window.gpu is None or window.gpu[1] < TENSOR_CORES:
        return
    rows = _on_plain_cores(window, has_tf32=window.gpu[1] >= TF32)
    spent = window.device_ms(rows)
    gain = min(SAVED * spent, window.device_limit_ms)
    if window.share(spent) < HEAVY or not window.is_worth(gain):
        return
    name, major = window.gpu
    has_tf32 = major >= TF32
    yield from window.finding(
        "float32-products",
        gain,
        bound_ms=min(spent, window.device_limit_ms),
        title=(
            f"{_products(window, rows)} in float32 take {words.ms(spent)} in a {window.unit} while the tensor cores "
            "idle."
        ),
        estimate=(
            f"Half of the time of these kernels (a careful figure for {'TF32' if has_tf32 else 'float16'}), and no "
            "more "
            "than the host waits for the device."
        ),
        evidence=[
            f"{name} has tensor cores (compute capability {major}.x)",
            f"{window.count_per_step(rows)} kernels in a {window.unit} do not use them",
            *window.by_name(rows),
        ],
        advice=(
            "Let float32 products run as TF32: the tensor cores take them with the range of float32 and 10 bits of "
            "mantissa, which results of neural networks hardly ever show. Mixed precision goes further, and halves "
            "memory."
            if has_tf32
            else "Use automatic mixed precision: GEMMs run in float16 on the tensor cores. A gradient scaler keeps "
            "small gradients from vanishing."
            if window.is_training
            else "Use automatic mixed precision: GEMMs run in float16 on the tensor cores."
        ),
        code=window.code_for("tf32") if has_tf32 else window.code_for("float16") if window.is_training else _AUTOCAST,
    )


def _on_plain_cores(window: Evidence, *, has_tf32: bool) -> Ints:
    """Return the kernels that multiply float32 on plain cores though tensor cores could do it."""
    rows = window.work_named(device_work.FLOAT32_GEMM, Kind.KERNEL)
    rows = rows[~np.isin(rows, weight_bound(window))]
    if not has_tf32:
        return rows
    tensor = window.trace.searched(device_work.TF32, Kind.KERNEL)
    is_convolution, convolves = _is_convolution(window, rows), _is_convolution(window, tensor)
    if convolves.any() or _allows_tf32(window):
        rows, is_convolution = rows[~is_convolution], is_convolution[~is_convolution]
    return rows[is_convolution] if (~convolves).any() else rows


def _allows_tf32(window: Evidence) -> bool:
    """Whether a convolution was recorded with the argument that lets it run as TF32."""
    trace = window.trace
    rows = trace.named(Kind.OP, names=tuple(operators.ALLOW_TF32))
    given = {*zip(trace.name[rows].tolist(), trace.argument("inputs")[rows].tolist(), strict=True)}
    for name, text in given:
        values, place = trace.text(text), operators.ALLOW_TF32[trace.names[name]]
        if isinstance(values, list) and len(values) == place + 1 and values[place] == "True":
            return True
    return False


def _is_convolution(window: Evidence, rows: Ints) -> Flags:
    """Whether each kernel computes a convolution, which runs as a GEMM too."""
    trace = window.trace
    found: Flags = categories.of_work(trace)[np.searchsorted(trace.device_rows, rows)] == categories.CONVOLUTION
    return found


def _products(window: Evidence, rows: Ints) -> str:
    """What some kernels multiply for: convolutions are GEMMs as well."""
    share = window.device_ms(rows[_is_convolution(window, rows)]) / window.device_ms(rows)
    return "GEMMs" if share < _SOME else "Convolutions" if share > 1 - _SOME else "Convolutions and GEMMs"


def float64_products(window: Evidence) -> Iterator[Finding]:
    """GEMMs and convolutions of float64 tensors take 5% of the step or more.

    Source: `HEAVY`, `HALVED`; the types of inputs, which ``record_shapes`` records. Numbers (tensors without
    dimensions) do not count.

    Measured: on a CPU, see `HALVED`. On a device it was not measured, so the gain there is an upper bound.
    """
    rows = in_float64(window, window.named(operators.GEMMS, Kind.OP))
    if not len(rows):
        return
    spent, limit = window.cost(rows)
    gain = min(HALVED * spent, limit)
    if window.share(spent) < HEAVY or not window.is_worth(gain):
        return
    slow = len(window.named(operators.UNFOLDING, Kind.OP)) > 0
    yield from window.finding(
        "float64-products",
        gain,
        bound_ms=min(spent, limit),
        is_measured=not window.runs_on_device(rows),
        title=f"GEMMs and convolutions in float64 take {words.ms(spent)} in a {window.unit}.",
        estimate=f"{words.share(HALVED)} of their time: about what float32 was measured to save on a CPU.",
        evidence=[
            *window.by_name(window.outermost(rows)),
            *(["convolutions in float64 have no fast path here: they run as _slow_conv2d"] if slow else []),
            *window.by_line(window.outermost(rows)),
        ],
        advice=(
            "Somewhere a tensor is float64, usually because NumPy made it, and everything it touches becomes so. Cast "
            "data where it is loaded, and the model once, to float32; keep float64 only where a sum needs it."
        ),
        code="model = model.float()\nbatch = torch.as_tensor(array, dtype=torch.float32)",
    )


def unaligned_products(window: Evidence) -> Iterator[Finding]:
    """GEMMs on tensor cores whose rows do not begin at multiples of 16 bytes take 5% of the step or more.

    Not those of attention that is written out: the kernel that does it as a whole needs no padding. Not those that are
    bound by reading weights: padding adds to what they read.

    Source: `HEAVY`; kernels of CUTLASS, whose names say how many numbers they load at once (``align1``), and NVIDIA's
    "Matrix Multiplication Background User's Guide": GEMMs are fastest with dimensions that are multiples of 16
    bytes. The sizes are those of the operators that launched them, which ``record_shapes`` records.

    Measured: never; the gain is an upper bound.
    """
    rows = window.work_named(device_work.UNALIGNED, Kind.KERNEL)
    rows = rows[~np.isin(rows, attention.written_out(window)) & ~np.isin(rows, weight_bound(window))]
    spent = window.device_ms(rows)
    if not len(rows) or window.share(spent) < HEAVY:
        return
    sizes = _odd_sizes(window, rows)
    multiples = sorted({str(_multiple(window.trace.names[name])) for name in window.trace.name[rows].tolist()})
    yield from window.finding(
        "unaligned-products",
        min(spent, window.device_limit_ms),
        title=f"GEMMs of sizes that do not fit the tensor cores take {words.ms(spent)} in a {window.unit}.",
        estimate="Kernels that load 16 bytes at once are faster, at the price of a little padding.",
        evidence=[
            f"{window.count_per_step(rows)} kernels in a {window.unit} load fewer than 16 bytes at a time",
            *window.by_name(rows),
            *(sizes or [f"record with {window.option('record_shapes')} to see which sizes these are"]),
        ],
        advice=(
            f"Make the dimensions of these GEMMs multiples of {' or '.join(multiples)}, which is 16 bytes: the size "
            "of a vocabulary or of the classes, hidden sizes, numbers of features, lengths of sequences. Rows that are "
            "added for that are zeros that nobody reads. Sizes of a model are padded once, where it is built."
        ),
        code=f"size = -(-size // {multiples[0]}) * {multiples[0]}   # the next multiple",
    )


def _multiple(kernel: str) -> int:
    """How many numbers are 16 bytes, for a GEMM: of half precision 8, of TF32 4."""
    return 8 if re.search(device_work.HALF, kernel) else 4


def _odd_sizes(window: Evidence, rows: Ints) -> list[str]:
    """The sizes that do not fit, by operator, with what to pad them to."""
    trace = window.trace
    places = np.searchsorted(trace.device_rows, rows)
    owner, dims = device.owners(trace)[places], trace.argument("dims")
    padded: list[tuple[str, float]] = []
    for row, by, time in zip(rows.tolist(), owner.tolist(), window.lengths(rows), strict=True):
        shapes = trace.text(int(dims[by])) if by >= 0 else None
        multiple = _multiple(trace.names[trace.name[row]])
        odd = _not_multiples(shapes, multiple)
        if odd:
            pads = ", ".join(f"{size} to {-(-size // multiple) * multiple}" for size in odd)
            padded.append((f"{trace.names[trace.name[by]]} {written(shapes)}, pad {pads}", time))
    return most(padded)


def _not_multiples(shapes: object, multiple: int) -> list[int]:
    """The rows and columns of the matrices among some shapes that are no multiples."""
    sizes = {size for shape in matrices(shapes) for size in shape[-2:] if isinstance(size, int)}
    return sorted(size for size in sizes if size > 1 and size % multiple)


def weight_bound_products(window: Evidence) -> Iterator[Finding]:
    """GEMVs, and GEMMs with few rows, that are bound by reading their weights take 10% of the step or more.

    Source: `FAR_HEAVY`; operations and bytes by the recorded shapes (`perfhooks.trace.limits`) with the peaks of the
    device: reading takes longer than computing, most of it is one matrix, and the kernel reaches 30% of the limit or
    more. Without shapes, GEMVs by the names of their kernels. Batched products do not count: they have no weights.

    Measured: never; the gain is an upper bound.
    """
    rows = weight_bound(window)
    spent = window.device_ms(rows)
    if window.share(spent) < FAR_HEAVY:
        return
    places = np.searchsorted(window.trace.device_rows, rows)
    took, least = (rates.of_work(window.trace)[name][places] for name in ("least_ns", "least_ps"))
    known = took > 0
    shapes = by_shape(window, places[known], took[known], least[known] / 1000) if known.any() else []
    gain = min(spent, window.device_limit_ms)
    is_known = window.is_worth(gain)
    yield from window.finding(
        "weight-bound-products",
        gain if is_known else None,
        title=f"Products that are bound by reading weights take {words.ms(spent)} of a {window.unit}.",
        estimate=(
            "All of this time. With twice the rows, or half the bytes, it halves for each row."
            if is_known
            else "Not known: the host does not wait for the device, so another part may decide the time."
        ),
        evidence=[
            f"{window.count_per_step(rows)} kernels in a {window.unit} read a matrix for few rows",
            *([line for line, _ in shapes[:3]] or window.by_name(rows)),
        ],
        advice=(
            "Each of these products reads a whole matrix of weights for few rows, so the bandwidth of memory decides "
            "its time. Tensor cores and larger tiles do not help. Compute more rows at once, for example with a larger "
            "batch or several requests together. Or store the weights in fewer bits."
        ),
        code="quantize_(model, Int8WeightOnlyConfig())   # of torchao.quantization; or a larger batch",
    )


@cached_per_window
def weight_bound(window: Evidence) -> Ints:
    """Return the kernels of products that are bound by reading weights; slices."""
    trace, places = window.trace, window.work
    sums, owner = rates.of_work(trace), device.owners(trace)[places]
    took, least, in_memory = (sums[name][places] for name in ("least_ns", "least_ps", "memory_ns"))
    is_gemv = np.isin(trace.device_rows[places], window.work_named(device_work.GEMV, Kind.KERNEL))
    is_near = least >= 1000 * FAR * took
    chosen = np.where(took > 0, is_near & (in_memory > 0), is_gemv)
    chosen &= (categories.of_work(trace)[places] == categories.GEMMS) | is_gemv
    chosen &= ~np.isin(owner, trace.searched(operators.BATCHED_GEMMS, Kind.OP))
    texts = trace.argument("dims")[owner[chosen]]
    has_weights = {text: _has_weights(trace.text(text)) for text in set(texts.tolist())}
    chosen[chosen] = [has_weights[text] for text in texts.tolist()]
    found: Ints = trace.device_rows[places[chosen]]
    return found


def _has_weights(shapes: object) -> bool:
    """Whether one of some matrices has most of their elements; so it is without shapes."""
    sizes = [math.prod(size for size in shape if isinstance(size, int)) for shape in matrices(shapes)]
    return not sizes or max(sizes) > _WEIGHTS * sum(sizes)


def own_products(window: Evidence) -> Iterator[Finding]:
    """Products of matrices by kernels that somebody wrote take 10% of the step or more.

    Source: `FAR_HEAVY`; kernels that no operator of a library launched, by their names: plain ones, as of C and
    Triton, that no library has, see `_OF_LIBRARY`. What a graph replays is not looked at, as nobody knows whose it is.

    Measured: never; what a library needs for the same product is quickly found out.
    """
    trace = window.trace
    rows, launch = trace.device_rows[window.work], trace.launches[window.work]
    replays = trace.chosen(lambda name: runtime_calls.GRAPH.search(name) is not None, Kind.RUNTIME)
    # a function of autograd is an operator as well, with a name of no library
    of_libraries = trace.chosen(lambda name: "::" in name, Kind.OP)
    is_alone = ~np.isin(device.owners(trace)[window.work], of_libraries) & (launch >= 0) & ~np.isin(launch, replays)
    rows = rows[is_alone & (trace.kind[rows] == Kind.KERNEL)]
    own = {number for number in np.unique(trace.name[rows]).tolist() if _is_own_product(trace.names[number])}
    rows = rows[np.isin(trace.name[rows], list(own))]
    spent = window.device_ms(rows)
    if not len(trace.rows(Kind.OP)) or window.share(spent) < FAR_HEAVY:
        return
    yield from window.finding(
        "own-products",
        min(spent, window.device_limit_ms),
        title=f"Products of matrices by kernels of no library take {words.ms(spent)} of a {window.unit}.",
        estimate="What these kernels take; a library's take some of it.",
        evidence=[f"{window.count_per_step(rows)} kernels in a {window.unit}", *window.by_name(rows)],
        advice=(
            "No operator of a library launched these kernels, and no library that is known has such names: somebody "
            "wrote them. A library's products of matrices are hard to reach; simple kernels of one's own often have a "
            "tenth of their speed. Time torch.matmul on the same matrices beside them, and keep what is faster."
        ),
        code="c = torch.matmul(a, b)",
    )


def _is_own_product(name: str) -> bool:
    is_plain = _PLAIN.fullmatch(name) is not None and _OF_LIBRARY.search(name) is None
    return is_plain and work_kinds.of_kernel(name) == "gemms"
