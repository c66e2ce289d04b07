"""Identity of a process, by which other processes check whether the process is alive."""

from __future__ import annotations

import os
import platform
import sys
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from perfhooks.core.clocks import time

_IMPORTED: Final = time.time()


class Process(msgspec.Struct, frozen=True, kw_only=True):
    pid: int
    host: str
    boot: str = ""
    space: str = ""
    """PID namespace of the process, because each container counts processes from 1."""
    began: str = ""
    """Start time of the process, because later processes can have the same ID."""

    @classmethod
    def current(cls) -> Process:
        return _of(os.getpid())

    @property
    def is_alive(self) -> bool | None:
        """Return whether the process runs; None if it is on another host or in another container."""
        if (self.host, self.boot, self.space) != (platform.node(), boot(), _space()):
            return None
        now = began(self.pid)
        return None if now and not self.began else bool(now) and now == self.began


@cache
def _of(pid: int) -> Process:
    """Return the identity of this process. The cache key is the process ID, because forked children copy the cache."""
    return Process(pid=pid, host=platform.node(), boot=boot(), space=_space(), began=began(pid))


@cache
def boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def began(pid: int) -> str:
    """Return the start time of a process on `clock_s`, in 1/100 s; empty if the process has ended."""
    born = born_s(pid)
    return "" if born is None else f"{100 * born:.0f}"


def born_s(pid: int) -> float | None:
    """Return the start of a process in seconds of `clock_s`."""
    if _IS_LINUX:  # psutil takes 10 ms to import
        try:
            state, *columns = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
            return None if state in _ENDED else int(columns[18]) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            return None
    import psutil

    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else float(process.create_time())
    except (psutil.Error, OSError, ValueError):
        return None


def began_s() -> float:
    """Return the start of this process, in seconds since 1970."""
    return _began_s(os.getpid())


@cache
def _began_s(pid: int) -> float:
    born = born_s(pid)
    return _IMPORTED if born is None else time.time() - (clock_s() - born)


def clock_s() -> float:
    """Return seconds since boot on Linux, since 1970 elsewhere."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if _IS_LINUX else time.time()


_IS_LINUX: Final = sys.platform == "linux"


_ENDED: Final = (b"Z", b"X")
"""States of ended processes in ``/proc/PID/stat``."""


def _space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
