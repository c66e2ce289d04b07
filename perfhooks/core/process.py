"""What happens beside the training in its process: who is called when it ends or forks, in which order, and why.

Python calls what is registered with `atexit` in the reverse order of registration, and forks call in the order of it:
both are the order in which modules happen to be imported. Here the order is written down, and nobody else registers::

    import torch ─ first step ─ windows ─ ... ─ last step ─ the interpreter ends
                                │                           COUNTS REASON STARTUP WATCHER PROFILERS, exit summary
                                └─ a fork: HOLD, then the parent goes on; in the child SIGNALS PROFILERS WATCHER STEPS
                                   TURNS RECORDER

The exit summary of `perfhooks run` is printed by the first handler of all, so that it comes last: that of
`launch.site.sitecustomize`, which processes without torch have as well.

Threads of ours in a training, all of them daemons: the watcher (`watch.watcher`), which looks at steps, requests and
the timeline; the sampler of the start and the timer of `perfhooks run`, which makes the report of the first steps
(`launch.startup`, `launch.step_signal`); the overseer of an open window's budget (`loop.ending.in_step`);
the one that hears SIGTERM and SIGHUP while a window is open (`loop.ending.signals`); one that names the modules
of a window, out of its recorder's sight, and is gone at once (`loop.labelling`); and one that opens the run folder
beside other threads of the program (`loop.limits.run_opening`). The worker is a process of its own.

What a process has once, and in which module alone it changes: who listens to a program that does not know of us
(`launch.step_signal`), the watcher (`watch.watcher`), the profilers that have not ended
(`loop.ending.lifetime`), the runs that were opened (`run.folder`), and the calls below. A forked child forgets the
first three, as the listing above says; what is known of this process (`run.liveness`) is kept by its number.
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
"""First part of the name of each thread of ours that Python knows by a name."""


class End(IntEnum):
    """What is done when the interpreter ends, in this order."""

    COUNTS = auto()
    """`perfhooks run` writes how many fetches and updates a step had: the last page shows it."""
    REASON = auto()
    """`perfhooks run` keeps the first steps where nothing else was recorded, or leaves a note of why nothing was."""
    STARTUP = auto()
    """The table of what came before the first step is written."""
    WATCHER = auto()
    """The watcher's thread ends, as its last rows belong on the page that the next line makes."""
    PROFILERS = auto()
    """Open windows are kept, and files waited for: an open recorder at the end of Python is a segmentation fault."""


class Child(IntEnum):
    """What is done in a forked child, in this order; it records nothing, and touches nothing of its parent's."""

    SIGNALS = auto()
    """First, so that a signal that comes at once ends the child as it would any other."""
    PROFILERS = auto()
    """They forget their windows, their files and the worker."""
    WATCHER = auto()
    """Its thread is not there."""
    STEPS = auto()
    """What `perfhooks run` heard is not the child's."""
    TURNS = auto()
    """The connection of a training under `perfhooks compare --run` is the parent's."""
    RECORDER = auto()
    """It will not wait for the recorder's thread when it ends."""


class Outcome:
    """What the exit summary of `perfhooks run` needs to know of the end of the process."""

    def __init__(self) -> None:
        self.unfinished: set[str] = set()
        """The runs whose files are not complete."""
        self.is_interrupted = False
        """Whether the user ended the wait for files by Ctrl-C."""


outcome = Outcome()
_at_end: dict[End, Callable[[], object]] = {}
_in_child: dict[Child, Callable[[], object]] = {}


def at_end(when: End, call: Callable[[], object]) -> None:
    """Have something done when the interpreter ends; what was to be done at this point before is forgotten.

    All of it comes before whatever others have registered so far, as torch does while it is imported.
    """
    _at_end[when] = call
    atexit.unregister(_end)
    atexit.register(_end)


def in_child(when: Child, call: Callable[[], object]) -> None:
    """Have something done in forked children; what was to be done at this point before is forgotten."""
    _in_child[when] = call


def around_forks(before: Callable[[], object], in_parent: Callable[[], object]) -> None:
    """Have something done in the parent just before it forks, and just after."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent)


def _end() -> None:
    _each([_at_end[when] for when in sorted(_at_end)])


def _each(calls: list[Callable[[], object]]) -> None:
    """Call all of them, also after one that raises, as Ctrl-C may make each."""
    if calls:
        try:
            calls[0]()
        finally:
            _each(calls[1:])


def end_by_ctrl_c() -> None:
    """Let a program that a Ctrl-C ended die of SIGINT, as it would have without us.

    Python notes that the main program raised KeyboardInterrupt, and forgets it when a text is executed, as dataclasses
    do that are imported to make files. A text that raises it notes it again (``run_eval_code_obj`` in CPython).
    """
    is_interactive = hasattr(sys, "ps1") or hasattr(builtins, "__IPYTHON__")
    if isinstance(getattr(sys, "last_value", None), KeyboardInterrupt) and not is_interactive:
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 -- it is this text


def _split() -> None:
    _each([_in_child[when] for when in sorted(_in_child)])


def working_directory() -> str:
    """The folder that this process works in; nothing where it was deleted."""
    try:
        return os.getcwd()  # noqa: PTH109 -- a string
    except FileNotFoundError:
        return ""


def recorder_begins() -> None:
    """A recorder of torch is about to begin: forked children are to end nevertheless.

    Kineto has a thread of its own from then on, and waits for it when the process ends, among what C++ does last. A
    forked child has no such thread, and would wait for ever.
    """
    if Child.RECORDER in _in_child or not hasattr(os, "fork"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "on_exit"):  # glibc, and no other
        # found now: in a child that is forked while another thread loads a library, the loader's lock stays taken
        in_child(Child.RECORDER, functools.partial(_end_at_once, library.on_exit, library._exit, library.fcloseall))  # noqa: SLF001 -- it is called so


def _end_at_once(on_exit: Callable[..., object], leave: object, close_files: object) -> None:
    """Let this process end as soon as Python has, with the code that it gives."""
    # the last one is called first
    on_exit(leave, None)
    on_exit(close_files, None)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_split)
