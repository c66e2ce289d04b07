"""Python stacks of threads. A thread may keep running after its stack was read."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from itertools import accumulate, chain, compress, dropwhile, repeat
from operator import attrgetter, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

T = TypeVar("T")


class Frame(NamedTuple):
    code: CodeType
    line: int

    @classmethod
    def of(cls, frame: FrameType) -> Frame:
        return cls(frame.f_code, frame.f_lineno or 0)

    @property
    def file(self) -> str:
        return self.code.co_filename

    @property
    def name(self) -> str:
        return self.code.co_name

    def __str__(self) -> str:
        return f"{self.name} ({_short(self.file)}:{self.line})"


_OURS: Final = f"{Path(__file__).parent}{os.sep}"

Stack = tuple[Frame, ...]
"""Frames of a stack, the outermost first."""


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    # Visiting 100,000 frames blocks the training for 40 ms.
    for _ in range(1000):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def leave_profilers() -> None:
    """Stop the tracing of this thread. With stacks, torch's recorder traces all threads."""
    if sys.getprofile() is not None:
        sys.setprofile(None)


def live_threads() -> set[int]:
    threads: Iterator[set[int]] = map(set, _called(sys._current_frames))
    return _without_collection(threads)[0]  # only numbers: a variable with the own frame would be garbage


def frames_of(thread: int, limit: int = 1000) -> list[FrameType]:
    """Return the frames of a thread, the innermost first."""
    innermost = map(methodcaller("get", thread), _called(sys._current_frames))
    chained = accumulate(chain(innermost, repeat("f_back", limit - 1)), getattr)
    return _without_collection(iter(chained.__next__, None))


def variables_of(frame: FrameType) -> dict[str, Any]:
    read: Iterator[dict[str, Any]] = map(attrgetter("f_locals"), [frame])
    return _without_collection(read)[0]


def _without_collection(values: Iterable[T]) -> list[T]:
    """Read an iterator that runs no Python code.

    Python 3.11 creates frame objects when they are read. A garbage collection in this moment can run a finalizer that
    releases the GIL: the other thread leaves the frame, and Python writes to freed memory. One call in C disables the
    collection, reads, and enables it, so no other thread runs in between.
    """
    if not _COLLECTS_IN_FRAMES:
        return list(values)
    was_enabled: list[bool] = []
    result: list[T] = []
    before = chain(map(was_enabled.append, _called(gc.isenabled)), _called(gc.disable))
    after = map(_CALL, compress([gc.enable], was_enabled))
    list(chain(before, map(result.append, values), after))
    return result


def _called(function: Callable[[], T]) -> Iterator[T]:
    return map(_CALL, [function])


_CALL: Final = methodcaller("__call__")
_COLLECTS_IN_FRAMES: Final = sys.version_info[:2] == (3, 11)


def stack_of(thread: int) -> Stack:
    return stack(frames_of(thread, 200))


def stack(frames: Iterable[FrameType]) -> Stack:
    # skip our own callback of a garbage collection
    return tuple(dropwhile(lambda frame: frame.file.startswith(_OURS), map(Frame.of, frames)))[::-1]


def caller(above: int) -> Frame | None:
    with contextlib.suppress(ValueError):
        return Frame.of(sys._getframe(above + 1))
    return None


def common(first: Stack, second: Stack) -> int:
    """Return the number of outermost functions that two stacks share."""
    count = 0
    for frame, counterpart in zip(first, second, strict=False):
        if frame.code is not counterpart.code:
            break
        count += 1
    return count


def _short(file: str) -> str:
    parts = file.replace("\\", "/").split("/")
    for top in ("site-packages", "dist-packages"):
        if top in parts:
            return "/".join(parts[parts.index(top) + 1 :])
    return "/".join(parts[-2:]) if len(parts) > 1 else file
