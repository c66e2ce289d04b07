"""What a run usually does: what is taken off what was seen in a slow step, as it is no cause of anything."""

from __future__ import annotations

from collections import deque
from itertools import dropwhile
from typing import TYPE_CHECKING, Final

from perfhooks.core import frames
from perfhooks.record.watch.sampling import common

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.record.watch.counters import Counters
    from perfhooks.record.watch.looks import Look
    from perfhooks.record.watch.sampling import Stack

MANY: Final = 20
"""Looks after which what none has seen is unusual: of what takes a tenth of a step, seven in eight have seen some."""
_KEPT: Final = 200
_FORGETS: Final = 0.9
"""Of what was counted, so much is kept when a second more is added: what was a minute ago says nothing of now."""


def beyond(share: float, usual: float) -> float:
    """How much of some time is explained by something that takes a share of it, and usually another one.

    Where every step waits 80% of its time for a processor, one that waits 80% is not longer for that. One that waits
    96% is five times as long as it would be, so that is 80% of it.
    """
    return max(share - usual, 0.0) / (1 - usual) if usual < 1 else 0.0


class UsualSteps:
    """Looks at steps that were not slow, and what was counted in them."""

    def __init__(self) -> None:
        self.looks: deque[Look] = deque(maxlen=_KEPT)
        self.prefix: Stack | None = None
        """The functions that the loop is in whatever it does; they are the cause of nothing."""
        self._spent = self._waited = self._computed = self._system = 0.0

    def add(self, look: Look) -> None:
        """Take what was seen in a step that is not slow."""
        if look.stack:
            self.looks.append(look)
            shared = look.stack if self.prefix is None else self.prefix[: common(self.prefix, look.stack)]
            # the loop is never in a model, though it may have been seen there each time
            self.prefix = tuple(dropwhile(lambda frame: frames.is_torch(frame.file), shared[::-1]))[::-1]

    def count(self, spent_ns: int, counts: Counters) -> None:
        """Take what was counted in some time without a slow step."""
        known = (spent_ns, counts.waited_ns or 0, counts.cpu_ns or 0, counts.system_ns or 0)
        totals = (self._spent, self._waited, self._computed, self._system)
        self._spent, self._waited, self._computed, self._system = (
            _FORGETS * total + more for total, more in zip(totals, known, strict=True)
        )

    @property
    def waiting(self) -> float | None:
        """The share of its time that the thread waits for a processor."""
        return min(self._waited / self._spent, 1.0) if self._spent else None

    @property
    def runnable(self) -> float:
        """The share of its time in which the thread computes or waits for a processor."""
        return min((self._waited + self._computed) / self._spent, 1.0) if self._spent else 1.0

    @property
    def system(self) -> float:
        """The share of its computing that is the system's."""
        return min(self._system / self._computed, 1.0) if self._computed else 0.0

    def own(self, stack: Stack) -> Stack:
        """A stack less the functions that the loop is always in."""
        return stack if self.prefix is None else stack[common(self.prefix, stack) :]

    def share(self, is_so: Callable[[Look], bool]) -> float:
        """Of how many of the looks something is so."""
        return sum(map(is_so, self.looks)) / len(self.looks) if self.looks else 0.0

    def unseen(self, looks: Iterable[Look], after: Stack = ()) -> list[Look]:
        """Those of some looks in which the loop was at a line, or in a function below, that usual steps are not at.

        Args:
            looks: At a slow step.
            after: Where the training was after it: if it is still there, it has gone on to another loop.
        """
        if len(self.looks) < MANY:
            return []
        known = {self._place(stack) for stack in (after, *(look.stack for look in self.looks))}
        return [look for look in looks if self._place(look.stack) not in known]

    def _place(self, stack: Stack) -> tuple[object, ...]:
        """Where the loop is: its own line, and what it has called there."""
        depth = 0 if self.prefix is None else common(self.prefix, stack)
        return depth, stack[max(depth - 1, 0) : depth], *(frame.code for frame in stack[depth : depth + 1])
