"""Functions of one's own held against each other: timed in turn, with a verdict, and kept for later."""

from __future__ import annotations

import html
import math
import platform
import statistics as medians
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
import torch
from torch.utils.benchmark import Measurement, Timer

from perfhooks.comparing.verdict import verdict as compared
from perfhooks.errors import OptionError
from perfhooks.run.publishing import publish
from perfhooks.run.reading import check_format, read_json
from perfhooks.statistics import level
from perfhooks.trying import timing
from perfhooks.trying.ready import Ready
from perfhooks.trying.results import difference
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
_WORDS: Final = {"undecided": "not decided"}


@dataclass(frozen=True, kw_only=True)
class CallComparison:
    """What `compare_calls` found; prints as a table, also in a notebook."""

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
        row: dict[str, Any] = {"call": name, "median_ms": 1e3 * medians.median(self.seconds[name])}
        if (found := self.timings.get(name)) is None:
            return row | {"verdict": "the reference"}
        ends = {"low": 1 / found.high, "high": 1 / found.low}
        verdict = _WORDS.get(found.outcome, found.outcome)
        return row | {"times": found.times, "verdict": verdict, "difference": self.differences.get(name)} | ends

    @property
    def measurements(self) -> list[Measurement]:
        """The same for ``torch.utils.benchmark.Compare``."""
        return [self._measurement(name) for name in self.seconds]

    def _measurement(self, name: str) -> Measurement:
        task = Timer("call()", globals={"call": None}, label="compare_calls", description=name)._task_spec  # noqa: SLF001
        return Measurement(number_per_run=1, raw_times=list(self.seconds[name]), task_spec=task)

    def against(self, earlier: CallComparison) -> pl.DataFrame:
        """Hold each call against the one of the same name that was timed earlier.

        Two processes differ by more than their blocks tell, so only changes of some 10% are seen: to see smaller ones,
        give `compare_calls` both versions at once.

        Args:
            earlier: What `load` gave.

        Returns:
            ``call``, ``before_ms`` and ``now_ms`` (medians), ``ratio`` (now over before) with the ends of its interval
            (99%), and the ``verdict``.

        Raises:
            OptionError: No call has the name of one of then.
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
        finite = {name: None if each is None else min(each, _ENDLESS) for name, each in self.differences.items()}
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
        check_format(file, read_json(file, _Format, "a comparison of calls").format, FORMAT)
        found = read_json(file, cls, "a comparison of calls")
        ends = {name: math.inf if each == _ENDLESS else each for name, each in found.differences.items()}
        return replace(found, differences=ends)

    def __str__(self) -> str:
        from perfhooks.report.terminal_tables import text

        return text(_rounded(self.table))

    def _repr_html_(self) -> str:
        """For a notebook."""
        shown = _rounded(self.table)
        head = "".join(f"<th>{html.escape(name.removesuffix('_ms'))}</th>" for name in shown.columns)
        rows = ("".join(f"<td>{_cell(value)}</td>" for value in row) for row in shown.iter_rows())
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


class _Format(msgspec.Struct):
    """What says in which way the rest is written."""

    format: int


_SCHEMA: Final = {
    "call": pl.String,
    "median_ms": pl.Float64,
    "times": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
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
    the timer of ``torch.utils.benchmark``, which waits for devices, until it can be said which is faster. Threads are
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
        What was found; `print` shows it as a table, and a notebook does by itself.

    Raises:
        OptionError: There is no call, or a limit is not above 0.
    """
    if not calls or not all(callable(each) for each in calls.values()):
        raise OptionError(f"calls must be functions by name, at least one; got {dict(calls)!r}")
    if seconds <= 0 or not 0 < tolerance < 1:
        raise OptionError(f"seconds must be above 0 and tolerance from 0 to 1, got {seconds} and {tolerance}")
    ready = {name: _ready(name, each, args, kwargs or {}) for name, each in calls.items()}
    reference, *others = ready
    with restored():
        if not others:
            return _alone(ready[reference], clock)
        differences = {name: difference(ready[reference], ready[name]) for name in others}
        blocks = {name: timing.Blocks(each, clock) for name, each in ready.items()}
        timings = {
            name: timing.against(blocks[reference], blocks[name], seconds=seconds, tolerance=tolerance)
            for name in others
        }
    first = tuple(value for found in timings.values() for value in found.a)
    return CallComparison(
        reference=reference,
        seconds={reference: first} | {name: found.b for name, found in timings.items()},
        timings=timings,
        differences=differences,
        circumstances=_circumstances(),
    )


def _ready(name: str, call: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Ready:
    return Ready(call, tuple(args), dict(kwargs), name=name, gradients=True)


def _alone(call: Ready, clock: Clock | None) -> CallComparison:
    """One call, timed to be compared with later."""
    blocks = timing.Blocks(call, clock)
    times = tuple(blocks.seconds() for _ in range(2 * timing.PAIRS))
    return CallComparison(reference=call.name, seconds={call.name: times}, circumstances=_circumstances())


def _circumstances() -> dict[str, str]:
    return {"torch": str(torch.__version__), "machine": platform.node(), "threads": str(torch.get_num_threads())}


def _later(name: str, before: Sequence[float], now: Sequence[float]) -> dict[str, Any]:
    found = compared([level(before)], [level(now)], tolerance=timing.TOLERANCE)
    ends = {"ratio": found.ratio, "low": found.low, "high": found.high}
    verdict = _WORDS.get(found.outcome, found.outcome)
    times = {"before_ms": 1e3 * medians.median(before), "now_ms": 1e3 * medians.median(now)}
    return {"call": name, **times, **ends, "verdict": verdict}


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    """Numbers as a person reads them: three digits."""
    texts = [
        pl.col(name).map_elements(lambda value: f"{value:.3g}", return_dtype=pl.String).alias(name)
        for name in table.columns
        if table[name].dtype == pl.Float64
    ]
    return table.with_columns(texts)


def _cell(value: object) -> str:
    return "" if value is None else html.escape(str(value))
