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
    from perfhooks.trials.ready import PreparedCall
    from perfhooks.trials.recorded import Signature, Update
    from perfhooks.trials.timing import Clock, Timing
    from perfhooks.trials.variants import Variant

_SAMPLES: Final = 5
SHORTEST_S: Final = 0.1
"""Minimum time per variant in s, even after the time limit."""


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    variant: str
    timing: Timing | None = None
    difference: float | None = None
    is_wrong: bool = False
    problem: str = ""


class CallTiming(NamedTuple):
    ms: float | None = None
    problem: str = ""
    variants: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrialOptions:
    device: torch.device
    variants: tuple[str, ...] = ()
    limit: int = 10
    memory: float = math.inf
    seconds: float = math.inf
    """Time limit in s, after which a running call is killed."""
    clock: Clock | None = None

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise OptionError(f"limit must be an integer >= 1, got {self.limit}")
        if not self.memory > 0:
            raise OptionError(f"memory must be a number of GiB above 0, got {self.memory:g}")
        if not self.seconds > 0:
            raise OptionError(f"seconds must be a number above 0, got {self.seconds:g}")

    def of(self, call: PreparedCall) -> list[Variant]:
        return [variant for variant in variants.select_variants(self.variants) if self.variants or variant.suits(call)]


@contextmanager
def open_bench(
    signatures: Sequence[Signature | Update], options: TrialOptions, circumstances: Circumstances
) -> Iterator[Callable[..., Any]]:
    """Yield a function that calls the methods of a `Bench` in a child process."""
    with safe.recorded_settings(circumstances):
        safe.limit_memory(options.memory, options.device)
        bench = Bench(signatures, options)
        yield lambda method, *arguments: getattr(bench, method)(*arguments)


class Bench:
    """Measures prepared calls. The inputs of the latest call stay in memory."""

    def __init__(self, signatures: Sequence[Signature | Update], options: TrialOptions) -> None:
        self._signatures = signatures
        self._options = options
        self._current: tuple[int, PreparedCall] | None = None
        self._original: Blocks | None = None

    def alone(self, index: int, seconds: float) -> CallTiming | None:
        try:
            names = tuple(variant.name for variant in self._options.of(self._call(index)))
            return CallTiming(ms=1e3 * self._seconds(index, seconds), variants=names) if names else None
        except Exception as error:  # noqa: BLE001 -- operators raise any exception
            return CallTiming(problem=self._problem(error))

    def tried(self, index: int, variant_index: int, seconds: float) -> VariantResult | None:
        """Compare a variant with the call; return None if the variant is impossible or equal to the call."""
        variant = self._options.of(self._call(index))[variant_index]
        try:
            return self._tried(index, variant, seconds)
        except Exception as error:  # noqa: BLE001 -- operators raise any exception
            return VariantResult(variant=variant.name, problem=self._problem(error))
        finally:
            gc.collect(0)

    def _call(self, index: int) -> PreparedCall:
        if self._current is None or self._current[0] != index:
            self._current = self._original = None
            self._current = index, self._build(self._signatures[index])
        return self._current[1]

    def _build(self, signature: Signature | Update) -> PreparedCall:
        inputs.check_memory(signature, self._options.memory * 2**30)
        return inputs.build(signature, self._options.device)

    def _blocks(self, index: int) -> Blocks:
        if self._original is None:
            self._original = Blocks(self._call(index), self._options.clock)
        return self._original

    def _seconds(self, index: int, limit: float) -> float:
        ends = time.monotonic() + limit / 2
        blocks = self._blocks(index)
        samples = [blocks.seconds()]
        while len(samples) < _SAMPLES and time.monotonic() < ends:
            samples.append(blocks.seconds())
        return median(samples)

    def _tried(self, index: int, variant: Variant, seconds: float) -> VariantResult | None:
        call = self._call(index)
        if (changed := variant.changed(call)) is None:
            return None
        # half of the time is for inputs, comparing results and calibration
        limit = min(max(seconds / 2, SHORTEST_S), timing.LONGEST_S)
        deviation = difference(call, changed)
        blocks = Blocks(changed, self._options.clock)
        timing_result = timing.time_interleaved(
            self._blocks(index), blocks, seconds=min(timing.SECONDS, limit), longest=limit
        )
        is_wrong = deviation is not None and deviation > variant.tolerance
        return VariantResult(variant=variant.name, timing=timing_result, difference=deviation, is_wrong=is_wrong)

    def _problem(self, error: Exception) -> str:
        if isinstance(error, UnmatchedError) or not safe.is_out_of_memory(error):
            return said(error)[:200]
        return f"needs more memory than the limit of {self._options.memory:.3g} GiB (--memory)"
