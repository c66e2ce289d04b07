"""What ends a step: the ways of telling, each with what it takes for it to give way to another one.

A step ends when a DataLoader is asked for a batch and an optimizer has stepped since the last boundary. Where updates
follow each other without a fetch in between, the updates are the steps: of several optimizers, that of the one that
ends a round. Where there are fetches and no updates, as in evaluation, the fetches are.

If a program has made no optimizer by its twentieth backward pass, it updates by hand: each pass counts as an update.

All of them, and what leads from one to the next; a profiler of its own begins with each of the three that tell steps::

                      a fetch                       20 fetches, no update at all
    Undecided ──────────────────────► ByLoader ────────────────────────────────────► ByBatches
        │                             │      ▲ ▲                                         │
        │        the third round ends │      │ └──────────────── an update ──────────────┘
        │        before two steps did,│      │ a fetch, up to the third round
        or fetches have ended│      │
        │                             ▼      │
        └──────────────────────────► ByRounds
                 a round ends

    any of them ── the script profiles itself, or something of ours has failed ──► StandingBy
    any of them ── a framework's own face takes over ──► BesideFace, which hears when the start ends, and goes on as
                                                         ByLoader or ByRounds when the face's loops have ended

A way that is settled asks to be told of less: a training of a million steps pays for each look.
"""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from perfhooks.core import labels

if TYPE_CHECKING:
    from collections.abc import Callable

Mode = Literal["loader", "optimizer", "batches", "backward", "call", "process"]
"""What ends a step: a fetch after an update, an update, any fetch, a backward pass, the call of a model; or there are
no steps, and the whole process is recorded. The last two are told by nothing but `perfhooks.record.launch.early`."""

BATCHES: Final = 20
"""Fetches without any update after which they count as steps: a sanity check before training fetches fewer."""
BACKWARDS: Final = 20
"""Backward passes without any update after which they count as updates: fewer are accumulated."""

NEVER: Final = sys.maxsize
"""A number of fetches that no program makes."""
_EARLY: Final = 3
"""Rounds of updates after which a fetch no longer changes what a step is; optimizers are warmed up with fewer."""
_SURE: Final = 2
"""Steps that ended with a fetch after which updates no longer change what a step is. Fetches alone say nothing: a
loader may be read into a list, on which many updates follow."""
_LOST: Final = 8
"""Updates beyond three rounds' after which a round that never ended is forgotten: its optimizer is gone."""
_STAGE: Final = 10
"""Rounds of one optimizer alone after which another one begins a stage of its own: one that joins comes sooner."""
_ALONE: Final = 3
"""Updates in a row by one that was not the first, after which the others were a start, and it is alone."""
_MISSED: Final = 4
"""Updates beyond three times those of a step, without a fetch: the training goes on without its loader."""


class Round:
    """Learns in which order several optimizers take turns, and tells when the last of them has stepped.

    The one that ends rounds leads, and the others are passed over, also one that joins later::

        a b a b a b       b leads
        a b b a b b       a leads: b steps several times in a round
        a ... a b ... b   b leads after a, as soon as it steps: a is gone, or had stepped ten times in a row
        a b a b a a       a leads from its second step in a row on: it has lost b
        a a b b a a b b   b leads with its second step: all step several times in a row, so a round has all of them
    """

    def __init__(self) -> None:
        self.count = 0
        """Rounds that have ended."""
        self._forget()

    def _forget(self) -> None:
        self._order: list[int] = []
        self._several: set[int] = set()
        """Those that step several times in a round."""
        self._last: int | None = None
        """The one that leads; None until that is known."""
        self._leader: Callable[[], object] | None = None
        """Gives it as long as it is there."""
        self._before = self._in_a_row = self._since = 0
        self._first: Callable[[], object] | None = None
        """Returns the optimizer that stepped first, as long as it exists: a number may be used again."""
        self._runs: dict[int, int] = {}
        """How often each optimizer last stepped in a row."""
        self._repeats = 0
        """How often the one that leads steps in a row, if all of them do so several times; else 0."""

    def ends(self, optimizer: object) -> bool:
        """Whether this update is the last one of a round; known from the second round on."""
        mine, before, in_a_row = id(optimizer), self._before, self._in_a_row
        self._before, self._in_a_row = mine, in_a_row + 1 if mine == before else 1
        self._since += 1
        if self._since > 3 * max(len(self._order), sum(self._runs.values()) if self._repeats else 0) + _LOST:
            self._forget()
        self._first = self._first or weakref.ref(optimizer)
        is_late = before not in (0, mine) and self._note_run(before, in_a_row, is_first=self._first() is optimizer)
        if self._last is None:
            self._learn(mine)
        elif mine != self._last:
            is_over = before == self._last and in_a_row >= _STAGE
            if is_over or (self._leader is not None and self._leader() is None) or self._has_lost(mine):
                self._last, self._leader = mine, None
        if mine != self._last or 0 < self._repeats != self._in_a_row <= _STAGE:
            self.count += is_late
            return is_late
        self._leader = self._leader or weakref.ref(optimizer)
        self._since = 0
        self.count += 1
        return True

    def _note_run(self, before: int, length: int, *, is_first: bool) -> bool:
        """Note how many times in a row an optimizer has stepped before another one.

        Args:
            before: The optimizer.
            length: How many times.
            is_first: Whether the other one is that of the first step, so that a round has ended.

        Returns:
            Whether it leads, and stepped less often than before: then its round has ended unnoticed.
        """
        self._runs[before] = length
        if self._repeats and before == self._last:
            is_late, self._repeats = length < self._repeats, length
            return is_late
        are_repeated = len(self._runs) > 1 and all(1 < run < _STAGE for run in self._runs.values())
        if are_repeated and is_first and not self._repeats:
            self._last, self._leader, self._repeats = before, None, length
            self._several.update(self._runs)
        return False

    def _learn(self, mine: int) -> None:
        if self._order and mine == self._order[0]:
            last = self._order[-1]
            self._last = mine if last in self._several else last
            self.count += 1
        elif mine not in self._order:
            self._order.append(mine)
        elif self._in_a_row >= _ALONE:
            self._last = mine
            self.count += _ALONE - 1
        else:
            self._several.add(mine)

    def _has_lost(self, mine: int) -> bool:
        """Whether it goes on without the one that leads."""
        return self._in_a_row > 1 and mine not in self._several


