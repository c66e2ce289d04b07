"""The step time, parts and findings of a run, for all outputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core import labels, words
from perfhooks.run.capture import LARGE
from perfhooks.run.layout import PAGE_DATA
from perfhooks.run.manifest import StepsBy
from perfhooks.run.reading import read_json
from perfhooks.run.timeline import in_timeline
from perfhooks.trace.nesting.intervals import MOST

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.finished import FinishedRun
    from perfhooks.run.steps import Counted, Steps

UNITS: Final = {"batches": "batch", "call": "call", "backward": "backward pass"}
"""Noun for a step, keyed by the event that ends it."""
DEVICE_BUSY: Final = "device busy"
_RARE: Final = (labels.VALIDATION, labels.CHECKPOINT)
_LEAST_SHARE: Final = 0.01
_LEAST_LOCATED: Final = 0.1
_SEVERAL: Final = 1.5
"""Minimum mean number of batches or updates per step for the number to be shown."""
_PART_OF_PHRASE: Final = {phrase: part for part, phrase in labels.PHRASES.items()}


class _Strict(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Values without a measurement are omitted. Undeclared fields raise an error."""


class SummaryPart(_Strict):
    name: str
    share: float
    where: str = ""
    """Largest function: ``load, train.py:20``."""

    @property
    def brackets(self) -> str:
        return f" (largest: {words.line(self.where)})" if self.where else ""


class SummaryFinding(_Strict):
    title: str
    gain_ms: float | None = None
    gain: str = ""
    """Estimated gain, for example ``about 12 ms, 9%``."""
    where: str = ""
    """Location of the finding: ``load, train.py:20``."""


class RunSummary(_Strict):
    """The facts that the first screen of the report, the exit summary and `top` show."""

    unit: str = "step"
    """Noun for a step: ``step``, ``batch``, ``call``, ``backward pass``, or ``recording``."""
    per_step: str = ""
    """Batches and updates per step, if several: ``4 batches, 2 updates``."""
    step_ms: float | None = None
    """Median unprofiled step of the most common kind, in ms."""
    steps: str = ""
    is_profiled: bool = False
    profiled_ms: float | None = None
    profiled_steps: str = ""
    """Profiled steps with known device times: ``steps 3-5``, or ``a part of step 0``."""
    parts: list[SummaryPart] = []
    """Parts that take 1% of the step or more, the largest first."""
    findings: list[SummaryFinding] = []
    window: str = ""
    warning: str | None = None
    """The most important doubt about these numbers."""

    @property
    def is_device_busy(self) -> bool:
        return bool(self.parts) and self.parts[0].name == DEVICE_BUSY

    @property
    def line(self) -> str:
        """Return for example ``step 277 ms, 44% backward, 31% forward``."""
        parts = (f"{words.share(part.share)} {part.name}{part.brackets}" for part in self.parts)
        return ", ".join(filter(None, [self.step, *parts]))

    @property
    def step(self) -> str:
        """Return for example ``step 277 ms (profiled steps 3-5: 441 ms)``."""
        if self.step_ms is None:
            return f"{self.profiled_steps} was recorded" if self.profiled_steps.startswith("a part") else ""
        profiled = f"profiled {self.profiled_steps}: {words.ms(self.profiled_ms)}" if self.profiled_ms else ""
        details = "; ".join(filter(None, [self.per_step, self.steps if self.is_profiled else profiled]))
        return f"{self.unit} {words.ms(self.step_ms)}" + (f" ({details})" if details else "")


class _Stored(msgspec.Struct):
    summary: RunSummary | None = None
    inputs: str = ""


def read_summary(folder: Path) -> RunSummary | None:
    """Return the stored summary of a run; None without a report, or if an older perfhooks wrote it."""
    try:
        return _read(folder).summary
    except FileNotFoundError:
        return None


def has_current_report(run: FinishedRun) -> bool:
    """Return whether the report includes the present files of the run."""
    try:
        return _read(run.folder).inputs == run.inputs
    except FileNotFoundError:
        return False


