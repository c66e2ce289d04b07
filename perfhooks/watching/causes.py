"""Why a step was slow: what was seen in it, and how much of its excess that explains."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks import frames
from perfhooks.trace.names.whose import PREFERENCE
from perfhooks.watching.sampling import common

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.run.installation import Installation
    from perfhooks.watching.counters import Counters
    from perfhooks.watching.sampling import Frame, Stack

GARBAGE: Final = "garbage collection"
COMPILATION: Final = "compilation"
CHECKPOINT: Final = "checkpoint"
VALIDATION: Final = "validation"
DATA: Final = "data"
RANKS: Final = "other ranks"
PROCESSOR: Final = "busy processor"
ALLOCATOR: Final = "allocator"
CLOCK: Final = "throttled clock"
UNKNOWN: Final = "unknown"

SEEN_BY: Final = {
    GARBAGE: "Python's own callbacks",
    COMPILATION: "stacks inside of torch.compile or Triton",
    CHECKPOINT: "stacks inside of torch.save and the like, or of a function called save, checkpoint, ...",
    VALIDATION: "stacks inside of a function called validate, evaluate, ...",
    DATA: "the wait for data; stacks inside of a DataLoader",
    RANKS: "stacks inside of torch.distributed; a backward pass of a job with ranks that computes nothing",
    PROCESSOR: "Linux's count of how long the thread could have run and waited, as other programs or threads ran",
    ALLOCATOR: "retries of the device's allocator, where nothing else explains it",
    CLOCK: "a device clock below 80% of its best, where it can be read and nothing else explains it",
    UNKNOWN: "none of these; the line is there all the same",
}
"""How each cause is told; the order is that in which they are tried. The page and the site say it from here."""

_ENOUGH: Final = 0.5
"""What explains less than this share of the excess is not the cause: two may add up, but one of them is larger."""
_WAITING: Final = 0.25
"""A thread that computes less than this share of the time waits for somebody."""

_SAVING: Final = re.compile(r"^_*(?:save|checkpoint|dump|write)(?:_|$)|save_checkpoint|(?:^|_)saving")
_VALIDATES: Final = re.compile(r"^_*(?:run_)?(?:valid\w*|evaluat\w*|eval|val)(?:_|$)")


class StepFacts(NamedTuple):
    """All that is known of one slow step."""

    wall_ns: int
    median_ns: float
    wait_ns: int
    """For data; -1 where nobody measured."""
    garbage_ns: int
    garbage_at: Frame | None
    samples: Sequence[tuple[Stack, int]]
    """Where the thread was, each for so many nanoseconds, from the time on at which the step had become slow."""
    counters: Counters
    """What was counted meanwhile."""
    is_distributed: bool
    """Whether the process belongs to others."""
    clock_share: float | None
    """The device's clock over the fastest one seen."""

    @property
    def excess_ns(self) -> float:
        """What it took more than others."""
        return self.wall_ns - self.median_ns

    @property
    def sampled_ns(self) -> int:
        """How long it was sampled."""
        return sum(spent for _, spent in self.samples)


class Explanation(NamedTuple):
    """The cause of a slow step."""

    cause: str
    explained_ns: float | None
    """None where that cannot be told."""
    frame: Frame | None
    """The line of code; None where nobody saw one."""


class Explainer:
    """Finds the cause of slow steps of one process.

    Args:
        installation: Tells whose a file is.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self._usual: Stack | None = None
        """The functions that the loop is in whatever it does; they are the cause of nothing."""

    def learn(self, stack: Stack) -> None:
        """Take where the thread is in a step that is not slow."""
        if stack:
            shared = len(stack) if self._usual is None else common(self._usual, stack)
            self._usual = stack[:shared]

    def explain(self, seen: StepFacts) -> Explanation:
        """The cause: the first, from the narrowest on, that explains enough of the excess."""
        matching = {cause: self._matching(seen, test) for cause, test in _TESTS}
        matching[RANKS] += [] if matching[RANKS] else self._waiting_in_backward(seen)
        explains = {cause: self._share(seen, samples) * seen.excess_ns for cause, samples in matching.items()}
        explains[DATA] = max(explains[DATA], min(float(seen.wait_ns), seen.excess_ns))
        explains = {GARBAGE: min(float(seen.garbage_ns), seen.excess_ns), **explains}
        explains[PROCESSOR] = self._queued(seen) * seen.excess_ns
        for cause, explained in explains.items():
            if explained >= _ENOUGH * seen.excess_ns:
                frame = seen.garbage_at if cause == GARBAGE else self._line(matching.get(cause) or seen.samples)
                return Explanation(cause, explained, frame)
        cause = UNKNOWN
        if seen.counters.retries:
            cause = ALLOCATOR
        elif seen.clock_share is not None and seen.clock_share < _THROTTLED:
            cause = CLOCK
        return Explanation(cause, None, self._line(seen.samples))

    def _matching(self, seen: StepFacts, test: Callable[[Frame], bool]) -> list[tuple[Stack, int]]:
        return [(stack, spent) for stack, spent in seen.samples if any(map(test, self._own(stack)))]

    def _own(self, stack: Stack) -> Stack:
        """A stack less the functions that the loop is always in."""
        return stack if self._usual is None else stack[common(self._usual, stack) :]

    @staticmethod
    def _share(seen: StepFacts, samples: Sequence[tuple[Stack, int]]) -> float:
        return sum(spent for _, spent in samples) / seen.sampled_ns if samples else 0.0

    @staticmethod
    def _queued(seen: StepFacts) -> float:
        """The share of the time in which the thread could have run and others had its processor."""
        waited = seen.counters.waited_ns
        return min(waited / seen.sampled_ns, 1.0) if waited and seen.samples else 0.0

    @staticmethod
    def _waiting_in_backward(seen: StepFacts) -> list[tuple[Stack, int]]:
        """A backward pass that does not compute waits for the gradients of others."""
        cpu = seen.counters.cpu_ns
        if not seen.is_distributed or cpu is None or cpu > _WAITING * seen.sampled_ns:
            return []
        return [(stack, spent) for stack, spent in seen.samples if stack and frames.BACKWARD.search(stack[-1].file)]

    def _line(self, samples: Sequence[tuple[Stack, int]]) -> Frame | None:
        """The line that most time was spent in, of the user's if there is one in the stack."""
        spent: Counter[Frame] = Counter()
        for stack, time in samples:
            frame = self._named(stack)
            if frame is not None:
                spent[frame] += time
        return spent.most_common(1)[0][0] if spent else None

    def _named(self, stack: Stack) -> Frame | None:
        for origins in PREFERENCE:
            for frame in reversed(stack):
                if self._installation.origin_of(frame.file) in origins:
                    return frame
        return None


_THROTTLED: Final = 0.8
"""A clock below this share of its best is throttled: boost clocks of one device differ by a tenth."""


def _saves(frame: Frame) -> bool:
    if frames.SAVES.search(frame.file):
        return "save" in frame.name or "write" in frame.name
    return not frames.is_torch(frame.file) and bool(_SAVING.search(frame.name))


_TESTS: Final[tuple[tuple[str, Callable[[Frame], bool]], ...]] = (
    (COMPILATION, lambda frame: bool(frames.COMPILES.search(frame.file))),
    (CHECKPOINT, _saves),
    (VALIDATION, lambda frame: not frames.is_torch(frame.file) and bool(_VALIDATES.search(frame.name))),
    (DATA, lambda frame: bool(frames.FETCHES.search(frame.file))),
    (RANKS, lambda frame: bool(frames.COLLECTIVE.search(frame.file))),
)
