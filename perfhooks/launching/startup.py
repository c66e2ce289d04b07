"""What a process did before its first step had ended: imports, the script itself, the first batch, compilation.

A thread looks at the main thread's stack every 50 ms from the moment torch is imported, so the table is right to about
that much. It costs 0.1% of the time and ends with the first step.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.guard import guard

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

INTERVAL_S: Final = 0.05
LONGEST_S: Final = 3600.0
"""A process that has made no step in an hour is not going to."""
_LAST_WORD_S: Final = 2.0
"""How long the end of a process waits for the table: writing it takes a millisecond, where a disk answers."""
HEADER: Final = "phase,what,seconds\n"

_IMPORTING: Final = "importlib._bootstrap>"
_COMPILING: Final = ("/torch/_dynamo/", "/torch/_inductor/", "/torch/_functorch/")
_LOADING: Final = "/torch/utils/data/"
_MODELS: Final = "/torch/nn/modules/"
_CLOCK_BOOTTIME: Final = getattr(time, "CLOCK_BOOTTIME", None)
_START_TIME: Final = 19
"""Place of the start time behind the name of a process in ``/proc/self/stat``, in clock ticks; see proc(5)."""


class Sample(NamedTuple):
    """What the main thread did for a while."""

    phase: str
    what: str


class Startup:
    """The table of one process.

    Args:
        began: When this Python came to our code, in nanoseconds of the monotonic clock.
    """

    def __init__(self, began: int) -> None:
        self._seconds: dict[Sample, float] = {}
        self._main = threading.main_thread().ident
        self._torch = time.monotonic_ns()
        self._in_step = False
        self._over = threading.Event()
        self._file: Path | None = None
        age = _age_s()
        if age is not None and began:
            since = (time.monotonic_ns() - began) * 1e-9
            self._add(Sample("python", "start of the interpreter"), max(age - since, 0.0))
        if began:
            self._add(Sample("before torch", "what ran before torch was imported"), (self._torch - began) * 1e-9)
        self._thread = threading.Thread(target=self._watch, name="perfhooks-startup", daemon=True)
        self._thread.start()

    def first_step(self) -> None:
        """The first step begins: what follows belongs to it."""
        self._in_step = True

    @property
    def is_over(self) -> bool:
        """Whether the first step has ended."""
        return self._over.is_set()

    def end(self, file: Path | None = None) -> None:
        """The first step has ended; the thread that looked writes the table.

        Args:
            file: Where to; None where there is no run folder.
        """
        if not self._over.is_set():
            self._file = file
            self._over.set()

    def wait(self) -> None:
        """The process ends: let the table be written, if there is one to write."""
        self.end()
        if self._file is not None:
            self._thread.join(_LAST_WORD_S)

    def rows(self) -> list[tuple[str, str, float]]:
        """Phase, what, and seconds, in the order in which the phases began."""
        return [(sample.phase, sample.what, seconds) for sample, seconds in self._seconds.items()]

    def write(self, path: Path) -> None:
        """Write the table as CSV."""
        import csv

        with path.open("w", encoding="utf-8", newline="") as file:
            file.write(HEADER)
            rows = [(phase, what, f"{seconds:.3f}") for phase, what, seconds in self.rows()]
            csv.writer(file, lineterminator="\n").writerows(rows)

    def _watch(self) -> None:
        self._look()
        if self._file is not None:
            with guard("writing what happened before the first step"):
                self.write(self._file)

    def _look(self) -> None:
        last, end = self._torch, self._torch + LONGEST_S * 1e9
        while last < end:
            is_over = self._over.wait(INTERVAL_S)
            now = time.monotonic_ns()
            frame = sys._current_frames().get(self._main or 0)  # noqa: SLF001 -- the documented way to another thread's stack
            self._add(told(frame, in_step=self._in_step), (now - last) * 1e-9)
            last = now
            del frame
            if is_over or is_loader_worker():
                return

    def _add(self, sample: Sample, seconds: float) -> None:
        self._seconds[sample] = self._seconds.get(sample, 0.0) + seconds


def told(frame: FrameType | None, *, in_step: bool) -> Sample:
    """What a stack is doing, in a person's words.

    Args:
        frame: The innermost frame.
        in_step: Whether the first step has begun.
    """
    stack = list(_outwards(frame))
    files = [each.f_code.co_filename for each in stack]
    imports = [each for each in stack if each.f_code.co_filename.endswith(_IMPORTING)]
    if imports:
        return Sample("imports", _imported(imports))
    if any(part in file for part in _COMPILING for file in files):
        return Sample("compilation", _own_line(stack))
    if any(_LOADING in file for file in files):
        return Sample("first batch", _own_line(stack))
    if in_step:
        return Sample("first step", _own_line(stack))
    if any(_MODELS in file and each.f_code.co_name == "__init__" for file, each in zip(files, stack, strict=True)):
        return Sample("model", _own_line(stack))
    return Sample("script", _own_line(stack))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _imported(frames: list[FrameType]) -> str:
    """The package that the outermost import asked for, as far as its name can be read."""
    for frame in reversed(frames):
        name = frame.f_locals.get("name")
        if isinstance(name, str):
            return name.partition(".")[0]
    return "?"


def _own_line(stack: list[FrameType]) -> str:
    """The innermost line of the user's own code, else of any."""
    for frame in stack:
        file = frame.f_code.co_filename
        if not file.startswith(("<", *_INSTALLED)) and "/perfhooks/" not in file:
            return f"{os.path.relpath(file)}:{frame.f_lineno} {frame.f_code.co_name}"
    return stack[-1].f_code.co_name if stack else "(the main thread has ended)"


_INSTALLED: Final = tuple({sys.prefix, sys.base_prefix, *(path for path in sys.path if "-packages" in path)})


def is_loader_worker() -> bool:
    """Whether this process fetches for another one."""
    data = sys.modules.get("torch.utils.data")
    info = getattr(data, "get_worker_info", None)
    return info is not None and info() is not None


def _age_s() -> float | None:
    """How long ago this process began, in seconds, to a hundredth; None where the system does not say."""
    if _CLOCK_BOOTTIME is None:
        return None
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        began = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
    return time.clock_gettime(_CLOCK_BOOTTIME) - began
