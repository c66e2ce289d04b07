"""Arithmetic that is dearer than it need be: its precision, its kernels, its layout, what could be one kernel."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks import words
from perfhooks.findings import attention
from perfhooks.findings.evidence import most
from perfhooks.trace.kinds import Kind
from perfhooks.trace.limits import peaks, rates
from perfhooks.trace.names import device_work, operators, ranges, runtime_calls, work_kinds
from perfhooks.trace.nesting import device, intervals
from perfhooks.trace.nesting.grouping import groups
from perfhooks.trace.tables import categories

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Column, Ints

SAVED: Final = 0.5
"""Of the time of GEMMs that move to tensor cores, the share that the advice is about. A careful figure: on an A100
TF32 has eight times the peak of float32; memory takes its share."""
HALVED: Final = 0.5
"""Of the time of GEMMs in float64, saved by float32 on a CPU, about the middle: with one thread, forward, backward and
update, 35% in layers of 64 (where GEMMs were a fifth of the step), 56% in layers of 512 and 1,024, 99% in convolutions
(float64 has no fast path) and all of it in an LSTM, whose other operators became faster as well."""
UNFOLDED: Final = 0.25
"""Of the time of convolutions by unfolding, saved by oneDNN: measured with one thread, forward and backward, 14 and 21%
for filters of 3 x 3 on 8 images of 32 x 32, 36% in a small network, 58% on 2 images of 64 x 112 x 112."""
HEAVY: Final = 0.05
"""Of the step, for operators that are to be moved: below it, half of their time is within what a step varies by."""
FUSABLE: Final = 0.2
"""Of the step, for chains that a compiler would fuse. Some are in every training; from a fifth on, reading and writing
the same tensors again and again is what the device does."""
BOUND: Final = 0.8
"""Of the step, for which the device works: then it is the device that decides how long a step takes."""
CHAIN: Final = 2
"""Kernels in a row, at least: one alone has nothing to be fused with."""
TENSOR_CORES: Final = 7
"""The compute capability from which NVIDIA's devices have tensor cores (Volta)."""
TF32: Final = 8
"""The compute capability from which tensor cores take float32 as TF32 (Ampere)."""

_SOME: Final = 0.1
"""Of the time of products: a kind of them that takes less is not named."""
_COMPILED: Final = rf"{work_kinds.TRITON}|{ranges.COMPILED}"
_FUSABLE_KINDS: Final = (categories.ELEMENTWISE, categories.REDUCTION, categories.COPIES)
_FUSABLE_OF_TORCH: Final = (categories.INDEXING, categories.QUANTISATION)
"""Those of other libraries, as FBGEMM's tables of embeddings, are large kernels that no compiler touches."""
FAR: Final = 0.3
"""Of its limit. GEMMs and copies of usual sizes reach 60 to 85% on an H100, and 40 to 60% on an MI300X, whose datasheet
counts a clock that it does not hold (TraceLens takes 708 of 1307 TFLOP/s for it)."""
FAR_HEAVY: Final = 0.1
"""Of the step, for kernels that far from it, and for those that somebody wrote."""
_PLAIN: Final = re.compile(r"\w+(?:\([\w\s*,&]*\))?")
"""A function in no namespace and from no template, with its arguments where it is C."""
_OF_LIBRARY: Final = re.compile(
    rf"{work_kinds.TRITON}|nvjet|cutlass|cublas|cudnn|cask|xmma|magma|cijk|rocblas|hipblas|miopen|mkldnn|"
    r"volta|turing|ampere|maxwell|hopper|blackwell|sm\d\d|gem[mv]\w*\d+x\d+|split_?k|marlin|machete",
    re.IGNORECASE,
)
"""Libraries have plain names, too: generated kernels have the architecture and their tiles in theirs."""


