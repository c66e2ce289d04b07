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
    # only two branches, because the regex tries each at every letter
    r"(?:^|/)(?:runpy\.py\(|importlib/|threading\.py\(\d+\): (?:_bootstrap|_bootstrap_inner|run)$"
    r"|torch/(?:profiler/|autograd/profiler\.py\())|<frozen (?:runpy>|importlib)"
)
"""Frames omitted by default, because nearly every stack contains them."""

SKIPPED: Final = "(skipped)"
UNKNOWN: Final = "(unknown)"
OUTSIDE: Final = "(outside)"
DEEPER: Final = "(deeper)"

_PLACE: Final = re.compile(r"(.+)\((\d{1,9})\): .+")


def folded(
    trace: Trace,
    by: Literal["host", "device", "bytes"] = "host",
    *,
    skip: str | None = UNINTERESTING,
) -> dict[str, int]:
    """Return the self cost of each call stack (``outer;inner;leaf``), greatest first.

    Host times in ns sum to the union of the slices of each thread, without waits on threads without steps. Device times
    sum to the durations of all device work, which has the stack of the launch. Allocated bytes include memory released
    later.

    Frames that match ``skip`` are omitted, so their self time counts for the caller. The work of perfhooks is also
    omitted, unless ``skip`` is None.
    """
    tree = summed(trace, by, skip=skip)
    is_kept = _with_ancestors(tree.parents, tree.values != 0)
    index = np.append(np.cumsum(is_kept) - 1, -1)
    names = [tree.names[frame] for frame in tree.frames[is_kept].tolist()]
    values: dict[str, int] = {}
    for text, value in zip(
        host.joined(index[tree.parents[is_kept]], names, ";"), tree.values[is_kept].tolist(), strict=True
    ):
        if value:
            values[text] = values.get(text, 0) + value
    return dict(sorted(values.items(), key=lambda item: -item[1]))


def _with_ancestors(parents: Ints, selected: Flags) -> Flags:
    included: Flags = selected.copy()
    new = np.flatnonzero(included)
    while len(new):
        around = intervals.distinct(parents[new])
        new = around[(around >= 0) & ~np.append(included, True)[around]]
        included[new] = True
    return included


@cached_per_trace
def summed(
    trace: Trace,
    by: Literal["host", "device", "bytes"] = "host",
    *,
    skip: str | None = UNINTERESTING,
) -> Summed:
    """Return the costs of `folded` as a tree. Stacks above the maximum depth end with the frame ``(deeper)``."""
    named = _named_paths(trace, skip)
    node, leaf, value = {"host": _host_values, "device": _device_values, "bytes": _allocated_bytes}[by](trace, named)
    return _limit_depth(_attach_values(named, node, leaf, value), host.max_letters(trace))


def write(stacks: Mapping[str, int], file: IO[bytes]) -> None:
    for stack, value in stacks.items():
        file.write(f"{stack} {value}\n".encode())


