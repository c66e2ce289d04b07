"""Why one step takes longer than the other: rows of both sides whose differences sum to that of the steps."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.analysis.comparison.around import CostKey
from perfhooks.analysis.comparison.costs import IDLE, NOTHING, SMALL, Costs, KeyCost
from perfhooks.analysis.comparison.matching import Aligned, Pair
from perfhooks.core.statistics import OF_NORMAL
from perfhooks.trace.names import ranges

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

ELSEWHERE: Final = "elsewhere"
"""The row of what belongs to no other."""

_WHOLE: Final = ("data", "transfer", "optimizer", "validation", "checkpoint")
"""Parts that are looked at as one, rather than module by module."""
Key = tuple[str, ...]


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """What one row adds to the difference; all numbers are of one step, times in nanoseconds."""

    name: str
    """What it is: a module, an operator with its shapes, ..."""
    kind: str
    """part, module, operator, line, function, types, kernel, class, idle, or elsewhere."""
    a: float
    b: float
    count_a: float
    count_b: float
    by_count: float
    """What more calls add, each as dear as A's; where A has none, all of it."""
    by_price: float
    """What dearer calls add. Both sum to ``difference``."""
    renamed: str = ""
    """What it is called in B, if otherwise."""
    typical: float = 0.0
    """The difference of the middle steps: far smaller than ``difference`` where single steps make that."""
    sure: float | None = None
    """Of a reason: how much of the difference is beyond what unchanged rows vary by (`NoiseModel`)."""
    is_certain: bool = False
    """Whether ``sure`` is 1% of the step or more."""
    inside: list[tuple[str, float, float, float]] = []
    """What changed most in it: name, difference, calls of A and calls of B."""

    @property
    def difference(self) -> float:
        """B less A."""
        return self.b - self.a

    @property
    def is_new(self) -> bool:
        """Whether A has nothing of it."""
        return not self.a and not self.count_a

    @property
    def is_gone(self) -> bool:
        """Whether B has nothing of it."""
        return not self.b and not self.count_b


_CONTROL: Final = 5e-4
"""Of the step: what takes less is too short to tell how much rows vary."""
_CONTROLS: Final = 10
"""With fewer of them nothing is known of how rows vary."""
_LEAST_SPREAD: Final = 0.02
"""What the same row differs by from one process to the next on a quiet machine."""
_WORTH: Final = 0.01
"""Of the step: what is sure and less comes after larger differences that are not."""
_WIDE: Final = 2.0
"""In spreads: 95 of 100 rows that did not change differ by less than this from what is usual."""


class NoiseModel(NamedTuple):
    """How rows with as many calls on both sides differ: most did not change, so that is the noise of the machine."""

    factor: float = 1.0
    """What they take in B, as a multiple of A; the median."""
    spread: float = _LEAST_SPREAD
    """By what share they differ from that, as a standard deviation by the middle half of them."""

    @classmethod
    def of(cls, rows: Mapping[CostKey, Pair], a: Costs, b: Costs) -> NoiseModel:
        """Look at all rows of both sides that are long enough."""
        if not (a.wall and b.wall):  # a step may have no length
            return cls()
        times = [
            (pair.a.typical / a.wall, pair.b.typical / b.wall)
            for where, pair in rows.items()
            if where.kind != IDLE and pair.a.calls * b.steps == pair.b.calls * a.steps
        ]
        found = np.log([after / before for before, after in times if min(before, after) >= _CONTROL])
        if len(found) < _CONTROLS:
            return cls()
        middle = float(np.median(found))
        spread = float(np.median(np.abs(found - middle))) / OF_NORMAL
        steps = b.wall / b.steps / (a.wall / a.steps)
        return cls(steps * math.exp(middle), max(spread, _LEAST_SPREAD))

    def sure(self, pairs: Iterable[Pair], steps_a: int, steps_b: int) -> float:
        """How much of the difference of some rows is beyond what unchanged rows vary by.

        New, missing and more calls count in full. Of dearer calls only that counts which exceeds the usual factor by
        more than `_WIDE` spreads. All of it by the middle steps: one stop of the process makes nothing sure.
        """
        counted = expected = seen = 0.0
        for pair in (each.typical for each in pairs):
            by_count = pair.by_count(steps_a, steps_b)
            counted += by_count
            if pair.a.nanoseconds and pair.b.nanoseconds:
                expected += self.factor * (pair.a.nanoseconds / steps_a + by_count)
                seen += pair.b.nanoseconds / steps_b
            else:
                counted += pair.b.nanoseconds / steps_b - pair.a.nanoseconds / steps_a - by_count
        apart = seen - expected
        return counted + math.copysign(max(abs(apart) - _WIDE * self.spread * abs(expected), 0.0), apart)


def usual(aligned: Aligned) -> NoiseModel:
    """How much unchanged rows differ between both sides."""
    return NoiseModel.of(aligned.rows, aligned.a, aligned.b)


