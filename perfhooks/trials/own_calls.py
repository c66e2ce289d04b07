from __future__ import annotations

import math
import platform
import re
import statistics as medians
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
import torch
from torch.utils.benchmark import Compare, Measurement, TaskSpec
from torch.utils.benchmark.utils import compare as colors

from perfhooks.analysis.comparison.verdict import verdict
from perfhooks.core import words
from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import level
from perfhooks.run.publishing import publish
from perfhooks.run.reading import read_format
from perfhooks.trials import timing
from perfhooks.trials.loader_results import TOLERANCE
from perfhooks.trials.ready import PreparedCall, difference, tensors
from perfhooks.trials.safe import THREADS, override_flags, preserve_state
from perfhooks.trials.statement import compile_statement

if TYPE_CHECKING:
    import os

    from perfhooks.trials.timing import Clock

FORMAT: Final = 2
"""Format of the file of a comparison."""
_ENDLESS: Final = 1e308
_FASTEST: Final = re.compile(r"\| {2}" + re.escape(colors.BEST + colors.BOLD))
_COLOR: Final = re.compile("\x1b\\[[0-9;]*m")

Timing = timing.Timing
Call = Callable[..., Any] | str
Inputs = Sequence[Any] | Mapping[str, Any]
_Given = tuple[Sequence[Any], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    call: str
    sub_label: str
    threads: int
    seconds: tuple[float, ...]
    timing: Timing | None = None
    difference: float | None = None
    """Largest difference from the results of the first call, divided by the largest value of those results; None
    without tensors.
    """

    @property
    def key(self) -> tuple[str, int, str]:
        return self.sub_label, self.threads, self.call

    @property
    def columns(self) -> dict[str, Any]:
        return {"call": self.call, "sub_label": self.sub_label, "threads": self.threads}


@dataclass(frozen=True, kw_only=True, repr=False)
class CallComparison:
    """The measurements of `compare_calls`. ``str(comparison)`` is a table."""

    rows: tuple[TimedCall, ...]
    """Measurements, sorted by inputs, threads and call. With equal inputs and threads, the first is the reference."""
    label: str
    env: str
    statements: dict[str, str] = field(default_factory=dict)
    setup: str = ""
    circumstances: dict[str, str] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def table(self) -> pl.DataFrame:
        """One row per call, set of inputs and number of threads.

        The columns are ``call``, ``sub_label``, ``threads``, ``median_ms``, ``times`` (speedup compared with the first
        call, with its 99% interval from ``low`` to ``high``), ``verdict``, and ``difference`` of the results.
        """
        return pl.DataFrame([_row(timed) for timed in self.rows], schema=_SCHEMA)

    @property
    def measurements(self) -> list[Measurement]:
        """Measurements for ``torch.utils.benchmark.Compare``, which can show several ``env`` in one table."""
        return [Measurement(1, list(timed.seconds), self._task(timed)) for timed in self.rows]

    def _task(self, timed: TimedCall) -> TaskSpec:
        names = {"label": self.label, "sub_label": timed.sub_label, "description": timed.call, "env": self.env}
        stmt = self.statements.get(timed.call, f"{timed.call}()")
        return TaskSpec(stmt, self.setup, num_threads=timed.threads, **names)

    def against(self, earlier: CallComparison) -> pl.DataFrame:
        """Compare each call with an earlier measurement of the same name, inputs and threads.

        Only changes of about 10% or more are detected, because two processes differ more than the blocks of one
        process. To detect smaller changes, pass both versions to `compare_calls`.

        Args:
            earlier: Earlier comparison, for example from `load`.

        Returns:
            A table with ``call``, ``sub_label``, ``threads``, ``before_ms`` and ``now_ms`` (medians), ``ratio`` (now
            over before) with its 99% interval from ``low`` to ``high``, and ``verdict``.

        Raises:
            OptionError: No call is in both comparisons.
        """
        before = {timed.key: timed for timed in earlier.rows}
        pairs = [(before[now.key], now) for now in self.rows if now.key in before]
        if not pairs:
            raise OptionError(f"earlier must contain one of {_named(self.rows)}, got {_named(earlier.rows)}")
        return pl.DataFrame([_compare_with(*pair) for pair in pairs], schema=_LATER)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the comparison to a file."""
        finite = (replace(row, difference=_within(row.difference, math.inf, _ENDLESS)) for row in self.rows)
        with publish(Path(path)) as file:
            file.write(msgspec.json.encode(replace(self, rows=tuple(finite))))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CallComparison:
        """Read a comparison that `save` wrote.

        Raises:
            FileNotFoundError: The file does not exist.
            PerfhooksError: The file is damaged or has an unknown format.
        """
        loaded = read_format(Path(path), cls, FORMAT, "a comparison of calls")
        ends = (replace(row, difference=_within(row.difference, _ENDLESS, math.inf)) for row in loaded.rows)
        return replace(loaded, rows=tuple(ends))

    def __repr__(self) -> str:
        """Return torch's table of times with the fastest call of each row marked, and the verdicts."""
        from perfhooks.report.page.terminal_tables import text

        return f"{self._times()}\n\n{text(_rounded(self.table))}"

    def _times(self) -> str:
        compare = Compare(self.measurements)
        compare.trim_significant_figures()
        compare.colorize(rowwise=True)
        plain = _COLOR.sub("", _FASTEST.sub("| *", str(compare))).rstrip()
        return f"{plain} * is the fastest of its row, or within 1% or 0.1 us of it." if "| *" in plain else plain


def _row(timed: TimedCall) -> dict[str, Any]:
    row = timed.columns | {"median_ms": 1e3 * medians.median(timed.seconds)}
    if timed.timing is None:
        return row | {"verdict": "the reference"}
    return row | timed.timing.columns | {"difference": timed.difference}


def _named(rows: Sequence[TimedCall]) -> str:
    return ", ".join(f"{timed.call} ({timed.sub_label}, {words.count(timed.threads, 'thread')})" for timed in rows)


def _within(value: float | None, wanted: float, stands_for: float) -> float | None:
    return stands_for if value == wanted else value


_CALL: Final = {"call": pl.String, "sub_label": pl.String, "threads": pl.Int64}
_SCHEMA: Final = {
    **_CALL,
    **dict.fromkeys(("median_ms", "times", "low", "high"), pl.Float64),
    "verdict": pl.String,
    "difference": pl.Float64,
}
_LATER: Final = {
    **_CALL,
    **dict.fromkeys(("before_ms", "now_ms", "ratio", "low", "high"), pl.Float64),
    "verdict": pl.String,
}


def compare_calls(
    calls: Mapping[str, Call],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: Mapping[str, Inputs] | Sequence[Inputs] | None = None,
    threads: int | Sequence[int] | None = None,
    setup: str = "",
    globals: Mapping[str, Any] | None = None,  # noqa: A002 -- as torch.utils.benchmark.Timer calls it
    label: str = "compare_calls",
    sub_label: str | None = None,
    env: str | None = None,
    seconds: float = 2.0,
    tolerance: float = TOLERANCE,
    clock: Clock | None = None,
) -> CallComparison:
    """Compare the speed of several functions, for each set of inputs and number of threads.

        compare_calls({"sum": "(x * x).sum()", "dot": "x @ x"}, inputs=[{"x": small}, {"x": large}], threads=(1, 2))

    Each function is compared with the first, in speed and in results, in interleaved blocks (A B B A) of a millisecond
    or more. Random numbers, flags and threads are restored.

    Args:
        calls: Functions or statements, keyed by name, the reference first. The names are the ``description`` of
            ``torch.utils.benchmark.Timer``.
        args: Positional arguments of each function.
        kwargs: Keyword arguments of each function; for statements, additional names.
        inputs: Several sets of inputs: a mapping of names to sets, or a list, whose sets are named after the shapes of
            their tensors. A set is a list of positional arguments, or a mapping of keyword arguments.
        threads: Number of torch's threads, or several numbers; None does not change the number.
        setup: Code that runs before a statement.
        globals: Names that statements can use.
        label: Title of the table.
        sub_label: Name of a single set of inputs; None selects the shapes of its tensors.
        env: Name of this environment in a table with several environments; None selects the version of torch.
        seconds: Time limit of an undecided comparison, in seconds.
        tolerance: Relative difference that counts as equal.
        clock: Function that returns the time in seconds; None selects torch's clock.

    Raises:
        OptionError: There is no call, or an argument has an invalid value.
    """
    _check(calls, seconds, tolerance)
    if inputs is not None and (args or kwargs or sub_label):
        raise OptionError("inputs replaces args, kwargs and sub_label: use one or the other")
    if (setup or globals) and not any(isinstance(call, str) for call in calls.values()):
        raise OptionError("setup and globals need statements, but all calls are functions")
    sets = {sub_label or _shapes([args, kwargs]): (args, kwargs or {})} if inputs is None else _sets(inputs)
    limits = {"seconds": seconds, "tolerance": tolerance}
    rows: list[TimedCall] = []
    with preserve_state():
        for name, arguments in sets.items():
            ready = {
                call_name: _ready(call_name, call, arguments, setup, globals or {}) for call_name, call in calls.items()
            }
            for number in _threads(threads):
                with override_flags({THREADS: number}):
                    rows += _measure(ready, {"sub_label": name, "threads": number}, limits, clock)
    return CallComparison(
        rows=tuple(rows),
        label=label,
        env=env or f"torch {torch.__version__}",
        statements={name: call for name, call in calls.items() if isinstance(call, str)},
        setup=setup,
        circumstances={"torch": str(torch.__version__), "machine": platform.node()},
    )


def _check(calls: object, seconds: float, tolerance: float) -> None:
    values = calls.values() if isinstance(calls, Mapping) else ()
    if not values or not all(callable(call) or isinstance(call, str) for call in values):
        raise OptionError(
            f'calls must map names to functions or statements, for example {{"old": old, "new": new}}, got {calls!r}'
        )
    if seconds <= 0 or not 0 < tolerance < 1:
        raise OptionError(f"seconds must be > 0 and tolerance from 0 to 1, got {seconds} and {tolerance}")


def _sets(inputs: object) -> dict[str, _Given]:
    if isinstance(inputs, str) or not isinstance(inputs, Mapping | Sequence) or not inputs:
        raise OptionError(f"inputs must be a list or mapping of one or more sets of inputs, got {inputs!r}")
    pairs = list(inputs.items()) if isinstance(inputs, Mapping) else [(_shapes(value), value) for value in inputs]
    named = dict(pairs)
    if len(named) < len(pairs):
        raise OptionError(f"inputs of equal shapes need names: {{'small': ..., 'large': ...}}; got {list(named)}")
    if invalid := [
        value for value in named.values() if isinstance(value, str) or not isinstance(value, Mapping | Sequence)
    ]:
        raise OptionError(
            f"each set of inputs must be a list of arguments or a mapping of names to arguments, got {invalid[0]!r}"
        )
    return {str(name): ((), value) if isinstance(value, Mapping) else (value, {}) for name, value in named.items()}


def _shapes(value: Any) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors(value)) or "call"


