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

NEW: Final = "(new)"

_NUMBERED: Final = re.compile(r"(.+)_\d+")
_TEMPLATE: Final = re.compile(r"<[^<>]*>")
_NUMBER: Final = re.compile(r"\d+")


def unwrap(path: str) -> str:
    """Return a module path without the wrappers of torch.compile."""
    return "/".join(name for name in path.split("/") if class_of(name) not in _OF_COMPILER)


_OF_COMPILER: Final = ("OptimizedModule", "GraphModule")


def with_parents(rows: Iterable[CostKey]) -> set[str]:
    paths: set[str] = set()
    for key in rows:
        path = key.module
        while path and path not in paths:
            paths.add(path)
            path = path.rpartition("/")[0]
    return paths


def innermost_common(path: str, paths: Container[str]) -> str:
    while path and path not in paths:
        path = path.rpartition("/")[0]
    return path


def modules(a: Iterable[CostKey], b: Iterable[CostKey]) -> dict[str, str]:
    """Map each module of B to the path of the same module in A.

    Child modules of matched modules are aligned in order if they have the same class and content: operators, shapes and
    inner modules. Child modules between two aligned ones are matched in order. Further child modules match if their
    content is identical. A new module keeps its path, with the suffix `NEW` if A has another module at this path.
    """
    trees = _Tree(a), _Tree(b)
    matches: dict[str, str] = {"": ""}
    stack = [("", "")]
    while stack:
        pairs = _match_children(trees, *stack.pop())
        stack += pairs
        matches |= {path_b: path_a for path_a, path_b in pairs}
    names: dict[str, str] = {}
    for path in sorted(trees[1].own):
        parent, _, name = path.rpartition("/")
        own = "/".join(filter(None, (names.get(parent, ""), name)))
        names[path] = matches.get(path) or (f"{own} {NEW}" if own in trees[0].own else own)
    return names


class _Tree:
    def __init__(self, rows: Iterable[CostKey]) -> None:
        self.own: dict[str, Counter[tuple[str, str]]] = {}
        self.children: dict[str, list[str]] = {"": []}
        for key in rows:
            if key.module:
                self._add(key.module)
                self.own[key.module][key.operator, key.shapes] += 1
        for paths in self.children.values():
            paths.sort(key=_sort_key)
        self._content: dict[str, int] = {}

    def _add(self, path: str) -> None:
        while path and path not in self.own:
            self.own[path] = Counter()
            self.children.setdefault(path, [])
            parent = path.rpartition("/")[0]
            self.children.setdefault(parent, []).append(path)
            path = parent

    def contained(self, path: str) -> int:
        if path not in self._content:
            children = sorted((class_of(child), self.contained(child)) for child in self.children[path])
            self._content[path] = hash((frozenset(self.own[path].items()), tuple(children)))
        return self._content[path]


def _sort_key(path: str) -> tuple[str, int]:
    name = path.rpartition("/")[2]
    number = name.rpartition("_")[2]
    return class_of(path), int(number) if number.isdecimal() else 0


def class_of(path: str) -> str:
    """Return the class of a module, for example ``Linear`` for ``Net_0/Linear_3``."""
    name = path.rpartition("/")[2]
    match = _NUMBERED.fullmatch(name)
    return match[1] if match else name


def _match_children(trees: tuple[_Tree, _Tree], of_a: str, of_b: str) -> list[tuple[str, str]]:
    inside = [side.children[parent] for side, parent in zip(trees, (of_a, of_b), strict=True)]
    pairs: list[tuple[str, str]] = []
    for name in sorted({class_of(path) for path in inside[0]} & {class_of(path) for path in inside[1]}):
        of_class = [[path for path in side if class_of(path) == name] for side in inside]
        pairs += _align(trees, *of_class)
    unmatched = [
        [path for path in side if path not in used] for side, used in zip(inside, _columns(pairs), strict=True)
    ]
    candidates = {trees[0].contained(path): path for path in unmatched[0]}
    for path in unmatched[1]:
        path_a = candidates.pop(trees[1].contained(path), None)
        pairs += [(path_a, path)] if path_a is not None else []
    return pairs


