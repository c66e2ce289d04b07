"""Arithmetic that is dearer than it need be: its precision, its kernels, its layout, what could be one kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings import attention
from perfhooks.analysis.findings.finding import BOUND, FAR_HEAVY, HEAVY
from perfhooks.core import words
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
    from perfhooks.trace.model import Column, Ints

UNFOLDED: Final = 0.25
"""Of the time of convolutions by unfolding, saved by oneDNN: measured with one thread, forward and backward, 14 and 21%
for filters of 3 x 3 on 8 images of 32 x 32, 36% in a small network, 58% on 2 images of 64 x 112 x 112."""
FUSABLE: Final = 0.2
"""Of the step, for chains that a compiler would fuse. Some are in every training; from a fifth on, reading and writing
the same tensors again and again is what the device does."""
CHAIN: Final = 2
"""Kernels in a row, at least: one alone has nothing to be fused with."""

_COMPILED: Final = rf"{work_kinds.TRITON}|{ranges.COMPILED}"
_FUSABLE_KINDS: Final = (categories.ELEMENTWISE, categories.REDUCTION, categories.COPIES)
_FUSABLE_OF_TORCH: Final = (categories.INDEXING, categories.QUANTISATION)
"""Those of other libraries, as FBGEMM's tables of embeddings, are large kernels that no compiler touches."""
FAR: Final = 0.3
"""Of its limit. GEMMs and copies of usual sizes reach 60 to 85% on an H100, and 40 to 60% on an MI300X, whose datasheet
counts a clock that it does not hold (TraceLens takes 708 of 1307 TFLOP/s for it)."""


def slow_convolution(window: Evidence) -> Iterator[Finding]:
    """Convolutions by unfolding (``_slow_conv2d``, ``thnn_conv2d``, ...) take 5% of the step or more, oneDNN being off.

    Source: `HEAVY`, `UNFOLDED`; what the training's torch said of the library (`Circumstances`). While it is on, torch
    chooses this path itself where it is the faster one, as for filters of 1 x 1 with one thread and a batch below 16;
    so where nothing is known, one convolution in the library shows that it is on. In float64 a CPU has nothing else,
    which is `float64_products`.

    Measured: on a CPU, see `UNFOLDED`. On a device it was not measured, so the gain there is an upper bound.
    """
    rows = window.named(operators.UNFOLDING, Kind.OP)
    rows = rows[~np.isin(rows, in_float64(window, rows))]
    if not len(rows):
        return
    on_device = window.runs_on_device(rows)
    spent, limit = window.cost(rows)
    gain = min(UNFOLDED * spent, limit)
    if window.share(spent) < HEAVY or not window.is_worth(gain) or _is_library_on(window, on_device=on_device):
        return
    library = "cuDNN" if on_device else "oneDNN"
    backend = "cudnn" if on_device else "mkldnn"
    yield from window.finding(
        "slow-convolution",
        gain,
        bound_ms=min(spent, limit),
        is_measured=not on_device,
        title=f"Convolutions take torch's slow path, for {words.ms(spent)} in a {window.unit}: {library} is not used.",
        estimate=(
            "The time of this work."
            if on_device
            else f"{words.share(UNFOLDED)} of the time of these operators: about what oneDNN was measured to save "
            "on a CPU."
        ),
        evidence=[*window.by_name(window.outermost(rows)), *window.by_line(window.outermost(rows))],
        advice=(
            f"torch runs these convolutions by unfolding the image and multiplying matrices because {library} is "
            "switched off or is not there. Look for a line or an environment that switches it off, ask the library "
            "whether it is available, and install a build of torch that has it."
        ),
        code=f"torch.backends.{backend}.enabled = True\nprint(torch.backends.{backend}.is_available())",
    )


def _is_library_on(window: Evidence, *, on_device: bool) -> bool:
    said = window.capture.circumstances.cudnn if on_device else window.capture.circumstances.onednn
    return len(window.named(operators.LIBRARY_CONVOLUTIONS, Kind.OP)) > 0 if said is None else said


