"""Classification of slow steps: their causes, and the part of the excess that each cause explains."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.record.watch import evaluations
from perfhooks.record.watch.samples import MIN_CPU, Sample, State, spent
from perfhooks.record.watch.sampling import common
from perfhooks.record.watch.usual import MIN_SAMPLES, UsualSteps, beyond
from perfhooks.run.live.slow_causes import (
    ALLOCATOR,
    CAUSES,
    CHECKPOINT,
    CLOCK,
    COMPILATION,
    CONTENTION,
    DATA,
    DEVICE,
    DISK,
    EVALUATION,
    GARBAGE,
    LOCK,
    MEMORY,
    OWN,
    RANKS,
    UNKNOWN,
)
from perfhooks.trace.names.origins import PREFERENCE, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    from perfhooks.record.watch.counters import Counters
    from perfhooks.record.watch.sampling import Frame, Stack
    from perfhooks.run.installation import Installation

_SUFFICIENT: Final = 0.5
_ALMOST_ALL: Final = 0.8
"""Minimum fraction of the samples with one cause, so that this cause also explains the time before the first sample."""
_THROTTLED_BELOW: Final = 0.8
"""Device clock that counts as throttled, as a fraction of the fastest clock. Boost clocks of one device differ by 10%.
"""

_SAVING: Final = re.compile(r"^_*(?:save|checkpoint|dump|write)(?:_|$)|save_checkpoint|(?:^|_)saving")
_LOCK_CALLS: Final = re.compile(r"^\s*(?:async )?with\b|\b(?:acquire|wait|wait_for|join|get|put|result)\(")
_FLUSHES: Final = re.compile(r"\b(?:fsync|fdatasync|flush|sync)\(")
_SYNCHRONIZES: Final = re.compile(r"\.(?:item|tolist|numpy|cpu|cuda|to|nonzero|unique|synchronize|wait)\(")


class StepFacts(NamedTuple):
    wall_ns: int
    median_ns: float
    wait_ns: int
    """Wait for data in ns; -1 if not measured."""
    garbage_ns: int
    garbage_at: Frame | None
    samples: Sequence[Sample]
    """Samples of the training's stack, taken since the step became longer than usual."""
    counters: Counters
    """Counters of the training thread during the samples."""
    is_distributed: bool
    clock_share: float | None
    """Device clock as a share of the fastest clock of the run."""
    aside_ns: int = 0
    """Time in ns of evaluations that a framework or a loader reported."""
    waited_ns: int | None = None
    """Run-queue wait of the whole step in ns; None if unknown."""
    has_device: bool = False
    before_ns: float = 0.0
    """Excess time before the first sample in ns; 0 if the counters disagree with the samples."""
    after: Stack = ()

    @property
    def excess_ns(self) -> float:
        return self.wall_ns - self.median_ns

    @property
    def sampled_ns(self) -> int:
        return spent(self.samples)


class Explanation(NamedTuple):
    cause: str
    explained_ns: float | None
    frame: Frame | None


def _total_ns(pairs: Sequence[tuple[Sample, Frame]]) -> int:
    return sum(sample.spent_ns for sample, _ in pairs)


