from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from perfhooks.core.errors import TraceError
from perfhooks.core.labels import STEP_MARK
from perfhooks.trace.bounds import MIN_RECORDS
from perfhooks.trace.kinds import Kind
from perfhooks.trace.reading.events import decode_object

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.reading.events import Event


class ProcessNames:
    def __init__(self) -> None:
        self.processes: dict[int | str, dict[str, Any]] = {}
        self.threads: dict[tuple[int | str, int | str], str] = {}

    def add(self, event: Event) -> None:
        if event.name == "thread_name":
            args = decode_object(bytes(event.args)) or {}
            self.threads[event.pid, event.tid] = str(args.get("name", ""))
        elif event.name.startswith("process_"):
            self.processes.setdefault(event.pid, {}).update(decode_object(bytes(event.args)) or {})


def check_single(trace: Trace) -> None:
    """Raise TraceError if a trace has several processes, because ids are unique only within a process."""
    rows = trace.rows(Kind.OP, Kind.ANNOTATION)
    threads = np.unique(trace.thread[rows if len(rows) else trace.rows(Kind.RUNTIME)])
    count = len({trace.threads[thread].pid for thread in threads.tolist()} - {-1, ""})
    marks = trace.named(Kind.ANNOTATION, prefix=STEP_MARK)
    marks = marks[np.lexsort((trace.start[marks], trace.name[marks], trace.thread[marks]))]
    is_repeat = (trace.name[marks[1:]] == trace.name[marks[:-1]]) & (
        trace.thread[marks[1:]] == trace.thread[marks[:-1]]
    )
    repeated = bool((is_repeat & (trace.start[marks[1:]] < trace.end[marks[:-1]])).any())
    repeated |= trace.is_device_traced and _occur_again(trace.correlation[trace.rows(Kind.RUNTIME)])
    if count > 1 or repeated:
        raise several(trace.path, "processes" if count > 1 else "recordings")


def _occur_again(numbers: Ints) -> bool:
    distinct, times = np.unique(numbers[numbers > 0], return_counts=True)
    return len(distinct) >= MIN_RECORDS and 2 * int((times > 1).sum()) > len(distinct)


def several(path: str, content: str) -> TraceError:
    remedy = "perfhooks reads one process at a time: pass the trace of each rank separately"
    return TraceError(f"{path} contains several {content}; {remedy}")