def float32_products(seen: Evidence) -> Iterator[Finding]:
    """Kernels that multiply float32 on plain cores take 5% of the step or more, on a device that has tensor cores.

    Source: `HEAVY`, `SAVED`; the kernels by their names, the device by its compute capability. Devices of other makers
    than NVIDIA tell neither.

    Measured: never; the gain is an upper bound.
    """
    if seen.gpu is None or seen.gpu[1] < TENSOR_CORES:
        return
    rows = seen.work_named(device_work.FLOAT32_GEMM, Kind.KERNEL)
    spent = seen.device_ms(rows)
    gain = min(SAVED * spent, seen.device_limit_ms)
    if seen.share(spent) < HEAVY or not seen.is_worth(gain):
        return
    name, major = seen.gpu
    has_tf32 = major >= TF32
    yield from seen.finding(
        "float32-products",
        gain,
        bound_ms=min(spent, seen.device_limit_ms),
        title=(
            f"{_products(seen, rows)} in float32 take {words.ms(spent)} in a {seen.unit} while the tensor cores idle."
        ),
        estimate=(
            f"Half of the time of these kernels (a careful figure for {'TF32' if has_tf32 else 'float16'}), and no "
            "more "
            "than the host waits for the device."
        ),
        evidence=[
            f"{name} has tensor cores (compute capability {major}.x)",
            f"{seen.often(rows)} kernels in a {seen.unit} do not use them",
            *seen.by_name(rows),
        ],
        advice=(
            "Let float32 products run as TF32: the tensor cores take them with the range of float32 and 10 bits of "
            "mantissa, which training hardly ever notices. Mixed precision goes further, and halves memory."
            if has_tf32
            else "Train with automatic mixed precision: GEMMs run in float16 on the tensor cores, and a gradient "
            "scaler keeps small gradients from vanishing."
        ),
        code=seen.said("tf32") if has_tf32 else seen.said("float16"),
    )


def _products(seen: Evidence, rows: Ints) -> str:
    """What some kernels multiply for: convolutions are GEMMs as well."""
    trace = seen.trace
    convolve = categories.of_work(trace)[np.searchsorted(trace.device_rows, rows)] == categories.CONVOLUTION
    share = seen.device_ms(rows[convolve]) / seen.device_ms(rows)
    return "GEMMs" if share < _SOME else "Convolutions" if share > 1 - _SOME else "Convolutions and GEMMs"


def float64_products(seen: Evidence) -> Iterator[Finding]:
    """GEMMs and convolutions of float64 tensors take 5% of the step or more.

    Source: `HEAVY`, `HALVED`; the types of inputs, which ``record_shapes`` records. Numbers (tensors without
    dimensions) do not count.

    Measured: on a CPU, see `HALVED`. On a device it was not measured, so the gain there is an upper bound.
    """
    rows = _in_float64(seen, seen.named(operators.GEMMS, Kind.OP))
    if not len(rows):
        return
    spent, limit = seen.cost(rows)
    gain = min(HALVED * spent, limit)
    if seen.share(spent) < HEAVY or not seen.is_worth(gain):
        return
    slow = len(seen.named(operators.UNFOLDING, Kind.OP)) > 0
    yield from seen.finding(
        "float64-products",
        gain,
        bound_ms=min(spent, limit),
        is_measured=not len(seen.launched_by(rows)),
        title=f"GEMMs and convolutions in float64 take {words.ms(spent)} in a {seen.unit}.",
        estimate=f"{words.share(HALVED)} of their time: about what float32 was measured to save on a CPU.",
        evidence=[
            *seen.by_name(seen.outermost(rows)),
            *(["convolutions in float64 have no fast path here: they run as _slow_conv2d"] if slow else []),
            *seen.by_line(seen.outermost(rows)),
        ],
        advice=(
            "Somewhere a tensor is float64, usually because NumPy made it, and everything it touches becomes so. Cast "
            "data where it is loaded, and the model once, to float32; keep float64 only where a sum needs it."
        ),
        code="model = model.float()\nbatch = torch.as_tensor(array, dtype=torch.float32)",
    )


