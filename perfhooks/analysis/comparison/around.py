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

PARTS: Final = (*labels.PARTS, "other")


class CostKey(NamedTuple):
    """Code and device work to which time is attributed. A field is empty if it was not recorded."""

    part: str
    module: str = ""
    line: str = ""
    operator: str = ""
    """Innermost operator. For device work, the operator that launched the work."""
    shapes: str = ""
    types: str = ""
    kind: str = ""
    """Class of device work: compute, communication, copy, set or idle."""
    kernel: str = ""
    call: str = ""
    given: str = ""
    """Shapes of the inputs of ``call``, the outermost operator."""


class HostContext:
    def __init__(self, trace: Trace, owners: origins.Owners) -> None:
        self.tree = host.tree(trace)
        kind = trace.kind[self.tree.row]
        parent = self.tree.nesting.parent
        entries = np.arange(len(kind))
        self.operator = inherited(parent, np.where(kind == Kind.OP, entries, -1))
        self.call = _find_calls(trace, self.tree)
        own_names = attribution.names_of(trace, (origins.Origin.USER,), owners)
        line = (kind == Kind.PYTHON) & own_names[trace.name[self.tree.row]]
        self.line = inherited(parent, np.where(line, entries, -1))
        paths, index = modules.of_slices(trace)
        self.paths = [*paths, ""]
        self.module = index[self.tree.row]
        self._trace = trace
        self._texts: dict[tuple[int, Callable[[object], str]], str] = {}
        self.dims, self.types = trace.argument("dims"), trace.argument("types")

    def keys(self, entries: Ints) -> Keys:
        """Return the trace indices of the module, line, operator and shapes around each host slice, or -1."""
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
        module, line, operator, dims, types, call, call_dims = keys
        names = self._trace.names
        return CostKey(
            PARTS[part],
            self.paths[module],
            "" if line < 0 else _shorten_frame(names[line]),
            "" if operator < 0 else _shorten(names[operator]),
            self._format(dims, _format_shapes),
            self._format(types, _format_types),
            kind,
            kernel,
            "" if call < 0 else _shorten(names[call]),
            self._format(call_dims, _format_shapes),
        )

    def _format(self, text: int, write: Callable[[object], str]) -> str:
        key = (text, write)
        if key not in self._texts:
            self._texts[key] = write(self._trace.text(text))
        return self._texts[key]


def _find_calls(trace: Trace, tree: host.Tree) -> Ints:
    """Return the outermost operator around each host slice; for a frame of a C function, the first operator inside."""
    kind, parent, entries = trace.kind[tree.row], tree.nesting.parent, np.arange(len(tree.row))
    is_called = (kind == Kind.OP) & trace.matching(re.compile(operators.CALLED), tree.row)
    nearest = inherited(parent, np.where(is_called, entries, -1))
    enclosing = np.append(nearest, -1)[parent]
    calls: Ints = np.append(outermost(enclosing), -1)[nearest]
    roots = np.flatnonzero((nearest == entries) & (enclosing < 0))
    parents, first = np.unique(parent[roots], return_index=True)
    first, parents = first[parents >= 0], parents[parents >= 0]
    is_in_c = (kind[parents] == Kind.PYTHON) & trace.matching(_IN_C, tree.row[parents])
    calls[parents[is_in_c]] = roots[first[is_in_c]]
    return calls


_IN_C: Final = re.compile(r"^<built-in ")


_FRAME: Final = re.compile(r"(?:.*[/\\])?(.+)\(\d+\): (.+)")


def _shorten(text: str) -> str:
    return json_values.text(text, 200)


def _shorten_frame(frame: str) -> str:
    match = _FRAME.fullmatch(frame)
    return _shorten(f"{match[1]}: {match[2]}" if match else frame)


@functools.cache
def _join_distinct(words: tuple[str, ...]) -> str:
    return _shorten(", ".join(dict.fromkeys(words)))


def _format_shapes(dims: object) -> str:
    shapes = [shape for shape in dims if shape] if isinstance(dims, list) else []
    return _shorten(" ".join(json.dumps(shape) for shape in shapes))


def _format_types(types: object) -> str:
    names = types if isinstance(types, list) else []
    short_names = (tensor_types.short(str(name)) for name in names if name and isinstance(name, str))
    return _join_distinct(tuple(name for name in short_names if name not in _NO_TENSOR))


_NO_TENSOR: Final = (tensor_types.NUMBER, tensor_types.NUMBERS, tensor_types.GENERIC)
