"""Code lines around host slices. `origins` decides whether a line belongs to the user, a package or Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.origins import LOCATION, PREFERENCE, Origin, Owners, origin
from perfhooks.trace.nesting import device, host
from perfhooks.trace.nesting.slices import nearest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_STARTS: Final = re.compile(r"torch/(?:autograd/profiler|profiler/profiler)\.py\(\d+\): _?start_trace$")
_DECORATOR: Final = re.compile(r"torch/.*: (?:_no_grad_wrapper|decorate_context)$")


def lines(trace: Trace, rows: Ints, owners: Owners = (), *, otherwise: bool = False) -> list[str | None]:
    """Return the innermost code line of the user around each host slice; None without such a line, and for row -1.

    If the user's line calls an installed package, the package's line follows: ``train.py(5): main, in
    lightning/pytorch/x.py(7): fit``. Numbers in parentheses are first lines of functions. If ``otherwise`` is set, any
    line outside of perfhooks replaces a missing line.
    """
    preference = PREFERENCE[: 3 if otherwise else 2]
    frames_by_origin = [_innermost_frame(trace, rows, origins, owners).tolist() for origins in preference]
    return [describe_frames(trace, *frames) for frames in zip(*frames_by_origin, strict=True)]


def of_rows(trace: Trace, rows: Ints, owners: Owners = ()) -> tuple[list[str], Ints]:
    """Return the distinct results of `lines`, and the index of the result of each slice, or -1."""
    return _distinct_lines(trace, *(_innermost_frame(trace, rows, origins, owners) for origins in PREFERENCE[:2]))


def at_rows(trace: Trace, rows: Ints, owners: Owners = ()) -> tuple[list[str], Ints]:
    """Return the same as `of_rows`, but for slices that are Python frames, the frame's own line."""
    tree = host.tree(trace)
    names, parent = trace.name[tree.row], tree.nesting.parent
    frames = [nearest(parent, tree.entry[rows], names_of(trace, origins, owners)[names]) for origins in PREFERENCE]
    return _distinct_lines(trace, *(np.append(tree.row, -1)[entries] for entries in frames))


def _distinct_lines(trace: Trace, user: Ints, library: Ints, other: Ints | None = None) -> tuple[list[str], Ints]:
    names = np.append(trace.name, -1).astype(np.int64) + 1
    open_frames = np.fromiter(open_at_start(trace), np.int64)
    names[open_frames] += len(trace.names)
    other = np.full(len(user), -1) if other is None else np.where((user < 0) & (library < 0), other, -1)
    key = 2 * (names[user] * (2 * len(trace.names) + 1) + names[library]) + (library > user)
    key = np.where(other >= 0, -names[other], key)
    _, first, position = np.unique(key, return_index=True, return_inverse=True)
    stacks = zip(user[first].tolist(), library[first].tolist(), other[first].tolist(), strict=True)
    texts = [describe_frames(trace, *frames) for frames in stacks]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text))}
    by_key = np.array([numbers.get(text or "", -1) for text in texts] or [-1], np.int64)
    return list(numbers), by_key[position]


def describe_frames(trace: Trace, user: int, library: int, other: int = -1) -> str | None:
    """Return the text of `lines` for the innermost frames of the user, of a library and of other code."""
    line, inner = frame_name(trace, user), frame_name(trace, library)
    if line is None and inner is None:
        return frame_name(trace, other)
    return f"{line}, in {inner}" if line and library > user else line or inner


def frame_name(trace: Trace, frame: int) -> str | None:
    name = trace.name_of(frame)
    location = LOCATION.match(name) if name is not None and frame in open_at_start(trace) else None
    return name if location is None else f"{location['file']}: {location.string[location.end() :]}"


@cached_per_trace
def open_at_start(trace: Trace) -> frozenset[int]:
    """Return the frames that were open when the recording began.

    In their names, the number is the line that ran, not the function's first.
    """
    tree = host.tree(trace)
    frames = np.flatnonzero(trace.kind[tree.row] == Kind.PYTHON)
    _, first = np.unique(tree.thread[frames], return_index=True)
    open_frames: set[int] = set()
    for begin in first.tolist():
        chain: list[int] = []
        for entry in frames[begin : begin + 1000].tolist():
            row = int(tree.row[entry])
            if chain and trace.start[row] >= trace.end[chain[-1]]:
                break
            if _STARTS.search(trace.names[trace.name[row]]):
                open_frames.update(chain)
                break
            chain.append(row)
    return frozenset(open_frames)


@cached_per_trace
def called_from_open(trace: Trace, owners: Owners = ()) -> dict[int, str | None]:
    """Return the frames that open functions of the user call, with their texts.

    Decorators of torch such as ``no_grad`` are skipped: the decorated function counts as the called one.
    """
    is_decorator = np.array([_DECORATOR.search(name) is not None for name in trace.names] or [False], np.bool_)
    frames = trace.rows(Kind.PYTHON)
    frames = frames[~is_decorator[trace.name[frames]]]
    numbers = trace.name[frames]
    users = frames[names_of(trace, PREFERENCE[0], owners)[numbers]]
    callers = users[np.isin(users, np.fromiter(open_at_start(trace), np.int64))]
    if not len(callers):
        return {}
    called = frames[~names_of(trace, (Origin.USER, Origin.PERFHOOKS), owners)[numbers]]
    holders = device.holders(trace, called, frames)
    is_called = np.isin(holders, callers)
    pairs = zip(holders[is_called].tolist(), called[is_called].tolist(), strict=True)
    return {frame: describe_frames(trace, user, frame) for user, frame in pairs}


def _innermost_frame(trace: Trace, rows: Ints, origins: tuple[Origin, ...], owners: Owners) -> Ints:
    frames = trace.rows(Kind.PYTHON)
    frames = frames[names_of(trace, origins, owners)[trace.name[frames]]]
    innermost = np.full(len(rows), -1, np.int64)
    slices = np.flatnonzero(rows >= 0)
    if len(frames) and len(slices):
        innermost[slices] = device.holders(trace, rows[slices], frames)
    return innermost


@cached_per_trace
def names_of(trace: Trace, origins: tuple[Origin, ...], owners: Owners = ()) -> Flags:
    return np.array([origin in origins for origin in _origins(trace, owners)] or [False], np.bool_)


@cached_per_trace
def _origins(trace: Trace, owners: Owners) -> list[Origin]:
    by_file = dict(owners)
    return [origin(name, by_file) for name in trace.names]