class Explainer:
    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.usual = UsualSteps()
        self._functions: dict[CodeType, Counter[str]] = {}
        """Time in ns by cause, for each function."""

    def explain(self, facts: StepFacts) -> Explanation:
        inside, directly_ns = self._inside_new_function(facts), max(facts.garbage_ns, facts.wait_ns)
        if (
            inside
            and directly_ns < _ALMOST_ALL * facts.excess_ns
            and (explanation := self._classify_function(facts, inside))
        ):
            return explanation
        samples = {
            cause: [sample for sample in facts.samples if self._has_cause(sample, cause)] for cause in _SAMPLED_CAUSES
        }
        samples[EVALUATION] = evaluations.evaluating(facts.samples, self.usual)
        samples[RANKS] += [] if samples[RANKS] else self._gradient_waits(facts)
        samples[DEVICE] = samples[DEVICE] if facts.has_device else []
        explained = {cause: self._unusual_ns(facts, cause, matching) for cause, matching in samples.items()}
        needed_ns = _SUFFICIENT * facts.excess_ns
        samples[OWN] = self._unusual_code(facts, needed_ns)
        measured_ns = {
            GARBAGE: facts.garbage_ns,
            EVALUATION: max(explained[EVALUATION], facts.aside_ns),
            DATA: max(explained[DATA], facts.wait_ns),
            MEMORY: max(explained[MEMORY], self._paging_ns(facts)),
            OWN: spent(samples[OWN]),
            CONTENTION: self._queued_ns(facts),
        }
        largest = _first_sufficient(explained | measured_ns, needed_ns)
        if largest is not None:
            frame = self._blamed_frame(facts, largest, samples.get(largest) or facts.samples)
            return Explanation(largest, min(float((explained | measured_ns)[largest]), facts.excess_ns), frame)
        if facts.before_ns and facts.sampled_ns >= 0.25 * facts.excess_ns:
            needed_ns = max(_ALMOST_ALL, needed_ns / (facts.sampled_ns + facts.before_ns)) * facts.sampled_ns
            explained |= {MEMORY: measured_ns[MEMORY], OWN: spent(self._unusual_code(facts, needed_ns))}
            largest = _first_sufficient(explained, needed_ns)
            if largest is not None:
                return Explanation(largest, min(float(explained[largest]), facts.sampled_ns), None)
        cause = UNKNOWN
        if facts.counters.retries:
            cause = ALLOCATOR
        elif facts.clock_share is not None and facts.clock_share < _THROTTLED_BELOW:
            cause = CLOCK
        return Explanation(cause, None, self._blamed_frame(facts, cause, facts.samples))

    def _inside_new_function(self, facts: StepFacts) -> list[tuple[Sample, Frame]]:
        """Return the samples in the innermost function that holds most of the excess and is never in usual steps.

        The list is empty if the training is still in that function after the step: it has moved to another loop.
        """
        if len(self.usual.samples) < MIN_SAMPLES:
            return []
        usual_codes = {
            frame.code for stack in (facts.after, *(sample.stack for sample in self.usual.samples)) for frame in stack
        }
        inside: dict[CodeType, list[tuple[Sample, Frame]]] = {}
        for sample in facts.samples:
            outside = takewhile(lambda frame: frame.name != frames.CALLS_MODULE, self.usual.own(sample.stack))
            for code, frame in {frame.code: frame for frame in outside}.items():
                if code not in usual_codes and self._origin(frame) is Origin.USER:
                    inside.setdefault(code, []).append((sample, frame))
        needed_ns = max((_total_ns(samples) for samples in inside.values()), default=0) * _ALMOST_ALL
        functions = [samples for samples in inside.values() if _total_ns(samples) >= needed_ns]
        innermost = max(functions, key=lambda samples: samples[0][0].stack.index(samples[0][1]), default=[])
        return innermost if _total_ns(innermost) >= _SUFFICIENT * facts.excess_ns else []

    def _classify_function(self, facts: StepFacts, inside: Sequence[tuple[Sample, Frame]]) -> Explanation | None:
        """Return the cause of a step that is slow in a function; None if the function mostly waits for unknown things.

        All slow steps in which the function was sampled count, so that its cause is stable.
        """
        lines: Counter[Frame] = Counter()
        for sample, frame in inside:
            lines[frame] += sample.spent_ns if sample.is_exact else 0
        line, samples = lines.most_common(1)[0][0], [sample for sample, _ in inside]
        totals = self._functions.setdefault(line.code, Counter())
        for cause in _SAMPLED_CAUSES:
            matching = evaluations.evaluating(samples, self.usual) if cause == EVALUATION else None
            totals[cause] += spent(
                [sample for sample in samples if self._has_cause(sample, cause)] if matching is None else matching
            )
        totals[DEVICE] *= facts.has_device
        totals[MEMORY] += min(int(self._paging_ns(facts)), spent(samples))
        totals[OWN] += spent([sample for sample in samples if sample.state in (State.COMPUTING, State.QUEUEING)])
        totals[UNKNOWN] += spent(samples)
        cause = next(cause for cause in CAUSES if totals[cause] >= _SUFFICIENT * totals[UNKNOWN])
        return None if cause == UNKNOWN else Explanation(cause, min(float(spent(samples)), facts.excess_ns), line)

    def _has_cause(self, sample: Sample, cause: str) -> bool:
        matches = _MATCHERS.get(cause)
        if matches is not None:
            return bool(sample.stack) and matches(sample)
        if cause == EVALUATION:
            return evaluations.is_sure(sample, self.usual)
        return any(cause in _causes_of_frame(frame.file, frame.name) for frame in self.usual.own(sample.stack))

    def _unusual_ns(self, facts: StepFacts, cause: str, samples: Sequence[Sample]) -> float:
        if not samples:
            return 0.0
        usual = self.usual.share(lambda sample: self._has_cause(sample, cause))
        return beyond(spent(samples) / facts.sampled_ns, usual) * facts.sampled_ns

    def _unusual_code(self, facts: StepFacts, needed_ns: float) -> list[Sample]:
        """Return the samples in code that usual steps do not run, else those in which Python ran longer than usual."""
        computing = [sample for sample in facts.samples if sample.state in (State.COMPUTING, State.QUEUEING)]
        new = self.usual.unseen(computing, facts.after)
        if spent(new) >= needed_ns:
            return new
        holding = [sample for sample in computing if self._holds_gil(sample)]
        explained = (
            beyond(spent(holding) / (facts.sampled_ns or 1), self.usual.share(self._holds_gil)) * facts.sampled_ns
        )
        return holding if explained >= needed_ns else []

    def _holds_gil(self, sample: Sample) -> bool:
        return sample.is_held and bool(sample.stack) and not frames.is_torch(sample.stack[-1].file)

    def _paging_ns(self, facts: StepFacts) -> float:
        """Return the time that the kernel spent on new pages, beyond that of usual steps, in ns.

        The run-queue wait is included in the same proportion.
        """
        cpu, system, faults = facts.counters.cpu_ns, facts.counters.system_ns, facts.counters.faults
        # A page fault that clears 2 MB takes 0.5 ms.
        if not cpu or system is None or faults is None or faults * 500_000 < system:
            return 0.0
        share = beyond(min(system / cpu, 1.0), self.usual.system)
        return share * (cpu + (facts.counters.waited_ns or 0))

    def _queued_ns(self, facts: StepFacts) -> float:
        usual, new = self.usual.waiting, self.usual.unseen(facts.samples, facts.after)
        if facts.waited_ns is None or usual is None or spent(new) >= _SUFFICIENT * facts.sampled_ns:
            return 0.0
        return beyond(min(facts.waited_ns / facts.wall_ns, 1.0), usual) * facts.wall_ns

    @staticmethod
    def _gradient_waits(facts: StepFacts) -> list[Sample]:
        cpu = facts.counters.cpu_ns
        if not facts.is_distributed or cpu is None or cpu > MIN_CPU * facts.sampled_ns:
            return []
        return [sample for sample in facts.samples if sample.stack and frames.BACKWARD.search(sample.stack[-1].file)]

    def _blamed_frame(self, facts: StepFacts, cause: str, samples: Sequence[Sample]) -> Frame | None:
        """Return the line with most time, in the function with most time.

        Return None if the samples cover less than half of the excess, or if the cause can hit any line.
        """
        if cause == GARBAGE:
            return facts.garbage_at
        if cause == CONTENTION or spent(samples) < _SUFFICIENT * facts.excess_ns:
            return None
        depth = self._evaluating_depth(samples) if cause == EVALUATION else 0
        functions: Counter[object] = Counter()
        lines: Counter[Frame] = Counter()
        for sample in samples:
            frame = sample.stack[depth - 1] if 0 < depth <= len(sample.stack) else self._nameable_frame(sample.stack)
            if frame is not None:
                functions[frame.code] += sample.spent_ns
                lines[frame] += sample.spent_ns if sample.is_exact else 0
        code = max(functions, key=functions.__getitem__, default=None)
        if functions[code] < _SUFFICIENT * spent(samples):
            return None
        return max((frame for frame in lines if frame.code is code), key=lines.__getitem__)

    def _evaluating_depth(self, samples: Sequence[Sample]) -> int:
        first = samples[0].stack if samples else ()
        calls = (place for place, frame in enumerate(first) if frame.name == frames.CALLS_MODULE)
        shared = min([next(calls, len(first)), *(common(first, sample.stack) for sample in samples)])
        nameable = (Origin.USER, Origin.INSTALLED)
        return max((place for place in range(1, shared + 1) if self._origin(first[place - 1]) in nameable), default=0)

    def _nameable_frame(self, stack: Stack) -> Frame | None:
        """Return the innermost user line below the loop, else of a package, else in the functions around the loop."""
        inner = self.usual.own(stack)
        outer = stack[: len(stack) - len(inner)]
        preferred, fallback = PREFERENCE[:2], PREFERENCE[2:]
        for part, groups in ((inner, preferred), (outer, preferred), (stack, fallback)):
            for origins in groups:
                for frame in reversed(part):
                    if self._origin(frame) in origins:
                        return frame
        return None

    def _origin(self, frame: Frame) -> Origin:
        return self._installation.origin_of(frame.file)


