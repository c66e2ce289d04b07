"""What a process did before its first step had ended: imports, the script itself, the first batch, compilation.

A thread looks at the main thread's stack every 100 ms from the moment torch is imported, so the table is right to about
that much. It costs 0.1% of the time and ends with the first step.
"""

from __future__ import annotations

import csv
import io
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.core.frames import shown
from perfhooks.core.guard import guard
from perfhooks.record.watch.sampling import innermost_of, outwards
from perfhooks.run import layout
from perfhooks.run.job import current_job, is_in_job
from perfhooks.run.liveness import born_s, clock_s
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path
    from types import FrameType

INTERVAL_S: Final = 0.1
LONGEST_S: Final = 3600.0
"""A process that has made no step in an hour is not going to."""
_LOOKS: Final = 3
"""In a row, after which a script is one that computes: what it calls may be operators of torch."""
_LAST_WORD_S: Final = 2.0
"""How long the end of a process waits for the table: writing it takes a millisecond, where a disk answers."""
HEADER: Final = "phase,what,seconds\n"

_IMPORTING: Final = "importlib._bootstrap>"


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
        self._main = threading.main_thread().ident or 0
        self._torch = time.monotonic_ns()
        self._in_step = False
        self._over = threading.Event()
        self._file: Callable[[], Path | None] | None = None
        self._came_s: float | None = None
        """When this Python came to our code, by the clock that tells when processes began."""
        if began:
            self._came_s = clock_s() - (time.monotonic_ns() - began) * 1e-9
            self._add(Sample("before torch", "what ran before torch was imported"), (self._torch - began) * 1e-9)
        self.when_computing: Callable[[], object] | None = None
        """Is called in the thread that samples, while the script computes and calls no module."""
        self._thread = threading.Thread(target=self._watch, name="perfhooks-startup", daemon=True)
        self._thread.start()

    def first_step(self) -> None:
        """The first step begins: what follows belongs to it."""
        self._in_step = True

    @property
    def is_over(self) -> bool:
        """Whether the first step has ended."""
        return self._over.is_set()

    def end(self, file: Callable[[], Path | None] | None = None) -> None:
        """The first step has ended; the thread that looked writes the table.

        Args:
            file: Returns where to, None without a run folder. It may wait for that.
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
        seen = [(sample.phase, sample.what, seconds) for sample, seconds in self._seconds.items()]
        born = None if self._came_s is None else born_s(os.getpid())
        if self._came_s is None or born is None:
            return seen
        return [("python", "start of the interpreter", max(self._came_s - born, 0.0)), *seen]

    def write(self, path: Path) -> None:
        """Write the table as CSV."""
        table = io.StringIO(HEADER, newline="")
        table.seek(0, io.SEEK_END)
        csv.writer(table, lineterminator="\n").writerows((*names, f"{seconds:.3f}") for *names, seconds in self.rows())
        with publish(path) as file:
            file.write(table.getvalue().encode())

    def _watch(self) -> None:
        self._look()
        if self._file is not None:
            with guard("writing what happened before the first step"):
                path = self._file()
                if path is not None:
                    self.write(path)

    def _look(self) -> None:
        last, end, looks = self._torch, self._torch + LONGEST_S * 1e9, 0
        while last < end:
            is_over = self._over.wait(INTERVAL_S)
            now = time.monotonic_ns()
            sample = told(innermost_of(self._main), in_step=self._in_step)
            self._add(sample, (now - last) * 1e-9)
            last = now
            looks = looks + 1 if sample.phase == "script" else 0
            if looks >= _LOOKS and self.when_computing is not None:
                with guard("looking at a script"):
                    self.when_computing()
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
    stack = list(outwards(frame))
    imports = [caller for caller in stack if caller.f_code.co_filename.endswith(_IMPORTING)]
    return Sample("imports", _imported(imports)) if imports else Sample(_phase(stack, in_step), _own_line(stack))


def _phase(stack: list[FrameType], in_step: bool) -> str:
    files = [caller.f_code.co_filename for caller in stack]
    if any(map(frames.COMPILES.search, files)):
        return "compilation"
    if any(frames.LOADER in file for file in files):
        return "first batch"
    if in_step:
        return "first step"
    constructors = (caller.f_code.co_filename for caller in stack if caller.f_code.co_name == "__init__")
    return "model" if any(frames.MODELS in file for file in constructors) else "script"


def _imported(imports: list[FrameType]) -> str:
    """The package that the outermost import asked for, as far as its name can be read."""
    for frame in reversed(imports):
        name = frame.f_locals.get("name")
        if isinstance(name, str):
            return name.partition(".")[0]
    return "?"


def _own_line(stack: list[FrameType]) -> str:
    """The innermost line of the user's own code, else of any."""
    for frame in stack:
        file = frame.f_code.co_filename
        if not file.startswith(("<", *_INSTALLED)) and not frames.is_ours(file):
            return f"{shown(file)}:{frame.f_lineno} {frame.f_code.co_name}"
    return stack[-1].f_code.co_name if stack else "(the main thread has ended)"


_INSTALLED: Final = tuple({sys.prefix, sys.base_prefix, *(path for path in sys.path if "-packages" in path)})


def file_of(profilers: Iterable[Any]) -> Path | None:
    """Where the table goes: into the run of the first profiler that has one; None where no files are written."""
    folders = (profiler.folder for profiler in profilers)
    return next((folder / layout.startup(current_job().rank) for folder in folders if folder is not None), None)


def is_of_somebody_else() -> bool:
    """Whether this process works for another one: a loader's or a pool's worker, or a tool of torch's own."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    if getattr(spec, "name", "").startswith("torch.") or is_loader_worker():
        return True
    processes = sys.modules.get("multiprocessing.process")
    return processes is not None and processes.parent_process() is not None and not is_in_job()


def is_loader_worker() -> bool:
    """Whether this process fetches for another one."""
    data = sys.modules.get("torch.utils.data")
    info = getattr(data, "get_worker_info", None)
    return info is not None and info() is not None


def is_forked_by_loader() -> bool:
    """Return whether the iterator of a loader forks this process, to be called while it does."""
    codes = (frame.f_code for frame in outwards(sys._getframe()))
    return any(code.co_name == "__init__" and code.co_filename.endswith(frames.ITERATORS) for code in codes)
