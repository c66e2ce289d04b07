"""The last word of ``perfhooks run``, by a process that waits for the end of the command and is no child of it.

The command itself has become the training, whose exit code and signals are its own; so somebody else has to say what
came of it, also where it was killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import shutil
import signal
import struct
import sys
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.errors import PerfhooksError
from perfhooks.run.layout import PAGE
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_GET_CHILD_SUBREAPER: Final = 37
"""``PR_GET_CHILD_SUBREAPER`` in Linux' ``prctl.h``."""

_INFO: Final = struct.Struct("QQ12i")
_EXIT, _GET_INFO = 1 << 3, 3 << 30 | _INFO.size << 16 | 0xFF << 8 | 11
"""``struct pidfd_info``, whose last number is the status; ``PIDFD_INFO_EXIT`` and ``PIDFD_GET_INFO`` of ``pidfd.h``."""
_REAPED_MS: Final = 500
"""For how long is waited for the parent of a command to hear of its end: most do so at once, and some never."""
_SETS_PATH: Final = re.compile(r"""PYTHONPATH["'\]\s]*[=:](?!=)(?!.*PYTHONPATH)""")
_LARGEST: Final = 1 << 20
"""Bytes of a script that is looked into."""

_STEPS: Final = {
    "call": " (a step begins with a call of the model)",
    "backward": " (a step ends with its backward pass)",
    "process": " (the script as a whole)",
}
"""What is said of steps that nobody would guess."""
_FINDINGS: Final = 3


def can_be_said() -> bool:
    """Whether a process can wait for this one without being its child.

    Where orphans become children of this process, as in a container whose first one it is, the training would have a
    child that it did not make; a script that waits for all its children would wait for us, and we for it.
    """
    if not hasattr(os, "fork"):
        return False
    adopts = ctypes.c_int(0)
    library = ctypes.CDLL(None)
    if hasattr(library, "prctl"):
        library.prctl(_GET_CHILD_SUBREAPER, ctypes.byref(adopts))
    return os.getpid() != 1 and not adopts.value


def announce(pid: int, notes: str, words: Sequence[str]) -> None:
    """Split off a process that waits for the end of another one, and says what came of it on standard error.

    Args:
        pid: The process that is to become the training.
        notes: The folder in which processes of the training leave their notes; it is deleted at the end.
        words: The command, to look for why nothing was recorded.
    """
    descriptor = _opened(pid)  # a command that cannot be found has ended before anybody else looks
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    try:
        # the training's own input and output must end when the training does
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        # and so must what it was given besides, as a lock that its shell holds
        if descriptor is not None:
            descriptor = os.dup2(descriptor, 3)
        os.closerange(3 if descriptor is None else 4, os.sysconf("SC_OPEN_MAX"))
        code = _await(pid, descriptor)
        for line in lines(Path(notes), words, code):
            sys.stderr.write(f"perfhooks: {line}\n")
            sys.stderr.flush()
        shutil.rmtree(notes, ignore_errors=True)
    finally:
        os._exit(0)


def leave_note(notes: str, **said: str) -> None:
    """Write down, in a process of the training, what is to be said at the end.

    Args:
        notes: See `announce`; nothing is written where it is not, as on another machine.
        **said: ``run``, the folder that was recorded into, or ``why`` there is none, which counts if there is none in
            all; ``guess`` is a reason that counts only if the command did not fail.
    """
    run = said.get("run", "")  # a process may record several
    note = Path(notes, f"{os.getpid()}-{zlib.crc32(run.encode(errors='replace')):x}.json")
    if notes and Path(notes).is_dir():
        with contextlib.suppress(OSError):  # the disk is full, which must not cost the recording; see `lines`
            note.write_text(json.dumps(said), encoding="utf-8")


