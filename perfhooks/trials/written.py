"""What was tried, as a table, as sentences, as data, and as what it says of findings."""

from __future__ import annotations

import contextlib
import re
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.report.page.data import TRIED_FORMAT, TriedAdvice, TriedFile, TriedMost, read_tried
from perfhooks.run.layout import TRIED
from perfhooks.run.publishing import publish_json
from perfhooks.trace.names import operators
from perfhooks.trials import trial as trials
from perfhooks.trials.trial import Saving
from perfhooks.trials.variants import ADVICE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perfhooks.trials.bench import Tried
    from perfhooks.trials.cut import SkippedOperators
    from perfhooks.trials.trial import Trial, TriedOperator

FORMAT: Final = 1
SCHEMA: Final = {
    "operator": pl.String,
    "inputs": pl.String,
    **dict.fromkeys(("calls", "recorded_ms", "beside_recorded"), pl.Float64),
    "variant": pl.String,
    **dict.fromkeys(("times", "low", "high"), pl.Float64),
    "verdict": pl.String,
    **dict.fromkeys(("difference", "saved_ms", "saved_percent"), pl.Float64),
}
"""The columns of the table.

``operator`` and ``inputs``, the sizes of its tensors; ``calls`` in a step, and ``recorded_ms``, what a step spent in
them; ``beside_recorded``, its time by itself as a multiple of what was recorded; ``variant``; ``times``, how many times
as fast it is, with the ends of its interval (99%); ``verdict``; ``difference`` of results, as a part of the largest
value in them, null where they are drawn; ``saved_ms`` and ``saved_percent``, by how much a step would be shorter if
nothing else changes, null where that cannot be said
with one number.
"""
_MOST_LINES: Final = 8
"""Lines of the result: it is read at the end of the output."""
_REASONS: Final = 6
"""How many reasons are told: those that take most time."""
_NAMED: Final = 3
"""How many operators of each reason are named."""


def table(trial: Trial) -> pl.DataFrame:
    """One row for each variant of each operator, of `SCHEMA`."""
    return pl.DataFrame([cells for row in trial.rows for cells in _rows(row, trial)], schema=SCHEMA)


def brief(trial: Trial) -> pl.DataFrame:
    """The same as far as a terminal has room, each operator named once."""
    again = pl.Series([place > 0 for row in trial.rows for place in range(max(len(row.tried), 1))], dtype=pl.Boolean)
    once = (
        pl.col("operator").str.strip_prefix(operators.NAMESPACE),
        pl.col("inputs").str.slice(0, 40),
        _three_digits("calls"),
        _three_digits("recorded_ms"),
    )
    return table(trial).select(
        *(pl.when(~again).then(column) for column in once),
        "variant",
        _three_digits("times"),
        "verdict",
        pl.col("difference").map_elements(lambda value: f"{value:.1g}", return_dtype=pl.String),
        _three_digits("saved_ms"),
    )


def _three_digits(name: str) -> pl.Expr:
    return pl.col(name).map_elements(lambda value: f"{value:.3g}", return_dtype=pl.String)


def _rows(row: TriedOperator, trial: Trial) -> Iterator[dict[str, Any]]:
    first = {
        "operator": row.group.signature.name,
        "inputs": row.group.signature.shapes,
        "calls": row.group.calls,
        "recorded_ms": row.group.step_ms,
        "beside_recorded": row.beside_recorded,
    }
    if not row.tried:
        yield first | {"verdict": f"not run: {row.problem}" if row.problem else "nothing to try"}
    for tried in row.tried:
        saving = row.saving(tried)
        saved = saving.least if saving and saving.is_sure else None
        yield {
            **first,
            "variant": tried.variant,
            **(tried.timing.columns if tried.timing else {}),
            "verdict": verdict(row, tried),
            "difference": tried.difference,
            "saved_ms": saved,
            "saved_percent": None if saved is None else 100 * saved / trial.step_ms,
        }


def verdict(row: TriedOperator, tried: Tried) -> str:
    """What to think of a variant, in a word or three."""
    if tried.timing is None:
        return f"not run: {tried.problem}"
    word = tried.timing.outcome
    if tried.is_wrong:
        return f"{word}, WRONG"
    return word if row.is_comparable else f"{word}, not comparable"


def sentences(trial: Trial) -> list[str]:
    """Return the result in at most eight lines."""
    said = ["Interrupted: these are the measurements until then."] if trial.is_interrupted else []
    if trial.is_out_of_time:
        which = "all operators" if trial.rows else "the first operator"
        said.append(f"The time was over before {which} had been tried: give more --seconds.")
    odd = sum(row.alone_ms is not None and not row.is_comparable for row in trial.rows)
    undecided = sum(tried.timing is not None and tried.timing.outcome == "undecided" for tried in _all(trial))
    least, most = trials.COMPARABLE
    if odd:
        said.append(
            f"{odd} of {len(trial.rows)} operators are not comparable: alone they took less than {least:g} or "
            f"more than {most:g} times the recorded time. Their savings are ranges."
        )
    if undecided:
        said.append(f"{words.count(undecided, 'variant')} undecided: their ranges begin at 0. Give more --seconds.")
    tried = sum(row.group.step_ms for row in trial.rows)
    said.append(
        f"{words.share(trial.cut.covered)} of the time of operators can be run again; the {len(trial.rows)} tried here "
        f"take {words.ms(tried)} of a step."
    )
    if saved := trial.saved():
        said.append(f"If nothing else changes, a step of {words.ms(trial.step_ms)} would be shorter by:")
        said += [_line(name, savings, trial) for name, savings in [*saved.items()][: _MOST_LINES - len(said)]]
    elif trial.rows:
        said.append("No variant makes a step shorter for certain.")
    return said


