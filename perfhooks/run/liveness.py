"""Which process this is, told so that another one can find out whether it is still there."""

from __future__ import annotations

import os
import platform
import sys
import time
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

_IMPORTED: Final = time.time()


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of any machine. Unknown fields are empty."""

    pid: int
    host: str
    boot: str = ""
    space: str = ""
    """The namespace that the number is of: containers count from 1, each for itself."""
    began: str = ""
    """When it began: numbers are used again."""

    @classmethod
    def current(cls) -> Process:
        """This one."""
        return _of(os.getpid())

    @property
    def is_alive(self) -> bool | None:
        """Whether it is alive; None for processes of other machines or containers."""
        if (self.host, self.boot, self.space) != (platform.node(), boot(), _space()):
            return None
        now = began(self.pid)
        return None if now and not self.began else bool(now) and now == self.began


@cache
def _of(pid: int) -> Process:
    """The facts of this process, once for each that was forked."""
    return Process(pid=pid, host=platform.node(), boot=boot(), space=_space(), began=began(pid))


@cache
def boot() -> str:
    """Return the boot id of Linux, also in containers; empty on other systems."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def began(pid: int) -> str:
    """When a process began, in hundredths of a second of `clock_s`; nothing if it has ended."""
    born = born_s(pid)
    return "" if born is None else f"{100 * born:.0f}"


def born_s(pid: int) -> float | None:
    """Return the start of a process, in seconds of `clock_s`; None if unknown."""
    if _IS_LINUX:  # psutil takes 10 ms to import
        try:
            state, *columns = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return None if state in _ENDED else int(columns[18]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):  # for example a number that no process can have
            return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, OSError, ValueError):
        return None


def began_s() -> float:
    """When this process began, in seconds since 1970; a forked one after its parent, which may have imported us."""
    return _began_s(os.getpid())


@cache
def _began_s(pid: int) -> float:
    born = born_s(pid)
    return _IMPORTED if born is None else time.time() - (clock_s() - born)


def clock_s() -> float:
    """The time by the clock that tells when processes began: since the machine did on Linux, since 1970 elsewhere."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _IS_LINUX else time.time()


_IS_LINUX: Final = sys.platform == "linux"


_ENDED: Final = (b"Z", b"X")
"""States of a process that has ended, in `/proc/PID/stat`."""


def _space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
