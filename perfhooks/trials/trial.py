"""The recorded operators that cost most, each run as recorded and in every way that makes sense for it.

Here is what is asked and what came of it; a child process runs them, see `perfhooks.trials.bench`.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.trials import bench, inputs
from perfhooks.trials.bench import SHORTEST_S, Alone, Tried
from perfhooks.trials.child import ChildProcess, DeadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run.circumstances import Circumstances
    from perfhooks.trials.bench import TrialOptions
    from perfhooks.trials.cut import Group, OperatorSelection

COMPARABLE: Final = (0.5, 2.0)
"""A call that takes less or more than this by itself than it took in the training says nothing about the training: its
inputs lay in other caches, or others used the machine."""


class Saving(NamedTuple):
    """Milliseconds by which a step would be shorter, if nothing else changes."""

    least: float
    most: float

    @property
    def is_sure(self) -> bool:
        """Whether it is one number."""
        return self.least == self.most

    @classmethod
    def sum(cls, savings: Iterable[Saving]) -> Saving:
        """All of them together."""
        ends = [*savings]
        return cls(sum(each.least for each in ends), sum(each.most for each in ends))


@dataclass(kw_only=True)
class TriedOperator:
    """One operator, and what was tried with it."""

    group: Group
    alone_ms: float | None = None
    """What a call takes by itself; None where it could not be run."""
    problem: str = ""
    tried: list[Tried] = field(default_factory=list)

    @property
    def beside_recorded(self) -> float | None:
        """Its time by itself, as a multiple of what was recorded."""
        return None if self.alone_ms is None or not self.group.call_ms else self.alone_ms / self.group.call_ms

    @property
    def is_comparable(self) -> bool:
        """Whether what is measured here says something about the training."""
        ratio = self.beside_recorded
        return ratio is not None and COMPARABLE[0] <= ratio <= COMPARABLE[1]

    def saving(self, tried: Tried) -> Saving | None:
        """How much shorter a step would be; None where nothing can be said of it.

        A range where it is not decided which is faster, and where the call alone took another time than in the
        training: then it is only known of the time that both have in common that it is the operator's own.
        """
        if tried.timing is None or tried.is_wrong or not self.beside_recorded:
            return None
        part = 0.0 if tried.timing.outcome == "same" else self.group.step_ms * (1 - tried.timing.ratio)
        if tried.timing.outcome == "undecided":
            return Saving(0.0, max(part, 0.0))
        common = 1.0 if self.is_comparable else min(self.beside_recorded, 1 / self.beside_recorded)
        return Saving(*sorted((common * part, part)))


@dataclass(kw_only=True)
class Trial:
    """What was tried with a window."""

    cut: OperatorSelection
    step_ms: float
    device: str
    rows: list[TriedOperator] = field(default_factory=list)
    is_interrupted: bool = False
    is_out_of_time: bool = False
    """Whether there were more operators than there was time for."""

    def saved(self) -> dict[str, list[Saving]]:
        """By how many milliseconds each variant makes a step shorter, with each of the operators that it makes faster.

        What is wrong counts for nothing. The variant that saves most is first.
        """
        saved: dict[str, list[Saving]] = {}
        for row in self.rows:
            for tried in row.tried:
                if (saving := row.saving(tried)) is not None and saving.most > 0:
                    saved.setdefault(tried.variant, []).append(saving)
        return dict(sorted(saved.items(), key=lambda entry: Saving.sum(entry[1]), reverse=True))


def run(
    cut: OperatorSelection,
    step_ms: float,
    options: TrialOptions,
    circumstances: Circumstances,
    tell: Callable[[int, int, str], None] = lambda *_: None,
    *,
    ends: float | None = None,
) -> Trial:
    """Try what a recording offers.

    Args:
        cut: Its operators.
        step_ms: What a step took.
        options: What to try.
        circumstances: What the training had to work with.
        tell: Is told how many operators are done, of how many, and what is tried now.
        ends: The end of all, by the monotonic clock; None for ``options.seconds`` from now on.

    Returns:
        What was measured, also where somebody pressed Ctrl-C meanwhile.
    """
    began = time.monotonic()
    trial = Trial(cut=cut, step_ms=step_ms, device=str(options.device))
    signatures = tuple(group.signature for group in cut.groups)
    answering = functools.partial(bench.answering, signatures, options, circumstances)
    forks = options.device.type == "cpu" and sys.platform == "linux"
    if forks:
        inputs.learn_sizes()
    with contextlib.closing(ChildProcess(answering, forks=forks)) as child:
        asking = _Asking(child, began + options.seconds if ends is None else ends, options.limit, tell)
        try:
            for place in range(len(signatures)):
                if len(trial.rows) >= options.limit:
                    break
                if asking.left < SHORTEST_S:
                    trial.is_out_of_time = True
                    break
                asking.ask_of(place, trial)
        except KeyboardInterrupt:
            trial.is_interrupted = True
    return trial


class _Asking:
    """Asks a child for calls and their variants, one after the other.

    Args:
        child: Whom to ask.
        ends: When all of it ends, by the monotonic clock.
        limit: How many operators share the time.
        tell: Is told what is asked for.
    """

    def __init__(self, child: ChildProcess, ends: float, limit: int, tell: Callable[[int, int, str], None]) -> None:
        self._child = child
        self._ends = ends
        self._limit = limit
        self._tell = tell

    @property
    def left(self) -> float:
        """Seconds."""
        return self._ends - time.monotonic()

    def ask_of(self, place: int, trial: Trial) -> None:
        """Have a call run by itself, then beside each of its variants; there is no row where there are none."""
        name = trial.cut.groups[place].signature.name
        share = self.left / (self._limit - len(trial.rows))
        self._tell(len(trial.rows) + 1, self._limit, name)
        try:
            alone = self._ask(share, "alone", place)
        except DeadError as dead:
            alone = Alone(problem=str(dead))
        if alone is None:
            return
        row = TriedOperator(group=trial.cut.groups[place], alone_ms=alone.ms, problem=alone.problem)
        trial.rows.append(row)
        for number, variant in enumerate(alone.variants):
            self._tell(len(trial.rows), self._limit, f"{name} {variant}")
            try:
                tried = self._ask(share / len(alone.variants), "tried", place, number)
            except DeadError as dead:
                tried = Tried(variant=variant, problem=str(dead))
            row.tried += [tried] if tried else []

    def _ask(self, share: float, *question: Any) -> Any:
        """It may take its share, or half of what is left if that is more: those that hang leave time for others."""
        return self._child.ask(min(max(self.left / 2, share), max(self.left, SHORTEST_S)), *question, share)
