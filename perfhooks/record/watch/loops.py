"""One loop of this process, as its profiler and the watcher share it."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from perfhooks.core.guard import logger
from perfhooks.run.capture import EXPLAINS
from perfhooks.run.live.requests import Answer, Loop, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perfhooks.run.folder import Run
    from perfhooks.run.timeline import Timeline

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
        self.is_quiet = False
        """Whether slow steps stay out of the log, because `perfhooks run` prints a summary at the end."""
        self.is_signalled = False
        """Set by the handler of a signal, which does nothing else."""
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
