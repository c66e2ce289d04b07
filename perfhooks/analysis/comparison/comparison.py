"""Two trainings compared: one object with the verdict, what differs besides and the reason, as plain data."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.comparison import reason, sentences
from perfhooks.analysis.comparison.facts import RECORDED, Difference, differences, is_elsewhere, samples
from perfhooks.analysis.comparison.matching import Aligned
from perfhooks.analysis.comparison.reason import Contribution
from perfhooks.analysis.comparison.side import Side
from perfhooks.analysis.comparison.timed import paired, stalls
from perfhooks.analysis.comparison.verdict import TOLERANCE, Ratio, Verdict, verdict
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Sequence

FORMAT: Final = 2
"""Of a comparison's data. 2: mean and typical step; 1: the first."""
NAMED: Final = 5
"""How many reasons are said; all are in the tables."""

_ROWS: Final = 200
_NOTABLE: Final = 0.05
"""From this share on it is said that everything takes longer, or shorter: processes differ by less."""


class Comparison(msgspec.Struct, kw_only=True):
    """What two sides say together."""

    a: Side
    b: Side
    verdict: Verdict | None
    """None where a side has no steps to judge by."""
    differs: list[Difference]
    notes: list[str]
    doubts: list[str] = []
    """Why the verdict is not to be believed without more ado, the gravest first."""
    samples: tuple[int, int] | None = None
    """How many a step of each side takes, where that is known and not the same: the verdict is then of one sample."""
    by_device: bool = False
    """Whether the reasons are times of devices rather than of the host."""
    shares: bool = False
    """Whether their numbers are shares of the step rather than nanoseconds."""
    reasons: list[Contribution] = []
    """Largest first; they sum to the difference of the recorded steps."""
    views: dict[str, list[Contribution]] = {}
    """The same difference by parts, operators, ...; each sums to it, but collectives."""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        if self.shares:
            return "Shares of the step are compared, not milliseconds: the two ran on different machines."
        if self.verdict is None and self.a.costs.steps and self.b.costs.steps:
            return sentences.windows_alone(self.a, self.b)
        text = sentences.verdict(self.verdict, self.samples)
        return f"{text.removesuffix('.')}; {self.stalled}." if self.stalled else text

    @property
    def stalled(self) -> str:
        """Which long steps make the mean differ, in words; empty where none do, or where steps are not at hand."""
        if self.verdict is None or not (self.a.runs and self.b.runs):
            return ""
        return sentences.stalled(self.verdict, stalls(self.a.runs), stalls(self.b.runs))

    @property
    def step_ms(self) -> tuple[float | None, float | None]:
        """What a step takes that nobody recorded; None where there are too few."""
        if self.verdict is None:
            return None, None
        a, b = self.samples or (1, 1)
        return self.verdict.decisive.a * a, self.verdict.decisive.b * b

    @property
    def is_decided(self) -> bool:
        """Whether one side is slower; also True if only windows, or shares of the step, are compared."""
        return self.shares or self.verdict is None or self.verdict.outcome in ("slower", "faster")

    @property
    def told(self) -> list[str]:
        """The largest reasons in words. Without a difference to explain, only certain ones."""
        say = words.share if self.shares else None
        listed = [each for each in self.reasons if each.difference and (self.is_decided or self._is_certain(each))]
        return [sentences.contribution(each, say) for each in listed[:NAMED]]

    def _is_certain(self, row: Contribution) -> bool:
        """Under CPU contention only more or fewer calls are certain: their price is noise."""
        is_disturbed = self.verdict is not None and (self.verdict.is_busy or self.verdict.is_beside_others)
        return row.is_certain and (not is_disturbed or abs(row.by_count) > abs(row.by_price))

    @property
    def recorded(self) -> str:
        """What the recorded steps differ by, in words."""
        if not (self.a.costs.steps and self.b.costs.steps):
            return ""
        whose = "by the device's time" if self.by_device else "by the host's time"
        of_a, of_b = (f"{side.costs.steps:,} steps of {words.ms(side.step_ms)}" for side in (self.a, self.b))
        head = "Where it comes from" if self.is_decided else "What differs for certain"
        return f"{head}, {whose}, recorded in {of_a} and {of_b}:"


def compare(a: Side, b: Side, *, tolerance: float = TOLERANCE, shares: bool = False) -> Comparison:
    """Compare two sides.

    Args:
        a: What was before.
        b: What is now.
        tolerance: What share of difference is none.
        shares: Compare shares of the step instead of times.

    Raises:
        PerfhooksError: There is nothing that both have.
    """
    if not (a.levels and b.levels) and not (a.costs.steps and b.costs.steps):
        raise PerfhooksError(f"{a.label} and {b.label} have nothing in common: neither timed steps nor windows")
    taken = _samples(a, b)
    judged = _judged(a, b, taken, tolerance) if a.levels and b.levels else None
    differs = differences(a.facts, b.facts)
    made = Comparison(
        a=a, b=b, verdict=judged, differs=differs, notes=[*a.notes, *b.notes], shares=shares, samples=taken
    )
    made.doubts = _doubts(made)
    made.notes += _apart(made)
    if a.costs.steps and b.costs.steps:
        _explain(made)
    return made