def largest(aligned: Aligned) -> list[Contribution]:
    """The reasons: every row of the steps is in exactly one, so that they sum to the difference of the steps.

    Data, transfer, optimizer, validation and checkpoint are a reason each. What ran in a module, forward or backward,
    is the module's; all that ran in a function that only one side has is that function's. What ran in none is that of
    the operator that the program called, with all that this one calls, else its line's. Operators that were given
    other types are one reason together. On devices communication, copies and idle time are told apart first.

    Certain differences come first. A new call is certain. A loader that takes 3 ms more is not, if all rows take more.

    Args:
        aligned: Both sides.
    """
    causes = _Causes(_changed_types(aligned), _repeated(aligned), _alone(aligned, "line"), _alone(aligned, "module"))
    order = _LINES_FIRST if aligned.is_compiled_once else _OPERATORS_FIRST
    found = _grouped(aligned, aligned.rows, lambda where: _reason(where, causes, order), usual(aligned))
    typical = [[pair.typical[side].nanoseconds for pair in aligned.rows.values()] for side in (0, 1)]
    least = _WORTH * max(sum(typical[0]) / aligned.a.steps, sum(typical[1]) / aligned.b.steps)
    marked = [
        msgspec.structs.replace(each, is_certain=bool(each.sure) and abs(each.sure or 0) >= least) for each in found
    ]
    return sorted(marked, key=lambda each: -abs(each.sure or 0) if each.is_certain else 0.0)


def by_part(aligned: Aligned) -> list[Contribution]:
    """The parts of the step, on the host."""
    return _grouped(aligned, aligned.host, lambda where: ("part", where.part))


def by_operator(aligned: Aligned) -> list[Contribution]:
    """Operators with shapes and types, by the time of the step's thread that is theirs alone."""
    return _grouped(aligned, aligned.host, lambda where: _named("operator", where.operator, where.shapes, where.types))


def by_module(aligned: Aligned) -> list[Contribution]:
    """Modules, forward and backward, without the modules in them."""
    return _grouped(aligned, aligned.rows, lambda where: _named("module", where.module))


def by_line(aligned: Aligned) -> list[Contribution]:
    """The innermost lines of the training's own code."""
    return _grouped(aligned, aligned.host, lambda where: _named("line", where.line))


def by_kernel(aligned: Aligned) -> list[Contribution]:
    """Work of devices by name; elsewhere is the time in which none worked."""
    return _grouped(aligned, aligned.device, lambda where: _named("kernel", where.kernel))


def by_class(aligned: Aligned) -> list[Contribution]:
    """Work of devices by class, and idle time by the part of the step in which the host was."""
    return _grouped(aligned, aligned.device, _class)


def _named(kind: str, *words: str) -> Key:
    return (kind, *words) if words[0] and words[0] != SMALL else (ELSEWHERE, "")


def _class(where: CostKey) -> Key:
    return ("idle", where.part) if where.kind == IDLE else ("class", where.kind)


_OPERATORS_FIRST: Final = ("module", "operator", "line")
_LINES_FIRST: Final = ("module", "line", "operator")


class _Causes(NamedTuple):
    """What several rows have in common that one change of the program made."""

    types: Mapping[Key, str]
    repeated: Container[str]
    functions: Container[str]
    modules: Container[str]

    def of(self, where: CostKey) -> Key | None:
        """The cause of a row, if it is one of types, or of a function that only one side has."""
        types = self.types.get(_without_types(where))
        if types:
            return ("types", types)
        is_alone = where.line in self.functions and where.module not in self.modules
        return ("function", where.line) if is_alone else None


def _reason(where: CostKey, causes: _Causes, order: Sequence[str]) -> Key:
    if where.kind and where.kind != "compute":
        return _class(where)
    if where.part in _WHOLE:
        return ("part", where.part)
    return causes.of(where) or _by_name(where, causes, order)


def _by_name(where: CostKey, causes: _Causes, order: Sequence[str]) -> Key:
    for kind in order:
        if kind == "operator" and where.call:
            return (kind, where.call) if where.call in causes.repeated else (kind, where.call, where.given)
        # a node of autograd and what it calls by the same name are one cause
        name = getattr(where, kind).removeprefix(ranges.NODE)
        if name and name != SMALL:
            return (kind, name)
    return (ELSEWHERE, where.part)


def _repeated(aligned: Aligned) -> set[str]:
    """The operators that run more often, or less, in several shapes: an ``.item()`` of each gradient has one cause."""
    counts: dict[tuple[str, str], list[float]] = {}
    for where, pair in aligned.rows.items():
        if where.call and where.call == where.operator:
            both = counts.setdefault((where.call, where.given), [0.0, 0.0])
            for side, steps in enumerate((aligned.a.steps, aligned.b.steps)):
                both[side] += pair[side].calls / steps
    grown = Counter((name, b > a) for (name, _), (a, b) in counts.items() if a != b)
    return {name for (name, _), shapes in grown.items() if shapes > 1}


