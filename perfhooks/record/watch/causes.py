"""Causes of slow steps, and how much of the time above the median each cause explains."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.record.watch.samples import MIN_CPU, Sample, State, spent
from perfhooks.record.watch.sampling import common
from perfhooks.record.watch.usual import UsualSteps, beyond
from perfhooks.run.live.slow_causes import (
    BLOCKING,
    CAUSES,
    CHECKPOINT,
    COMPILATION,
    CONTENTION,
    DATA,
    DEVICE,
    EVALUATION,
    GARBAGE,
    OWN,
    RANKS,
    UNKNOWN,
)
from perfhooks.trace.names.origins import PREFERENCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import CodeType

    from perfhooks.record.watch.counters import Counters
    from perfhooks.record.watch.sampling import Frame, Stack
    from perfhooks.run.installation import Installation

_SUFFICIENT: Final = 0.5

_SAVING: Final = re.compile(r"^_*(?:save|checkpoint|dump|write)(?:_|$)|save_checkpoint|(?:^|_)saving")
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
    is_distributed: bool
    validation_ns: int = 0
    """Time of evaluations that a framework or a loader reported."""
    checkpoint_ns: int = 0
    """Time of checkpoints that a framework or ``torch.save`` reported."""
    waited_ns: int | None = None
    """Run-queue wait of the whole step in ns; None if unknown."""
    has_device: bool = False
    after: Stack = ()
    """Stack after the step. Code of this stack is not a cause, because the training may have moved to another loop."""

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


class Explainer:
    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.usual = UsualSteps()

    def explain(self, facts: StepFacts) -> Explanation:
        matches: dict[str, Callable[[Sample], bool]] = {
            COMPILATION: self._has_frame_of(COMPILATION),
            CHECKPOINT: self._has_frame_of(CHECKPOINT),
            EVALUATION: lambda sample: sample.is_evaluating,
            DATA: self._has_frame_of(DATA),
            RANKS: self._has_frame_of(RANKS),
            DEVICE: lambda sample: facts.has_device and _is_synchronizing(sample),
        }
        samples = {cause: list(filter(is_match, facts.samples)) for cause, is_match in matches.items()}
        samples[EVALUATION] = self._in_evaluating_function(facts.samples, samples[EVALUATION])
        samples[RANKS] = samples[RANKS] or _gradient_waits(facts)
        explained = {cause: self._beyond_usual_ns(facts, samples[cause], matches[cause]) for cause in matches}
        samples[BLOCKING], explained[BLOCKING] = self._unusual(facts, _is_blocked, _is_blocked)
        samples[OWN], explained[OWN] = self._unusual(facts, _is_runnable, _holds_gil)
        explained[GARBAGE] = facts.garbage_ns
        explained[EVALUATION] = max(explained[EVALUATION], facts.validation_ns)
        explained[CHECKPOINT] = max(explained[CHECKPOINT], facts.checkpoint_ns)
        explained[DATA] = max(explained[DATA], facts.wait_ns)
        explained[CONTENTION] = self._queued_ns(facts)
        needed_ns = _SUFFICIENT * facts.excess_ns
        cause = next((cause for cause in CAUSES if explained.get(cause, 0.0) >= needed_ns), UNKNOWN)
        explained_ns = None if cause == UNKNOWN else min(float(explained[cause]), facts.excess_ns)
        return Explanation(cause, explained_ns, self._blamed_frame(facts, cause, samples.get(cause) or facts.samples))

    def _has_frame_of(self, cause: str) -> Callable[[Sample], bool]:
        return lambda sample: any(
            cause in _causes_of_frame(frame.file, frame.name) for frame in self.usual.own(sample.stack)
        )

    def _in_evaluating_function(self, samples: Sequence[Sample], sure: list[Sample]) -> list[Sample]:
        """Return the samples in the outermost function that contains all ``sure`` samples and few other samples.

        Samples of the function without module calls show the loading or scoring of an evaluation.
        """
        stacks = [self.usual.own(sample.stack) for sample in sure]
        shared = stacks[0][: min(common(stacks[0], stack) for stack in stacks)] if stacks else ()
        for frame in shared:
            if frames.is_torch(frame.file) or frames.is_ours(frame.file):
                continue
            matching = [
                sample
                for sample in samples
                if any(called.code is frame.code for called in self.usual.own(sample.stack))
            ]
            # Calls of a small model take only 20% of a rollout.
            if spent(sure) >= 0.1 * spent([sample for sample in matching if not self._has_frame_of(DATA)(sample)]):
                return matching
        return sure

    def _beyond_usual_ns(
        self, facts: StepFacts, samples: Sequence[Sample], is_match: Callable[[Sample], bool]
    ) -> float:
        if not samples:
            return 0.0
        return beyond(spent(samples) / facts.sampled_ns, self.usual.share(is_match)) * facts.sampled_ns

    def _unusual(
        self, facts: StepFacts, is_match: Callable[[Sample], bool], is_longer: Callable[[Sample], bool]
    ) -> tuple[list[Sample], float]:
        """Return the matching samples in code that usual steps do not run, or for which ``is_longer`` is true."""
        matching = list(filter(is_match, facts.samples))
        new, longer = self.usual.unseen(matching, facts.after), list(filter(is_longer, matching))
        longer_ns = self._beyond_usual_ns(facts, longer, is_longer)
        return (new, spent(new)) if spent(new) >= longer_ns else (longer, longer_ns)

    def _queued_ns(self, facts: StepFacts) -> float:
        usual, new = self.usual.waiting, self.usual.unseen(facts.samples, facts.after)
        if facts.waited_ns is None or usual is None or spent(new) >= _SUFFICIENT * facts.sampled_ns:
            return 0.0
        return beyond(min(facts.waited_ns / facts.wall_ns, 1.0), usual) * facts.wall_ns

    def _blamed_frame(self, facts: StepFacts, cause: str, samples: Sequence[Sample]) -> Frame | None:
        """Return the line with most time, in the innermost function that contains half of the samples.

        Return None if the samples cover less than half of the excess, or if the cause can affect any line.
        """
        if cause == GARBAGE:
            return facts.garbage_at
        if cause == CONTENTION or spent(samples) < _SUFFICIENT * facts.excess_ns:
            return None
        functions: Counter[CodeType] = Counter()
        depths: dict[CodeType, int] = {}
        lines: Counter[Frame] = Counter()
        for sample in samples:
            stack = sample.stack
            if cause == EVALUATION:
                stack = tuple(takewhile(lambda frame: frame.name != frames.CALLS_MODULE, stack))
            nameable = self._nameable_frames(stack)
            for code in {frame.code for frame in nameable}:
                functions[code] += sample.spent_ns
            for depth, frame in enumerate(nameable):
                depths[frame.code] = max(depth, depths.get(frame.code, 0))
                lines[frame] += sample.spent_ns if sample.is_exact else 0
        needed_ns = _SUFFICIENT * spent(samples)
        innermost = max(
            (code for code in functions if functions[code] >= needed_ns), key=depths.__getitem__, default=None
        )
        return max((frame for frame in lines if frame.code is innermost), key=lines.__getitem__, default=None)

    def _nameable_frames(self, stack: Stack) -> list[Frame]:
        inner = self.usual.own(stack)
        outer = stack[: len(stack) - len(inner)]
        preferred, fallback = PREFERENCE[:2], PREFERENCE[2:]
        for part, groups in ((inner, preferred), (outer, preferred), (stack, fallback)):
            for origins in groups:
                nameable = [frame for frame in part if self._installation.origin_of(frame.file) in origins]
                if nameable:
                    return nameable
        return []


def _is_runnable(sample: Sample) -> bool:
    return sample.state in (State.COMPUTING, State.QUEUEING)


def _is_blocked(sample: Sample) -> bool:
    return sample.state is State.BLOCKED


def _holds_gil(sample: Sample) -> bool:
    return sample.is_held and bool(sample.stack) and not frames.is_torch(sample.stack[-1].file)


def _is_synchronizing(sample: Sample) -> bool:
    frame = sample.stack[-1] if sample.stack and not sample.is_held else None
    return frame is not None and bool(_SYNCHRONIZES.search(linecache.getline(frame.file, frame.line)))


def _gradient_waits(facts: StepFacts) -> list[Sample]:
    cpu = facts.counters.cpu_ns
    if not facts.is_distributed or cpu is None or cpu > MIN_CPU * facts.sampled_ns:
        return []
    return [sample for sample in facts.samples if sample.stack and frames.BACKWARD.search(sample.stack[-1].file)]


@lru_cache(4096)
def _causes_of_frame(file: str, name: str) -> frozenset[str]:
    is_saving_call = "save" in name or "write" in name
    matches = {
        # the first call of torch.compile imports the compiler, for seconds
        COMPILATION: frames.COMPILES.search(file) or (name == "compile" and file.endswith(frames.TORCH)),
        CHECKPOINT: is_saving_call if frames.SAVES.search(file) else not frames.is_torch(file) and _SAVING.search(name),
        DATA: frames.FETCHES.search(file),
        RANKS: frames.COLLECTIVE.search(file),
    }
    return frozenset(cause for cause, is_match in matches.items() if is_match)
