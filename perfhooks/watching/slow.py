"""Looks for steps of one loop that take too long, and sees what they do meanwhile."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.run.installation import Installation
from perfhooks.run.timeline import clock
from perfhooks.watching.causes import Explainer, StepFacts
from perfhooks.watching.counters import Collections, CountedThread, Counters, clock_mhz
from perfhooks.watching.loops import Asked
from perfhooks.watching.sampling import Folded, stack_of
from perfhooks.watching.slow_steps import Log, SlowStep

if TYPE_CHECKING:
    import numpy as np

    from perfhooks.run.timeline import Ended
    from perfhooks.watching.loops import WatchedLoop
    from perfhooks.watching.pace import Pace
    from perfhooks.watching.sampling import Stack

SAMPLE_S: Final = 0.01
"""Seconds between two looks at a thread in a slow step; after `_MANY` of them it is looked at ten times as rarely."""
_MANY: Final = 500
_ASLEEP_NS: Final = 60_000_000_000
"""A step that nobody could look at for longer did not run: the machine slept, or a debugger held it."""
_WINDOWS: Final = 10
"""Windows that slow steps may ask for in a run: the first ones say it."""
_WINDOW_STEPS: Final = 3
_PERIODS: Final = 3
"""Slow steps that make a rhythm."""
_REMEMBERED: Final = 8


class _Times(NamedTuple):
    """One step that has ended, as in `perfhooks.run.timeline.Ended`."""

    step: int
    begin: int
    end: int
    wait: int


@dataclass
class _Watched:
    """A step that has become slow, and goes on."""

    step: int
    before: Counters
    looked: int
    unseen_ns: float
    """For how long at most nobody looked at it, though it was slow."""
    samples: list[tuple[Stack, int]] = field(default_factory=list)


class SlowSteps:
    """Finds the slow steps of a loop, and explains each.

    Args:
        loop: The loop.
        pace: Its pace, which somebody else keeps.
    """

    def __init__(self, loop: WatchedLoop, pace: Pace) -> None:
        self._loop = loop
        self._pace = pace
        self._explainer = Explainer(Installation.current())
        self._collections = Collections()
        self._collections.listen()
        self._watched: _Watched | None = None
        self._log = Log()
        self._windows = 0
        self._asked_until = 0
        self._best_mhz: float | None = None
        self._steps: list[int] = []
        self.rows: list[SlowStep] = []
        """What was not written yet."""
        self.folded = Folded()

    @property
    def is_watching(self) -> bool:
        """Whether a slow step goes on."""
        return self._watched is not None

    def end(self) -> None:
        """The loop has ended."""
        self._collections.end()

    def learn(self) -> None:
        """Once in a while: what is usual, and what is long past."""
        if self._watched is None and self._loop.is_running:
            self._explainer.learn(stack_of(self._loop.thread))
            self._collections.forget(clock() - _ASLEEP_NS)
            mhz = clock_mhz()
            if mhz is not None:
                self._best_mhz = max(mhz, self._best_mhz or 0.0)

    def look(self, step: int, begin: int) -> float:
        """Look at the step that goes on.

        Args:
            step: Its number.
            begin: When it began.

        Returns:
            Seconds until it should be looked at again.
        """
        limit, now = self._pace.limit_ns, clock()
        if limit is None:
            return 1.0
        if now - begin < limit:
            return (begin + limit - now) / 1e9
        if self._watched is None or self._watched.step != step:
            thread = CountedThread(self._loop.thread, self._loop.native)
            # the first sample stands for the next stretch of time, as nobody looked before
            self._watched = _Watched(step, Counters.read(thread), now - int(SAMPLE_S * 1e9), now - begin - limit)
        watched = self._watched
        watched.unseen_ns = max(watched.unseen_ns, now - watched.looked)
        watched.samples.append((stack_of(self._loop.thread), now - watched.looked))
        watched.looked = now
        return SAMPLE_S if len(watched.samples) < _MANY else 10 * SAMPLE_S

    def concerns(self, walls: np.ndarray) -> bool:
        """Whether one of the steps that took so long was slow, or may have been watched."""
        limit = self._pace.limit_ns
        return self.is_watching or (limit is not None and bool((walls > limit).any()))

    def ended(self, ended: Ended, median_ns: float | None, limit_ns: float | None) -> None:
        """Some steps have ended: explain those that were slow by what was known when they began."""
        watched = self._watched
        if watched is not None and len(ended.numbers) and ended.numbers[-1] >= watched.step:
            self._watched = None
        if median_ns is None or limit_ns is None:
            return
        for place in (ended.ends - ended.begins > limit_ns).nonzero()[0].tolist():
            times = _Times(*(int(column[place]) for column in ended))
            known = watched if watched is not None and watched.step == times.step else None
            if _unseen_ns(times, known, limit_ns) <= _ASLEEP_NS:
                self._explain(times, known, median_ns)

    def _explain(self, times: _Times, known: _Watched | None, median_ns: float) -> None:
        step, begin, end, wait = times
        garbage_ns, garbage_at = self._collections.within(begin, end)
        counters = Counters()
        if known is not None:
            counters = Counters.read(CountedThread(self._loop.thread, self._loop.native)).since(known.before)
        mhz = clock_mhz() if self._best_mhz else None
        seen = StepFacts(
            wall_ns=end - begin,
            median_ns=median_ns,
            wait_ns=wait,
            garbage_ns=garbage_ns,
            garbage_at=garbage_at,
            samples=[] if known is None else known.samples,
            counters=counters,
            is_distributed=_is_distributed(),
            clock_share=None if mhz is None or not self._best_mhz else mhz / self._best_mhz,
        )
        row = SlowStep.of(self._loop.stage, step, seen, self._explainer.explain(seen))
        self.rows.append(row)
        self.folded.add(seen.samples)
        self._log.say(row)
        self._steps = [*self._steps, step][-_REMEMBERED:]
        if self._loop.triggers:
            self._trigger()

    def _trigger(self) -> None:
        """Ask for a window: over the next slow step if they have a rhythm, else after this one."""
        now = self._loop.step()
        if self._windows >= _WINDOWS or now < self._asked_until:
            return
        self._windows += 1
        predicted = predict(self._steps)
        first = predicted - 1 if predicted is not None and predicted > now + 1 else None
        self._asked_until = (first or now) + _WINDOW_STEPS + 2
        self._loop.ask(Asked("slow", _WINDOW_STEPS, first))


def _unseen_ns(times: _Times, known: _Watched | None, limit_ns: float) -> float:
    """For how long at most nobody looked at a slow step.

    The watcher wakes up with the machine, and looks at the step that has slept as well: one look says nothing.
    """
    if known is None:
        return times.end - times.begin - limit_ns
    return max(known.unseen_ns, times.end - known.looked)


def predict(steps: list[int]) -> int | None:
    """The next slow step where the last ones have a rhythm; None where they have none."""
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    if len(steps) < _PERIODS:
        return None
    period = median(gaps)
    if period < 2 or median(abs(gap - period) for gap in gaps) > 1:  # noqa: PLR2004 -- every step is slow
        return None
    return steps[-1] + round(period)


def _is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()