def _all(trial: Trial) -> Iterator[Tried]:
    for row in trial.rows:
        yield from row.tried


def _line(name: str, savings: list[Saving], trial: Trial) -> str:
    """What one variant saves, and of how many operators that is not sure."""
    all_of = Saving.sum(savings)
    unsure = sum(not each.is_sure for each in savings)
    ends = [all_of.least] if all_of.is_sure else all_of
    times, shares = (
        " to ".join(map(write, ends)) for write in (words.ms, lambda end: words.share(end / trial.step_ms))
    )
    operators = words.count(len(savings), "operator") + (f", {unsure} of them not for sure" if unsure else "")
    return f"  {name}: {times}, {shares} ({operators})"


def untried(trial: Trial) -> Iterator[str]:
    """Yield the reasons why the largest part of the operators cannot be run again."""
    by_reason: dict[str, list[SkippedOperators]] = defaultdict(list)
    for left in trial.cut.left:
        by_reason[left.reason].append(left)
    shares = {reason: sum(left.share for left in lefts) for reason, lefts in by_reason.items()}
    for reason in sorted(shares, key=lambda reason: -shares[reason])[:_REASONS]:
        lefts = by_reason[reason]
        names = ", ".join(left.name for left in lefts[:_NAMED])
        more = f" and {len(lefts) - _NAMED} more" if len(lefts) > _NAMED else ""
        yield f"{words.share(shares[reason])} cannot be run again: {reason} ({names}{more})"


def data(trial: Trial) -> dict[str, Any]:
    """All of it."""
    return {
        "format": FORMAT,
        "device": trial.device,
        "step_ms": trial.step_ms,
        "interrupted": trial.is_interrupted,
        "rows": table(trial).to_dicts(),
        "saved_ms": {name: Saving.sum(savings).least for name, savings in trial.saved().items()},
        "saved_most_ms": {name: Saving.sum(savings).most for name, savings in trial.saved().items()},
        "covered": trial.cut.covered,
        "left": [{"operator": left.name, "reason": left.reason, "share": left.share} for left in trial.cut.left],
    }


def of_findings(trial: Trial) -> list[TriedAdvice]:
    """What a trial says of each advice, the best variant of each; nothing of those of which nothing is known."""
    said: list[TriedAdvice] = []
    for rule, advice in ADVICE.items():
        rows = [row for row in trial.rows if re.fullmatch(advice.operators, row.group.signature.name)]
        measured = [tried for variant in advice.variants for tried in _of_variant(rule, variant, rows, trial)]
        said += sorted(measured, key=_most_saved)[:1]
    return said


def _most_saved(tried: TriedAdvice) -> tuple[float, float]:
    return -tried.saved_ms, -(tried.most.saved_ms if tried.most else tried.saved_ms)


def _of_variant(rule: str, variant: str, rows: list[TriedOperator], trial: Trial) -> Iterator[TriedAdvice]:
    """What one variant did to all operators of an advice for which that can be said."""
    pairs = [
        (row.group.step_ms, saving)
        for row in rows
        for tried in row.tried
        if tried.variant == variant and (saving := row.saving(tried)) is not None
    ]
    if pairs:
        before, saved = sum(spent for spent, _ in pairs), Saving.sum(saving for _, saving in pairs)
        least, most = ({"times": before / (before - end), "percent": 100 * end / trial.step_ms} for end in saved)
        yield TriedAdvice(
            rule=rule,
            variant=variant,
            times=least["times"],
            saved_ms=saved.least,
            saved_percent=least["percent"],
            operators=len(pairs),
            device=trial.device,
            most=None
            if saved.is_sure
            else TriedMost(saved_ms=saved.most, saved_percent=most["percent"], times=most["times"]),
        )


def keep(trial: Trial, folder: Path) -> bool:
    """Write into a run folder what a trial says of findings, beside what earlier ones said of others.

    Returns:
        Whether it says anything; nothing is written where it does not.
    """
    new = of_findings(trial)
    if new:
        earlier: list[TriedAdvice] = []
        with contextlib.suppress(FileNotFoundError, PerfhooksError):  # a broken one is written anew
            earlier = read_tried(folder / TRIED)
        others = [tried for tried in earlier if tried.rule not in {said.rule for said in new}]
        publish_json(folder / TRIED, TriedFile(format=TRIED_FORMAT, measured=[*others, *new]))
    return bool(new)
