from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from perfhooks.core.errors import PerfhooksError
from perfhooks.core.options import WARMUP
from perfhooks.core.process import POLL_S
from perfhooks.core.words import count
from perfhooks.run import layout
from perfhooks.run.capture import Place
from perfhooks.run.folder import Run
from perfhooks.run.live import requests
from perfhooks.run.live.status import Status
from perfhooks.run.locking import locked

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.capture import Capture
    from perfhooks.run.live.requests import Answer, RankPosition


class CaptureOptions(NamedTuple):
    steps: int = 3
    ranks: tuple[int, ...] | None = None
    stage: str | None = None
    options: Mapping[str, bool] = {}


@dataclass
class RankOutcome:
    rank: int
    place: Place | None = None
    capture: Capture | None = None
    problem: str = ""
    note: str = ""


@dataclass
class CaptureRequest:
    run: Path
    wish: CaptureOptions
    tell: Callable[[str], None] = field(default=lambda _: None)

    def __post_init__(self) -> None:
        self.name = requests.new_id()
        self._called = 0.0
        self._owners = Run.existing(self.run).owners()

    def outcomes(self, timeout: float) -> list[RankOutcome]:
        until = time.monotonic() + timeout
        ranks = self._ranks()
        try:
            here = self._call(ranks, min(until, time.monotonic() + 60))
            stage = self._stage(here)
            self._ask(stage, here)
            return self._wait([rank for rank in ranks if rank in here], until) + [
                RankOutcome(rank, problem=self._silent(rank)) for rank in ranks if rank not in here
            ]
        except OSError as error:
            raise PerfhooksError(
                f"{self.run} cannot be written ({error.strerror or error}). A request for a window is a file in this "
                "folder: run the command as a user who may write there"
            ) from error
        finally:
            with contextlib.suppress(OSError):
                requests.withdraw(self.run, self.name)

    def _ranks(self) -> list[int]:
        if not self._owners:
            raise PerfhooksError(f"{self.run}: no process has recorded into this run")
        if self.wish.ranks is not None:
            strange = sorted(set(self.wish.ranks) - set(self._owners))
            if strange:
                names = ", ".join(map(str, self._owners))
                raise PerfhooksError(f"rank {strange[0]} does not record in this run; recording ranks: {names}")
        ranks = self._owners if self.wish.ranks is None else self.wish.ranks
        living = [rank for rank in sorted(ranks) if self._owners[rank].is_alive is not False]
        if not living:
            raise PerfhooksError(f"the job of {self.run} has ended: a window can be requested only while it runs")
        return living

    def _call(self, ranks: Sequence[int], until: float) -> dict[int, RankPosition]:
        self._called = time.monotonic()
        requests.call(self.run, self.name)
        here: dict[int, RankPosition] = {}
        while len(here) < len(ranks) and any(map(self._may_live, ranks)) and time.monotonic() < until:
            positions = requests.positions(self.run, self.name)
            if positions and not here:
                # wait for the other ranks, up to twice their slowest poll interval
                until = min(until, time.monotonic() + 3 + 2 * max(position.poll for position in positions.values()))
            here = {rank: position for rank, position in positions.items() if rank in ranks}
            self.tell(f"requested the current step of {count(len(ranks), 'rank')}, {len(here)} answered")
            time.sleep(POLL_S)
        if not here:
            why = "; ".join(dict.fromkeys(self._silent(rank) for rank in ranks))
            raise PerfhooksError(f"no rank of {self.run} answered: {why}")
        return here

    def _may_live(self, rank: int) -> bool:
        return self._owners[rank].is_alive is not False

    def _silent(self, rank: int) -> str:
        if not self._may_live(rank):
            return "its process has ended"
        return "it did not answer: its profiler has stopped, was started with watch=False, or cannot write here"

    def _stage(self, here: Mapping[int, RankPosition]) -> str:
        loops = [loop for position in here.values() for loop in position.loops]
        if self.wish.stage is not None:
            if self.wish.stage not in {loop.stage for loop in loops}:
                names = ", ".join(sorted({loop.stage for loop in loops})) or "none"
                raise PerfhooksError(f"no loop is called {self.wish.stage!r} in this job; there are: {names}")
            return self.wish.stage
        if not loops:
            raise PerfhooksError(f"no loop of {self.run} is being profiled now")
        running = Counter(loop.stage for loop in loops if loop.is_running)
        return max((loop.stage for loop in loops), key=lambda stage: (running[stage], stage == "train"))

    def _ask(self, stage: str, here: Mapping[int, RankPosition]) -> None:
        with self._alone():
            first = self._first(stage, here)
            for other in requests.open_windows(self.run, stage):
                if other.first - WARMUP < first + self.wish.steps and first - WARMUP < other.first + other.steps:
                    first = other.first + other.steps + WARMUP
            window = requests.WindowRequest(
                stage=stage, first=first, steps=self.wish.steps, ranks=self.wish.ranks, options=dict(self.wish.options)
            )
            requests.ask(self.run, self.name, window)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError, TimeoutError):
                stack.enter_context(locked(self.run / layout.REQUESTS_LOCK, timeout=5))
            yield

    def _first(self, stage: str, here: Mapping[int, RankPosition]) -> int:
        loops = [loop for position in here.values() for loop in position.loops if loop.stage == stage]
        medians = [loop.median_ms for loop in loops if loop.median_ms]
        away_s = time.monotonic() - self._called + 2 * max(position.poll for position in here.values())
        # steps may become twice as fast before the ranks read the request
        ahead = math.ceil(2 * away_s * 1e3 / min(medians, default=100.0))
        return max(loop.step for loop in loops) + ahead + WARMUP + 1

    def _wait(self, ranks: Sequence[int], until: float) -> list[RankOutcome]:
        done: dict[int, RankOutcome] = {}
        while len(done) < len(ranks):
            answers = requests.answers(self.run, self.name)
            is_over = time.monotonic() >= until
            for rank in ranks:
                outcome = None if rank in done else self._outcome(rank, answers.get(rank), is_over=is_over)
                if outcome is not None:
                    done[rank] = outcome
            self.tell(_progress(ranks, answers, len(done)))
            if len(done) < len(ranks):
                time.sleep(POLL_S)
        return [done[rank] for rank in sorted(done)]

    def _outcome(self, rank: int, answer: Answer | None, *, is_over: bool) -> RankOutcome | None:
        if answer is not None and answer.state in ("refused", "ended"):
            return RankOutcome(rank, problem=answer.why)
        if answer is not None and (recorded := self._capture(rank, answer)) is not None:
            return recorded
        if not self._may_live(rank):
            return RankOutcome(rank, problem="its process ended before the window was recorded and finished")
        return RankOutcome(rank, problem=self._why_late(rank, answer)) if is_over else None

    def _why_late(self, rank: int, answer: Answer | None) -> str:
        if answer is None:
            return "it did not read the request in time"
        if answer.state == "recorded":
            return f"{answer.window} is recorded, but not finished yet: see `perfhooks report`"
        return f"it did not reach step {answer.first} in time: {self._standstill(rank)}"

    def _capture(self, rank: int, answer: Answer) -> RankOutcome | None:
        place = Place(layout.below(self.run, answer.window), rank)
        with contextlib.suppress(OSError, PerfhooksError):
            capture = place.load()
            if capture.request == self.name and capture.state == "done":
                return RankOutcome(rank, place, capture, note=answer.why)
        return None

    def _standstill(self, rank: int) -> str:
        status = Status.read(self.run, rank)
        if status is None or status.loop.is_running:
            return "its steps are too slow, or have stopped"
        return f"its loop is between two epochs, at step {status.loop.step}"


def _progress(ranks: Sequence[int], answers: Mapping[int, Answer], done: int) -> str:
    firsts = {answer.first: answer.last for answer in answers.values() if answer.first is not None}
    if not firsts:
        return f"requested a window of {count(len(ranks), 'rank')}, {len(answers)} answered"
    steps = ", ".join(f"{first}-{last}" for first, last in sorted(firsts.items()))
    recorded = sum(answer.state == "recorded" for answer in answers.values())
    return f"steps {steps}: {recorded} of {count(len(ranks), 'rank')} recorded, {done} finished"
