from __future__ import annotations

import itertools
import sys
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import labels
from perfhooks.core.frames import display_path
from perfhooks.core.schedule import FEWEST_STEPS, Phase
from perfhooks.record.watch.causes import Explainer, StepFacts
from perfhooks.record.watch.counters import Collections, Counters
from perfhooks.record.watch.loops import LoopRequest
from perfhooks.record.watch.samples import FoldedStacks, Sampler, spent
from perfhooks.record.watch.sampling import stack_of
from perfhooks.record.watch.usual import MIN_SAMPLES
from perfhooks.run.installation import Installation
from perfhooks.run.live.slow_steps import Log, SlowStep
from perfhooks.run.timeline import OWN_WORK, clock, in_timeline

if TYPE_CHECKING:
    import numpy as np

    from perfhooks.record.watch.causes import Explanation
    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.record.watch.pace import Pace
    from perfhooks.record.watch.samples import Sample
    from perfhooks.run.timeline import Ended

SHORTEST_S: Final = 0.005
_SUSPENDED_NS: Final = 60_000_000_000
"""Maximum interval between samples of a slow step in ns. In longer intervals, the host was suspended or a debugger
stopped the process.
"""
_MAX_WINDOWS: Final = 10
_MIN_SLOW_STEPS: Final = 3


class _Times(NamedTuple):
    step: int
    begin: int
    end: int
    wait: int
    backward: int
    update: int


@dataclass
class _Watched:
    begin: int
    """Start of the step in ns. A pause, or work of perfhooks, moves the start, and earlier samples are dropped."""
    before: Counters
    last_sample: int
    unsampled_ns: float
    """Longest interval without a sample while the step was slow."""
    samples: list[Sample] = field(default_factory=list)


class _Reading(NamedTuple):
    at: int = 0
    waited_ns: int | None = None
    """Run-queue wait of the training thread in ns."""


