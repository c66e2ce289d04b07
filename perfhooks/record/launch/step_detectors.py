"""Step detectors: rules that decide which event ends a step, and when one rule replaces another.

A *fetch* gets a batch from a DataLoader. An *update* is a call of ``optimizer.step``. A *round* is a sequence of
updates in which each optimizer steps. A fetch ends a step if an optimizer has stepped since the last step. Updates that
follow each other without a fetch are steps. With several optimizers, the last update of a round ends the step. Fetches
without updates are steps. If a program has no optimizer by its twentieth backward pass, each pass counts as an update.

A new profiler starts when ByLoader, ByBatches or PeriodDetector becomes the detector::

                      a fetch                       20 fetches, no update at all
    Undecided ──────────────────────► ByLoader ────────────────────────────────────► ByBatches
        │                             │      ▲ ▲                                         │
        │        the third round ends │      │ └──────────────── an update ──────────────┘
        │        before two steps end,│      │ a fetch, up to the third round
        │        or fetches have ended│      │
        │                             ▼      │
        └──────────────────────────► PeriodDetector
                 a round ends

    any of them ── the script profiles itself, or perfhooks failed ──► InactiveDetector
    any of them ── an integration takes over ──► BesideIntegration: detects the end of the start-up, and continues as
                                                 ByLoader or PeriodDetector when all loops of the integration have ended
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from perfhooks.core import labels, words
from perfhooks.run.installation import Line, line_of_user

if TYPE_CHECKING:
    from collections.abc import Callable

Mode = Literal["loader", "optimizer", "batches", "backward", "call", "process"]
"""Event that ends a step: a fetch after an update, an update, any fetch, a backward pass, or the call of a model.
``process`` has no steps.
"""

BATCHES: Final = 20
"""Number of batches without an update after which each backward pass counts as an update, or, without backward passes,
each fetch as a step.
"""

NEVER: Final = sys.maxsize
_SETTLED_ROUNDS: Final = 3
"""Number of rounds (updates of all optimizers) after which the step detector is final."""
_SURE_STEPS: Final = 2
"""Number of steps with a fetch after which updates without a fetch no longer change the detector. Before, they change
the detector, because some programs read their loader into a list and train on the list.
"""
_STAGE_ROUNDS: Final = 10
"""Minimum consecutive updates of one optimizer before another optimizer starts a new phase of training."""
_LONE_UPDATES: Final = 3
"""Minimum consecutive updates of an optimizer that ends steps, if other optimizers were used only at the start."""


class Round:
    """Learns the order of the updates by several optimizers, and detects the last update of a round.

    One optimizer, the leader, ends rounds::

        a b a b a b       b leads
        a b b a b b       a leads, because b updates several times in a round
        a ... a b ... b   b replaces a when a has made ten updates in a row, or is deleted
        a b a b a a       a leads again, because b no longer updates
        a a b b a a b b   b leads with its second update
    """

    def __init__(self) -> None:
        self.count = 0
        self._forget()

    def _forget(self) -> None:
        self._order: list[int] = []
        self._repeating: set[int] = set()
        self._leader_key: int | None = None
        self._leader_ref: Callable[[], object] | None = None
        self._last_key = self._run_length = self._since = 0
        self._first_ref: Callable[[], object] | None = None
        self._runs: dict[int, int] = {}
        self._repeats = 0

    def ends(self, optimizer: object) -> bool:
        key, previous_key, run_length = id(optimizer), self._last_key, self._run_length
        self._last_key, self._run_length = key, run_length + 1 if key == previous_key else 1
        self._since += 1
        # three rounds and eight updates without the end of a round: the round was interrupted
        if self._since > 3 * max(len(self._order), sum(self._runs.values()) if self._repeats else 0) + 8:
            self._forget()
        self._first_ref = self._first_ref or weakref.ref(optimizer)
        is_late = previous_key not in (0, key) and self._add_run(
            previous_key, run_length, is_first=self._first_ref() is optimizer
        )
        if self._leader_key is None:
            self._learn(key)
        elif key != self._leader_key:
            is_over = previous_key == self._leader_key and run_length >= _STAGE_ROUNDS
            if is_over or (self._leader_ref is not None and self._leader_ref() is None) or self._has_lost(key):
                self._leader_key, self._leader_ref = key, None
        if key != self._leader_key or 0 < self._repeats != self._run_length <= _STAGE_ROUNDS:
            self.count += is_late
            return is_late
        self._leader_ref = self._leader_ref or weakref.ref(optimizer)
        self._since = 0
        self.count += 1
        return True

    def _add_run(self, key: int, length: int, *, is_first: bool) -> bool:
        self._runs[key] = length
        if self._repeats and key == self._leader_key:
            is_late, self._repeats = length < self._repeats, length
            return is_late
        are_repeated = len(self._runs) > 1 and all(1 < run < _STAGE_ROUNDS for run in self._runs.values())
        if are_repeated and is_first and not self._repeats:
            self._leader_key, self._leader_ref, self._repeats = key, None, length
            self._repeating.update(self._runs)
        return False

    def _learn(self, key: int) -> None:
        if self._order and key == self._order[0]:
            last = self._order[-1]
            self._leader_key = key if last in self._repeating else last
            self.count += 1
        elif key not in self._order:
            self._order.append(key)
        elif self._run_length >= _LONE_UPDATES:
            self._leader_key = key
            self.count += _LONE_UPDATES - 1
        else:
            self._repeating.add(key)

    def _has_lost(self, key: int) -> bool:
        return self._run_length > 1 and key not in self._repeating


class NoProfiler:
    def step(self) -> None: ...

    def ask(self, _: int) -> None: ...

    def arrive(self, _: int) -> None: ...

    def set_aside(self, *_: int | str) -> None: ...

    def passed_back(self, _: tuple[int, int]) -> None: ...


NO_PROFILER: Final = NoProfiler()


class PassBegin(NamedTuple):
    time: int
    fetches: int
    batches: int
    updates: int
    backwards: int
    lines: list[Line]

    @property
    def line(self) -> str:
        return line_of_user(self.lines)


class Events:
    def __init__(self) -> None:
        self.forget()

    def pass_ended(self, since: PassBegin, now: int) -> None:
        """Report the end of a pass over a loader. A pass without an update is a validation.

        A single fetch is no pass, because ``next(iter(loader))`` fetches the batch of a training step. A pass before
        the first update is never a validation, because the program may make no updates at all.
        """
        if since.updates and (since.updates, since.backwards) == (self.updates, self.backwards):
            if self.fetches - since.fetches > 1:
                self.validation_batches += self.batches - since.batches
                self.pulse.set_aside(since.time, now, labels.VALIDATION, since.line)
        elif self.detector.is_sure:
            self.due_update = self.detector.due_update = 0

    def begin_pass(self, now: int, lines: list[Line]) -> PassBegin:
        return PassBegin(now, self.fetches, self.batches, self.updates, self.backwards, lines)

    @property
    def training_batches(self) -> int:
        return self.batches - self.validation_batches

    def counted(self) -> str:
        """Return the counts in words, for example ``8 calls of modules, 2 backward passes``; empty without events."""
        counts = (
            (self.calls, "call of a module", "calls of modules"),
            (self.backwards, "backward pass", "backward passes"),
            (self.fetches, "fetch", "fetches"),
            (self.updates, "update", None),
        )
        return ", ".join(words.count(*count) for count in counts if count[0])

    def forget(self) -> None:
        """Reset all counts in place, because callers keep references to them."""
        self.calls = self.fetches = self.updates = self.backwards = 0
        self.batches = self.validation_batches = 0
        """Fetches that have returned a batch; the last fetch of a pass returns none."""
        self.is_updated_by_hand = False
        """Whether backward passes count as updates."""
        self.due = self.due_update = 0
        """Minimum counts of fetches and of updates before the detector is called."""
        self.armed = False
        self.has_round_ended = False
        self.detector: StepDetector = Undecided(self)
        self.pulse: Any = NO_PROFILER
        self.rounds = Round()
        self.thread: int | None = None


def has_made_optimizer() -> bool:
    """Return whether an optimizer exists: its constructor replaces the ``step`` of its class by a wrapper."""
    optim = sys.modules.get("torch.optim")
    classes = [] if optim is None else [optim.Optimizer]
    while classes:
        kind = classes.pop()
        if hasattr(kind.step, "hooked"):
            return True
        classes += kind.__subclasses__()
    return False


class StepDetector:
    """Base class, which detects no steps and receives no events."""

    mode: Mode | None = None
    arms = False
    """Whether `at_fetch` is called for the first fetch after each update."""
    due = due_update = NEVER
    is_sure = False
    """Whether it is certain that fetches end steps. If so, updates end no steps while the program fetches batches."""
    first = 0

    def __init__(self, events: Events) -> None:
        self._events = events

    def at_fetch(self) -> Answer:
        """Process the start of a fetch."""

    def at_update(self) -> Answer:
        """Process the end of an update."""


class InactiveDetector(StepDetector):
    """Inactive because another profiler runs or perfhooks failed."""


class BesideIntegration(InactiveDetector):
    """Detects the end of the start-up, and training steps outside of the integration's loops."""

    due_update = 0

    def __init__(self, events: Events, is_over: Callable[[], bool]) -> None:
        super().__init__(events)
        self._is_over = is_over
        self._fetches: int | None = None

    def at_update(self) -> Answer:
        events, before, is_first = self._events, self._fetches, not self.due_update
        self.due_update = events.updates + BATCHES
        self._fetches = events.fetches if not is_first and self._is_over() else None
        if is_first or before is None or self._fetches is None:
            return "step" if is_first else None
        events.rounds = Round()
        return ByLoader(events) if events.fetches > before else PeriodDetector(events)


