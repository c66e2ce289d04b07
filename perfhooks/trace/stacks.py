"""Folded stacks: what a flame graph is made of, from the trace's own Python frames and operators."""

from __future__ import annotations

import re
from typing import IO, TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec
import numpy as np

from perfhooks.trace import autograd, host, torch_rules
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace.model import Ints, Trace

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

_PLACE: Final = re.compile(r"(.+)\((\d+)\): .+")


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
    found = _paths(trace, skip)
    texts = host.joined(found.paths, found.names, ";")
    summed: dict[str, int] = {}
    for node, leaf, value in {"host": _host, "device": _device, "bytes": _bytes}[by](trace, found.paths.node):
        stack = texts[node] if node >= 0 else {-1: SKIPPED, -2: UNKNOWN, -3: OUTSIDE}[node]
        stack = f"{stack};{leaf}" if leaf else stack
        summed[stack] = summed.get(stack, 0) + value
    return dict(sorted(((stack, value) for stack, value in summed.items() if value), key=lambda item: -item[1]))


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
    # the schema has no bounds for a line, but what reads it may
    return {"name": name} | ({"file": place[1], "line": int(place[2])} if place and len(place[2]) < 10 else {})  # noqa: PLR2004 - digits


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
    parents, frames = (np.array([*values, -1], np.int64) for values in (found.parents, found.frames))
    node = np.arange(len(frames) - 1)
    cut = np.empty((len(node), depth), np.int64)
    for column in range(depth - 1, -1, -1):
        cut[:, column] = frames[node]
        node = parents[node]
    distinct, place = np.unique(cut, axis=0, return_inverse=True)
    texts = [";".join(_escape(trace.names[each]) for each in row if each >= 0) for row in distinct.tolist()]
    nodes = autograd.find(trace)
    made = host.inherited(tree.nesting.parent, nodes.source)
    stack = np.where((made >= 0) & (nodes.inside >= 0), np.append(found.node, -1)[made], found.node)
    mine = np.append(place.ravel(), -1)[np.append(stack, -1)]
    of_slice = np.full(len(trace), -1, np.int64)
    of_slice[tree.row] = mine[:-1]
    of_slice[trace.device_rows] = mine[host.launchers(trace)]
    return texts, of_slice


class _Named(NamedTuple):
    """The stacks of a trace, with the names of their frames."""

    paths: host.Paths
    names: list[str]


def _paths(trace: Trace, skip: str | None) -> _Named:
    tree = host.tree(trace)
    names, place = torch_rules.shown_names(trace.names)
    frame = place[trace.name[tree.row]]
    pattern = re.compile(skip) if skip else None
    dull = np.array([bool(pattern and pattern.search(name)) for name in names] or [False])[frame]
    return _Named(host.paths(tree.nesting, frame, dull), [_escape(name) for name in names])


def _escape(name: str) -> str:
    """A frame that cannot break the format: semicolons separate frames, and line breaks stacks."""
    return " ".join(name.replace(";", ":").split()) or "?"


def _host(trace: Trace, node: Ints) -> list[tuple[int, str, int]]:
    return _summed(node, host.tree(trace).nesting.own)


def _summed(node: Ints, value: Ints) -> list[tuple[int, str, int]]:
    keys, place = np.unique(node, return_inverse=True)
    total = np.zeros(len(keys), np.int64)
    np.add.at(total, place, value)
    return [(key, "", each) for key, each in zip(keys.tolist(), total.tolist(), strict=True)]


def _device(trace: Trace, node: Ints) -> list[tuple[int, str, int]]:
    """Device work by the stack of the call that launched it, else of the operator it names."""
    work = trace.device_rows
    stack = np.append(node, -2)[host.launchers(trace)]
    spans = (trace.end - trace.start)[work].tolist()
    leaves = [_escape(trace.names[name]) for name in trace.name[work].tolist()]
    return list(zip(stack.tolist(), leaves, spans, strict=True))


def _bytes(trace: Trace, node: Ints) -> list[tuple[int, str, int]]:
    """Allocations by the innermost slice that was open on their thread."""
    events = trace.instants
    grown = events.size > 0
    open_then = host.innermost(trace, events.thread[grown], events.time[grown])
    return _summed(np.append(node, -3)[open_then], events.size[grown])


__all__ = ["OUTSIDE", "SKIPPED", "UNINTERESTING", "UNKNOWN", "by_depth", "folded", "write", "write_speedscope"]
