"""Folded stacks: what a flame graph is made of, from the trace's own Python frames and operators."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np

from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.names import torch_rules
from perfhooks.trace.nesting import autograd, device, grouping, host, idle_threads, intervals, own_frames
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

UNINTERESTING: Final = (
    # two branches in all, as each one is tried at every letter of every name
    r"(?:^|/)(?:runpy\.py\(|importlib/|threading\.py\(\d+\): (?:_bootstrap|_bootstrap_inner|run)$"
    r"|torch/(?:profiler/|autograd/profiler\.py\())|<frozen (?:runpy>|importlib)"
)
"""Frames that every stack has and nobody looks for: how Python was started, and torch's profiler. Those of perfhooks,
and what they call for themselves, are left out with them."""

SKIPPED: Final = "(skipped)"
"""The stack of time whose frames are all uninteresting."""
UNKNOWN: Final = "(unknown)"
"""The stack of work of which the trace does not tell who launched it."""
OUTSIDE: Final = "(outside)"
"""The stack of memory that was allocated while no recorded code ran."""
DEEPER: Final = "(deeper)"
"""The frame of all that is nested too deep to be written."""

_MOST: Final = 32 << 20
_MOST_PER_SLICE: Final = 300
"""Letters that all stacks of a trace may have together, and how many more for each of its slices. The recorded trace
with the longest stacks has 18 million, 825 a slice; slices that nest 100,000 deep would have 10^10."""

_LEAST: Final = 20
"""Letters of either end of a name: fewer say nothing."""

_PLACE: Final = re.compile(r"(.+)\((\d{1,9})\): .+")
# the schema has no bounds for a line, but what reads it may


def folded(
    trace: Trace,
    by: Literal["host", "device", "bytes"] = "host",
    *,
    skip: str | None = UNINTERESTING,
) -> dict[str, int]:
    """Sum what each stack of calls cost by itself.

    A stack is ``outer;inner;leaf``: Python frames if they were recorded, labels, operators and runtime calls, as they
    nest on their thread. Nothing is lost: over all stacks, times by host sum to the union of the slices of each thread
    (less what threads other than those of the steps wait for locks, queues, files and time, and less what perfhooks
    took, unless ``skip`` is None), times by device to the
    durations of all work, bytes to everything that was allocated.

    Args:
        trace: any trace; without Python frames, labels and operators make the stacks.
        by: ``"host"``, nanoseconds of the host; ``"device"``, nanoseconds of device work, moved to the stack that
            launched it, with the name of the work as leaf; ``"bytes"``, bytes allocated, released later or not.
        skip: a regular expression; frames in whose name it is found are left out, and their own time goes to their
            caller. None leaves out none.

    Returns:
        The stacks and their values, greatest first.
    """
    found = summed(trace, by, skip=skip)
    kept = _leading(found.parents, found.values != 0)
    place = np.append(np.cumsum(kept) - 1, -1)
    names = [found.names[frame] for frame in found.frames[kept].tolist()]
    values: dict[str, int] = {}
    for text, value in zip(
        host.joined(place[found.parents[kept]], names, ";"), found.values[kept].tolist(), strict=True
    ):
        if value:
            values[text] = values.get(text, 0) + value
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _leading(parents: Ints, wanted: Flags) -> Flags:
    """The nodes that are wanted, and all nodes around them."""
    found: Flags = wanted.copy()
    new = np.flatnonzero(found)
    while len(new):
        around = intervals.distinct(parents[new])
        new = around[(around >= 0) & ~np.append(found, True)[around]]
        found[new] = True
    return found


@cached_per_trace
def summed(
    trace: Trace,
    by: Literal["host", "device", "bytes"] = "host",
    *,
    skip: str | None = UNINTERESTING,
) -> Summed:
    """The same as a tree, which grows with the trace and not with the lengths of its stacks.

    What is nested so deep that `folded` would not fit in memory is one frame ``(deeper)``.

    Args:
        trace: any trace.
        by: see `folded`.
        skip: see `folded`.
    """
    found = _paths(trace, skip)
    node, leaf, value = {"host": _host, "device": _device, "bytes": _bytes}[by](trace, found)
    return _cut(_planted(found, node, leaf, value), _MOST + _MOST_PER_SLICE * len(trace))


def write(stacks: Mapping[str, int], file: IO[bytes]) -> None:
    """Write stacks as ``outer;inner;leaf value`` lines, which flame graph tools read; values as they are, unscaled."""
    for stack, value in stacks.items():
        file.write(f"{stack} {value}\n".encode())


def write_speedscope(stacks: Mapping[str, int], file: IO[bytes], *, name: str, unit: str = "nanoseconds") -> None:
    """Write stacks as a sampled profile for speedscope: each stack is one sample, whose weight is its value.

    The format is that of https://www.speedscope.app/file-format-schema.json. Frames that name their place, as
    ``file.py(12): function`` does, have it as ``file`` and ``line``.

    Args:
        stacks: what `folded` gives.
        file: an open binary file.
        name: what the profile is called.
        unit: ``"nanoseconds"`` or ``"bytes"``.
    """
    places: dict[str, int] = {}
    samples = [[places.setdefault(frame, len(places)) for frame in stack.split(";")] for stack in stacks]
    profile = {"type": "sampled", "name": name, "unit": unit, "startValue": 0, "endValue": sum(stacks.values())}
    document = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "perfhooks",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in places]},
        "profiles": [profile | {"samples": samples, "weights": list(stacks.values())}],
    }
    file.write(msgspec.json.encode(document))


def _frame(name: str) -> dict[str, str | int]:
    place = _PLACE.fullmatch(name)
    return {"name": name} | ({"file": place[1], "line": int(place[2])} if place else {})


def by_depth(trace: Trace, depth: int) -> tuple[list[str], Ints]:
    """The distinct stacks of Python frames cut to the innermost ones, and for each slice the place of its own, or -1.

    Stacks are written as in `folded`, outermost first. Device work has the stack that launched it, and work of the
    backward pass, as in torch, that of the operator which made its node; unless none is known.

    Args:
        trace: any trace; without Python frames there are no stacks.
        depth: how many frames to keep.
    """
    tree = host.tree(trace)
    frame = trace.name[tree.row]
    found = host.paths(tree.nesting, frame, trace.kind[tree.row] != Kind.PYTHON)
    parents, frames = (np.append(values, -1) for values in (found.parents, found.frames))
    node = np.arange(len(frames) - 1)
    cut = np.empty((len(node), depth), np.int64)
    for column in range(depth - 1, -1, -1):
        cut[:, column] = frames[node]
        node = parents[node]
    distinct, place = np.unique(cut, axis=0, return_inverse=True)
    nodes = autograd.find(trace)
    made = inherited(tree.nesting.parent, nodes.source)
    stack = np.where((made >= 0) & (nodes.inside >= 0), np.append(found.node, -1)[made], found.node)
    mine = np.append(place.ravel(), -1)[np.append(stack, -1)]
    of_slice = np.full(len(trace), -1, np.int64)
    of_slice[tree.row] = mine[:-1]
    of_slice[trace.device_rows] = mine[host.launchers(trace)]
    names = _short(trace, distinct, np.bincount(of_slice[of_slice >= 0], minlength=len(distinct)))
    return [";".join(names[each] for each in row if each >= 0) for row in distinct.tolist()], of_slice


def _short(trace: Trace, rows: Ints, uses: Ints) -> list[str]:
    """The names of all frames, without their middles if the rows, each as often as it is used, would be too long."""
    names = list(map(_escape, trace.names))
    most = _MOST + _MOST_PER_SLICE * len(trace)
    lengths = np.array([*map(len, names), 0], np.int64)[rows].sum(axis=1)
    if (lengths * np.maximum(uses, 1)).sum() <= most:
        return names
    half = max(most // (int(uses.sum()) * (rows.size // len(rows)) + 1) // 2, _LEAST)
    return [name if len(name) <= 2 * half else f"{name[:half]}…{name[-half:]}" for name in names]


class Summed(NamedTuple):
    """What each stack cost by itself: the stacks as nodes of a tree, each after the one around it."""

    names: list[str]
    parents: Ints
    """For each node the one around it, or -1."""
    frames: Ints
    """For each node its innermost frame, one of the names."""
    values: Ints
    """Its own."""


class _Named(NamedTuple):
    """The stacks of a trace, with the names of their frames."""

    paths: host.Paths
    names: list[str]
    frame: Ints
    """For each of `Trace.names` its place among these."""
    ours: Flags
    """Which entries of the tree are left out with their time, as it is that of perfhooks."""


@cached_per_trace
def _paths(trace: Trace, skip: str | None) -> _Named:
    tree = host.tree(trace)
    shown = [torch_rules.shown_name(name) for name in trace.names]
    frames: dict[str, int] = {}
    frame = np.array([frames.setdefault(_escape(name), len(frames)) for name in shown] or [0], np.int64)
    pattern = re.compile(skip) if skip else None
    dull = np.zeros(len(shown), np.bool_)
    for number in trace.names_of(*HOST):
        dull[number] = pattern is not None and pattern.search(shown[number]) is not None
    names = trace.name[tree.row]
    ours = own_frames.is_perfhooks(trace) & (pattern is not None)
    return _Named(host.paths(tree.nesting, frame[names], dull[names] | ours), list(frames), frame, ours)


def _planted(found: _Named, node: Ints, leaf: Ints, value: Ints) -> Summed:
    """The tree with values at its nodes, or at leaves below them; nodes below 0 are `_NOWHERE`."""
    names = [*found.names, *_NOWHERE]
    count, known = len(found.paths.parents), len(found.names)
    parents = np.append(found.paths.parents, np.full(len(_NOWHERE), -1))
    frames = np.append(found.paths.frames, known + np.arange(len(_NOWHERE)))
    at = np.where(node >= 0, node, count - 1 - node)
    below = np.flatnonzero(leaf >= 0)
    keys, mine = np.unique(at[below] * known + leaf[below], return_inverse=True)
    around, under = np.divmod(keys, max(known, 1))
    at[below] = len(parents) + mine.ravel()
    values = grouping.summed(at, value, len(parents) + len(keys))
    return Summed(names, np.append(parents, around), np.append(frames, under), values)


def _cut(found: Summed, most: int) -> Summed:
    """The tree without what is too deep to be written; its values stand at frames that say so."""
    lengths = np.array([*map(len, found.names), 0], np.int64)[found.frames]
    depth = host.depths(found.parents)
    deepest = host.writable_depth(found.parents, depth, lengths, most)
    if not (depth > deepest).any():
        return found
    top = host.ancestors(found.parents, depth, deepest)
    cut, mine = np.unique(top[depth > deepest], return_inverse=True)
    kept = np.flatnonzero(depth <= deepest)
    place = np.full(len(depth), -1, np.int64)
    place[kept] = np.arange(len(kept))
    return Summed(
        [*found.names, DEEPER],
        np.append(np.append(place, -1)[found.parents[kept]], place[cut]),
        np.append(found.frames[kept], np.full(len(cut), len(found.names))),
        np.append(found.values[kept], grouping.summed(mine.ravel(), found.values[depth > deepest], len(cut))),
    )


def _escape(name: str) -> str:
    """A frame that cannot break the format: semicolons separate frames, and line breaks stacks."""
    return " ".join(name.replace(";", ":").split()) or "?"


_NOWHERE: Final = (SKIPPED, UNKNOWN, OUTSIDE)
"""What stands for the nodes -1, -2 and -3."""


def _host(trace: Trace, found: _Named) -> tuple[Ints, Ints, Ints]:
    node, own = found.paths.node, host.tree(trace).nesting.own
    return node, np.full(len(node), -1, np.int64), np.where(idle_threads.waiting(trace) | found.ours, 0, own)


def _device(trace: Trace, found: _Named) -> tuple[Ints, Ints, Ints]:
    """Device work by the stack of the call that launched it, else of the operator it names."""
    work = trace.device_rows
    node = np.append(found.paths.node, -2)[host.launchers(trace)]
    return node, found.frame[trace.name[work]], device.own_times(trace)


def _bytes(trace: Trace, found: _Named) -> tuple[Ints, Ints, Ints]:
    """Allocations by the innermost slice that was open on their thread."""
    events = trace.instants
    grown = np.flatnonzero(events.size > 0)
    open_then = host.innermost(trace, events.thread[grown], events.time[grown])
    node = np.append(found.paths.node, -3)[open_then]
    return node, np.full(len(grown), -1, np.int64), events.size[grown]