def _columns(pairs: list[tuple[str, str]]) -> tuple[set[str], set[str]]:
    return {pair[0] for pair in pairs}, {pair[1] for pair in pairs}


def _align(trees: tuple[_Tree, _Tree], of_a: list[str], of_b: list[str]) -> list[tuple[str, str]]:
    in_a, in_b = ([side.contained(path) for path in paths] for side, paths in zip(trees, (of_a, of_b), strict=True))
    first_difference = next(
        (index for index, hashes in enumerate(zip(in_a, in_b, strict=False)) if hashes[0] != hashes[1]), None
    )
    prefix = min(len(in_a), len(in_b)) if first_difference is None else first_difference
    pairs = list(zip(of_a[:prefix], of_b[:prefix], strict=True))
    opcodes = SequenceMatcher(a=in_a[prefix:], b=in_b[prefix:], autojunk=False).get_opcodes()
    for _, first_a, last_a, first_b, last_b in opcodes:
        gap_a, gap_b = of_a[prefix + first_a : prefix + last_a], of_b[prefix + first_b : prefix + last_b]
        pairs += list(zip(gap_a, gap_b, strict=False))
    return pairs


def lines(a: Iterable[CostKey], b: Iterable[CostKey]) -> dict[str, str]:
    """Map each source line that only B has to a source line that only A has, if both ran the same operators."""
    content: tuple[dict[str, Counter[tuple[str, str]]], ...] = ({}, {})
    for operators, rows in zip(content, (a, b), strict=True):
        for key in rows:
            if key.line and key.operator:
                operators.setdefault(key.line, Counter())[key.operator, key.shapes] += 1
    old_lines = {frozenset(inner.items()): line for line, inner in content[0].items() if line not in content[1]}
    renamed = {}
    for line, inner in content[1].items():
        old_line = None if line in content[0] else old_lines.pop(frozenset(inner.items()), None)
        if old_line is not None:
            renamed[line] = old_line
    return renamed


def shapeless(a: Iterable[CostKey], b: Iterable[CostKey]) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """Return the operators of each side whose input shapes differ, so that only the names can be matched."""
    operators = [{(key.operator, key.shapes) for key in rows if key.operator} for rows in (a, b)]
    alone = operators[0] - operators[1], operators[1] - operators[0]
    names = {name for name, _ in alone[0]} & {name for name, _ in alone[1]}
    of_a, of_b = ({(name, shapes) for name, shapes in side if name in names} for side in alone)
    return of_a, of_b


class Kernels:
    """Kernel names for matching. `normalize_kernel` shortens a name that only one run has."""

    def __init__(self, a: Iterable[CostKey], b: Iterable[CostKey]) -> None:
        self._names = [{key.kernel for key in rows} - {""} for rows in (a, b)]

    @cached_property
    def _common(self) -> set[str]:
        return self._names[0] & self._names[1]

    @cached_property
    def _plain(self) -> set[str]:
        alone = [{normalize_kernel(name) for name in names - self._common} for names in self._names]
        return alone[0] & alone[1]

    def __call__(self, name: str) -> str:
        plain = normalize_kernel(name) if name not in self._common else name
        return plain if plain in self._plain else name


def normalize_kernel(name: str) -> str:
    """Return a kernel name without return type, arguments, template arguments and numbers."""
    text = name.removeprefix("void ").replace("(anonymous namespace)", "{anonymous}")
    text = text.partition("(")[0]
    shorter = _TEMPLATE.sub("", text)
    while shorter != text:
        text, shorter = shorter, _TEMPLATE.sub("", shorter)
    return _NUMBER.sub("", text).strip(" <")


