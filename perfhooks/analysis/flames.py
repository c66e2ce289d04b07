from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfhooks.core import json_values
from perfhooks.run.loader.workers import folded
from perfhooks.trace.names import operators, part_names, ranges, runtime_calls
from perfhooks.trace.names.origins import Origin, origin
from perfhooks.trace.nesting import grouping, host
from perfhooks.trace.tables.stacks import Summed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints

OTHER: Final = "(other)"

KINDS: Final = ("code", "library", "module", "operator", "runtime", "label", "kernel", "other")

_KIND_OF: Final = (
    ("other", re.compile(r"\((?:other|skipped|unknown|outside|deeper)\)$")),
    ("module", re.compile(re.escape(ranges.MODULE))),
    ("library", re.compile(r"<")),
    ("runtime", re.compile(runtime_calls.RUNTIME)),
    ("operator", re.compile(operators.OPERATOR)),
)


def flames(capture: Capture, trace: Trace) -> dict[str, Any]:
    """Return the non-empty flame graphs of a window, keyed by name."""
    tables = capture.tables(trace)
    graphs = {"host": tree(tables.calls("host"), owners=capture.owners)}
    if trace.is_device_traced:
        graphs["device"] = tree(tables.calls("device"), leaves="kernel", owners=capture.owners)
    if capture.circumstances.workers and graphs["host"]["value"][0]:
        graphs["workers"] = tree(planted(folded(capture.circumstances.workers)), owners=capture.owners)
    return {name: graph for name, graph in graphs.items() if graph["value"][0]}


def kind(name: str, owners: Mapping[str, str] | None = None) -> str:
    """Return the kind of a frame by its name. Names without a known pattern are labels."""
    frame_origin = origin(name, owners)
    if frame_origin is not Origin.NO_SOURCE:
        return "code" if frame_origin is Origin.USER else "library"
    return next((frame_kind for frame_kind, pattern in _KIND_OF if pattern.match(name)), "label")


def tree(
    stacks: Summed,
    *,
    share: float = 0.001,
    nodes: int = 1500,
    leaves: str = "",
    owners: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the data of a flame graph.

    Nodes below the fraction ``share`` of the total are merged into a node ``(other)`` of their parent. ``leaves`` is
    the kind of the innermost frames, for example ``kernel``.

    Returns:
        ``names`` and ``kinds`` (an index into `KINDS`) of the distinct frames; ``parent`` (-1 for the root), ``frame``
        and ``value`` of the nodes, parents first.
    """
    lines = _listed(_from_user_code(stacks, owners), share, nodes)
    inner = {parent for parent, _, _ in lines}
    names: dict[tuple[str, str], int] = {}
    frame = []
    kinds = {name: kind(name, owners) for name in {name for _, name, _ in lines}}
    for index, (_, name, _) in enumerate(lines):
        frame_kind = kinds[name]
        frame_kind = leaves if leaves and index not in inner and frame_kind != "other" else frame_kind
        frame.append(names.setdefault((part_names.readable(name), frame_kind), len(names)))
    return {
        "names": [json_values.text(name) for name, _ in names],
        "kinds": [KINDS.index(frame_kind) for _, frame_kind in names],
        "parent": [parent for parent, _, _ in lines],
        "frame": frame,
        "value": [value for _, _, value in lines],
    }


def planted(stacks: Mapping[str, int]) -> Summed:
    """Convert folded stacks (``outer;inner``) to a tree."""
    names: dict[str, int] = {}
    nodes: dict[tuple[int, str], int] = {}
    values: list[int] = []
    for stack, value in stacks.items():
        node = -1
        for name in stack.split(";"):
            names.setdefault(name, len(names))
            node = nodes.setdefault((node, name), len(nodes))
            values += [0] * (len(nodes) - len(values))
        values[node] += value
    parents = np.array([parent for parent, _ in nodes], np.int64)
    frames = np.array([names[name] for _, name in nodes], np.int64)
    return Summed(list(names), parents, frames, np.array(values, np.int64))


def _from_user_code(stacks: Summed, owners: Mapping[str, str] | None) -> Summed:
    parents, frames = stacks.parents.tolist(), stacks.frames.tolist()
    kinds: dict[int, str] = {}
    is_inside: list[bool] = []
    outermost: dict[int, int] = {}
    for node, (parent, frame) in enumerate(zip(parents, frames, strict=True)):
        is_below = parent >= 0 and is_inside[parent]
        if not is_below and frame not in kinds:
            kinds[frame] = kind(stacks.names[frame], owners)
        is_inside.append(is_below or kinds[frame] == "code")
        if is_inside[-1] and not is_below:
            outermost[node] = parent
    if not any(parent >= 0 for parent in outermost.values()):
        return stacks
    numbers: dict[tuple[int, int], int] = {}
    places: list[int] = []
    for node, (parent, frame) in enumerate(zip(parents, frames, strict=True)):
        around = places[parent] if parent >= 0 else -1
        if node in outermost:
            around = -1
            for label in _labels_above(node, parents, frames, kinds):
                around = numbers.setdefault((around, label), len(numbers))
        places.append(numbers.setdefault((around, frame), len(numbers)))
    values = grouping.summed(np.array(places, np.int64), stacks.values, len(numbers))
    around_each, frame_of_each = np.array(list(numbers), np.int64).T
    return Summed(stacks.names, around_each, frame_of_each, values)


def _labels_above(node: int, parents: list[int], frames: list[int], kinds: Mapping[int, str]) -> list[int]:
    labels = []
    while (node := parents[node]) >= 0:
        if kinds[frames[node]] != "library":
            labels.append(frames[node])
    return labels[::-1]


def _listed(stacks: Summed, share: float, nodes: int) -> list[tuple[int, str, int]]:
    total_value, own_of = int(stacks.values.sum()), stacks.values.tolist()
    total = host.summed_down(stacks.parents, stacks.values)
    largest = _largest(stacks, total, total_value * share, nodes)
    total_of, names = total.tolist(), [stacks.names[frame] for frame in stacks.frames.tolist()]
    children: dict[int, list[int]] = {}
    for parent, node in zip(stacks.parents[largest].tolist(), largest.tolist(), strict=True):
        children.setdefault(parent, []).append(node)
    lines: list[tuple[int, str, int]] = []
    waiting = [(-1, -1, "all", total_value, 0)]
    while waiting:
        parent, node, name, value, own = waiting.pop()
        index = len(lines)
        lines.append((parent, name, value))
        below = children.get(node, []) if own >= 0 else []
        remainder = value - own - sum(total_of[child] for child in below) if own >= 0 else 0
        rows = [(index, child, names[child], total_of[child], own_of[child]) for child in below]
        rows += [(index, -1, OTHER, remainder, -1)] if remainder else []
        waiting += sorted(rows, key=lambda row: row[3])
    return lines


def _largest(stacks: Summed, total: Ints, minimum: float, nodes: int) -> Ints:
    largest = np.flatnonzero(total >= max(minimum, 1))
    largest = largest[np.argsort(-total[largest], kind="stable")]
    while True:
        remainders = np.append(total - stacks.values, stacks.values.sum())
        np.subtract.at(remainders, stacks.parents[largest], total[largest])
        surplus = len(largest) + 1 + int((remainders[np.append(largest, -1)] > 0).sum()) - nodes
        if surplus <= 0 or not len(largest):
            return largest
        largest = largest[: -((surplus + 1) // 2)]