def layout_conversions(window: Evidence) -> Iterator[Finding]:
    """Kernels that turn images between NCHW and NHWC take 1% of the step or more.

    Source: `evidence.NOTABLE`; the kernels of cuDNN and MIOpen, by their names. Tensor cores want channels last.

    Measured: never; the gain is an upper bound.
    """
    rows = window.work_named(device_work.LAYOUT, Kind.KERNEL)
    spent = window.device_ms(rows)
    gain = min(spent, window.device_limit_ms)
    if not window.is_worth(gain):
        return
    yield from window.finding(
        "layout-conversions",
        gain,
        title=f"Images are turned between two memory layouts for {words.ms(spent)} in a {window.unit}.",
        estimate="The whole time of these kernels, and no more than the host waits for the device.",
        evidence=[f"{window.count_per_step(rows)} kernels in a {window.unit} only convert", *window.by_name(rows)],
        advice=(
            "The convolutions compute with channels last, but the tensors lie with channels first, so the library "
            "turns them before and after. Keep model and images in channels-last memory; shapes and results stay the "
            "same. On ROCm set PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment as well."
        ),
        code=(
            "model = model.to(memory_format=torch.channels_last)\nimages = images.to(memory_format=torch.channels_last)"
        ),
    )


def written(shapes: object) -> str:
    """Write the shapes of matrices for people."""
    return " and ".join(" x ".join(map(str, shape)) for shape in matrices(shapes))


def matrices(shapes: object) -> list[list[object]]:
    """Return the shapes with two dimensions or more."""
    return [shape for shape in shapes if isinstance(shape, list) and len(shape) > 1] if isinstance(shapes, list) else []


def in_float64(window: Evidence, rows: Ints) -> Ints:
    """The operators among some slices that take a tensor of float64 with any dimensions."""
    trace = window.trace
    types, dims = trace.argument("types")[rows], trace.argument("dims")[rows]
    pairs = set(zip(types.tolist(), dims.tolist(), strict=True))
    doubles = {pair for pair in pairs if _has_float64(trace.text(pair[0]), trace.text(pair[1]))}
    chosen = [pair in doubles for pair in zip(types.tolist(), dims.tolist(), strict=True)]
    return rows[np.array(chosen, np.bool_)]


def _has_float64(types: object, dims: object) -> bool:
    if not isinstance(types, list) or not isinstance(dims, list):
        return False
    return any(kind == "double" and bool(shape) for kind, shape in zip(types, dims, strict=False))


