"""Python stacks of threads. A thread may keep running while its stack is read."""

from __future__ import annotations

import contextlib
import os
import sys
from itertools import dropwhile, islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType, FrameType


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


def innermost_of(thread: int) -> FrameType | None:
    return sys._current_frames().get(thread)


def stack_of(thread: int) -> Stack:
    frames = islice(map(Frame.of, outwards(innermost_of(thread))), 200)
    # skip our own callback of a garbage collection
    return tuple(dropwhile(lambda frame: frame.file.startswith(_OURS), frames))[::-1]


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
