from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core.labels import unescaped
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.nesting.intervals import NEARLY_ALL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perfhooks.trace.model import Column, Ints

_LETTERS: Final = {"\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t"}
_CONTROL: Final = re.compile(r"[\b\f\n\r\t]")
_FRAME: Final = re.compile(r"\.pyw?\(\d+\): ")
_ADDRESS: Final = re.compile(r"(?: of pybind11_builtins\.\w+ object)? at 0x[0-9a-fA-F]+")


def spelled(name: str) -> str:
    """Return a name as the program spells it.

    Escapes of non-ASCII characters are decoded. Kineto does not escape backslashes of Windows paths, so JSON contains
    control characters, which become backslashes again.
    """
    if _CONTROL.search(name) and _FRAME.search(name):
        name = _CONTROL.sub(lambda letter: _LETTERS[letter[0]], name)
    return unescaped(name)


def strip_addresses(names: Iterable[str]) -> tuple[list[str], Ints]:
    """Return the distinct names without memory addresses, and the index of each original name."""
    distinct: dict[str, int] = {}
    indices = [distinct.setdefault(_ADDRESS.sub("", spelled(name)), len(distinct)) for name in names]
    return list(distinct), np.array(indices, np.int64)


def forget_aliased_external_ids(kind: Column, arguments: dict[str, tuple[Ints, Column]]) -> None:
    """Drop external ids that are copies of correlations, as recorders before about torch 2.0 write them."""
    empty = np.empty(0, np.int64)
    rows, values = arguments.get("external", (empty, empty))
    correlation = np.full(len(kind), -1, np.int64)
    numbered, numbers = arguments.get("correlation", (empty, empty))
    correlation[numbered] = numbers
    launches = (kind[rows] == Kind.RUNTIME) & (correlation[rows] > 0)
    if launches.any() and (values == correlation[rows])[launches].mean() >= NEARLY_ALL:
        is_valid = ~np.isin(kind[rows], (Kind.RUNTIME, *DEVICE_WORK))
        arguments["external"] = (rows[is_valid], values[is_valid])
