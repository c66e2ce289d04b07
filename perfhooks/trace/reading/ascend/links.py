from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.trace.bounds import MAX_NUMBER, ROUNDING_NS
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

_SIDES: Final = ("Host", "Device")
_DIRECTIONS: Final = {
    f"acl_memcpy_{source}_to_{target}".lower(): f"{source[0]}to{target[0]} ({source} -> {target})"
    for source in _SIDES
    for target in _SIDES
}
"""Direction of a copy, keyed by the name of the copy in torch_npu's task queue."""
_DEQUEUE: Final = "Dequeue@"
_NONE: Final = np.empty(0, np.int64), np.empty(0, np.int64)


class _Moments(NamedTuple):
    thread: Ints
    time: Ints


class _Launch(NamedTuple):
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
    """Link device work to operators and calls in sorted columns, and add the direction to the names of copies.

    The launch begins when the operator puts work into the queue, and ends when the launch call on the thread of the
    queue returns::

        training   |------ aten::mm ------|
                       |Enqueue|
        queue                       |----- Dequeue@aclnnMm -----|
                                        |--- Node@launch ---|
        device                                                   |-- kernel --|
                       ^ launch_begin                       ^ launch_end
    """
    linker = _Linker(processes, numbers, columns, arguments)
    moments = linker.launch_moments(flows)
    call = linker.number_calls(moments)
    dequeue = linker.dequeues(moments, call)
    enqueue = linker.enqueues(dequeue)
    operator = linker.operators(flows, enqueue)
    linker.add_launches(operator, _Launch(call, dequeue, enqueue, moments.time))
    linker.name_copies(operator, dequeue)


class _Linker:
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

    def launch_moments(self, flows: FlowEnds) -> _Moments:
        moments = _Moments(*(np.full(len(self._work), -1, np.int64) for _ in _Moments._fields))
        starts, ends = flows.links(CALL)
        index, start = (
            self._slice_at(self._work, self._moments_of(ends, self._device)),
            self._moments_of(starts, self._host),
        )
        is_work = index >= 0
        moments.thread[index[is_work]], moments.time[index[is_work]] = start.thread[is_work], start.time[is_work]
        return moments

    def number_calls(self, moments: _Moments) -> Ints:
        number = self._argument("connection") + 1
        number[number > MAX_NUMBER] = 0
        self._arguments.pop("connection", None)
        work, calls = self._work, self._calls
        call = by_number(number, calls).of(number[work])
        call = np.where(call >= 0, call, self._slice_around(calls, moments))
        unnumbered = call[(call >= 0) & (number[call] <= 0)]
        number[unnumbered] = number.max(initial=0) + 1 + unnumbered
        number[work] = np.where(call >= 0, number[call], number[work])
        numbered = np.flatnonzero(number > 0)
        self._arguments["correlation"] = numbered, number[numbered]
        return call

    def dequeues(self, moments: _Moments, call: Ints) -> Ints:
        is_linked = moments.thread >= 0
        thread = np.where(is_linked, moments.thread, np.where(call >= 0, self._thread[call], -1))
        time = np.where(is_linked, moments.time, self._start[call])
        return self._slice_around(self._dequeues, self._on_lane(Lane.OTHER, thread, time))

    def enqueues(self, dequeue: Ints) -> Ints:
        enqueue = by_number(self._queue, self._enqueues).of(self._queue[dequeue])
        return np.where(dequeue >= 0, enqueue, -1)

    def operators(self, flows: FlowEnds, enqueue: Ints) -> Ints:
        """Return the operator at which the flow to each device work begins, or -1.

        If the flow is missing, or the operator began after the work, return the operator around the enqueue slice.
        """
        starts, ends = flows.links(OPERATOR)
        work = self._slice_at(self._work, self._moments_of(ends, self._device))
        source = self._slice_at(self._operators, self._moments_of(starts, self._host))
        operator = np.full(len(self._work), -1, np.int64)
        is_linked = (work >= 0) & (source >= 0)
        operator[work[is_linked]] = self._operators[source[is_linked]]
        moments = self._on_lane(Lane.HOST, self._thread[enqueue], self._start[enqueue])
        queued = self._slice_around(self._operators, moments)
        is_late = (operator < 0) | (self._start[operator] > self._start[self._work])
        return np.where(is_late, np.where(enqueue >= 0, queued, -1), operator)

    def add_launches(self, operator: Ints, launch: _Launch) -> None:
        call, dequeue, enqueue, time = launch
        is_direct = (call >= 0) & (self._thread[call] == self._thread[operator])
        begin = np.select([enqueue >= 0, is_direct], [self._start[enqueue], self._start[call]], self._end[operator])
        end = np.select([call >= 0, dequeue >= 0], [self._end[call], self._end[dequeue]], time)
        has_operator = operator >= 0
        rows = self._work[has_operator]
        for name, values in (("launch", operator), ("launch_begin", begin), ("launch_end", np.maximum(begin, end))):
            self._arguments[name] = rows, values[has_operator]

    def name_copies(self, operator: Ints, dequeue: Ints) -> None:
        for copy in self._copies.tolist():
            names = [self._names[self._name[row]] for row in (dequeue[copy], operator[copy]) if row >= 0]
            directions = [
                _DIRECTIONS[name.removeprefix(_DEQUEUE)] for name in names if name.removeprefix(_DEQUEUE) in _DIRECTIONS
            ]
            if directions:
                row = self._work[copy]
                self._name[row] = self._numbers.names[f"{self._names[self._name[row]]} {directions[0]}"]

    def _argument(self, name: str) -> Ints:
        full = np.full(len(self._start), -1, np.int64)
        rows, values = self._arguments.get(name, _NONE)
        full[rows] = values
        return full

    def _host(self, pid: int | str, tid: int | str) -> int:
        return self._numbers.threads.get((Lane.HOST, self._processes.host(pid), tid), -1)

    def _device(self, pid: int | str, tid: int | str) -> int:
        key = self._processes.thread_key(pid, tid)
        return -1 if key is None else self._numbers.threads.get(key, -1)

    def _on_lane(self, lane: Lane, thread: Ints, time: Ints) -> _Moments:
        threads = self._numbers.threads
        lane_threads = [threads.get((lane, pid, tid), -1) for _, pid, tid in threads]
        return _Moments(np.array([*lane_threads, -1], np.int64)[thread], time)

    def _moments_of(self, ends: Sequence[FlowEnd], thread_of: Callable[[int | str, int | str], int]) -> _Moments:
        threads = {(pid, tid): thread_of(pid, tid) for pid, tid in {(end.pid, end.tid) for end in ends}}
        pairs = [(threads[pid, tid], time) for pid, tid, time in ends]
        return _Moments(*np.array(pairs, np.int64).reshape(-1, 2).T)

    def _slice_at(self, rows: Ints, moments: _Moments) -> Ints:
        thread, start = self._thread[rows], np.append(self._start[rows], 0)
        exact_index, near_index = (
            last_begun(thread, start[:-1], moments.thread, moments.time + slack) for slack in (0, ROUNDING_NS)
        )
        is_exact, is_near = start[exact_index] == moments.time, start[near_index] >= moments.time - ROUNDING_NS
        return np.where(is_exact, exact_index, np.where(is_near, near_index, -1))

    def _slice_around(self, rows: Ints, moments: _Moments) -> Ints:
        nesting = nest(self._thread[rows], self._start[rows], self._end[rows])
        latest = last_begun(self._thread[rows], self._start[rows], *moments)
        return np.append(rows, -1)[still_open(nesting, latest, moments.time)]
