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

    from perfhooks.trials.bench import VariantResult
    from perfhooks.trials.cut import SkippedOperators
    from perfhooks.trials.trial import OperatorResult, Trial

SCHEMA: Final = {
    "operator": pl.String,
    "inputs": pl.String,
    **dict.fromkeys(("calls", "recorded_ms", "beside_recorded"), pl.Float64),
    "variant": pl.String,
    **dict.fromkeys(("times", "low", "high"), pl.Float64),
    "verdict": pl.String,
    **dict.fromkeys(("difference", "saved_ms", "saved_percent"), pl.Float64),
}
"""Columns. ``beside_recorded``: time in the trial divided by the recorded time. ``times``: speedup, with the 99%
interval from ``low`` to ``high``. ``saved_ms`` and ``saved_percent``: null if the saving is a range.
"""


def table(trial: Trial) -> pl.DataFrame:
    return pl.DataFrame([cells for row in trial.rows for cells in _rows(row, trial)], schema=SCHEMA)


def terminal_table(trial: Trial) -> pl.DataFrame:
    is_repeated = pl.Series(
        [index > 0 for row in trial.rows for index in range(max(len(row.tried), 1))], dtype=pl.Boolean
    )
    operator_columns = (
        pl.col("operator").str.strip_prefix(operators.NAMESPACE),
        pl.col("inputs").str.slice(0, 40),
        _three_digits("recorded_ms"),
    )
    # narrow terminals omit the last columns
    return table(trial).select(
        *(pl.when(~is_repeated).then(column) for column in operator_columns),
        "variant",
        "verdict",
        _three_digits("times"),
        _three_digits("saved_ms"),
        pl.col("difference").map_elements(lambda value: f"{value:.1g}", return_dtype=pl.String),
        pl.when(~is_repeated).then(_three_digits("calls")),
    )


def _three_digits(name: str) -> pl.Expr:
    return pl.col(name).map_elements(lambda value: f"{value:.3g}", return_dtype=pl.String)


def _rows(row: OperatorResult, trial: Trial) -> Iterator[dict[str, Any]]:
    first = {
        "operator": row.group.signature.name,
        "inputs": row.group.signature.shapes,
        "calls": row.group.calls,
        "recorded_ms": row.group.step_ms,
        "beside_recorded": row.beside_recorded,
    }
    if not row.tried:
        yield first | {"verdict": f"not run: {row.problem}" if row.problem else "nothing to try"}
    for result in row.tried:
        saving = row.saving(result)
        saved = saving.least if saving and saving.is_sure else None
        yield {
            **first,
            "variant": result.variant,
            **(result.timing.columns if result.timing else {}),
            "verdict": verdict(row, result),
            "difference": result.difference,
            "saved_ms": saved,
            "saved_percent": None if saved is None else 100 * saved / trial.step_ms,
        }


def verdict(row: OperatorResult, result: VariantResult) -> str:
    if result.timing is None:
        return f"not run: {result.problem}"
    word = result.timing.outcome
    if result.is_wrong:
        return f"{word}, WRONG"
    return word if row.is_comparable else f"{word}, not comparable"


def sentences(trial: Trial) -> list[str]:
    """Return the conclusions of a trial, in at most eight lines."""
    lines = ["Interrupted: fewer operators were measured than planned."] if trial.is_interrupted else []
    if trial.is_out_of_time:
        which = "all operators" if trial.rows else "the first operator"
        lines.append(f"Time limit reached before {which} had been tried: increase --seconds.")
    incomparable = sum(row.alone_ms is not None and not row.is_comparable for row in trial.rows)
    undecided = sum(result.timing is not None and result.timing.outcome == "undecided" for result in _all(trial))
    least, most = trials.COMPARABLE
    tried = words.count(len(trial.rows), "operator")
    if incomparable:
        lines.append(
            f"Not comparable: {incomparable} of {tried}. Outside the training, the time was less than {least:g} or "
            f"more than {most:g} times the recorded time, so only a range is known for each saving."
        )
    if undecided:
        lines.append(
            f"{words.count(undecided, 'variant')} undecided, because their savings may be 0. Increase --seconds."
        )
    tried_ms = sum(row.group.step_ms for row in trial.rows)
    lines.append(
        f"{words.share(trial.cut.covered)} of operator time can be measured again; {tried} tried here: "
        f"{words.ms(tried_ms)} of a step."
    )
    if saved := trial.saved():
        lines.append(f"If nothing else changes, a step of {words.ms(trial.step_ms)} would be shorter by:")
        lines += [_line(name, savings, trial) for name, savings in [*saved.items()][: 8 - len(lines)]]
    elif trial.rows:
        lines.append("No variant certainly makes the step shorter.")
    return lines


