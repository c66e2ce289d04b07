"""The optimizer does with many small operators what a few could do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.findings.evidence import ms
from perfhooks.trace import intervals
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Tables
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.intervals import Intervals
    from perfhooks.trace.model import Ints

LOOPING: Final = 0.05
"""Of the step: below it, half of the update is within what a step varies by."""
MANY_UPDATES: Final = 20
"""Of the same in-place operator in one update: that is a loop over parameters."""
SAVED: Final = 0.5
"""Of the time of a looping update; fused updates are two to ten times as fast, least where parameters are large."""

_STEP: Final = r"^Optimizer\.step#"
_ZERO_GRAD: Final = r"^Optimizer\.zero_grad#"
_NODE: Final = r"^autograd::engine::evaluate_function: "
_MANY: Final = r"^aten::_(?:foreach|fused)_|multi_tensor|^Torch-Compiled Region"
_UPDATE: Final = r"^aten::\w+_$"
_ZERO: Final = r"^aten::(?:_foreach_)?zero_$"
_ACCUMULATE: Final = r"^torch::autograd::AccumulateGrad$"


def optimizer_loop(tables: Tables) -> Iterator[Finding]:
    """The update loops over parameters, 20 or more, and takes 5% of the step or more.

    Source: `LOOPING`, `MANY_UPDATES`, `SAVED`. In ``Optimizer.step``, after what a closure did in it, one in-place
    operator runs that often, and none for many tensors at once (``_foreach_``, ``_fused_``) or compiled.
    """
    updates = _updates(tables)
    ops = _within(tables, tables.named(_UPDATE, Kind.OP), updates)
    if not len(ops) or len(_within(tables, tables.named(_MANY, Kind.OP), updates)):
        return
    often = np.bincount(tables.trace.name[ops]).max() / max(len(updates), 1)
    spent = tables.per_step(tables.clipped(updates))
    gain = min(SAVED * spent, tables.host_limit_ms)
    if often < MANY_UPDATES or tables.share(spent) < LOOPING or not tables.is_worth(gain):
        return
    yield tables.finding(
        "optimizer-loop",
        gain,
        title=f"The optimizer updates its parameters one by one, for {ms(spent)} in a {tables.unit}.",
        estimate="Half of the time of the update; a fused one takes a half to a tenth.",
        evidence=[
            f"{len(ops) / max(len(updates), 1):.0f} in-place operators in an update",
            *tables.by_name(ops),
        ],
        advice=(
            "Ask for the fused implementation, which updates all parameters in a few passes; Adam, AdamW, SGD and "
            "Adagrad "
            "have one, for CPUs too. Where an optimizer has none, foreach=True does each operation for all at once."
        ),
        code="optimizer = torch.optim.AdamW(model.parameters(), lr=..., fused=True)",
    )


def zeroed_gradients(tables: Tables) -> Iterator[Finding]:
    """Gradients are filled with zeros instead of being dropped, which costs 1% of the step or more.

    Source: `tables.NOTABLE`. The operators that fill them in ``Optimizer.zero_grad``, and the additions to the zeros in
    ``AccumulateGrad``, as far as there is one backward pass for each filling.
    """
    zero_grad = tables.named(_ZERO_GRAD, Kind.ANNOTATION)
    filling = _within(tables, tables.named(_ZERO, Kind.OP), _ranges(tables, zero_grad))
    if not len(filling):
        return
    leaves = tables.named(_ACCUMULATE, Kind.OP)
    adding = _within(tables, tables.named(r"^aten::add_$", Kind.OP), _ranges(tables, leaves))
    spent, limit = tables.cost(filling)
    added, _ = tables.cost(adding) if len(adding) else (0.0, 0.0)
    filled = len(filling) if len(filling) > len(zero_grad) else len(adding)  # one _foreach_zero_ fills them all
    gain = min(spent + added * min(filled / max(len(adding), 1), 1.0), limit)
    if not tables.is_worth(gain):
        return
    yield tables.finding(
        "zeroed-gradients",
        gain,
        title=f"Gradients are set to zero instead of None, for {ms(gain)} in a {tables.unit}.",
        estimate="The time to fill them, and to add the new gradients to the zeros instead of keeping them.",
        evidence=[
            f"{tables.often(filling)} fillings in a {tables.unit}: {ms(spent)}",
            f"{tables.often(adding)} additions to gradients: {ms(added)}",
        ],
        advice=(
            "Drop the gradients, which is torch's default since 2.0: the backward pass then keeps what it computes, "
            "instead of adding it to zeros, and memory is free in between."
        ),
        code="optimizer.zero_grad(set_to_none=True)",
    )


def _updates(tables: Tables) -> Intervals:
    """When parameters were updated: each ``Optimizer.step``, from the end of the last node of autograd in it."""
    trace = tables.trace
    rows = tables.named(_STEP, Kind.ANNOTATION, Kind.OP)
    nodes = np.sort(trace.end[trace.named(Kind.OP, prefix="autograd::engine::evaluate_function: ")])
    last = np.searchsorted(nodes, trace.end[rows]) - 1
    begun = np.maximum(trace.start[rows], np.append(nodes, np.iinfo(np.int64).min)[last])
    return intervals.union(begun, trace.end[rows])


def _ranges(tables: Tables, rows: Ints) -> Intervals:
    return intervals.union(tables.trace.start[rows], tables.trace.end[rows])


def _within(tables: Tables, rows: Ints, moments: Intervals) -> Ints:
    """Those of some slices that begin in some moments."""
    time = tables.trace.start[rows]
    found: Ints = rows[intervals.within(moments, time, time + 1) > 0]
    return found
