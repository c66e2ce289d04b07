"""Select the recorded calls to run again: whole optimizer updates and outermost operators."""

from __future__ import annotations

import functools
from bisect import bisect
from collections import Counter, defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch

from perfhooks.core import labels
from perfhooks.trace.names import operators, ranges
from perfhooks.trace.nesting import parts
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trials import schemas
from perfhooks.trials.recorded import Signature, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfhooks.trials.recorded import CountedCalls

_OPTIONS: Final = {
    "momentum": (0.9, {"SGD"}, {"mul_"}),
    "weight_decay": (1e-4, {"SGD", "Adam", "Adagrad", "RMSprop"}, {"add"}),
    "amsgrad": (True, {"Adam", "AdamW"}, {"maximum", "maximum_"}),
}
"""Optimizer options that cost time, each with a common value, the optimizers with this option, and operators that show
the use of the option.
"""


@dataclass(frozen=True)
class Group:
    """Calls of an operator with equal inputs, or equal updates by an optimizer."""

    signature: Signature | Update
    calls: float
    step_ms: float
    call_ms: float
    """Recorded median time per call in ms."""


@dataclass(frozen=True)
class SkippedOperators:
    name: str
    reason: str
    share: float
    """Time of the skipped operators as a fraction of the time of all operators."""


@dataclass(frozen=True)
class OperatorSelection:
    groups: tuple[Group, ...]
    """Selected calls, the most expensive first."""
    left: tuple[SkippedOperators, ...]
    covered: float
    """Fraction of the time of all operators, including autograd between operators, that ``groups`` cover."""


def select_calls(calls: CountedCalls, is_selected: Callable[[str], object] | None = None) -> OperatorSelection:
    """Return the outermost calls that ``is_selected`` accepts and that can run again."""
    signatures, names, is_operator = calls.signatures(), calls.names(), calls.is_operator
    updates = dict(_updates(calls, signatures, names))
    reason_of = functools.cache(_reason)
    is_inside = np.zeros(len(names), np.bool_)
    selected: dict[Signature | Update, list[int]] = defaultdict(list)
    skipped: Counter[tuple[str, str]] = Counter()
    for index, parent in enumerate(calls.parent.tolist()):
        if parent >= 0 and is_inside[parent]:
            is_inside[index] = True
        elif (is_selected is None or is_selected(names[index])) and (index in updates or is_operator[index]):
            call = updates.get(index) or signatures[index]
            if isinstance(call, Signature) and (reason := reason_of(call)) is not None:
                skipped[call.name, reason] += int(calls.own[index])
            else:
                is_inside[index] = True
                selected[call].append(index)
    groups = [_group(call, calls.total[indices], calls.steps) for call, indices in selected.items()]
    total_ns = max(int(calls.own[is_operator].sum()), 1)
    return OperatorSelection(
        tuple(sorted(groups, key=lambda group: -group.step_ms)),
        tuple(SkippedOperators(name, reason, ns / total_ns) for (name, reason), ns in skipped.most_common()),
        int(calls.own[is_inside & is_operator].sum()) / total_ns,
    )


def _reason(signature: Signature) -> str | None:
    try:
        schemas.overload(signature)
    except schemas.UnmatchedError as error:
        return str(error)
    return None


def _group(call: Signature | Update, ns: Any, steps: int) -> Group:
    return Group(call, len(ns) / steps, int(ns.sum()) * MS / steps, median(ns.tolist()) * MS)


def _updates(
    calls: CountedCalls, signatures: Sequence[Signature], names: Sequence[str]
) -> Iterator[tuple[int, Update]]:
    """Yield each optimizer update that can run again, after the index of its label (``Optimizer.step``) in ``calls``.

    The label names the optimizer. If all backward passes since the previous update have gradients of the same
    parameters, the optimizer updates these parameters.
    """
    trace = calls.trace
    start, thread = trace.start[calls.row].tolist(), trace.thread[calls.row].tolist()
    leaves = sorted(
        (start[index], _parameter(signatures[index])) for index, name in enumerate(names) if name == ranges.LEAF
    )
    before = 0
    for label in sorted(
        (index for index, name in enumerate(names) if name.startswith(ranges.UPDATE)), key=start.__getitem__
    ):
        passes = set()
        for first, last in parts.of_thread(trace, thread[label])[labels.BACKWARD].tolist():
            if before <= first < start[label]:
                gradients = leaves[bisect(leaves, (first,)) : bisect(leaves, (last,))]
                passes.add(tuple(sorted(parameter for _, parameter in gradients)))
        before = start[label]
        update = _update(names[label], passes - {()}, signatures[_descendants(calls, label)])
        if update is not None:
            yield label, update


def _descendants(calls: CountedCalls, index: int) -> slice:
    outside = np.flatnonzero(calls.parent[index + 1 :] < index)
    return slice(index + 1, index + 1 + int(outside[0]) if len(outside) else None)


def _parameter(leaf: Signature) -> tuple[str, tuple[int, ...]]:
    return (leaf.arguments[0].type, leaf.arguments[0].dims) if leaf.arguments else ("", ())


def _update(label: str, passes: set[tuple[Any, ...]], inside: Sequence[Signature]) -> Update | None:
    optimizer = label.removeprefix(ranges.UPDATE).partition(".")[0]
    stems = {call.name.removeprefix(operators.NAMESPACE) for call in inside}
    kind = getattr(torch.optim, optimizer, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
        return None
    if len(passes) != 1 or ranges.LEAF in stems:
        return None
    (parameters,) = passes
    sizes_in_update = {
        sizes for call in inside for argument in call.arguments or () for sizes, _ in argument.tensors if sizes
    }
    # gradients without an operator in this update belong to another optimizer
    if sizes_in_update and not {sizes for _, sizes in parameters if sizes} <= sizes_in_update:
        return None
    if not all(kind in schemas.DTYPES for kind, _ in parameters):
        return None
    prefixes = {stem.split("_")[1] for stem in stems if stem.startswith("_")}
    implementation = next(
        (implementation for implementation in ("fused", "foreach") if implementation in prefixes), "for-loop"
    )
    stems = {stem.removeprefix(operators.FOREACH) for stem in stems}
    options = ((name, value) for name, (value, has, brings) in _OPTIONS.items() if optimizer in has and brings & stems)
    return Update(optimizer, parameters, tuple(options), implementation)