def _samples(a: Side, b: Side) -> tuple[int, int] | None:
    """How many a step takes, where both sides know and it is not the same."""
    of_a, of_b = samples(a.facts), samples(b.facts)
    return (of_a, of_b) if of_a and of_b and of_a != of_b else None


def _judged(a: Side, b: Side, samples: tuple[int, int] | None, tolerance: float) -> Verdict:
    sides = (a, b)
    earlier = [*a.earlier, *b.earlier]
    if samples:
        levels = [[run.divided(count) for run in side.levels] for side, count in zip(sides, samples, strict=True)]
        return verdict(*levels, earlier=earlier, tolerance=tolerance)
    is_whole = all(len(side.runs) == len(side.levels) for side in sides)
    same_data = paired(a.runs, b.runs) if is_whole else None
    found = verdict(*(same_data or (a.levels, b.levels)), earlier=earlier, tolerance=tolerance)
    return replace(found, is_paired=same_data is not None)


def _of_both(*shares: float | None) -> str:
    each = ("an unknown share" if share is None else words.share(share) for share in shares)
    return " and ".join(f"{told} in {side}" for told, side in zip(each, "AB", strict=True))


def _doubts(made: Comparison) -> list[str]:
    found = []
    if is_elsewhere(made.differs, made.a.facts) and not made.shares:
        found.append(
            "the two ran on different machines, so milliseconds hardly compare; --shares compares shares of the step"
        )
    if made.verdict is not None and made.verdict.is_busy:
        told = _of_both(made.verdict.waited_a, made.verdict.waited_b)
        done = "nothing is decided" if made.verdict.is_withheld else "the mean step without those waits is compared"
        found.append(f"steps waited for a processor for {told} of their time, as the machine was busy: {done}")
    elif made.verdict is not None and made.verdict.is_beside_others:
        told = _of_both(made.verdict.others_a, made.verdict.others_b)
        found.append(
            f"other programs used {told} of this machine's processors, and with them caches and the memory's speed: "
            "equal runs differ by more than on a quiet machine; --run compares two beside each other"
        )
    if not made.shares and _is_contrary(made):
        found.append(
            f"the recorded steps differ the other way ({words.ms(made.a.step_ms)} -> {words.ms(made.b.step_ms)}), "
            f"so the reasons cannot say why the step became {made.verdict.outcome if made.verdict else ''}"
        )
    recorded = [each.name.removeprefix("option ") for each in made.differs if each.name.startswith("option ")]
    other = [name for name in recorded if name in RECORDED]
    if other:
        found.append(
            f"the windows were recorded with different options ({', '.join(other)}): what only one of them recorded "
            "is not compared, and recording itself is part of the difference of the recorded steps"
        )
    return found


def _apart(made: Comparison) -> list[str]:
    """What evaluations and checkpoints take, which the verdict is not about."""
    times = [sum(run.far_time for run in side.levels) / max(len(side.levels), 1) for side in (made.a, made.b)]
    if made.verdict is None or made.verdict.clock == "processor" or not any(times):
        return []
    where = "part of the mean step" if made.verdict.is_far_counted else "no part of the verdict"
    told = f"{words.share(times[0])} of the time in A and {words.share(times[1])} in B, and are {where}"
    return [f"steps of more than three times the median (evaluations, checkpoints, pauses) take {told}"]


def _is_contrary(made: Comparison) -> bool:
    """Whether the recorded steps became shorter where the others became longer, or the other way round."""
    if made.verdict is None or made.verdict.outcome not in ("faster", "slower") or not made.a.step_ms:
        return False
    recorded = made.b.step_ms / made.a.step_ms - 1
    return abs(recorded) > made.verdict.tolerance and (recorded > 0) != (made.verdict.ratio > 1)


def _explain(made: Comparison) -> None:
    if made.shares and not (made.a.step_ms and made.b.step_ms):
        raise PerfhooksError(
            f"{made.a.label} or {made.b.label} has steps that took no time: nothing is a share of them"
        )
    aligned = Aligned(made.a.costs, made.b.costs)
    made.by_device = aligned.by_device
    usual = reason.usual(aligned)
    if not made.shares and abs(usual.factor - 1) >= _NOTABLE:
        made.notes.append(
            f"what did not change takes {usual.factor:.2f} times as long in the recorded steps of B, as on a "
            "machine that is busier or quieter: reasons that this explains come last"
        )
    views = {
        "reasons": reason.largest(aligned),
        "parts": reason.by_part(aligned),
        "operators": reason.by_operator(aligned),
        "modules": reason.by_module(aligned) if aligned.modules else [],
        "lines": reason.by_line(aligned) if aligned.a.frames and aligned.b.frames else [],
        "classes": reason.by_class(aligned),
        "kernels": reason.by_kernel(aligned),
    }
    if made.shares:
        steps = made.a.step_ms * 1e6, made.b.step_ms * 1e6
        views = {name: [_as_share(row, *steps) for row in rows] for name, rows in views.items()}
        views = {name: sorted(rows, key=lambda each: -abs(each.difference)) for name, rows in views.items()}
    else:
        views["collectives"] = reason.by_collective(aligned)
    made.reasons = views.pop("reasons")
    made.views = {name: rows for name, rows in views.items() if rows}


