"""Lines of the user's code, of installed packages and of torch around slices of the host; see `origins`."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.origins import PLACE, PREFERENCE, Origin, Owners, origin
from perfhooks.trace.nesting import device, host
from perfhooks.trace.nesting.slices import nearest
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags

_STARTS: Final = re.compile(r"torch/(?:autograd/profiler|profiler/profiler)\.py\(\d+\): _?start_trace$")
"""What begins a recording."""
_DEEPEST: Final = 1000
"""Frames between the outermost one and that."""


def lines(trace: Trace, rows: Ints, owners: Owners = (), *, otherwise: bool = False) -> list[str | None]:
    """The innermost line of the user around each slice of the host; None where there is none, or no slice (-1).

    Where that line runs inside of an installed package, the line of the package in which it does is named as well
    (``train.py(5): main, in lightning/pytorch/x.py(7): fit``), and alone where no line of the user is on the stack.
    The line is the first one of the function; of those in which recording began it is not known
    (``train.py: main``).

    Args:
        trace: any trace; without Python frames there are no lines.
        rows: slices of the host, in any order, or -1.
        owners: what the machine that recorded knew.
        otherwise: name any other innermost line but our own where there is neither.
    """
    around = [_around(trace, rows, each, owners).tolist() for each in PREFERENCE[: 3 if otherwise else 2]]
    return [spoken(trace, *each) for each in zip(*around, strict=True)]


def of_rows(trace: Trace, rows: Ints, owners: Owners = ()) -> tuple[list[str], Ints]:
    """The same for many slices: the distinct lines, and for each slice the place of its line among them, or -1."""
    return _numbered(trace, *(_around(trace, rows, each, owners) for each in PREFERENCE[:2]))


def at_rows(trace: Trace, rows: Ints, owners: Owners = ()) -> tuple[list[str], Ints]:
    """The same of what runs itself: a frame is its own line, and where neither user nor library has one, anybody's is.

    Args:
        trace: any trace; without Python frames there are no lines.
        rows: slices of the host, in any order, or -1.
        owners: what the machine that recorded knew.
    """
    tree = host.tree(trace)
    names, parent = trace.name[tree.row], tree.nesting.parent
    found = [nearest(parent, tree.entry[rows], names_of(trace, each, owners)[names]) for each in PREFERENCE]
    return _numbered(trace, *(np.append(tree.row, -1)[each] for each in found))


def _numbered(trace: Trace, user: Ints, library: Ints, other: Ints | None = None) -> tuple[list[str], Ints]:
    """What is spoken of the frames of some slices, each text once, and for each slice the place of its text, or -1."""
    names = np.append(trace.name, -1).astype(np.int64) + 1
    begun = np.fromiter(begun_in(trace), np.int64)
    names[begun] += len(trace.names)  # of the same name another may have a line of its own
    other = np.full(len(user), -1) if other is None else np.where((user < 0) & (library < 0), other, -1)
    # what is said of some frames depends on their names, and on which of them is the inner one: one number for it
    said = 2 * (names[user] * (2 * len(trace.names) + 1) + names[library]) + (library > user)
    said = np.where(other >= 0, -names[other], said)
    _, first, place = np.unique(said, return_index=True, return_inverse=True)
    frames = zip(user[first].tolist(), library[first].tolist(), other[first].tolist(), strict=True)
    texts = [spoken(trace, *each) for each in frames]
    known = {text: number for number, text in enumerate(dict.fromkeys(text for text in texts if text))}
    numbers = np.array([known.get(text or "", -1) for text in texts] or [-1], np.int64)
    return list(known), numbers[place]


def spoken(trace: Trace, user: int, library: int, other: int = -1) -> str | None:
    """What `lines` says of the innermost frames of the user, of a library and of anybody else; slices, or -1."""
    line, inner = _place(trace, user), _place(trace, library)
    if line is None and inner is None:
        return _place(trace, other)
    # of two slices around the same one, the inner is the later
    return f"{line}, in {inner}" if line and library > user else line or inner


def _place(trace: Trace, frame: int) -> str | None:
    """The name of a frame, without the number of its line where that is none of its own."""
    name = trace.name_of(frame)
    place = PLACE.match(name) if name is not None and frame in begun_in(trace) else None
    return name if place is None else f"{place['file']}: {place.string[place.end() :]}"


@cached_per_trace
def begun_in(trace: Trace) -> frozenset[int]:
    """The frames in which recording began.

    The recorder writes those that are open then one after the other, from the outermost to its own, and each with the
    line that runs: as a place to look at, the line in which a step ends is innocent. Any other has its first line.
    """
    tree = host.tree(trace)
    frames = np.flatnonzero(trace.kind[tree.row] == Kind.PYTHON)
    _, first = np.unique(tree.thread[frames], return_index=True)
    found: set[int] = set()
    for begin in first.tolist():
        chain: list[int] = []
        for entry in frames[begin : begin + _DEEPEST].tolist():
            row = int(tree.row[entry])
            if chain and trace.start[row] >= trace.end[chain[-1]]:
                break
            if _STARTS.search(trace.names[trace.name[row]]):
                found.update(chain)
                break
            chain.append(row)
    return frozenset(found)


def _around(trace: Trace, rows: Ints, origins: tuple[Origin, ...], owners: Owners) -> Ints:
    """The innermost frame of some origins around each slice, or -1."""
    frames = trace.rows(Kind.PYTHON)
    frames = frames[names_of(trace, origins, owners)[trace.name[frames]]]
    found = np.full(len(rows), -1, np.int64)
    known = np.flatnonzero(rows >= 0)
    if len(frames) and len(known):
        found[known] = device.holders(trace, rows[known], frames)
    return found


@cached_per_trace
def names_of(trace: Trace, origins: tuple[Origin, ...], owners: Owners = ()) -> Flags:
    """Which of `Trace.names` are lines of one of these origins; at least one value.

    Args:
        trace: any trace.
        origins: those that are wanted.
        owners: what the machine that recorded knew.
    """
    return np.array([each in origins for each in _origins(trace, owners)] or [False], np.bool_)


@cached_per_trace
def _origins(trace: Trace, owners: Owners) -> list[Origin]:
    known = dict(owners)
    return [origin(name, known) for name in trace.names]