def _read(folder: Path) -> _Stored:
    return read_json(folder / PAGE_DATA, _Stored, "the data of a report")


def begin_summary(steps_by: StepsBy | None) -> RunSummary:
    """Return a summary without times: it has the noun for a step, and what a step contains."""
    if steps_by is None:
        return RunSummary()
    counts = ((steps_by.fetches, "batch", "batches"), (steps_by.updates, "update", "updates"))
    several = (words.count(round(mean, 1), *nouns) for mean, *nouns in counts if mean and mean >= _SEVERAL)
    return RunSummary(unit=UNITS.get(steps_by.what, "step"), per_step=", ".join(several))


def summarize(data: Mapping[str, Any], steps: Mapping[str, Steps]) -> RunSummary:
    from perfhooks.analysis import findings

    windows = data.get("windows") or []
    loop = main_loop([window["stage"] for window in windows], steps)
    window = _shown(windows, loop)
    details: Mapping[str, Any] = next(iter(window.get("details", {}).values()), {})
    rank: Mapping[str, Any] = next(iter(window.get("ranks", ())), {})
    steps_by = msgspec.convert(data.get("run", {}).get("steps_by"), StepsBy | None)
    summary = begin_summary(steps_by)
    summary.window = window.get("name", "")
    typical = steps[loop].typical() if loop in steps else None
    if typical is not None and typical.median_ms is not None:
        summary.step_ms = typical.median_ms
        many = f"unprofiled {summary.unit}{'es' if summary.unit.endswith(('ch', 'ss')) else 's'}"
        summary.steps = words.count(len(typical.all_ms), f"unprofiled {summary.unit}", many)
    _add_profiled(summary, window, details)
    beside = None
    if typical is not None and window.get("last") is not None:
        beside = steps[loop].beside(window["first"], window["last"])
    summary.parts = shares_of_step(summary, details.get("steps", {}).get("usual", {}), beside or typical)
    explanation = data.get("explanations", {}).get(window.get("stage"), {})
    functions = {**explanation.get("parts", {}), **details}.get("largest_functions", {})
    for part in (part for part in summary.parts if part.share >= _LEAST_LOCATED):
        part.where = functions.get(_PART_OF_PHRASE.get(part.name), "")
    rows = findings.ordered([*data.get("findings", ()), *findings.first_rank_findings(window)])
    summary.findings = [
        SummaryFinding(
            title=row["title"],
            gain_ms=row.get("gain_ms"),
            gain=findings.gain(row),
            where=str(findings.source_location(row["evidence"])),
        )
        for row in rows
        if not row.get("doubts_others") and row.get("rule") != findings.OVERHEAD
    ][:3]
    summary.warning = next(_warnings(summary, beside, details, rank, rows), None)
    return summary


def untypical(beside: Counted | None) -> Iterator[str]:
    if beside is not None and beside.median_ms is not None:
        yield f"Parts and findings describe the profiled steps and steps next to them ({words.ms(beside.median_ms)})."


def rough(summary: RunSummary) -> Iterator[str]:
    if summary.parts and summary.step_ms and summary.profiled_ms and not summary.is_profiled:
        slowdown = summary.profiled_ms / summary.step_ms
        if slowdown >= LARGE:
            yield f"Profiled steps took {slowdown:.1f} times as long as others, so the shares of parts are only rough."


def main_loop(profiled_stages: Sequence[str], steps: Mapping[str, Steps]) -> str:
    stages = [in_timeline(stage) for stage in profiled_stages]
    loops = [loop for loop in stages if loop in steps] or list(steps)
    return max(loops, key=lambda loop: float(steps[loop].wall_ms.sum()), default=stages[-1] if stages else "")


def _shown(windows: Sequence[Mapping[str, Any]], loop: str) -> Mapping[str, Any]:
    own = [window for window in windows if in_timeline(window["stage"]) == loop]
    candidates = own or windows
    detailed = (window for window in reversed(candidates) if window.get("details"))
    return next(detailed, candidates[-1] if candidates else {})


