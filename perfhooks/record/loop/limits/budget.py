"""The budget of a recording: bytes of its trace, and time until the trace is saved.

Size and time are estimated from the number of recorded events, not from the memory of the process, which the training
changes too.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from perfhooks.core import process
from perfhooks.core.clocks import time
from perfhooks.core.thread_time import CountedThread, silent_times
from perfhooks.record.watch.counters import Collections
from perfhooks.record.watch.sampling import live_clocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.record.loop.limits.call_count import CallCount

DEFAULT_MB: Final = 20.0
"""Default size limit of a trace in MB. 20 MB contain 75,000 operators."""
WAIT_S_PER_MB: Final = 0.1
"""Maximum wait at the end of a window in s per MB of trace: 2 s with the default limit."""
FIRST_STEPS_S: Final = 0.5
EXPLAINING_S: Final = 0.02 * 60
"""Time limit of the window with stacks and shapes: 2% of the first minute of a training."""


process.around_forks(silent_times.begin, silent_times.end)  # a fork in a training takes 17 ms
process.in_child(process.Child.BUDGET, silent_times.forget)


class EventCost(NamedTuple):
    size: float = 0.0
    record_s: float = 0.0
    wait_s: float = 0.0

    def plus(self, other: EventCost, times: float = 1.0) -> EventCost:
        return EventCost(*(own + times * more for own, more in zip(self, other, strict=True)))


_OPERATOR: Final = EventCost(270, 1.0e-6, 4.5e-6)
_CALL: Final = EventCost(330, 0.6e-6, 5.5e-6)
_OPTIONS: Final = {
    "record_shapes": EventCost(150, 0.6e-6, 6.5e-6),
    "profile_memory": EventCost(200, 0.3e-6, 4.0e-6),
}
"""Costs per event: bytes of trace, seconds while recording, and seconds of wait at the end of the window. Measured with
torch 2.14 and Python 3.11 on a CPU of 2.5 GHz, in windows of 60 and 100 MB of 29 trainings.
"""
_CALLS_PER_S: Final = 300_000
"""Usual Python calls per second of CPU time, in code that calls modules and operators."""
_CALLS_ERROR: Final = 1.25
"""Maximum ratio of recorded to estimated Python calls in 29 of 30 trainings. torch does not report the number of
recorded calls, so windows with stacks end earlier by this factor.
"""
_MOST_CALLS_PER_S: Final = 1_500_000
"""Measured in a loop of calls under torch's tracer."""
_CALLS_PER_OPERATOR: Final = 10
"""Maximum Python calls per operator in code of small modules. Usual are 3 to 5."""
_FREE_GIL_S: Final = 0.004
"""Maximum wait for the GIL in s that shows no loop of Python calls, which would release the GIL after 5 ms only."""
_OPERATORS_PER_S: Final = 150_000
_PRIOR_EVENTS: Final = 10_000
"""Weight of the default costs in the mean with measured costs, as a number of events. In small recordings, fixed costs
and half-empty buffers hide the cost per event.
"""
_MOST_SLOWER: Final = 4.0
"""Maximum factor by which one window raises the expected wait. The process may have been paused in that wait."""


class _Corrections:
    def __init__(self) -> None:
        self.wait = 1.0
        self.calls = 1.0
        self.sizes: dict[frozenset[str], float] = {}


_corrections = _Corrections()


class _Counter(NamedTuple):
    blocks: ctypes.c_uint64
    events: int


@functools.cache
def _counter() -> _Counter | None:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    storage = "5torch8profiler4impl19ThreadLocalSubqueue14TorchOpStorage10EventBlock"
    for events in (512, 1024):
        with contextlib.suppress(OSError, ValueError):
            name = f"_ZZN{storage}INS1_21KinetoObserverContext5EventELm{events}EEC4EvE8counter_"
            return _Counter(ctypes.c_uint64.in_dll(ctypes.CDLL(str(library)), name), events)
    return None


class Limits(NamedTuple):
    size: float = math.inf
    wait_s: float = math.inf
    training_s: float = math.inf
    name: str = ""

    @classmethod
    def of_size(cls, mb: float | None) -> Limits:
        return cls() if mb is None else cls(1e6 * mb, WAIT_S_PER_MB * mb, name=f"max_trace_mb={mb:g}")

    def share(self, cost: EventCost) -> float:
        return max(cost.size / self.size, cost.wait_s / self.wait_s, (cost.record_s + cost.wait_s) / self.training_s)


NO_LIMITS: Final = Limits()


class StepCalls(NamedTuple):
    """Python calls of one warm-up step."""

    calls: float
    cpu_s: float
    marks: tuple[tuple[float, float], ...] = ()
    """Calls and CPU seconds since the start of the step, at several moments."""
    is_complete: bool = True
    """False if counting stopped because the warm-up had more calls than the limits allow."""

    def after(self, cpu_s: float) -> float:
        """Return the calls in the first ``cpu_s`` seconds of the step, by interpolation between `marks`."""
        before = (0.0, 0.0)
        for mark in (*self.marks, (self.calls, self.cpu_s)):
            if mark[1] >= cpu_s:
                part = (cpu_s - before[1]) / max(mark[1] - before[1], 1e-9)
                return before[0] + part * (mark[0] - before[0])
            before = mark
        return self.calls


