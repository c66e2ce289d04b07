from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfhooks.core.options import MOST_WAITING, WARMUP
from perfhooks.core.schedule import (
    MOST_LOOKED_AT,
    CallableSchedule,
    FromStartToStop,
    OnRequest,
    Phase,
    Planned,
    Schedule,
    WhenSettled,
)
from perfhooks.record.loop.limits.other_threads import SHORTEST_WAIT_S, ThreadLoad
from perfhooks.run import layout
from perfhooks.run.job import current_job
from perfhooks.run.publishing import file_name
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.core.schedule import Phases
    from perfhooks.record.watch.loops import LoopRequest, WatchedLoop
    from perfhooks.run.live.requests import State


@dataclass(frozen=True)
class RequestedWindow:
    asked: LoopRequest
    phases: Schedule
    planned: Planned
    note: str = ""

    @classmethod
    def at(cls, asked: LoopRequest, first: int, warmup: int, note: str = "") -> RequestedWindow:
        planned = Planned(first, first + warmup, first + warmup + asked.steps - 1)
        return cls(asked, _schedule_of(planned), planned, note)


def _schedule_of(window: Planned) -> Schedule:
    first, active, last = window
    return Schedule(skip_first=first, wait=0, warmup=active - first, active=last - active + 1, repeat=1)


