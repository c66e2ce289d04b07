"""Which of the recorded calls are run again: whole updates and the outermost operators. Each moment counts once."""

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
from perfhooks.trials import schemas
from perfhooks.trials.recorded import Signature, Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfhooks.trials.recorded import CountedCalls

_MS: Final = 1e-6  # milliseconds in a nanosecond
_OPTIONS: Final = {
    "momentum": (0.9, {"SGD"}, {"mul_"}),
    "weight_decay": (1e-4, {"SGD", "Adam", "Adagrad", "RMSprop"}, {"add"}),
    "amsgrad": (True, {"Adam", "AdamW"}, {"maximum", "maximum_"}),
}
"""Options that cost time: a usual value, the optimizers that have it, and the operators that only it brings about."""


@dataclass(frozen=True)
class Group:
    """Calls of an operator with equal inputs, or equal updates by an optimizer."""

    signature: Signature | Update
    calls: float
    """How often a step has it."""
    step_ms: float
    """Milliseconds of a step that they took when they were recorded."""
    call_ms: float
    """What one of them took, at the median."""


@dataclass(frozen=True)
class SkippedOperators:
    """Operators that cannot be run again."""

    name: str
    reason: str
    share: float
    """Of the time of all operators."""


@dataclass(frozen=True)
class OperatorSelection:
    """What a recording offers."""

    groups: tuple[Group, ...]
    """What takes most of a step first."""
    left: tuple[SkippedOperators, ...]
    covered: float
    """The share of the time of all operators, and of autograd between them, that the groups have."""


def cut(calls: CountedCalls, wanted: Callable[[str], object] | None = None) -> OperatorSelection:
    """Choose the outermost calls that can be run again.

    Args:
        calls: Those of a window.
        wanted: Takes the name of an operator: the outermost calls of these, instead of the outermost of all.
    """
    signatures, names, is_operator = calls.signatures(), calls.names(), calls.is_operator
    updates = dict(_updates(calls, signatures, names))
    reason_of = functools.cache(_reason)
    is_inside = np.zeros(len(names), np.bool_)
    chosen: dict[Signature | Update, list[int]] = defaultdict(list)
    left: Counter[tuple[str, str]] = Counter()
    for place, above in enumerate(calls.parent.tolist()):
        if above >= 0 and is_inside[above]:
            is_inside[place] = True
        elif (wanted is None or wanted(names[place])) and (place in updates or is_operator[place]):
            again = updates.get(place) or signatures[place]
            if isinstance(again, Signature) and (reason := reason_of(again)) is not None:
                left[again.name, reason] += int(calls.own[place])
            else:
                is_inside[place] = True
                chosen[again].append(place)
    groups = [_group(again, calls.total[places], calls.steps) for again, places in chosen.items()]
    every = max(int(calls.own[is_operator].sum()), 1)
    return OperatorSelection(
        tuple(sorted(groups, key=lambda group: -group.step_ms)),
        tuple(SkippedOperators(name, reason, spent / every) for (name, reason), spent in left.most_common()),
        int(calls.own[is_inside & is_operator].sum()) / every,
    )


def _reason(signature: Signature) -> str | None:
    """Why a call cannot be run again; None if it can."""
    try:
        schemas.overload(signature)
    except schemas.UnmatchedError as error:
        return str(error)
    return None


def _group(again: Signature | Update, spent: Any, steps: int) -> Group:
    return Group(again, len(spent) / steps, int(spent.sum()) * _MS / steps, median(spent.tolist()) * _MS)


def _updates(
    calls: CountedCalls, signatures: Sequence[Signature], names: Sequence[str]
) -> Iterator[tuple[int, Update]]:
    """The updates that can be made again, each with its place.

    torch's label says whose update it is, and the backward passes since the one before say of which parameters: a step
    that accumulates gradients has several equal passes. Passes that differ do not tell which parameters it has.
    """
    trace = calls.trace
    start, thread = trace.start[calls.row].tolist(), trace.thread[calls.row].tolist()
    leaves = sorted(
        (start[place], _parameter(signatures[place])) for place, name in enumerate(names) if name == ranges.LEAF
    )
    before = 0
    for label in sorted(
        (place for place, name in enumerate(names) if name.startswith(ranges.UPDATE)), key=start.__getitem__
    ):
        passes = set()
        for first, last in parts.of_thread(trace, thread[label])[labels.BACKWARD].tolist():
            if before <= first < start[label]:
                gradients = leaves[bisect(leaves, (first,)) : bisect(leaves, (last,))]
                passes.add(tuple(sorted(parameter for _, parameter in gradients)))
        before = start[label]
        update = _update(names[label], passes - {()}, signatures[_called(calls, label)])
        if update is not None:
            yield label, update


def _called(calls: CountedCalls, place: int) -> slice:
    """What a call called: the calls after it, until one that lies in none of these."""
    outside = np.flatnonzero(calls.parent[place + 1 :] < place)
    return slice(place + 1, place + 1 + int(outside[0]) if len(outside) else None)


def _parameter(leaf: Signature) -> tuple[str, tuple[int, ...]]:
    """The type and sizes of the parameter whose gradient is accumulated; no type where they were not recorded."""
    return (leaf.arguments[0].type, leaf.arguments[0].dims) if leaf.arguments else ("", ())


def _update(label: str, passes: set[tuple[Any, ...]], inside: Sequence[Signature]) -> Update | None:
    """What an update did; None where the recording does not tell it."""
    optimizer = label.removeprefix(ranges.UPDATE).partition(".")[0]
    stems = {call.name.removeprefix(operators.NAMESPACE) for call in inside}
    kind = getattr(torch.optim, optimizer, None)
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer):
        return None
    if len(passes) != 1 or ranges.LEAF in stems:  # a closure ran in it
        return None
    (parameters,) = passes
    touched = {sizes for call in inside for given in call.arguments or () for sizes, _ in given.tensors if sizes}
    # gradients that no operator of the update touches are another optimizer's; lists of many tensors are not recorded
    if touched and not {sizes for _, sizes in parameters if sizes} <= touched:
        return None
    if not all(kind in schemas.DTYPES for kind, _ in parameters):
        return None
    begun = {stem.split("_")[1] for stem in stems if stem.startswith("_")}
    way = next((way for way in ("fused", "foreach") if way in begun), "for-loop")
    stems = {stem.removeprefix(operators.FOREACH) for stem in stems}
    options = ((name, value) for name, (value, has, brings) in _OPTIONS.items() if optimizer in has and brings & stems)
    return Update(optimizer, parameters, tuple(options), way)
