"""Functions of one's own held against each other: timed in turn, with a verdict, and kept for later."""

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
from perfhooks.trials.ready import Ready, difference, tensors
from perfhooks.trials.safe import THREADS, restored, switched
from perfhooks.trials.statement import function_of

if TYPE_CHECKING:
    import os

    from perfhooks.trials.timing import Clock

FORMAT: Final = 2
"""1: one set of inputs; 2: a grid of inputs and threads."""
_ENDLESS: Final = 1e308
"""Stands for infinity in a file."""
_FASTEST: Final = re.compile(r"\| {2}" + re.escape(colors.BEST + colors.BOLD))
_COLOR: Final = re.compile("\x1b\\[[0-9;]*m")

Timing = timing.Timing
Call = Callable[..., Any] | str
Inputs = Sequence[Any] | Mapping[str, Any]
_Given = tuple[Sequence[Any], Mapping[str, Any]]  # by position and by name


@dataclass(frozen=True, kw_only=True)
class TimedCall:
    """One call with one set of inputs, on one number of threads."""

    call: str
    """Its name: the ``description`` of ``torch.utils.benchmark.Timer``."""
    sub_label: str
    """What the inputs are called."""
    threads: int
    seconds: tuple[float, ...]
    """Seconds a call, of each block."""
    timing: Timing | None = None
    """What it takes beside the first call: ``outcome``, ``ratio`` and its interval; None for the first one."""
    difference: float | None = None
    """How far its results are from the first call's, as a part of the largest value; None where they are no tensors."""

    @property
    def key(self) -> tuple[str, int, str]:
        """What tells it from the others."""
        return self.sub_label, self.threads, self.call

    @property
    def columns(self) -> dict[str, Any]:
        """The beginning of its row in every table."""
        return {"call": self.call, "sub_label": self.sub_label, "threads": self.threads}


