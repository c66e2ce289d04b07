"""Names and sequence numbers for autograd nodes of torch 1.8 and 1.9, in the form of later recorders.

Only names link an autograd node to its operator: the node of ``aten::addmm`` is an ``AddmmBackward``, and the last
forward operator creates the first node of the backward pass.
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


def rename_nodes(columns: Mapping[str, Column], category: int, names: Mapping[str, int]) -> None:
    is_category = columns["category"] == category
    matches = [(name, number, _NODE.match(name)) for name, number in names.items()]
    renamed = np.arange(len(matches), dtype=np.int32)
    for name, number, is_node in matches:
        if is_node:
            renamed[number] = names[f"{ranges.NODE}{name}"]
    columns["name"][is_category] = renamed[columns["name"][is_category]]


def number_nodes(
    columns: Mapping[str, Column], names: Sequence[str], arguments: dict[str, tuple[Ints, Column]]
) -> None:
    """Give each autograd node and its forward operator the same sequence number, in sorted columns."""
    stems = [_stem(name) for name in names]
    is_node = np.array([name.startswith(ranges.NODE) for name in names], np.bool_)
    node_stems = {stem for stem, node in zip(stems, is_node.tolist(), strict=True) if node} - {""}
    has_node = np.array([stem in node_stems for stem in stems], np.bool_)
    rows = np.flatnonzero((columns["kind"] == Kind.OP) & (has_node | is_node)[columns["name"]])
    rows = rows[np.argsort(columns["start"][rows], kind="stable")]
    waiting: dict[str, list[int]] = {}
    pairs: list[tuple[int, int]] = []
    node_ends: dict[int, int] = {}
    slices = zip(
        rows.tolist(), *(columns[column][rows].tolist() for column in ("name", "thread", "start", "end")), strict=True
    )
    for row, name, thread, start, end in slices:
        if is_node[name]:
            node_ends[thread] = max(end, node_ends.get(thread, 0))
            if waiting.get(stems[name]):
                pairs.append((waiting[stems[name]].pop(), row))
        elif start >= node_ends.get(thread, 0):
            waiting.setdefault(stems[name], []).append(row)
    paired = np.array(pairs, np.int64).reshape(-1, 2)
    order = np.argsort(paired.ravel())
    arguments["sequence"] = (paired.ravel()[order], np.repeat(np.arange(len(paired)), 2)[order])


def _stem(name: str) -> str:
    node = re.match(ranges.BACKWARD_CLASS, name.removeprefix(ranges.NODE))
    word = node[1] if node else name.removeprefix(NAMESPACE) if name.startswith(NAMESPACE) else ""
    return word.replace("_", "").lower()
