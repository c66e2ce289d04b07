"""Work of many kernels that one could do: attention written out, chains of small kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.findings.evidence import ms
from perfhooks.findings.kernels import LAYOUT
from perfhooks.trace import autograd, categories, device, intervals
from perfhooks.trace.kinds import Kind
from perfhooks.trace.steps import step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.intervals import Flags
    from perfhooks.trace.model import Ints

WRITTEN_OUT: Final = 0.05
"""Of the step, for attention that is written out: below it, what is saved is within what a step varies by."""
FUSABLE: Final = 0.2
"""Of the step, for chains that a compiler would fuse. Some are in every training; from a fifth on, reading and writing
the same tensors again and again is what the device does."""
BOUND: Final = 0.8
"""Of the step, for which the device works: then it is the device that decides how long a step takes."""
CHAIN: Final = 2
"""Kernels in a row, at least: one alone has nothing to be fused with."""

_BATCHED: Final = r"^aten::(?:bmm|baddbmm)(?:\.out)?$"
_SOFTMAX: Final = r"^aten::_softmax$"
_BACKWARD: Final = r"^aten::_softmax_backward_data$"
_OTHER_PRODUCTS: Final = r"^aten::(?:mm|addmm|_scaled_mm|convolution|convolution_backward|_flash_attention\w*)$"
_PRODUCT, _FORWARD, _GRADIENT = range(3)
"""The places of the first three of these patterns."""
_FUSED: Final = r"attention"
_COMPILED: Final = r"^triton_|CompiledFxGraph|^Torch-Compiled Region"
_KINDS: Final = (categories.ELEMENTWISE, categories.REDUCTION, categories.COPIES)

_SDPA: Final = """\
out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)   # or is_causal=True
# not: torch.softmax(q @ k.transpose(-2, -1) / scale + mask, -1) @ v"""


def written_out_attention(seen: Evidence) -> Iterator[Finding]:
    """A softmax between two batched products, forward or backward, takes 5% of the step or more, with these products.

    Source: `WRITTEN_OUT`; operators of one thread and one step, with no other product between them, outside of torch's
    own attention. The time is that of all work launched from the first product to the last one, on a device if there is
    one.

    Measured: never on a device; it is worth trying.
    """
    thread, begin, end = _attention(seen)
    if not len(begin):
        return
    work = _launched_between(seen, thread, begin, end)
    spent = seen.device_ms(work) if len(work) else seen.per_step(seen.clipped(intervals.union(begin, end)))
    if seen.share(spent) < WRITTEN_OUT:
        return
    products = seen.named(_BATCHED, Kind.OP)
    products = products[intervals.covers(intervals.union(begin, end), seen.trace.start[products])]
    yield from seen.finding(
        "written-out-attention",
        spent,
        title=f"Attention is written out as products and a softmax, which take {ms(spent)} in a {seen.unit}.",
        estimate="Worth trying: how much a fused kernel saves depends on the length of the sequences and the device.",
        evidence=[
            f"{seen.often(begin)} times in a {seen.unit} a softmax stands between two batched products",
            *(seen.by_name(work) if len(work) else seen.by_name(products)),
            *seen.by_line(products),
        ],
        advice=(
            "Written out, attention makes the whole matrix of scores, writes it to memory and reads it again for each "
            "step: scale, mask, softmax, dropout, product. torch's scaled_dot_product_attention does all of it in one "
            "kernel that never keeps that matrix, forward and backward, and chooses the fastest one for the device."
        ),
        code=_SDPA,
        is_measured=False,
    )


def fusable_chains(seen: Evidence) -> Iterator[Finding]:
    """Elementwise kernels, reductions and copies in a row take 20% of a step that the device decides, or more.

    Source: `FUSABLE`, `BOUND`, `CHAIN`; the categories of `perfhooks.trace.categories`, in the order of each stream.
    What the optimizer launches does not count. Silent where compiled code runs.

    Measured: never on a device; it is worth trying.
    """
    if seen.share(seen.mean("busy_ms")) < BOUND or _is_compiled(seen):
        return
    rows = _chains(seen)
    spent = seen.device_ms(rows)
    if seen.share(spent) < FUSABLE:
        return
    kinds = categories.of_work(seen.trace)[np.searchsorted(seen.trace.device_rows, rows)]
    shares = [f"{categories.CATEGORIES[kind]} {ms(seen.device_ms(rows[kinds == kind]))}" for kind in _KINDS]
    yield from seen.finding(
        "fusable-chains",
        spent,
        title=f"Chains of small kernels that a compiler would fuse take {ms(spent)} of a {seen.unit}.",
        estimate="Worth trying: of each chain, the time of reading and writing what lies between its kernels is saved.",
        evidence=[
            f"{seen.often(rows)} such kernels in a {seen.unit}: {', '.join(shares)}",
            f"the device works for {seen.share(seen.mean('busy_ms')):.0%} of the {seen.unit}",
            *seen.by_name(rows),
        ],
        advice=(
            "Each of these kernels reads its tensors from memory, does little with them, and writes them back for the "
            "next one. torch.compile makes one kernel of such a chain. By hand the same is had from functions that do "
            "several things at once: a loss from logits, a fused norm, an activation with its bias."
        ),
        code="model = torch.compile(model)",
        is_measured=False,
    )


