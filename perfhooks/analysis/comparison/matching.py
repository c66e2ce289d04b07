"""What of one run is what of the other: modules, lines and kernels, by name and by what they contain."""

from __future__ import annotations

import re
from collections import Counter
from difflib import SequenceMatcher
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.analysis.comparison.costs import IDLE, NOTHING, Costs, KeyCost
from perfhooks.trace.names import ranges

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

    from perfhooks.analysis.comparison.around import CostKey

_BUSY: Final = 0.5
"""From this share of the step on it is the device that takes the time, and the host runs ahead of it."""


NEW: Final = "(new)"
"""The end of the path of a new module where the other run has another module of that name."""

_NUMBERED: Final = re.compile(r"(.+)_\d+")
_TEMPLATE: Final = re.compile(r"<[^<>]*>")
_NUMBER: Final = re.compile(r"\d+")


def unwrapped(path: str) -> str:
    """A path of modules without those that torch.compile puts around a model, or makes of one."""
    return "/".join(name for name in path.split("/") if class_of(name) not in _OF_COMPILER)


_OF_COMPILER: Final = ("OptimizedModule", "GraphModule")


def around(rows: Iterable[CostKey]) -> set[str]:
    """All modules in which anything ran, and those around them."""
    found: set[str] = set()
    for where in rows:
        path = where.module
        while path and path not in found:
            found.add(path)
            path = path.rpartition("/")[0]
    return found


def common(path: str, known: Container[str]) -> str:
    """The innermost known module among a module and those around it; empty where none is known."""
    while path and path not in known:
        path = path.rpartition("/")[0]
    return path


def modules(a: Iterable[CostKey], b: Iterable[CostKey]) -> dict[str, str]:
    """For each module of B the path of the same module in A.

    A new module keeps its own path, marked as `NEW` if A has another module of that path.

    From the outside inwards, the modules of one class inside of matched ones are aligned in order by what they
    contain: operators, shapes and inner modules. Where that leaves gaps on both sides, their order decides. What then
    is left is matched where exactly the same is contained, whatever it is called.
    """
    trees = _Tree(a), _Tree(b)
    twins: dict[str, str] = {"": ""}
    waiting = [("", "")]
    while waiting:
        pairs = _children(trees, *waiting.pop())
        waiting += pairs
        twins |= {each: twin for twin, each in pairs}
    found: dict[str, str] = {}
    for path in sorted(trees[1].own):  # whoever is around comes first
        parent, _, name = path.rpartition("/")
        own = "/".join(filter(None, (found.get(parent, ""), name)))
        found[path] = twins.get(path) or (f"{own} {NEW}" if own in trees[0].own else own)
    return found


class _Tree:
    """Modules by the one around them, and what each contains."""

    def __init__(self, rows: Iterable[CostKey]) -> None:
        self.own: dict[str, Counter[tuple[str, str]]] = {}
        self.children: dict[str, list[str]] = {"": []}
        for where in rows:
            if where.module:
                self._add(where.module)
                self.own[where.module][where.operator, where.shapes] += 1
        for each in self.children.values():
            each.sort(key=_in_order)
        self._known: dict[str, int] = {}

    def _add(self, path: str) -> None:
        """Know a module, and those around it."""
        while path and path not in self.own:
            self.own[path] = Counter()
            self.children.setdefault(path, [])
            parent = path.rpartition("/")[0]
            self.children.setdefault(parent, []).append(path)
            path = parent

    def contained(self, path: str) -> int:
        """A number that is equal for modules that contain the same."""
        if path not in self._known:
            inner = sorted((class_of(each), self.contained(each)) for each in self.children[path])
            self._known[path] = hash((frozenset(self.own[path].items()), tuple(inner)))
        return self._known[path]


def _in_order(path: str) -> tuple[str, int]:
    name = path.rpartition("/")[2]
    number = name.rpartition("_")[2]
    return class_of(path), int(number) if number.isdecimal() else 0


def class_of(path: str) -> str:
    """The class of a module: ``Linear`` for ``Net_0/Linear_3``."""
    name = path.rpartition("/")[2]
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else name


