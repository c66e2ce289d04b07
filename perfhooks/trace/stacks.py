"""Folded stacks: what a flame graph is made of, from the trace's own Python frames and operators."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple

import numpy as np

from perfhooks.trace import torch_rules
from perfhooks.trace.kinds import HOST
from perfhooks.trace.nesting import Nesting, nest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Column, Ints, Trace

UNINTERESTING: Final = (
    r"(?:^|/)runpy\.py\(|<frozen runpy>|<frozen importlib|(?:^|/)importlib/"
    r"|(?:^|/)threading\.py\(\d+\): (?:_bootstrap|_bootstrap_inner|run)$"
    r"|(?:^|/)torch/profiler/|(?:^|/)torch/autograd/profiler\.py\(|(?:^|/)perfhooks/"
)
"""Frames that every stack has and nobody looks for: how Python was started, and the profiler itself."""

SKIPPED: Final = "(skipped)"
"""The stack of time whose frames are all uninteresting."""
UNKNOWN: Final = "(unknown)"
"""The stack of work of which the trace does not tell who launched it."""
OUTSIDE: Final = "(outside)"
"""The stack of memory that was allocated while no recorded code ran."""


class _Tree(NamedTuple):
    """The slices of the host and the stack of each; a stack is a node with a parent node and a frame."""

    row: Ints
    thread: Column
    nesting: Nesting
    node: Ints
    """The node of each slice; -1 where all its frames are skipped."""
    parents: list[int]
    frames: list[str]


def folded(
    trace: Trace, by: Literal["host", "device", "bytes"] = "host", *, skip: str | None = UNINTERESTING
) -> dict[str, int]:
    """Sum what each stack of calls cost by itself.

    A stack is ``outer;inner;leaf``: Python frames if they were recorded, labels, operators and runtime calls, as they
    nest on their thread. Nothing is lost: over all stacks, times by host sum to the union of the slices of each thread,
    times by device to the durations of all work, bytes to everything that was allocated.

    Args:
        trace: any trace; without Python frames, labels and operators make the stacks.
        by: ``"host"``, nanoseconds of the host; ``"device"``, nanoseconds of device work, moved to the stack that
            launched it, with the name of the work as leaf; ``"bytes"``, bytes allocated, released later or not.
        skip: a regular expression; frames in whose name it is found are left out, and their own time goes to their
            caller. None leaves out none.

    Returns:
        The stacks and their values, greatest first.
    """
    tree = _tree(trace, skip)
    found: dict[str, int] = {}
    texts = _texts(tree)
    for node, leaf, value in {"host": _host, "device": _device, "bytes": _bytes}[by](trace, tree):
        stack = texts[node] if node >= 0 else {-1: SKIPPED, -2: UNKNOWN, -3: OUTSIDE}[node]
        stack = f"{stack};{leaf}" if leaf else stack
        found[stack] = found.get(stack, 0) + value
    return dict(sorted(((stack, value) for stack, value in found.items() if value), key=lambda item: -item[1]))


def write(stacks: Mapping[str, int], file: IO[bytes]) -> None:
    """Write stacks as ``outer;inner;leaf value`` lines, which flame graph tools read; values as they are, unscaled."""
    for stack, value in stacks.items():
        file.write(f"{stack} {value}\n".encode())


def _tree(trace: Trace, skip: str | None) -> _Tree:
    rows = trace.rows(*HOST)
    thread = trace.thread[rows]
    nesting = nest(thread, trace.start[rows], trace.end[rows])
    names, place = torch_rules.shown_names(trace.names)
    frame = place[trace.name[rows]]
    pattern = re.compile(skip) if skip else None
    dull = np.array([bool(pattern and pattern.search(name)) for name in names] or [False])[frame]
    node, parents, frames = _nodes(nesting, frame, dull, len(names))
    escaped = [_escape(name) for name in names]
    return _Tree(rows, thread, nesting, node, parents, [escaped[each] for each in frames])


def _escape(name: str) -> str:
    """A frame that cannot break the format: semicolons separate frames, and line breaks stacks."""
    return " ".join(name.replace(";", ":").split()) or "?"


def _nodes(nesting: Nesting, frame: Ints, dull: Column, count: int) -> tuple[Ints, list[int], list[int]]:
    """Number the distinct stacks, from the outermost slices inwards."""
    node = np.full(len(frame) + 1, -1, np.int64)  # the last entry is the parent of slices that have none
    parents: list[int] = []
    frames: list[int] = []
    by_depth = np.argsort(nesting.depth, kind="stable")
    edges = np.searchsorted(nesting.depth[by_depth], np.arange(int(nesting.depth.max(initial=0)) + 2))
    for first, last in pairwise(edges.tolist()):
        level = by_depth[first:last]
        above = node[nesting.parent[level]]
        node[level[dull[level]]] = above[dull[level]]
        level, above = level[~dull[level]], above[~dull[level]]
        keys, place = np.unique((above + 1) * count + frame[level], return_inverse=True)
        node[level] = place + len(parents)
        parents += (keys // max(count, 1) - 1).tolist()
        frames += (keys % max(count, 1)).tolist()
    return node[:-1], parents, frames


def _texts(tree: _Tree) -> list[str]:
    texts: list[str] = []
    for parent, frame in zip(tree.parents, tree.frames, strict=True):
        texts.append(f"{texts[parent]};{frame}" if parent >= 0 else frame)
    return texts


def _host(trace: Trace, tree: _Tree) -> list[tuple[int, str, int]]:  # noqa: ARG001 - one signature for all three
    return _summed(tree.node, tree.nesting.own)


def _summed(node: Ints, value: Ints) -> list[tuple[int, str, int]]:
    keys, place = np.unique(node, return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, place, value)
    return [(key, "", each) for key, each in zip(keys.tolist(), total.tolist(), strict=True)]


def _device(trace: Trace, tree: _Tree) -> list[tuple[int, str, int]]:
    """Device work by the stack of the call that launched it, else of the operator it names."""
    node_of = np.full(len(trace) + 1, -2, np.int64)
    node_of[tree.row] = tree.node
    work = trace.device_rows
    owner = np.where(trace.launches >= 0, trace.launches, torch_rules.named_operator(trace, work))
    spans = (trace.end - trace.start)[work].tolist()
    leaves = [_escape(trace.names[name]) for name in trace.name[work].tolist()]
    return list(zip(node_of[owner].tolist(), leaves, spans, strict=True))


def _bytes(trace: Trace, tree: _Tree) -> list[tuple[int, str, int]]:
    """Allocations by the innermost slice that was open on their thread."""
    events = trace.instants
    grown = events.size > 0
    thread, time, size = events.thread[grown], events.time[grown], events.size[grown]
    node = np.full(len(time), -3, np.int64)
    for each in np.unique(thread):
        mine = np.flatnonzero(tree.thread == each)
        here = thread == each
        if len(mine):
            node[here] = _open_node(trace, tree, mine, time[here])
    return _summed(node, size)


def _open_node(trace: Trace, tree: _Tree, mine: Ints, time: Ints) -> Ints:
    place = np.searchsorted(trace.start[tree.row[mine]], time, "right") - 1
    current = np.where(place >= 0, mine[np.maximum(place, 0)], -1)
    while True:
        over = (current >= 0) & (tree.nesting.end[current] < time)
        if not over.any():
            break
        current = np.where(over, tree.nesting.parent[current], current)
    found: Ints = np.where(current >= 0, tree.node[current], -3)
    return found


__all__ = ["OUTSIDE", "SKIPPED", "UNINTERESTING", "UNKNOWN", "folded", "write"]