def _attention(seen: Evidence) -> tuple[Ints, Ints, Ints]:
    """From the first product to the last one around each softmax: its thread, its begin and its end."""
    trace = seen.trace
    kinds = (_BATCHED, _SOFTMAX, _BACKWARD, _OTHER_PRODUCTS)
    found = [seen.named(pattern, Kind.OP) for pattern in kinds]
    rows = np.concatenate(found)
    order = np.argsort(rows, kind="stable")  # slices are sorted by thread and time
    rows, kind = rows[order], np.repeat(np.arange(len(kinds)), list(map(len, found)))[order]
    soft = np.flatnonzero(np.isin(kind, (_FORWARD, _GRADIENT)) & ~_within_fused(seen, rows))
    # the gradients of a product are two products
    first, last = (_outer(kind, soft, way) for way in (-1, 1))
    same = (first != soft) & (last != soft) & (trace.thread[rows[first]] == trace.thread[rows[last]])
    step = step_of(seen.marks, trace.start[rows])
    same &= step[first] == step[last]
    begin, end = trace.start[rows[first[same]]], trace.end[rows[last[same]]]
    return trace.thread[rows[first[same]]], begin, end


def _outer(kind: Ints, soft: Ints, way: int) -> Ints:
    """The furthest batched product on one side of each softmax, of those next to it; itself where none is."""
    padded = np.concatenate(([-1, -1], kind, [-1, -1]))
    near, far = padded[soft + 2 + way] == _PRODUCT, padded[soft + 2 + 2 * way] == _PRODUCT
    both = near & far & (kind[soft] == _GRADIENT)
    found: Ints = soft + way * (near.astype(np.int64) + both)
    return found


def _within_fused(seen: Evidence, rows: Ints) -> Flags:
    """Whether each operator is a part of torch's own attention, or of its gradient.

    torch writes attention out itself where it has no kernel for it, as with dropout on a CPU.
    """
    fused = seen.named(_FUSED, Kind.OP)
    if not len(fused):
        return np.zeros(len(rows), np.bool_)
    held: Flags = device.holders(seen.trace, rows, fused) >= 0
    return held | (device.holders(seen.trace, _differentiated(seen, rows), fused) >= 0)


def _differentiated(seen: Evidence, rows: Ints) -> Ints:
    """The operator of which each one computes the gradient; itself where it computes none."""
    tree, nodes = seen.calls, autograd.find(seen.trace)
    node = nodes.inside[tree.entry[rows]]
    source = np.where(node >= 0, nodes.source[node], -1)
    return np.where(source >= 0, tree.row[source], rows)


def _launched_between(seen: Evidence, thread: Ints, begin: Ints, end: Ints) -> Ints:
    """The work of devices that was launched on some threads at some times; slices."""
    trace = seen.trace
    launch = trace.launches
    inside = np.zeros(len(launch), np.bool_)
    for each in intervals.distinct(thread).tolist():
        mine = thread == each
        moments = intervals.union(begin[mine], end[mine])
        here = (launch >= 0) & (trace.thread[launch] == each)
        inside[here] = intervals.covers(moments, trace.start[launch[here]])
    found: Ints = trace.device_rows[inside]
    return found


def _is_compiled(seen: Evidence) -> bool:
    return len(seen.named(_COMPILED, Kind.OP, Kind.ANNOTATION)) > 0 or len(seen.work_named(_COMPILED, Kind.KERNEL)) > 0


def _chains(seen: Evidence) -> Ints:
    """The kernels of the steps that stand next to others of the kind on their stream; slices."""
    trace = seen.trace
    work = trace.device_rows  # by stream and start
    fusable = np.isin(categories.of_work(trace), _KINDS) & (trace.kind[work] == Kind.KERNEL)
    fusable &= ~np.isin(work, seen.work_named(LAYOUT, Kind.KERNEL))  # libraries make these
    stream = trace.thread[work]
    edges = np.flatnonzero(np.append(True, (np.diff(fusable) != 0) | (np.diff(stream) != 0)))
    length = np.diff(np.append(edges, len(work)))
    is_chain = fusable & np.repeat(length >= CHAIN, length)
    places = seen.work[is_chain[seen.work]]
    found: Ints = work[places]
    return found
