"""The optimizer does with many small operators what a few could do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core import words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, ranges
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Intervals

LOOPING: Final = 0.05
"""Of the step: below it, half of the update is within what a step varies by."""
MANY_UPDATES: Final = 20
"""Of the same in-place operator in one update: that is a loop over parameters."""
FEW: Final = 60
"""Parameters: with fewer of them, what an update costs besides them counts."""
SAVED: Final = {"Adam": (0.5, 0.65), "AdamW": (0.5, 0.65), "Adagrad": (0.45, 0.55), "SGD": (0.4, 0.4)}
"""Of the time of a looping update on a CPU, by optimizer, with less than `FEW` parameters and with more: about the
middle of what ``fused=True`` was measured to save, in processor time of one thread, of 20, 30, 60 and 160 parameters
of 32 to 262,144 elements: Adam 35 to 69% and 58 to 73%, AdamW 37 to 72% and 63 to 75%, Adagrad 34 to 63% and 50 to 60%,
SGD with momentum 26 to 59% and 25 to 62%; of a small convolutional net and ResNet-18 more. SGD without momentum (59% to
nothing) is left out. ``foreach=True`` was measured at -69% to +93% on a CPU, so it is no advice there."""


_AT_ONCE: Final = rf"{operators.MANY_TENSORS}|{ranges.COMPILED}"


def optimizer_loop(window: Evidence) -> Iterator[Finding]:
    """The update loops over parameters, 20 or more, and takes 5% of the step or more.

    Source: `LOOPING`, `MANY_UPDATES`, `SAVED`. In ``Optimizer.step``, after what a closure did in it and less what
    makes its state, one in-place operator runs that often, and none for many tensors at once (``_foreach_``,
    ``_fused_``) or compiled. Only for optimizers of torch that have a fused implementation.

    Measured: on a CPU, see `SAVED`. On a device it was not measured, so the gain there is an upper bound.
    """
    updates, name = _updates(window), _optimizer(window)
    made = window.spans(_within(window, window.named(operators.MAKING_STATE, Kind.OP), updates))
    taken = intervals.subtract(window.clipped(updates), made)  # the state of an optimizer is made once, fused or not
    ops = _within(window, window.named(operators.IN_PLACE, Kind.OP), taken)
    if name not in SAVED or not len(ops) or len(_within(window, window.named(_AT_ONCE, Kind.OP), updates)):
        return
    often = np.bincount(window.trace.name[ops]).max() / max(len(updates), 1)
    spent = window.per_step(taken)
    of_few, of_many = SAVED[name]
    saved = of_many if often >= FEW else of_few
    gain = min(saved * spent, window.host_limit_ms)
    if often < MANY_UPDATES or window.share(spent) < LOOPING or not window.is_worth(gain):
        return
    on_device = window.runs_on_device(ops)
    if not on_device and name == "SGD" and not len(_within(window, window.named(operators.MOMENTUM, Kind.OP), updates)):
        return
    yield from window.finding(
        "optimizer-loop",
        gain,
        is_measured=not on_device,
        bound_ms=min(spent, window.device_limit_ms if on_device else window.host_limit_ms),
        title=f"{name} updates its parameters one by one, for {words.ms(spent)} in a {window.unit}.",
        estimate=(
            "The time of this work."
            if on_device
            else f"{words.share(saved)} of the update, the middle of what fused {name} was measured to save on a CPU."
        ),
        evidence=[
            f"{len(ops) / max(len(updates), 1):.0f} in-place operators in an update",
            *window.by_name(ops),
        ],
        advice=(
            f"Ask for the fused implementation, which updates all parameters in a few passes; {name} has one, for CPUs "
            "too (since torch 2.4)."
        ),
        code=window.code_for("fused optimizer", optimizer=name),
        of=taken,
    )


def _optimizer(window: Evidence) -> str:
    """The class of the first optimizer that steps, as its range names it; empty where there is none."""
    rows = window.starting(ranges.UPDATE, Kind.ANNOTATION, Kind.OP)
    names = [window.trace.names[window.trace.name[row]] for row in rows[:1].tolist()]
    return names[0].removeprefix(ranges.UPDATE).partition(".")[0] if names else ""


def zeroed_gradients(window: Evidence) -> Iterator[Finding]:
    """Gradients are filled with zeros instead of being dropped, which costs 1% of the step or more.

    Source: `evidence.NOTABLE`. The operators that fill them in ``Optimizer.zero_grad``, and the additions to the zeros
    in ``AccumulateGrad``, as far as there is one backward pass for each filling.

    Measured: on a CPU with one thread it saved 27% of ``examples/bad/zeroed_gradients.py`` and 34 to 46% with a large
    embedding, and cost 11 to 52% in two layers of 2,048: fresh memory for large gradients is paid in page faults. So it
    is an upper bound.
    """
    zero_grad = window.starting(ranges.ZERO_GRAD, Kind.ANNOTATION)
    filling = _within(window, window.named(operators.ZERO, Kind.OP), intervals.of_slices(window.trace, zero_grad))
    if not len(filling):
        return
    leaves = window.starting(ranges.LEAF, Kind.OP)
    adding = _within(window, window.named(operators.ADDING, Kind.OP), intervals.of_slices(window.trace, leaves))
    spent, limit = window.cost(filling)
    added, _ = window.cost(adding) if len(adding) else (0.0, 0.0)
    filled = len(filling) if len(filling) > len(zero_grad) else len(adding)  # one _foreach_zero_ fills them all
    gain = min(spent + added * min(filled / max(len(adding), 1), 1.0), limit)
    if not window.is_worth(gain):
        return
    yield from window.finding(
        "zeroed-gradients",
        gain,
        title=f"Gradients are set to zero instead of None, for {words.ms(gain)} in a {window.unit}.",
        estimate="The time to fill them, and to add the new gradients to the zeros instead of keeping them.",
        evidence=[
            f"{window.count_per_step(filling)} fillings in a {window.unit}: {words.ms(spent)}",
            f"{window.count_per_step(adding)} additions to gradients: {words.ms(added)}",
        ],
        advice=(
            "Drop the gradients, which is torch's default since 2.0: the backward pass then keeps what it computes, "
            "instead of adding it to zeros, and memory is free in between. On a CPU try it: asking for large gradients "
            "anew can cost more than filling them."
        ),
        code="optimizer.zero_grad(set_to_none=True)",
    )


def _updates(window: Evidence) -> Intervals:
    """When parameters were updated: each ``Optimizer.step``, from the end of the last node of autograd in it."""
    trace = window.trace
    rows = window.starting(ranges.UPDATE, Kind.ANNOTATION, Kind.OP)
    nodes = np.sort(trace.end[trace.named(Kind.OP, prefix=ranges.NODE)])
    last = np.searchsorted(nodes, trace.end[rows]) - 1
    begun = np.maximum(trace.start[rows], np.append(nodes, np.iinfo(np.int64).min)[last])
    return intervals.union(begun, trace.end[rows])


def _within(window: Evidence, rows: Ints, moments: Intervals) -> Ints:
    """Those of some slices that begin in some moments."""
    time = window.trace.start[rows]
    return rows[intervals.within(moments, time, time + 1) > 0]
