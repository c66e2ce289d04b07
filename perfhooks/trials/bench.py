"""Where recorded calls are run: in a child process, which is asked for one of them after the other."""

from __future__ import annotations

import gc
import math
import time
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core.errors import OptionError
from perfhooks.run.reading import said
from perfhooks.trials import inputs, safe, timing, variants
from perfhooks.trials.ready import difference
from perfhooks.trials.schemas import UnmatchedError
from perfhooks.trials.timing import Blocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from perfhooks.run.circumstances import Circumstances
    from perfhooks.trials.ready import Ready
    from perfhooks.trials.recorded import Signature, Update
    from perfhooks.trials.timing import Clock, Timing
    from perfhooks.trials.variants import Variant

_ALONE: Final = 5
"""Blocks of a call by itself: their median says whether it is comparable at all, which needs no more."""
_LONGEST: Final = 200
"""Characters of what torch has to say."""
SHORTEST_S: Final = 0.1
"""For a variant, however little time is left: less is no measurement."""


@dataclass(frozen=True, kw_only=True)
class Tried:
    """One variant of one operator."""

    variant: str
    timing: Timing | None = None
    difference: float | None = None
    """Of the results, see `perfhooks.trials.ready.difference`."""
    is_wrong: bool = False
    """Whether that is more than the variant may bring about."""
    problem: str = ""
    """Why it could not be run."""


class Alone(NamedTuple):
    """A call by itself."""

    ms: float | None = None
    """What it takes; None where it could not be run."""
    problem: str = ""
    """Why."""
    variants: tuple[str, ...] = ()
    """What is to be tried with it."""


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
    """How long all of it may take: what cannot be decided by then stays so, and what has not ended is ended."""
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


@contextmanager
def answering(
    signatures: Sequence[Signature | Update], options: TrialOptions, circumstances: Circumstances
) -> Iterator[Callable[..., Any]]:
    """What a child does while it is there: answers with what a method of its `Bench` gives, asked for by its name."""
    with safe.as_recorded(circumstances):
        safe.bind(options.memory, options.device)
        bench = Bench(signatures, options)
        yield lambda method, *given: getattr(bench, method)(*given)


class Bench:
    """Holds one call and its inputs, until it is asked for another one.

    Args:
        signatures: What may be asked for, by its place in here.
        options: What to try.
    """

    def __init__(self, signatures: Sequence[Signature | Update], options: TrialOptions) -> None:
        self._signatures = signatures
        self._options = options
        self._laid: tuple[int, Ready] | None = None
        self._original: Blocks | None = None

    def alone(self, place: int, seconds: float) -> Alone | None:
        """Run a call by itself; None where there is nothing to try with it."""
        try:
            names = tuple(variant.name for variant in self._options.of(self._call(place)))
            return Alone(ms=1e3 * self._seconds(place, seconds), variants=names) if names else None
        except Exception as error:  # noqa: BLE001 -- whatever an operator has to say
            return Alone(problem=self._problem(error))

    def tried(self, place: int, number: int, seconds: float) -> Tried | None:
        """Run a call beside one of its variants; None where it would be the same call, or cannot be."""
        variant = self._options.of(self._call(place))[number]
        try:
            return self._tried(place, variant, seconds)
        except Exception as error:  # noqa: BLE001 -- whatever an operator has to say
            return Tried(variant=variant.name, problem=self._problem(error))
        finally:
            gc.collect(0)

    def _call(self, place: int) -> Ready:
        if self._laid is None or self._laid[0] != place:
            self._laid = self._original = None  # the next one may need the memory
            self._laid = place, self._built(self._signatures[place])
        return self._laid[1]

    def _built(self, signature: Signature | Update) -> Ready:
        inputs.check_memory(signature, self._options.memory * safe.GIB)
        return inputs.build(signature, self._options.device)

    def _blocks(self, place: int) -> Blocks:
        if self._original is None:
            self._original = Blocks(self._call(place), self._options.clock)
        return self._original

    def _seconds(self, place: int, longest: float) -> float:
        ends = time.monotonic() + longest / 2
        blocks = self._blocks(place)
        taken = [blocks.seconds()]
        while len(taken) < _ALONE and time.monotonic() < ends:
            taken.append(blocks.seconds())
        return median(taken)

    def _tried(self, place: int, variant: Variant, seconds: float) -> Tried | None:
        call = self._call(place)
        if (changed := variant.changed(call)) is None:
            return None
        # half of the time goes into building, holding results against each other, and finding out how long a call takes
        longest = min(max(seconds / 2, SHORTEST_S), timing.LONGEST_S)
        apart = difference(call, changed)
        blocks = Blocks(changed, self._options.clock)
        timed = timing.in_turn(self._blocks(place), blocks, seconds=min(timing.SECONDS, longest), longest=longest)
        wrong = apart is not None and apart > variant.tolerance
        return Tried(variant=variant.name, timing=timed, difference=apart, is_wrong=wrong)

    def _problem(self, error: Exception) -> str:
        if isinstance(error, UnmatchedError) or not safe.is_of_memory(error):
            return said(error)[:_LONGEST]
        return f"needs more than the {self._options.memory:.3g} GiB that may be taken (--memory)"