def _as_share(row: Contribution, step_a: float, step_b: float) -> Contribution:
    a, b = row.a / step_a, row.b / step_b
    by_count = row.by_count / step_a
    return msgspec.structs.replace(row, a=a, b=b, by_count=by_count, by_price=b - a - by_count, sure=None, inside=[])


def data(made: Comparison) -> dict[str, Any]:
    """A comparison as plain JSON.

    Args:
        made: Any.

    Returns:
        ``verdict``, ``sentence``, ``differs``, ``notes``, ``reasons`` and ``tables`` (rows with ``a``, ``b`` and
        ``difference``, of one step, in nanoseconds or as shares), ``memory``, ``findings``, ``ranks`` and ``flames``.
    """
    return {
        "format": FORMAT,
        "a": _described(made.a),
        "b": _described(made.b),
        "verdict": None if made.verdict is None else answers(made.verdict),
        "sentence": made.sentence,
        "differs": [each._asdict() for each in made.differs],
        "notes": [*made.doubts, *made.notes],
        "by_device": made.by_device,
        "unit": "share" if made.shares else "ns",
        "recorded": made.recorded,
        "told": made.told,
        "reasons": _rows(made.reasons),
        "tables": {name: _rows(rows) for name, rows in made.views.items()},
        "memory": memory(made),
        "findings": findings(made),
        "ranks": ranks(made),
        "counts": _counts(made),
        "flames": {"a": made.a.flames, "b": made.b.flames},
    }


def answers(found: Verdict) -> dict[str, Any]:
    """A verdict as plain JSON."""
    ratios = {"typical": ratio_data(found.typical), "mean": ratio_data(found.mean)}
    low, high = sentences.ends(found.decisive)
    return asdict(found) | ratios | {"ratio": found.ratio, "low": low, "high": high}


def ratio_data(found: Ratio) -> dict[str, Any]:
    """A ratio as plain JSON; an end of its interval that is only noise is null."""
    low, high = sentences.ends(found)
    return found._asdict() | {"low": low, "high": high}


def _described(side: Side) -> dict[str, Any]:
    costs = side.costs
    return {
        "label": side.label,
        "stage": side.stage,
        "runs": len(side.levels),
        "windows": side.windows,
        "recorded_steps": costs.steps,
        "recorded_ns": costs.wall / costs.steps if costs.steps else None,
    }


def _rows(rows: Sequence[Contribution]) -> list[dict[str, Any]]:
    """The largest rows, and what the others sum to."""
    shown = [_row(each) for each in rows[:_ROWS]]
    rest = rows[_ROWS:]
    if rest:
        columns = ("a", "b", "count_a", "count_b", "by_count", "by_price")
        sums = {name: sum(getattr(each, name) for each in rest) for name in columns}
        shown.append(_row(Contribution(name=f"{len(rest)} smaller ones", kind=reason.ELSEWHERE, **sums)))
    return shown


def _row(each: Contribution) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(each)
    return plain | {"title": sentences.subject(each), "difference": each.difference}


def memory(made: Comparison) -> list[dict[str, Any]]:
    """The peak of memory of each device, in bytes; nothing where one side did not record it."""
    a, b = made.a.costs.peak_bytes, made.b.costs.peak_bytes
    return [{"device": name, "a": a[name], "b": b[name]} for name in a if name in b]


def findings(made: Comparison) -> dict[str, list[str]]:
    """What is now to be said that was not before, and the other way round: titles of findings."""
    a, b = made.a.findings, made.b.findings
    return {
        "came": [title for rule, title in b.items() if rule not in a],
        "went": [title for rule, title in a.items() if rule not in b],
    }


def ranks(made: Comparison) -> dict[str, Any]:
    """The median step of the middle and the slowest rank, in milliseconds; nothing of one rank a side."""
    if max(len(made.a.ranks), len(made.b.ranks)) <= 1:
        return {}
    found: dict[str, Any] = {}
    for name, side in (("a", made.a), ("b", made.b)):
        ordered = sorted(side.ranks, key=side.ranks.__getitem__)
        if ordered:
            slowest, middle = ordered[-1], ordered[(len(ordered) - 1) // 2]
            found[name] = {"count": len(ordered), "median_ms": side.ranks[middle], "slowest": slowest}
            found[name]["slowest_ms"] = side.ranks[slowest]
    return found


def _counts(made: Comparison) -> list[dict[str, Any]]:
    """How often each operator and kernel ran in a step, on any thread, where that differs."""
    a, b = made.a.costs, made.b.costs
    rows = []
    for name in dict.fromkeys([*a.counts, *b.counts]):
        of_a, of_b = (side.counts.get(name, 0) / side.steps if side.steps else 0.0 for side in (a, b))
        if of_a != of_b:
            rows.append((abs(of_b - of_a), {"name": name, "a": of_a, "b": of_b}))
    return [row for _, row in sorted(rows, key=lambda row: -row[0])[:_ROWS]]