class Nobody:
    """Stands for the profiler as long as there is none."""

    def step(self) -> None:
        """Nothing is counted."""

    def ask(self, _: int) -> None:
        """Nobody waits."""

    def arrive(self, _: int) -> None:
        """Nobody has waited."""

    def set_aside(self, *_: int | str) -> None:
        """Nobody has waited."""

    def passed_back(self, _: tuple[int, int]) -> None:
        """Nobody keeps the time."""


NOBODY: Final = Nobody()


class PassBegin(NamedTuple):
    """The counts when a pass over a loader began."""

    time: int
    fetches: int
    updates: int
    backwards: int
    line: str
    """The line of the program that began it."""


class Events:
    """What was heard of the program; each fetch and each update writes here, whatever comes of it."""

    def __init__(self) -> None:
        self.forget()

    def pass_ended(self, since: PassBegin, now: int) -> None:
        """Classify a pass over a loader that has ended: without an update it is a validation.

        A single fetch is no pass: ``next(iter(loader))`` fetches the batch of a training step.

        Args:
            since: The counts when it began; before the first update it may be that there never is one.
            now: The time.
        """
        if since.updates and (since.updates, since.backwards) == (self.updates, self.backwards):
            if self.fetches - since.fetches > 1:
                self.waiting.set_aside(since.time, now, labels.VALIDATION, since.line)
        elif self.way.is_sure:  # what follows may have no loader
            self.due_update = self.way.due_update = 0

    def begin_pass(self, now: int, line: str) -> PassBegin:
        """Return the counts for a pass over a loader that begins."""
        return PassBegin(now, self.fetches, self.updates, self.backwards, line)

    def forget(self) -> None:
        """Begin anew; who writes here goes on doing so."""
        self.fetches = self.updates = self.backwards = 0
        self.is_updated_by_hand = False
        """Whether backward passes are counted as updates."""
        self.due = self.due_update = 0
        """The numbers of fetches and of updates from which each is looked at."""
        self.armed = False
        """Whether there was an update since the last fetch, of those that arm."""
        self.has_round_ended = False
        """Whether the last update was the last one of a round."""
        self.way: StepDetector = Undecided(self)
        self.waiting: Any = NOBODY
        """Who is told when a batch was asked for and when it came: nobody where that is not the training's thread."""
        self.rounds = Round()
        self.thread: int | None = None
        """The one that updates."""


class StepDetector:
    """A way of telling steps. This one tells none, and hears nothing any more.

    Args:
        heard: What is counted, before a way is asked about it.
    """

    mode: Mode | None = None
    arms = False
    """Whether the first fetch after an update is looked at."""
    due = due_update = NEVER
    """The numbers of fetches and of updates from which each is looked at."""
    is_sure = False
    """Whether so many steps have ended with a fetch that updates end none, as long as there are fetches."""
    first = 0
    """The number of the first step that is told this way."""

    def __init__(self, heard: Events) -> None:
        self._heard = heard

    def at_fetch(self) -> Answer:
        """What a fetch means that is looked at, and has not happened yet."""

    def at_update(self) -> Answer:
        """What an update means that is looked at, and has happened."""


