"""Windows on request, between those of the schedule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from perfhooks.core.options import MOST_WAITING
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
from perfhooks.run import layout
from perfhooks.run.job import current_job
from perfhooks.run.publishing import file_name
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.core.schedule import Phases
    from perfhooks.record.watch.loops import Asked, WatchedLoop
    from perfhooks.run.live.requests import State

WARMUP: Final = 1
"""Steps before those that were asked for, with the recorder on: the first step under it pays for its start."""
_MOST_TRIES: Final = 100
"""Windows of the schedule that a request may step aside for: 0.3 ms of the training."""
_FARTHEST: Final = 10**9
"""Steps ahead that a window may be asked for: at a millisecond each, they take eleven days."""


@dataclass(frozen=True)
class RequestedWindow:
    """A window on request that has its place."""

    asked: Asked
    phases: Schedule
    """Its steps, as a schedule that has no others."""
    planned: Planned
    note: str = ""
    """Why these are not the steps that were asked for."""

    @classmethod
    def at(cls, asked: Asked, first: int, warmup: int, note: str = "") -> RequestedWindow:
        """One whose warm-up begins at ``first``."""
        planned = Planned(first, first + warmup, first + warmup + asked.steps - 1)
        return cls(asked, _alone(planned), planned, note)


def _alone(window: Planned) -> Schedule:
    """A window as a schedule that has no other."""
    first, active, last = window
    return Schedule(skip_first=first, wait=0, warmup=active - first, active=last - active + 1, repeat=1)


class Requests:
    """What was asked of one profiler, and the windows that come of it.

    It is a schedule itself: that of the profiler, with windows on request where it has none.

    Args:
        loop: Where requests come in, and answers go out.
        base: The schedule without them.
    """

    def __init__(self, loop: WatchedLoop, base: Schedule | OnRequest | CallableSchedule | FromStartToStop) -> None:
        self.loop = loop
        self.base = base
        self.began = 0
        """The step that was current when the loop began, or went on."""
        self.is_unplanned = isinstance(base, WhenSettled)
        """Whether nobody said which steps to record."""
        self._windows: list[RequestedWindow] = []
        self._is_full = False
        """Whether there was no place for the last one."""

    @property
    def is_until_stop(self) -> bool:
        """Whether there is no schedule: the window ends when the loop does."""
        return isinstance(self.base, FromStartToStop)

    @property
    def fields(self) -> dict[str, int] | None:
        """The schedule as the run folder keeps it; None where it has no fields."""
        return self.base.to_dict() if isinstance(self.base, Schedule) else None

    def begin(self, step: int) -> None:
        """The loop begins with a step, or goes on with it."""
        self.began = step
        if self.is_until_stop:
            self.base = FromStartToStop(step)
        if isinstance(self.base, WhenSettled):
            self.base.begin(step, clock())

    def take_in(self, step: int) -> None:
        """Give what was asked for a place, from ``step`` on, which begins now; forget windows that are over."""
        while self.loop.inbox:
            self._place(self.loop.inbox.popleft(), step)
        self._windows = [window for window in self._windows if window.planned.last >= step]
        if isinstance(self.base, WhenSettled) and not self._windows:
            self._settle(self.base, step)

    def _settle(self, base: WhenSettled, step: int) -> None:
        """Take the window of who planned none, if it begins now."""
        walls = self._walls_since(max(step - MOST_LOOKED_AT, 0))
        if walls is None:
            return  # the next step will do
        planned = base.decided(step, clock(), walls, together=current_job().world_size > 1)
        self.base = base if planned is None else _alone(planned)

    def _walls_since(self, step: int) -> list[int] | None:
        """What steps took, in nanoseconds; None while they are being written, for which the training does not wait."""
        timeline = self.loop.timeline
        if not timeline.taking.acquire(blocking=False):
            return None
        try:
            walls: list[int] = timeline.walls_since(step)[1].tolist()
            return walls
        finally:
            timeline.taking.release()

    def shorten(self, planned: Planned) -> None:
        """End the window of an unplanned loop earlier."""
        self.base = _alone(planned)

    def opening(self, step: int) -> RequestedWindow | None:
        """The window on request that begins at a step."""
        return next((window for window in self._windows if window.planned.first == step), None)

    def end(self, why: str) -> None:
        """No step will come any more.

        Args:
            why: Said to those whose windows did not begin.
        """
        waiting = [*(window.asked for window in self._windows), *self.loop.inbox]
        self.loop.inbox.clear()
        self._windows = []
        for asked in waiting:
            self.loop.answer(asked, "ended", why=why)

    def refuse(self, window: RequestedWindow, why: str) -> None:
        """A window will not be recorded."""
        self._forget(window)
        self.loop.answer(window.asked, "refused", why=why)

    def recorded(
        self, window: RequestedWindow, folder: str | None, first: int, last: int, notes: Sequence[str]
    ) -> None:
        """A window has been recorded.

        Args:
            window: It had its place.
            folder: Where it was saved; None where it was not.
            first: The first step that was recorded.
            last: The last one.
            notes: What is doubtful about it.
        """
        if folder is None:
            self.refuse(window, "; ".join(notes) or "its trace was not saved")
            return
        self._forget(window)
        self.loop.answer(window.asked, "recorded", window=folder, first=first, last=last, why=window.note)

    def _forget(self, window: RequestedWindow) -> None:
        self._windows = [other for other in self._windows if other is not window]

    def _place(self, asked: Asked, step: int) -> None:
        was_full, self._is_full = self._is_full, len(self._windows) >= MOST_WAITING
        if self._is_full:
            if asked.name or not was_full:  # a training may ask at every step
                self.loop.answer(asked, "refused", why=f"{MOST_WAITING} windows on request wait already")
            return
        if asked.first is not None and asked.first > step + _FARTHEST:
            self.loop.answer(asked, "refused", why=f"step {asked.first} is too far ahead: this is step {step}")
            return
        is_late = asked.first is not None and asked.first < step
        wanted = step if asked.first is None or is_late else asked.first - WARMUP
        warmup = min(WARMUP, WARMUP + wanted - step)  # less, where the request came in the last moment
        first = self._gap(max(wanted, step), warmup + asked.steps)
        if first is None:
            self.loop.answer(asked, "refused", why="everything is recorded anyway: the schedule leaves no gap")
            return
        note = ""
        if asked.first is not None and (is_late or first + warmup != asked.first):
            why = f"step {step} had begun when the request was seen" if is_late else "other windows come first"
            note = f"it was to begin with step {asked.first}: {why}"
        self._keep(RequestedWindow.at(asked, first, warmup, note), "late" if is_late else "accepted")

    def _keep(self, window: RequestedWindow, state: State) -> None:
        self._windows.append(window)
        _, active, last = window.planned
        folder = layout.window(file_name(self.loop.stage), active, last)
        self.loop.answer(window.asked, state, window=folder, first=active, last=last, why=window.note)

    def _gap(self, first: int, length: int) -> int | None:
        """The first place, from a step on, for so many steps that nobody else records; None if there is none."""
        for _ in range(_MOST_TRIES):
            later = self._after(first, first + length - 1)
            if later is None:
                return first
            if later < 0:
                return None
            first = later
        return None

    def _after(self, first: int, last: int) -> int | None:
        """The step behind a window that some steps would meet; None if they meet none, -1 if it has no end."""
        for window in self._windows:
            if window.planned.first <= last and first <= window.planned.last:
                return window.planned.last + 1
        if isinstance(self.base, CallableSchedule):
            return None  # it is asked step by step, see `opens`
        if self.base.phase(first) is not Phase.WAIT:
            change = self.base.next_change(first)
            return -1 if change is None else change
        ahead = self.base.next_window(first)
        return ahead.last + 1 if ahead is not None and ahead.first <= last else None

    # -- as a schedule -----------------------------------------------------------------------------------------------

    def _at(self, step: int) -> RequestedWindow | None:
        return next((window for window in self._windows if window.planned.first <= step <= window.planned.last), None)

    def _phases_at(self, step: int) -> Phases:
        window = self._at(step)
        return self.base if window is None else window.phases

    def _phases(self) -> list[Phases]:
        return [self.base, *(window.phases for window in self._windows)]

    def phase(self, step: int) -> Phase:
        """What the recorder does during a step."""
        return self._phases_at(step).phase(step)

    def opens(self, step: int) -> bool:
        """Whether a step is the first of a window; one on request steps aside for somebody's callable."""
        window = self._at(step)
        if window is None:
            return self.base.opens(step)
        if window.planned.first != step:
            return False
        if isinstance(self.base, CallableSchedule) and self.base.phase(step) is not Phase.WAIT:
            self._forget(window)
            later = self._gap(step + 1, WARMUP + window.asked.steps) or step + 1
            self._keep(RequestedWindow.at(window.asked, later, WARMUP, "other windows come first"), "accepted")
            return self.base.opens(step)
        return True

    def ends(self, step: int) -> bool:
        """Whether a step is the last of a window."""
        return self._phases_at(step).ends(step)

    def next_change(self, step: int) -> int | None:
        """The next step that may be treated differently."""
        changes = (phases.next_change(step) for phases in self._phases())
        return min((change for change in changes if change is not None), default=None)

    def next_window(self, step: int) -> Planned | None:
        """The first window that begins at ``step`` or later, as far as one is known."""
        ahead = (phases.next_window(step) for phases in self._phases())
        return min((window for window in ahead if window is not None), default=None)
