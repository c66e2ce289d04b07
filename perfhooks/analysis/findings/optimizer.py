from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.analysis.findings.finding import HEAVY, MANY
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, ranges
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

FEW: Final = 60
SAVED: Final = {"Adam": (0.5, 0.65), "AdamW": (0.5, 0.65), "Adagrad": (0.45, 0.55), "SGD": (0.4, 0.4)}
"""Fraction of an update with a loop over parameters that ``fused=True`` saves on a CPU: below `FEW` parameters, and
above. Measured savings are: Adam 35 to 73%, AdamW 37 to 75%, Adagrad 34 to 60%, SGD with momentum 25 to 62%.
"""


_AT_ONCE: Final = rf"{operators.MANY_TENSORS}|{ranges.COMPILED}"


def optimizer_loop(window: Evidence) -> Iterator[Finding]:
    """Report optimizer updates with a loop over at least 20 parameters that take at least 5% of the step.

    The thresholds are `MANY` and `HEAVY`. One in-place operator runs at least 20 times in ``Optimizer.step``. The
    closure and the creation of optimizer state do not count. The update contains no compiled operator and none for many
    tensors (``_foreach_``, ``_fused_``). The optimizer is one of torch with a fused implementation.

    The gain was measured on a CPU, see `SAVED`, and is an upper bound on a device.
    """
    updates, name = _updates(window), _optimizer(window)
    creation = window.spans(_within(window, window.matching(operators.MAKING_STATE, Kind.OP), updates))
    update_spans = intervals.subtract(
        window.clipped(updates), creation
    )  # the fix does not avoid the creation of optimizer state, which runs once
    ops = _within(window, window.matching(operators.IN_PLACE, Kind.OP), update_spans)
    if name not in SAVED or not len(ops) or len(_within(window, window.matching(_AT_ONCE, Kind.OP), updates)):
        return
    repeats = np.bincount(window.trace.name[ops]).max() / max(len(updates), 1)
    update_ms = window.per_step(update_spans)
    of_few, of_many = SAVED[name]
    ratio = of_many if repeats >= FEW else of_few
    gain = min(ratio * update_ms, window.host_limit_ms)
    if repeats < MANY or window.share(update_ms) < HEAVY or not window.is_worth(gain):
        return
    on_device = window.runs_on_device(ops)
    if (
        not on_device
        and name == "SGD"
        and not len(_within(window, window.matching(operators.MOMENTUM, Kind.OP), updates))
    ):
        return
    text = window.texts(
        "optimizer-loop", "on-device" if on_device else "", optimizer=name, update_ms=update_ms, saving=ratio
    )
    all_ops = window.outermost(_within(window, window.trace.rows(Kind.OP), update_spans))
    yield from window.finding(
        text,
        gain,
        is_measured=not on_device,
        bound_ms=min(update_ms, window.device_limit_ms if on_device else window.host_limit_ms),
        evidence=[text("operators", count=len(ops) / max(len(updates), 1)), *window.by_name(all_ops)],
        of=update_spans,
    )


def _optimizer(window: Evidence) -> str:
    rows = window.with_prefix(ranges.UPDATE, Kind.ANNOTATION, Kind.OP)
    names = [window.trace.names[window.trace.name[row]] for row in rows[:1].tolist()]
    return names[0].removeprefix(ranges.UPDATE).partition(".")[0] if names else ""


def zeroed_gradients(window: Evidence) -> Iterator[Finding]:
    """Report gradients that are filled with zeros instead of set to None, if this costs at least 1% of the step.

    The threshold is `evidence.NOTABLE`. The operators that fill gradients in ``Optimizer.zero_grad`` count, and one
    addition in ``AccumulateGrad`` per filled gradient.

    Measured on a CPU with one thread: setting gradients to None saved 27% of ``examples/bad/zeroed_gradients.py`` and
    34 to 46% with a large embedding. With two layers of size 2,048, steps became 11 to 52% longer, because new memory
    for large gradients causes page faults. The gain is therefore an upper bound.
    """
    zero_grad = window.with_prefix(ranges.ZERO_GRAD, Kind.ANNOTATION)
    fill_ops = _within(window, window.matching(operators.ZERO, Kind.OP), intervals.of_slices(window.trace, zero_grad))
    if not len(fill_ops):
        return
    leaves = window.with_prefix(ranges.LEAF, Kind.OP)
    add_ops = _within(window, window.matching(operators.ADDING, Kind.OP), intervals.of_slices(window.trace, leaves))
    fill_ms, limit = window.cost(fill_ops)
    add_ms, _ = window.cost(add_ops) if len(add_ops) else (0.0, 0.0)
    filled_count = (
        len(fill_ops) if len(fill_ops) > len(zero_grad) else len(add_ops)
    )  # a single _foreach_zero_ fills all gradients
    gain = min(fill_ms + add_ms * min(filled_count / max(len(add_ops), 1), 1.0), limit)
    if not window.is_worth(gain):
        return
    text = window.texts("zeroed-gradients", gain_ms=gain)
    evidence = [
        text("fills", count=window.count_per_step(fill_ops), fill_ms=fill_ms),
        text("additions", count=window.count_per_step(add_ops), add_ms=add_ms),
    ]
    yield from window.finding(text, gain, evidence=evidence)


def _updates(window: Evidence) -> Intervals:
    trace = window.trace
    rows = window.with_prefix(ranges.UPDATE, Kind.ANNOTATION, Kind.OP)
    nodes = np.sort(trace.end[trace.named(Kind.OP, prefix=ranges.NODE)])
    last = np.searchsorted(nodes, trace.end[rows]) - 1
    begin = np.maximum(trace.start[rows], np.append(nodes, np.iinfo(np.int64).min)[last])
    return intervals.union(begin, trace.end[rows])


def _within(window: Evidence, rows: Ints, moments: Intervals) -> Ints:
    time = window.trace.start[rows]
    return rows[intervals.within(moments, time, time + 1) > 0]
