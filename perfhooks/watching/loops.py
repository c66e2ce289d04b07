"""One loop of this process, as its profiler and the watcher share it."""

from __future__ import annotations

import math
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from perfhooks import words
from perfhooks.guard import logger
from perfhooks.run.capture import EXPLAINS
from perfhooks.watching import counters
from perfhooks.watching.requests import Answer, Loop, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfhooks.run.folder import Run
    from perfhooks.run.timeline import Timeline

WAITED_A_SECOND: Final = 50e6
"""Bytes of a trace for which a loop waits a second at its end: 20 to 80 million on the machines that were measured."""
LONG_WAIT_S: Final = 2.0
"""From so many seconds on it is said that the loop waits for the end of a window: a large model's takes less."""
_LOOKS: Final = 3
"""In a row, of which the least memory counts: it goes up and down within a step."""

Asker = Literal["request", "code", "signal", "slow", "explanation"]
"""Who wants a window: a file, the training's own code, a signal, the watcher itself, or the window before it."""


@dataclass(frozen=True)
class Asked:
    """A window that somebody wants of this loop."""

    by: Asker
    steps: int
    first: int | None = None
    """The first step to be recorded; None is the next one that can be."""
    options: Mapping[str, bool] = field(default_factory=dict)
    """What is recorded on top of what the training's own options say."""
    name: str = ""
    """Of the request; empty where nobody waits for an answer."""


class OpenWindow(NamedTuple):
    """The window that a loop records."""

    name: str
    """For people."""
    active: int
    """Its first recorded step."""
    last: int | None
    """Its last one; None where that is not known."""
    most_bytes: float | None
    """How large its trace may become; None sets no limit."""
    enough_from: int | None = None
    """The step from which on `enough_bytes` are enough; None where it lasts as long as it is planned."""
    enough_bytes: float = 0.0

    def is_enough(self, step: int) -> bool:
        """Whether it goes on at a step only to be long enough."""
        return self.enough_from is not None and step >= self.enough_from

    def limit(self, step: int) -> float:
        """How large its trace may be at a step."""
        most = math.inf if self.most_bytes is None else self.most_bytes
        return min(most, self.enough_bytes) if self.is_enough(step) else most


class WatchedLoop:
    """What the profiler of a loop and the watcher know of each other.

    Each attribute is written by one of them, and each access is one operation in C: neither waits for the other.

    Args:
        timeline: The loop's clock.
        stage: What the loop is called.
        poll: Seconds between two looks at the run folder.
        step: Tells the step that goes on.
        wake: Has the training look into `inbox` at the end of its current step.
    """

    def __init__(
        self, timeline: Timeline, stage: str, poll: float, *, step: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        self.timeline = timeline
        self.stage = stage
        self.poll = poll
        self.step = step
        self.wake = wake
        self.run: Run | None = None
        """Where its files are; None where it has none."""
        self.is_running = False
        """Whether it steps."""
        self.thread = 0
        """The thread that trains."""
        self.native = 0
        """The same as the system numbers it."""
        self.limit_ns: float | None = None
        """A step that takes longer is slow; None while nobody knows."""
        self.wrote_steps = False
        """Whether the watcher has written steps that the page does not know of."""
        self.triggers = False
        """Whether a slow step asks for a window."""
        self.is_signalled = False
        """Set by the handler of a signal, which does nothing else."""
        self.window: OpenWindow | None = None
        self.is_too_large = False
        """Whether the window that is open is as large as it may be."""
        self.inbox: deque[Asked] = deque()
        """Windows that the training has not heard of yet."""
        self.answers: deque[tuple[str, Answer]] = deque()
        """Answers that the watcher has not written yet, each with its request."""

    def begin(self, run: Run | None) -> None:
        """The calling thread begins to train."""
        self.run, self.thread, self.native, self.is_running = (
            run,
            threading.get_ident(),
            threading.get_native_id(),
            True,
        )

    def ask(self, asked: Asked) -> None:
        """Want a window. The training hears of it when its step ends.

        The order matters: a training that has just decided when to look next finds the letter, or is woken after it.
        """
        self.inbox.append(asked)
        self.wake()

    def answer(self, asked: Asked, state: State, *, window: str = "", first: int | None = None,
               last: int | None = None, why: str = "") -> None:  # fmt: skip  # one answer, in two lines
        """Say what becomes of a window: to whoever waits, else in the log if it comes to nothing."""
        if asked.name and self.run is not None:
            said = Answer(rank=self.run.rank, state=state, window=window, first=first, last=last, why=why)
            self.answers.append((asked.name, said))
        elif state in ("refused", "ended") and asked.by != EXPLAINS:
            logger.warning("no window is recorded on request: %s", why)

    def was_dull(self, first: int) -> bool:
        """Whether no step from a certain one on was slow; that is not said before anybody knows what slow is."""
        if self.limit_ns is None:
            return False
        with self.timeline.taking:
            ended = self.timeline.since(first)
        return not bool((ended.ends - ended.begins > self.limit_ns).any())

    def where(self, median_ns: float | None) -> Loop:
        """Where it is."""
        median_ms = None if median_ns is None else median_ns / 1e6
        return Loop(stage=self.stage, step=self.step(), median_ms=median_ms, is_running=self.is_running)


class _Seen(NamedTuple):
    step: int
    resident: int


class Growth:
    """Tells in the watcher's thread how large the trace of an open window becomes, and how long its loop will wait.

    Torch does not say how much it has recorded, but the memory of the process does: what the recorder holds of an
    event is about as large as the event will be in the trace, 0.8 to 1.2 of it, and a training that has come to a
    window takes no more memory for anything else. A window that takes what a former one has left does not show; how
    large that one was is known.

    Args:
        resident: Tells the memory of this process, in bytes.
    """

    def __init__(self, resident: Callable[[], int] | None = None) -> None:
        self._resident = resident or counters.resident
        self._window: OpenWindow | None = None
        self._seen: list[_Seen] = []
        self._is_said = False

    def look(self, loop: WatchedLoop) -> None:
        """Say once of a window that its loop is going to wait long; end one that is as large as it may be."""
        window, step = loop.window, loop.step()
        if window is not self._window:
            self._window, self._seen, self._is_said = window, [], False
        if window is None or step < window.active:
            return
        self._seen.append(_Seen(step, self._resident()))
        first, last = self._least(self._seen[:_LOOKS]), self._least(self._seen[-_LOOKS:])
        size = last.resident - first.resident
        if size > window.limit(step):
            loop.is_too_large = True
        if len(self._seen) >= 2 * _LOOKS and not self._is_said:
            steps = last.step - first.step
            left = 0 if window.last is None else window.last - step
            self._say(window, size, size + (size / steps * left if steps else 0.0))

    @staticmethod
    def _least(seen: list[_Seen]) -> _Seen:
        return min(seen, key=lambda each: each.resident)

    def _say(self, window: OpenWindow, size: float, whole: float) -> None:
        if whole < LONG_WAIT_S * WAITED_A_SECOND:
            return
        self._is_said = True
        logger.info(
            "%s: its trace has about %s so far, and the loop is going to wait about %s at its end; fewer active steps "
            "make that shorter, and max_trace_mb= sees to it",
            window.name,
            words.size(size),
            words.ms(1e3 * whole / WAITED_A_SECOND),
        )
