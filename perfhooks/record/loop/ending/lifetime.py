"""How a process ends, or splits: open profilers are closed before Python's end, and left alone in forked children."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import signal
import sys
import threading
import time
import traceback
import weakref
from typing import TYPE_CHECKING, Protocol

from perfhooks.core import process
from perfhooks.core.guard import cause_of
from perfhooks.record.loop import worker
from perfhooks.record.loop.ending import signals
from perfhooks.record.loop.limits import call_count
from perfhooks.run.timeline import OWN_WORK, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path


class Closable(Protocol):
    """A profiler, as far as this module needs to know."""

    @property
    def in_window(self) -> bool:
        """Whether a window is open."""

    def stop(self, cause: str | None = None) -> None:
        """End what is being recorded, and keep it."""

    def leave(self, waited_s: float = 0.0) -> Path | None:
        """Stop, and wait for files for a while; returns the run if its files are not complete."""

    def abandon(self) -> None:
        """Forget what is being recorded."""


_known: dict[Closable, weakref.ref[Closable]] = {}
"""Profilers that have started, or have files to wait for: the course of each, which the end of the process needs, and
the object that the program has, as long as the program has it."""
_watched: weakref.WeakSet[object] = weakref.WeakSet()
"""Open windows of the main thread, and those that are kept for the case that no other is recorded."""
_keepers: list[Callable[[str], object]] = []


def opened(course: Closable, profiler: Closable) -> None:
    """Remember a profiler until the process ends, or until its course is forgotten."""
    _known[course] = weakref.ref(profiler)


def _profilers() -> list[Closable]:
    """Return what the program has of each profiler, else its course."""
    pairs = [(course, profiler()) for course, profiler in list(_known.items())]
    return [course if profiler is None else profiler for course, profiler in pairs]


def left_open() -> list[Closable]:
    """Return the courses whose profilers the program has left open.

    A notebook cell that runs again gives the name of its first profiler to another one, so that no reference to the
    first one is left. If a function of the cell raised, the session keeps its variables for a debugger.
    """
    failed = _variables_of_last_error()
    profilers = [(course, profiler()) for course, profiler in list(_known.items())]
    return [course for course, profiler in profilers if profiler is None or any(value is profiler for value in failed)]


def _variables_of_last_error() -> list[object]:
    """Return the variables of the functions that ended with the last error of an interactive session."""
    frames = (frame for frame, _ in traceback.walk_tb(getattr(sys, "last_traceback", None)))
    functions = (frame for frame in frames if frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return [value for frame in functions for value in frame.f_locals.values()]


def is_anybody_known(besides: Collection[Closable] = ()) -> bool:
    """Whether any profiler has begun, or waits for its files.

    Args:
        besides: These do not count.
    """
    return any(profiler not in besides for profiler in _profilers())


def forget(course: Closable) -> None:
    """A profiler has stopped and waits for nothing."""
    _known.pop(course, None)


def _leave_all() -> None:
    """Close all recorders: an open one at the end of the interpreter is a segmentation fault.

    All profilers together wait for their files for as long as one of them may. A Ctrl-C ends the wait.
    """
    was_any, began = bool(_known), time.monotonic()
    for profiler in _profilers():
        try:
            run = profiler.leave(math.inf if process.outcome.is_interrupted else time.monotonic() - began)
        except KeyboardInterrupt:
            process.outcome.is_interrupted, run = True, None
        if run is not None:
            process.outcome.unfinished.add(str(run))
    _known.clear()
    worker.let_go()
    if was_any:
        process.end_by_ctrl_c()


def why_it_ends() -> str:
    """Why the interpreter ends: the exception that nobody caught, if there was one."""
    error = getattr(sys, "last_value", None)
    return "the interpreter exited" if error is None else cause_of(error)


def _abandon_all() -> None:
    call_count.end_in_child()
    for profiler in _profilers():
        profiler.abandon()
    _known.clear()
    _watched.clear()
    _keepers.clear()


process.at_end(process.End.PROFILERS, _leave_all)
process.in_child(process.Child.PROFILERS, _abandon_all)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Hold signals back while the recorder is being started, stopped or saved, and note how long that takes.

    Other threads than the main one have no signals.
    """
    is_main, begin = threading.current_thread() is threading.main_thread(), clock()
    try:
        with signals.held if is_main else contextlib.nullcontext():
            yield
    finally:
        OWN_WORK.append((threading.get_ident(), begin, clock()))


def watch(window: object) -> None:
    """A window opens: let SIGTERM and SIGHUP keep it, unless the program handles them."""
    if threading.current_thread() is threading.main_thread() and signals.on_end(_terminate):
        _watched.add(window)


def at_signal(keep: Callable[[str], object]) -> None:
    """Have somebody keep what no profiler knows of when SIGTERM or SIGHUP comes while anything is watched.

    Args:
        keep: Is given why.
    """
    _keepers.append(keep)


def unwatch(window: object) -> None:
    """The window has closed, or is not wanted any more: restore SIGTERM and SIGHUP."""
    _watched.discard(window)
    if not _watched and threading.current_thread() is threading.main_thread():
        signals.off_end()


def _terminate(number: int, _frame: object) -> None:
    """Keep what is being recorded, then die of the signal as if nobody had looked."""
    name = signal.Signals(number).name
    try:
        for profiler in _profilers():
            if profiler.in_window:
                profiler.stop(name)
        for keep in _keepers:
            keep(name)
    finally:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
