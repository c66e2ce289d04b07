"""What ends a step: the ways of telling, each with what it takes for it to give way to another one.

A step ends when a DataLoader is asked for a batch and an optimizer has stepped since the last boundary. Where updates
follow each other without a fetch in between, the updates are the steps: of several optimizers, that of the one that
ends a round. Where there are fetches and no updates, as in evaluation, the fetches are.

Where there are 20 backward passes and no update, the program updates by hand, and a backward pass is as good as one.

All of them, and what leads from one to the next; a profiler of its own begins with each of the three that tell steps::

                      a fetch                       20 fetches, no update at all
    Undecided ──────────────────────► ByLoader ────────────────────────────────────► ByBatches
        │                             │      ▲ ▲                                         │
        │        the third round ends │      │ └──────────────── an update ──────────────┘
        │        before two steps did │      │ a fetch, up to the third round
        │                             ▼      │
        └──────────────────────────► ByRounds
                 a round ends

    any of them ── the script profiles itself, or something of ours has failed ──► StandingBy
    any of them ── a framework's own face takes over ──► UntilUpdate, which hears only when the start ends

A way that is settled asks to be told of less: a training of a million steps pays for each look.
"""

from __future__ import annotations

import sys
from typing import Any, Final, Literal

Mode = Literal["loader", "optimizer", "batches", "backward", "call", "process"]
"""What ends a step: a fetch after an update, an update, any fetch, a backward pass, the call of a model; or there are
no steps, and the whole process is recorded. The last two are told by nothing but `perfhooks.launching.early`."""

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


class Round:
    """Learns in which order several optimizers take turns, and tells when the last of them has stepped."""

    def __init__(self) -> None:
        self.count = 0
        """Rounds that have ended."""
        self._order: list[int] = []
        self._last: int | None = None
        self._since = 0

    def ends(self, optimizer: object) -> bool:
        """Whether this update is the last one of a round; known from the second round on."""
        mine = id(optimizer)
        self._since += 1
        if self._last is not None and self._since > 3 * len(self._order) + _LOST:
            self._order, self._last = [], None
        if self._last is None:
            if self._order and mine == self._order[0]:
                self._last = self._order[-1]
                self.count += 1
            elif mine not in self._order:
                self._order.append(mine)
        if mine != self._last:
            return False
        self._since = 0
        self.count += 1
        return True


class Nobody:
    """Stands for the profiler as long as there is none."""

    def step(self) -> None:
        """Nothing is counted."""

    def ask(self, _: int) -> None:
        """Nobody waits."""

    def arrive(self, _: int) -> None:
        """Nobody has waited."""

    def set_aside(self, *_: int) -> None:
        """Nobody has waited."""


NOBODY: Final = Nobody()


class Heard:
    """What was heard of the program; each fetch and each update writes here, whatever comes of it."""

    def __init__(self) -> None:
        self.forget()

    def pass_ended(self, began: int, updates: int, now: int) -> None:
        """No more batches come of a loader: if nothing was learned from those it gave, it is not the training's.

        Args:
            began: When it was asked for its first batch.
            updates: How many there had been by then; where there was none, it may be that there never is.
            now: The time.
        """
        if updates and updates == self.updates:
            self.waiting.set_aside(began, now)

    def forget(self) -> None:
        """Begin anew; who writes here goes on doing so."""
        self.fetches = self.updates = self.backwards = 0
        self.is_updated_by_hand = False
        """Whether backward passes are counted as updates."""
        self.due = 0
        """The number of fetches from which each is looked at."""
        self.armed = False
        """Whether there was an update since the last fetch, of those that arm."""
        self.has_round_ended = False
        """Whether the last update was the last one of a round."""
        self.way: Way = Undecided(self)
        self.waiting: Any = NOBODY
        """Who is told when a batch was asked for and when it came: nobody where that is not the training's thread."""
        self.rounds = Round()
        self.thread: int | None = None
        """The one that updates."""


class Way:
    """A way of telling steps. This one tells none, and hears nothing any more.

    Args:
        heard: What is counted, before a way is asked about it.
    """

    mode: Mode | None = None
    arms = False
    """Whether the first fetch after an update is looked at."""
    due = NEVER
    """The number of fetches from which each is looked at."""
    looks_at_updates = False
    first = 0
    """The number of the first step that is told this way."""

    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def at_fetch(self) -> Answer:
        """What a fetch means that is looked at, and has not happened yet."""

    def at_update(self) -> Answer:
        """What an update means that is looked at, and has happened."""


class StandingBy(Way):
    """Somebody else profiles the program, or something of ours has failed."""


class UntilUpdate(StandingBy):
    """Somebody else profiles it, who does not know when its start ends."""

    looks_at_updates = True

    def at_update(self) -> Answer:
        """The first one ends the start."""
        self.looks_at_updates = False
        return "step"


class Telling(Way):
    """One whose steps are profiled."""

    mode: Mode
    due = 0
    looks_at_updates = True


class Undecided(Way):
    """Nothing was heard so far."""

    arms = True
    due = 0
    looks_at_updates = True

    def at_fetch(self) -> Answer:
        """The loader comes first."""
        return ByLoader(self._heard)

    def at_update(self) -> Answer:
        """Updates follow each other, and there is no loader."""
        return ByRounds(self._heard) if self._heard.has_round_ended else None


class ByLoader(Telling):
    """A fetch ends a step if there was an update since the last one."""

    mode = "loader"
    arms = True

    def __init__(self, heard: Heard) -> None:
        super().__init__(heard)
        self.due = heard.fetches + BATCHES
        self._steps = 0

    def at_fetch(self) -> Answer:
        """A step, or one of many fetches without any update."""
        if self._heard.armed:
            self._steps += 1
            return "step"
        return None if self._heard.updates or self._heard.backwards else ByBatches(self._heard)

    def at_update(self) -> Answer:
        """No step once fetches have ended some; else the updates may turn out to be the steps."""
        if self._steps >= _SURE:
            self.due = NEVER
            # after passes that were accumulated an optimizer may step yet
            self.looks_at_updates = self._heard.is_updated_by_hand
            return None
        has_come_round = self._heard.has_round_ended and self._heard.rounds.count >= _EARLY
        return ByRounds(self._heard) if has_come_round else None


class ByRounds(Telling):
    """An update ends a step: of several optimizers, that of the last one."""

    mode: Mode = "optimizer"

    def __init__(self, heard: Heard) -> None:
        super().__init__(heard)
        if heard.is_updated_by_hand:
            self.mode = "backward"
        self.first = heard.rounds.count

    def at_fetch(self) -> Answer:
        """The first batch, after optimizers were warmed up; later it may be one of a validation."""
        if self._heard.rounds.count <= _EARLY:
            return ByLoader(self._heard)
        self.due = NEVER
        return None

    def at_update(self) -> Answer:
        """A step, if it is the last one of a round."""
        return "step" if self._heard.has_round_ended else None


class ByBatches(Telling):
    """Each fetch ends a step, as there are no updates."""

    mode = "batches"

    def at_fetch(self) -> Answer:
        """Each one is a step."""
        return "step"

    def at_update(self) -> Answer:
        """A training begins, in which fetches have as long to show that they end steps as at the start."""
        self._heard.rounds = Round()
        return ByLoader(self._heard)


Answer = Telling | Literal["step"] | None
"""What follows: another way, the end of a step, or nothing."""
