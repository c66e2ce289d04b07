"""Attention that is written out, and that one kernel could do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings.evidence import cached_per_window
from perfhooks.core.words import ms
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators
from perfhooks.trace.nesting import autograd, device, host, intervals
from perfhooks.trace.nesting.step_marks import step_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Flags

WRITTEN_OUT: Final = 0.05
"""Of the step, for attention that is written out: below it, what is saved is within what a step varies by."""
_GEMM, _FORWARD, _GRADIENT, _TANH = range(4)
"""The places of the first four of the patterns in `_attention`."""

_BATCHED: Final = 2
"""Dimensions that a matrix has; in attention others stand before them."""


def written_out_attention(window: Evidence) -> Iterator[Finding]:
    """A softmax between two batched GEMMs, forward or backward, takes 5% of the step or more, with these GEMMs.

    Source: `WRITTEN_OUT`; operators of one thread and one step, with no other GEMM and no activation between them,
    outside of torch's own attention. Additive attention is none: there the scores are those of a ``tanh``; and, where
    shapes were recorded, none with one query, which has no matrix of scores. The time is that of all work launched from
    the first GEMM to the last one, on a device if there is one.

    Measured: never on a device; the gain is an upper bound.
    """
    _, begin, end = _attention(window)
    if not len(begin):
        return
    work = written_out(window)
    if not len(work) and window.uses_device:
        return
    spent = window.device_ms(work) if len(work) else window.per_step(window.clipped(intervals.union(begin, end)))
    if window.share(spent) < WRITTEN_OUT:
        return
    gemms = window.named(operators.BATCHED_GEMMS, Kind.OP)
    gemms = gemms[intervals.covers(intervals.union(begin, end), window.trace.start[gemms])]
    yield from window.finding(
        "written-out-attention",
        spent,
        title=f"Attention is written out as GEMMs and a softmax, which take {ms(spent)} in a {window.unit}.",
        estimate="How much a fused kernel saves depends on the length of the sequences and the device.",
        evidence=[
            f"{window.count_per_step(begin)} times in a {window.unit} a softmax stands between two batched GEMMs",
            *(window.by_name(work) if len(work) else window.by_name(gemms)),
            *window.by_line(gemms),
        ],
        advice=(
            "Written out, attention makes the whole matrix of scores, writes it to memory and reads it again for each "
            "step: scale, mask, softmax, dropout, product. torch's scaled_dot_product_attention does all of it in one "
            "kernel that never keeps that matrix, and chooses the fastest one for the device."
        ),
        code=window.code_for("fused attention"),
    )


@cached_per_window
def written_out(window: Evidence) -> Ints:
    """The work of devices that attention which is written out launches; slices."""
    rows = _launched_between(window, *_attention(window))
    return rows[np.isin(np.searchsorted(window.trace.device_rows, rows), window.work)]


@cached_per_window
def _attention(window: Evidence) -> tuple[Ints, Ints, Ints]:
    """From the first GEMM to the last one around each softmax: its thread, its begin and its end."""
    trace = window.trace
    kinds = (
        operators.BATCHED_GEMMS,
        operators.SOFTMAX,
        operators.SOFTMAX_BACKWARD,
        operators.TANH,
        f"{operators.BETWEEN_ATTENTION}|{operators.ACTIVATIONS}",
    )
    found = [window.named(pattern, Kind.OP) for pattern in kinds]
    rows = np.concatenate(found)
    order = np.argsort(rows, kind="stable")  # slices are sorted by thread and time
    rows, kind = rows[order], np.repeat(np.arange(len(kinds)), list(map(len, found)))[order]
    soft = np.flatnonzero(np.isin(kind, (_FORWARD, _GRADIENT)) & ~_within_fused(window, rows))
    soft = soft[_of_many_queries(window, rows[soft])]
    # the gradients of a GEMM are two GEMMs
    first, last = (_outer(kind, soft, way) for way in (-1, 1))
    same = (first != soft) & (last != soft) & (trace.thread[rows[first]] == trace.thread[rows[last]])
    before = np.where(kind[soft] == _FORWARD, first - 1, last + 1)  # what the scores were made of
    same &= np.append(kind, -1)[before] != _TANH
    step = step_of(window.marks, trace.start[rows])
    same &= step[first] == step[last]
    begin, end = trace.start[rows[first[same]]], trace.end[rows[last[same]]]
    return trace.thread[rows[first[same]]], begin, end


def _outer(kind: Ints, soft: Ints, way: int) -> Ints:
    """The furthest batched GEMM on one side of each softmax, of those next to it; itself where none is."""
    padded = np.concatenate(([-1, -1], kind, [-1, -1]))
    near, far = padded[soft + 2 + way] == _GEMM, padded[soft + 2 + 2 * way] == _GEMM
    both = near & far & (kind[soft] == _GRADIENT)
    found: Ints = soft + way * (near.astype(np.int64) + both)
    return found


def _of_many_queries(window: Evidence, rows: Ints) -> Flags:
    """Whether each softmax is one over a matrix of scores, or of a shape that was not recorded."""
    dims = window.trace.argument("dims")[rows]
    is_matrix = {each: _is_matrix(window.trace.text(each)) for each in set(dims.tolist())}
    return np.array([is_matrix[each] for each in dims.tolist()], np.bool_)


def _is_matrix(shapes: object) -> bool:
    shape = shapes[0] if isinstance(shapes, list) and shapes else None
    if not isinstance(shape, list) or not shape:
        return True
    return len(shape) > _BATCHED and all(isinstance(size, int) and size > 1 for size in shape[-_BATCHED:])


def _within_fused(window: Evidence, rows: Ints) -> Flags:
    """Whether each operator is a part of torch's own attention, or of its gradient.

    torch writes attention out itself where it has no kernel for it, as with dropout on a CPU.
    """
    fused = window.named(operators.ANY_ATTENTION, Kind.OP)
    if not len(fused):
        return np.zeros(len(rows), np.bool_)
    held: Flags = device.holders(window.trace, rows, fused) >= 0
    return held | (device.holders(window.trace, _differentiated(window, rows), fused) >= 0)


def _differentiated(window: Evidence, rows: Ints) -> Ints:
    """The operator of which each one computes the gradient; itself where it computes none."""
    tree, nodes = host.tree(window.trace), autograd.find(window.trace)
    node = nodes.inside[tree.entry[rows]]
    source = np.where(node >= 0, nodes.source[node], -1)
    return np.where(source >= 0, tree.row[source], rows)


def _launched_between(window: Evidence, thread: Ints, begin: Ints, end: Ints) -> Ints:
    """The work of devices that was launched on some threads at some times; slices."""
    trace = window.trace
    launch = trace.launches
    inside = np.zeros(len(launch), np.bool_)
    for each in intervals.distinct(thread).tolist():
        mine = thread == each
        moments = intervals.union(begin[mine], end[mine])
        here = (launch >= 0) & (trace.thread[launch] == each)
        inside[here] = intervals.covers(moments, trace.start[launch[here]])
    return trace.device_rows[inside]
