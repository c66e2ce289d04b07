"""Samples and counters of usual (not slow) steps, which are subtracted from those of slow steps."""

from __future__ import annotations

from collections import deque
from itertools import dropwhile, takewhile
from typing import TYPE_CHECKING, Final

from perfhooks.core import frames
from perfhooks.record.watch.sampling import common

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.record.watch.samples import Sample
    from perfhooks.record.watch.sampling import Stack

MIN_SAMPLES: Final = 20
"""Minimum samples of usual steps. If a frame takes 10% of a step, 20 samples contain it with probability 7/8."""


def beyond(share: float, usual: float) -> float:
    """Return the share of a slow step that a cause explains, beyond the cause's share of usual steps.

    If each step waits 80% of its time for a CPU, a wait of 80% explains nothing. A wait of 96% makes the step five
    times as long, so it explains 80%.
    """
    return max(share - usual, 0.0) / (1 - usual) if usual < 1 else 0.0


class UsualSteps:
    def __init__(self) -> None:
        self.samples: deque[Sample] = deque(maxlen=200)
        self.prefix: Stack | None = None
        """Outer frames that all samples share. Shared frames are never a cause."""
        self._spent = self._waited = 0.0

    def add(self, sample: Sample) -> None:
        if sample.stack:
            self.samples.append(sample)
            # the loop is outside of fetches and models, even if all samples are inside
            outer = tuple(takewhile(lambda frame: not frames.FETCHES.search(frame.file), sample.stack))
            shared = outer if self.prefix is None else self.prefix[: common(self.prefix, outer)]
            self.prefix = tuple(dropwhile(lambda frame: frames.is_torch(frame.file), shared[::-1]))[::-1]

    def count(self, spent_ns: int, waited_ns: int) -> None:
        self._spent, self._waited = 0.9 * self._spent + spent_ns, 0.9 * self._waited + waited_ns

    @property
    def waiting(self) -> float | None:
        """Run-queue wait, as a fraction of the time; None if unknown."""
        return min(self._waited / self._spent, 1.0) if self._spent else None

    def own(self, stack: Stack) -> Stack:
        return stack if self.prefix is None else stack[common(self.prefix, stack) :]

    def share(self, matches: Callable[[Sample], bool]) -> float:
        """Return the share of usual samples that match, out of at least `MIN_SAMPLES`."""
        return sum(map(matches, self.samples)) / max(len(self.samples), MIN_SAMPLES)

    def unseen(self, samples: Iterable[Sample], after: Stack = ()) -> list[Sample]:
        """Return the samples whose line in the loop, or function called by it, is in no sample of usual steps.

        The stack ``after`` the step counts as usual, because the training may have moved to another loop.
        """
        if len(self.samples) < MIN_SAMPLES:
            return []
        usual_keys = {self._location(stack) for stack in (after, *(sample.stack for sample in self.samples))}
        return [sample for sample in samples if self._location(sample.stack) not in usual_keys]

    def _location(self, stack: Stack) -> tuple[object, ...]:
        depth = 0 if self.prefix is None else common(self.prefix, stack)
        return depth, stack[max(depth - 1, 0) : depth], *(frame.code for frame in stack[depth : depth + 1])
