"""Python stacks of threads."""

from __future__ import annotations

import gc
import os
import sys
from collections import deque
from itertools import accumulate, chain, compress, dropwhile, repeat, tee
from operator import attrgetter, is_, methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from perfhooks.core.clocks import time

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import CodeType, FrameType

T = TypeVar("T")


class Frame(NamedTuple):
    code: CodeType
    line: int

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


def live_clocks() -> dict[int, int]:
    """Return the CPU clock of each thread, while no thread can end."""
    if not hasattr(time, "pthread_getcpuclockid"):
        return {}
    idents, threads = tee(chain.from_iterable(_called(sys._current_frames)))
    return dict(_without_collection(zip(idents, map(time.pthread_getcpuclockid, threads), strict=False)))


def frames_of(thread: int, limit: int = 1000) -> list[Frame]:
    """Return the frames of a thread, the innermost first. A frame object would free its variables in our thread."""
    read = _without_collection(map(attrgetter("f_code", "f_lineno"), _chain(thread, limit)))
    return [Frame(code, line or 0) for code, line in read]


def places_of(thread: int) -> Iterator[tuple[CodeType, int | None]]:
    # sys._getframe can return a frame before its function begins, which crashes Python 3.11
    innermost = map(methodcaller("get", thread), map(_CALL, repeat(sys._current_frames)))
    return map(attrgetter("f_code", "f_lineno"), innermost)


def variables_of(thread: int, codes: set[CodeType], *names: str) -> list[tuple[Any, ...]]:
    """Return code and variables of each frame of some functions."""
    selectors: list[bool] = []
    selecting: Iterator[Any] = map(selectors.append, map(codes.__contains__, map(attrgetter("f_code"), _chain(thread))))
    columns = [map(attrgetter("f_code"), compress(_chain(thread), selectors))]
    for name in names:
        frames = compress(_chain(thread), selectors)
        columns.append(map(methodcaller("get", name), map(attrgetter("f_locals"), frames)))
    return _without_collection(chain(compress(selecting, repeat(0)), zip(*columns, strict=False)))


def variable_of_outermost(thread: int, code: CodeType, name: str) -> Any:
    """Return a variable of the outermost call of a function; None if the thread is in no such call."""
    # compared by identity: to hash the code of a large module, Python reads all of it
    calls = compress(_chain(thread), map(is_, map(attrgetter("f_code"), _chain(thread)), repeat(code)))
    variables = map(attrgetter("f_locals"), chain.from_iterable(map(deque, [calls], [1])))
    return next(iter(_without_collection(map(methodcaller("get", name), variables))), None)


def _chain(thread: int, limit: int = 1000) -> Iterator[FrameType]:
    innermost = map(methodcaller("get", thread), _called(sys._current_frames))
    return iter(accumulate(chain(innermost, repeat("f_back", limit - 1)), getattr).__next__, None)


def _without_collection(values: Iterable[T]) -> list[T]:
    """Read an iterator that runs no Python code.

    Before Python 3.12, each new object can begin a garbage collection. A finalizer then releases the GIL: the other
    thread ends or leaves its frame, and freed memory is used. One call in C disables the collection, reads, and enables
    it, so no other thread runs.
    """
    if not _COLLECTS_AT_ANY_OBJECT:
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
_COLLECTS_AT_ANY_OBJECT: Final = sys.version_info < (3, 12)


def stack_of(thread: int) -> Stack:
    return stack(frames_of(thread, 200))


def stack(frames: Iterable[Frame]) -> Stack:
    # at its end, the training reads its own stack
    return tuple(dropwhile(lambda frame: frame.file.startswith(_OURS), frames))[::-1]


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
