from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.comparison import reason, sentences
from perfhooks.analysis.comparison.difference import TOLERANCE, Ratio
from perfhooks.analysis.comparison.facts import RECORDED, Difference, differences, is_other_machine, samples
from perfhooks.analysis.comparison.matching import Aligned
from perfhooks.analysis.comparison.reason import Contribution
from perfhooks.analysis.comparison.side import Side
from perfhooks.analysis.comparison.timed import match_steps, stalls
from perfhooks.analysis.comparison.verdict import Verdict, verdict
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 2
"""Format of the JSON of a comparison. 1: first version; 2: with mean and median step."""

_MAX_ROWS: Final = 200
"""Maximum reasons in the JSON. One more row contains the sum of the others."""
_MIN_SLOWDOWN: Final = 0.05
"""Minimum relative difference of the times of unchanged operators for a note about the CPU load."""


class Comparison(msgspec.Struct, kw_only=True):
    a: Side
    b: Side
    verdict: Verdict | None
    """Verdict about the step time; None if a side has too few unprofiled steps."""
    differs: list[Difference]
    notes: list[str]
    doubts: list[str] = []
    samples: tuple[int, int] | None = None
    by_device: bool = False
    shares: bool = False
    """Whether numbers are shares of the step instead of nanoseconds."""
    reasons: list[Contribution] = []
    """Causes of the difference. The differences of all causes sum to the difference of the profiled steps."""
    views: dict[str, list[Contribution]] = {}

    @property
    def sentence(self) -> str:
        if self.shares:
            return "Shares of the step are compared, not milliseconds: A and B ran on different machines."
        if self.verdict is None and self.a.costs.steps and self.b.costs.steps:
            return sentences.windows_alone(self.a, self.b)
        text = sentences.verdict(self.verdict, self.samples)
        return f"{text.removesuffix('.')}; {self.stalled}." if self.stalled else text

    @property
    def stalled(self) -> str:
        if self.verdict is None or not (self.a.runs and self.b.runs):
            return ""
        return sentences.stalled(self.verdict, stalls(self.a.runs), stalls(self.b.runs))

    @property
    def step_ms(self) -> tuple[float | None, float | None]:
        if self.verdict is None:
            return None, None
        a, b = self.samples or (1, 1)
        return self.verdict.decisive.a * a, self.verdict.decisive.b * b

    @property
    def is_decided(self) -> bool:
        """Whether one side is slower; also true without a verdict, or if shares of the step are compared."""
        return self.shares or self.verdict is None or self.verdict.outcome in ("slower", "faster")

    @property
    def told(self) -> list[str]:
        write = words.share if self.shares else None
        rows = [row for row in self.reasons if row.difference and (self.is_decided or self._is_certain(row))]
        return [sentences.contribution(row, write) for row in rows[:5]]

    def _is_certain(self, row: Contribution) -> bool:
        is_disturbed = self.verdict is not None and (self.verdict.is_busy or self.verdict.is_beside_others)
        return row.is_certain and (not is_disturbed or abs(row.by_count) > abs(row.by_price))

    @property
    def recorded(self) -> str:
        if not (self.a.costs.steps and self.b.costs.steps):
            return ""
        clock = "device time" if self.by_device else "host time"
        of_a, of_b = (
            f"{words.count(side.costs.steps, 'profiled step')} of {words.ms(side.step_ms)}" for side in (self.a, self.b)
        )
        head = "Reasons" if self.is_decided else "Certain differences"
        return f"{head} in {clock}, from {of_a} and {of_b}:"


def compare(a: Side, b: Side, *, tolerance: float = TOLERANCE, shares: bool = False) -> Comparison:
    if not (a.levels and b.levels) and not (a.costs.steps and b.costs.steps):
        raise PerfhooksError(
            f"{a.label} and {b.label} cannot be compared: neither unprofiled steps nor windows exist on both sides"
        )
    samples_per_step = _samples_per_step(a, b)
    judged = _judge(a, b, samples_per_step, tolerance) if a.levels and b.levels else None
    differs = differences(a.facts, b.facts)
    comparison = Comparison(
        a=a, b=b, verdict=judged, differs=differs, notes=[*a.notes, *b.notes], shares=shares, samples=samples_per_step
    )
    comparison.doubts = _find_doubts(comparison)
    comparison.notes += _note_outliers(comparison)
    if a.costs.steps and b.costs.steps:
        _explain(comparison)
    return comparison


def _samples_per_step(a: Side, b: Side) -> tuple[int, int] | None:
    of_a, of_b = samples(a.facts), samples(b.facts)
    return (of_a, of_b) if of_a and of_b and of_a != of_b else None