def _children(trees: tuple[_Tree, _Tree], of_a: str, of_b: str) -> list[tuple[str, str]]:
    """The pairs among the modules inside of two that are matched."""
    inside = [side.children[path] for side, path in zip(trees, (of_a, of_b), strict=True)]
    pairs: list[tuple[str, str]] = []
    for name in sorted({class_of(each) for each in inside[0]} & {class_of(each) for each in inside[1]}):
        both = [[each for each in side if class_of(each) == name] for side in inside]
        pairs += _aligned(trees, *both)
    left = [[each for each in side if each not in used] for side, used in zip(inside, _columns(pairs), strict=True)]
    twins = {trees[0].contained(each): each for each in left[0]}
    for each in left[1]:
        twin = twins.pop(trees[1].contained(each), None)
        pairs += [(twin, each)] if twin is not None else []
    return pairs


def _columns(pairs: list[tuple[str, str]]) -> tuple[set[str], set[str]]:
    return {pair[0] for pair in pairs}, {pair[1] for pair in pairs}


def _aligned(trees: tuple[_Tree, _Tree], of_a: list[str], of_b: list[str]) -> list[tuple[str, str]]:
    in_a, in_b = ([side.contained(each) for each in paths] for side, paths in zip(trees, (of_a, of_b), strict=True))
    # what is equal from the beginning on stays where it is, though a later one may be equal too
    same = next((place for place, both in enumerate(zip(in_a, in_b, strict=False)) if both[0] != both[1]), None)
    begun = min(len(in_a), len(in_b)) if same is None else same
    pairs = list(zip(of_a[:begun], of_b[:begun], strict=True))
    left = SequenceMatcher(a=in_a[begun:], b=in_b[begun:], autojunk=False).get_opcodes()
    for _, first_a, last_a, first_b, last_b in left:
        # of a gap, what is longer on one side is new or gone at its end
        gap_a, gap_b = of_a[begun + first_a : begun + last_a], of_b[begun + first_b : begun + last_b]
        pairs += list(zip(gap_a, gap_b, strict=False))
    return pairs


def lines(a: Iterable[CostKey], b: Iterable[CostKey]) -> dict[str, str]:
    """The renamed lines of the source: each key is a line that only B has, its value the one that only A has.

    Two lines are one if the same operators ran in both, with the same shapes.
    """
    content: tuple[dict[str, Counter[tuple[str, str]]], ...] = ({}, {})
    for found, rows in zip(content, (a, b), strict=True):
        for where in rows:
            if where.line and where.operator:
                found.setdefault(where.line, Counter())[where.operator, where.shapes] += 1
    gone = {frozenset(inner.items()): line for line, inner in content[0].items() if line not in content[1]}
    renamed = {}
    for line, inner in content[1].items():
        twin = None if line in content[0] else gone.pop(frozenset(inner.items()), None)
        if twin is not None:
            renamed[line] = twin
    return renamed