def _all(trial: Trial) -> Iterator[VariantResult]:
    for row in trial.rows:
        yield from row.tried


def _line(name: str, savings: list[Saving], trial: Trial) -> str:
    total = Saving.sum(savings)
    uncertain = sum(not saving.is_sure for saving in savings)
    ends = [total.least] if total.is_sure else total
    times, shares = (
        " to ".join(map(write, ends)) for write in (words.ms, lambda end: words.share(end / trial.step_ms))
    )
    operators = words.count(len(savings), "operator") + (f", {uncertain} of them uncertain" if uncertain else "")
    return f"  {name}: {times}, {shares} ({operators})"


def skip_reasons(trial: Trial) -> Iterator[str]:
    by_reason: dict[str, list[SkippedOperators]] = defaultdict(list)
    for operator in trial.cut.left:
        by_reason[operator.reason].append(operator)
    shares = {reason: sum(operator.share for operator in skipped) for reason, skipped in by_reason.items()}
    for reason in sorted(shares, key=lambda reason: -shares[reason])[:6]:
        names = words.first_names([operator.name for operator in by_reason[reason]])
        yield f"{words.share(shares[reason])} skipped: {reason} ({names})"


def data(trial: Trial) -> dict[str, Any]:
    return {
        "format": TRIED_FORMAT,
        "device": trial.device,
        "step_ms": trial.step_ms,
        "interrupted": trial.is_interrupted,
        "rows": table(trial).to_dicts(),
        "saved_ms": {name: Saving.sum(savings).least for name, savings in trial.saved().items()},
        "saved_most_ms": {name: Saving.sum(savings).most for name, savings in trial.saved().items()},
        "covered": trial.cut.covered,
        "left": [
            {"operator": operator.name, "reason": operator.reason, "share": operator.share}
            for operator in trial.cut.left
        ],
    }


def advice_results(trial: Trial) -> list[TriedAdvice]:
    entries: list[TriedAdvice] = []
    for rule, advice in ADVICE.items():
        rows = [row for row in trial.rows if re.fullmatch(advice.operators, row.group.signature.name)]
        measured = [result for variant in advice.variants for result in _of_variant(rule, variant, rows, trial)]
        entries += sorted(measured, key=_most_saved)[:1]
    return entries


def _most_saved(advice: TriedAdvice) -> tuple[float, float]:
    return -advice.saved_ms, -(advice.most.saved_ms if advice.most else advice.saved_ms)


def _of_variant(rule: str, variant: str, rows: list[OperatorResult], trial: Trial) -> Iterator[TriedAdvice]:
    pairs = [
        (row.group.step_ms, saving)
        for row in rows
        for result in row.tried
        if result.variant == variant and (saving := row.saving(result)) is not None
    ]
    if pairs:
        before_ms, total = sum(step_ms for step_ms, _ in pairs), Saving.sum(saving for _, saving in pairs)
        least, most = ({"times": before_ms / (before_ms - end), "percent": 100 * end / trial.step_ms} for end in total)
        yield TriedAdvice(
            rule=rule,
            variant=variant,
            times=least["times"],
            saved_ms=total.least,
            saved_percent=least["percent"],
            operators=len(pairs),
            device=trial.device,
            most=None
            if total.is_sure
            else TriedMost(saved_ms=total.most, saved_percent=most["percent"], times=most["times"]),
        )


def save_advice(trial: Trial, folder: Path) -> bool:
    """Save the results that findings quote. Return whether any were saved."""
    entries = advice_results(trial)
    if entries:
        earlier: list[TriedAdvice] = []
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            earlier = read_tried(folder / TRIED)
        earlier_others = [advice for advice in earlier if advice.rule not in {entry.rule for entry in entries}]
        publish_json(folder / TRIED, TriedFile(format=TRIED_FORMAT, measured=[*earlier_others, *entries]))
    return bool(entries)