@dataclass(frozen=True, kw_only=True, repr=False)
class CallComparison:
    """What `compare_calls` measured; prints as a table."""

    rows: tuple[TimedCall, ...]
    """By inputs, threads and call; the first call of each group is the one that the others are held against."""
    label: str
    env: str
    statements: dict[str, str] = field(default_factory=dict)
    """Those of the calls that were given as text."""
    setup: str = ""
    circumstances: dict[str, str] = field(default_factory=dict)
    """Where that was."""
    format: int = FORMAT

    @property
    def table(self) -> pl.DataFrame:
        """One row a call, set of inputs and number of threads.

        ``call``, ``sub_label``, ``threads``, ``median_ms``, how many ``times`` as fast it is as the first call (from
        ``low`` to ``high``, 99%), the ``verdict``, and the ``difference`` of results.
        """
        return pl.DataFrame([_row(timed) for timed in self.rows], schema=_SCHEMA)

    @property
    def measurements(self) -> list[Measurement]:
        """The same for ``torch.utils.benchmark.Compare``; with those of another ``env``, it shows both."""
        return [Measurement(1, list(timed.seconds), self._task(timed)) for timed in self.rows]

    def _task(self, timed: TimedCall) -> TaskSpec:
        names = {"label": self.label, "sub_label": timed.sub_label, "description": timed.call, "env": self.env}
        stmt = self.statements.get(timed.call, f"{timed.call}()")
        return TaskSpec(stmt, self.setup, num_threads=timed.threads, **names)

    def against(self, earlier: CallComparison) -> pl.DataFrame:
        """Hold each call against the one of the same name, inputs and threads that was timed earlier, or elsewhere.

        Only changes of about 10% or more are told apart, for two processes differ by more than the blocks of one tell.
        To see smaller ones, give both versions to `compare_calls` at once.

        Args:
            earlier: What `load` gave.

        Returns:
            ``call``, ``sub_label``, ``threads``, ``before_ms`` and ``now_ms`` (medians), ``ratio`` (now over before)
            with the ends of its interval (99%), and the ``verdict``.

        Raises:
            OptionError: None of the earlier calls is one of these.
        """
        before = {timed.key: timed for timed in earlier.rows}
        pairs = [(before[now.key], now) for now in self.rows if now.key in before]
        if not pairs:
            raise OptionError(f"earlier must have one of {_named(self.rows)}; it has {_named(earlier.rows)}")
        return pl.DataFrame([_later(*pair) for pair in pairs], schema=_LATER)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Keep it as a file, to be compared with later."""
        # JSON has no infinity
        finite = (replace(one, difference=_within(one.difference, math.inf, _ENDLESS)) for one in self.rows)
        with publish(Path(path)) as file:
            file.write(msgspec.json.encode(replace(self, rows=tuple(finite))))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CallComparison:
        """What `save` wrote.

        Raises:
            FileNotFoundError: It is not there.
            PerfhooksError: It is broken, or of another format.
        """
        loaded = read_format(Path(path), cls, FORMAT, "a comparison of calls")
        ends = (replace(one, difference=_within(one.difference, _ENDLESS, math.inf)) for one in loaded.rows)
        return replace(loaded, rows=tuple(ends))

    def __repr__(self) -> str:
        """torch's table of times, the fastest of each row marked, and below it what can be said of each call."""
        from perfhooks.report.page.terminal_tables import text

        return f"{self._times()}\n\n{text(_rounded(self.table))}"

    def _times(self) -> str:
        compare = Compare(self.measurements)
        compare.trim_significant_figures()
        compare.colorize(rowwise=True)
        # a mark instead of a color is seen in a notebook and in a file, too
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
    tolerance: float = timing.TOLERANCE,
    clock: Clock | None = None,
) -> CallComparison:
    """Say which of some functions is faster, and how sure that is; for each set of inputs and number of threads.

        compare_calls({"sum": "(x * x).sum()", "dot": "x @ x"}, inputs=[{"x": small}, {"x": large}], threads=(1, 2))

    The first is held against each of the others: both are timed in turn (A B B A) in blocks of a millisecond or more by
    the clock of ``torch.utils.benchmark``, which waits for devices, until it can be said which is faster. Random
    numbers, flags and threads are afterwards as they were. The results of all are held against those of the first.

    Args:
        calls: Functions or statements by name, the reference first; the names are the ``description`` of
            ``torch.utils.benchmark.Timer``.
        args: What each function is called with.
        kwargs: And by name; for statements, names that they use.
        inputs: Several sets of inputs instead, by name, or a list that is named by the shapes of its tensors. A set is
            a list of positional arguments, or a mapping of arguments by name.
        threads: How many threads torch uses, one number or several; None leaves it as it is.
        setup: What a statement needs to have run before.
        globals: The names that statements may use.
        label: The title of the table.
        sub_label: What a single set of inputs is called; None is the shapes of its tensors.
        env: What tells this environment from another one in whose table it is shown; None is the version of torch.
        seconds: How long to go on where it cannot be said.
        tolerance: What share of difference is none.
        clock: Tells seconds; None is torch's.

    Returns:
        What was measured; it shows itself as a table, also at the end of a cell in a notebook.

    Raises:
        OptionError: There is no call, or an argument has a value that it cannot have.
    """
    _check(calls, seconds, tolerance)
    if inputs is not None and (args or kwargs or sub_label):
        raise OptionError("inputs takes the place of args, kwargs and sub_label: give one or the other")
    if (setup or globals) and not any(isinstance(call, str) for call in calls.values()):
        raise OptionError("setup and globals are for statements, and all of calls are functions")
    sets = {sub_label or _shapes([args, kwargs]): (args, kwargs or {})} if inputs is None else _sets(inputs)
    limits = {"seconds": seconds, "tolerance": tolerance}
    rows: list[TimedCall] = []
    with restored():
        for name, given in sets.items():
            ready = {each: _ready(each, call, given, setup, globals or {}) for each, call in calls.items()}
            for number in _threads(threads):
                with switched({THREADS: number}):
                    rows += _timed(ready, {"sub_label": name, "threads": number}, limits, clock)
    return CallComparison(
        rows=tuple(rows),
        label=label,
        env=env or f"torch {torch.__version__}",
        statements={name: call for name, call in calls.items() if isinstance(call, str)},
        setup=setup,
        circumstances={"torch": str(torch.__version__), "machine": platform.node()},
    )


