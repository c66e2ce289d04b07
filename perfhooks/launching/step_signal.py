"""The signal that a step has ended, in a training that does not say so: told by its optimizers and loaders.

What they tell is counted in `ways.Heard`; what is looked at more closely, the current way of telling steps answers.
Here it is acted upon: a step, a profiler that begins or ends, and what came of it all.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks import process
from perfhooks.guard import guard, logger, speak_up
from perfhooks.launching import farewell
from perfhooks.launching.command_line import Request
from perfhooks.launching.startup import Startup, file_of
from perfhooks.launching.timed import TimedWindow, is_of_somebody_else
from perfhooks.launching.ways import NEVER, NOBODY, ByTime, Heard, StandingBy, Undecided, UntilUpdate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perfhooks.launching.profiling import Profilers
    from perfhooks.launching.ways import Answer, Mode, Telling

_HEARING_S: Final = 0.01
"""How long a program without steps is held up to hear whether its files are there."""


class StepSignal:
    """Makes steps of updates and fetches, and profiles them.

    Args:
        asked: What was asked for on the command line.
        startup: Is told when the first step begins and ends.
    """

    def __init__(self, asked: Request, startup: Startup) -> None:
        self.asked = asked
        self.startup = startup
        self.heard = Heard()
        self._is_compiling: Callable[[], bool] = self._first_update
        process.at_end(process.End.STARTUP, startup.wait)
        process.at_end(process.End.REASON, self.say_why_nothing)
        process.in_child(process.Child.STEPS, self.forget)
        self.forget()

    def forget(self) -> None:
        """Begin anew: this process is a forked child, and what its parent heard is not its own."""
        self.heard.forget()
        self.timed: TimedWindow | None = None
        self.profiler: Any = NOBODY
        self._profilers: Profilers | None = None
        """Those of this program; none as long as nothing was profiled."""
        self._starting: Iterable[Any] = ()
        """Whose first step the program's start ends with."""

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
        way = heard.way
        heard.armed = way.arms
        if way.looks_at_updates:
            self._look_at_update(optimizer)

    def _look_at_update(self, optimizer: object) -> None:
        with self._listening():
            heard = self.heard
            if heard.thread is None:
                heard.thread = threading.get_ident()
            heard.has_round_ended = heard.rounds.ends(optimizer)
            self._follow(heard.way.at_update())

    def look_at_fetch(self) -> None:
        """A loader is about to be asked for a batch, and that may end a step or begin the first one."""
        with self._listening():
            heard, answer = self.heard, None
            if heard.thread in (None, threading.get_ident()):
                answer = heard.way.at_fetch()
            else:  # somebody fetches ahead, in a thread of his own, and the training does not wait
                heard.way.due = NEVER
                heard.waiting = NOBODY
            heard.armed = False
            self._follow(answer)

    @contextmanager
    def _listening(self) -> Iterator[None]:
        """What fails here fails once: a loop asks for thousands of batches."""
        failed = True
        with guard("listening to the training"):
            yield
            failed = False
        if failed:
            self.stand_down()

    # -- what becomes of it ------------------------------------------------------------------------------------------

    def _follow(self, answer: Answer) -> None:
        if answer == "step":
            self.profiler.step()
            if not self.startup.is_over:
                self._end_startup()
        elif answer is not None:
            self._begin(answer)

    def _begin(self, way: Telling) -> None:
        """Profile from here on, steps being told in another way; a count that began otherwise is left."""
        from perfhooks.launching.profiling import Profilers

        speak_up()
        if way.mode != "time":
            if self.timed is not None:
                self.timed.give_up()
            self.startup.first_step()
        if self._profilers is None:
            self._profilers = Profilers(self.asked, self._make_room)
        self.heard.way, self.heard.armed = way, False
        self.profiler = self.heard.waiting = NOBODY
        reason = self._profilers.begin(way, self.heard)
        if reason is not None:
            self.stand_down(reason)
            return
        self.profiler = self._profilers.current
        self.heard.waiting = self.profiler.pulse
        self._starting = (self.profiler,)
        process.at_end(process.End.COUNTS, self._say_counts)

    def _make_room(self) -> None:
        """The script begins to profile with torch itself: beside a window of ours it would record nothing."""
        self.stand_down("the script starts a profiler of its own")

    def stand_down(self, reason: str | None = None) -> None:
        """Listen no more.

        Args:
            reason: What to say of it; None says nothing, as where a framework's own face takes over.
        """
        had_begun = self.profiler is not NOBODY
        self.heard.way, self.heard.armed = StandingBy(self.heard), False
        self.profiler = self.heard.waiting = NOBODY
        if self.timed is not None:
            self.timed.give_up()
        if self._profilers is not None:
            self._profilers.end(reason or "a framework's own face takes over", for_good=True)
        if reason is not None:
            if not had_begun:
                farewell.leave_note(self.asked.notes, why=reason)
            logger.warning("perfhooks run records nothing %s: %s", "more" if had_begun else "here", reason)

    def give_way(self, profilers: Iterable[Any]) -> None:
        """A framework's own face takes over; only its first update is still listened to, as the start ends there.

        Args:
            profilers: Those of the face.
        """
        self.stand_down()
        if not self.startup.is_over:
            self.heard.way, self._starting = UntilUpdate(self.heard), profilers

    def _end_startup(self) -> None:
        self.startup.end(file_of(self._starting))

    # -- a program without steps -------------------------------------------------------------------------------------

    @property
    def is_without_steps(self) -> bool:
        """Whether nothing has been recorded so far, and may be."""
        return type(self.heard.way) is Undecided

    def begin_timed(self) -> None:
        """Record from here on, as there are no steps; in the thread that is to be recorded."""
        if self.is_without_steps:
            self._begin(ByTime(self.heard))
            if self.mode == "time":
                self._end_startup()

    def end_timed(self) -> None:
        """The window without steps is long enough."""
        if self.mode == "time":
            self.profiler.stop()

    def hear_timed(self) -> bool:
        """Whether its files are there; a program without steps does not ask."""
        return self.mode != "time" or bool(self.profiler.wait(_HEARING_S))

    def say_why_nothing(self) -> None:
        """The process ends; whoever waits for a page is told why there is none."""
        if self.is_without_steps and not is_of_somebody_else():
            farewell.leave_note(
                self.asked.notes,
                why="no DataLoader was asked for a batch and no optimizer of torch stepped before the program ended; "
                "--patience 1 records five seconds of one that does neither",
            )

    def _say_counts(self) -> None:
        if self._profilers is not None:
            self._profilers.say_counts(self.heard)


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
        with guard("waiting for a first step"):
            _signal.timed = TimedWindow(_signal, asked.patience)
    return _signal
