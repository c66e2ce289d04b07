"""Which of the recorded calls are run again: the outermost that can be, so that each moment counts once."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Final

from perfhooks.trying import schemas, updates

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trying.recorded import Calls, Signature
    from perfhooks.trying.updates import Update

_MS: Final = 1e-6  # milliseconds in a nanosecond


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
class Left:
    """Operators that cannot be run again."""

    name: str
    reason: str
    share: float
    """Of the time of all operators."""


@dataclass(frozen=True)
class Cut:
    """What a recording offers."""

    groups: tuple[Group, ...]
    """What takes most of a step first."""
    left: tuple[Left, ...]
    covered: float
    """The share of the time of all operators, and of autograd between them, that the groups have."""


def cut(found: Calls, wanted: Callable[[str], bool] | None = None) -> Cut:
    """Choose the outermost calls that can be run again.

    Args:
        found: The calls of a window.
        wanted: Takes the name of an operator: the outermost calls of these, instead of the outermost of all.
    """
    signatures, names = found.signatures(), found.names()
    parent, own, total = found.parent.tolist(), found.own.tolist(), found.total.tolist()
    operator = found.is_operator.tolist()
    reasons: dict[int, str | None] = {}
    inside = [False] * len(parent)
    whole = updates.find(found)
    chosen: dict[Signature | Update, list[int]] = defaultdict(list)
    left: dict[tuple[str, str], int] = defaultdict(int)
    covered = every = 0
    for place, above in enumerate(parent):
        every += own[place] * operator[place]
        inside[place] = above >= 0 and inside[above]
        if inside[place]:
            covered += own[place] * operator[place]
            continue
        if wanted is not None and not wanted(names[place]):
            continue
        if place in whole:
            inside[place] = True
            chosen[whole[place]].append(total[place])
            continue
        signature = signatures[place]
        if not operator[place]:
            continue
        if id(signature) not in reasons:
            reasons[id(signature)] = _reason(signature)
        if (reason := reasons[id(signature)]) is not None:
            left[names[place], reason] += own[place]
            continue
        inside[place] = True
        covered += own[place]
        chosen[signature].append(total[place])
    groups = [_group(signature, spent, found.steps) for signature, spent in chosen.items()]
    return Cut(
        tuple(sorted(groups, key=lambda group: -group.step_ms)),
        tuple(
            Left(name, reason, spent / max(every, 1))
            for (name, reason), spent in sorted(left.items(), key=lambda entry: -entry[1])
        ),
        covered / max(every, 1),
    )


def _reason(signature: Signature) -> str | None:
    try:
        schemas.overload(signature)
    except schemas.UnmatchedError as error:
        return str(error)
    return None


def _group(signature: Signature | Update, spent: list[int], steps: int) -> Group:
    return Group(signature, len(spent) / steps, sum(spent) * _MS / steps, median(spent) * _MS)