def _check(calls: object, seconds: float, tolerance: float) -> None:
    known = calls.values() if isinstance(calls, Mapping) else ()
    if not known or not all(callable(call) or isinstance(call, str) for call in known):
        raise OptionError(
            f'calls must be functions or statements by name, at least one, as {{"old": old, "new": new}}; got {calls!r}'
        )
    if seconds <= 0 or not 0 < tolerance < 1:
        raise OptionError(f"seconds must be above 0 and tolerance from 0 to 1, got {seconds} and {tolerance}")


def _sets(inputs: object) -> dict[str, _Given]:
    """Each set of inputs by its name: what is given by position, and what by name."""
    if isinstance(inputs, str) or not isinstance(inputs, Mapping | Sequence) or not inputs:
        raise OptionError(f"inputs must be sets of inputs, by name or as a list, at least one; got {inputs!r}")
    pairs = list(inputs.items()) if isinstance(inputs, Mapping) else [(_shapes(each), each) for each in inputs]
    named = dict(pairs)
    if len(named) < len(pairs):
        raise OptionError(f"inputs of equal shapes need names, as {{'small': ..., 'large': ...}}; got {list(named)}")
    if odd := [each for each in named.values() if isinstance(each, str) or not isinstance(each, Mapping | Sequence)]:
        raise OptionError(f"each set of inputs must be a list of arguments or a mapping by name, got {odd[0]!r}")
    return {str(name): ((), each) if isinstance(each, Mapping) else (each, {}) for name, each in named.items()}


def _shapes(given: Any) -> str:
    return ", ".join(str(list(tensor.shape)) for tensor in tensors(given)) or "call"


def _threads(wanted: int | Sequence[int] | None) -> list[int]:
    numbers = [THREADS.value] if wanted is None else [wanted] if isinstance(wanted, int) else [*wanted]
    if not numbers or not all(type(number) is int and number > 0 for number in numbers):
        raise OptionError(f"threads must be an integer >= 1, or several, got {wanted!r}")
    return numbers


def _ready(name: str, call: Call, given: _Given, setup: str, names: Mapping[str, Any]) -> Ready:
    """A call with its inputs; the user's own code may need autograd."""
    args, kwargs = given
    if not isinstance(call, str):
        return Ready(call, tuple(args), dict(kwargs), name=name, gradients=True)
    if args:
        raise OptionError(f'a statement takes its inputs by name, as {{"x": x}}; {name!r} got {len(args)} by position')
    return Ready(function_of(call, setup, {**names, **kwargs}), (), name=name, gradients=True)


def _timed(
    ready: Mapping[str, Ready], case: Mapping[str, Any], limits: Mapping[str, Any], clock: Clock | None
) -> list[TimedCall]:
    """Each call with one set of inputs, on one number of threads."""
    reference, *others = ready
    differences = {name: difference(ready[reference], ready[name]) for name in others}
    blocks = {name: timing.Blocks(call, clock) for name, call in ready.items()}
    timings = {name: timing.in_turn(blocks[reference], blocks[name], **limits) for name in others}
    first = [value for timed in timings.values() for value in timed.a]
    if not others:  # one call is timed to be compared with later
        first = [blocks[reference].seconds() for _ in range(2 * timing.PAIRS)]
    held = [
        TimedCall(call=name, seconds=timed.b, timing=timed, difference=differences[name], **case)
        for name, timed in timings.items()
    ]
    return [TimedCall(call=reference, seconds=tuple(first), **case), *held]


def _later(before: TimedCall, now: TimedCall) -> dict[str, Any]:
    told = verdict([level(before.seconds)], [level(now.seconds)], tolerance=timing.TOLERANCE)
    times = {"before_ms": 1e3 * medians.median(before.seconds), "now_ms": 1e3 * medians.median(now.seconds)}
    ends = {"ratio": told.ratio, "low": told.low, "high": told.high}
    return {**now.columns, **times, **ends, "verdict": told.outcome}


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    """Numbers as a person reads them: times with their unit, others with three digits."""
    return table.select(
        "call",
        "sub_label",
        "threads",
        pl.col("median_ms").map_elements(words.ms, return_dtype=pl.String).alias("median"),
        pl.col("times", "low", "high", "difference").map_elements(lambda value: f"{value:.3g}", return_dtype=pl.String),
        "verdict",
    )
