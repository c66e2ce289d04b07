"""Names of the processes and threads of a trace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfhooks.trace.reading.events import decode_object

if TYPE_CHECKING:
    from perfhooks.trace.reading.events import Event


class ProcessNames:
    """Collects the events whose phase is ``M``."""

    def __init__(self) -> None:
        self.processes: dict[int | str, dict[str, Any]] = {}
        """Name, labels and sort index of each process."""
        self.threads: dict[tuple[int | str, int | str], str] = {}
        """Name of each thread, by process and thread."""

    def add(self, event: Event) -> None:
        """Read one event."""
        if event.name == "thread_name":
            args = decode_object(bytes(event.args)) or {}
            self.threads[event.pid, event.tid] = str(args.get("name", ""))
        elif event.name.startswith("process_"):
            self.processes.setdefault(event.pid, {}).update(decode_object(bytes(event.args)) or {})
