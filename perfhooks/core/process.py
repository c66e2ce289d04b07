"""Work at the end of the process and at forks, in a fixed order.

::

    import torch ─ first step ─ windows ─ ... ─ last step ─ the interpreter ends: phases `End`, then the exit summary
                                └─ a fork; in the child: phases `Child`

No other module registers handlers of exits or forks, except `launch.site.sitecustomize`. sitecustomize registers the
exit summary first, because Python calls the first handler last.

Threads of perfhooks in a training are daemons of `watch.watcher`, `launch.startup`, `launch.recordings`,
`loop.ending.in_step`, `loop.ending.signals`, `loop.labelling` and `loop.limits.run_opening`.
"""

from __future__ import annotations

import _thread
import atexit
import builtins
import contextlib
import ctypes
import functools
import os
import sys
from enum import IntEnum, auto
from types import BuiltinFunctionType
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import handlers

if TYPE_CHECKING:
    from collections.abc import Callable


THREADS: Final = "perfhooks"
POLL_S: Final = 0.1
"""Interval of checks for other processes and their files, in s."""
EXIT_S: Final = 0.5
"""Maximum wait for another thread or process at the end of the training, in s. The time between SIGTERM and SIGKILL is
longer (30 s in torchrun, Kubernetes and SLURM).
"""


_MULTIPROCESSING: Final = ("multiprocessing", "multiprocess")
"""Python's package, and its fork that Hugging Face datasets uses."""


class End(IntEnum):
    COUNTS = auto()
    """Phase in which `perfhooks run` writes the numbers of batch fetches and optimizer updates per step."""
    REASON = auto()
    """Phase in which `perfhooks run` stores why no window was recorded."""
    STARTUP = auto()
    WATCHER = auto()
    """Phase that writes the last rows of the watcher thread."""
    PROFILERS = auto()
    """Phase that saves open windows. An open recorder at the end of Python causes a segmentation fault."""


class Child(IntEnum):
    SIGNALS = auto()
    """Phase that removes perfhooks' signal handlers first, so that an early signal ends the child process as usual."""
    PROFILERS = auto()
    """Phase that drops the windows, files and worker of the parent."""
    WATCHER = auto()
    STEPS = auto()
    """Phase that ends the step detection of `perfhooks run`."""
    TURNS = auto()
    """Phase that drops the connection to `perfhooks compare --run`."""
    BUDGET = auto()
    RECORDER = auto()


class Outcome:
    def __init__(self) -> None:
        self.unfinished: set[str] = set()
        self.is_interrupted = False


outcome = Outcome()
_at_end: dict[End, Callable[[], object]] = {}
_in_child: dict[Child, Callable[[], object]] = {}


def at_end(when: End, call: Callable[[], object]) -> None:
    """Set the function that runs in a phase of the exit, before exit handlers of other packages, such as torch."""
    _at_end[when] = call
    atexit.unregister(_end)
    atexit.register(_end)


def in_child(when: Child, call: Callable[[], object]) -> None:
    _in_child[when] = call


def has_real_threads() -> bool:
    """Return whether Python's threads are system threads; gevent replaces them by greenlets of the main thread."""
    return isinstance(_thread.start_new_thread, BuiltinFunctionType)


def around_forks(before: Callable[[], object], in_parent: Callable[[], object]) -> None:
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent)


def _end() -> None:
    calls = [_at_end[when] for when in sorted(_at_end)]
    _at_end.clear()  # a spawned child ends twice, see `end_with_child`
    with handlers.contained():
        _run_all(calls)


def end_with_child() -> None:
    """Run the functions of `at_end` at the end of a child of multiprocessing.

    Forked children skip Python's exit handlers. The finalizer runs before those of queues and pools.
    """
    for package in _packages():
        util = sys.modules.get(f"{package}.util")
        if util is not None:
            util.Finalize(None, _end, exitpriority=100)


def last_error() -> BaseException | None:
    """Return the exception that ends the program.

    `torch.multiprocessing.spawn` would replace the exception by SystemExit.
    """
    error = getattr(sys, "last_value", None)
    if error is None and is_child():
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):
            error = error.__context__
    return error


def is_child() -> bool:
    """Return whether multiprocessing started this process."""
    return any(
        module.parent_process() is not None or hasattr(module.current_process(), "_inheriting")
        for module in _packages().values()
    )


def target_module() -> str:
    """Return the module of the function that multiprocessing runs in this process."""
    targets = (getattr(module.current_process(), "_target", None) for module in _packages().values())
    return next((target.__module__ for target in targets if target is not None), "")


def parent() -> int:
    """Return the process that started this one. The operating system's parent may be multiprocessing's fork server."""
    parents = (module.parent_process() for module in _packages().values())
    return next((parent.pid for parent in parents if parent is not None), os.getppid())


def _packages() -> dict[str, Any]:
    modules = ((package, sys.modules.get(f"{package}.process")) for package in _MULTIPROCESSING)
    return {package: module for package, module in modules if module is not None}


def _run_all(calls: list[Callable[[], object]]) -> None:
    if calls:
        try:
            calls[0]()
        finally:
            _run_all(calls[1:])


def end_by_ctrl_c() -> None:
    """Let a program that Ctrl-C ended die of SIGINT, as without perfhooks.

    CPython sets a flag after an uncaught KeyboardInterrupt. Each ``exec`` of a string, for example in dataclasses,
    clears the flag. A string that raises KeyboardInterrupt sets the flag again (``run_eval_code_obj``).
    """
    is_interactive = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not is_interactive:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 -- a constant text


def _split() -> None:
    _run_all([_in_child[when] for when in sorted(_in_child)])


def working_directory() -> str:
    """Return the working directory; empty if it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 -- a string
    except FileNotFoundError:
        return ""


def recorder_begins() -> None:
    """Ensure that forked children can exit after torch's recorder started.

    Kineto's C++ destructor waits for a thread that a forked child does not have.
    """
    if Child.RECORDER in _in_child or not hasattr(os, "fork"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):
        # resolved before the fork: the child may inherit a locked dynamic loader
        in_child(Child.RECORDER, functools.partial(_end_at_once, library.on_exit, library._exit, library.fcloseall))  # noqa: SLF001 -- the name in libc


def _end_at_once(on_exit: Callable[..., object], leave: object, close_files: object) -> None:
    on_exit(leave, None)
    on_exit(close_files, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_split)
