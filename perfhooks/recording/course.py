"""The course of a loop: what is due at which step, from its start to its stop."""

from __future__ import annotations

import logging
import sys
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

from perfhooks.guard import cause_of, guard, is_of_handler, logger
from perfhooks.options import check_step
from perfhooks.recording import labelling, request_signal
from perfhooks.recording.ending import lifetime
from perfhooks.recording.handover import place_of
from perfhooks.recording.window import LostStacksError, also_counting
from perfhooks.recording.windows import STOPPED, Wanted, Windows
from perfhooks.schedule import FromStartToStop, Phase
from perfhooks.watching import watcher

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from perfhooks.recording.window import Window

NEVER: Final = sys.maxsize
_POLL_STEPS: Final = 16
"""While windows wait for their files, the worker is heard every so many steps."""
_MOST_FAILURES: Final = 3
"""So many in a row are no accident: profiling ends, for a line in every step would hide the training's own."""


def _ignore(_: int) -> None:
    """Takes the clock where nobody keeps the time."""


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


class Course(Windows):
    """What is due at which step, from the start of a loop to its stop.

    Args:
        wanted: What the user gave.

    Raises:
        OptionError: torch refuses an option, or a handler is none.
    """

    def __init__(self, wanted: Wanted) -> None:
        super().__init__(wanted)
        self._labels = self._options["labels"] and self._writes
        self._state = State.NEW
        self._opened = self._skipped = 0
        """How many windows were begun, and how many that were due were not."""
        self._turn_at = 0
        """The next step that changes more than a mark in an open window."""
        self._failures = 0
        """How many turns have failed one after the other."""
        self._end_step: Callable[[int], None] = _ignore
        self.arrive: Callable[[int], None] = _ignore
        self.ask: Callable[[int], None] = _ignore

    def start(
        self, step: int | None = None, *, out: str | os.PathLike[str] | None = None, run: str | None = None
    ) -> None:
        """Begin; nothing happens if it has begun already.

        Args:
            step: Number of the step that begins now, where training resumes; None goes on counting, from 0 at first.
                Inside a window's warm-up or active steps it waits for the next window.
            out: The folder that holds runs, if the option was not given.
            run: Name of the run, if the option was not given.

        Raises:
            OptionError: ``step`` is no integer, or negative.
        """
        if self._state is State.RUNNING:
            return
        if step is not None:
            check_step(step)
        self._state = State.RUNNING
        self._next = NEVER
        if step is not None:
            self._step = step
        self._began = self._step
        if self._schedule is None:
            self._phases = FromStartToStop(self._step)
        with lifetime.busy(), guard("starting to profile", self._on_error):
            if not self._membership.join(out, run):
                self._state = State.LEFT_OUT
                return
            self._end_step, self.arrive = also_counting(self._timeline.end_step), self._timeline.data_arrived
            self.ask = self._timeline.data_asked
            lifetime.opened(self)
            self._let_watch()
            self._timeline.begin(self._step)
            self._turn(self._step)

    def _let_watch(self) -> None:
        """The loop begins, or goes on: have it watched if there is a folder to write into."""
        self._watched.begin(self._run)
        if self._run is not None and self._options["watch"]:
            if self._options["signal"] is not None:
                request_signal.listen(self._options["signal"], self._watched)
            watcher.attach(self._watched)

    def stop(self, cause: str | None = None) -> None:
        """End; a window that is being recorded is kept and marked partial. Nothing happens if it has ended already.

        Args:
            cause: Why, if something interrupted the training.
        """
        closes = self._window is not None
        self.pause(cause)
        if self._state is State.PAUSED and not closes and self._schedule is not None and not self._opened:
            logger.warning(self._why_nothing())
        if self._state is State.RUNNING:
            return  # another thread has to end it
        if self._state is not State.LEFT_OUT:
            self._state = State.ENDED
        with lifetime.busy(), guard("ending the run", self._on_error):
            self._requests.end(f"the loop ended at step {self._step}")
            watcher.detach(self._watched)
            self._handover.end_run()
            self._handover.tasks.rest()
        if not self._handover.tasks.pending:
            lifetime.forget(self)

    def pause(self, cause: str | None = None) -> None:
        """Leave the loop for a while; as ``stop()``, but silent about windows that are still to come.

        Args:
            cause: Why; kept with a window that it cuts short.
        """
        if self._state is not State.RUNNING:
            return
        if self._window is not None and self._window.is_elsewhere:
            logger.warning("the window cannot end here: %s", self._window.where)
            return
        self._state = State.PAUSED
        self._watched.is_running = False
        self._next = NEVER
        self._end_step = self.arrive = self.ask = _ignore
        with lifetime.busy(), guard("ending the profile", self._on_error):
            if self._window is not None:
                whole = self._schedule is None and cause is None
                self._close(self._step, None if whole else cause or STOPPED)
            self._write_timeline()
        self._handover.tasks.poll()

    def abandon(self) -> None:
        """Do nothing from now on, and touch nothing that was recorded: this process is a forked child."""
        labelling.take_back()
        self._next, self._window, self._last, self.is_recording = NEVER, None, None, False
        self._state = State.ENDED
        self._membership.abandon()
        self._handover.abandon()

    def leave(self) -> None:
        """The process ends: stop, and wait for the files for at most ``exit_timeout`` seconds."""
        if self._state is State.RUNNING:
            self.stop(lifetime.why_it_ends())
        self._handover.tasks.leave(self._options["exit_timeout"])

    def ensure_started(self) -> None:
        """Start if nobody ever has, as ``steps()`` does; nothing happens after a ``stop()``."""
        if self._state is State.NEW:
            self.start()

    def _advance(self, step: int) -> None:
        """Do what is due at the beginning of ``step``."""
        if self._window is not None and self._window.is_elsewhere:
            self._next = NEVER
            logger.warning("the window of step %d cannot go on: %s", step, self._window.where)
        elif self._window is not None and step < self._turn_at:
            self._mark(self._window, step)
        elif self._state is State.NEW:
            self._start_late(step)
        elif self._state is not State.RUNNING:
            self._next = NEVER
        else:
            self._turn(step)

    def _mark(self, window: Window, step: int) -> None:
        """One more step in an open window: done at every recorded step, so nothing else is."""
        try:
            window.step()
            if self.is_recording and self._labels:
                labelling.put(self._options["stage"])
        except Exception as error:
            if self._on_error == "raise" or is_of_handler(error):
                raise
            logger.warning("profiling step %d failed (%s); the window ends", step, cause_of(error))
            self._recover(step)
        self._timeline.begin(step)

    def _turn(self, step: int) -> None:
        """Begin or end a window or a phase, or hear what became of windows."""
        self._next = NEVER
        done = False
        try:
            with lifetime.busy(), guard(f"profiling step {step}", self._on_error):
                if self._window is not None:
                    self._go_on(self._window, step)
                if self._watched.inbox or self._phases is self._requests:
                    self._phases = self._requests.over(self._phases, step)
                if self._window is None and self._phases.opens(step):
                    self._open(step)
                phase = self._phases.phase(step)
                self._timeline.enter(step, phase)
                self.is_recording = self._window is not None and phase is Phase.ACTIVE
                if self.is_recording and self._labels:
                    labelling.put(self._options["stage"])
                if step >= self._timeline.full_at:
                    self._write_timeline()
                if self._handover.tasks.pending:
                    self._handover.tasks.poll()
                self._turn_at = self._due(step)
                self._next = step + 1 if self._window is not None else self._turn_at
                if self._watched.inbox:  # it came while the next turn was being decided
                    self._next = 0
                done = True
        finally:
            if done:
                self._failures = 0
            else:
                self._recover(step)
            self._timeline.begin(step)

    def _recover(self, step: int) -> None:
        """Something failed: keep what was recorded, and go on with the next window."""
        self._failures += 1
        with lifetime.busy(), guard("ending the window", self._on_error):
            self._close(step, "profiling it failed")
        if self._failures >= _MOST_FAILURES:
            logger.warning("profiling failed %d times in a row, and ends", self._failures)
            return
        self._next = self._turn_at = step + 1

    def _start_late(self, step: int) -> None:
        """Nobody called ``start()``; torch records there as well, from the second step on."""
        with guard("starting to profile", self._on_error):
            if self._schedule is not None and self._phases.opens(0):
                logger.warning(
                    "the profiler was not started before its first step, so the window that begins there is lost: "
                    "use it in a `with`, or call start()"
                )
        self.start(step)

    def _due(self, step: int) -> int:
        """The next step that changes something, in a window or outside."""
        if self._state is State.LEFT_OUT:
            return NEVER
        change = self._phases.next_change(step)
        heard = step + _POLL_STEPS if self._handover.tasks.windows_left else NEVER
        return min(NEVER if change is None else change, self._timeline.full_at, heard)

    def _open(self, step: int) -> None:
        if not self._membership.meet():
            self._state = State.LEFT_OUT
            self._end_step = self.arrive = self.ask = _ignore
            return
        self._watched.run = self._run
        request = self._requests.opening(step) if self._phases is self._requests else None
        why = self._why_not(step)
        if why is not None:
            self._skipped += 1
            logger.warning("%s", why)
            if request is not None:
                self._requests.refuse(request, why)
            return
        self._begin_window(self._armed_window(step) if request is None else self._window_for(request, step))
        self._opened += 1

    def _begin_window(self, window: Window) -> None:
        """Start the recorder last: what is done after that is part of the first step."""
        for key, value in self._metadata.items():
            window.preset_metadata_json(key, value)
        self._handover.warm_up()
        if self._run is not None:
            self._run.enter_window(place_of(window, self._run, self._options["stage"]).folder.name)
        lifetime.watch(self)
        try:
            window.start()
        except BaseException:
            self._leave_window()
            raise
        self._window = window

    def _leave_window(self) -> None:
        lifetime.unwatch(self)
        if self._run is not None:
            self._run.enter_window(None)

    def _go_on(self, window: Window, step: int) -> None:
        """One more step in an open window, or its end."""
        whole = self._phases.ends(step - 1)
        over = whole or self._phases.phase(step) is Phase.WAIT or self._phases.opens(step)
        if over:
            self._close(step, None if whole else "the schedule ended the window without RECORD_AND_SAVE")
        else:
            window.step()

    def _close(self, reached: int, partial: str | None) -> None:
        window, self._window, self.is_recording = self._window, None, False
        if window is None:
            return
        labelling.take_back()
        labelling.name_modules(window)
        warming_up = self._phases.phase(window.step_num) is Phase.WARMUP
        try:
            window.close(reached, partial)
        except LostStacksError:
            self._give_up_stacks()
            raise
        finally:
            self._leave_window()
        if partial is not None:
            what = (
                "nothing was recorded: the window ended during its warm-up,"
                if warming_up
                else "the window ended early,"
            )
            level = logging.INFO if partial == STOPPED and not warming_up else logging.WARNING
            logger.log(level, "%s at step %d (%s)", what, reached, partial)
