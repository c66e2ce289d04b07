"""The signal that a step has ended, in a training that does not say so: told by its optimizers and loaders.

What they tell is counted in `ways.Events`; what is looked at more closely, the current way of telling steps answers.
Here it is acted upon: a step, a profiler that begins or ends, and what came of it all.
"""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import labels, process, words
from perfhooks.core.guard import cause_of, guard, logger, speak_up
from perfhooks.core.schedule import Schedule
from perfhooks.record.launch import notes
from perfhooks.record.launch.command_line import Request
from perfhooks.record.launch.startup import Startup, file_of, is_forked_by_loader, is_of_somebody_else
from perfhooks.record.launch.step_detectors import (
    BACKWARDS,
    NOBODY,
    ActiveDetector,
    BesideFace,
    ByLoader,
    Events,
    InactiveDetector,
    PeriodDetector,
    Round,
    Undecided,
)
from perfhooks.run.timeline import OWN_WORK, clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perfhooks.record.launch.early import StartupRecorder
    from perfhooks.record.launch.profiling import Profilers
    from perfhooks.record.launch.step_detectors import Answer, Mode
    from perfhooks.record.launch.turns import Turns

_BACKWARD: Final = frozenset[object]()
"""Stands for the optimizer of a program that updates by hand."""
_KILLED: Final = "the program was ended by a signal, or by os._exit, before anything was saved"