class Requests:
    """Schedule of the profiler, with requested windows between scheduled windows."""

    def __init__(self, loop: WatchedLoop, base: Schedule | OnRequest | CallableSchedule | FromStartToStop) -> None:
        self.loop = loop
        self.base = base
        self.began = 0
        self.is_unplanned = isinstance(base, WhenSettled)
        self.load: ThreadLoad | None = None
        """CPU use of other threads since the start of the loop; None if the user set a schedule."""
        self.shortest_wait_s = 0.0
        """Minimum training time in s before the automatic window; longer if other threads are busy."""
        self._windows: list[RequestedWindow] = []
        self._is_full = False

    @property
    def is_until_stop(self) -> bool:
        return isinstance(self.base, FromStartToStop)

    @property
    def fields(self) -> dict[str, int] | None:
        return self.base.to_dict() if isinstance(self.base, Schedule) else None

    def begin(self, step: int) -> None:
        self.began = step
        if self.is_until_stop:
            self.base = FromStartToStop(step)
        if isinstance(self.base, WhenSettled):
            self.base.begin(step, clock())
            self.load = ThreadLoad()

    def schedule_pending(self, step: int) -> None:
        while self.loop.inbox:
            self._schedule_request(self.loop.inbox.popleft(), step)
        self._windows = [window for window in self._windows if window.planned.last >= step]
        if isinstance(self.base, WhenSettled) and not self._windows:
            self._plan_window(self.base, step)

    def _plan_window(self, base: WhenSettled, step: int) -> None:
        walls = self._step_times_since(max(step - MOST_LOOKED_AT, 0))
        if walls is None:
            return
        together = current_job().world_size > 1
        self.shortest_wait_s = 0.0 if together or not self.has_busy_threads() else SHORTEST_WAIT_S
        planned = base.decided(step, clock(), walls, together=together, shortest_wait_s=self.shortest_wait_s)
        self.base = base if planned is None else _schedule_of(planned)

    def has_busy_threads(self) -> bool:
        """Return whether other threads compete with the training; false if the user set a schedule."""
        return self.load is not None and self.load.is_busy()

    def _step_times_since(self, step: int) -> list[int] | None:
        """Return step times in ns; None while another thread writes them."""
        timeline = self.loop.timeline
        if not timeline.taking.acquire(blocking=False):
            return None
        try:
            walls: list[int] = timeline.walls_since(step)[1].tolist()
            return walls
        finally:
            timeline.taking.release()

    def shorten(self, planned: Planned) -> None:
        self.base = _schedule_of(planned)

    def window_at(self, step: int) -> RequestedWindow | None:
        return next((window for window in self._windows if window.planned.first == step), None)

    def end(self, why: str) -> None:
        pending = [*(window.asked for window in self._windows), *self.loop.inbox]
        self.loop.inbox.clear()
        self._windows = []
        for request in pending:
            self.loop.answer(request, "ended", why=why)

    def refuse(self, window: RequestedWindow, why: str) -> None:
        self._forget(window)
        self.loop.answer(window.asked, "refused", why=why)

    def answer_recorded(
        self, window: RequestedWindow, folder: str | None, first: int, last: int, notes: Sequence[str]
    ) -> None:
        if folder is None:
            self.refuse(window, "; ".join(notes) or "its trace was not saved")
            return
        self._forget(window)
        self.loop.answer(window.asked, "recorded", window=folder, first=first, last=last, why=window.note)

    def _forget(self, window: RequestedWindow) -> None:
        self._windows = [planned for planned in self._windows if planned is not window]

    def _schedule_request(self, request: LoopRequest, step: int) -> None:
        was_full, self._is_full = self._is_full, len(self._windows) >= MOST_WAITING
        if self._is_full:
            if request.name or not was_full:
                self.loop.answer(request, "refused", why=f"{MOST_WAITING} requested windows wait already")
            return
        # eleven days at a millisecond per step
        if request.first is not None and request.first > step + 10**9:
            self.loop.answer(request, "refused", why=f"step {request.first} is too far ahead: this is step {step}")
            return
        is_late = request.first is not None and request.first < step
        start = step if request.first is None or is_late else request.first - WARMUP
        warmup = min(WARMUP, WARMUP + start - step)
        first = self._find_gap(max(start, step), warmup + request.steps)
        if first is None:
            self.loop.answer(request, "refused", why="the schedule already records all steps")
            return
        note = ""
        if request.first is not None and (is_late or first + warmup != request.first):
            why = f"step {step} had begun when the request was read" if is_late else "other windows come first"
            note = f"the window cannot begin at the requested step {request.first}: {why}"
        self._accept(RequestedWindow.at(request, first, warmup, note), "late" if is_late else "accepted")

    def _accept(self, window: RequestedWindow, state: State) -> None:
        self._windows.append(window)
        _, active, last = window.planned
        folder = layout.window(file_name(self.loop.stage), active, last)
        self.loop.answer(window.asked, state, window=folder, first=active, last=last, why=window.note)

    def _find_gap(self, first: int, length: int) -> int | None:
        for _ in range(100):
            next_first = self._end_of_overlap(first, first + length - 1)
            if next_first is None:
                return first
            if next_first < 0:
                return None
            first = next_first
        return None

    def _end_of_overlap(self, first: int, last: int) -> int | None:
        for window in self._windows:
            if window.planned.first <= last and first <= window.planned.last:
                return window.planned.last + 1
        if isinstance(self.base, CallableSchedule):
            return None  # a callable schedule must be evaluated step by step, see `opens`
        if self.base.phase(first) is not Phase.WAIT:
            change = self.base.next_change(first)
            return -1 if change is None else change
        ahead = self.base.next_window(first)
        return ahead.last + 1 if ahead is not None and ahead.first <= last else None

    def _window_during(self, step: int) -> RequestedWindow | None:
        return next((window for window in self._windows if window.planned.first <= step <= window.planned.last), None)

    def _phases_at(self, step: int) -> Phases:
        window = self._window_during(step)
        return self.base if window is None else window.phases

    def _phases(self) -> list[Phases]:
        return [self.base, *(window.phases for window in self._windows)]

    def phase(self, step: int) -> Phase:
        return self._phases_at(step).phase(step)

    def opens(self, step: int) -> bool:
        window = self._window_during(step)
        if window is None:
            return self.base.opens(step)
        if window.planned.first != step:
            return False
        if isinstance(self.base, CallableSchedule) and self.base.phase(step) is not Phase.WAIT:
            self._forget(window)
            first = self._find_gap(step + 1, WARMUP + window.asked.steps) or step + 1
            self._accept(RequestedWindow.at(window.asked, first, WARMUP, "other windows come first"), "accepted")
            return self.base.opens(step)
        return True

    def ends(self, step: int) -> bool:
        return self._phases_at(step).ends(step)

    def next_change(self, step: int) -> int | None:
        changes = (phases.next_change(step) for phases in self._phases())
        return min((change for change in changes if change is not None), default=None)

    def next_window(self, step: int) -> Planned | None:
        ahead = (phases.next_window(step) for phases in self._phases())
        return min((window for window in ahead if window is not None), default=None)