class Pair(NamedTuple):
    a: KeyCost
    b: KeyCost

    def difference(self, steps_a: int, steps_b: int) -> float:
        """Return the time per step in B minus the time per step in A, in ns."""
        return self.b.nanoseconds / steps_b - self.a.nanoseconds / steps_a

    def by_count(self, steps_a: int, steps_b: int) -> float:
        """Return (calls in B - calls in A) x time per call in A, per step. Calls of only one side count in full."""
        if self.a.calls and self.b.calls:
            return (self.b.calls / steps_b - self.a.calls / steps_a) * self.a.nanoseconds / self.a.calls
        if self.a.calls or self.b.calls:
            return self.difference(steps_a, steps_b)
        return 0.0

    @property
    def typical(self) -> Pair:
        return Pair(*(cost._replace(nanoseconds=cost.typical) for cost in self))


class Aligned:
    """Cost rows of A and B in pairs, with the columns that both sides recorded.

    If torch.compile replaced modules of only one side, the costs of these modules count for the innermost module that
    both sides have.
    """

    def __init__(self, a: Costs, b: Costs) -> None:
        self.a, self.b = a, b
        self.by_device = _is_busy(a) and _is_busy(b)
        self._blank: dict[str, str] = {}
        if not (a.shapes and b.shapes):
            self._blank |= {"shapes": "", "types": "", "given": ""}
        self.has_frames = a.frames and b.frames
        if not self.has_frames:
            self._blank |= {"module": "", "line": ""}
        rows_a, rows_b = (side.device or side.host for side in (a, b)) if a.device and b.device else (a.host, b.host)
        keys = [[self._normalize(key) for key in {**side.host, **side.device}] for side in (a, b)]
        self.modules = modules(*keys)
        paths = with_parents(keys[0]), set(self.modules.values())
        self._common = paths[0] & paths[1] if self.is_compiled_once else paths[0] | paths[1]
        self._lines = lines(*keys)
        self._shapeless = shapeless(*keys)
        self._kernel = Kernels(rows_a, rows_b)
        self.renamed = {own: name for name, own in self.modules.items() if name != own and NEW not in own}
        """Names in B of renamed modules and source lines, keyed by the names in A."""
        self.renamed |= {own: name for name, own in self._lines.items()}
        self.host = self._join(a.host, b.host)
        self.device = self._join(a.device, b.device) if a.device and b.device else {}

    @property
    def is_compiled_once(self) -> bool:
        return len({any(re.search(ranges.COMPILED, name) for name in side.counts) for side in (self.a, self.b)}) > 1

    @property
    def rows(self) -> dict[CostKey, Pair]:
        """Pairs that explain the difference: device work if the devices of both sides are busy, else host time."""
        return self.device if self.by_device else self.host

    def _normalize(self, key: CostKey) -> CostKey:
        blank = key._replace(**self._blank)
        return blank._replace(module=unwrap(blank.module)) if blank.module else blank

    def _join(self, a: Mapping[CostKey, KeyCost], b: Mapping[CostKey, KeyCost]) -> dict[CostKey, Pair]:
        pairs: dict[CostKey, list[KeyCost]] = {}
        for side, rows in enumerate((a, b)):
            for row, cost in rows.items():
                key = self._rename(row, side)
                costs = pairs.setdefault(key, [NOTHING, NOTHING])
                costs[side] += cost
        return {row: Pair(*costs) for row, costs in pairs.items()}

    def _rename(self, row: CostKey, side: int) -> CostKey:
        key = self._normalize(row)
        if (key.operator, key.shapes) in self._shapeless[side]:
            key = key._replace(shapes="")
        if (key.call, key.given) in self._shapeless[side]:
            key = key._replace(given="")
        if key.kernel:
            key = key._replace(kernel=self._kernel(key.kernel))
        if side:
            module = self.modules.get(key.module, key.module)
            key = key._replace(module=module, line=self._lines.get(key.line, key.line))
        return key._replace(module=innermost_common(key.module, self._common))


def _is_busy(costs: Costs) -> bool:
    idle = sum(cost.nanoseconds for key, cost in costs.device.items() if key.kind == IDLE)
    return bool(costs.device) and 2 * idle < costs.wall
