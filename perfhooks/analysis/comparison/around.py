"""Whose a moment of the host is: the part of the step, module, line and operators that are open around it."""

from __future__ import annotations

import functools
import json
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.core import json_values, labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import attribution, operators, origins, tensor_types
from perfhooks.trace.nesting import host
from perfhooks.trace.nesting.slices import inherited, outermost
from perfhooks.trace.tables import modules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints

    Keys = np.ndarray[tuple[int, int], np.dtype[np.int64]]
    """One row for each entry: the part, and the numbers of what a `CostKey` tells of it."""

PARTS: Final = (*labels.PARTS, "other")
"""The parts of a step; ``other`` is what no label and no sign tells."""
_TEXT: Final = 200
"""Of operators and shapes; a longer one loses its middle."""


class CostKey(NamedTuple):
    """Whose time it is; empty is none, or what was not recorded."""

    part: str
    """One of `PARTS`."""
    module: str = ""
    """The path of modules, forward or backward."""
    line: str = ""
    """The innermost frame of the training's own code."""
    operator: str = ""
    """The innermost operator on the host; what launched the work on a device."""
    shapes: str = ""
    """Of the tensors among its inputs."""
    types: str = ""
    """What these hold, each type once."""
    kind: str = ""
    """On a device, the class of the work: compute, communication, copy, set or idle."""
    kernel: str = ""
    """On a device, the name of the work."""
    call: str = ""
    """The outermost operator, which is the one that the program called; ``aten::item`` around what waits for it."""
    given: str = ""
    """The shapes of that one's inputs."""


class HostContext:
    """What is around each entry of `host.tree`."""

    def __init__(self, trace: Trace, owners: origins.Owners) -> None:
        self.tree = host.tree(trace)
        kind = trace.kind[self.tree.row]
        parent = self.tree.nesting.parent
        entries = np.arange(len(kind))
        self.operator = inherited(parent, np.where(kind == Kind.OP, entries, -1))
        self.call = _calls(trace, self.tree)
        own = attribution.names_of(trace, (origins.Origin.USER,), owners)
        line = (kind == Kind.PYTHON) & own[trace.name[self.tree.row]]
        self.line = inherited(parent, np.where(line, entries, -1))
        paths, place = modules.of_slices(trace)
        self.paths = [*paths, ""]
        self.module = place[self.tree.row]
        self._trace = trace
        self._known: dict[tuple[int, Callable[[object], str]], str] = {}
        self.dims, self.types = trace.argument("dims"), trace.argument("types")

    def keys(self, entries: Ints) -> Keys:
        """For each entry, or -1, a number for each of what a `CostKey` tells of it: one row each."""
        around = (self.operator, self.line, self.module, self.call)
        operator, line, module, call = (np.append(column, -1)[entries] for column in around)
        row = np.append(self.tree.row, -1)
        columns = [
            module,
            np.where(line >= 0, self._trace.name[row[line]], -1),
            np.where(operator >= 0, self._trace.name[row[operator]], -1),
            np.where(operator >= 0, self.dims[row[operator]], -1),
            np.where(operator >= 0, self.types[row[operator]], -1),
            np.where(call >= 0, self._trace.name[row[call]], -1),
            np.where(call >= 0, self.dims[row[call]], -1),
        ]
        return np.stack(columns, axis=1).astype(np.int64).reshape(len(entries), len(columns))

    def where(self, part: int, keys: Sequence[int], kind: str = "", kernel: str = "") -> CostKey:
        """What such numbers stand for."""
        module, line, operator, dims, types, call, given = keys
        names = self._trace.names
        return CostKey(
            PARTS[part],
            self.paths[module],
            "" if line < 0 else _line(names[line]),
            "" if operator < 0 else json_values.text(names[operator], _TEXT),
            self._written(dims, _shapes),
            self._written(types, _types),
            kind,
            kernel,
            "" if call < 0 else json_values.text(names[call], _TEXT),
            self._written(given, _shapes),
        )

    def _written(self, text: int, write: Callable[[object], str]) -> str:
        """An argument as it is shown; few are distinct."""
        key = (text, write)
        if key not in self._known:
            self._known[key] = write(self._trace.text(text))
        return self._known[key]


def _calls(trace: Trace, tree: host.Tree) -> Ints:
    """For each entry the outermost operator around it, or -1.

    What autograd writes around operators is none of them. What Python spends in a function of torch's that is written
    in C, before and after the operator, belongs to that operator.
    """
    kind, parent, entries = trace.kind[tree.row], tree.nesting.parent, np.arange(len(tree.row))
    is_called = (kind == Kind.OP) & trace.matching(re.compile(operators.CALLED), tree.row)
    nearest = inherited(parent, np.where(is_called, entries, -1))
    around = np.append(nearest, -1)[parent]
    found: Ints = np.append(outermost(around), -1)[nearest]
    roots = np.flatnonzero((nearest == entries) & (around < 0))
    held, first = np.unique(parent[roots], return_index=True)
    first, held = first[held >= 0], held[held >= 0]
    is_in_c = (kind[held] == Kind.PYTHON) & trace.matching(_IN_C, tree.row[held])
    found[held[is_in_c]] = roots[first[is_in_c]]
    return found


_IN_C: Final = re.compile(r"^<built-in ")


_PLACE: Final = re.compile(r"(?:.*[/\\])?(.+)\(\d+\): (.+)")


def _line(frame: str) -> str:
    """A frame without its folder and its number, which change with every edit: ``train.py: step``."""
    found = _PLACE.fullmatch(frame)
    return json_values.text(f"{found[1]}: {found[2]}" if found else frame, _TEXT)


@functools.cache
def _short(words: tuple[str, ...]) -> str:
    return json_values.text(", ".join(dict.fromkeys(words)), _TEXT)


def _shapes(dims: object) -> str:
    """The shapes of the tensors among the inputs, as torch writes them."""
    shown = [each for each in dims if each] if isinstance(dims, list) else []
    return json_values.text(" ".join(json.dumps(each) for each in shown), _TEXT)


def _types(given: object) -> str:
    """What the tensors among the inputs hold, each type once: ``float, long int``."""
    words = given if isinstance(given, list) else []
    plain = (tensor_types.short(str(each)) for each in words if each and isinstance(each, str))
    return _short(tuple(each for each in plain if each not in _NO_TENSOR))


_NO_TENSOR: Final = (tensor_types.NUMBER, tensor_types.NUMBERS, tensor_types.GENERIC)