def _threads(threads: int | Sequence[int] | None) -> list[int]:
    numbers = [THREADS.value] if threads is None else [threads] if isinstance(threads, int) else [*threads]
    if not numbers or not all(type(number) is int and number > 0 for number in numbers):
        raise OptionError(f"threads must be one or more integers >= 1, got {threads!r}")
    return numbers


def _ready(name: str, call: Call, arguments: _Given, setup: str, names: Mapping[str, Any]) -> PreparedCall:
    args, kwargs = arguments
    if not isinstance(call, str):
        return PreparedCall(call, tuple(args), dict(kwargs), name=name, gradients=True)
    if args:
        raise OptionError(f'a statement needs named inputs ({{"x": x}}), but {name!r} got {len(args)} without names')
    return PreparedCall(compile_statement(call, setup, {**names, **kwargs}), (), name=name, gradients=True)


def _measure(
    ready: Mapping[str, PreparedCall], case: Mapping[str, Any], limits: Mapping[str, Any], clock: Clock | None
) -> list[TimedCall]:
    reference, *candidates = ready
    differences = {name: difference(ready[reference], ready[name]) for name in candidates}
    blocks = {name: timing.Blocks(call, clock) for name, call in ready.items()}
    timings = {name: timing.time_interleaved(blocks[reference], blocks[name], **limits) for name in candidates}
    reference_times = [seconds for timing_result in timings.values() for seconds in timing_result.a]
    if not candidates:
        reference_times = [blocks[reference].seconds() for _ in range(2 * timing.PAIRS)]
    rows = [
        TimedCall(call=name, seconds=timing_result.b, timing=timing_result, difference=differences[name], **case)
        for name, timing_result in timings.items()
    ]
    return [TimedCall(call=reference, seconds=tuple(reference_times), **case), *rows]


def _compare_with(before: TimedCall, now: TimedCall) -> dict[str, Any]:
    comparison = verdict([level(before.seconds)], [level(now.seconds)], tolerance=TOLERANCE)
    medians_ms = {"before_ms": 1e3 * medians.median(before.seconds), "now_ms": 1e3 * medians.median(now.seconds)}
    interval = {"ratio": comparison.ratio, "low": comparison.low, "high": comparison.high}
    return {**now.columns, **medians_ms, **interval, "verdict": comparison.outcome}


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    return table.select(
        "call",
        "sub_label",
        "threads",
        pl.col("median_ms").map_elements(words.ms, return_dtype=pl.String).alias("median"),
        pl.col("times", "low", "high", "difference").map_elements(lambda value: f"{value:.3g}", return_dtype=pl.String),
        "verdict",
    )
