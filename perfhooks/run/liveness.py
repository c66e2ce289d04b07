"""Which process this is, told so that another one can find out whether it is still there."""

from __future__ import annotations

import os
import platform
import time
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

_START_TIME: Final = 19
"""Place of the start time behind the name of a process in ``/proc/PID/stat``; see proc(5)."""


BEGAN: Final = time.time()
"""When this process came to perfhooks, in seconds since 1970."""


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of some machine. Where a system does not tell, a field is empty."""

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
        """Whether it is still there; None where nobody here can tell, as of another machine or container."""
        if (self.host, self.boot, self.space) != (platform.node(), boot(), _space()):
            return None
        try:
            os.kill(self.pid, 0)
        except (ProcessLookupError, OverflowError):  # a number that no process has
            return False
        except OSError:
            pass
        return self.began == began(self.pid)


@cache
def _of(pid: int) -> Process:
    """The facts of this process, once for each that was forked."""
    return Process(pid=pid, host=platform.node(), boot=boot(), space=_space(), began=began(pid))


@cache
def boot() -> str:
    """What Linux draws when a machine starts, for containers too; empty elsewhere."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def began(pid: int) -> str:
    """When a process began, in ticks since the machine did; nothing if it has ended or the system does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return fields[_START_TIME] if len(fields) > _START_TIME and fields[0] != "Z" else ""


def _space() -> str:
    try:
        return str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        return ""
