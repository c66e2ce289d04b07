"""Which test enters which line, in its own process or in one that it starts, and what each test costs; for mutants.py.

Lines are kept by the name and the text of the function that they are in, so that a map outlives changes elsewhere and
modules that move. Where the function itself has changed, all tests that entered it stand for each of its lines.
"""

from __future__ import annotations

import ast
import json
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import coverage

MOST = 300
"""So many at most, because to be collected takes time as well."""
FORMER = "former"
"""Stands beside the lines of a function that has changed, for what entered it before."""
OWN = 20
"""From the test files of the module, or of its room, so many are taken for one of another file."""
FEW = 20
"""Where fewer are known to enter a line, others of those files may too: a process that is killed does not tell."""


class Source:
    """A file's functions, and which of them a line is in."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines()
        self._tree = ast.parse(text)
        self.functions = dict(self._within(self._tree, ""))

    def _within(self, node: ast.AST, above: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        met: Counter[str] = Counter()  # a property and its setter have one name
        for child in ast.iter_child_nodes(node):
            name = above
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                met[child.name] += 1
                name = f"{above}.{child.name}" + "'" * (met[child.name] - 1)
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, child
            yield from self._within(child, name)

    def place(self, line: int) -> tuple[str, int]:
        """The innermost function whose body has the line, "" for none, and how far below its name the line is."""
        found = [(node.lineno, name) for name, node in self.functions.items() if _has(node.body, line)]
        first, name = max(found, default=(0, ""))
        return name, line - first

    def key(self, name: str) -> str:
        """The name, and a number that is another one when the text of the function is."""
        node = self.functions[name]
        return f"{name} {zlib.crc32(chr(10).join(self._lines[node.lineno - 1 : node.end_lineno]).encode())}"

    def statement(self, line: int) -> range:
        """The lines of the innermost statement there; of a compound one, those before its body."""
        found = range(line, line + 1)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
                body = getattr(node, "body", None)
                found = range(node.lineno, max(body[0].lineno if body else node.end_lineno + 1, node.lineno + 1))
        return found if line in found else range(line, line + 1)


def _has(body: list[ast.stmt], line: int) -> bool:
    return body[0].lineno <= line <= (body[-1].end_lineno or 0)


def _brief(file: str) -> str:
    return "/".join(Path(file).parts[-2:])


def _file(test: str) -> str:
    return test.partition("::")[0]


def _is_of(file: str, test: str) -> bool:
    """Whether a test is in a test file of the module, or of its room."""
    names = (part.removeprefix("perfhooks_") for part in Path(file).with_suffix("").parts[1:])
    return Path(_file(test)).stem.removeprefix("test_").startswith(tuple(names))


@dataclass
class CallMap:
    """What running each test once has shown.

    ``entered`` says of each function and line of it by which tests and fixtures, as places in ``names``; ``fixtures``,
    which tests there are, and what each shares with others, but for those that were ``skipped`` or failed.
    """

    commit: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    fixtures: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    entered: dict[str, dict[str, list[int]]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> CallMap:
        """One that was written, or an empty one."""
        return cls(**json.loads(path.read_text())) if path.exists() else cls()

    def write(self, path: Path) -> None:
        """Keep it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(vars(self)))

    def add(self, data: coverage.CoverageData) -> None:
        """Take what was measured of every file."""
        places = {name: place for place, name in enumerate(self.names)}
        is_whole = not self.entered  # later only new tests are run, and what they do not enter others may
        for measured in data.measured_files():
            if not measured.endswith(".py"):
                continue  # a compiled template says that it is the template
            source = Source(Path(measured).read_text())
            keys = {name: source.key(name) for name in source.functions}
            for name, key in keys.items():
                if is_whole:
                    self.entered.setdefault(key, {})
                elif key not in self.entered and (former := self._former(name)):
                    self.entered[key] = {FORMER: sorted({place for by in former for place in by})}
            for line, contexts in data.contexts_by_lineno(measured).items():
                name, offset = source.place(line)
                if name or not keys:
                    by = {places.setdefault(each, len(places)) for each in contexts}
                    lines = self.entered.setdefault(keys[name] if name else _brief(measured), {})
                    lines[str(offset)] = sorted(by.union(lines.get(str(offset), ())))
        self.names = list(places)

    def tests(self, file: str, text: str, line: int) -> tuple[str, set[str]]:
        """The tests that enter a line, in a word; or, where that is not known, may enter its function or its module.

        Where a function has changed since the map was made, those of the test files of its module or room may. A module
        without functions is entered by those that import it first in their process.
        """
        source = Source(text)
        name, offset = source.place(line)
        own = {test for test in self.fixtures if _is_of(file, test)}
        if name and (lines := self.entered.get(source.key(name))) is not None:
            if not lines:
                return "may enter the function", set()
            exact = [lines.get(str(offset + near - line), ()) for near in source.statement(line)]
            if found := self._named([*exact, lines.get(FORMER, ())]):
                if not any(exact) or FORMER in lines:
                    return "may enter the function", found | own
                return ("enter the line", found) if len(found) >= FEW else ("may enter the line", found | own)
        if name and (found := self._named(self._former(name))):
            return "may enter the function", found | own
        keys = [source.key(each) for each in source.functions] or [_brief(file)]
        module = [self.entered.get(key, {}) for key in keys]
        return "may enter the module", self._named(by for lines in module for by in lines.values()) | own

    def _former(self, name: str) -> list[list[int]]:
        """By what the lines of all functions of that name are entered, whatever their text."""
        return [by for key, lines in self.entered.items() if key.startswith(f"{name} ") for by in lines.values()]

    def _named(self, places: Iterable[Iterable[int]]) -> set[str]:
        """The tests: those that entered, and those that share a fixture that did."""
        found = {self.names[place] for some in places for place in some}
        return {test for test, shared in self.fixtures.items() if test in found or not found.isdisjoint(shared)}

    def chosen(self, file: str, tests: set[str], budget_s: float, fewest: int) -> list[str]:
        """Those worth their time: of every test file some, more of the module's own, cheap ones first.

        The ``fewest`` cheapest are among them whatever they cost.
        """
        met: Counter[str] = Counter()
        order = []
        for test in (cheap := sorted(tests, key=lambda test: self.cost_s([test]))):
            order.append((met[_file(test)] / (OWN if _is_of(file, test) else 1), len(order), test))
            met[_file(test)] += 1
        taken: list[str] = []
        paid: set[str] = set()
        for _, _, test in sorted(order):
            parts = paid | {test, *self.fixtures[test]}
            if len(taken) < MOST and sum(map(self._cost_s, parts)) <= budget_s:
                taken.append(test)
                paid = parts
        taken += [test for test in cheap[: max(0, fewest)] if test not in taken]
        # a fixture of a file is made once, if the tests of the file come together
        costs = {home: self.cost_s([test for test in taken if _file(test) == home]) for home in map(_file, taken)}
        return sorted(taken, key=lambda test: (costs[_file(test)], _file(test), self._cost_s(test)))

    def cost_s(self, tests: list[str]) -> float:
        """What they take together, in seconds, when each fixture that they share is made once."""
        return sum(self._cost_s(part) for part in {*tests, *(part for test in tests for part in self.fixtures[test])})

    def _cost_s(self, part: str) -> float:
        return self.seconds.get(part, 0)
