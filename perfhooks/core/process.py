"""Work at the end of the process and at forks, in a fixed order. No other module registers such handlers.

::

    import torch ─ first step ─ windows ─ ... ─ last step ─ the interpreter ends
                                │                           COUNTS REASON STARTUP WATCHER PROFILERS, exit summary
                                └─ a fork: HOLD, then the parent goes on; in the child SIGNALS PROFILERS WATCHER STEPS
                                   TURNS RECORDER

Python's own order depends on imports: `atexit` handlers run in reverse order of registration, fork handlers in order.
The exit summary of `perfhooks run` comes last, because `launch.site.sitecustomize` registers it first.

All threads of perfhooks in a training are daemons.
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
    """Open windows are saved. A recorder that is open when Python ends causes a segmentation fault."""


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
    """The connection of `perfhooks compare --run` belongs to the parent."""
    RECORDER = auto()
    """The child does not wait for the recorder's thread at its end."""


class Outcome:
    """The end of the process, for the exit summary of `perfhooks run`."""

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

    Python forgets an uncaught KeyboardInterrupt when code is executed from text, as dataclasses do at import. Executing
    a text that raises it restores the flag (``run_eval_code_obj`` in CPython).
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

    Kineto's C++ destructor waits for a thread at the end of the process. A forked child has no such thread and would
    wait forever.
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