def write_speedscope(stacks: Mapping[str, int], file: IO[bytes], *, name: str, unit: str = "nanoseconds") -> None:
    """Write stacks as a sampled profile for speedscope: each stack is one sample weighted by its value.

    The format is https://www.speedscope.app/file-format-schema.json. ``unit`` is ``"nanoseconds"`` or ``"bytes"``.
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
    index = _PLACE.fullmatch(name)
    return {"name": name} | ({"file": index[1], "line": int(index[2])} if index else {})


def by_depth(trace: Trace, depth: int) -> tuple[list[str], Ints]:
    """Return the distinct stacks of the ``depth`` innermost Python frames, and the stack index of each slice, or -1.

    As in torch, work of the backward pass has the stack of the forward operator.
    """
    tree = host.tree(trace)
    frame = trace.name[tree.row]
    paths = host.paths(tree.nesting, frame, trace.kind[tree.row] != Kind.PYTHON)
    parents, frames = (np.append(values, -1) for values in (paths.parents, paths.frames))
    node = np.arange(len(frames) - 1)
    cut = np.empty((len(node), depth), np.int64)
    for column in range(depth - 1, -1, -1):
        cut[:, column] = frames[node]
        node = parents[node]
    distinct, index = np.unique(cut, axis=0, return_inverse=True)
    nodes = autograd.find(trace)
    creator = inherited(tree.nesting.parent, nodes.source)
    stack = np.where((creator >= 0) & (nodes.inside >= 0), np.append(paths.node, -1)[creator], paths.node)
    index_by_entry = np.append(index.ravel(), -1)[np.append(stack, -1)]
    of_slice = np.full(len(trace), -1, np.int64)
    of_slice[tree.row] = index_by_entry[:-1]
    of_slice[trace.device_rows] = index_by_entry[host.launchers(trace)]
    names = _shortened_names(trace, distinct, np.bincount(of_slice[of_slice >= 0], minlength=len(distinct)))
    return [";".join(names[number] for number in row if number >= 0) for row in distinct.tolist()], of_slice


def _shortened_names(trace: Trace, rows: Ints, uses: Ints) -> list[str]:
    names = list(map(_escape, trace.names))
    max_letters = host.max_letters(trace)
    lengths = np.array([*map(len, names), 0], np.int64)[rows].sum(axis=1)
    if (lengths * np.maximum(uses, 1)).sum() <= max_letters:
        return names
    half = max(max_letters // (int(uses.sum()) * (rows.size // len(rows)) + 1) // 2, 20)
    return [name if len(name) <= 2 * half else f"{name[:half]}…{name[-half:]}" for name in names]


class Summed(NamedTuple):
    """Tree of call stacks with the self cost of each stack. Parents precede their children."""

    names: list[str]
    parents: Ints
    frames: Ints
    values: Ints


class _Named(NamedTuple):
    paths: host.Paths
    names: list[str]
    frame: Ints
    ours: Flags
    """Whether each entry of `host.tree` belongs to perfhooks and is omitted."""


@cached_per_trace
def _named_paths(trace: Trace, skip: str | None) -> _Named:
    tree = host.tree(trace)
    shown = [torch_rules.shown_name(name) for name in trace.names]
    frames: dict[str, int] = {}
    frame = np.array([frames.setdefault(_escape(name), len(frames)) for name in shown] or [0], np.int64)
    pattern = re.compile(skip) if skip else None
    is_skipped = np.zeros(len(shown), np.bool_)
    for number in trace.names_of(*HOST):
        is_skipped[number] = pattern is not None and pattern.search(shown[number]) is not None
    names = trace.name[tree.row]
    ours = own_frames.is_perfhooks(trace) & (pattern is not None)
    return _Named(host.paths(tree.nesting, frame[names], is_skipped[names] | ours), list(frames), frame, ours)


def _attach_values(named: _Named, node: Ints, leaf: Ints, value: Ints) -> Summed:
    names = [*named.names, *_NOWHERE]
    count, name_count = len(named.paths.parents), len(named.names)
    parents = np.append(named.paths.parents, np.full(len(_NOWHERE), -1))
    frames = np.append(named.paths.frames, name_count + np.arange(len(_NOWHERE)))
    target = np.where(node >= 0, node, count - 1 - node)
    below = np.flatnonzero(leaf >= 0)
    keys, leaf_index = np.unique(target[below] * name_count + leaf[below], return_inverse=True)
    around, under = np.divmod(keys, max(name_count, 1))
    target[below] = len(parents) + leaf_index.ravel()
    values = grouping.summed(target, value, len(parents) + len(keys))
    return Summed(names, np.append(parents, around), np.append(frames, under), values)


def _limit_depth(tree: Summed, max_letters: int) -> Summed:
    lengths = np.array([*map(len, tree.names), 0], np.int64)[tree.frames]
    depth = host.depths(tree.parents)
    deepest = host.writable_depth(tree.parents, depth, lengths, max_letters)
    if not (depth > deepest).any():
        return tree
    top = host.ancestors(tree.parents, depth, deepest)
    cut, cut_index = np.unique(top[depth > deepest], return_inverse=True)
    kept_nodes = np.flatnonzero(depth <= deepest)
    index = np.full(len(depth), -1, np.int64)
    index[kept_nodes] = np.arange(len(kept_nodes))
    return Summed(
        [*tree.names, DEEPER],
        np.append(np.append(index, -1)[tree.parents[kept_nodes]], index[cut]),
        np.append(tree.frames[kept_nodes], np.full(len(cut), len(tree.names))),
        np.append(tree.values[kept_nodes], grouping.summed(cut_index.ravel(), tree.values[depth > deepest], len(cut))),
    )


def _escape(name: str) -> str:
    return " ".join(name.replace(";", ":").split()) or "?"


_NOWHERE: Final = (SKIPPED, UNKNOWN, OUTSIDE)


def _host_values(trace: Trace, named: _Named) -> tuple[Ints, Ints, Ints]:
    node, own = named.paths.node, host.tree(trace).nesting.own
    return node, np.full(len(node), -1, np.int64), np.where(idle_threads.waiting(trace) | named.ours, 0, own)


def _device_values(trace: Trace, named: _Named) -> tuple[Ints, Ints, Ints]:
    work = trace.device_rows
    node = np.append(named.paths.node, -2)[host.launchers(trace)]
    return node, named.frame[trace.name[work]], device.own_times(trace)


def _allocated_bytes(trace: Trace, named: _Named) -> tuple[Ints, Ints, Ints]:
    events = trace.instants
    grown = np.flatnonzero(events.size > 0)
    open_then = host.innermost(trace, events.thread[grown], events.time[grown])
    node = np.append(named.paths.node, -3)[open_then]
    return node, np.full(len(grown), -1, np.int64), events.size[grown]