def _calls_of_step(count: CallCount, steps: int) -> StepCalls:
    # Labels add 15% calls to recorded steps (mean of 29 trainings); warm-up steps have no labels.
    marks = [(1.15 * calls, cpu_s) for calls, cpu_s in count.marks]
    total = StepCalls(1.15 * count.calls, count.cpu_s, tuple(marks), count.is_complete)
    if steps == 1 or not count.is_complete:
        return total
    calls, cpu_s = total.calls / steps, total.cpu_s / steps
    first = total.calls - calls
    of_last = [(mark[0] - first, mark[1] - (total.cpu_s - cpu_s)) for mark in marks if mark[0] > first]
    return StepCalls(calls, cpu_s, tuple(mark for mark in of_last if mark[1] > 0))


class _ThreadReading(NamedTuple):
    steps: int
    at: float
    own_s: float
    in_step_s: float
    calling_s: float
    """Part of ``in_step_s`` in which the thread may have run a loop of Python calls."""


class WindowBudget:
    """Measures a running recording. Any thread can call the methods."""

    def __init__(self, limits: Limits, recording: Mapping[str, object]) -> None:
        self.limits = limits._replace(size=limits.size / _CALLS_ERROR) if recording.get("with_stack") else limits
        self.step_calls: StepCalls | None = None
        self._recording = recording
        recorded = {**recording, "record_shapes": recording.get("record_shapes") or recording.get("with_flops")}
        self._key = frozenset(option for option in _OPTIONS if recorded.get(option))
        self._has_stacks = bool(recording.get("with_stack"))
        self._owner = self._blocks_before = self._steps = 0
        self._began = self._step_began = 0.0
        self._threads: dict[int, tuple[CountedThread, int]] = {}
        self._untraced: set[int | None] = set()
        self._collections = Collections(in_cpu_time=True)
        self._totals: tuple[float, float] | None = (0.0, 0.0)
        """Total numbers of operators and of Python calls; None while the recording runs."""
        self._reading = _ThreadReading(0, 0.0, 0.0, 0.0, 0.0)
        self._gil_wait_s = self._last_gil_wait_s = math.inf
        self._step_operators = 0.0
        self._step_share = 0.0

    def end_count(self, count: CallCount, steps: int) -> None:
        self.step_calls = _calls_of_step(count, steps)

    def begin(self) -> None:
        self._owner = threading.get_ident()
        self._began = self._step_began = now = time.perf_counter()
        self._steps, self._threads, self._reading = 0, {}, _ThreadReading(0, now, 0.0, 0.0, 0.0)
        self._untraced = set()
        self._step_share = 0.0
        counter = _counter()
        self._blocks_before = 0 if counter is None else counter.blocks.value
        if self._has_stacks:
            self._collections.listen()
            self._cpu_s()
        self._totals = None

    def end(self) -> None:
        self._totals = self._events()
        self._collections.end()

    @property
    def is_running(self) -> bool:
        return self._totals is None

    def end_step(self) -> None:
        """Count a step and store its end time, with few Python calls, because each call is recorded."""
        self._steps += 1
        self._step_began = time.perf_counter()

    @property
    def events(self) -> int:
        return round(sum(self._totals or self._events()))

    @property
    def operators(self) -> float:
        return (self._totals or self._events())[0]

    @property
    def cost(self) -> EventCost:
        return self._cost_of(*(self._totals or self._events()))

    def is_spent(self) -> bool:
        return self.limits.share(self.cost) >= 1

    @property
    def has_room(self) -> bool:
        return self._step_share * (self._steps + 2) < 1

    def measure(self, gil_wait_s: float = math.inf) -> float:
        """Update `has_room`, and return the used fraction of the limits.

        ``gil_wait_s`` is how long the calling thread has just waited for the GIL, if known. A single wait may have been
        one for a paused thread, but in a loop of Python calls, each measurement waits.
        """
        self._gil_wait_s = min(gil_wait_s, self._last_gil_wait_s)
        self._last_gil_wait_s = gil_wait_s
        share, steps, now = self.limits.share(self.cost), self._steps, time.perf_counter()
        self._gil_wait_s = math.inf
        if steps:
            step_s = (self._step_began - self._began) / steps
            part = min((now - self._step_began) / max(step_s, 1e-9), 1.0)
            self._step_share = share / (steps + part)
        else:
            self._step_share = share / 2
        return share

    def steps_that_fit(self, operators: float) -> float:
        """Return how many steps with this number of operators and the counted Python calls fit the limits."""
        if self.step_calls is not None and not self.step_calls.is_complete:
            return 0.0
        calls = 0.0 if self.step_calls is None else self.step_calls.calls
        self._step_operators = operators
        return 1 / max(self.limits.share(self._cost_of(operators, calls)), 1e-9)

    def max_calls(self) -> float:
        return 1 / max(self.limits.share(self._cost_of(0, 1)), 1e-9)

    def learn(self, wait_s: float, size: int) -> None:
        operators, calls = self._totals or self._events()
        expected = self.cost
        prior = self._cost_of(_PRIOR_EVENTS, 0)
        slower = (wait_s + prior.wait_s) / (expected.wait_s + prior.wait_s)
        _corrections.wait *= min(slower, _MOST_SLOWER)
        if self._has_stacks:
            traced_calls = max(size - self._cost_of(operators, 0).size, 0.0) / _CALL.size
            _corrections.calls *= (traced_calls + _PRIOR_EVENTS) / (calls + _PRIOR_EVENTS)
        else:
            before = _corrections.sizes.get(self._key, 1.0)
            _corrections.sizes[self._key] = before * (size + prior.size) / (expected.size + prior.size)

    def _cost_of(self, operators: float, calls: float) -> EventCost:
        cost = EventCost().plus(_OPERATOR, operators)
        for option in self._key:
            cost = cost.plus(_OPTIONS[option], operators)
        cost = cost._replace(size=cost.size * _corrections.sizes.get(self._key, 1.0)).plus(_CALL, calls)
        return cost._replace(wait_s=cost.wait_s * _corrections.wait)

    def _events(self) -> tuple[float, float]:
        counter = _counter()
        if counter is None:
            operators = _OPERATORS_PER_S * (time.perf_counter() - self._began)
        else:
            operators = float(counter.blocks.value - self._blocks_before) * counter.events
        return operators, self._estimate_calls(operators) if self._has_stacks else 0.0

    def _estimate_calls(self, operators: float) -> float:
        own_s, other_s = self._cpu_s()
        other_calls, step_calls = self._estimate_other_calls(other_s), self.step_calls
        if step_calls is None or not step_calls.cpu_s:
            return _CALLS_PER_S * _corrections.calls * own_s + other_calls
        steps = self._steps if step_calls.is_complete else 0
        # the recorder adds a cost to each operator
        step_s = step_calls.cpu_s + operators / (steps + 1) * _OPERATOR.record_s
        in_step_s, calling_s = self._in_step_s(own_s) if step_calls.is_complete else (own_s, own_s)
        in_step = max(step_calls.after(in_step_s * step_calls.cpu_s / step_s), _CALLS_PER_S * in_step_s)
        beyond_s = max(in_step_s - step_s, 0.0)
        calling_s = min(calling_s, beyond_s)
        # if the GIL was free, the same work takes longer, or there are more operators
        of_work = step_calls.calls / step_calls.cpu_s * (beyond_s - calling_s)
        of_operators = _CALLS_PER_OPERATOR * (operators - self._step_operators * (steps + 1))
        beyond = _MOST_CALLS_PER_S * calling_s + (max(of_work, of_operators) if beyond_s else 0.0)
        return step_calls.calls * steps + min(in_step, step_calls.calls) + beyond + other_calls

    def _estimate_other_calls(self, cpu_s: float) -> float:
        if self.limits.training_s < math.inf:
            # measured in a loop of calls without a tracer
            return 3_000_000 * cpu_s
        step_calls = self.step_calls
        own = step_calls.calls / step_calls.cpu_s if step_calls is not None and step_calls.cpu_s else 0.0
        return max(_CALLS_PER_S * _corrections.calls, own) * cpu_s

    def _in_step_s(self, own_s: float) -> tuple[float, float]:
        last, now, steps, began = self._reading, time.perf_counter(), self._steps, self._step_began
        in_step_s = max(own_s - last.own_s, 0.0)
        is_same_step = steps == last.steps
        if not is_same_step:
            in_step_s *= min((now - began) / max(now - last.at, 1e-9), 1.0)
        calling_s = in_step_s if self._gil_wait_s > _FREE_GIL_S else 0.0
        if is_same_step:
            in_step_s, calling_s = in_step_s + last.in_step_s, calling_s + last.calling_s
        # one assignment, because two threads may measure
        self._reading = _ThreadReading(steps, now, own_s, in_step_s, calling_s)
        return in_step_s, calling_s

    def _cpu_s(self) -> tuple[float, float]:
        by_thread, here = {}, threading.get_ident()
        if here != self._owner:  # the owner may hold the lock of this list
            ours = (thread.ident for thread in threading.enumerate() if thread.name.startswith(process.THREADS))
            self._untraced = {here, *ours}
        used = {}
        for ident, cpu_clock in live_clocks().items():
            if ident not in self._untraced:
                thread, before = self._threads.get(ident) or (CountedThread(0, cpu_clock), None)
                used[ident] = thread, before, silent_times.without(ident, thread.cpu_ns)
        collected_ns = self._collections.ns_by_thread()  # last: none is missing
        for ident, (thread, before, cpu_ns) in used.items():
            now = cpu_ns - collected_ns[ident]
            first = now if before is None else before
            self._threads[ident] = thread, first
            by_thread[ident] = max(now - first, 0) * 1e-9
        own = by_thread.pop(self._owner, 0.0)
        return own, sum(by_thread.values())