def _judge(a: Side, b: Side, samples: tuple[int, int] | None, tolerance: float) -> Verdict:
    sides = (a, b)
    earlier = [*a.earlier, *b.earlier]
    if samples:
        levels = [[run.divided(count) for run in side.levels] for side, count in zip(sides, samples, strict=True)]
        return verdict(*levels, earlier=earlier, tolerance=tolerance)
    is_whole = all(len(side.runs) == len(side.levels) for side in sides)
    same_data = match_steps(a.runs, b.runs) if is_whole else None
    result = verdict(*(same_data or (a.levels, b.levels)), earlier=earlier, tolerance=tolerance)
    return replace(result, is_paired=same_data is not None)


def _format_both(*shares: float | None) -> str:
    texts = ("an unknown share" if share is None else words.share(share) for share in shares)
    return " and ".join(f"{text} in {side}" for text, side in zip(texts, "AB", strict=True))


def _find_doubts(comparison: Comparison) -> list[str]:
    doubts = []
    if is_other_machine(comparison.differs, comparison.a.facts) and not comparison.shares:
        doubts.append(
            "A and B ran on different machines, so times in ms are not comparable; use --shares to compare shares of "
            "the step"
        )
    if comparison.verdict is not None and comparison.verdict.is_busy:
        ratios = _format_both(comparison.verdict.waited_a, comparison.verdict.waited_b)
        done = (
            "the verdict is withheld"
            if comparison.verdict.is_withheld
            else "the mean step time minus those waits is compared"
        )
        doubts.append(f"CPU contention: steps waited in the run queue for {ratios} of their time: {done}")
    elif comparison.verdict is not None and comparison.verdict.is_beside_others:
        ratios = _format_both(comparison.verdict.others_a, comparison.verdict.others_b)
        doubts.append(
            f"other programs used {ratios} of the CPUs, and shared their caches and memory bandwidth: equal runs "
            "differ by more than on a quiet machine; use --run to compare two commands in interleaved blocks"
        )
    if not comparison.shares and _is_contrary(comparison):
        change = f"{words.ms(comparison.a.step_ms)} -> {words.ms(comparison.b.step_ms)}"
        doubts.append(
            f"the profiled steps differ in the opposite direction ({change}), so the reasons cannot explain why the "
            f"step became {comparison.verdict.outcome if comparison.verdict else ''}"
        )
    options = [
        difference.name.removeprefix("option ")
        for difference in comparison.differs
        if difference.name.startswith("option ")
    ]
    recording_options = [name for name in options if name in RECORDED]
    if recording_options:
        doubts.append(
            f"the windows were recorded with different options ({', '.join(recording_options)}): the reasons "
            "omit facts that only one side recorded, and the profiled steps also differ by recording overhead"
        )
    return doubts


def _note_outliers(comparison: Comparison) -> list[str]:
    times = [
        sum(run.far_time for run in side.levels) / max(len(side.levels), 1) for side in (comparison.a, comparison.b)
    ]
    if comparison.verdict is None or comparison.verdict.clock == "processor" or not any(times):
        return []
    effect = "included in the mean step" if comparison.verdict.is_far_counted else "excluded from the verdict"
    text = f"{words.share(times[0])} of the time in A and {words.share(times[1])} in B, and are {effect}"
    return [f"steps of more than three times the median (evaluations, checkpoints, pauses) take {text}"]


def _is_contrary(comparison: Comparison) -> bool:
    if comparison.verdict is None or comparison.verdict.outcome not in ("faster", "slower"):
        return False
    if not (comparison.a.step_ms and comparison.b.step_ms):
        return False
    recorded = comparison.b.step_ms / comparison.a.step_ms - 1
    return abs(recorded) > comparison.verdict.tolerance and (recorded > 0) != (comparison.verdict.ratio > 1)


def _explain(comparison: Comparison) -> None:
    if comparison.shares and not (comparison.a.step_ms and comparison.b.step_ms):
        raise PerfhooksError(
            f"{comparison.a.label} or {comparison.b.label} has steps of length 0, so shares of the step are undefined"
        )
    aligned = Aligned(comparison.a.costs, comparison.b.costs)
    comparison.by_device = aligned.by_device
    noise = reason.NoiseModel.of(aligned)
    if not comparison.shares and abs(noise.factor - 1) >= _MIN_SLOWDOWN:
        comparison.notes.append(
            f"work that runs equally often on both sides takes {noise.factor:.2f} times as long in the profiled steps "
            "of B, perhaps by another CPU load: differences within this factor are listed last"
        )
    views = {"reasons": reason.largest(aligned), **reason.views(aligned)}
    if comparison.shares:
        steps = comparison.a.step_ms * 1e6, comparison.b.step_ms * 1e6
        views = {name: [_scale_row(row, *steps) for row in rows] for name, rows in views.items()}
        views = {name: sorted(rows, key=lambda row: -abs(row.difference)) for name, rows in views.items()}
    else:
        views["collectives"] = reason.by_collective(aligned)
    comparison.reasons = views.pop("reasons")
    comparison.views = {name: rows for name, rows in views.items() if rows}


