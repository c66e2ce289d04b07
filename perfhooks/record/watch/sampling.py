"""Where a thread of this process is: the one place that looks at its stack, for the start and for slow steps.

The stack may be that of the thread that trains, which another thread looks at while it goes on.
"""

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

_DEEPEST: Final = 200
"""Frames of a stack that are kept, the innermost ones."""
_FARTHEST: Final = 1000
"""Frames of a stack that are looked at. No program but a deep recursion has more, and who looks at a hundred thousand
of them keeps the thread that trains waiting for 40 ms."""


class Frame(NamedTuple):
    """A line of a stack."""

    code: CodeType
    line: int

    @classmethod
    def of(cls, frame: FrameType) -> Frame:
        """The line that a frame is at."""
        return cls(frame.f_code, frame.f_lineno or 0)

    @property
    def file(self) -> str:
        """Its file."""
        return self.code.co_filename

    @property
    def name(self) -> str:
        """Its function."""
        return self.code.co_name

    def __str__(self) -> str:
        return f"{self.name} ({_short(self.file)}:{self.line})"


_OURS: Final = f"{Path(__file__).parent}{os.sep}"

Stack = tuple[Frame, ...]
"""Frames, the outermost first."""


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """A frame, what called it, what called that, and so on, as far as anybody looks."""
    for _ in range(_FARTHEST):
        if frame is None:
            return
        yield frame
        frame = frame.f_back


def leave_profilers() -> None:
    """End the tracing of the calling thread, which is one of ours: with stacks, torch's recorder traces each thread."""
    if sys.getprofile() is not None:
        sys.setprofile(None)


def innermost_of(thread: int) -> FrameType | None:
    """The frame that a thread is in; None if it has ended."""
    return sys._current_frames().get(thread)


def stack_of(thread: int) -> Stack:
    """Where a thread is; empty if it has ended."""
    frames = islice(map(Frame.of, outwards(innermost_of(thread))), _DEEPEST)
    # what hears of a garbage collection is not what collects
    return tuple(dropwhile(lambda frame: frame.file.startswith(_OURS), frames))[::-1]


def caller(above: int) -> Frame | None:
    """The code that has called ours; none where Python ends, or where C has called.

    Args:
        above: How far it is above whoever asks.
    """
    with contextlib.suppress(ValueError):
        return Frame.of(sys._getframe(above + 1))
    return None


def common(first: Stack, second: Stack) -> int:
    """How many of the outermost functions two stacks share."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one.code is not other.code:
            break
        count += 1
    return count


def _short(file: str) -> str:
    """A file as a person would name it: below its package, or with its folder."""
    parts = file.replace("\\", "/").split("/")
    for top in ("site-packages", "dist-packages"):
        if top in parts:
            return "/".join(parts[parts.index(top) + 1 :])
    return "/".join(parts[-2:]) if len(parts) > 1 else file
