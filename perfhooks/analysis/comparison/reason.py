"""Explain the difference of two step times by causes whose differences sum to this difference."""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.analysis.comparison.around import CostKey
from perfhooks.analysis.comparison.costs import IDLE, NOTHING, SMALL, Costs, KeyCost
from perfhooks.analysis.comparison.difference import TOLERANCE
from perfhooks.analysis.comparison.matching import Aligned, Pair
from perfhooks.core.statistics import OF_NORMAL
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting.intervals import NOTABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

ELSEWHERE: Final = "elsewhere"

_UNSPLIT_PARTS: Final = ("data", "transfer", "optimizer", "validation", "checkpoint")
Key = tuple[str, ...]


class Contribution(msgspec.Struct, frozen=True, kw_only=True):
    """A cause of the difference, with the cost on both sides. Numbers are per step, times in ns."""

    name: str
    kind: str
    a: float
    b: float
    count_a: float
    count_b: float
    by_count: float
    by_price: float
    renamed: str = ""
    typical: float = 0.0
    """Difference in ns, B minus A, for ``typical`` times instead of mean times."""
    sure: float | None = None
    is_certain: bool = False
    """Whether ``sure``, the difference beyond the noise, is at least 1% of the step."""
    inside: list[tuple[str, float, float, float]] = []

    @property
    def difference(self) -> float:
        return self.b - self.a

    @property
    def is_new(self) -> bool:
        return not self.a and not self.count_a

    @property
    def is_gone(self) -> bool:
        return not self.b and not self.count_b


_MIN_CONTROL_LENGTH: Final = 5e-4
"""Minimum time of a cost row that estimates the noise, as a fraction of the step time. Shorter rows are noisier."""
_MIN_CONTROLS: Final = 10


class NoiseModel(NamedTuple):
    """Noise of the measured times of cost rows.

    Rows with the same number of calls on both sides estimate the noise, because most of these rows did not change.
    """

    factor: float = 1.0
    spread: float = TOLERANCE

    @classmethod
    def of(cls, aligned: Aligned) -> NoiseModel:
        a, b = aligned.a, aligned.b
        if not (a.wall and b.wall):
            return cls()
        times = [
            (pair.a.typical / a.wall, pair.b.typical / b.wall)
            for key, pair in aligned.rows.items()
            if key.kind != IDLE and pair.a.calls * b.steps == pair.b.calls * a.steps
        ]
        log_ratios = np.log([after / before for before, after in times if min(before, after) >= _MIN_CONTROL_LENGTH])
        if len(log_ratios) < _MIN_CONTROLS:
            return cls()
        middle = float(np.median(log_ratios))
        spread = float(np.median(np.abs(log_ratios - middle))) / OF_NORMAL
        steps = b.wall / b.steps / (a.wall / a.steps)
        return cls(steps * math.exp(middle), max(spread, TOLERANCE))

    def sure(self, pairs: Iterable[Pair], steps_a: int, steps_b: int) -> float:
        """Return the difference beyond the noise in ns per step. The time of added and removed calls counts in full."""
        by_calls = expected = measured = 0.0
        for typical in (pair.typical for pair in pairs):
            added = typical.by_count(steps_a, steps_b)
            by_calls += added
            if typical.a.nanoseconds and typical.b.nanoseconds:
                expected += self.factor * (typical.a.nanoseconds / steps_a + added)
                measured += typical.b.nanoseconds / steps_b
            else:
                by_calls += typical.difference(steps_a, steps_b) - added
        excess = measured - expected
        return by_calls + math.copysign(max(abs(excess) - 2 * self.spread * abs(expected), 0.0), excess)


