"""Looks for steps of one loop that take too long, and sees what they do meanwhile."""

from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core.frames import shown
from perfhooks.core.schedule import Phase
from perfhooks.record.watch.causes import Explainer, StepFacts, spent
from perfhooks.record.watch.counters import Collections, Counters, clock_mhz
from perfhooks.record.watch.looks import Doing, Folded, Looker
from perfhooks.record.watch.loops import Asked
from perfhooks.record.watch.sampling import stack_of
from perfhooks.record.watch.usual import MANY
from perfhooks.run.installation import Installation
from perfhooks.run.live.slow_steps import Log, SlowStep
from perfhooks.run.timeline import OWN_WORK, clock, in_timeline

if TYPE_CHECKING:
    import numpy as np

    from perfhooks.record.watch.causes import Explanation
    from perfhooks.record.watch.looks import Look
    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.record.watch.pace import Pace
    from perfhooks.run.timeline import Ended

SHORTEST_S: Final = 0.005
"""Seconds between two looks at a thread in a slow step, at first."""
_LONGEST_S: Final = 0.1
"""And in the end: a checkpoint that takes minutes is not worth more."""
_OF_PAST: Final = 100
"""In between, it is looked at every hundredth of the time that it was looked at for."""
_RECENT_NS: Final = 2_000_000_000
"""What was counted from longer before a step on says little of it."""
_BEFORE_NS: Final = 200_000_000
"""Between two readings of what the thread has computed and waited: one costs as much as the rest of a look."""
_AGREES: Final = 0.25
"""What was counted before the first look and what was seen then are the same thing if their shares differ by less."""
_LEARNS_S: Final = 5.0
"""Seconds between two looks at steps that are not slow that are kept, once there are many."""
_COUNTS_S: Final = 2.0
"""Seconds between two readings of what is counted in steps that are not slow."""
_LONGER: Final = 1.1
"""A step that goes on for so many medians is longer than most."""
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
    backward: int
    update: int


@dataclass
class _Watched:
    """A step that has become slow, and goes on."""

    begin: int
    """By which it is known: one that we, or a pause, kept waiting begins anew, and what was seen before is not its."""
    before: Counters
    looked: int
    unseen_ns: float
    """For how long at most nobody looked at it, though it was slow."""
    looks: list[Look] = field(default_factory=list)