class SlowSteps:
    def __init__(self, loop: WatchedLoop, pace: Pace) -> None:
        self._loop = loop
        self._pace = pace
        self._explainer = Explainer(Installation.current())
        self._collections = Collections(loop.thread)
        self._collections.listen()
        self._sampler = Sampler()
        self._usual_sample: tuple[int, int, Sample | None] = (0, 0, None)
        """Time, step and sample of the running step. If the step is not slow, the sample becomes one of the usual
        samples.
        """
        self._last_waited = _Reading()
        self._usual_waited: _Reading | None = None
        self._watched: _Watched | None = None
        self._log = Log()
        self._windows = 0
        self._next_request_step = 0
        self._steps: list[int] = []
        self.rows: list[SlowStep] = []
        self.folded = FoldedStacks()

        self.is_doubtful = False
        """Whether the running step is longer than usual. If so, sampling must not pause."""

    @property
    def is_watching(self) -> bool:
        return self._watched is not None

    def end(self) -> None:
        self._collections.end()

    def learn(self) -> None:
        if self._watched is None and self._loop.is_running:
            self._update_usual()
            self._collections.forget(clock() - _SUSPENDED_NS)

    def _update_usual(self) -> None:
        before, waited = self._usual_waited, self._sampler.thread(self._loop.native).waited_ns()
        if before is not None and clock() < before.at + 2e9:
            return
        self._usual_waited = now = _Reading(clock(), waited)
        if before is not None and before.waited_ns is not None and waited is not None:
            self._explainer.usual.count(now.at - before.at, max(0, waited - before.waited_ns))

    def check(self, step: int, begin: int, late_ns: int = 0) -> float:
        """Return the seconds until the next call."""
        doubt, now = self._pace.doubt_ns, clock()
        self._collections.store()
        if doubt is None:
            return 1.0
        # a step that has just become long is sampled without a pause
        self.is_doubtful = now - begin > 1.1 * (self._pace.median_ns or 0.0)
        if now - begin < doubt:
            self._sample_usual(step, now, late_ns)
            return (begin + doubt - now) / 1e9
        if self._watched is None or self._watched.begin != begin:
            # the first sample has no predecessor, so it stands for one interval
            first, unsampled_ns = now - int(SHORTEST_S * 1e9), now - begin - (self._pace.limit_ns or 0.0)
            thread = self._sampler.thread(self._loop.native)
            self._watched = _Watched(begin, Counters.read(thread), first, unsampled_ns)
        watched = self._watched
        watched.unsampled_ns = max(watched.unsampled_ns, now - watched.last_sample)
        watched.samples.append(self._sample(now, now - watched.last_sample, late_ns))
        watched.last_sample = now
        # sample less often over time, because a checkpoint that takes minutes needs no more
        return min(max(SHORTEST_S, spent(watched.samples) / 1e9 / 100), 0.1)

    def _sample(self, now: int, spent_ns: int, late_ns: int) -> Sample:
        return self._sampler.sample(self._loop.thread, self._loop.native, now=now, spent_ns=spent_ns, late_ns=late_ns)

    def _sample_usual(self, step: int, now: int, late_ns: int) -> None:
        usual, (stored_at, stored_step, sample) = self._explainer.usual, self._usual_sample
        if step != stored_step and (len(usual.samples) < MIN_SAMPLES or now > stored_at + 5e9):
            if sample is not None:
                usual.add(sample)
            self._usual_sample = now, step, self._sample(now, int(SHORTEST_S * 1e9), late_ns)
        if now > self._last_waited.at + 2e8:  # reading the counters doubles the cost of a sample
            thread = self._sampler.thread(self._loop.native)
            self._last_waited = _Reading(now, thread.waited_ns())

    def drop_counters(self) -> None:
        self._last_waited = _Reading()

    def has_slow(self, walls: np.ndarray) -> bool:
        limit = self._pace.limit_ns
        return self.is_watching or (limit is not None and bool((walls > limit).any()))

    def ended(self, ended: Ended, median_ns: float | None, limit_ns: float | None) -> None:
        watched = self._watched
        if watched is not None and len(ended.numbers) and ended.ends[-1] > watched.begin:
            self._watched = None
        if median_ns is None or limit_ns is None:
            return
        for index in (ended.ends - ended.begins > limit_ns).nonzero()[0].tolist():
            times = _Times(*(int(column[index]) for column in ended))
            matching = watched if watched is not None and watched.begin == times.begin else None
            if _unsampled_ns(times, matching, limit_ns) <= _SUSPENDED_NS and not self._is_own_work(times, limit_ns):
                self._explain(times, matching, median_ns)

    def _is_own_work(self, times: _Times, limit_ns: float) -> bool:
        own = [(begin, end) for thread, begin, end in list(OWN_WORK) if thread == self._loop.thread]
        spent_ns = sum(max(0, min(end, times.end) - max(begin, times.begin)) for begin, end in own)
        is_warming_up = self._loop.timeline.phase_of(times.step) is Phase.WARMUP
        return is_warming_up or times.end - times.begin - spent_ns <= limit_ns

    def _explain(self, times: _Times, sampled: _Watched | None, median_ns: float) -> None:
        step, begin, end, wait = times[:4]
        self._usual_waited = None
        if self._usual_sample[1] == step:
            self._usual_sample = self._usual_sample[0], step, None
        garbage_ns, garbage_at = self._collections.within(begin, end)
        validations, checkpoints = (
            self._loop.timeline.aside_within(begin, end, part) for part in (labels.VALIDATION, labels.CHECKPOINT)
        )
        counters = Counters()
        if sampled is not None:
            counters = Counters.read(self._sampler.thread(self._loop.native)).since(sampled.before)
        samples = [] if sampled is None else [_mark_evaluation(sample, validations) for sample in sampled.samples]
        facts = StepFacts(
            wall_ns=end - begin,
            median_ns=median_ns,
            wait_ns=wait,
            garbage_ns=garbage_ns,
            garbage_at=garbage_at,
            samples=samples,
            counters=counters,
            is_distributed=_is_distributed(),
            validation_ns=sum(last - first for first, last in validations),
            checkpoint_ns=sum(last - first for first, last in checkpoints),
            waited_ns=self._waited_ns(begin, end),
            has_device=_has_device(),
            after=stack_of(self._loop.thread) if samples else (),
        )
        if self._last_waited.at < end:
            self.drop_counters()
        row = _row(self._loop.stage, step, facts, self._explainer.explain(facts))
        self.rows.append(row)
        self.folded.add(samples)
        if not self._loop.is_quiet:
            self._log.say(row)
        self._steps = [*self._steps, step][-8:]
        if self._loop.triggers:
            self._request_window()

    def _waited_ns(self, begin: int, end: int) -> int | None:
        """Return the run-queue wait of a step in ns, without the usual wait between the last reading and the step."""
        (at, before), usual = self._last_waited, self._explainer.usual.waiting
        waited = self._sampler.thread(self._loop.native).waited_ns()
        if before is None or waited is None or usual is None or not begin - 2_000_000_000 < at < end:
            return None
        return max(0, int(waited - before - usual * (begin - at)))

    def _request_window(self) -> None:
        now = self._loop.step()
        if self._windows >= _MAX_WINDOWS or now < self._next_request_step:
            return
        self._windows += 1
        predicted = predict(self._steps)
        first = predicted - 1 if predicted is not None and predicted > now + 1 else None
        self._next_request_step = (first or now) + FEWEST_STEPS + 2
        self._loop.ask(LoopRequest("slow", FEWEST_STEPS, first))


