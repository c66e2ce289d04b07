"""Work at the end of the process and at forks: the calls, their order and the reasons.

Python runs `atexit` handlers in reverse order of registration, and fork handlers in order of registration. Both depend
on the order of imports. This module fixes the order, and no other module registers handlers::

    import torch ─ first step ─ windows ─ ... ─ last step ─ the interpreter ends
                                │                           COUNTS REASON STARTUP WATCHER PROFILERS, exit summary
                                └─ a fork: HOLD, then the parent goes on; in the child SIGNALS PROFILERS WATCHER STEPS
                                   TURNS RECORDER

The exit summary of `perfhooks run` is printed last. Its handler in `launch.site.sitecustomize` is registered first,
also in processes without torch.

Threads of perfhooks in a training are daemons:

* the watcher (`watch.watcher`): slow steps, requests and the timeline
* the start-up sampler and the timer of `perfhooks run`, which reports the first steps (`launch.startup`,
  `launch.step_signal`)
* the monitor of an open window's trace size (`loop.ending.in_step`)
* the handler of SIGTERM and SIGHUP during a window (`loop.ending.signals`)
* a short thread that collects module names outside the recorded threads (`loop.labelling`)
* a thread that opens the run folder (`loop.limits.run_opening`)

The worker is a separate process.

Each kind of global state changes in one module: listeners in programs that do not use perfhooks (`launch.step_signal`),
the watcher (`watch.watcher`), active profilers (`loop.ending.lifetime`), open runs (`run.folder`), and the calls in
this module. A forked child resets the first three. Facts of a process (`run.liveness`) are stored by process id.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import ctypes
import functools
import os
import sys
from enum import IntEnum, auto
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable


THREADS: Final = "perfhooks"
"""Prefix of the names of all threads of perfhooks."""


class End(IntEnum):
    """Work at the end of the interpreter, in this order."""

    COUNTS = auto()
    """`perfhooks run` writes the fetches and updates per step, for the last report."""
    REASON = auto()
    """`perfhooks run` stores the first steps if no window was recorded, or the reason for their absence."""
    STARTUP = auto()
    """The table of the start-up is written."""
    WATCHER = auto()
    """The watcher stops and writes its last rows, which the final report contains."""
    PROFILERS = auto()
    """Open windows are saved, and files awaited. A recorder that is open when Python ends causes a segmentation
    fault."""


class Child(IntEnum):
    """Work in a forked child, in this order. The child records nothing and changes nothing of its parent."""

    SIGNALS = auto()
    """First, so that an early signal ends the child as usual."""
    PROFILERS = auto()
    """Profilers forget their windows, files and worker."""
    WATCHER = auto()
    """The watcher's thread does not exist in the child."""
    STEPS = auto()
    """Events of `perfhooks run` belong to the parent."""
    TURNS = auto()
    """The connection of a training under `perfhooks compare --run` belongs to the parent."""
    RECORDER = auto()
    """The child does not wait for the recorder's thread at its end."""


class Outcome:
    """The facts about the end of the process for the exit summary of `perfhooks run`."""

    def __init__(self) -> None:
        self.unfinished: set[str] = set()
        """Runs with missing files."""
        self.is_interrupted = False
        """Whether Ctrl-C ended the wait for files."""


outcome = Outcome()
_at_end: dict[End, Callable[[], object]] = {}
_in_child: dict[Child, Callable[[], object]] = {}


def at_end(when: End, call: Callable[[], object]) -> None:
    """Register a call for the end of the interpreter. It replaces the previous call for the same phase.

    All calls run before the handlers that others have registered so far, such as those of torch.
    """
    _at_end[when] = call
    atexit.unregister(_end)
    atexit.register(_end)


def in_child(when: Child, call: Callable[[], object]) -> None:
    """Register a call for forked children. It replaces the previous call for the same phase."""
    _in_child[when] = call


def around_forks(before: Callable[[], object], in_parent: Callable[[], object]) -> None:
    """Register calls in the parent before and after a fork."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent)


def _end() -> None:
    _run_all([_at_end[when] for when in sorted(_at_end)])


def _run_all(calls: list[Callable[[], object]]) -> None:
    """Run all calls, even if one raises, for example after Ctrl-C."""
    if calls:
        try:
            calls[0]()
        finally:
            _run_all(calls[1:])


def end_by_ctrl_c() -> None:
    """Let a program that Ctrl-C ended die of SIGINT, as without perfhooks.

    Python remembers an uncaught KeyboardInterrupt of the main program, but forgets it when code is executed from text.
    Dataclasses do that when they are imported. Executing a text that raises it restores the flag (``run_eval_code_obj``
    in CPython).
    """
    is_interactive = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not is_interactive:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 -- a constant text


def _split() -> None:
    _run_all([_in_child[when] for when in sorted(_in_child)])


def working_directory() -> str:
    """Return the working directory of this process; empty if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 -- a string
    except FileNotFoundError:
        return ""


def recorder_begins() -> None:
    """Let forked children end after a recorder of torch started.

    Kineto starts a thread and waits for it at the end of the process, in a C++ destructor. A forked child has no such
    thread and would wait forever.
    """
    if Child.RECORDER in _in_child or not hasattr(os, "fork"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # only glibc
        # resolved before the fork: the child may inherit a locked dynamic loader
        in_child(Child.RECORDER, functools.partial(_end_at_once, library.on_exit, library._exit, library.fcloseall))  # noqa: SLF001 -- the name in libc


def _end_at_once(on_exit: Callable[..., object], leave: object, close_files: object) -> None:
    """End this process after Python's own cleanup, with its exit code."""
    # reverse order
    on_exit(leave, None)
    on_exit(close_files, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_split)
