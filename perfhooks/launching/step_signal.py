"""When a step ends, in a training that does not say so: told by its optimizers and loaders.

A step ends when a DataLoader is asked for a batch and an optimizer has stepped since the last boundary. Where updates
follow each other without a fetch in between, the updates are the steps: of several optimizers, that of the one that
ends a round. Where there are fetches and no updates, as in evaluation, the fetches are.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from perfhooks import process
from perfhooks.guard import guard, logger, speak_up
from perfhooks.launching import farewell
from perfhooks.launching.command_line import Request
from perfhooks.launching.startup import Startup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from perfhooks.launching.profiling import Mode
    from perfhooks.launching.timed import TimedWindow

BATCHES: Final = 20
"""Fetches without any update after which they count as steps: a sanity check before training fetches fewer."""

_NEVER: Final = sys.maxsize
_EARLY: Final = 3
"""Rounds of updates after which a fetch no longer changes what a step is; optimizers are warmed up with fewer."""
_SURE: Final = 2
"""Steps that ended with a fetch after which updates no longer change what a step is. Fetches alone say nothing: a
loader may be read into a list, on which many updates follow."""
_LOST: Final = 8
"""Updates beyond three rounds' after which a round that never ended is forgotten: its optimizer is gone."""

_HEARING_S: Final = 0.01
"""How long a program without steps is held up to hear whether its files are there."""


class Round:
    """Learns in which order several optimizers take turns, and tells when the last of them has stepped."""

    def __init__(self) -> None:
        self.count = 0
        """Rounds that have ended."""
        self._order: list[int] = []
        self._last: int | None = None
        self._since = 0

    def ends(self, optimizer: object) -> bool:
        """Whether this update is the last one of a round; known from the second round on."""
        mine = id(optimizer)
        self._since += 1
        if self._last is not None and self._since > 3 * len(self._order) + _LOST:
            self._order, self._last = [], None
        if self._last is None:
            if self._order and mine == self._order[0]:
                self._last = self._order[-1]
                self.count += 1
            elif mine not in self._order:
                self._order.append(mine)
        if mine != self._last:
            return False
        self._since = 0
        self.count += 1
        return True


def _nothing() -> None:
    pass


class _Nobody:
    """Stands for the profiler as long as there is none."""

    def step(self) -> None:
        pass

    def ask(self, _: int) -> None:
        pass

    def arrive(self, _: int) -> None:
        pass


