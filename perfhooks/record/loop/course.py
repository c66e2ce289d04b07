"""The course of a loop: what is due at which step, from its start to its stop.

A course is told when a step begins at which something is due, and works out the next one::

    step     0   1   2   3   4   5   6   7
             ·   ·   ▒   █   █   ·   ·   ▒        · wait   ▒ warm-up   █ active
             ↑       ↑   ↑   ↑   ↑       ↑   ↑
           start     │  turn │ close  opens  stop, which closes the window that is open
                   opens    mark

At a *turn* a window or a phase begins or ends, requests get their place and the worker is heard; between two turns, an
open window is only told of each step (*mark*), and without one nothing happens at all.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import frames, words
from perfhooks.core.guard import cause_of, guard, is_of_handler, logger
from perfhooks.core.options import check_step
from perfhooks.core.schedule import FromStartToStop, OnRequest, Phase, WhenSettled
from perfhooks.record.loop import request_signal
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.handover import Handover
from perfhooks.record.loop.membership import Membership
from perfhooks.record.loop.requested import Requests
from perfhooks.record.loop.step_clock import NEVER, StepClock
from perfhooks.record.loop.window import action_of, also_counting, is_spare_recording, spares
from perfhooks.record.loop.windows import STOPPED, Windows
from perfhooks.record.watch import watcher
from perfhooks.record.watch.loops import WatchedLoop
from perfhooks.record.watch.sampling import outwards
from perfhooks.run import remote
from perfhooks.run.timeline import Timeline

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from perfhooks.core.options import Options
    from perfhooks.core.schedule import CallableSchedule, Schedule
    from perfhooks.record.loop.handover import HandlerLike
    from perfhooks.record.loop.window import Window
    from perfhooks.run.folder import Run

_POLL_STEPS: Final = 16
"""While windows wait for their files, the worker is heard every so many steps."""
_OF_FEW: Final = "wait=2 warmup=1 active=3 repeat=1"
_CELL: Final = "ipykernel_"
"""Folder that Jupyter names as the one of its cells."""
_MOST_FAILURES: Final = 3
"""Turns that fail in a row before profiling ends: that many are no accident, and a line in every step would hide the
training's own."""


class State(Enum):
    """How far a profiler is."""

    NEW = auto()
    """Nobody has started it yet."""
    RUNNING = auto()
    PAUSED = auto()
    """It was started, and is between two loops; windows are still to come."""
    LEFT_OUT = auto()
    """It was started on a rank that is not asked to record."""
    ENDED = auto()


