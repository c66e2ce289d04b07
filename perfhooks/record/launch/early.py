"""The first steps of a program, recorded before anybody knows what it is, and kept in memory.

Most programs come to a window of the schedule, and these steps are dropped. One that ends before, as a forward pass,
ten steps or an evaluation without a loader do, has them on its page::

    torch is imported   the first call, fetch, backward or update           6 steps, or budget     the end
    ────────────────────┬──────────────────────────────────────────────────┬──────────── ... ──────┬
        nothing heard   │ step 0, which warms up │ step 1 │ step 2 │ ...    │ kept, not exported    │ written, if there
                        │                                                  │                       │ is no other window
                        └ 0.3 s of nothing but a script that computes ──► operators, without steps

A step begins with a fetch, or with the call of a module that was called before, once what ends a step has come since:
an update, else a backward pass, else a call. If a stronger end turns up later, for example the first update after
several backward passes, the recorder goes on, and the steps are counted anew from there.

One thread is recorded, and ends the recording: torch's recorder must not end while that thread runs an operator. Nor
does it begin again while a range is open that it has recorded: the end of that range would write to freed memory.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import frames
from perfhooks.core.guard import guard
from perfhooks.core.schedule import FromStartToStop
from perfhooks.core.schedule.settled import ENOUGH_OPERATORS, FEWEST_STEPS
from perfhooks.record.launch import calls
from perfhooks.record.loop import labelling
from perfhooks.record.loop.ending import lifetime, open_ranges
from perfhooks.record.loop.ending.in_step import in_main_thread
from perfhooks.record.loop.limits.budget import DEFAULT_MB, FIRST_STEPS_S, Limits
from perfhooks.record.loop.window import Window, recorder_busy
from perfhooks.record.watch.sampling import outwards

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from perfhooks.record.launch.step_detectors import Events, Mode
    from perfhooks.record.loop.ending.lifetime import Closable

STEPS: Final = 6
"""Maximum number of steps. The first of them warms up."""
LONGEST_S: Final = 3.0
"""Seconds after which the recording ends although its budget is not spent, for example while the program waits."""
_ELSEWHERE_S: Final = 1.0
"""How long another thread waits until the recorded one has ended the recording, in seconds."""

_CALL, _BACKWARD, _UPDATE = range(3)
"""What ends a step, the stronger the later."""
_RECORDED: Final = ("record_shapes", "with_flops")
"""Options for recording that apply here as well. Stacks and memory would use up the budget."""


class StartupRecorder:
    """Records the first steps of this process, once.

    Args:
        heard: What was heard of the program.
        options: Those of the recorder.
        when_over: Is called when recording has ended.
    """

    def __init__(self, heard: Events, options: Mapping[str, Any], when_over: Callable[[], object]) -> None:
        self._heard = heard
        self._recording = {name: options[name] for name in _RECORDED if name in options}
        of_size = Limits.of_size(options.get("max_trace_mb", DEFAULT_MB))
        self._limits = of_size._replace(training_s=FIRST_STEPS_S, name=f"the budget of {FIRST_STEPS_S:g} s")
        self._when_over = when_over
        self._lock = threading.RLock()
        self._until = 0.0
        """When the recording ends at the latest, by the monotonic clock."""
        self._window: Window | None = None
        self.besides: Collection[Closable] = ()
        """Profilers of a framework's face, beside which it records: any other means that the script profiles itself."""
        self.is_new = True
        """Whether it has not begun yet."""
        self.is_recording = False
        self._is_closed = False
        """Whether nothing is to be recorded here any more."""
        self._unrecorded = 0
        """How many steps have ended before it could begin."""
        self._way: Mode | None = None
        """How steps are told, if not by what ends them here."""
        self.has_steps = True
        """Whether anything was heard of which steps are made, and not operators alone."""
        self._forget()

    def _forget(self) -> None:
        self._begin = self._step = self._since_way = 0
        self._is_warm = False
        """Whether the recorder ran before the first step."""
        self._end = -1
        """The strongest end of a step so far."""
        self._prepared = -1
        """The step in which a profiler of ours began, which takes its time."""
        self._has_fetched = False
        self._clear()

    def _clear(self) -> None:
        """A step begins."""
        self._called: set[int] = set()
        self._has_passed_back = False
        self._updates = self._heard.updates

    # -- what is heard, in the main thread ---------------------------------------------------------------------------

    def at_fetch(self) -> None:
        """A batch is asked for."""
        if self._is_heard():
            self._has_fetched = True
            self._turn(self._ended(bool(self._called)))

    def at_first_call(self) -> None:
        """A module is called; if recording begins here, that is told once more."""
        if not _is_in_loader():
            self._is_heard(_CALL)

    def at_call(self, module: object) -> None:
        """A module is called, by no other one."""
        if not _is_in_loader() and self._is_heard(_CALL):
            self._turn(self._ended(id(module) in self._called))
            self._called.add(id(module))

    def at_backward(self) -> None:
        """A backward pass has ended."""
        if self._is_heard():
            self._has_passed_back = True

    def at_way(self) -> None:
        """Steps are told in another way from here on: those of ours that came before say nothing about it."""
        self._since_way, self._prepared = 0, self._step

    def at_step(self, way: Mode) -> None:
        """A step has ended, as far as the rest of the program is concerned.

        Args:
            way: How that was told.
        """
        if self.is_new:
            self._unrecorded += 1
            self._is_closed = self._unrecorded >= STEPS
        elif self.is_recording:
            if self._way is not None:
                self._next()
            elif self._since_way > 1:  # there was more in it than one of ours
                self._way = way
                self._count_anew(0)
            self._since_way = 0

    @property
    def is_listening(self) -> bool:
        """Whether it wants to hear more."""
        return not self._is_closed and (self.is_new or self.is_recording or self._is_weak)

    @property
    def _is_weak(self) -> bool:
        """Whether what was recorded is nothing but calls: of a program that may do more than that."""
        return not self.has_steps or not (self._has_fetched or self._has_passed_back or self._end > _CALL or self._way)

    def _is_heard(self, what: int = _UPDATE) -> bool:
        """Whether steps are told by what is heard here; the first of it begins the recording."""
        if self.is_listening:
            if self.is_new:
                self.begin()
            elif not self.has_steps and self.is_recording:
                self.has_steps = True
                calls.hear_no_calls()
                if self._window is not None:
                    self._window.record_steps = True  # with a mark for each from here on
                self._count_anew(0)
            elif not self.has_steps or (not self.is_recording and what > _CALL):
                self._begin_anew()
        return self.is_recording and self._way is None

    def _ended(self, is_called: bool) -> int:
        """The strongest end of a step that has come since this one began; -1 for none."""
        if self._heard.updates > self._updates:
            return _UPDATE
        return _BACKWARD if self._has_passed_back else _CALL if is_called else -1

    def _turn(self, end: int) -> None:
        """A step may begin."""
        if end < max(self._end, _CALL):
            return
        is_stronger, self._end = end > self._end, end
        if is_stronger and self._step > self._begin:
            self._count_anew(1)  # one such step has just ended
        else:
            self._since_way += 1
            self._next()

    # -- recording ---------------------------------------------------------------------------------------------------

    def begin(self, *, has_steps: bool = True) -> None:
        """Record the calling thread from here on.

        Args:
            has_steps: Whether steps are told.
        """
        with lifetime.busy(), guard("recording the first steps"), self._lock:
            if not self.is_new or self._is_closed or calls.would_wake_a_device():
                return
            self.is_new = False
            self.has_steps = has_steps
            if recorder_busy() or lifetime.is_anybody_known(self.besides):
                self._is_closed = True
            else:
                self._open()

    def begin_with_operators(self) -> None:
        """Have the main thread record its operators, without steps; called in another thread, again and again."""
        in_main_thread(lambda: self.begin(has_steps=False))

    def _open(self) -> None:
        self._forget()
        window = self._window = Window(
            first=0,
            phases=FromStartToStop(0),
            on_trace_ready=lambda _: None,
            recording=self._recording,
            marks_steps=self.has_steps,
            limits=self._limits,
            end_in_step=self._end_in_step,
            is_spent=lambda: time.monotonic() > self._until,
        )
        window.yield_recorder = self.end
        lifetime.watch(window)
        window.start()
        self._until = time.monotonic() + LONGEST_S
        self.is_recording = True
        if self.has_steps:
            calls.hear_no_calls()  # labels tell of them
            self._label()

    def _label(self) -> None:
        labelling.put(self.stage, self.at_call)

    def _next(self, step: int | None = None) -> None:
        """A step has ended, and the next one begins.

        Args:
            step: The number of the next one.
        """
        with lifetime.busy(), guard("recording the first steps"), self._lock:
            window = self._window
            if window is None or not self.is_recording or window.is_elsewhere:
                return
            self._step = self._step + 1 if step is None else step
            self._clear()
            if self._step >= self._begin + STEPS or self._has_enough(window) or window.budget.is_spent():
                self.end()
            else:
                window.step()
                self._label()

    def _has_enough(self, window: Window) -> bool:
        is_warm = self._step > self._begin + FEWEST_STEPS
        return is_warm and window.budget.operators >= ENOUGH_OPERATORS

    def _count_anew(self, step: int) -> None:
        """What was recorded were no steps.

        Args:
            step: The number of the one that begins.
        """
        window = self._window
        if window is not None:
            window.marks_before = window.step_num + 1 - step
            self._begin, self._since_way, self._is_warm = step, 0, True
            self._prepared = -1
            self._next(step)

    def _begin_anew(self) -> None:
        """Record a second time: what was recorded is less than the program does."""
        with lifetime.busy(), guard("recording the first steps"), self._lock:
            if self._window is not None:
                self._forget_window(self._window)
            self.has_steps = True
            if recorder_busy() or open_ranges.is_any_open():
                self._is_closed = True
            else:
                self._open()

    def _end_in_step(self) -> None:
        """The budget is spent; called in the main thread."""
        if self._window is not None and self.is_recording and not self._window.is_elsewhere:
            is_whole = self._step > self._begin or not self.has_steps
            self.end("" if is_whole else f"{self._limits.name} was reached inside step {self._step}")

    def end(self, why: str = "") -> None:
        """Record no more, and keep what there is.

        Args:
            why: Why its last step is not whole.
        """
        with self._lock:
            window = self._window
            if not self.is_recording or window is None:
                return
            if not window.is_elsewhere:
                self._stop(window, why or None)
                self._when_over()
                return
        until = time.monotonic() + _ELSEWHERE_S
        while self.is_recording and time.monotonic() < until:
            in_main_thread(lambda: None if window.is_elsewhere else self.end(why))
            time.sleep(_ELSEWHERE_S / 100)

    def _stop(self, window: Window, why: str | None) -> None:
        self.is_recording = False
        labelling.take_back()
        window.loader = labelling.loader()
        mark = window.step_num
        window.close(self._step, why)
        window.step_num = mark
        window.budget.learn(window.stop_s)

    def abandon(self) -> None:
        """This process is a forked child: what is recorded is its parent's."""
        self._is_closed = True
        if self._window is not None and self.is_recording:
            self.is_recording = False
            labelling.take_back()
            self._window.leave_to_parent()

    # -- what came of it ---------------------------------------------------------------------------------------------

    def drop(self) -> None:
        """Nobody is going to want it."""
        window = self.take()
        if window is not None:
            self._forget_window(window)

    def _forget_window(self, window: Window) -> None:
        window.release()
        lifetime.unwatch(window)

    def take(self, why: str = "") -> Window | None:
        """What was recorded, if nothing else was since; it is nobody else's from now on.

        Args:
            why: Why its last step is not whole.
        """
        with lifetime.busy(), self._lock:
            self._is_closed = True
            self.end(why)
            window, self._window = self._window, None
            if window is None or not window.ready:
                return None
            if not self.has_steps and window.is_empty and _is_launcher():
                self._forget_window(window)
                return None
            lifetime.unwatch(window)
            if self._heard.updates and self.told_by in ("call", "backward"):
                self._keep_as_part(window)
            # the first one warms up, and in another one a profiler may have begun; else they are all there is
            begin = self._begin - self._is_warm
            usual = (max(begin, self._prepared) + 1, begin + 1)
            window.first = next((first for first in usual if first < self._step), window.first)
            return window

    def _keep_as_part(self, window: Window) -> None:
        """The recording ended before the first update: its calls and backward passes were a part of one step."""
        window.marks_before = window.step_num + 1
        self._step = window.reached = self._begin
        window.partial = "the recording of the first steps ended inside the first step"

    @property
    def told_by(self) -> Mode:
        """What ended a step."""
        if self._step == self._begin:
            return "process"
        if self._way is not None:
            return self._way
        if self._has_fetched:
            return "loader" if self._end > _CALL else "batches"
        ends: tuple[Mode, ...] = ("call", "backward", "optimizer")
        return ends[self._end]

    @property
    def stage(self) -> str:
        """What its loop is called."""
        return "train" if self._end > _CALL or self._has_passed_back or self._way else "predict"


def _is_launcher() -> bool:
    """Whether the processes that this one started and waited for computed more than it did, as those of torchrun."""
    times = os.times()
    return times.children_user + times.children_system > times.user + times.system


def _is_in_loader() -> bool:
    """Whether a loader fetches: what its dataset calls is no step."""
    return any(frames.LOADER in frame.f_code.co_filename for frame in outwards(sys._getframe(1)))
