"""Links from work of an NPU to the operator and the call that launched it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.kinds import DEVICE_WORK, Kind, Lane
from perfhooks.trace.model import by_number
from perfhooks.trace.nesting.slices import last_begun, nest, still_open
from perfhooks.trace.reading.ascend.flows import CALL, OPERATOR

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from perfhooks.trace.model import Column, Ints
    from perfhooks.trace.reading.ascend.flows import FlowEnd, FlowEnds
    from perfhooks.trace.reading.ascend.processes import Processes
    from perfhooks.trace.reading.ascend.work import Numbers

_SLACK_NS: Final = 250
"""Distance between two doubles of microseconds since 1970. Links that are written so miss their slices by that."""
_SIDES: Final = ("Host", "Device")
_DIRECTIONS: Final = {
    f"acl_memcpy_{source}_to_{target}".lower(): f"{source[0]}to{target[0]} ({source} -> {target})"
    for source in _SIDES
    for target in _SIDES
}
"""Copies in the queue, and the direction as other recorders write it: ``HtoD (Host -> Device)``."""
_DEQUEUE: Final = "Dequeue@"
_LIMIT: Final = 2**62
"""Connections with larger numbers are damaged."""
_NONE: Final = np.empty(0, np.int64), np.empty(0, np.int64)


class _Moments(NamedTuple):
    """One moment on a thread of the host for each piece of work, or -1 for the thread."""

    thread: Ints
    time: Ints


class _Launch(NamedTuple):
    """How each piece of work was launched: slices, or -1, and the moment of the link."""

    call: Ints
    dequeue: Ints
    enqueue: Ints
    time: Ints


def link(
    processes: Processes,
    numbers: Numbers,
    columns: Mapping[str, Column],
    arguments: dict[str, tuple[Ints, Column]],
    flows: FlowEnds,
) -> None:
    """Join work of the device with the host, and name the direction of copies.

    The launch of work is the operator that asked for it, else the call. It is being launched from the moment at which
    the operator puts it into the queue until the call on the other thread returns::

        training   |------ aten::mm ------|
                       |Enqueue|
        queue                       |----- Dequeue@aclnnMm -----|
                                        |--- Node@launch ---|
        device                                                   |-- kernel --|
                       ^ launch_begin                       ^ launch_end

    Args:
        processes: Of the file.
        numbers: Of names, texts and threads.
        columns: Of all slices, sorted as in a `Trace`. The names of copies change.
        arguments: Arguments of slices, by name: rows and values. ``correlation``, ``launch``, ``launch_begin`` and
            ``launch_end`` are added.
        flows: The links of the file.
    """
    linked = _Linked(processes, numbers, columns, arguments)
    launched = linked.launched(flows)
    call = linked.number_calls(launched)
    dequeue = linked.dequeued(launched, call)
    enqueue = linked.enqueued(dequeue)
    operator = linked.operators(flows, enqueue)
    linked.add_launches(operator, _Launch(call, dequeue, enqueue, launched.time))
    linked.name_copies(operator, dequeue)


class _Linked:
    """The slices of one file."""

    def __init__(
        self,
        processes: Processes,
        numbers: Numbers,
        columns: Mapping[str, Column],
        arguments: dict[str, tuple[Ints, Column]],
    ) -> None:
        self._processes, self._numbers, self._arguments = processes, numbers, arguments
        self._names = list(numbers.names)
        self._name, self._thread = columns["name"], columns["thread"].astype(np.int64)
        self._start, self._end = columns["start"], columns["end"]
        self._work = np.flatnonzero(np.isin(columns["kind"], DEVICE_WORK))
        self._copies = np.flatnonzero((columns["kind"] == Kind.COPY)[self._work])
        self._calls = np.flatnonzero(columns["kind"] == Kind.RUNTIME)
        self._operators = np.flatnonzero(columns["kind"] == Kind.OP)
        self._queue = self._argument("queue") + 1
        queued = np.flatnonzero(self._queue > 0)
        is_dequeue = np.array([name.startswith(_DEQUEUE) for name in self._names], np.bool_)[self._name[queued]]
        self._enqueues, self._dequeues = queued[~is_dequeue], queued[is_dequeue]

    def launched(self, flows: FlowEnds) -> _Moments:
        """Return when each piece of work was launched, on the thread of the call."""
        moments = _Moments(*(np.full(len(self._work), -1, np.int64) for _ in _Moments._fields))
        starts, ends = flows.links(CALL)
        place, start = self._at(self._work, self._on(ends, self._device)), self._on(starts, self._host)
        is_work = place >= 0
        moments.thread[place[is_work]], moments.time[place[is_work]] = start.thread[is_work], start.time[is_work]
        return moments

    def number_calls(self, launched: _Moments) -> Ints:
        """Give work the number of its call as ``correlation``; return the calls, or -1."""
        number = self._argument("connection") + 1
        number[number > _LIMIT] = 0
        self._arguments.pop("connection", None)
        work, calls = self._work, self._calls
        call = by_number(number, calls).of(number[work])
        call = np.where(call >= 0, call, self._holding(calls, launched))
        bare = call[(call >= 0) & (number[call] <= 0)]
        number[bare] = number.max(initial=0) + 1 + bare
        number[work] = np.where(call >= 0, number[call], number[work])
        bearing = np.flatnonzero(number > 0)
        self._arguments["correlation"] = bearing, number[bearing]
        return call

    def dequeued(self, launched: _Moments, call: Ints) -> Ints:
        """Return the slice of the queue in which each piece of work was launched, or -1."""
        is_linked = launched.thread >= 0
        thread = np.where(is_linked, launched.thread, np.where(call >= 0, self._thread[call], -1))
        time = np.where(is_linked, launched.time, self._start[call])
        return self._holding(self._dequeues, self._beside(Lane.OTHER, thread, time))

    def enqueued(self, dequeue: Ints) -> Ints:
        """Return the slice that put each piece of work into the queue, or -1."""
        enqueue = by_number(self._queue, self._enqueues).of(self._queue[dequeue])
        return np.where(dequeue >= 0, enqueue, -1)

    def operators(self, flows: FlowEnds, enqueue: Ints) -> Ints:
        """Return the operator that asked for each piece of work, or -1: the linked one, else that of the queue.

        Some links lead from an operator that began after the work.
        """
        starts, ends = flows.links(OPERATOR)
        work = self._at(self._work, self._on(ends, self._device))
        asking = self._at(self._operators, self._on(starts, self._host))
        operator = np.full(len(self._work), -1, np.int64)
        is_linked = (work >= 0) & (asking >= 0)
        operator[work[is_linked]] = self._operators[asking[is_linked]]
        queued = self._holding(self._operators, self._beside(Lane.HOST, self._thread[enqueue], self._start[enqueue]))
        is_late = (operator < 0) | (self._start[operator] > self._start[self._work])
        return np.where(is_late, np.where(enqueue >= 0, queued, -1), operator)

    def add_launches(self, operator: Ints, launch: _Launch) -> None:
        """Add which operator launched each piece of work, and when the launch began and ended."""
        call, dequeue, enqueue, time = launch
        is_direct = (call >= 0) & (self._thread[call] == self._thread[operator])
        begin = np.select([enqueue >= 0, is_direct], [self._start[enqueue], self._start[call]], self._end[operator])
        end = np.select([call >= 0, dequeue >= 0], [self._end[call], self._end[dequeue]], time)
        has_operator = operator >= 0
        rows = self._work[has_operator]
        for name, values in (("launch", operator), ("launch_begin", begin), ("launch_end", np.maximum(begin, end))):
            self._arguments[name] = rows, values[has_operator]

    def name_copies(self, operator: Ints, dequeue: Ints) -> None:
        """Add the direction to the names of copies whose entry in the queue, or whose operator, tells it."""
        for copy in self._copies.tolist():
            asked = [self._names[self._name[row]] for row in (dequeue[copy], operator[copy]) if row >= 0]
            told = [
                _DIRECTIONS[name.removeprefix(_DEQUEUE)] for name in asked if name.removeprefix(_DEQUEUE) in _DIRECTIONS
            ]
            if told:
                row = self._work[copy]
                self._name[row] = self._numbers.names[f"{self._names[self._name[row]]} {told[0]}"]

    def _argument(self, name: str) -> Ints:
        full = np.full(len(self._start), -1, np.int64)
        rows, values = self._arguments.get(name, _NONE)
        full[rows] = values
        return full

    def _host(self, pid: int | str, tid: int | str) -> int:
        return self._numbers.threads.get((Lane.HOST, self._processes.host(pid), tid), -1)

    def _device(self, pid: int | str, tid: int | str) -> int:
        place = self._processes.place(pid, tid)
        return -1 if place is None else self._numbers.threads.get(place, -1)

    def _beside(self, lane: Lane, thread: Ints, time: Ints) -> _Moments:
        """Return the same moments on the threads of the same number in another lane."""
        threads = self._numbers.threads
        other = [threads.get((lane, pid, tid), -1) for _, pid, tid in threads]
        return _Moments(np.array([*other, -1], np.int64)[thread], time)

    def _on(self, ends: Sequence[FlowEnd], thread_of: Callable[[int | str, int | str], int]) -> _Moments:
        """Return the ends of links as moments on threads of the model."""
        threads = {(pid, tid): thread_of(pid, tid) for pid, tid in {(end.pid, end.tid) for end in ends}}
        found = [(threads[pid, tid], time) for pid, tid, time in ends]
        return _Moments(*np.array(found, np.int64).reshape(-1, 2).T)

    def _at(self, rows: Ints, moments: _Moments) -> Ints:
        """Return the place of the innermost slice that begins at each moment, or -1."""
        thread, start = self._thread[rows], np.append(self._start[rows], 0)
        exact, near = (last_begun(thread, start[:-1], moments.thread, moments.time + slack) for slack in (0, _SLACK_NS))
        is_exact, is_near = start[exact] == moments.time, start[near] >= moments.time - _SLACK_NS
        return np.where(is_exact, exact, np.where(is_near, near, -1))

    def _holding(self, rows: Ints, moments: _Moments) -> Ints:
        """Return the innermost of some slices that is open at each moment, or -1."""
        nesting = nest(self._thread[rows], self._start[rows], self._end[rows])
        begun = last_begun(self._thread[rows], self._start[rows], *moments)
        return np.append(rows, -1)[still_open(nesting, begun, moments.time)]