def shapeless(a: Iterable[CostKey], b: Iterable[CostKey]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Of each side the operators and shapes to be compared by name alone: the other side has other shapes of them."""
    both = [{(where.operator, where.shapes) for where in rows if where.operator} for rows in (a, b)]
    alone = both[0] - both[1], both[1] - both[0]
    names = {name for name, _ in alone[0]} & {name for name, _ in alone[1]}
    of_a, of_b = ({(name, shapes) for name, shapes in side if name in names} for side in alone)
    return of_a, of_b


class Kernels:
    """Names of kernels: as they are where both runs have them, else without what a compiler writes into them.

    Args:
        a: The rows of one run.
        b: And of the other.
    """

    def __init__(self, a: Iterable[CostKey], b: Iterable[CostKey]) -> None:
        self._names = [{where.kernel for where in rows} - {""} for rows in (a, b)]

    @cached_property
    def _both(self) -> set[str]:
        return self._names[0] & self._names[1]

    @cached_property
    def _plain(self) -> set[str]:
        """The normalised names that both runs have among the kernels whose full names only one of them has."""
        alone = [{normalised(name) for name in names - self._both} for names in self._names]
        return alone[0] & alone[1]

    def __call__(self, name: str) -> str:
        """The name under which a kernel is compared."""
        plain = normalised(name) if name not in self._both else name
        return plain if plain in self._plain else name


def normalised(name: str) -> str:
    """A kernel's name without return type, arguments, template arguments and numbers."""
    text = name.removeprefix("void ").replace("(anonymous namespace)", "{anonymous}")
    text = text.partition("(")[0]
    shorter = _TEMPLATE.sub("", text)
    while shorter != text:
        text, shorter = shorter, _TEMPLATE.sub("", shorter)
    return _NUMBER.sub("", text).strip(" <")


class Pair(NamedTuple):
    """What both sides spent in the same place, in all steps."""

    a: KeyCost
    b: KeyCost

    def by_count(self, steps_a: int, steps_b: int) -> float:
        """(nB - nA) x tA, of one step; what is new or gone is so by count alone."""
        if self.a.calls and self.b.calls:
            return (self.b.calls / steps_b - self.a.calls / steps_a) * self.a.nanoseconds / self.a.calls
        if self.a.calls or self.b.calls:
            return self.b.nanoseconds / steps_b - self.a.nanoseconds / steps_a
        return 0.0

    @property
    def typical(self) -> Pair:
        """The same, had all steps been as the middle ones."""
        return Pair(*(each._replace(nanoseconds=each.typical) for each in self))


class Aligned:
    """The rows of both sides under the same names.

    Columns that only one side recorded are left out of both. Where one side runs what torch.compile made of modules,
    what is inside of these belongs to the innermost module that both have.

    Args:
        a: The costs of one side.
        b: And of the other.
    """

    def __init__(self, a: Costs, b: Costs) -> None:
        self.a, self.b = a, b
        self.by_device = _is_busy(a) and _is_busy(b)
        self._blank: dict[str, str] = {}
        if not (a.shapes and b.shapes):
            self._blank |= {"shapes": "", "types": "", "given": ""}
        if not (a.frames and b.frames):
            self._blank |= {"module": "", "line": ""}
        rows_a, rows_b = (side.device or side.host for side in (a, b)) if a.device and b.device else (a.host, b.host)
        every = [self._blanked({**side.host, **side.device}) for side in (a, b)]
        self.modules = modules(*every)
        inside = around(every[0]), set(self.modules.values())
        self._both = inside[0] & inside[1] if self.is_compiled_once else inside[0] | inside[1]
        self._lines = lines(*every)
        self._shapeless = shapeless(*every)
        self._kernel = Kernels(rows_a, rows_b)
        self.renamed = {own: name for name, own in self.modules.items() if name != own and NEW not in own}
        """The modules and lines of B that A calls otherwise, by A's name."""
        self.renamed |= {own: name for name, own in self._lines.items()}
        self.host = self._joined(a.host, b.host)
        self.device = self._joined(a.device, b.device) if a.device and b.device else {}

    @property
    def is_compiled_once(self) -> bool:
        """Whether one of the two, and not the other, runs what torch.compile made: its operators have other names."""
        return len({any(re.search(ranges.COMPILED, name) for name in side.counts) for side in (self.a, self.b)}) > 1

    @property
    def rows(self) -> dict[CostKey, Pair]:
        """Those by which the difference is best told: what devices did, if they are busy most of both steps."""
        return self.device if self.by_device else self.host

    def _blanked(self, rows: Mapping[CostKey, KeyCost]) -> list[CostKey]:
        return [self._plain(where) for where in rows]

    def _plain(self, where: CostKey) -> CostKey:
        blank = where._replace(**self._blank)
        return blank._replace(module=unwrapped(blank.module)) if blank.module else blank

    def _joined(self, a: Mapping[CostKey, KeyCost], b: Mapping[CostKey, KeyCost]) -> dict[CostKey, Pair]:
        found: dict[CostKey, list[KeyCost]] = {}
        for side, rows in enumerate((a, b)):
            for where, cost in rows.items():
                key = self._named(where, side)
                both = found.setdefault(key, [NOTHING, NOTHING])
                both[side] += cost
        return {where: Pair(*both) for where, both in found.items()}

    def _named(self, where: CostKey, side: int) -> CostKey:
        key = self._plain(where)
        if (key.operator, key.shapes) in self._shapeless[side]:
            key = key._replace(shapes="")
        if (key.call, key.given) in self._shapeless[side]:
            key = key._replace(given="")
        if key.kernel:
            key = key._replace(kernel=self._kernel(key.kernel))
        if side:
            module = self.modules.get(key.module, key.module)
            key = key._replace(module=module, line=self._lines.get(key.line, key.line))
        return key._replace(module=common(key.module, self._both))


def _is_busy(costs: Costs) -> bool:
    idle = sum(cost.nanoseconds for where, cost in costs.device.items() if where.kind == IDLE)
    return bool(costs.device) and idle < (1 - _BUSY) * costs.wall