def _scale_row(row: Contribution, step_a: float, step_b: float) -> Contribution:
    a, b = row.a / step_a, row.b / step_b
    by_count = row.by_count / step_a
    return msgspec.structs.replace(row, a=a, b=b, by_count=by_count, by_price=b - a - by_count, sure=None, inside=[])


def data(comparison: Comparison) -> dict[str, Any]:
    """Return plain JSON: ``a``, ``b`` and ``difference`` of rows are per step, in ns or as shares of the step."""
    return {
        "format": FORMAT,
        "a": _describe_side(comparison.a),
        "b": _describe_side(comparison.b),
        "verdict": None if comparison.verdict is None else answers(comparison.verdict),
        "sentence": comparison.sentence,
        "differs": [difference._asdict() for difference in comparison.differs],
        "notes": [*comparison.doubts, *comparison.notes],
        "by_device": comparison.by_device,
        "unit": "share" if comparison.shares else "ns",
        "recorded": comparison.recorded,
        "told": comparison.told,
        "reasons": _build_rows(comparison.reasons),
        "tables": {name: _build_rows(rows) for name, rows in comparison.views.items()},
        "memory": memory(comparison),
        "findings": findings(comparison),
        "ranks": ranks(comparison),
        "counts": _find_counts(comparison),
        "flames": {"a": comparison.a.flames, "b": comparison.b.flames},
    }


def answers(result: Verdict) -> dict[str, Any]:
    ratios = {"typical": ratio_data(result.typical), "mean": ratio_data(result.mean)}
    low, high = sentences.ends(result.decisive)
    return asdict(result) | ratios | {"ratio": result.ratio, "low": low, "high": high}


def ratio_data(ratio: Ratio) -> dict[str, Any]:
    """Return a ratio as plain JSON. The ends of an interval that is too wide are null (`sentences.ends`)."""
    low, high = sentences.ends(ratio)
    return ratio._asdict() | {"low": low, "high": high}


def _describe_side(side: Side) -> dict[str, Any]:
    costs = side.costs
    return {
        "label": side.label,
        "stage": side.stage,
        "runs": len(side.levels),
        "windows": side.windows,
        "recorded_steps": costs.steps,
        "recorded_ns": costs.wall / costs.steps if costs.steps else None,
    }


def _build_rows(rows: Sequence[Contribution]) -> list[dict[str, Any]]:
    shown = [_build_row(row) for row in rows[:_MAX_ROWS]]
    smaller = rows[_MAX_ROWS:]
    if smaller:
        columns = ("a", "b", "count_a", "count_b", "by_count", "by_price")
        sums = {name: sum(getattr(row, name) for row in smaller) for name in columns}
        shown.append(
            _build_row(Contribution(name=words.count(len(smaller), "smaller row"), kind=reason.ELSEWHERE, **sums))
        )
    return shown


def _build_row(row: Contribution) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(row)
    return fields | {"title": sentences.subject(row), "difference": row.difference}


def memory(comparison: Comparison) -> list[dict[str, Any]]:
    a, b = comparison.a.costs.peak_bytes, comparison.b.costs.peak_bytes
    return [{"device": name, "a": a[name], "b": b[name]} for name in a if name in b]


def findings(comparison: Comparison) -> dict[str, list[str]]:
    a, b = comparison.a.findings, comparison.b.findings
    return {
        "came": [title for rule, title in b.items() if rule not in a],
        "went": [title for rule, title in a.items() if rule not in b],
    }


def ranks(comparison: Comparison) -> dict[str, Any]:
    """Return the step times of the median and the slowest rank in ms; empty with one rank per side."""
    if max(len(comparison.a.ranks), len(comparison.b.ranks)) <= 1:
        return {}
    summary: dict[str, Any] = {}
    for name, side in (("a", comparison.a), ("b", comparison.b)):
        ordered = sorted(side.ranks, key=side.ranks.__getitem__)
        if ordered:
            slowest, middle = ordered[-1], ordered[(len(ordered) - 1) // 2]
            summary[name] = {"count": len(ordered), "median_ms": side.ranks[middle], "slowest": slowest}
            summary[name]["slowest_ms"] = side.ranks[slowest]
    return summary


def _find_counts(comparison: Comparison) -> list[dict[str, Any]]:
    a, b = comparison.a.costs, comparison.b.costs
    rows = []
    for name in dict.fromkeys([*a.counts, *b.counts]):
        of_a, of_b = (side.counts.get(name, 0) / side.steps if side.steps else 0.0 for side in (a, b))
        if of_a != of_b:
            rows.append((abs(of_b - of_a), {"name": name, "a": of_a, "b": of_b}))
    return [row for _, row in sorted(rows, key=lambda row: -row[0])[:_MAX_ROWS]]