def slow_convolution(seen: Evidence) -> Iterator[Finding]:
    """Convolutions by unfolding (``_slow_conv2d``, ``thnn_conv2d``, ...) take 5% of the step or more, oneDNN being off.

    Source: `HEAVY`, `UNFOLDED`; what the training's torch said of the library (`Circumstances`). While it is on, torch
    chooses this path itself where it is the faster one, as for filters of 1 x 1 with one thread and a batch below 16;
    so where nothing is known, one convolution in the library shows that it is on. In float64 a CPU has nothing else,
    which is `float64_products`.

    Measured: on a CPU, see `UNFOLDED`. On a device it was not measured, so the gain there is an upper bound.
    """
    rows = seen.named(operators.UNFOLDING, Kind.OP)
    rows = rows[~np.isin(rows, _in_float64(seen, rows))]
    if not len(rows):
        return
    on_device = len(seen.launched_by(rows)) > 0
    spent, limit = seen.cost(rows)
    gain = min(UNFOLDED * spent, limit)
    if seen.share(spent) < HEAVY or not seen.is_worth(gain) or _is_library_on(seen, on_device=on_device):
        return
    library = "cuDNN" if on_device else "oneDNN"
    backend = "cudnn" if on_device else "mkldnn"
    yield from seen.finding(
        "slow-convolution",
        gain,
        bound_ms=min(spent, limit),
        is_measured=not on_device,
        title=f"Convolutions take torch's slow path, for {words.ms(spent)} in a {seen.unit}: {library} is not used.",
        estimate=(
            "The time of this work."
            if on_device
            else f"{words.share(UNFOLDED)} of the time of these operators: about what oneDNN was measured to save "
            "on a CPU."
        ),
        evidence=[*seen.by_name(seen.outermost(rows)), *seen.by_line(seen.outermost(rows))],
        advice=(
            f"torch runs these convolutions by unfolding the image and multiplying matrices because {library} is "
            "switched off or is not there. Look for a line or an environment that switches it off, ask the library "
            "whether it is available, and install a build of torch that has it."
        ),
        code=f"torch.backends.{backend}.enabled = True\nprint(torch.backends.{backend}.is_available())",
    )


def _is_library_on(seen: Evidence, *, on_device: bool) -> bool:
    said = seen.capture.circumstances.cudnn if on_device else seen.capture.circumstances.onednn
    return len(seen.named(operators.LIBRARY_CONVOLUTIONS, Kind.OP)) > 0 if said is None else said


def layout_conversions(seen: Evidence) -> Iterator[Finding]:
    """Kernels that turn images between NCHW and NHWC take 1% of the step or more.

    Source: `evidence.NOTABLE`; the kernels of cuDNN and MIOpen, by their names. Tensor cores want channels last.

    Measured: never; the gain is an upper bound.
    """
    rows = seen.work_named(device_work.LAYOUT, Kind.KERNEL)
    spent = seen.device_ms(rows)
    gain = min(spent, seen.device_limit_ms)
    if not seen.is_worth(gain):
        return
    yield from seen.finding(
        "layout-conversions",
        gain,
        title=f"Images are turned between two memory layouts for {words.ms(spent)} in a {seen.unit}.",
        estimate="The whole time of these kernels, and no more than the host waits for the device.",
        evidence=[f"{seen.often(rows)} kernels in a {seen.unit} only convert", *seen.by_name(rows)],
        advice=(
            "The convolutions compute with channels last, but the tensors lie with channels first, so the library "
            "turns them before and after. Keep model and images in channels-last memory; shapes and results stay the "
            "same. On ROCm set PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment as well."
        ),
        code=(
            "model = model.to(memory_format=torch.channels_last)\nimages = images.to(memory_format=torch.channels_last)"
        ),
    )