class _Reading(NamedTuple):
    """A moment of a quiet step, and what had been counted until then."""

    at: int
    counters: Counters


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
        self._looker = Looker()
        self._learned: tuple[int, int, Look | None] = (0, 0, None)
        """When what is usual was looked at last, in which step, and what was seen: it counts if that was not slow."""
        self._before: _Reading = _Reading(0, Counters())
        """The last one, in the step that goes on or one before, of what takes little time to read."""
        self._quiet: _Reading | None = None
        """The last of the readings that no slow step has come after."""
        self._watched: _Watched | None = None
        self._log = Log()
        self._windows = 0
        self._asked_until = 0
        self._best_mhz: float | None = None
        self._steps: list[int] = []
        self.rows: list[SlowStep] = []
        """What was not written yet."""
        self.folded = Folded()

        self.is_doubtful = False
        """Whether the step that goes on takes longer than most, so that the next look may not wait."""

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
            self._count()
            self._collections.forget(clock() - _ASLEEP_NS)
            mhz = clock_mhz()
            if mhz is not None:
                self._best_mhz = max(mhz, self._best_mhz or 0.0)

    def _count(self) -> None:
        before, thread = self._quiet, self._looker.thread(self._loop.thread, self._loop.native)
        if before is not None and clock() - before.at < _COUNTS_S * 1e9:
            return
        faults, system_ns = thread.faults_and_system_ns()
        counters = Counters(thread.cpu_ns(), None, faults, None, thread.waited_ns(), system_ns)
        self._quiet = _Reading(clock(), counters)
        if before is not None:
            self._explainer.usual.count(self._quiet.at - before.at, counters.since(before.counters))

    def look(self, step: int, begin: int, late_ns: int = 0) -> float:
        """Look at the step that goes on.

        Args:
            step: Its number.
            begin: When it began.
            late_ns: How much later than it was meant to the look comes.

        Returns:
            Seconds until it should be looked at again.
        """
        doubt, now = self._pace.doubt_ns, clock()
        if doubt is None:
            return 1.0
        self.is_doubtful = now - begin > _LONGER * (self._pace.median_ns or 0.0)
        if now - begin < doubt:
            self._look_at_quiet(step, now, late_ns)
            return (begin + doubt - now) / 1e9
        if self._watched is None or self._watched.begin != begin:
            # the first look stands for the next stretch of time, as nobody looked before
            first, unseen_ns = now - int(SHORTEST_S * 1e9), now - begin - (self._pace.limit_ns or 0.0)
            thread = self._looker.thread(self._loop.thread, self._loop.native)
            self._watched = _Watched(begin, Counters.read(thread), first, unseen_ns)
        watched = self._watched
        watched.unseen_ns = max(watched.unseen_ns, now - watched.looked)
        watched.looks.append(self._look(now, now - watched.looked, late_ns))
        watched.looked = now
        return min(max(SHORTEST_S, spent(watched.looks) / 1e9 / _OF_PAST), _LONGEST_S)

    def _look(self, now: int, spent_ns: int, late_ns: int) -> Look:
        return self._looker.look(self._loop.thread, self._loop.native, now=now, spent_ns=spent_ns, late_ns=late_ns)

    def _look_at_quiet(self, step: int, now: int, late_ns: int) -> None:
        """Keep what a step does that is not slow, and until when nothing had happened."""
        usual, (learned, of_step, look) = self._explainer.usual, self._learned
        if step != of_step and (len(usual.looks) < MANY or now - learned > _LEARNS_S * 1e9):
            if look is not None:
                usual.add(look)
            self._learned = now, step, self._look(now, int(SHORTEST_S * 1e9), late_ns)
        if now - self._before.at > _BEFORE_NS:
            thread = self._looker.thread(self._loop.thread, self._loop.native)
            self._before = _Reading(now, Counters(cpu_ns=thread.cpu_ns(), waited_ns=thread.waited_ns()))

    def forget_before(self) -> None:
        """What was counted until now is not the business of the step that comes."""
        self._before = _Reading(0, Counters())

    def concerns(self, walls: np.ndarray) -> bool:
        """Whether one of the steps that took so long was slow, or may have been watched."""
        limit = self._pace.limit_ns
        return self.is_watching or (limit is not None and bool((walls > limit).any()))

    def ended(self, ended: Ended, median_ns: float | None, limit_ns: float | None) -> None:
        """Some steps have ended: explain those that were slow by what was known when they began."""
        watched = self._watched
        if watched is not None and len(ended.numbers) and ended.ends[-1] > watched.begin:
            self._watched = None
        if median_ns is None or limit_ns is None:
            return
        for place in (ended.ends - ended.begins > limit_ns).nonzero()[0].tolist():
            times = _Times(*(int(column[place]) for column in ended))
            known = watched if watched is not None and watched.begin == times.begin else None
            if _unseen_ns(times, known, limit_ns) <= _ASLEEP_NS and not self._is_ours(times, limit_ns):
                self._explain(times, known, median_ns)

    def _is_ours(self, times: _Times, limit_ns: float) -> bool:
        """Whether a step is slow because of a recording: it warms up, explains a window, or was started or stopped."""
        own = [(begin, end) for thread, begin, end in list(OWN_WORK) if thread == self._loop.thread]
        spent_ns = sum(max(0, min(end, times.end) - max(begin, times.begin)) for begin, end in own)
        is_warming_up = self._loop.timeline.phase_of(times.step) is Phase.WARMUP
        return is_warming_up or times.end - times.begin - spent_ns <= limit_ns

    def _explain(self, times: _Times, known: _Watched | None, median_ns: float) -> None:
        step, begin, end, wait = times[:4]
        self._quiet = None
        if self._learned[1] == step:
            self._learned = self._learned[0], step, None
        garbage_ns, garbage_at = self._collections.within(begin, end)
        aside = self._loop.timeline.aside_within(begin, end)
        counters = Counters()
        if known is not None:
            counters = Counters.read(self._looker.thread(self._loop.thread, self._loop.native)).since(known.before)
        mhz = clock_mhz() if self._best_mhz else None
        looks = [] if known is None else [_marked(look, aside) for look in known.looks]
        seen = StepFacts(
            wall_ns=end - begin,
            median_ns=median_ns,
            wait_ns=wait,
            garbage_ns=garbage_ns,
            garbage_at=garbage_at,
            looks=looks,
            counters=counters,
            is_distributed=_is_distributed(),
            clock_share=None if mhz is None or not self._best_mhz else mhz / self._best_mhz,
            aside_ns=sum(last - first for first, last in aside),
            waited_ns=self._waited_ns(begin, end),
            has_device=_has_device(),
            before_ns=self._before_ns(times, known, median_ns),
            after=stack_of(self._loop.thread) if looks else (),
        )
        if self._before.at < end:  # it says nothing of the next one
            self.forget_before()
        row = _row(self._loop.stage, step, seen, self._explainer.explain(seen))
        self.rows.append(row)
        self.folded.add(looks)
        if not self._loop.is_quiet:
            self._log.say(row)
        self._steps = [*self._steps, step][-_REMEMBERED:]
        if self._loop.triggers:
            self._trigger()

    def _waited_ns(self, begin: int, end: int) -> int | None:
        """How long a step that has just ended waited for a processor.

        ::

            steps     | usual | usual |      slow        | now
            looks            ▲                           ▲
                             the last of a quiet step, from where on it is counted: less the usual until the begin
        """
        (at, counters), usual = self._before, self._explainer.usual.waiting
        before, waited = counters.waited_ns, self._looker.thread(self._loop.thread, self._loop.native).waited_ns()
        if before is None or waited is None or usual is None or not begin - _RECENT_NS < at < end:
            return None
        return max(0, int(waited - before - usual * (begin - at)))

    def _before_ns(self, times: _Times, known: _Watched | None, median_ns: float) -> float:
        """How long a step had been longer than usual when it was first looked at; 0 where it did something else then.

        ::

            step      | usual work | longer ............................ |
            readings     ▲                       ▲ first look ▲ ▲ ▲ ▲ ▲
                         └─ less usual work: ────┘ did the thread run, or want to, for as much of it as was seen later?
        """
        at, before = self._before
        if known is None or not times.begin - _RECENT_NS < at < known.looks[0].at:
            return 0.0
        counted, first = known.before.since(before), known.looks[0].at
        if counted.cpu_ns is None or counted.waited_ns is None:
            return 0.0
        usual_ns = max(0.0, times.begin + median_ns - at)
        longer_ns = first - at - usual_ns
        if longer_ns <= 0:
            return 0.0
        ran = (counted.cpu_ns + counted.waited_ns - self._explainer.usual.runnable * usual_ns) / longer_ns
        runs = (look for look in known.looks if look.doing in (Doing.COMPUTING, Doing.QUEUEING))
        seen = spent(list(runs)) / spent(known.looks)
        return longer_ns if abs(min(max(ran, 0.0), 1.0) - seen) < _AGREES else 0.0

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


