"""The recorded operators that cost most, each run as recorded and in every way that makes sense for it."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.errors import OptionError
from perfhooks.run.reading import said
from perfhooks.trying import inputs, timing, variants
from perfhooks.trying.ready import difference
from perfhooks.trying.safe import GIB, as_recorded, restored
from perfhooks.trying.schemas import UnmatchedError
from perfhooks.trying.timing import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import torch

    from perfhooks.run.circumstances import Circumstances
    from perfhooks.trying.cut import Cut, Group
    from perfhooks.trying.ready import Ready
    from perfhooks.trying.timing import Clock, Timing
    from perfhooks.trying.variants import Variant

_ALONE: Final = 5
"""Blocks of a call by itself: their median says whether it is comparable at all, which needs no more."""
_LONGEST: Final = 200
"""Characters of what torch has to say."""
_SHORTEST_S: Final = 0.1
"""For a variant, however little time is left: less is no measurement."""
COMPARABLE: Final = (0.5, 2.0)
"""A call that takes less or more than this by itself than it took in the training says nothing about the training: its
inputs lay in other caches, or others used the machine."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One variant of one operator."""

    variant: str
    timing: Timing | None = None
    difference: float | None = None
    """Of the results, see `perfhooks.trying.ready.difference`."""
    is_wrong: bool = False
    """Whether that is more than the variant may bring about."""
    problem: str = ""
    """Why it could not be run."""


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

    cut: Cut
    step_ms: float
    device: str
    rows: list[TriedOperator] = field(default_factory=list)
    is_interrupted: bool = False

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


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    """What to try."""

    device: torch.device
    variants: tuple[str, ...] = ()
    """By name; none are those that make sense for each operator."""
    limit: int = 10
    """How many of the operators that cost most."""
    memory: float = math.inf
    """GiB that may be taken."""
    seconds: float = math.inf
    """How long all of it may take, roughly: what cannot be decided by then stays so."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise OptionError(f"limit must be an integer >= 1, got {self.limit}")
        if not self.memory > 0:
            raise OptionError(f"memory must be a number of GiB above 0, got {self.memory:g}")
        if not self.seconds > 0:
            raise OptionError(f"seconds must be a number above 0, got {self.seconds:g}")

    def of(self, call: Ready) -> list[Variant]:
        """The variants to try of a call: one that was named is tried with all, the others where they make sense."""
        return [variant for variant in variants.chosen(self.variants) if self.variants or variant.suits(call)]


def run(
    cut: Cut,
    step_ms: float,
    options: TrialOptions,
    circumstances: Circumstances,
    tell: Callable[[int, int, str], None] = lambda *_: None,
) -> Trial:
    """Try what a recording offers.

    Args:
        cut: Its operators.
        step_ms: What a step took.
        options: What to try.
        circumstances: What the training had to work with.
        tell: Is told how many operators are done, of how many, and what is tried now.

    Returns:
        What was measured, also where somebody pressed Ctrl-C meanwhile.
    """
    trial = Trial(cut=cut, step_ms=step_ms, device=str(options.device))
    ends = time.monotonic() + options.seconds
    with restored(), as_recorded(circumstances):
        try:
            for row, call in _calls(trial, options):
                left = (ends - time.monotonic()) / (options.limit - len(trial.rows) + 1)
                _try(row, call, options, left, lambda what: tell(len(trial.rows), options.limit, what))
                del call  # the next one may need the memory
        except KeyboardInterrupt:
            trial.is_interrupted = True
    return trial


def _calls(trial: Trial, options: TrialOptions) -> Iterator[tuple[TriedOperator, Ready]]:
    """The calls for which there is something to try, those that cost most first; what cannot be built is a row only."""
    for group in trial.cut.groups:
        if len(trial.rows) >= options.limit:
            return
        row = TriedOperator(group=group)
        try:
            call = _built(group, options)
        except (UnmatchedError, RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
            row.problem = said(error)[:_LONGEST]
            trial.rows.append(row)
            continue
        if options.of(call):
            trial.rows.append(row)
            yield row, call
        del call


def _built(group: Group, options: TrialOptions) -> Ready:
    needed = inputs.needed_bytes(group.signature) / GIB
    if needed > options.memory:
        raise UnmatchedError(f"needs {needed:.3g} GiB, and {options.memory:.3g} may be taken (--memory)")
    return inputs.build(group.signature, options.device)


def _try(row: TriedOperator, call: Ready, options: TrialOptions, left: float, tell: Callable[[str], None]) -> None:
    """Run a call by itself, then beside each variant; for so many seconds in all."""
    tell(call.name)
    try:
        original = Blocks(call, options.clock)
        row.alone_ms = 1e3 * median(original.seconds() for _ in range(_ALONE))
    except Exception as error:  # noqa: BLE001 -- whatever an operator has to say
        row.problem = said(error)[:_LONGEST]
        return
    suitable = options.of(call)
    for variant in suitable:
        tell(f"{call.name} {variant.name}")
        try:
            row.tried += _tried(call, original, variant, options.clock, left / len(suitable))
        except Exception as error:  # noqa: BLE001 -- whatever an operator has to say
            row.tried.append(Tried(variant=variant.name, problem=said(error)[:_LONGEST]))
        gc.collect(0)


def _tried(call: Ready, original: Blocks, variant: Variant, clock: Clock | None, left: float) -> Iterator[Tried]:
    """The call in one way; nothing where it would be the same call, or cannot be."""
    if (changed := variant.changed(call)) is not None:
        # half of the time goes into building, holding results against each other, and finding out how long a call takes
        longest = min(max(left / 2, _SHORTEST_S), timing.LONGEST_S)
        apart = difference(call, changed)
        blocks = Blocks(changed, clock)
        timed = timing.in_turn(original, blocks, seconds=min(timing.SECONDS, longest), longest=longest)
        wrong = apart is not None and apart > variant.tolerance
        yield Tried(variant=variant.name, timing=timed, difference=apart, is_wrong=wrong)