def largest(aligned: Aligned) -> list[Contribution]:
    """Return the causes, largest first. Each cost row belongs to one cause, so the causes sum to the difference.

    A cost row belongs to the first of these causes that applies:

    * On devices: communication, copies and idle time.
    * Data, transfer, optimizer, validation and checkpoint.
    * Operators whose input types changed.
    * A function that only one side has.
    * The module in which the work ran, forward or backward.
    * The operator that the program called.
    * The line of the training's code.
    """
    causes = _Causes(
        _find_changed_types(aligned),
        _find_repeated(aligned),
        _find_one_sided(aligned, "line"),
        _find_one_sided(aligned, "module"),
    )
    order = _LINES_FIRST if aligned.is_compiled_once else _OPERATORS_FIRST
    contributions = _group(
        aligned, aligned.rows, lambda key: _choose_reason(key, causes, order), NoiseModel.of(aligned)
    )
    typical_ns = [[pair.typical[side].nanoseconds for pair in aligned.rows.values()] for side in (0, 1)]
    least_ns = NOTABLE * max(sum(typical_ns[0]) / aligned.a.steps, sum(typical_ns[1]) / aligned.b.steps)
    marked = [
        msgspec.structs.replace(row, is_certain=bool(row.sure) and abs(row.sure or 0) >= least_ns)
        for row in contributions
    ]
    return sorted(marked, key=lambda row: -abs(row.sure or 0) if row.is_certain else 0.0)


def views(aligned: Aligned) -> dict[str, list[Contribution]]:
    """Return the difference grouped by each recorded column: part, operator, module, line, class and kernel."""
    rows_and_keys: dict[str, tuple[Mapping[CostKey, Pair], Callable[[CostKey], Key]]] = {
        "parts": (aligned.host, lambda key: ("part", key.part)),
        "operators": (aligned.host, lambda key: _key_or_elsewhere("operator", key.operator, key.shapes, key.types)),
        "modules": (aligned.rows if aligned.modules else {}, lambda key: _key_or_elsewhere("module", key.module)),
        "lines": (aligned.host if aligned.has_frames else {}, lambda key: _key_or_elsewhere("line", key.line)),
        "classes": (aligned.device, _class_key),
        "kernels": (aligned.device, lambda key: _key_or_elsewhere("kernel", key.kernel)),
    }
    return {name: _group(aligned, rows, key_of) for name, (rows, key_of) in rows_and_keys.items()}


def _key_or_elsewhere(kind: str, *names: str) -> Key:
    return (kind, *names) if names[0] and names[0] != SMALL else (ELSEWHERE, "")


def _class_key(key: CostKey) -> Key:
    return ("idle", key.part) if key.kind == IDLE else ("class", key.kind)


_OPERATORS_FIRST: Final = ("module", "operator", "line")
_LINES_FIRST: Final = ("module", "line", "operator")


class _Causes(NamedTuple):
    types: Mapping[Key, str]
    repeated: Container[str]
    functions: Container[str]
    modules: Container[str]

    def of(self, key: CostKey) -> Key | None:
        types = self.types.get(_without_types(key))
        if types:
            return ("types", types)
        is_alone = key.line in self.functions and key.module not in self.modules
        return ("function", key.line) if is_alone else None


def _choose_reason(key: CostKey, causes: _Causes, order: Sequence[str]) -> Key:
    if key.kind and key.kind != "compute":
        return _class_key(key)
    if key.part in _UNSPLIT_PARTS:
        return ("part", key.part)
    return causes.of(key) or _choose_name(key, causes, order)


def _choose_name(key: CostKey, causes: _Causes, order: Sequence[str]) -> Key:
    for kind in order:
        if kind == "operator" and key.call:
            return (kind, key.call) if key.call in causes.repeated else (kind, key.call, key.given)
        # the forward call and the backward node of an autograd function have the same name and are one cause
        name = getattr(key, kind).removeprefix(ranges.NODE)
        if name and name != SMALL:
            return (kind, name)
    return (ELSEWHERE, key.part)


def _find_repeated(aligned: Aligned) -> set[str]:
    counts: dict[tuple[str, str], list[float]] = {}
    for key, pair in aligned.rows.items():
        if key.call and key.call == key.operator:
            calls = counts.setdefault((key.call, key.given), [0.0, 0.0])
            for side, steps in enumerate((aligned.a.steps, aligned.b.steps)):
                calls[side] += pair[side].calls / steps
    grown = Counter((name, b > a) for (name, _), (a, b) in counts.items() if a != b)
    return {name for (name, _), shapes in grown.items() if shapes > 1}


def _find_one_sided(aligned: Aligned, column: str) -> set[str]:
    if aligned.is_compiled_once:
        return set()
    ran: tuple[set[str], set[str]] = (set(), set())
    for key, pair in aligned.host.items():
        for names, cost in zip(ran, pair, strict=True):
            names.update({getattr(key, column)} if any(cost) else ())
    return (ran[0] ^ ran[1]) - {""}