class StepSignal:
    """Makes steps of updates and fetches, and profiles them.

    Args:
        asked: What was asked for on the command line.
        startup: Is told when the first step begins and ends.
    """

    def __init__(self, asked: Request, startup: Startup) -> None:
        self.asked = asked
        self.startup = startup
        self.is_compiling: Callable[[], bool] = self._first_update
        self.timed: TimedWindow | None = None
        process.at_end(process.End.STARTUP, startup.wait)
        process.at_end(process.End.REASON, self.say_why_nothing)
        process.in_child(process.Child.STEPS, self.forget)
        self.forget()

    def forget(self) -> None:
        """Begin anew: this process is a forked child, and what its parent heard is not its own."""
        self.mode: Mode | None = None
        self.timed = None
        self._stopped: list[Any] = []
        """Profilers of ours that have ended."""
        self._stands_by = False
        self._face: Iterable[Any] | None = None
        self._hear_no_others: Callable[[], None] = _nothing
        self.profiler: Any = _Nobody()
        self.waiting: Any = self.profiler
        """Who is told when a batch was asked for and when it came: nobody where that is not the training's thread."""
        self.updates = self.fetches = 0
        self.armed = False
        """Whether the next fetch ends a step."""
        self.by_fetch = True
        """Whether an update arms."""
        self.by_update = True
        """Whether an update has to be looked at more closely."""
        self.due = 0
        """The number of fetches from which each has to be looked at more closely."""
        self._thread: int | None = None
        self._by_fetch = 0
        """Steps that a fetch has ended since it does."""
        self._counted = (0, 0, 0)
        self._round = Round()

    # -- what is heard -----------------------------------------------------------------------------------------------

    def hook(self) -> Callable[[Any, Any, Any], None]:
        """What an optimizer calls after each of its steps."""
        signal = self

        def heard(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if signal.is_compiling():
                signal.heard_outside(optimizer)
                return
            signal.updates += 1
            signal.armed = signal.by_fetch
            if signal.by_update:
                signal.look_at_update(optimizer)

        return heard

    def _first_update(self) -> bool:
        """Find torch's own question, which cannot be imported while torch is."""
        from torch.compiler import disable, is_compiling

        self.is_compiling = is_compiling
        # inside a graph our bookkeeping would be traced, and each new count compile the step again
        self.heard_outside = disable(self.heard_outside)  # type: ignore[method-assign, no-untyped-call]
        return is_compiling()

    def heard_outside(self, optimizer: Any) -> None:
        """Hear an update that is being compiled, outside of the graph."""
        self.updates += 1
        self.armed = self.by_fetch
        if self.by_update:
            self.look_at_update(optimizer)

    def look_at_update(self, optimizer: object) -> None:
        """An update, as long as it is not settled that fetches end steps."""
        with self._listening():
            if self._face is not None:
                self._end_startup_of(self._face)
                return
            if self._thread is None:
                self._thread = threading.get_ident()
            ends = self._round.ends(optimizer)
            if self.mode == "batches":
                self._begin("loader", 0)
                self._round = Round()  # fetches get as many steps to show themselves as at the start
            elif self.mode == "loader" and self._by_fetch >= _SURE:
                self.by_update = False
                self.due = _NEVER
            elif ends and self.mode != "optimizer" and (self.mode != "loader" or self._round.count >= _EARLY):
                self._begin("optimizer", self._round.count)
            elif ends and self.mode == "optimizer":
                self._step()

    def look_at_fetch(self) -> None:
        """A loader is about to be asked for a batch, and that may end a step or begin the first one."""
        with self._listening():
            if self._thread is not None and self._thread != threading.get_ident():
                self.armed = False  # somebody fetches ahead, in a thread of his own, and the training does not wait
                self.due = _NEVER
                self.waiting = _Nobody()
            elif self.mode in (None, "time") or (self.mode == "optimizer" and self._round.count <= _EARLY):
                self._begin("loader", 0)
            elif self.mode == "optimizer":
                self.due = _NEVER
            elif self.mode == "loader" and self.armed:
                self.armed = False
                self._by_fetch += 1
                self._step()
            elif self.mode == "loader" and not self.updates:
                self._begin("batches", 0)
            elif self.mode == "batches":
                self._step()

    def _step(self) -> None:
        self.profiler.step()
        if not self.startup.is_over:
            self._end_startup()

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

    def _begin(self, mode: Mode, step: int) -> None:
        """Profile from here on, steps being what ``mode`` says; a count that began as something else is left."""
        from perfhooks.launching import profiling

        speak_up()
        if self.timed is not None and mode != "time":
            self.timed.give_up()
        self._end(f"steps are told by {mode} from here on")
        self.mode = mode
        self.by_fetch = mode == "loader"
        self.armed = False
        self._by_fetch = 0
        self.due = self.fetches + BATCHES if mode == "loader" else 0
        if mode != "time":
            self.startup.first_step()
        reason = profiling.why_not(self._stopped)
        if reason is not None:
            self.stand_down(reason)
            return
        self.profiler = self.waiting = profiling.begin(self.asked, mode, step)
        self._hear_no_others()
        self._hear_no_others = profiling.when_others_begin(self._make_room)
        self._counted = (self.fetches, self.updates, step)
        process.at_end(process.End.COUNTS, self._say_counts)

    def _make_room(self) -> None:
        """The script begins to profile with torch itself: beside a window of ours it would record nothing."""
        self.stand_down("the script starts a profiler of its own")

    @property
    def is_without_steps(self) -> bool:
        """Whether nothing has been recorded so far, and may be."""
        return self.mode is None and not self._stands_by

    def begin_timed(self) -> None:
        """Record from here on, as there are no steps; in the thread that is to be recorded."""
        if self.is_without_steps:
            self._begin("time", 0)
            if not self._stands_by:
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
        from perfhooks.launching.timed import is_of_somebody_else

        if self.is_without_steps and not is_of_somebody_else():
            farewell.leave_note(
                self.asked.notes,
                why="no DataLoader was asked for a batch and no optimizer of torch stepped before the program ended; "
                "--patience 1 records five seconds of one that does neither",
            )

    def _say_counts(self) -> None:
        """The process ends: what a step had is known."""
        from perfhooks.launching import profiling

        fetches, updates, first = self._counted
        steps = getattr(self.profiler, "step_num", first) - first
        if steps and self.mode is not None:
            with guard("saying how many fetches and updates a step had"):
                means = {"fetches": (self.fetches - fetches) / steps, "updates": (self.updates - updates) / steps}
                profiling.say_steps_by(self.profiler, self.mode, **means)

    def stand_down(self, reason: str | None = None) -> None:
        """Listen no more.

        Args:
            reason: What to say of it; None says nothing, as where a framework's own face takes over.
        """
        had_begun = not isinstance(self.profiler, _Nobody)
        self._stands_by = True
        if self.timed is not None:
            self.timed.give_up()
        self._hear_no_others()
        self._hear_no_others = _nothing
        self._end(reason or "a framework's own face takes over")
        self.by_update = self.by_fetch = self.armed = False
        self._face = None
        self.due = _NEVER
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
            self._face, self.by_update = profilers, True

    def _end_startup_of(self, profilers: Iterable[Any]) -> None:
        from perfhooks.launching import profiling

        self._face, self.by_update = None, False
        files = [profiling.startup_file(profiler) for profiler in profilers]
        self.startup.end(next(filter(None, files), None))

    def _end_startup(self) -> None:
        from perfhooks.launching import profiling

        self.startup.end(profiling.startup_file(self.profiler))

    def _end(self, cause: str) -> None:
        profiler, self.profiler = self.profiler, _Nobody()
        self.waiting = self.profiler
        if not isinstance(profiler, _Nobody):
            profiler.stop(cause)
            self._stopped.append(profiler)


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
            from perfhooks.launching.timed import TimedWindow

            _signal.timed = TimedWindow(_signal, asked.patience)
    return _signal