def kernels_below_limit(window: Evidence) -> Iterator[Finding]:
    """Kernels that reach less than 30% of what the device can do take 10% of the step or more.

    Not those of attention that is written out, nor kernels below 10 us: a good part of those is what any kernel takes.

    Source: `FAR`, `FAR_HEAVY`; operations and bytes by the recorded shapes (`perfhooks.trace.limits`), through the
    operators that launched them, and the peaks of the device.

    Measured: never; what kernels there are for such shapes is worth finding out.
    """
    trace, places = window.trace, window.work
    sums = rates.of_work(trace)
    took, least = sums["least_ns"][places], sums["least_ps"][places] / 1000
    far = (took >= rates.SHORT_NS) & (least < FAR * took)
    places, took, least = places[far], took[far], least[far]
    rows = trace.device_rows[places]
    if window.share(window.device_ms(rows)) < FAR_HEAVY:
        return
    if len(other := np.flatnonzero(~np.isin(rows, attention.written_out(window)))) < len(rows):
        places, took, least, rows = places[other], took[other], least[other], rows[other]
    spent = window.device_ms(rows)
    if window.share(spent) < FAR_HEAVY:
        return
    name, _ = peaks.device(trace)
    shapes = by_shape(window, places, took, least)
    yield from window.finding(
        "kernels-below-limit",
        min(spent * float(1 - least.sum() / took.sum()), window.device_limit_ms),
        title=f"Kernels that reach {words.share(float(least.sum() / took.sum()))} of what the device can do take "
        f"{words.ms(spent)} of a {window.unit}.",
        estimate="What they take beyond the time that their operations or bytes need at least.",
        evidence=[
            f"{window.count_per_step(rows)} kernels in a {window.unit}, of {words.count(len(shapes), 'shape')}",
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


def by_shape(window: Evidence, places: Ints, took: Ints, least: Column) -> list[tuple[str, float]]:
    """The operators and shapes that some work was launched with, most time first, and their milliseconds a step."""
    trace = window.trace
    owner = device.owners(trace)[places]
    dims = trace.argument("dims")[owner]
    alike = groups(trace.name[owner], dims - dims.min(initial=0))
    total, needed = (np.bincount(alike.of, weights=each) for each in (took, least))
    found = []
    for group in np.argsort(-total, kind="stable").tolist():
        row = int(owner[alike.first[group]])
        count = int((alike.of == group).sum())
        time = float(total[group]) * intervals.MS / max(window.count, 1)
        shown = f"{trace.names[trace.name[row]]} {written(trace.text(int(dims[alike.first[group]])))}".strip()
        reached = words.share(float(needed[group] / total[group]))
        found.append(
            (f"{shown}: {count / max(window.count, 1):.3g} times, {words.ms(time)}, {reached} of the limit", time)
        )
    return found


def fusable_chains(window: Evidence) -> Iterator[Finding]:
    """Elementwise kernels, reductions and copies in a row take 20% of a step that the device decides, or more.

    Source: `FUSABLE`, `BOUND`, `CHAIN`; the categories of `perfhooks.trace.tables.categories`, in the order of each
    stream. What the optimizer launches does not count. Silent where compiled code runs. One kernel for a chain reads
    and writes no less than the longest of it did, so that one stays.

    Measured: never on a device; the gain is an upper bound.
    """
    if window.share(window.mean("device_busy_ms")) < BOUND or _is_compiled(window):
        return
    rows, chain = _chains(window)
    spent = window.device_ms(rows)
    if window.share(spent) < FUSABLE:
        return
    stays = np.zeros(int(chain.max()) + 1)
    np.maximum.at(stays, chain, window.lengths(rows))
    kinds = categories.of_work(window.trace)[np.searchsorted(window.trace.device_rows, rows)]
    shares = [
        f"{categories.CATEGORIES[kind]} {words.ms(window.device_ms(rows[kinds == kind]))}"
        for kind in (*_FUSABLE_KINDS, *_FUSABLE_OF_TORCH)
        if (kinds == kind).any()
    ]
    yield from window.finding(
        "fusable-chains",
        min(spent - float(stays.sum()), window.device_limit_ms),
        title=f"Chains of small kernels that a compiler would fuse take {words.ms(spent)} of a {window.unit}.",
        estimate="All of each chain but its longest kernel, as one kernel has to read and write as well.",
        evidence=[
            f"{window.count_per_step(rows)} such kernels in a {window.unit}: {', '.join(shares)}",
            f"the device works for {words.share(window.share(window.mean('device_busy_ms')))} of the {window.unit}",
            *window.by_name(rows),
        ],
        advice=(
            "Each of these kernels reads its tensors from memory, does little with them, and writes them back for the "
            "next one. torch.compile makes one kernel of such a chain. By hand, use functions that do several things "
            "at once, for example a fused norm, or an activation with its bias."
        ),
        code=window.code_for("compile"),
    )


def _is_compiled(window: Evidence) -> bool:
    return (
        len(window.named(_COMPILED, Kind.OP, Kind.ANNOTATION)) > 0 or len(window.work_named(_COMPILED, Kind.KERNEL)) > 0
    )


def _chains(window: Evidence) -> tuple[Ints, Ints]:
    """The kernels of the steps that stand next to others of the kind on their stream, slices; and the chain of each."""
    trace = window.trace
    work = trace.device_rows  # by stream and start
    kinds = categories.of_work(trace)
    own = np.isin(work, window.work_named(device_work.OF_TORCH, Kind.KERNEL)) & np.isin(kinds, _FUSABLE_OF_TORCH)
    fusable = (np.isin(kinds, _FUSABLE_KINDS) | own) & (trace.kind[work] == Kind.KERNEL)
    fusable &= ~np.isin(work, window.work_named(device_work.LAYOUT, Kind.KERNEL))  # libraries make these
    stream = trace.thread[work]
    edges = np.flatnonzero(np.append(True, (np.diff(fusable) != 0) | (np.diff(stream) != 0)))
    length = np.diff(np.append(edges, len(work)))
    is_chain = fusable & np.repeat(length >= CHAIN, length)
    places = window.work[is_chain[window.work]]
    return work[places], np.repeat(np.arange(len(length)), length)[places]
