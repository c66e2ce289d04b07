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

RequestSource = Literal["request", "code", "signal", "slow", "explanation"]


@dataclass(frozen=True)
class LoopRequest:
    by: RequestSource
    steps: int
    first: int | None = None
    """First step to record; None records from the next possible step."""
    options: Mapping[str, bool] = field(default_factory=dict)
    name: str = ""
    """Name of the request; empty if no client waits for an answer."""


class WatchedLoop:
    """State of a loop. Each attribute has one writer, and each access is one operation in C.

    The training and the watcher thread therefore never wait for each other.
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
        self.is_running = False
        self.thread = 0
        self.native = 0
        self.limit_ns: float | None = None
        self.wrote_steps = False
        self.triggers = False
        self.is_quiet = False
        """Whether slow steps are not logged: `perfhooks run` prints a summary."""
        self.is_signalled = False
        """Whether a signal requested a window. The signal handler only sets this flag."""
        self.inbox: deque[LoopRequest] = deque()
        self.answers: deque[tuple[str, Answer]] = deque()

    def begin(self, run: Run | None) -> None:
        self.run, self.thread, self.native, self.is_running = (
            run,
            threading.get_ident(),
            threading.get_native_id(),
            True,
        )

    def ask(self, request: LoopRequest) -> None:
        """Add a request. The request is added before the training is woken, so that the training always finds it."""
        self.inbox.append(request)
        self.wake()

    def answer(self, request: LoopRequest, state: State, *, window: str = "", first: int | None = None,
               last: int | None = None, why: str = "") -> None:  # fmt: skip  # one answer, in two lines
        """Answer a request: to the client, or into the log if no client waits and no window will be recorded."""
        if request.name and self.run is not None:
            reply = Answer(rank=self.run.rank, state=state, window=window, first=first, last=last, why=why)
            self.answers.append((request.name, reply))
        elif state in ("refused", "ended") and request.by != EXPLAINS:
            logger.warning("no window is recorded on request: %s", why)

    def has_no_slow(self, first: int) -> bool:
        """Return whether no step from ``first`` on was slow; False while the limit of slow steps is unknown."""
        if self.limit_ns is None:
            return False
        with self.timeline.taking:
            ended = self.timeline.since(first)
        return not bool((ended.ends - ended.begins > self.limit_ns).any())

    def where(self, median_ns: float | None) -> Loop:
        median_ms = None if median_ns is None else median_ns / 1e6
        return Loop(stage=self.stage, step=self.step(), median_ms=median_ms, is_running=self.is_running)