def _add_profiled(summary: RunSummary, window: Mapping[str, Any], details: Mapping[str, Any]) -> None:
    table = details.get("steps", {})
    step_ms, first, last = profiled_ms(table.get("usual", {})), window.get("first"), window.get("last")
    summary.profiled_steps = "" if first is None or last is None else words.steps(first, last)
    if table.get("is_part"):
        of = "the program" if first is None else summary.profiled_steps
        summary.profiled_steps = f"a part of {of}"
        return
    is_without_steps = table.get("without_steps") or first is None
    if is_without_steps and summary.step_ms is not None:
        summary.profiled_steps = ""
        return
    if is_without_steps:
        summary.unit, summary.profiled_steps = "recording", "from start to stop"
    else:
        summary.profiled_steps = table.get("usual_steps") or summary.profiled_steps
    summary.profiled_ms = step_ms or None
    if summary.step_ms is None and step_ms:
        summary.step_ms, summary.is_profiled = step_ms, True
        summary.steps = summary.profiled_steps if is_without_steps else f"profiled {summary.profiled_steps}"


def profiled_ms(usual: Mapping[str, Any]) -> float:
    return max(usual.get("wall_ms") or 0.0, usual.get("busy_ms") or 0.0)


def shares_of_step(summary: RunSummary, usual: Mapping[str, Any], typical: Counted | None) -> list[SummaryPart]:
    """Return the shares of an unprofiled step if the wait for data was measured, else of a profiled step.

    Parts except the wait for data are estimated in proportion to profiled times.
    """
    wall = usual.get("wall_ms")
    busy = usual.get("busy_share") or 0.0
    if busy >= MOST:
        busy_ms = usual.get("busy_ms") or 0.0
        in_step = busy_ms / summary.step_ms if summary.step_ms else 0.0
        # profiled steps may do more work than the median step
        share = max(busy, in_step) if in_step <= 1 or busy_ms > (wall or 0.0) else busy
        return [SummaryPart(name=DEVICE_BUSY, share=min(share, 1.0))]
    part_ms = {part: max(usual.get(f"{part}_ms") or 0.0, 0.0) for part in labels.PHRASES}
    if not wall or not any(part_ms.values()):
        return []
    rare = sum(part_ms[part] for part in _RARE)
    if summary.step_ms and not summary.is_profiled and abs(wall - rare - summary.step_ms) < abs(wall - summary.step_ms):
        part_ms |= dict.fromkeys(_RARE, 0.0)  # the median unprofiled step contains no validation or checkpoint
    waiting = None if typical is None or summary.is_profiled else typical.waiting
    work = sum(value for part, value in part_ms.items() if part != "data")
    if waiting is not None and work:
        shares = {part: (1 - waiting) * value / work for part, value in part_ms.items()} | {"data": waiting}
    else:
        total = sum(part_ms.values())
        shares = {part: value / total for part, value in part_ms.items()}
    ranked = sorted(shares.items(), key=lambda item: -item[1])
    return [SummaryPart(name=labels.PHRASES[part], share=share) for part, share in ranked if share >= _LEAST_SHARE]


def _warnings(
    summary: RunSummary,
    beside: Counted | None,
    details: Mapping[str, Any],
    rank: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
) -> Iterator[str]:
    yield from untypical(beside)  # first: without it, findings may be longer than the step
    yield from (row["title"] for row in rows if row.get("doubts_others"))
    if summary.step_ms is None:
        yield "No whole step was measured, so the step time is unknown."
    if summary.is_profiled and summary.steps == "profiled step 0":
        yield "Only the first step was measured. It includes work that is done once."
    if summary.is_profiled and summary.unit == UNITS["call"]:
        yield "Only the first calls of a model were measured."
    if details.get("steps", {}).get("no_device_data"):
        yield "The work of the device was not recorded."
    if rank.get("partial"):
        yield f"The window is not complete: {rank['partial']}"
    yield from rough(summary)