class LoopController:
    """What is due at which step, from the start of a loop to its stop; a `Profiler` has one, and it has `Windows`.

    Args:
        options: All of them, checked.
        schedule: Which steps to record; None is from start to stop.
        on_trace_ready: What to make of each window.
        recording: What torch's recorder takes, of what was given.

    Raises:
        OptionError: A handler is none.
    """

    def __init__(
        self,
        options: Options,
        schedule: Schedule | OnRequest | CallableSchedule | None,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None,
        recording: Mapping[str, Any],
    ) -> None:
        self.options = options
        stage, out = options["stage"], options["out"]
        self.pulse = StepClock()
        self.loop = WatchedLoop(Timeline(stage), stage, options["poll"], step=self.pulse.current, wake=self.pulse.wake)
        self.loop.triggers = options["trigger"] == "slow"
        self.requests = Requests(self.loop, schedule or FromStartToStop(0))
        is_plain = on_trace_ready is None and self.requests.is_until_stop and out is None
        handover = Handover(
            [] if is_plain else on_trace_ready,
            {**recording, "communication": options["communication"]},
            stage=stage,
            background=options["background"] and not (out is not None and remote.in_this_process(out)),
            keep_windows=options["keep_windows"],
            on_error=options["on_error"],
        )
        writes = out is not None or bool(handover.recipes)
        self.windows = Windows(
            options,
            self.requests,
            recording=recording,
            membership=Membership(options, handover, self.requests, writes=writes),
            handover=handover,
        )
        self.windows.end_in_step = self._end_in_step
        self.state = State.NEW
        self._turn_at = 0
        """The next step that changes more than a mark in an open window."""
        self._failures = 0
        """How many turns have failed one after the other."""

    def start(self, step: int | None, out: str | os.PathLike[str] | None, run: str | None) -> None:
        """Begin, as `Profiler.start` does."""
        if self.state is State.RUNNING:
            return
        if step is not None:
            check_step(step)
            self.pulse.step = step
        if self.state is State.NEW:
            self.windows.handover.first_step = self.pulse.step
            self.windows.started_at = _caller()
            self._end_left_open()
        self.state = State.RUNNING
        self.pulse.due = NEVER
        self.requests.begin(self.pulse.step)
        with lifetime.busy(), guard("starting to profile", self.options["on_error"]):
            self.loop.begin(None)
            if not self.windows.membership.join(out, run, self._let_watch):
                self.state, self.loop.is_running = State.LEFT_OUT, False
                return
            writes = self.windows.membership.writes
            if writes and self.options["watch"] and self.options["signal"] is not None:
                request_signal.listen(self.options["signal"], self.loop)
            self.windows.workers.is_wanted = self.options["workers"] and writes
            self.pulse.begin(self.loop.timeline, also_counting)
            self.loop.timeline.begin(self.pulse.step)
            self._turn(self.pulse.step)

    def _end_left_open(self) -> None:
        """End the profilers that the program has left open, because torch records one at a time."""
        for course in lifetime.left_open():
            if isinstance(course, LoopController) and course is not self and course.state is State.RUNNING:
                started = course.windows.started_at
                logger.info("the profiler that %s started was left open and is ended: another one starts", started)
                course.stop("left open when another profiler started")

    def _let_watch(self, run: Run | None) -> None:
        """The loop begins, or goes on: have it watched if there is a folder to write into."""
        self.loop.run = run
        if run is not None and self.options["watch"]:
            watcher.attach(self.loop)

    def pause(self, cause: str | None) -> None:
        """Leave the loop for a while, as `Profiler.pause` does."""
        window = self.windows.current
        if self.state is not State.RUNNING:
            return
        if window is not None and window.is_elsewhere:
            logger.warning("the window cannot end here: %s", window.where)
            return
        self.state = State.PAUSED
        self.loop.is_running = False
        self.pulse.rest()
        with lifetime.busy(), guard("ending the profile", self.options["on_error"]):
            is_whole = self.requests.is_until_stop and cause is None
            self._close(self.pulse.step, None if is_whole else cause or STOPPED)
            self.windows.handover.keep_time(self.loop)
        self.windows.handover.tasks.poll()

    def end(self) -> None:
        """After a pause: the loop will not go on."""
        if self.state is State.PAUSED and not self.requests.is_until_stop and not self.windows.begun and not spares():
            level = logging.DEBUG if self.windows.handover.is_summed_up else logging.WARNING
            logger.log(level, self.why_nothing())
        if self.state is State.RUNNING:
            return  # another thread has to end it
        if self.state is not State.LEFT_OUT:
            self.state = State.ENDED
        with lifetime.busy(), guard("ending the run", self.options["on_error"]):
            self.windows.workers.close()
            self.requests.end(f"the loop ended at step {self.pulse.step}")
            watcher.detach(self.loop)
            self.windows.handover.end_run()
            self.windows.handover.tasks.rest()

    @property
    def in_window(self) -> bool:
        """Whether a window is open, warm-up included."""
        return self.windows.current is not None

    def stop(self, cause: str | None = None) -> None:
        """End, as `Profiler.stop` does, for a program that has lost its profiler."""
        self.pause(cause)
        self.end()
        if self.is_over:
            lifetime.forget(self)

    def leave(self, waited_s: float = 0.0) -> Path | None:
        """End with the process, as `Profiler.leave` does."""
        if self.state is State.RUNNING:
            self.stop(lifetime.why_it_ends())
        timeout = max(self.options["exit_timeout"] - waited_s, 0.0)
        run = self.windows.handover.run
        return None if self.windows.handover.leave(timeout) or run is None else run.folder

    def discard(self) -> Path | None:
        """End without a word, and forget the steps so far: they were none.

        Returns:
            The run folder, which another profiler may use; None if a window was recorded.
        """
        handover = self.windows.handover
        if handover.places or handover.run is None:
            return None
        self.windows.is_dropping = True
        handover.drop_steps(self.loop)
        self.pause(STOPPED)
        self.state = State.ENDED
        with lifetime.busy(), guard("beginning the run again", self.options["on_error"]):
            self.windows.workers.close()
            self.requests.end("steps are detected in another way from here on")
            watcher.detach(self.loop)
            handover.tasks.rest()
            handover.run.forget_steps()
        return handover.run.folder

    @property
    def is_over(self) -> bool:
        """Whether the end of the process has nothing to end or to wait for here."""
        return self.state not in (State.RUNNING, State.PAUSED) and not self.windows.handover.tasks.pending

    def abandon(self) -> None:
        """Do nothing from now on, and touch nothing that was recorded: this process is a forked child."""
        self.pulse.rest()
        self.pulse.is_recording = False
        self.state = State.ENDED
        self.windows.abandon()

    def advance(self, step: int) -> None:
        """Do what is due at the beginning of ``step``, in a loop that has begun."""
        window = self.windows.current
        if window is not None and window.is_elsewhere:
            self.pulse.due = NEVER
            logger.warning("the window of step %d cannot go on: %s", step, window.where)
        elif window is not None and step < self._turn_at and not self.windows.is_over(window, step):
            self._mark(window, step)
        elif self.state is not State.RUNNING:
            self.pulse.due = NEVER
        else:
            self._turn(step)

    def _mark(self, window: Window, step: int) -> None:
        """One more step in an open window: done at every recorded step, so nothing else is."""
        self.loop.timeline.is_kept = True
        try:
            window.step()
            if self.pulse.is_recording:
                self.windows.label()
        except Exception as error:
            if self.options["on_error"] == "raise" or is_of_handler(error):
                raise
            logger.warning("profiling step %d failed (%s); the window ends", step, cause_of(error))
            self._recover(step)
        self.loop.timeline.begin(step)

    def _turn(self, step: int) -> None:
        """Begin or end a window or a phase, or hear what became of windows."""
        pulse, windows, timeline = self.pulse, self.windows, self.loop.timeline
        pulse.due, timeline.is_kept = NEVER, True
        is_done = False
        try:
            with lifetime.busy(), guard(f"profiling step {step}", self.options["on_error"]):
                if windows.current is not None:
                    self._go_on(windows.current, step)
                self.requests.take_in(step)
                if windows.current is None and self.requests.opens(step):
                    self._open(step)
                phase = self.requests.phase(step) if windows.current is not None else _phase_between()
                # what explains another window is compared with nothing, as a warm-up is
                timeline.enter(step, Phase.WARMUP if windows.is_explaining else phase)
                pulse.is_recording = windows.current is not None and phase is Phase.ACTIVE
                if pulse.is_recording:
                    windows.label()
                if step >= timeline.full_at:
                    windows.handover.keep_time(self.loop)
                if windows.handover.tasks.pending:
                    windows.handover.tasks.poll()
                self._turn_at = self._due(step)
                pulse.due = self._turn_at if windows.current is None else step + 1
                if self.loop.inbox:  # it came while the next turn was being decided
                    pulse.wake()
                is_done = True
        finally:
            if is_done:
                self._failures = 0
            else:
                self._recover(step)
            timeline.begin(step)

    def _recover(self, step: int) -> None:
        """Something failed: keep what was recorded, and go on with the next window."""
        self._failures += 1
        with lifetime.busy(), guard("ending the window", self.options["on_error"]):
            self._close(step, "profiling it failed")
        if self._failures >= _MOST_FAILURES:
            logger.warning("profiling failed %d times in a row, and ends", self._failures)
            return
        self.pulse.due = self._turn_at = step + 1

    def _due(self, step: int) -> int:
        """The next step that changes something, in a window or outside."""
        if self.state is State.LEFT_OUT:
            return NEVER
        change = self.requests.next_change(step)
        heard = step + _POLL_STEPS if self.windows.handover.tasks.windows_left else NEVER
        return min(NEVER if change is None else change, self.loop.timeline.full_at, heard)

    def _open(self, step: int) -> None:
        if not self.windows.membership.meet():
            self.state = State.LEFT_OUT
            self.pulse.rest()
            return
        self.loop.run = self.windows.handover.run
        self.windows.open(step)

    def _go_on(self, window: Window, step: int) -> None:
        """One more step in an open window, or its end."""
        is_over = self.windows.is_over(window, step)
        is_whole = self.requests.ends(step - 1) or (is_over and window.planned is not None)
        if is_over and not is_whole:
            self._close(step, f"{window.budget.limits.name} was reached")
        elif is_whole or self.requests.phase(step) is Phase.WAIT or self.requests.opens(step):
            self._close(step, None if is_whole else "the schedule ended the window without RECORD_AND_SAVE")
        else:
            window.step()

    def _close(self, reached: int, partial: str | None) -> None:
        self.pulse.is_recording = False
        self.windows.close(reached, partial)

    def _end_in_step(self) -> None:
        """End the window inside a step, in the main thread, because its budget is spent."""
        window, step = self.windows.current, self.pulse.step
        if window is None or window.is_elsewhere:
            return
        self.loop.timeline.is_kept = True  # until the next step begins
        with guard("ending the window", self.options["on_error"]):
            self._close(step, f"{window.budget.limits.name} was reached inside step {step}")
        self._turn_at = step + 1
        self.pulse.wake()

    def action(self, step: int) -> Any:
        """What torch calls what is done at a step."""
        return action_of(self.requests, step)

    def why_nothing(self) -> str:
        """Why there is no window to ask, in a sentence."""
        windows = self.windows
        if windows.current is not None:
            return f"nothing to show yet: the window of step {self.pulse.step} is still recording"
        if self.state is State.LEFT_OUT:
            return "no window is recorded here: this rank is not among those of ranks=, or enabled=False was given"
        if windows.last is not None:
            why = "no files were asked for"
            if windows.membership.writes:
                why = "its files could not be saved, as was said before"
            return f"a window has been recorded, but {why}; key_averages() and events() show it"
        if windows.skipped:
            return f"no window has been recorded: {windows.skipped} had to be skipped, as was said before"
        planned = self.requests.next_window(0)
        base = self.requests.base
        first = "; no window was planned" if isinstance(base, OnRequest) else ""
        if isinstance(base, WhenSettled):
            first = f' before their pace had settled; schedule="{_OF_FEW}" records some of so few'
        if planned is not None:
            first = f"; the first window is {words.steps(planned.active, planned.last)}"
        return f"no window has been recorded: {words.count(self.pulse.step, 'step')} ended{first}"


def _caller() -> str:
    """Return the line of the program that calls us: ``train.py:12``."""
    outside = (frame for frame in outwards(sys._getframe(1)) if not frames.is_ours(frame.f_code.co_filename))
    frame = next(outside, None)
    if frame is None:
        return "an unknown line"
    file, line = frame.f_code.co_filename, frame.f_lineno
    is_cell = _CELL in file or file.startswith("<")
    return f"line {line} of a cell" if is_cell else f"{Path(file).name}:{line}"


def _phase_between() -> Phase:
    """That of steps in no window of this loop: one may record that is kept if no other does."""
    return Phase.WARMUP if is_spare_recording() else Phase.WAIT