def _unsampled_ns(times: _Times, sampled: _Watched | None, limit_ns: float) -> float:
    if sampled is None:
        return times.end - times.begin - limit_ns
    return max(sampled.unsampled_ns, times.end - sampled.last_sample)


def predict(steps: list[int]) -> int | None:
    gaps = [after - before for before, after in itertools.pairwise(steps)]
    if len(steps) < _MIN_SLOW_STEPS:
        return None
    period = median(gaps)
    if period < 2 or median(abs(gap - period) for gap in gaps) > 1:  # noqa: PLR2004 -- every step is slow
        return None
    return steps[-1] + round(period)


def _mark_evaluation(sample: Sample, aside: list[tuple[int, int]]) -> Sample:
    return sample._replace(is_evaluating=True) if any(first <= sample.at <= last for first, last in aside) else sample


def _has_device() -> bool:
    return any(
        kind is not None and kind.is_initialized()
        for kind in (getattr(sys.modules.get("torch"), name, None) for name in ("cuda", "xpu"))
    )


def _is_distributed() -> bool:
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def _row(stage: str, step: int, facts: StepFacts, result: Explanation) -> SlowStep:
    cpu, sampled_ns = facts.counters.cpu_ns, facts.sampled_ns
    return SlowStep(
        stage=in_timeline(stage),
        step=step,
        wall_ms=round(facts.wall_ns / 1e6, 3),
        times_median=round(facts.wall_ns / facts.median_ns, 1),
        cause=result.cause,
        explained_ms=None if result.explained_ns is None else round(result.explained_ns / 1e6, 3),
        line=""
        if result.frame is None
        else f"{result.frame.name} ({display_path(result.frame.file)}:{result.frame.line})",
        data_ms=None if facts.wait_ns < 0 else round(facts.wait_ns / 1e6, 3),
        gc_ms=round(facts.garbage_ns / 1e6, 3),
        cpu_share=None if cpu is None or not sampled_ns else round(cpu / sampled_ns, 3),
        switches=facts.counters.switches,
        faults=facts.counters.faults,
        alloc_retries=facts.counters.retries,
    )