def _first_sufficient(explained: Mapping[str, float], needed_ns: float) -> str | None:
    first = next((cause for cause in CAUSES if explained.get(cause, 0.0) >= needed_ns), None)
    return MEMORY if first == OWN and explained[MEMORY] >= _SUFFICIENT * explained[OWN] else first


def _is_compiling(file: str, name: str) -> bool:
    # the first call of torch.compile imports the compiler, for seconds
    return bool(frames.COMPILES.search(file)) or (name == "compile" and file.endswith(frames.TORCH))


def _is_saving(file: str, name: str) -> bool:
    if frames.SAVES.search(file):
        return "save" in name or "write" in name
    return not frames.is_torch(file) and bool(_SAVING.search(name))


@lru_cache(4096)
def _causes_of_frame(file: str, name: str) -> frozenset[str]:
    matches = {
        COMPILATION: _is_compiling(file, name),
        CHECKPOINT: _is_saving(file, name),
        DATA: frames.FETCHES.search(file),
        RANKS: frames.COLLECTIVE.search(file),
    }
    return frozenset(cause for cause, is_match in matches.items() if is_match)


def _is_locked(sample: Sample) -> bool:
    frame = sample.stack[-1]
    return sample.state is State.LOCK and bool(
        frames.WAITS.search(frame.file) or _LOCK_CALLS.search(_source_line(frame))
    )


def _is_in_file_call(sample: Sample) -> bool:
    # on a contended host, a thread waits for a CPU after its read returns, and Linux reports only that wait
    return sample.state is State.FILE or (not sample.is_held and bool(_FLUSHES.search(_source_line(sample.stack[-1]))))


def _source_line(frame: Frame) -> str:
    return linecache.getline(frame.file, frame.line)


_MATCHERS: Final[dict[str, Callable[[Sample], bool]]] = {
    DISK: _is_in_file_call,
    LOCK: _is_locked,
    MEMORY: lambda sample: sample.state is State.PAGE,
    DEVICE: lambda sample: not sample.is_held and bool(_SYNCHRONIZES.search(_source_line(sample.stack[-1]))),
}
_SAMPLED_CAUSES: Final = (COMPILATION, CHECKPOINT, EVALUATION, DATA, RANKS, *_MATCHERS)