def _opened(pid: int) -> int | None:
    """A descriptor of a process, which tells of its end, also after it; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # not Linux, or an old one
        return None


def _await(pid: int, descriptor: int | None) -> int | None:
    """Wait for the end of a process; its exit code, or less than 0 for a signal, where the system tells it."""
    if descriptor is None:
        import psutil  # see `perfhooks.run.liveness.born_s`

        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
        return None
    end = select.poll()
    end.register(descriptor, select.POLLIN)
    end.poll()
    code = _exit_code(descriptor)
    if code is None:
        end.modify(descriptor, 0)
        end.poll(_REAPED_MS)
        code = _exit_code(descriptor)
    return code


def _exit_code(descriptor: int) -> int | None:
    """That of a process whose end its parent has heard of."""
    import fcntl  # only where there are such descriptors

    with contextlib.suppress(OSError):  # before Linux 6.15
        mask, *_, status = _INFO.unpack(fcntl.ioctl(descriptor, _GET_INFO, _INFO.pack(_EXIT, *[0] * 13)))
        return os.waitstatus_to_exitcode(status) if mask & _EXIT else None
    return None


def lines(notes: Path, words: Sequence[str], code: int | None = None) -> Iterator[str]:
    """What came of the command: of each run where the time goes, what is worth most, its page; or why there is none.

    Args:
        notes: See `announce`.
        words: The command.
        code: Its exit code, or less than 0 for a signal; None where nobody knows.
    """
    said = [_read(path) for path in sorted(notes.glob("*.json"))]
    runs = sorted({str(note["run"]) for note in said if note.get("run")})
    for run in runs:
        yield from _of_run(Path(run), advice=_FINDINGS if len(runs) == 1 else 0)
    if not runs and not _takes_files(notes):
        yield f"what was recorded is not known: {notes} takes no files, is its disk full?"
    elif not runs:
        yield from (f"nothing was recorded: {reason}" for reason in reasons(notes, words, code))


def reasons(notes: Path, words: Sequence[str], code: int | None = None) -> list[str]:
    """Why nothing came of a command.

    Args:
        notes: See `announce`.
        words: The command.
        code: See `lines`.
    """
    said = [_read(path) for path in sorted(notes.glob("*.json"))]
    known = [str(note["why"]) for note in said if note.get("why")]
    guesses = [str(note["guess"]) for note in said if note.get("guess")]
    return list(dict.fromkeys(known or (_failed(code) if code else guesses or [_why(words)])))


def _failed(code: int) -> list[str]:
    """That the command has failed, which is for itself to explain."""
    if code > 0:
        return [f"the command ended with exit code {code}"]
    names = {number.value: number.name for number in signal.Signals}
    return [f"the command was ended by {names.get(-code, f'signal {-code}')}"]


def _takes_files(folder: Path) -> bool:
    """Whether a process could have left a note."""
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"{}")
    except OSError:
        return False
    return True


def _of_run(folder: Path, advice: int) -> Iterator[str]:
    from perfhooks.run.finished import FinishedRun  # numpy, which the command need not wait for

    try:
        run = FinishedRun(folder, brief=True)
    except PerfhooksError as error:
        yield str(error)
        return
    if not run.recorded:
        yield f"no window was recorded -> {folder}"
        return
    last, page = run.last(), folder / PAGE
    if last is None:
        yield f"recorded, but not finished: perfhooks report {folder}"
        return
    told = run.manifest.steps_by
    what = "" if told is None else _STEPS.get(told.what, "")
    yield f"{last.capture.line or f'{last.name} is recorded'}{what}"
    with contextlib.suppress(OSError, PerfhooksError):
        from perfhooks.report import headlines  # polars, once the first line is there

        yield from (f"  {line}" for line in headlines(page)[:advice])
    yield f"-> {page if page.exists() else folder}"


def _why(words: Sequence[str]) -> str:
    for word in words[1:]:
        if not word.startswith("-") or word.startswith("--") or word == "-m":
            break
        if set(word[1:]) & set("IES"):
            return f"Python was started with {word}, which keeps it from reading PYTHONPATH"
    for word in words[1:]:
        if _SETS_PATH.search(word) or _SETS_PATH.search(_text(word)):
            what = "the command" if _SETS_PATH.search(word) else word
            return f"{what} sets PYTHONPATH, which leaves perfhooks out: PYTHONPATH=...:$PYTHONPATH keeps it"
    return (
        "no Python of this command imported torch, or it was one that does not read PYTHONPATH (python -I, -E), "
        "another interpreter without perfhooks, or on another machine with an environment of its own"
    )


def _text(word: str) -> str:
    """What stands in a script; nothing where a word names none."""
    try:
        return read_bytes(Path(word), _LARGEST).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def _read(path: Path) -> dict[str, Any]:
    """An object of JSON; an empty one where it cannot be read."""
    try:
        facts = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