def _alone(aligned: Aligned, column: str) -> set[str]:
    """The functions, or modules, that only one side has: nothing where torch.compile made others of them."""
    if aligned.is_compiled_once:
        return set()
    ran: tuple[set[str], set[str]] = (set(), set())
    for where, pair in aligned.host.items():
        for known, cost in zip(ran, pair, strict=True):
            known.update({getattr(where, column)} if any(cost) else ())
    return (ran[0] ^ ran[1]) - {""}


def _without_types(where: CostKey) -> Key:
    return (where.part, where.module, where.operator, where.shapes)


def _changed_types(aligned: Aligned) -> dict[Key, str]:
    """The operators whose calls all take other types in B than in A."""
    held: dict[Key, tuple[set[str], set[str]]] = {}
    for where, pair in aligned.rows.items():
        if where.types and where.operator:
            both = held.setdefault(_without_types(where), (set(), set()))
            for types, cost in zip(both, pair, strict=True):
                types.update({where.types} if cost.calls or cost.nanoseconds else ())
    return {
        key: f"{'; '.join(sorted(a))} -> {'; '.join(sorted(b))}"
        for key, (a, b) in held.items()
        if a and b and not a & b
    }


def _grouped(
    aligned: Aligned, rows: Mapping[CostKey, Pair], key_of: Callable[[CostKey], Key], usual: NoiseModel | None = None
) -> list[Contribution]:
    groups: dict[Key, dict[CostKey, Pair]] = {}
    for where, pair in rows.items():
        groups.setdefault(key_of(where), {})[where] = pair
    found = [_contribution(aligned, key, group, usual) for key, group in groups.items()]
    return sorted(found, key=lambda each: -abs(each.difference))


def _contribution(aligned: Aligned, key: Key, group: Mapping[CostKey, Pair], usual: NoiseModel | None) -> Contribution:
    steps_a, steps_b = aligned.a.steps, aligned.b.steps
    a, b = (sum(pair[side].nanoseconds for pair in group.values()) for side in (0, 1))
    own = _own(key[0], group)
    count_a, count_b = (sum(pair[side].calls for pair in own) for side in (0, 1))
    calls = _calls(group)
    by_count = sum(pair.by_count(steps_a, steps_b) for pair in calls.values())
    kind, *words = key
    name = " ".join(filter(None, words))
    difference = b / steps_b - a / steps_a
    return Contribution(
        name=name,
        kind=kind,
        a=a / steps_a,
        b=b / steps_b,
        count_a=count_a / steps_a,
        count_b=count_b / steps_b,
        by_count=by_count,
        by_price=difference - by_count,
        typical=sum(pair.b.typical / steps_b - pair.a.typical / steps_a for pair in calls.values()),
        renamed=aligned.renamed.get(name, ""),
        sure=None if usual is None else _sure(usual, kind, calls, difference, aligned),
        inside=[] if kind == "idle" else _inside(calls, steps_a, steps_b),
    )


def _own(kind: str, group: Mapping[CostKey, Pair]) -> list[Pair]:
    """The rows whose calls count as those of a reason: for an operator on the host, not the operators that it calls."""
    is_whole = kind != "operator" or any(where.kernel for where in group)
    return [pair for where, pair in group.items() if is_whole or where.operator == (where.call or where.operator)]


def _sure(usual: NoiseModel, kind: str, calls: Mapping[str, Pair], difference: float, aligned: Aligned) -> float:
    # other types are no chance
    return difference if kind == "types" else usual.sure(calls.values(), aligned.a.steps, aligned.b.steps)


def _calls(group: Mapping[CostKey, Pair]) -> dict[str, Pair]:
    """The rows of a reason by what was called."""
    found: dict[str, Pair] = {}
    for where, pair in group.items():
        name = (
            where.kernel
            or " ".join(filter(None, (where.operator, where.shapes)))
            or (f"Python in {where.line}" if where.line else "Python")
        )
        before = found.get(name, Pair(NOTHING, NOTHING))
        found[name] = Pair(before.a + pair.a, before.b + pair.b)
    return found


_INSIDE: Final = 4


def _inside(calls: Mapping[str, Pair], steps_a: int, steps_b: int) -> list[tuple[str, float, float, float]]:
    told = [
        (
            name,
            pair.b.nanoseconds / steps_b - pair.a.nanoseconds / steps_a,
            pair.a.calls / steps_a,
            pair.b.calls / steps_b,
        )
        for name, pair in calls.items()
    ]
    return sorted(told, key=lambda each: -abs(each[1]))[:_INSIDE]


def by_collective(aligned: Aligned) -> list[Contribution]:
    """Collectives by operation: a sum of durations, as a rank has them, which other work may hide."""
    a, b = aligned.a, aligned.b
    names = dict.fromkeys(each.operation for side in (a, b) for each in side.collectives)
    rows = {CostKey("", operator=name): Pair(_of(a, name), _of(b, name)) for name in names}
    return _grouped(aligned, rows, lambda where: ("collective", where.operator))


def _of(side: Costs, operation: str) -> KeyCost:
    mine = [each for each in side.collectives if each.operation == operation]
    spent = sum(each.nanoseconds for each in mine)
    return KeyCost(sum(each.count for each in mine), spent, spent)