def _marked(look: Look, aside: list[tuple[int, int]]) -> Look:
    """A look that fell into an evaluation which somebody told of."""
    return look._replace(is_evaluating=True) if any(first <= look.at <= last for first, last in aside) else look


def _has_device() -> bool:
    """Whether the program uses a device that works behind it."""
    return any(
        kind is not None and kind.is_initialized()
        for kind in (getattr(sys.modules.get("torch"), name, None) for name in ("cuda", "xpu"))
    )


def _is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _row(stage: str, step: int, seen: StepFacts, why: Explanation) -> SlowStep:
    cpu, looked = seen.counters.cpu_ns, seen.looked_ns
    return SlowStep(
        stage=in_timeline(stage),
        step=step,
        wall_ms=round(seen.wall_ns / 1e6, 3),
        times_median=round(seen.wall_ns / seen.median_ns, 1),
        cause=why.cause,
        explained_ms=None if why.explained_ns is None else round(why.explained_ns / 1e6, 3),
        line="" if why.frame is None else f"{why.frame.name} ({shown(why.frame.file)}:{why.frame.line})",
        data_ms=None if seen.wait_ns < 0 else round(seen.wait_ns / 1e6, 3),
        gc_ms=round(seen.garbage_ns / 1e6, 3),
        cpu_share=None if cpu is None or not looked else round(cpu / looked, 3),
        switches=seen.counters.switches,
        faults=seen.counters.faults,
        alloc_retries=seen.counters.retries,
    )
