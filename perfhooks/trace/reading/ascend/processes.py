"""Processes of a trace. The name of a process decides the meaning of its slices."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING, Any, Final

from perfhooks.trace.kinds import Lane

if TYPE_CHECKING:
    from perfhooks.trace.reading.processes import ProcessNames

_LABEL: Final = re.compile(r"NPU (\d{1,9})$")
_GROUP: Final = re.compile(r"Group (.*) Communication$")
"""Lane with the collectives of one process group. Other lanes contain parts of collectives."""


class Role(enum.Enum):
    OTHER = enum.auto()
    """Processes with counters, or with lanes that summarize other lanes, such as ``Overlap Analysis``."""
    HOST = enum.auto()
    CANN = enum.auto()
    DEVICE = enum.auto()
    COLLECTIVES = enum.auto()
    GARBAGE = enum.auto()


_ROLES: Final = {
    "Python": Role.HOST,
    "CANN": Role.CANN,
    "Ascend Hardware": Role.DEVICE,
    "HCCL": Role.COLLECTIVES,
    "Communication": Role.COLLECTIVES,
    "Python GC": Role.GARBAGE,
}
_OF_ASCEND: Final = frozenset(("CANN", "Ascend Hardware", "HCCL", "Overlap Analysis"))

ThreadKey = tuple[Lane, int | str, int | str]


def is_ascend(names: ProcessNames) -> bool:
    return any(str(process.get("name")) in _OF_ASCEND for process in names.processes.values())


class Processes:
    """Maps threads of the file to threads of the trace."""

    def __init__(self, names: ProcessNames) -> None:
        self._names = names
        self._hosts = frozenset(pid for pid in names.processes if self.role(pid) is Role.HOST)

    def role(self, pid: int | str) -> Role:
        return _ROLES.get(str(self._of(pid).get("name")), Role.OTHER)

    def group(self, pid: int | str, tid: int | str) -> str | None:
        lane = _GROUP.match(self._names.threads.get((pid, tid), ""))
        return lane[1] if lane and self.role(pid) is Role.COLLECTIVES else None

    def thread_key(self, pid: int | str, tid: int | str) -> ThreadKey | None:
        """Return the thread of the trace for a process and thread of the file.

        Return None for counters, and for lanes that summarize or split the slices of other lanes.
        """
        role = self.role(pid)
        # streams and process groups are both numbered from 0, so a group needs another key
        if self.group(pid, tid) is not None:
            return Lane.DEVICE, self.device(pid), self._names.threads[pid, tid]
        if role in (Role.OTHER, Role.COLLECTIVES):
            return None
        return (Lane.DEVICE, self.device(pid), tid) if role is Role.DEVICE else (Lane.HOST, self.host(pid), tid)

    def host(self, pid: int | str) -> int | str:
        if isinstance(pid, int) and _unpack(pid)[0] in self._hosts:
            return _unpack(pid)[0]
        return pid if pid in self._hosts or len(self._hosts) != 1 else next(iter(self._hosts))

    def device(self, pid: int | str) -> int:
        labels, index = self._of(pid).get("labels"), self._of(pid).get("sort_index")
        label = _LABEL.match(labels) if isinstance(labels, str) else None
        if label or not isinstance(pid, int):
            return int(label[1]) if label else -1
        host, packed_index, device = _unpack(pid)
        is_packed = host in self._hosts or (not self._hosts and index == packed_index)
        # traces of January 2024 write the device as two decimal digits
        return device if is_packed else pid % 100

    def _of(self, pid: int | str) -> dict[str, Any]:
        return self._names.processes.get(pid, {})


def _unpack(pid: int) -> tuple[int, int, int]:
    return pid >> 10, pid >> 5 & 31, pid & 31
