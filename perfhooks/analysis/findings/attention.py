from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from perfhooks.analysis.findings.evidence import cached_per_window
from perfhooks.analysis.findings.finding import HEAVY
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

_GEMM, _FORWARD, _GRADIENT, _TANH = range(4)


def written_out_attention(window: Evidence) -> Iterator[Finding]:
    """Report unfused attention, forward or backward, if it takes at least 5% of the step (`HEAVY`).

    Unfused attention is two batched GEMMs with a softmax between them, but no other GEMM and no activation. The GEMMs
    and the softmax run on one thread in one step, outside of operators for fused attention. Additive attention, whose
    scores come from a ``tanh``, does not count. Attention with a single query does not count, because it has no matrix
    of scores. Attention with dropout on a CPU does not count, because torch has no fused kernel for it. The time
    includes all work launched from the first to the last GEMM.
    """
    _, begin, end = _find_attention(window)
    if not len(begin):
        return
    work = unfused_work(window)
    if not len(work) and window.uses_device:
        return
    on_host = None if len(work) else window.clipped(intervals.union(begin, end))
    time_ms = window.device_ms(work) if on_host is None else window.per_step(on_host)
    if window.share(time_ms) < HEAVY:
        return
    moments = intervals.union(begin, end)
    masks = window.matching(operators.RANDOM_MASK, Kind.OP)
    if not window.uses_device and intervals.covers(moments, window.trace.start[masks]).any():
        return
    gemms = window.matching(operators.BATCHED_GEMMS, Kind.OP)
    gemms = gemms[intervals.covers(moments, window.trace.start[gemms])]
    text = window.texts("written-out-attention", time_ms=time_ms)
    evidence = [
        text("count", count=window.count_per_step(begin)),
        *(window.by_name(work) if len(work) else window.by_name(gemms)),
        *window.by_line(gemms, _forward_operator(window, gemms)),
    ]
    yield from window.finding(text, time_ms, evidence=evidence, of=on_host)


@cached_per_window
def unfused_work(window: Evidence) -> Ints:
    rows = _launched_between(window, *_find_attention(window))
    return rows[np.isin(np.searchsorted(window.trace.device_rows, rows), window.work)]


@cached_per_window
def _find_attention(window: Evidence) -> tuple[Ints, Ints, Ints]:
    trace = window.trace
    kinds = (
        operators.BATCHED_GEMMS,
        operators.SOFTMAX,
        operators.SOFTMAX_BACKWARD,
        operators.TANH,
        f"{operators.BETWEEN_ATTENTION}|{operators.ACTIVATIONS}",
    )
    by_kind = [window.matching(pattern, Kind.OP) for pattern in kinds]
    rows = np.concatenate(by_kind)
    order = np.argsort(rows, kind="stable")
    rows, kind = rows[order], np.repeat(np.arange(len(kinds)), list(map(len, by_kind)))[order]
    softmax = np.flatnonzero(np.isin(kind, (_FORWARD, _GRADIENT)) & ~_is_in_fused(window, rows))
    softmax = softmax[_has_many_queries(window, rows[softmax])]
    # the backward pass of a GEMM runs two GEMMs
    first, last = (_outer_gemm(kind, softmax, direction) for direction in (-1, 1))
    is_attention = (first != softmax) & (last != softmax) & (trace.thread[rows[first]] == trace.thread[rows[last]])
    score_source = np.where(kind[softmax] == _FORWARD, first - 1, last + 1)
    is_attention &= np.append(kind, -1)[score_source] != _TANH
    step = step_of(window.marks, trace.start[rows])
    is_attention &= step[first] == step[last]
    begin, end = trace.start[rows[first[is_attention]]], trace.end[rows[last[is_attention]]]
    return trace.thread[rows[first[is_attention]]], begin, end


def _outer_gemm(kind: Ints, softmax: Ints, direction: int) -> Ints:
    padded = np.concatenate(([-1, -1], kind, [-1, -1]))
    near, far = padded[softmax + 2 + direction] == _GEMM, padded[softmax + 2 + 2 * direction] == _GEMM
    has_two = near & far & (kind[softmax] == _GRADIENT)
    outer: Ints = softmax + direction * (near.astype(np.int64) + has_two)
    return outer


def _has_many_queries(window: Evidence, rows: Ints) -> Flags:
    dims = window.trace.argument("dims")[rows]
    is_matrix = {text: _is_matrix(window.trace.text(text)) for text in set(dims.tolist())}
    return np.array([is_matrix[text] for text in dims.tolist()], np.bool_)


def _is_matrix(shapes: object) -> bool:
    shape = shapes[0] if isinstance(shapes, list) and shapes else None
    if not isinstance(shape, list) or not shape:
        return True
    return bool(shape[:-2]) and all(isinstance(size, int) and size > 1 for size in shape[-2:])


def _is_in_fused(window: Evidence, rows: Ints) -> Flags:
    fused = window.matching(operators.ANY_ATTENTION, Kind.OP)
    if not len(fused):
        return np.zeros(len(rows), np.bool_)
    is_inside: Flags = device.holders(window.trace, rows, fused) >= 0
    return is_inside | (device.holders(window.trace, _forward_operator(window, rows), fused) >= 0)


def _forward_operator(window: Evidence, rows: Ints) -> Ints:
    tree, nodes = host.tree(window.trace), autograd.find(window.trace)
    node = nodes.inside[tree.entry[rows]]
    source = np.where(node >= 0, nodes.source[node], -1)
    return np.where(source >= 0, tree.row[source], rows)


def _launched_between(window: Evidence, thread: Ints, begin: Ints, end: Ints) -> Ints:
    trace = window.trace
    launch = trace.launches
    inside = np.zeros(len(launch), np.bool_)
    for number in intervals.distinct(thread).tolist():
        on_thread = thread == number
        moments = intervals.union(begin[on_thread], end[on_thread])
        is_launched = (launch >= 0) & (trace.thread[launch] == number)
        inside[is_launched] = intervals.covers(moments, trace.start[launch[is_launched]])
    return trace.device_rows[inside]
