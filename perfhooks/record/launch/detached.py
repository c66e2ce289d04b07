"""The detached process that prints the summary for a command that was killed or starts no Python."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core.guard import write_error
from perfhooks.core.process import EXIT_S
from perfhooks.record.launch import exit_summary, notes

if TYPE_CHECKING:
    from collections.abc import Sequence

_INFO: Final = struct.Struct("QQ12i")
_EXIT, _GET_INFO = 1 << 3, 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""Constants of Linux's ``pidfd.h``: ``PIDFD_INFO_EXIT`` and ``PIDFD_GET_INFO`` with ``struct pidfd_info``."""
_BOOTSTRAP: Final = """\
import os, select, shutil, sys
command, descriptor = sys.argv[2:4]
if int(descriptor) >= 0:
    end = select.poll()
    end.register(int(descriptor), select.POLLIN)
    end.poll()
try:
    if int(descriptor) < 0 or not os.path.exists(os.path.join(sys.argv[4], sys.argv[5])):
        import json
        sys.path[:] = json.loads(sys.argv[1])
        from perfhooks.record.launch.detached import report
        report(sys.argv[2:])
finally:
    shutil.rmtree(sys.argv[4], ignore_errors=True)
"""
"""Code of the detached process. perfhooks is imported after the wait, so that the waiting process needs a fifth of the
memory.
"""


def is_possible() -> bool:
    """Return whether a separate process can wait for the end of the command.

    A subreaper, or the first process of a container, becomes the parent of orphans on Linux. If the command is such a
    parent and waits for all children, the command and the detached process would wait for each other.
    """
    if not hasattr(os, "fork"):
        return False
    adopts = ctypes.c_int(0)
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        # PR_GET_CHILD_SUBREAPER of linux/prctl.h
        library.prctl(37, ctypes.byref(adopts))
    return os.getpid() != 1 and not adopts.value


def start(pid: int, folder: str, words: Sequence[str]) -> None:
    descriptor = _open(pid)  # open it first: a command that is not found ends at once
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        if descriptor is not None:
            os.close(descriptor)
        return
    try:
        os.setsid()
        descriptor = _leave_files(descriptor)
        if not os.fork():
            _become(pid, descriptor, folder, words)
    finally:
        os._exit(0)


def _leave_files(descriptor: int | None) -> int | None:
    # close all inherited files: pipes and locks of the training must end with the training
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    if descriptor is not None:
        descriptor = os.dup2(descriptor, 3)
        os.set_inheritable(descriptor, True)
    os.closerange(3 if descriptor is None else 4, os.sysconf("SC_OPEN_MAX"))
    return descriptor


def _become(pid: int, descriptor: int | None, folder: str, words: Sequence[str]) -> None:
    facts = [str(pid), str(-1 if descriptor is None else descriptor), folder, exit_summary.IS_OVER, *words]
    os.execv(sys.executable, [sys.executable, "-S", "-E", "-c", _BOOTSTRAP, json.dumps(sys.path), *facts])  # noqa: S606 -- our own interpreter


def report(facts: Sequence[str]) -> None:
    pid, descriptor, folder, over, *words = facts
    code = wait(int(pid), int(descriptor) if int(descriptor) >= 0 else None)
    if Path(folder, over).exists():
        return
    all_notes = notes.read(folder)
    runs = [run for run in notes.runs(all_notes) if notes.claim(folder, run)]
    if runs:
        exit_summary.print_runs(runs, runs, 60)
    elif not notes.takes_files(folder):
        write_error(
            f"perfhooks: the recorded runs are unknown: no file can be written to {folder}, is its disk full?\n"
        )
    elif not any(note.run for note in all_notes) and exit_summary.known_before(words) is None:
        for reason in exit_summary.reasons(all_notes, words, code):
            write_error(f"perfhooks: nothing was recorded: {reason}\n")


def _open(pid: int) -> int | None:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def wait(pid: int, descriptor: int | None) -> int | None:
    """Return the exit code of the process; negative if a signal ended it."""
    if descriptor is None:
        import psutil

        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
        return None
    end = select.poll()
    end.register(descriptor, select.POLLIN)
    end.poll()
    code = _exit_code(descriptor)
    if code is None:
        end.modify(descriptor, 0)
        end.poll(1e3 * EXIT_S)
        code = _exit_code(descriptor)
    return code


def _exit_code(descriptor: int) -> int | None:
    import fcntl

    with contextlib.suppress(OSError):
        mask, *_, status = _INFO.unpack(fcntl.ioctl(descriptor, _GET_INFO, _INFO.pack(_EXIT, *[0] * 13)))
        return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
    return None