class ActiveDetector(StepDetector):
    mode: Mode
    due = due_update = 0
    continues = False
    """Whether the steps of the previous detector remain valid."""


class Undecided(StepDetector):
    arms = True
    due = due_update = 0

    def at_fetch(self) -> Answer:
        return ByLoader(self._events)

    def at_update(self) -> Answer:
        return PeriodDetector(self._events) if self._events.has_round_ended else None


class ByLoader(ActiveDetector):
    mode = "loader"
    arms = True

    def __init__(self, events: Events, first: int = 0) -> None:
        super().__init__(events)
        self.due = events.fetches + BATCHES
        self.first = first
        self._steps = 0
        self._updates, self._rounds = events.updates, events.rounds.count
        self._max_updates = 1

    def at_fetch(self) -> Answer:
        events = self._events
        if not events.armed:
            return None if events.updates or events.backwards else ByBatches(events)
        if events.is_updated_by_hand and not self._steps and not self.first:
            return ByLoader(events, events.backwards)
        self._steps += 1
        self.is_sure = self._steps >= _SURE_STEPS
        if self.is_sure:
            self._max_updates = max(self._max_updates, events.updates - self._updates)
            self.due = NEVER
            # an optimizer may still step after accumulated passes
            self.due_update = 0 if events.is_updated_by_hand else events.updates + 3 * self._max_updates + 4
        self._updates, self._rounds = events.updates, events.rounds.count
        return "step"

    def at_update(self) -> Answer:
        events = self._events
        if self.is_sure:
            is_one = events.has_round_ended and events.updates - self._updates > self._max_updates
        else:
            is_one = events.has_round_ended and events.rounds.count - self._rounds >= _SETTLED_ROUNDS
        return PeriodDetector(events, continues=self.is_sure) if is_one else None


class PeriodDetector(ActiveDetector):
    mode: Mode = "optimizer"

    def __init__(self, events: Events, *, continues: bool = False) -> None:
        super().__init__(events)
        if events.is_updated_by_hand:
            self.mode = "backward"
        self.first = events.rounds.count
        self.continues = continues

    def at_fetch(self) -> Answer:
        """Switch to `ByLoader` in the first rounds of updates; later fetches may belong to a validation."""
        if self._events.rounds.count <= _SETTLED_ROUNDS and not self.continues:
            return ByLoader(self._events)
        self.due = NEVER
        return None

    def at_update(self) -> Answer:
        return "step" if self._events.has_round_ended else None


class ByBatches(ActiveDetector):
    mode = "batches"

    def at_fetch(self) -> Answer:
        return "step"

    def at_update(self) -> Answer:
        return ByLoader(self._events)


Answer = ActiveDetector | Literal["step"] | None
