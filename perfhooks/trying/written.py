"""What was tried, as a table, as sentences, and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.trying.trial import COMPARABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.trying.trial import Row, Trial, Tried

FORMAT: Final = 1
SCHEMA: Final = {
    "operator": pl.String,
    "inputs": pl.String,
    "calls": pl.Float64,
    "recorded_ms": pl.Float64,
    "beside_recorded": pl.Float64,
    "variant": pl.String,
    "times": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "verdict": pl.String,
    "difference": pl.Float64,
    "saved_ms": pl.Float64,
    "saved_percent": pl.Float64,
}
"""The columns of the table.

``operator`` and ``inputs``, the sizes of its tensors; ``calls`` in a step, and ``recorded_ms``, what a step spent in
them; ``beside_recorded``, its time by itself as a multiple of what was recorded; ``variant``; ``times``, how many times
as fast it is, with the ends of its interval (99%); ``verdict``; ``difference`` of results, as a part of the largest
value in them, null where they are drawn; ``saved_ms`` and ``saved_percent``, by how much a step would be shorter if
nothing else changes, null where that cannot be said.
"""
_SHOWN: Final = ("operator", "inputs", "calls", "recorded_ms", "variant", "times", "verdict", "difference", "saved_ms")
_WORDS: Final = {"faster": "faster", "slower": "slower", "same": "same", "undecided": "not decided"}
_REASONS: Final = 6


def table(trial: Trial) -> pl.DataFrame:
    """One row for each variant of each operator, of `SCHEMA`."""
    return pl.DataFrame([each for row in trial.rows for each in _rows(row, trial)], schema=SCHEMA)


def brief(trial: Trial) -> pl.DataFrame:
    """The same as far as a terminal has room, each operator named once."""
    whole = table(trial).select(_SHOWN)
    again = pl.Series([place > 0 for row in trial.rows for place in range(max(len(row.tried), 1))], dtype=pl.Boolean)
    once = ("operator", "inputs", "calls", "recorded_ms")
    return whole.with_columns(pl.when(again).then(None).otherwise(pl.col(name)).alias(name) for name in once).select(
        pl.col("operator").str.strip_prefix("aten::"),
        pl.col("inputs").str.slice(0, 40),
        pl.col("calls").round(1),
        pl.col("recorded_ms").round(2),
        "variant",
        pl.col("times").round(2),
        "verdict",
        pl.col("difference").map_elements(lambda value: f"{value:.1g}", return_dtype=pl.String),
        pl.col("saved_ms").round(2),
    )


def _rows(row: Row, trial: Trial) -> Iterator[dict[str, Any]]:
    first = {
        "operator": row.group.signature.name,
        "inputs": row.group.signature.shapes,
        "calls": row.group.calls,
        "recorded_ms": row.group.step_ms,
        "beside_recorded": row.beside_recorded,
    }
    if not row.tried:
        yield first | {"verdict": f"not run: {row.problem}" if row.problem else "nothing to try"}
    for each in row.tried:
        yield first | {"variant": each.variant} | _measured(row, each, trial)


def _measured(row: Row, tried: Tried, trial: Trial) -> dict[str, Any]:
    if tried.timing is None:
        return {"verdict": f"not run: {tried.problem}"}
    saved = row.saved_ms(tried)
    return {
        "times": tried.timing.times,
        "low": 1 / tried.timing.high,
        "high": 1 / tried.timing.low,
        "verdict": verdict(row, tried),
        "difference": tried.difference,
        "saved_ms": saved,
        "saved_percent": None if saved is None else 100 * saved / trial.step_ms,
    }


def verdict(row: Row, tried: Tried) -> str:
    """What to think of a variant, in a word or three."""
    if tried.timing is None:
        return "not run"
    word = _WORDS[tried.timing.outcome]
    if tried.is_wrong:
        return f"{word}, WRONG"
    return word if row.is_comparable else f"{word}, not comparable"


def sentences(trial: Trial) -> list[str]:
    """What it comes to."""
    said = []
    if trial.is_interrupted:
        said.append("Interrupted: this is what was measured until then.")
    totals = trial.totals()
    if totals:
        said.append(f"If nothing else changes, a step of {trial.step_ms:.4g} ms would be shorter by:")
        for name, saved in totals.items():
            count = sum(
                each.variant == name and each.is_gain and row.saved_ms(each) is not None
                for row in trial.rows
                for each in row.tried
            )
            operators = f"{count} operator{'s' * (count != 1)}"
            said.append(f"  {name}: {saved:.3g} ms, {100 * saved / trial.step_ms:.2g}% ({operators})")
    elif trial.rows:
        said.append("Nothing that was tried makes a step shorter for sure.")
    if odd := sum(row.alone_ms is not None and not row.is_comparable for row in trial.rows):
        said.append(
            f"{odd} of {len(trial.rows)} operators took less than {COMPARABLE[0]:g} or more than {COMPARABLE[1]:g} "
            "times what was recorded when run alone: not comparable, and counted for nothing."
        )
    said += _covered(trial)
    return said


def _covered(trial: Trial) -> list[str]:
    """What can be run again, and why the rest cannot."""
    cut = trial.cut
    tried = sum(row.group.step_ms for row in trial.rows)
    share = f"{100 * cut.covered:.1f}% of the time of operators can be run again"
    said = [f"{share}; the {len(trial.rows)} tried here take {tried:.4g} ms of a step."]
    by_reason: dict[str, list[Any]] = {}
    for each in cut.left:
        by_reason.setdefault(each.reason, []).append(each)
    ordered = sorted(by_reason.items(), key=lambda entry: -sum(each.share for each in entry[1]))
    for reason, left in ordered[:_REASONS]:
        names = ", ".join(each.name for each in left[:3])
        more = f" and {len(left) - 3} more" if len(left) > 3 else ""  # noqa: PLR2004 -- as many as are named
        said.append(f"  {100 * sum(each.share for each in left):.1f}% cannot: {reason} ({names}{more})")
    return said


def data(trial: Trial) -> dict[str, Any]:
    """All of it."""
    return {
        "format": FORMAT,
        "device": trial.device,
        "step_ms": trial.step_ms,
        "interrupted": trial.is_interrupted,
        "rows": table(trial).to_dicts(),
        "saved_ms": trial.totals(),
        "covered": trial.cut.covered,
        "left": [{"operator": each.name, "reason": each.reason, "share": each.share} for each in trial.cut.left],
    }
