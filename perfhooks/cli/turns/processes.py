"""The descendants of this process, with their numbers in its own PID namespace.

``/proc`` may show other numbers, for example after ``unshare --pid --fork`` without ``--mount-proc``.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import psutil

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

_PROC: Final = Path("/proc")
_NUMBERS: Final = re.compile(rb"^NSpid:\s*(.*)$", re.MULTILINE)


class Descendant(NamedTuple):
    pid: int
    parent: int
    entry: Path
    """Folder of the process in ``/proc``. The number in its name differs from ``pid`` if ``/proc`` belongs to another
    PID namespace.
    """
    state: str
    """State of the process from proc(5): T is stopped, Z is dead."""

    @property
    def is_dead(self) -> bool:
        return self.state in "ZX"


def children() -> list[int]:
    """Return the children of this process, including zombies."""
    if sys.platform != "linux":
        return [child.pid for child in psutil.Process().children()]
    return [process.pid for process in _descendants() if process.parent == os.getpid()]


def below(pids: Collection[int]) -> list[Descendant]:
    above = set(pids)
    processes = []
    for process in _descendants():
        if process.parent in above:
            above.add(process.pid)
            processes.append(process)
    return processes


def memory(pids: Collection[int]) -> int:
    """Return the memory of processes and their descendants, in bytes."""
    total = 0
    for pid in {*pids, *(process.pid for process in below(pids))}:
        with contextlib.suppress(psutil.Error):
            information = psutil.Process(pid).memory_full_info()
            total += getattr(information, "pss", information.rss)
    return total


def threads(process: Descendant) -> list[int]:
    numbers = []
    with contextlib.suppress(OSError):
        for entry in (process.entry / "task").iterdir():
            with contextlib.suppress(OSError):
                numbers.append(_number(entry))
    return numbers


def _descendants() -> Iterator[Descendant]:
    by_parent: dict[str, list[tuple[str, str]]] = {}
    for name in filter(str.isdigit, [entry.name for entry in _PROC.iterdir()]):
        with contextlib.suppress(OSError):
            line = (_PROC / name / "stat").read_bytes()
            state, above = line[line.rindex(b")") + 2 :].decode().split(None, 2)[:2]
            by_parent.setdefault(above, []).append((name, state))
    parents = [((_PROC / "self").readlink().name, os.getpid())]
    for above, parent in parents:
        for name, state in by_parent.get(above, ()):
            with contextlib.suppress(OSError):
                entry = _PROC / name
                pid = _number(entry)
                parents.append((name, pid))
                yield Descendant(pid, parent, entry, state)


def _number(entry: Path) -> int:
    if (_PROC / "self").readlink().name == str(os.getpid()):
        return int(entry.name)
    return _numbers(entry)[len(_numbers(_PROC / "self")) - 1]


def _numbers(entry: Path) -> list[int]:
    match = _NUMBERS.search((entry / "status").read_bytes())
    return [int(entry.name)] if match is None else [int(number) for number in match[1].split()]