class InactiveDetector(StepDetector):
    """Somebody else profiles the program, or something of ours has failed."""


class BesideFace(InactiveDetector):
    """A framework's face profiles it, which knows neither when its start ends, nor what is trained without it.

    Args:
        heard: What is counted.
        is_over: Tells whether none of the face's loops goes on.
    """

    due_update = 0

    def __init__(self, heard: Events, is_over: Callable[[], bool]) -> None:
        super().__init__(heard)
        self._is_over = is_over
        self._fetches: int | None = None
        """By the last look, if no loop of the face went on then."""

    def at_update(self) -> Answer:
        """The first one ends the start; from then on it is looked seldom whether somebody else trains."""
        heard, before, is_first = self._heard, self._fetches, not self.due_update
        self.due_update = heard.updates + BATCHES
        self._fetches = heard.fetches if not is_first and self._is_over() else None
        if is_first or before is None or self._fetches is None:
            return "step" if is_first else None
        heard.rounds = Round()
        return ByLoader(heard) if heard.fetches > before else PeriodDetector(heard)


class ActiveDetector(StepDetector):
    """One whose steps are profiled."""

    mode: Mode
    due = due_update = 0
    goes_on = False
    """Whether the steps before were steps as well, told in another way: the profiler goes on."""


class Undecided(StepDetector):
    """Nothing was heard so far."""

    arms = True
    due = due_update = 0

    def at_fetch(self) -> Answer:
        """The loader comes first."""
        return ByLoader(self._heard)

    def at_update(self) -> Answer:
        """Updates follow each other, and there is no loader."""
        return PeriodDetector(self._heard) if self._heard.has_round_ended else None


class ByLoader(ActiveDetector):
    """A fetch ends a step if there was an update since the last one."""

    mode = "loader"
    arms = True

    def __init__(self, heard: Events, first: int = 0) -> None:
        super().__init__(heard)
        self.due = heard.fetches + BATCHES
        self.first = first
        self._steps = 0
        self._updates, self._rounds = heard.updates, heard.rounds.count
        """By the end of the last step."""
        self._most = 1
        """Updates of a step."""

    def at_fetch(self) -> Answer:
        """A step, or one of many fetches without any update."""
        heard = self._heard
        if not heard.armed:
            return None if heard.updates or heard.backwards else ByBatches(heard)
        if heard.is_updated_by_hand and not self._steps and not self.first:
            return ByLoader(heard, heard.backwards)  # so many steps nobody knew of
        self._steps += 1
        self.is_sure = self._steps >= _SURE
        if self.is_sure:
            self._most = max(self._most, heard.updates - self._updates)
            self.due = NEVER
            # after passes that were accumulated an optimizer may step yet
            self.due_update = 0 if heard.is_updated_by_hand else heard.updates + 3 * self._most + _MISSED
        self._updates, self._rounds = heard.updates, heard.rounds.count
        return "step"

    def at_update(self) -> Answer:
        """Updates may turn out to be the steps; once fetches have ended some, only if there are no more of these."""
        heard = self._heard
        if self.is_sure:
            is_one = heard.has_round_ended and heard.updates - self._updates > self._most
        else:
            is_one = heard.has_round_ended and heard.rounds.count - self._rounds >= _EARLY
        return PeriodDetector(heard, goes_on=self.is_sure) if is_one else None


class PeriodDetector(ActiveDetector):
    """An update ends a step: of several optimizers, that of the last one."""

    mode: Mode = "optimizer"

    def __init__(self, heard: Events, *, goes_on: bool = False) -> None:
        super().__init__(heard)
        if heard.is_updated_by_hand:
            self.mode = "backward"
        self.first = heard.rounds.count
        self.goes_on = goes_on

    def at_fetch(self) -> Answer:
        """The first batch, after optimizers were warmed up; later it may be one of a validation."""
        if self._heard.rounds.count <= _EARLY and not self.goes_on:
            return ByLoader(self._heard)
        self.due = NEVER
        return None

    def at_update(self) -> Answer:
        """A step, if it is the last one of a round."""
        return "step" if self._heard.has_round_ended else None


class ByBatches(ActiveDetector):
    """Each fetch ends a step, as there are no updates."""

    mode = "batches"

    def at_fetch(self) -> Answer:
        """Each one is a step."""
        return "step"

    def at_update(self) -> Answer:
        """A training begins, in which fetches have as long to show that they end steps as at the start."""
        return ByLoader(self._heard)


Answer = ActiveDetector | Literal["step"] | None
"""What follows: another way, the end of a step, or nothing."""
