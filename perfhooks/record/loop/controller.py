"""Decides at each step of a loop which work is due, and computes the next step with work.

::

    step     0   1   2   3   4   5   6   7
             ·   ·   ▒   █   █   ·   ·   ▒        · wait   ▒ warm-up   █ active
             ↑       ↑   ↑   ↑   ↑       ↑   ↑
           start     │  turn │ close  opens  stop, which closes the window that is open
                   opens    mark

At a *turn* a window or a phase begins or ends, requests are scheduled and the worker's messages are read. Between two
turns, an open window only gets a *mark* per step. Without an open window, no work is done.
"""

from __future__ import annotations

import logging
import sys
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import frames, words
from perfhooks.core.guard import MAX_FAILURES, cause_of, guard, logger
from perfhooks.core.handlers import is_of_handler
from perfhooks.core.options import check_step
from perfhooks.core.schedule import FromStartToStop, OnRequest, Phase, WhenSettled
from perfhooks.record.loop import request_signal
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.handover import Handover
from perfhooks.record.loop.membership import Membership
from perfhooks.record.loop.requested import Requests
from perfhooks.record.loop.step_clock import NEVER, StepClock
from perfhooks.record.loop.window import action_of, counting_for_daemon, is_spare_recording, spare_windows
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

_FOR_SHORT_RUNS: Final = "wait=2 warmup=1 active=3 repeat=1"
_CELL: Final = "ipykernel_"


class LoopState(Enum):
    NEW = auto()
    RUNNING = auto()
    PAUSED = auto()
    LEFT_OUT = auto()
    ENDED = auto()


