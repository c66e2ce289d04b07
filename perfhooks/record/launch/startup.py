"""The start-up table: time before the end of the first step, for example imports, first batch and compilation.

Sampling every 100 ms takes at most 0.5% of the time.
"""

from __future__ import annotations

import _frozen_importlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.core.clocks import time
from perfhooks.core.frames import display_path
from perfhooks.core.guard import guard
from perfhooks.record.launch.children import is_loader_worker
from perfhooks.record.watch.sampling import frames_of, variable_of_outermost
from perfhooks.run import layout
from perfhooks.run.job import current_job
from perfhooks.run.liveness import born_s, clock_s
from perfhooks.run.publishing import csv_bytes, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from perfhooks.record.watch.sampling import Frame

_SCRIPT_SAMPLES: Final = 3
"""Number of consecutive stack samples inside the script after which `when_computing` is called."""
HEADER: Final = "phase,what,seconds\n"
LONGEST_WAIT_S: Final = 2.0
"""Maximum wait for the table at the end of the program in s."""

_IMPORT: Final = vars(_frozen_importlib)["_find_and_load"].__code__
"""Code of the function that each import of a new module calls."""


class StartupSample(NamedTuple):
    phase: str
    what: str


class Startup:
    """Samples the main thread until the first step ends.

    ``began`` is the start of this Python, in ns of the monotonic clock.
    """

    def __init__(self, began: int) -> None:
        self._seconds: dict[StartupSample, float] = {}
        self._main = threading.main_thread().ident or 0
        self._torch = time.monotonic_ns()
        self._in_step = False
        self._over = threading.Event()
        self._file: Callable[[], Path | None] | None = None
        self._began_s: float | None = None
        """Start of this process in s, by `perfhooks.run.liveness.clock_s`."""
        if began:
            self._began_s = clock_s() - (time.monotonic_ns() - began) * 1e-9
            self._add(StartupSample("before torch", "work before the import of torch"), (self._torch - began) * 1e-9)
        self.when_computing: Callable[[], object] | None = None
        """Function to call in the sampling thread while the script computes."""
        self._thread = threading.Thread(target=self._run, name="perfhooks-startup", daemon=True)
        self._thread.start()

    def first_step(self) -> None:
        self._in_step = True

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def end(self, file: Callable[[], Path | None] | None = None) -> None:
        """Stop sampling, and write the table to the path that ``file`` returns, possibly after a wait."""
        if not self._over.is_set():
            self._file = file
            self._over.set()

    def wait(self) -> None:
        self.end()
        if self._file is not None:
            self._thread.join(LONGEST_WAIT_S)

    def rows(self) -> list[tuple[str, str, float]]:
        """Return phase, activity and seconds, in order of the first occurrence."""
        sampled = [(sample.phase, sample.what, seconds) for sample, seconds in self._seconds.items()]
        born = None if self._began_s is None else born_s(os.getpid())
        if self._began_s is None or born is None:
            return sampled
        return [("python", "start of the interpreter", max(self._began_s - born, 0.0)), *sampled]

    def write(self, path: Path) -> None:
        rows = csv_bytes((*names, f"{seconds:.3f}") for *names, seconds in self.rows())
        with publish(path) as file:
            file.write(HEADER.encode() + rows)

    def _run(self) -> None:
        self._sample()
        if self._file is not None:
            with guard("writing the start-up table"):
                path = self._file()
                if path is not None:
                    self.write(path)

    def _sample(self) -> None:
        last, end, in_script = self._torch, self._torch + 3600 * 1e9, 0
        while last < end:
            is_over = self._over.wait(0.1)
            now = time.monotonic_ns()
            sample = classify(self._main, in_step=self._in_step)
            self._add(sample, (now - last) * 1e-9)
            last = now
            in_script = in_script + 1 if sample.phase == "script" else 0
            if in_script >= _SCRIPT_SAMPLES and self.when_computing is not None:
                with guard("recording a script"):
                    self.when_computing()
            if is_over or is_loader_worker():
                return

    def _add(self, sample: StartupSample, seconds: float) -> None:
        self._seconds[sample] = self._seconds.get(sample, 0.0) + seconds


def classify(thread: int, *, in_step: bool) -> StartupSample:
    stack = frames_of(thread)
    return (
        StartupSample("imports", _imported(thread))
        if any(caller.code is _IMPORT for caller in stack)
        else StartupSample(_phase(stack, in_step), _own_line(stack))
    )


def _phase(stack: list[Frame], in_step: bool) -> str:
    files = [caller.file for caller in stack]
    if any(map(frames.COMPILES.search, files)):
        return "compilation"
    if any(frames.LOADER in file for file in files):
        return "first batch"
    if in_step:
        return "first step"
    constructors = (caller.file for caller in stack if caller.name == "__init__")
    return "model" if any(frames.MODELS in file for file in constructors) else "script"


def _imported(thread: int) -> str:
    name = variable_of_outermost(thread, _IMPORT, "name")
    return name.partition(".")[0] if isinstance(name, str) else "?"


def _own_line(stack: list[Frame]) -> str:
    for frame in stack:
        file = frame.file
        if not file.startswith(("<", *_INSTALLED)) and not frames.is_ours(file):
            return f"{display_path(file)}:{frame.line} {frame.name}"
    return stack[-1].name if stack else "(the main thread has ended)"


_INSTALLED: Final = tuple({sys.prefix, sys.base_prefix, *(path for path in sys.path if "-packages" in path)})


def file_of(profilers: Iterable[Any]) -> Path | None:
    folders = (profiler.folder for profiler in profilers)
    return next((folder / layout.startup(current_job().rank) for folder in folders if folder is not None), None)
