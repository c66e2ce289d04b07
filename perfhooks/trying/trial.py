"""The recorded operators that cost most, each run as recorded and in every way that makes sense for it."""

from __future__ import annotations

import gc
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from perfhooks.errors import OptionError
from perfhooks.trying import ready, timing, updates
from perfhooks.trying.results import difference
from perfhooks.trying.safe import as_recorded, restored
from perfhooks.trying.schemas import UnmatchedError
from perfhooks.trying.updates import Update
from perfhooks.trying.variants import BY_NAME, VARIANTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from perfhooks.run.circumstances import Circumstances
    from perfhooks.trying.cut import Cut, Group
    from perfhooks.trying.ready import Ready
    from perfhooks.trying.recorded import Signature
    from perfhooks.trying.timing import Clock, Timing
    from perfhooks.trying.variants.variant import Variant

OPERATORS: Final = 10
"""So many of the operators that cost most are tried."""
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
    """Of the results, see `perfhooks.trying.results.difference`."""
    is_wrong: bool = False
    """Whether that is more than the variant may bring about."""
    problem: str = ""
    """Why it could not be run."""

    @property
    def is_gain(self) -> bool:
        """Whether it is faster and right."""
        return self.timing is not None and self.timing.outcome == "faster" and not self.is_wrong


@dataclass(kw_only=True)
class Row:
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

    def saved_ms(self, tried: Tried) -> float | None:
        """How much shorter a step would be; None where that cannot be said."""
        if tried.timing is None or tried.is_wrong or not self.is_comparable or tried.timing.outcome == "undecided":
            return None
        return 0.0 if tried.timing.outcome == "same" else self.group.step_ms * (1 - tried.timing.ratio)


@dataclass(kw_only=True)
class Trial:
    """What was tried with a window."""

    cut: Cut
    step_ms: float
    device: str
    rows: list[Row] = field(default_factory=list)
    is_interrupted: bool = False

    def totals(self) -> dict[str, float]:
        """By how many milliseconds a step would be shorter if all operators that a variant makes faster ran so.

        What is wrong, not comparable or not decided counts for nothing.
        """
        found: dict[str, float] = {}
        for row in self.rows:
            for each in row.tried:
                if each.is_gain and (saved := row.saved_ms(each)) is not None:
                    found[each.variant] = found.get(each.variant, 0.0) + saved
        return dict(sorted(found.items(), key=lambda entry: -entry[1]))


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What to try."""

    device: torch.device
    variants: tuple[str, ...] = ()
    """By name; none are those that make sense for each operator."""
    count: int = OPERATORS
    memory: int = 0
    """Bytes that may be taken; 0 is no limit."""
    seconds: float = timing.SECONDS
    """For each variant of an operator, where it is not decided sooner."""
    total: float = math.inf
    """Seconds that all of it may take, roughly: what cannot be decided by then stays so."""
    clock: Clock | None = None


def chosen(names: Sequence[str]) -> tuple[Variant, ...]:
    """Variants by name.

    Raises:
        OptionError: There is none of that name.
    """
    for name in names:
        if name not in BY_NAME:
            raise OptionError(f"variant must be one of {', '.join(BY_NAME)}; got {name!r}")
    return tuple(BY_NAME[name] for name in dict.fromkeys(names)) or VARIANTS


def run(
    cut: Cut,
    step_ms: float,
    wish: Wish,
    said: Circumstances,
    tell: Callable[[int, int, str], None] = lambda *_: None,
) -> Trial:
    """Try what a recording offers.

    Args:
        cut: Its operators.
        step_ms: What a step took.
        wish: What to try.
        said: What the training had to work with.
        tell: Is told how many operators are done, of how many, and what is tried now.

    Returns:
        What was measured, also where somebody pressed Ctrl-C meanwhile.
    """
    trial = Trial(cut=cut, step_ms=step_ms, device=str(wish.device))
    variants = chosen(wish.variants)
    ends = time.monotonic() + wish.total
    with restored(), as_recorded(said):
        try:
            for row in _rows(trial, variants, wish):
                left = (ends - time.monotonic()) / (wish.count - len(trial.rows) + 1)
                _try(row, variants, wish, left, lambda what: tell(len(trial.rows), wish.count, what))
        except KeyboardInterrupt:
            trial.is_interrupted = True
    return trial


def _rows(trial: Trial, variants: Sequence[Variant], wish: Wish) -> Iterator[Row]:
    """The operators for which there is something to try, those that cost most first."""
    for group in trial.cut.groups:
        if len(trial.rows) >= wish.count:
            return
        row = Row(group=group)
        call = _built(row, wish)
        if call is not None and not any(_is_wanted(each, call, wish) for each in variants):
            continue
        del call
        trial.rows.append(row)
        yield row


def _is_wanted(variant: Variant, call: Ready, wish: Wish) -> bool:
    return bool(wish.variants) or variant.suits(call)


def _built(row: Row, wish: Wish) -> Ready | None:
    """The call, ready; None with its problem in the row."""
    signature = row.group.signature
    needed = needed_bytes(signature)
    if wish.memory and needed > wish.memory:
        row.problem = f"needs {needed / 2**30:.3g} GiB, and {wish.memory / 2**30:.3g} may be taken (--memory)"
        return None
    try:
        return build(signature, wish.device)
    except (UnmatchedError, RuntimeError, ValueError, TypeError, IndexError, NotImplementedError) as error:
        row.problem = _said(error)
        return None


def needed_bytes(signature: Signature | Update) -> int:
    """What trying it takes of memory, as far as its inputs tell."""
    return signature.needed_bytes if isinstance(signature, Update) else ready.needed_bytes(signature)


def build(signature: Signature | Update, device: torch.device) -> Ready:
    """Make a call of an operator, or an update, ready to run.

    Raises:
        UnmatchedError: It cannot be run again: says why.
    """
    return updates.build(signature, device) if isinstance(signature, Update) else ready.build(signature, device)


def _try(row: Row, variants: Sequence[Variant], wish: Wish, left: float, tell: Callable[[str], None]) -> None:
    """Run a call by itself, then beside each variant; for so many seconds in all."""
    call = _built(row, wish)
    if call is None:
        return
    tell(call.name)
    try:
        call()
        row.alone_ms = timing.alone(call, clock=wish.clock) * 1e3
    except Exception as error:  # noqa: BLE001 -- whatever an operator has to say
        row.problem = _said(error)
        return
    wanted = [variant for variant in variants if _is_wanted(variant, call, wish)]
    for variant in wanted:
        tell(f"{call.name} {variant.name}")
        if (tried := _tried(call, variant, wish, left / len(wanted))) is not None:
            row.tried.append(tried)
        gc.collect(0)


def _tried(call: Ready, variant: Variant, wish: Wish, left: float) -> Tried | None:
    # half of the time goes into building, holding results against each other, and finding out how long a call takes
    longest = min(max(left / 2, _SHORTEST_S), timing.LONGEST_S)
    try:
        changed = variant.changed(call)
        if changed is None:
            return None
        apart = difference(call, changed)
        timed = timing.beside(call, changed, clock=wish.clock, seconds=min(wish.seconds, longest), longest=longest)
    except Exception as error:  # noqa: BLE001 -- whatever an operator has to say
        return Tried(variant=variant.name, problem=_said(error))
    wrong = apart is not None and apart > variant.tolerance
    return Tried(variant=variant.name, timing=timed, difference=apart, is_wrong=wrong)


def _said(error: Exception) -> str:
    """The first line of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
