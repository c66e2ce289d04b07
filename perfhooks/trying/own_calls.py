"""Functions of one's own held against each other: timed in turn, with a verdict, and kept for later."""

from __future__ import annotations

import math
import platform
import statistics as medians
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
import torch
from torch.utils.benchmark import Measurement, TaskSpec

from perfhooks.comparing.verdict import verdict
from perfhooks.errors import OptionError
from perfhooks.run.publishing import publish
from perfhooks.run.reading import read_format
from perfhooks.statistics import level
from perfhooks.trying import timing
from perfhooks.trying.ready import Ready, difference
from perfhooks.trying.safe import restored
from perfhooks.trying.timing import Timing  # noqa: TC001 -- msgspec reads the annotation

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    from perfhooks.trying.timing import Clock

FORMAT: Final = 1
"""1: the first."""
_ENDLESS: Final = 1e308
"""Stands for infinity in a file."""


@dataclass(frozen=True, kw_only=True, repr=False)
class CallComparison:
    """What `compare_calls` measured; prints as a table."""

    reference: str
    """The call that the others are held against."""
    seconds: dict[str, tuple[float, ...]]
    """Seconds a call, of each block of each of them."""
    timings: dict[str, Timing] = field(default_factory=dict)
    """What each other takes beside it: ``outcome``, ``ratio`` and its interval ``low`` to ``high``, ``times``."""
    differences: dict[str, float | None] = field(default_factory=dict)
    """How far results are apart, as a part of the largest value; None where they are no tensors."""
    circumstances: dict[str, str] = field(default_factory=dict)
    """Where that was."""
    format: int = FORMAT

    @property
    def table(self) -> pl.DataFrame:
        """One row a call: its median, how many times as fast it is as the first (99% interval), the verdict, results.

        ``median_ms``, ``times``, ``low``, ``high``, ``verdict``, ``difference``.
        """
        return pl.DataFrame([self._row(name) for name in self.seconds], schema=_SCHEMA)

    def _row(self, name: str) -> dict[str, Any]:
        row = {"call": name, "median_ms": 1e3 * medians.median(self.seconds[name])}
        if name not in self.timings:
            return row | {"verdict": "the reference"}
        return row | self.timings[name].columns | {"difference": self.differences.get(name)}

    @property
    def measurements(self) -> list[Measurement]:
        """The same for ``torch.utils.benchmark.Compare``."""
        tasks = {name: TaskSpec("call()", "", label="compare_calls", description=name) for name in self.seconds}
        return [Measurement(1, list(times), tasks[name]) for name, times in self.seconds.items()]

    def against(self, earlier: CallComparison) -> pl.DataFrame:
        """Hold each call against the one of the same name that was timed earlier.

        Only changes of about 10% or more are told apart, for two processes differ by more than the blocks of one tell.
        To see smaller ones, give both versions to `compare_calls` at once.

        Args:
            earlier: What `load` gave.

        Returns:
            ``call``, ``before_ms`` and ``now_ms`` (medians), ``ratio`` (now over before) with the ends of its interval
            (99%), and the ``verdict``.

        Raises:
            OptionError: None of the earlier calls has the name of one of these.
        """
        names = [name for name in self.seconds if name in earlier.seconds]
        if not names:
            raise OptionError(
                f"earlier must have one of {', '.join(self.seconds)}; it has {', '.join(earlier.seconds)}"
            )
        return pl.DataFrame([_later(name, earlier.seconds[name], self.seconds[name]) for name in names], schema=_LATER)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep it as a file, to be compared with later."""
        # JSON has no infinity
        finite = {name: None if apart is None else min(apart, _ENDLESS) for name, apart in self.differences.items()}
        with publish(Path(path)) as file:
            file.write(msgspec.json.encode(replace(self, differences=finite)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CallComparison:
        """What `save` wrote.

        Raises:
            FileNotFoundError: It is not there.
            PerfhooksError: It is broken, or of another format.
        """
        file = Path(path)
        loaded = read_format(file, cls, FORMAT, "a comparison of calls")
        ends = {name: math.inf if apart == _ENDLESS else apart for name, apart in loaded.differences.items()}
        return replace(loaded, differences=ends)

    def __repr__(self) -> str:
        from perfhooks.report.terminal_tables import text

        return text(_rounded(self.table))


_SCHEMA: Final = {
    "call": pl.String,
    **dict.fromkeys(("median_ms", "times", "low", "high"), pl.Float64),
    "verdict": pl.String,
    "difference": pl.Float64,
}
_LATER: Final = {
    "call": pl.String,
    **dict.fromkeys(("before_ms", "now_ms", "ratio", "low", "high"), pl.Float64),
    "verdict": pl.String,
}


def compare_calls(
    calls: Mapping[str, Callable[..., Any]],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    seconds: float = 2.0,
    tolerance: float = timing.TOLERANCE,
    clock: Clock | None = None,
) -> CallComparison:
    """Say which of some functions is faster, and how sure that is.

    The first is held against each of the others: both are timed in turn (A B B A) in blocks of a millisecond or more by
    the clock of ``torch.utils.benchmark``, which waits for devices, until it can be said which is faster. Threads are
    those that torch uses; random numbers and flags are afterwards as they were. The results of all are held against
    those of the first.

    Args:
        calls: Functions by name, the reference first.
        args: What each is called with.
        kwargs: And by name.
        seconds: How long to go on where it cannot be said.
        tolerance: What share of difference is none.
        clock: Tells seconds; None is torch's.

    Returns:
        What was measured; it shows itself as a table, also at the end of a cell in a notebook.

    Raises:
        OptionError: There is no call, or a limit is not above 0.
    """
    if not calls or not all(map(callable, calls.values())):
        raise OptionError(f"calls must be functions by name, at least one; got {dict(calls)!r}")
    if seconds <= 0 or not 0 < tolerance < 1:
        raise OptionError(f"seconds must be above 0 and tolerance from 0 to 1, got {seconds} and {tolerance}")
    # the user's own code may need autograd
    ready = {name: Ready(call, (*args,), {**(kwargs or {})}, name=name, gradients=True) for name, call in calls.items()}
    reference, *others = ready
    with restored():
        differences = {name: difference(ready[reference], ready[name]) for name in others}
        blocks = {name: timing.Blocks(call, clock) for name, call in ready.items()}
        limits = {"seconds": seconds, "tolerance": tolerance}
        timings = {name: timing.in_turn(blocks[reference], blocks[name], **limits) for name in others}
        first = [value for timed in timings.values() for value in timed.a]
        if not others:  # one call is timed to be compared with later
            first = [blocks[reference].seconds() for _ in range(2 * timing.PAIRS)]
        threads = torch.get_num_threads()
    return CallComparison(
        reference=reference,
        seconds={reference: tuple(first)} | {name: timed.b for name, timed in timings.items()},
        timings=timings,
        differences=differences,
        circumstances={"torch": str(torch.__version__), "machine": platform.node(), "threads": str(threads)},
    )


def _later(name: str, before: Sequence[float], now: Sequence[float]) -> dict[str, Any]:
    told = verdict([level(before)], [level(now)], tolerance=timing.TOLERANCE)
    times = {"before_ms": 1e3 * medians.median(before), "now_ms": 1e3 * medians.median(now)}
    ends = {"ratio": told.ratio, "low": told.low, "high": told.high}
    return {"call": name, **times, **ends, "verdict": timing.in_words(told.outcome)}


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    """Numbers as a person reads them: three digits."""
    return table.with_columns(pl.col(pl.Float64).map_elements(lambda value: f"{value:.3g}", return_dtype=pl.String))
