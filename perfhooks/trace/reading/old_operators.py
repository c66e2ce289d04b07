"""The nodes of autograd as torch 1.8 and 1.9 wrote them, named and linked as later recorders do.

Everything of theirs is an ``Operator``, a node bears the bare name of its class, and nothing says which operator made
it. That is told by the names: the node of ``aten::addmm`` is an ``AddmmBackward``, and the last operator makes the
first node.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.names.operators import NAMESPACE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from perfhooks.trace.model import Column, Ints

CATEGORY: Final = "Operator"
_NODE: Final = re.compile(rf"{ranges.BACKWARD_CLASS}|{ranges.LEAF}$")


def tell(columns: Mapping[str, Column], category: int, names: Mapping[str, int]) -> None:
    """Name nodes as nodes are named since.

    Args:
        columns: of all slices; names change.
        category: the number of theirs.
        names: numbers by name, which grow as they are asked for.
    """
    mine = columns["category"] == category
    known = [(name, number, _NODE.match(name)) for name, number in names.items()]
    renamed = np.arange(len(known), dtype=np.int32)
    for name, number, is_node in known:
        if is_node:
            renamed[number] = names[f"{ranges.NODE}{name}"]
    columns["name"][mine] = renamed[columns["name"][mine]]


def number(columns: Mapping[str, Column], names: Sequence[str], given: dict[str, tuple[Ints, Column]]) -> None:
    """Give each node and the operator that made it a number in common, as sequence numbers are.

    Args:
        columns: of all slices, sorted as in a `Trace`.
        names: by number.
        given: their arguments, by name: rows and values; the numbers are added.
    """
    kinds = [_kind_of(name) for name in names]
    is_node = np.array([name.startswith(ranges.NODE) for name in names], np.bool_)
    made = {kind for kind, node in zip(kinds, is_node.tolist(), strict=True) if node} - {""}
    matters = np.array([kind in made for kind in kinds], np.bool_)
    rows = np.flatnonzero((columns["kind"] == Kind.OP) & (matters | is_node)[columns["name"]])
    rows = rows[np.argsort(columns["start"][rows], kind="stable")]
    waiting: dict[str, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    over: dict[int, int] = {}  # by thread, until when a node runs: what begins in it makes none
    times = zip(
        rows.tolist(), *(columns[each][rows].tolist() for each in ("name", "thread", "start", "end")), strict=True
    )
    for row, name, thread, start, end in times:
        if is_node[name]:
            over[thread] = max(end, over.get(thread, 0))
            if waiting.get(kinds[name]):
                pairs.append((waiting[kinds[name]].pop(), row))
        elif start >= over.get(thread, 0):
            waiting.setdefault(kinds[name], []).append(row)
    both = np.array(pairs, np.int64).reshape(-1, 2)
    order = np.argsort(both.ravel())
    given["sequence"] = (both.ravel()[order], np.repeat(np.arange(len(both)), 2)[order])


def _kind_of(name: str) -> str:
    """What an operator and the node that it makes have in common; nothing for what is neither."""
    found = re.match(ranges.BACKWARD_CLASS, name.removeprefix(ranges.NODE))
    word = found[1] if found else name.removeprefix(NAMESPACE) if name.startswith(NAMESPACE) else ""
    return word.replace("_", "").lower()