class StepSignal:
    """Makes steps of updates and fetches, and profiles them.

    Args:
        asked: What was asked for on the command line.
        startup: Is told when the first step begins and ends.
    """

    def __init__(self, asked: Request, startup: Startup) -> None:
        self.asked = asked
        self.startup = startup
        self.heard = Events()
        self._is_compiling: Callable[[], bool] = self._first_update
        self._hear_no_others: Callable[[], object] = bool
        self._early: StartupRecorder | None = None
        self._leave: list[Callable[[], object]] = []
        """What leaves torch as it was."""
        process.at_end(process.End.STARTUP, startup.wait)
        process.at_end(process.End.REASON, self.finish)
        process.in_child(process.Child.STEPS, self._split)
        self.forget()

    def _split(self) -> None:
        """This process is a forked child: begin anew, or leave torch alone if it is the worker of a loader."""
        self.forget()
        if is_forked_by_loader():
            while self._leave:
                self._leave.pop()()

    def forget(self) -> None:
        """Begin anew: this process is a forked child, and what its parent heard is not its own."""
        self.heard.forget()
        self._hear_no_others()
        self._hear_no_others = bool
        if self._early is not None:
            self._early.abandon()
        self._early = None
        self._patience: threading.Timer | None = None
        self._calls = 0
        self._making, self._keeping = threading.Lock(), threading.RLock()
        self._is_ending = False
        self._is_elsewhere: bool | None = None
        """Whether this process works for another one; None until it calls torch."""
        self._has_torch = False
        """Whether it was imported, and by a program of its own."""
        self._stand_ins: Any = None
        """The module `perfhooks.record.launch.calls`, once torch is there."""
        self.profiler: Any = NOBODY
        self._profilers: Profilers | Turns | None = None
        """Those of this program; none as long as nothing was profiled."""
        self._starting: Iterable[Any] = ()
        """Whose first step the program's start ends with."""
        self._faces: list[tuple[str, Any]] = []
        """Profilers of a framework's own face, each with its stage."""
        self._trainings = 0

    @property
    def mode(self) -> Mode | None:
        """What ends a step."""
        return self.heard.way.mode

    # -- what is heard -----------------------------------------------------------------------------------------------

    def hook(self) -> Callable[[Any, Any, Any], None]:
        """What an optimizer calls after each of its steps."""

        def told(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._is_compiling():
                self._hear_outside(optimizer)
            else:
                self._hear(optimizer)

        return told

    def _first_update(self) -> bool:
        """Find torch's own question, which cannot be imported while torch is."""
        from torch.compiler import disable, is_compiling

        self._is_compiling = is_compiling
        # inside a graph our bookkeeping would be traced, and each new count compile the step again
        self._hear_outside = disable(self._hear)
        return is_compiling()

    def _hear(self, optimizer: object) -> None:
        heard = self.heard
        heard.updates += 1
        heard.armed = heard.way.arms
        if heard.updates >= heard.due_update:
            self._look_at_update(optimizer)

    def _look_at_update(self, optimizer: object) -> None:
        if self._works_for_other():
            return
        with self._listening():
            heard = self.heard
            if heard.thread is None:
                heard.thread = threading.get_ident()
            if heard.is_updated_by_hand and optimizer is not _BACKWARD:
                # so many passes were accumulated: what was told were no steps
                heard.is_updated_by_hand, heard.rounds = False, Round()
                self._follow(ByLoader(heard) if heard.fetches else PeriodDetector(heard))
                return
            heard.has_round_ended = heard.rounds.ends(optimizer)
            self._follow(heard.way.at_update())

    def look_at_fetch(self) -> None:
        """A loader is about to be asked for a batch, and that may end a step or begin the first one."""
        if self._works_for_other():
            return
        with self._listening():
            heard, here = self.heard, threading.get_ident()
            if here == (heard.thread or threading.main_thread().ident):
                if self.early.is_listening:
                    self.early.at_fetch()
                answer = heard.way.at_fetch() if heard.armed or heard.fetches >= heard.way.due else None
                heard.armed = False
                self._follow(answer)
            else:  # somebody fetches ahead, in a thread of his own, and the training does not wait
                heard.waiting = NOBODY

    def hear_call(self) -> bool:
        """A module is called that no other module has called; whether that need not be told again."""
        self._calls += 1
        if self._works_for_other():
            return True
        with self._listening():
            self.early.at_first_call()
            self._attend()
        return not (self.early.is_new and self.early.is_listening)

    def hear_backward(self, began: int = 0) -> None:
        """A backward pass has ended.

        Args:
            began: When it began; 0 where a device still works on it.
        """
        heard = self.heard
        if self._works_for_other():
            return
        heard.backwards += 1
        if began:
            heard.waiting.passed_back((began, clock()))
        if heard.updates and not heard.is_updated_by_hand:
            if not began and self._stand_ins is not None:
                self._stand_ins.hear_no_backward()
            return
        with self._listening():
            self.early.at_backward()
            is_due = heard.backwards % BACKWARDS == 0 and not isinstance(heard.way, InactiveDetector)
            if is_due and not heard.is_updated_by_hand and not has_made_optimizer():
                heard.is_updated_by_hand, heard.rounds.count = True, heard.backwards - 1
        if heard.is_updated_by_hand:
            self._hear(_BACKWARD)

    def hear_save(self, began: int, ended: int, line: str) -> None:
        """``torch.save`` has returned: the step that goes on writes a checkpoint."""
        if self._works_for_other():
            return
        with self._listening():
            trains = [profiler.pulse for stage, profiler in self._faces if stage == "train" and profiler.is_running]
            for pulse in (self.heard.waiting, *trains):
                pulse.set_aside(began, ended, labels.CHECKPOINT, line)

    def _works_for_other(self) -> bool:
        """Return whether this process works for another one, such as a loader: then nothing is heard any more."""
        if self._is_elsewhere is None:
            self._is_elsewhere = is_of_somebody_else()
            if self._is_elsewhere:
                self.heard.armed, self.heard.way = False, InactiveDetector(self.heard)
                self.heard.due, self.heard.due_update = self.heard.way.due, self.heard.way.due_update
        return self._is_elsewhere

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """What fails here fails once: a loop asks for thousands of batches."""
        failed = True
        with guard("listening to the training"):
            yield
            failed = False
        if failed:
            notes.leave(self.asked.notes, why="perfhooks failed, as its log says")
            self.stand_down()

    # -- what becomes of it ------------------------------------------------------------------------------------------

    def _follow(self, answer: Answer) -> None:
        if isinstance(answer, ActiveDetector) and answer.goes_on:
            self.heard.way, answer = answer, "step"
        if answer == "step":
            if self._faces and self.profiler is not NOBODY and not self._are_faces_over():
                self.give_way({})
            self.profiler.step()
            if not self.startup.is_over:
                self._end_startup()
            if self.early.is_listening and self.mode is not None:
                self.early.at_step(self.mode)
                self._end_before_window(self.profiler.step_num)
        elif answer is not None:
            self._begin(answer)
        self._attend()

    def _end_before_window(self, step: int) -> None:
        """End the first recording a step before a window without a warm-up: both in one update may crash torch."""
        schedule = None if self.asked.schedule is None else Schedule.of(self.asked.schedule)
        window = None if schedule is None else schedule.next_window(step + 1)
        if window is not None and window.first == window.active == step + 1:
            self.early.end()

    def _attend(self) -> None:
        """Have each fetch looked at as long as anybody wants to hear of it, and each update as long as the way does."""
        heard = self.heard
        heard.due, heard.due_update = 0 if self.early.is_listening else heard.way.due, heard.way.due_update

    def _begin(self, way: ActiveDetector) -> None:
        """Profile from here on, steps being told in another way; a count that began otherwise is left."""
        began = clock()
        speak_up(apart=True)
        self.startup.first_step()
        self._profilers = self._profilers or self._make_profilers()
        if isinstance(self.heard.way, (Undecided, BesideFace)):
            self._profilers.asked = self.next_request()
        self.heard.way, self.heard.armed = way, False
        self.early.at_way()
        self.profiler = self.heard.waiting = NOBODY
        reason = self._profilers.begin(way, self.heard, [face for _, face in self._faces])
        if reason is not None:
            self.stand_down(reason)
            return
        self.profiler = self._profilers.current
        self.heard.waiting = self.profiler.pulse
        self._starting = (self.profiler,)
        process.at_end(process.End.COUNTS, self._say_counts)
        OWN_WORK.append((threading.get_ident(), began, clock()))  # within an update, of which it is no part

    def _make_profilers(self) -> Profilers | Turns:
        if self.asked.turns:
            from perfhooks.record.launch.turns import Turns

            return Turns(self.asked)
        from perfhooks.record.launch.profiling import Profilers

        return Profilers(self.asked)

    def _make_room(self) -> None:
        """The script begins to profile with torch itself: beside a window of ours it would record nothing."""
        self.stand_down("the script starts a profiler of its own")

    def stand_down(self, reason: str | None = None) -> None:
        """Listen no more.

        Args:
            reason: What to say of it; None says nothing.
        """
        had_begun = self.profiler is not NOBODY
        self.early.drop()
        self._hear_no_others()
        self._hear_no_others = bool
        self._leave_steps(InactiveDetector(self.heard), reason)
        if reason is not None:
            if not had_begun:
                notes.leave(self.asked.notes, why=reason)
            if not self._faces:  # they say themselves what they do not record
                logger.warning("perfhooks run records nothing %s: %s", "more" if had_begun else "here", reason)

    def next_request(self) -> Request:
        """What is asked for of one more training of this program."""
        self._trainings += 1
        return self.asked.named(self._trainings)

    def give_way(self, profilers: Mapping[str, Any]) -> None:
        """A framework's own face takes over, and what is recorded early is kept for the case that it has no window.

        Args:
            profilers: Those of the face, by stage.
        """
        self._faces += profilers.items()
        self._starting = self.early.besides = [profiler for _, profiler in self._faces]
        if type(self.heard.way) is not InactiveDetector:
            self._leave_steps(BesideFace(self.heard, self._are_faces_over), "a framework's own face takes over")

    def _are_faces_over(self) -> bool:
        return not any(profiler.is_running for _, profiler in self._faces)

    def _leave_steps(self, way: InactiveDetector, cause: str | None) -> None:
        """Somebody else tells steps, or nobody."""
        self.heard.way, self.heard.armed = way, False
        self.profiler = self.heard.waiting = NOBODY
        self._attend()
        if self._profilers is not None:
            self._profilers.end(cause)

    def _end_startup(self) -> None:
        self.startup.end(functools.partial(file_of, self._starting))

    # -- what is recorded before anything else -----------------------------------------------------------------------

    @property
    def early(self) -> StartupRecorder:
        """The first steps of this process."""
        with self._making:
            return self._early or self._make_early()

    def _make_early(self) -> StartupRecorder:
        if self._early is None:
            # both take torch, which is being imported when this module is
            from perfhooks.record.launch.early import StartupRecorder
            from perfhooks.record.loop.ending import lifetime
            from perfhooks.record.loop.window import when_others_begin

            self._early = StartupRecorder(self.heard, self.asked.options, self._recorded_early)
            if self.asked.turns:
                self._early.drop()
            else:
                self._hear_no_others = when_others_begin(self._make_room)
                lifetime.at_signal(self._keep_at_once)
        return self._early

    def listen(self) -> None:
        """Torch has been imported: hear of what the program calls."""
        if is_of_somebody_else():
            return
        self._has_torch = True
        notes.leave(self.asked.notes, guess=_KILLED)
        from perfhooks.record.launch import calls  # as above

        # now, because another thread may keep the interpreter busy later: each file that is read waits for it again
        for module in ("early", "profiling") if not self.asked.turns else ():
            importlib.import_module(f"perfhooks.record.launch.{module}")
        self._stand_ins = calls
        calls.listen(self.hear_call, self.hear_backward, self.hear_save)
        self._leave.append(calls.leave)
        if not self.asked.turns and sys.platform == "linux":
            self.startup.when_computing = self._look_for_operators

    def keep(self, leave: Callable[[], object]) -> None:
        """Keep what leaves a part of torch as it was, for a worker of a loader that is forked."""
        self._leave.append(leave)

    def make_way_for_dynamo(self) -> None:
        """torch.compile is about to be imported."""
        if self._stand_ins is not None:
            self._stand_ins.pause()

    def keep_from_compiling(self) -> None:
        """torch.compile has been imported."""
        if self._stand_ins is not None:
            self._stand_ins.keep_from_compiling()
            self._stand_ins.go_on()

    def _look_for_operators(self) -> None:
        """The script computes, and calls no module: record whatever operators it may call."""
        if not self._is_ending and type(self.heard.way) is Undecided and self.early.is_new:
            self.early.begin_with_operators()

    def _recorded_early(self) -> None:
        """Its files are made when the program ends, or, if it makes no steps, while it goes on."""
        self._attend()
        for profiler in (self._profilers and self._profilers.current, *(face for _, face in self._faces)):
            if profiler is not None:
                profiler.pulse.wake()  # its steps are no longer recorded
        if self._patience is not None:
            self._patience.cancel()
        if self.early.has_steps:  # else the program may import, or read its data, for as long as it takes
            self._patience = threading.Timer(self.asked.patience, self._keep_meanwhile)
            self._patience.daemon, self._patience.name = True, f"{process.THREADS}-patience"
            self._patience.start()

    def _keep_meanwhile(self) -> None:
        if type(self.heard.way) is Undecided:
            self._keep_early()

    def _keep_early(self, why: str = "") -> bool:
        """Make files of what was recorded early, if there is nothing else; whether they are made."""
        with guard("keeping the first steps"), self._keeping:
            if self._early is not None:
                self._profilers = self._profilers or self._make_profilers()
                profiler = self._profilers.keep(self._early, why, self._faces)
                if profiler is not None:
                    self._starting = (profiler,)
                    self._end_startup()
                    return True
        return False

    def _keep_at_once(self, why: str) -> None:
        """The process is about to end without its end."""
        if self._keep_early(why):
            self.startup.wait()

    def finish(self) -> None:
        """The process ends: whoever waits for a page gets one, or is told why there is none."""
        if type(self.heard.way) is InactiveDetector or is_of_somebody_else():
            return
        error = getattr(sys, "last_value", None)
        cause = "" if error is None else cause_of(error)
        with self._keeping:
            self._is_ending = True
        if self._profilers is not None:
            self._profilers.pause(cause or "the interpreter exited")
        for _, profiler in self._faces:
            profiler.pause(cause or "the interpreter exited")
        if not self._keep_early(cause):
            reason = self._why_nothing()
            if self._profilers is not None:
                reason = self._profilers.end(cause) or reason
            if self._has_torch:
                said = {"why": f"the program ended with {cause}"} if cause else {"guess": reason}
                notes.leave(self.asked.notes, **said)

    def _why_nothing(self) -> str:
        """What was heard, and was not recorded."""
        heard = self.heard
        counts = (
            (self._calls, "call of a module", "calls of modules"),
            (heard.backwards, "backward pass", "backward passes"),
            (heard.fetches, "fetch", "fetches"),
            (heard.updates, "update", None),
        )
        parts = [words.count(*each) for each in counts if each[0]]
        if not parts:
            return "the main thread called no module, passed no gradients back, fetched no batch and made no update"
        why = "no device was used" if self.early.is_new else "the program ended before"
        return f"{why}, and there was no more than {', '.join(parts)}"

    def _say_counts(self) -> None:
        if self._profilers is not None:
            self._profilers.say_counts(self.heard)


def has_made_optimizer() -> bool:
    """Whether the program has made an optimizer of torch, so that it accumulates gradients until that steps.

    `torch.optim.Optimizer` wraps the ``step`` of each class when the first optimizer of the class is made.
    """
    optim = sys.modules.get("torch.optim")
    classes = [] if optim is None else [optim.Optimizer]
    while classes:
        each = classes.pop()
        if hasattr(each.step, "hooked"):
            return True
        classes += each.__subclasses__()
    return False


_signal: StepSignal | None = None
"""The one of this process: optimizers and loaders know no other."""


def current(began: int = 0) -> StepSignal | None:
    """The signal of this process; None where ``perfhooks run`` is not at work.

    Args:
        began: When this Python began to run our code, in nanoseconds of the monotonic clock.
    """
    global _signal  # noqa: PLW0603 -- one for the process
    if _signal is None:
        asked = Request.current()
        if asked is None:
            return None
        _signal = StepSignal(asked, Startup(began))
    return _signal