class LoopController:
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
        self.state = LoopState.NEW
        self._turn_at = 0
        """Number of the next step that needs more work than a step mark."""
        self._failures = 0

    def start(self, step: int | None, out: str | os.PathLike[str] | None, run: str | None) -> None:
        if self.state is LoopState.RUNNING:
            return
        if step is not None:
            check_step(step)
            self.pulse.step = step
        if self.state is LoopState.NEW:
            self.windows.handover.first_step = self.pulse.step
            self.windows.start_line = _caller()
            self._end_other_loops()
        self.state = LoopState.RUNNING
        self.pulse.due = NEVER
        self.requests.begin(self.pulse.step)
        with lifetime.busy(), guard("starting to profile", self.options["on_error"]):
            self.loop.begin(None)
            if not self.windows.membership.join(out, run, self._on_opened):
                self.state, self.loop.is_running = LoopState.LEFT_OUT, False
                return
            writes = self.windows.membership.writes
            if writes and self.options["watch"] and self.options["signal"] is not None:
                request_signal.listen(self.options["signal"], self.loop)
            self.windows.workers.is_wanted = self.options["workers"] and writes
            self.pulse.begin(self.loop.timeline, counting_for_daemon)
            self.loop.timeline.begin(self.pulse.step)
            self._turn(self.pulse.step)

    def _end_other_loops(self) -> None:
        for course in lifetime.find_left_open():
            if isinstance(course, LoopController) and course is not self and course.state is LoopState.RUNNING:
                line = course.windows.start_line
                logger.info("the profiler that %s started was left open and is ended: another one starts", line)
                course.stop("left open when another profiler started")

    def _on_opened(self, run: Run | None) -> None:
        self.loop.run = run
        if run is not None and self.options["watch"]:
            watcher.attach(self.loop)

    def pause(self, cause: str | None) -> None:
        window = self.windows.current
        if self.state is not LoopState.RUNNING:
            return
        if window is not None and window.is_elsewhere:
            logger.warning("the window cannot end here: %s", window.thread_hint)
            return
        self.state = LoopState.PAUSED
        self.loop.is_running = False
        self.pulse.stop()
        with lifetime.busy(), guard("ending the profile", self.options["on_error"]):
            is_complete = self.requests.is_until_stop and cause is None
            self._close(self.pulse.step, None if is_complete else cause or STOPPED)
            self.windows.handover.write_timeline(self.loop)
        self.windows.handover.tasks.poll()

    def end(self) -> None:
        if (
            self.state is LoopState.PAUSED
            and not self.requests.is_until_stop
            and not self.windows.begun
            and not spare_windows()
        ):
            level = logging.INFO if isinstance(self.requests.base, OnRequest) else logging.WARNING
            level = logging.DEBUG if self.windows.handover.is_summed_up else level
            logger.log(level, self.why_nothing())
        if self.state is LoopState.RUNNING:
            return
        if self.state is not LoopState.LEFT_OUT:
            self.state = LoopState.ENDED
        with lifetime.busy(), guard("ending the run", self.options["on_error"]):
            self.windows.workers.close()
            self.requests.end(f"the loop ended at step {self.pulse.step}")
            watcher.detach(self.loop)
            self.windows.handover.update_report()
            self.windows.handover.tasks.close_when_done()

    @property
    def in_window(self) -> bool:
        return self.windows.current is not None

    def stop(self, cause: str | None = None) -> None:
        self.pause(cause)
        self.end()
        if self.is_over:
            lifetime.unregister(self)

    def leave(self, waited_s: float = 0.0) -> Path | None:
        if self.state is LoopState.RUNNING:
            self.stop(lifetime.why_it_ends())
        timeout = max(self.options["exit_timeout"] - waited_s, 0.0)
        run = self.windows.handover.run
        return None if self.windows.handover.leave(timeout) or run is None else run.folder

    def discard(self) -> Path | None:
        """Remove all recorded step times, because the steps were no training steps.

        Return the run folder, which the next profiler may use; None if a window was recorded.
        """
        handover = self.windows.handover
        if handover.places or handover.run is None:
            return None
        self.windows.is_dropping = True
        handover.drop_steps(self.loop)
        self.pause(STOPPED)
        self.state = LoopState.ENDED
        with lifetime.busy(), guard("restarting the run", self.options["on_error"]):
            self.windows.workers.close()
            self.requests.end("the step detector has changed")
            watcher.detach(self.loop)
            handover.tasks.close_when_done()
            handover.run.forget_steps()
        return handover.run.folder

    @property
    def is_over(self) -> bool:
        return self.state not in (LoopState.RUNNING, LoopState.PAUSED) and not self.windows.handover.tasks.pending

    def abandon(self) -> None:
        self.pulse.stop()
        self.pulse.is_recording = False
        self.state = LoopState.ENDED
        self.windows.abandon()

    def advance(self, step: int) -> None:
        window = self.windows.current
        if window is not None and window.is_elsewhere:
            self.pulse.due = NEVER
            logger.warning("the window of step %d cannot continue: %s", step, window.thread_hint)
            return
        if window is not None:
            window.end_step()
        if window is not None and step < self._turn_at and not self.windows.is_over(window, step):
            self._mark(window, step)
        elif self.state is not LoopState.RUNNING:
            self.pulse.due = NEVER
        else:
            self._turn(step)

    def _mark(self, window: Window, step: int) -> None:
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
        pulse, windows, timeline = self.pulse, self.windows, self.loop.timeline
        pulse.due, timeline.is_kept = NEVER, True
        is_done = False
        try:
            with lifetime.busy(), guard(f"profiling step {step}", self.options["on_error"]):
                if windows.current is not None:
                    self._continue(windows.current, step)
                self.requests.schedule_pending(step)
                if windows.current is None and self.requests.opens(step):
                    self._open(step)
                phase = self.requests.phase(step) if windows.current is not None else _phase_between()
                # steps with stacks and shapes are, like warm-up steps, not compared with other steps
                timeline.enter(step, Phase.WARMUP if windows.is_explaining else phase)
                pulse.is_recording = windows.current is not None and phase is Phase.ACTIVE
                if pulse.is_recording:
                    windows.label()
                if step >= timeline.full_at:
                    windows.handover.write_timeline(self.loop)
                if windows.handover.tasks.pending:
                    windows.handover.tasks.poll_seldom()
                self._turn_at = self._next_due(step)
                pulse.due = self._turn_at if windows.current is None else step + 1
                if self.loop.inbox:
                    pulse.wake()
                is_done = True
        finally:
            if is_done:
                self._failures = 0
            else:
                self._recover(step)
            timeline.begin(step)

    def _recover(self, step: int) -> None:
        self._failures += 1
        with lifetime.busy(), guard("ending the window", self.options["on_error"]):
            self._close(step, "profiling this step failed")
        if self._failures >= MAX_FAILURES:
            logger.warning("profiling failed %s in a row, and is disabled", words.count(self._failures, "time"))
            return
        self.pulse.due = self._turn_at = step + 1

    def _next_due(self, step: int) -> int:
        if self.state is LoopState.LEFT_OUT:
            return NEVER
        change = self.requests.next_change(step)
        poll_at = step + 16 if self.windows.handover.tasks.windows_left else NEVER
        return min(NEVER if change is None else change, self.loop.timeline.full_at, poll_at)

    def _open(self, step: int) -> None:
        if not self.windows.membership.update_rank(self.loop):
            self.state = LoopState.LEFT_OUT
            self.pulse.stop()
            return
        self.loop.run = self.windows.handover.run
        self.windows.open(step)

    def _continue(self, window: Window, step: int) -> None:
        is_over = self.windows.is_over(window, step)
        is_complete = self.requests.ends(step - 1) or (is_over and window.planned is not None)
        if is_over and not is_complete:
            self._close(step, f"{window.budget.limits.name} was reached")
        elif is_complete or self.requests.phase(step) is Phase.WAIT or self.requests.opens(step):
            self._close(step, None if is_complete else "the schedule ended the window without RECORD_AND_SAVE")
        else:
            window.step()

    def _close(self, reached: int, partial: str | None) -> None:
        self.pulse.is_recording = False
        self.windows.close(reached, partial)

    def _end_in_step(self) -> None:
        window, step = self.windows.current, self.pulse.step
        if window is None or window.is_elsewhere:
            return
        self.loop.timeline.is_kept = True
        with guard("ending the window", self.options["on_error"]):
            self._close(step, f"{window.budget.limits.name} was reached inside step {step}")
        self._turn_at = step + 1
        self.pulse.wake()

    def action(self, step: int) -> Any:
        return action_of(self.requests, step)

    def why_nothing(self) -> str:
        windows = self.windows
        if windows.current is not None:
            return f"nothing to show yet: the window of step {self.pulse.step} is still recording"
        if self.state is LoopState.LEFT_OUT:
            return "no window is recorded here: ranks= excludes this rank, or enabled=False is set"
        if windows.last is not None:
            why = "no files were requested"
            if windows.membership.writes:
                why = "its files could not be saved, see the log"
            return f"a window has been recorded, but {why}; key_averages() and events() show it"
        if windows.skipped:
            return f"no window has been recorded: {windows.skipped} had to be skipped, see the log"
        planned = self.requests.next_window(0)
        base = self.requests.base
        first = "; no window was planned" if isinstance(base, OnRequest) else ""
        if isinstance(base, WhenSettled):
            first, wait_s = " before the step time was stable", self.requests.shortest_wait_s
            if wait_s:
                first = (
                    f"; other threads of the program compute, so windows begin at least {wait_s:g} s after the start"
                )
            first += f'; schedule="{_FOR_SHORT_RUNS}" also records short runs'
        if planned is not None:
            first = f"; the first window is {words.steps(planned.active, planned.last)}"
        return f"no window has been recorded: {words.count(self.pulse.step, 'step')} ended{first}"


def _caller() -> str:
    outside = (frame for frame in outwards(sys._getframe(1)) if not frames.is_ours(frame.f_code.co_filename))
    frame = next(outside, None)
    if frame is None:
        return "an unknown line"
    file, line = frame.f_code.co_filename, frame.f_lineno
    is_cell = _CELL in file or file.startswith("<")
    return f"line {line} of a cell" if is_cell else f"{Path(file).name}:{line}"


def _phase_between() -> Phase:
    return Phase.WARMUP if is_spare_recording() else Phase.WAIT
