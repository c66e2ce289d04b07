"""Flame graphs as data: folded stacks as a tree of few nodes, in columns."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfhooks.core import json_values
from perfhooks.run.loader import looks
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
"""The node of what is too small to be seen."""

KINDS: Final = ("code", "library", "module", "operator", "runtime", "label", "kernel", "other")
"""What a frame can be: one's own Python code, installed Python code, an ``nn.Module``, an operator, a call into the
runtime of a device, a label, work of a device."""

_KIND_OF: Final = (
    ("other", re.compile(r"\((?:other|skipped|unknown|outside|deeper)\)$")),
    ("module", re.compile(re.escape(ranges.MODULE))),
    ("library", re.compile(r"<")),
    ("runtime", re.compile(runtime_calls.RUNTIME)),
    ("operator", re.compile(operators.OPERATOR)),
)


def flames(capture: Capture, trace: Trace) -> dict[str, Any]:
    """Return the flame graphs of a window, by the time that their widths show; empty ones are left out."""
    tables = capture.tables(trace)
    graphs = {"host": tree(tables.calls("host"), owners=capture.owners)}
    if trace.is_device_traced:
        graphs["device"] = tree(tables.calls("device"), leaves="kernel", owners=capture.owners)
    if capture.circumstances.looked and graphs["host"]["value"][0]:
        graphs["workers"] = tree(planted(looks.folded(capture.circumstances.looked)), owners=capture.owners)
    return {name: graph for name, graph in graphs.items() if graph["value"][0]}


def kind(name: str, owners: Mapping[str, str] | None = None) -> str:
    """What a frame is, by its name; a name that tells nothing is a label's.

    Args:
        name: The name of a frame.
        owners: Whose code is whose, see `perfhooks.trace.names.attribution`.
    """
    found = origin(name, owners)
    if found is not Origin.NO_SOURCE:
        return "code" if found is Origin.USER else "library"
    return next((found for found, pattern in _KIND_OF if pattern.match(name)), "label")


def tree(
    stacks: Summed,
    *,
    share: float = 0.001,
    nodes: int = 1500,
    leaves: str = "",
    owners: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Make a flame graph's data from stacks.

    Nodes below a share of the whole are summed in a node ``(other)`` of their parent, so that a node's value is what
    it cost by itself and the sum of its children's.

    Args:
        stacks: What `perfhooks.trace.tables.stacks.summed` gives.
        share: The least share of the whole that a node has.
        nodes: The greatest number of nodes; where there are more, the largest are kept.
        leaves: The kind of all leaves, where they are of one.
        owners: Whose code is whose, see `perfhooks.trace.names.attribution`.

    Returns:
        ``names`` and ``kinds`` (an index into `KINDS`) of the distinct frames; ``parent`` (-1 for the root), ``frame``
        and ``value`` of the nodes, parents before their children, siblings by value.
    """
    lines = _listed(_from_user_code(stacks, owners), share, nodes)
    inner = {parent for parent, _, _ in lines}
    names: dict[tuple[str, str], int] = {}
    frame = []
    kinds = {name: kind(name, owners) for name in {name for _, name, _ in lines}}
    for place, (_, name, _) in enumerate(lines):
        found = kinds[name]
        found = leaves if leaves and place not in inner and found != "other" else found
        frame.append(names.setdefault((part_names.readable(name), found), len(names)))
    return {
        "names": [json_values.text(name) for name, _ in names],
        "kinds": [KINDS.index(found) for _, found in names],
        "parent": [parent for parent, _, _ in lines],
        "frame": frame,
        "value": [value for _, _, value in lines],
    }


def planted(stacks: Mapping[str, int]) -> Summed:
    """The tree of folded stacks, as ``outer;inner``, and their own values."""
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
    """The stacks without installed code above their first frame of the user; stacks without such a frame stay whole."""
    parents, frames = stacks.parents.tolist(), stacks.frames.tolist()
    kinds: dict[int, str] = {}
    is_inside: list[bool] = []  # the user's code, or called by it
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
            for kept in _labels_above(node, parents, frames, kinds):
                around = numbers.setdefault((around, kept), len(numbers))
        places.append(numbers.setdefault((around, frame), len(numbers)))
    values = grouping.summed(np.array(places, np.int64), stacks.values, len(numbers))
    around_each, frame_of_each = np.array(list(numbers), np.int64).T
    return Summed(stacks.names, around_each, frame_of_each, values)


def _labels_above(node: int, parents: list[int], frames: list[int], kinds: Mapping[int, str]) -> list[int]:
    """The frames above a node that are no installed code, the outermost first."""
    found = []
    while (node := parents[node]) >= 0:
        if kinds[frames[node]] != "library":
            found.append(frames[node])
    return found[::-1]


def _listed(stacks: Summed, share: float, nodes: int) -> list[tuple[int, str, int]]:
    """The largest nodes and their names and values, each after its parent, of which it has the place."""
    whole, own_of = int(stacks.values.sum()), stacks.values.tolist()
    total = host.summed_down(stacks.parents, stacks.values)
    kept = _largest(stacks, total, whole * share, nodes)
    total_of, names = total.tolist(), [stacks.names[frame] for frame in stacks.frames.tolist()]
    children: dict[int, list[int]] = {}
    for parent, node in zip(stacks.parents[kept].tolist(), kept.tolist(), strict=True):  # largest first
        children.setdefault(parent, []).append(node)
    lines: list[tuple[int, str, int]] = []
    waiting = [(-1, -1, "all", whole, 0)]
    while waiting:
        parent, node, name, value, own = waiting.pop()
        place = len(lines)
        lines.append((parent, name, value))
        below = children.get(node, []) if own >= 0 else []
        rest = value - own - sum(total_of[each] for each in below) if own >= 0 else 0
        found = [(place, each, names[each], total_of[each], own_of[each]) for each in below]
        found += [(place, -1, OTHER, rest, -1)] if rest else []
        waiting += sorted(found, key=lambda each: each[3])
    return lines


def _largest(stacks: Summed, total: Ints, least: float, nodes: int) -> Ints:
    """The nodes of at least a size, largest first and parents before children, and with their rests not too many."""
    kept = np.flatnonzero(total >= max(least, 1))
    kept = kept[np.argsort(-total[kept], kind="stable")]
    while True:
        rest = np.append(total - stacks.values, stacks.values.sum())  # the last is the root
        np.subtract.at(rest, stacks.parents[kept], total[kept])
        surplus = len(kept) + 1 + int((rest[np.append(kept, -1)] > 0).sum()) - nodes
        if surplus <= 0 or not len(kept):
            return kept
        kept = kept[: -((surplus + 1) // 2)]