def _without_types(key: CostKey) -> Key:
    return (key.part, key.module, key.operator, key.shapes)


def _find_changed_types(aligned: Aligned) -> dict[Key, str]:
    types_of: dict[Key, tuple[set[str], set[str]]] = {}
    for row, pair in aligned.rows.items():
        if row.types and row.operator:
            types_by_side = types_of.setdefault(_without_types(row), (set(), set()))
            for names, cost in zip(types_by_side, pair, strict=True):
                names.update({row.types} if cost.calls or cost.nanoseconds else ())
    return {
        operator_key: f"{'; '.join(sorted(a))} -> {'; '.join(sorted(b))}"
        for operator_key, (a, b) in types_of.items()
        if a and b and not a & b
    }


def _group(
    aligned: Aligned, rows: Mapping[CostKey, Pair], key_of: Callable[[CostKey], Key], noise: NoiseModel | None = None
) -> list[Contribution]:
    groups: dict[Key, dict[CostKey, Pair]] = {}
    for row, pair in rows.items():
        groups.setdefault(key_of(row), {})[row] = pair
    contributions = [_build_contribution(aligned, reason, group, noise) for reason, group in groups.items()]
    return sorted(contributions, key=lambda contribution: -abs(contribution.difference))


def _build_contribution(
    aligned: Aligned, key: Key, group: Mapping[CostKey, Pair], noise: NoiseModel | None
) -> Contribution:
    steps_a, steps_b = aligned.a.steps, aligned.b.steps
    a, b = (sum(pair[side].nanoseconds for pair in group.values()) for side in (0, 1))
    kind, *names = key
    is_whole = kind != "operator" or any(row.kernel for row in group)
    counted = [pair for row, pair in group.items() if is_whole or row.operator == (row.call or row.operator)]
    count_a, count_b = (sum(pair[side].calls for pair in counted) for side in (0, 1))
    calls = _sum_by_call(group)
    by_count = sum(pair.by_count(steps_a, steps_b) for pair in calls.values())
    name = " ".join(filter(None, names))
    difference = b / steps_b - a / steps_a
    sure = difference if kind == "types" or noise is None else noise.sure(calls.values(), steps_a, steps_b)
    changes = [
        (call, pair.difference(steps_a, steps_b), pair.a.calls / steps_a, pair.b.calls / steps_b)
        for call, pair in calls.items()
    ]
    return Contribution(
        name=name,
        kind=kind,
        a=a / steps_a,
        b=b / steps_b,
        count_a=count_a / steps_a,
        count_b=count_b / steps_b,
        by_count=by_count,
        by_price=difference - by_count,
        typical=sum(pair.typical.difference(steps_a, steps_b) for pair in calls.values()),
        renamed=aligned.renamed.get(name, ""),
        sure=None if noise is None else sure,
        inside=[] if kind == "idle" else sorted(changes, key=lambda change: -abs(change[1]))[:4],
    )


def _sum_by_call(group: Mapping[CostKey, Pair]) -> dict[str, Pair]:
    pairs: dict[str, Pair] = {}
    for key, pair in group.items():
        name = (
            key.kernel
            or " ".join(filter(None, (key.operator, key.shapes)))
            or (f"Python in {key.line}" if key.line else "Python")
        )
        previous = pairs.get(name, Pair(NOTHING, NOTHING))
        pairs[name] = Pair(previous.a + pair.a, previous.b + pair.b)
    return pairs


def by_collective(aligned: Aligned) -> list[Contribution]:
    """Return the difference of the durations of each collective operation on one rank."""
    a, b = aligned.a, aligned.b
    names = dict.fromkeys(collective.operation for side in (a, b) for collective in side.collectives)
    rows = {CostKey("", operator=name): Pair(_collective_cost(a, name), _collective_cost(b, name)) for name in names}
    return _group(aligned, rows, lambda key: ("collective", key.operator))


def _collective_cost(side: Costs, operation: str) -> KeyCost:
    collectives = [collective for collective in side.collectives if collective.operation == operation]
    nanoseconds = sum(collective.nanoseconds for collective in collectives)
    return KeyCost(sum(collective.count for collective in collectives), nanoseconds, nanoseconds)