def unaligned_products(seen: Evidence) -> Iterator[Finding]:
    """GEMMs on tensor cores whose rows do not begin at multiples of 16 bytes take 5% of the step or more.

    Not those of attention that is written out: the kernel that does it as a whole needs no padding.

    Source: `HEAVY`; kernels of CUTLASS, whose names say how many numbers they load at once (``align1``), and NVIDIA's
    "Matrix Multiplication Background User's Guide": GEMMs are fastest with dimensions that are multiples of 16
    bytes. The sizes are those of the operators that launched them, which ``record_shapes`` records.

    Measured: never; the gain is an upper bound.
    """
    rows = seen.work_named(device_work.UNALIGNED, Kind.KERNEL)
    rows = rows[~np.isin(rows, attention.written_out(seen))] if len(rows) else rows
    spent = seen.device_ms(rows)
    if not len(rows) or seen.share(spent) < HEAVY:
        return
    sizes = _odd_sizes(seen, rows)
    multiples = sorted({str(_multiple(seen.trace.names[name])) for name in seen.trace.name[rows].tolist()})
    yield from seen.finding(
        "unaligned-products",
        min(spent, seen.device_limit_ms),
        title=f"GEMMs of sizes that do not fit the tensor cores take {words.ms(spent)} in a {seen.unit}.",
        estimate="Kernels that load 16 bytes at once are faster, at the price of a little padding.",
        evidence=[
            f"{seen.often(rows)} kernels in a {seen.unit} load fewer than 16 bytes at a time",
            *seen.by_name(rows),
            *(sizes or [f"record with {seen.option('record_shapes')} to see which sizes these are"]),
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


def _odd_sizes(seen: Evidence, rows: Ints) -> list[str]:
    """The sizes that do not fit, by operator, with what to pad them to."""
    trace = seen.trace
    places = np.searchsorted(trace.device_rows, rows)
    owner, dims = device.owners(trace)[places], trace.argument("dims")
    padded: list[tuple[str, float]] = []
    for row, by, time in zip(rows.tolist(), owner.tolist(), seen.lengths(rows), strict=True):
        shapes = trace.text(int(dims[by])) if by >= 0 else None
        multiple = _multiple(trace.names[trace.name[row]])
        odd = _not_multiples(shapes, multiple)
        if odd:
            pads = ", ".join(f"{size} to {-(-size // multiple) * multiple}" for size in odd)
            padded.append((f"{trace.names[trace.name[by]]} {_written(shapes)}, pad {pads}", time))
    return most(padded)


def _not_multiples(shapes: object, multiple: int) -> list[int]:
    """The rows and columns of the matrices among some shapes that are no multiples."""
    sizes = {size for shape in _matrices(shapes) for size in shape[-2:] if isinstance(size, int)}
    return sorted(size for size in sizes if size > 1 and size % multiple)


def _written(shapes: object) -> str:
    return " and ".join(" x ".join(map(str, shape)) for shape in _matrices(shapes))


def _matrices(shapes: object) -> list[list[object]]:
    return [shape for shape in shapes if isinstance(shape, list) and len(shape) > 1] if isinstance(shapes, list) else []


def _in_float64(seen: Evidence, rows: Ints) -> Ints:
    """The operators among some slices that take a tensor of float64 with any dimensions."""
    trace = seen.trace
    types, dims = trace.argument("types")[rows], trace.argument("dims")[rows]
    pairs = set(zip(types.tolist(), dims.tolist(), strict=True))
    doubles = {pair for pair in pairs if _has_float64(trace.text(pair[0]), trace.text(pair[1]))}
    chosen = [pair in doubles for pair in zip(types.tolist(), dims.tolist(), strict=True)]
    return rows[np.array(chosen, np.bool_)]


def _has_float64(types: object, dims: object) -> bool:
    if not isinstance(types, list) or not isinstance(dims, list):
        return False
    return any(kind == "double" and bool(shape) for kind, shape in zip(types, dims, strict=False))


def kernels_below_limit(seen: Evidence) -> Iterator[Finding]:
    """Kernels that reach less than 30% of what the device can do take 10% of the step or more.

    Not those of attention that is written out, nor kernels below 10 us: a good part of those is what any kernel takes.

    Source: `FAR`, `FAR_HEAVY`; operations and bytes by the recorded shapes (`perfhooks.trace.limits`), through the
    operators that launched them, and the peaks of the device.

    Measured: never; what kernels there are for such shapes is worth finding out.
    """
    trace, places = seen.trace, seen.work
    sums = rates.of_work(trace)
    took, least = sums["least_ns"][places], sums["least_ps"][places] / 1000
    far = (took >= rates.SHORT_NS) & (least < FAR * took)
    places, took, least = places[far], took[far], least[far]
    rows = trace.device_rows[places]
    if seen.share(seen.device_ms(rows)) < FAR_HEAVY:
        return
    if len(other := np.flatnonzero(~np.isin(rows, attention.written_out(seen)))) < len(rows):
        places, took, least, rows = places[other], took[other], least[other], rows[other]
    spent = seen.device_ms(rows)
    if seen.share(spent) < FAR_HEAVY:
        return
    name, _ = peaks.device(trace)
    shapes = _by_shape(seen, places, took, least)
    yield from seen.finding(
        "kernels-below-limit",
        min(spent * float(1 - least.sum() / took.sum()), seen.device_limit_ms),
        title=f"Kernels that reach {words.share(float(least.sum() / took.sum()))} of what the device can do take "
        f"{words.ms(spent)} of a {seen.unit}.",
        estimate="What they take beyond the time that their operations or bytes need at least.",
        evidence=[
            f"{seen.often(rows)} kernels in a {seen.unit}, of {words.count(len(shapes), 'shape')}",
            *[line for line, _ in shapes[:3]],
            *([f"limits of {name}: {known.source}"] if (known := peaks.of_trace(trace)) else []),
        ],
        advice=(
            "These kernels are long enough to be fast, and are not: another kernel for the same work may be. Sizes "
            "that are no multiples of 16 bytes, tensors that are not contiguous, few rows for many columns, and a type "
            "or layout for which the library has no fast kernel are the usual reasons. Try other sizes, contiguous "
            "tensors, another backend (of attention, of GEMMs) or a newer library; perfhooks try runs these operators "
            "again, padded, in other types and other layouts, where they were recorded."
        ),
        code="perfhooks try perf/latest",
    )


def _by_shape(seen: Evidence, places: Ints, took: Ints, least: Column) -> list[tuple[str, float]]:
    """The operators and shapes that some work was launched with, most time first, and their milliseconds a step."""
    trace = seen.trace
    owner = device.owners(trace)[places]
    dims = trace.argument("dims")[owner]
    alike = groups(trace.name[owner], dims - dims.min(initial=0))
    total, needed = (np.bincount(alike.of, weights=each) for each in (took, least))
    found = []
    for group in np.argsort(-total, kind="stable").tolist():
        row = int(owner[alike.first[group]])
        count = int((alike.of == group).sum())
        time = float(total[group]) * intervals.MS / max(seen.count, 1)
        shown = f"{trace.names[trace.name[row]]} {_written(trace.text(int(dims[alike.first[group]])))}".strip()
        reached = words.share(float(needed[group] / total[group]))
        found.append(
            (f"{shown}: {count / max(seen.count, 1):.3g} times, {words.ms(time)}, {reached} of the limit", time)
        )
    return found


def own_products(seen: Evidence) -> Iterator[Finding]:
    """Products of matrices by kernels that somebody wrote take 10% of the step or more.

    Source: `FAR_HEAVY`; kernels that no operator of a library launched, by their names: plain ones, as of C and
    Triton, that no library has, see `_OF_LIBRARY`. What a graph replays is not looked at, as nobody knows whose it is.

    Measured: never; what a library needs for the same product is quickly found out.
    """
    trace = seen.trace
    rows, launch = trace.device_rows[seen.work], trace.launches[seen.work]
    replays = trace.chosen(lambda name: runtime_calls.GRAPH.search(name) is not None, Kind.RUNTIME)
    # a function of autograd is an operator as well, with a name of no library
    of_libraries = trace.chosen(lambda name: "::" in name, Kind.OP)
    is_alone = ~np.isin(device.owners(trace)[seen.work], of_libraries) & (launch >= 0) & ~np.isin(launch, replays)
    rows = rows[is_alone & (trace.kind[rows] == Kind.KERNEL)]
    own = {number for number in np.unique(trace.name[rows]).tolist() if _is_own_product(trace.names[number])}
    rows = rows[np.isin(trace.name[rows], list(own))]
    spent = seen.device_ms(rows)
    if not len(trace.rows(Kind.OP)) or seen.share(spent) < FAR_HEAVY:
        return
    yield from seen.finding(
        "own-products",
        min(spent, seen.device_limit_ms),
        title=f"Products of matrices by kernels of no library take {words.ms(spent)} of a {seen.unit}.",
        estimate="What these kernels take; a library's take some of it.",
        evidence=[f"{seen.often(rows)} kernels in a {seen.unit}", *seen.by_name(rows)],
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


def fusable_chains(seen: Evidence) -> Iterator[Finding]:
    """Elementwise kernels, reductions and copies in a row take 20% of a step that the device decides, or more.

    Source: `FUSABLE`, `BOUND`, `CHAIN`; the categories of `perfhooks.trace.tables.categories`, in the order of each
    stream. What the optimizer launches does not count. Silent where compiled code runs. One kernel for a chain reads
    and writes no less than the longest of it did, so that one stays.

    Measured: never on a device; the gain is an upper bound.
    """
    if seen.share(seen.mean("device_busy_ms")) < BOUND or _is_compiled(seen):
        return
    rows, chain = _chains(seen)
    spent = seen.device_ms(rows)
    if seen.share(spent) < FUSABLE:
        return
    stays = np.zeros(int(chain.max()) + 1)
    np.maximum.at(stays, chain, seen.lengths(rows))
    kinds = categories.of_work(seen.trace)[np.searchsorted(seen.trace.device_rows, rows)]
    shares = [
        f"{categories.CATEGORIES[kind]} {words.ms(seen.device_ms(rows[kinds == kind]))}"
        for kind in (*_FUSABLE_KINDS, *_FUSABLE_OF_TORCH)
        if (kinds == kind).any()
    ]
    yield from seen.finding(
        "fusable-chains",
        min(spent - float(stays.sum()), seen.device_limit_ms),
        title=f"Chains of small kernels that a compiler would fuse take {words.ms(spent)} of a {seen.unit}.",
        estimate="All of each chain but its longest kernel, as one kernel has to read and write as well.",
        evidence=[
            f"{seen.often(rows)} such kernels in a {seen.unit}: {', '.join(shares)}",
            f"the device works for {words.share(seen.share(seen.mean('device_busy_ms')))} of the {seen.unit}",
            *seen.by_name(rows),
        ],
        advice=(
            "Each of these kernels reads its tensors from memory, does little with them, and writes them back for the "
            "next one. torch.compile makes one kernel of such a chain. By hand the same is had from functions that do "
            "several things at once: a loss from logits, a fused norm, an activation with its bias."
        ),
        code=seen.said("compile"),
    )


def _is_compiled(seen: Evidence) -> bool:
    return len(seen.named(_COMPILED, Kind.OP, Kind.ANNOTATION)) > 0 or len(seen.work_named(_COMPILED, Kind.KERNEL)) > 0


def _chains(seen: Evidence) -> tuple[Ints, Ints]:
    """The kernels of the steps that stand next to others of the kind on their stream, slices; and the chain of each."""
    trace = seen.trace
    work = trace.device_rows  # by stream and start
    kinds = categories.of_work(trace)
    own = np.isin(work, seen.work_named(device_work.OF_TORCH, Kind.KERNEL)) & np.isin(kinds, _FUSABLE_OF_TORCH)
    fusable = (np.isin(kinds, _FUSABLE_KINDS) | own) & (trace.kind[work] == Kind.KERNEL)
    fusable &= ~np.isin(work, seen.work_named(device_work.LAYOUT, Kind.KERNEL))  # libraries make these
    stream = trace.thread[work]
    edges = np.flatnonzero(np.append(True, (np.diff(fusable) != 0) | (np.diff(stream) != 0)))
    length = np.diff(np.append(edges, len(work)))
    is_chain = fusable & np.repeat(length >= CHAIN, length)
    places = seen.work[is_chain[seen.work]]
    return work[places], np.repeat(np.arange(len(length)), length)[places]
