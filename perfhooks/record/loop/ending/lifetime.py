"""Open profilers are closed at the end of the process, and ignored in forked children."""

from __future__ import annotations

import contextlib
import inspect
import math
import os
import signal
import sys
import threading
import traceback
import weakref
from typing import TYPE_CHECKING, Protocol

from perfhooks.core import process
from perfhooks.core.clocks import time
from perfhooks.core.guard import cause_of
from perfhooks.record.loop import worker
from perfhooks.record.loop.ending import signals
from perfhooks.record.loop.limits import call_count
from perfhooks.run.timeline import OWN_WORK, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path


class Closable(Protocol):
    @property
    def in_window(self) -> bool:
        """Whether a window is open."""

    def stop(self, cause: str | None = None) -> None:
        """End the loop, and keep the open window."""

    def leave(self, waited_s: float = 0.0) -> Path | None:
        """Stop at the end of the process. Return the run folder if files are missing."""

    def abandon(self) -> None:
        """Discard the open window."""


_registered: dict[Closable, weakref.ref[Closable]] = {}
"""Weak reference to each profiler, keyed by its loop controller. The program may have deleted the profiler."""
_watched: weakref.WeakSet[object] = weakref.WeakSet()
_keepers: list[Callable[[str], object]] = []


def register(course: Closable, profiler: Closable) -> None:
    _registered[course] = weakref.ref(profiler)


def _profilers() -> list[Closable]:
    pairs = [(course, profiler()) for course, profiler in _registered.copy().items()]
    return [course if profiler is None else profiler for course, profiler in pairs]


def find_left_open() -> list[Closable]:
    """Return profilers that the program lost, for example because a notebook cell ran again.

    A lost profiler was deleted, or only the last traceback of an interactive session refers to it.
    """
    values = _variables_of_last_error()
    profilers = [(course, profiler()) for course, profiler in _registered.copy().items()]
    return [course for course, profiler in profilers if profiler is None or any(value is profiler for value in values)]


def _variables_of_last_error() -> list[object]:
    frames = (frame for frame, _ in traceback.walk_tb(getattr(sys, "last_traceback", None)))
    functions = (frame for frame in frames if frame.f_code.co_flags & inspect.CO_OPTIMIZED)
    return [value for frame in functions for value in frame.f_locals.values()]


def has_profilers(besides: Collection[Closable] = ()) -> bool:
    return any(profiler not in besides for profiler in _profilers())


def unregister(course: Closable) -> None:
    _registered.pop(course, None)


def _leave_all() -> None:
    """Close all recorders, which crash the interpreter's exit if open. Ctrl-C ends the wait for files."""
    was_any, began = bool(_registered), time.monotonic()
    must_wait = not process.is_child()  # the parent waits for the files of its children
    for profiler in _profilers():
        try:
            run = profiler.leave(time.monotonic() - began if must_wait else math.inf)
        except KeyboardInterrupt:
            process.outcome.is_interrupted, must_wait, run = True, False, None
        if run is not None:
            process.outcome.unfinished.add(str(run))
    _registered.clear()
    worker.release_children()
    if was_any:
        process.end_by_ctrl_c()


def why_it_ends() -> str:
    error = process.last_error()
    return "the interpreter exited" if error is None else cause_of(error)


def _abandon_all() -> None:
    call_count.end_in_child()
    for profiler in _profilers():
        profiler.abandon()
    _registered.clear()
    _watched.clear()
    _keepers.clear()


process.at_end(process.End.PROFILERS, _leave_all)
process.in_child(process.Child.PROFILERS, _abandon_all)


@contextlib.contextmanager
def busy() -> Iterator[None]:
    """Defer signals while the recorder starts, stops or saves."""
    is_main, begin = threading.current_thread() is threading.main_thread(), clock()
    try:
        with signals.deferral if is_main else contextlib.nullcontext():
            yield
    finally:
        OWN_WORK.append((threading.get_ident(), begin, clock()))


def watch(window: object) -> None:
    if threading.current_thread() is threading.main_thread() and signals.set_end_handler(_terminate):
        _watched.add(window)


def at_signal(keep: Callable[[str], object]) -> None:
    """Call ``keep`` with the reason when SIGTERM or SIGHUP arrives."""
    _keepers.append(keep)


def unwatch(window: object) -> None:
    _watched.discard(window)
    if not _watched and threading.current_thread() is threading.main_thread():
        signals.reset_end_handler()


def _terminate(number: int, _frame: object) -> None:
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
