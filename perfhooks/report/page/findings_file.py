"""The file ``findings.json``: the machine-readable findings of a run. The schema is ``perfhooks/findings.schema.json``.

Version 1 may get more fields. A field changes its meaning or disappears only with a new version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from msgspec import Meta

from perfhooks.analysis.findings import finding
from perfhooks.analysis.findings.texts import EvidenceLine, Value
from perfhooks.analysis.ranks.findings import merge_findings
from perfhooks.core import words
from perfhooks.core.version import __version__
from perfhooks.report.page.run_summary import RunSummary
from perfhooks.run.publishing import encoded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

VERSION: Final = 1

Ms = Annotated[float, Meta(description="Time in ms.")]
Interval = Annotated[list[Ms], Meta(min_length=2, max_length=2, description="Lower and upper end, in ms.")]


class _Complete(msgspec.Struct, kw_only=True):
    """All fields are always present; unknown values are null."""


class Part(_Complete):
    """A part of the step."""

    name: str
    ratio: Annotated[float, Meta(description="Part of the step time, from 0 to 1.")]
    where: Annotated[str | None, Meta(description="Function, file and line that take at least half of the part.")]


class Step(_Complete):
    """The usual step."""

    unit: Annotated[str, Meta(description="Noun for a step: step, batch, call, backward pass or recording.")]
    ms: Annotated[float, Meta(description="Median time of a step, in ms.")]
    basis: Annotated[str, Meta(description="Number and kind of the steps in the median.")]
    is_profiled: Annotated[bool, Meta(description="Whether the median is of profiled steps, which are slower.")]
    profiled_ms: Annotated[float | None, Meta(description="Mean time of the profiled steps, in ms.")]
    parts: list[Part]


class Gain(_Complete):
    """Estimated gain of the fix in an unprofiled step."""

    ms: Annotated[float, Meta(description="Estimate in ms; an upper bound if `confidence` is `bound`.")]
    percent: Annotated[
        float | None, Meta(description="Percentage of the step; of the run for validation, checkpoints and slow steps.")
    ]
    interval_ms: Annotated[
        Interval, Meta(description="Range of the gain. The upper end is all the time that the fix affects.")
    ]
    basis: Annotated[str, Meta(description="How the gain was estimated, and for which steps.")]


class Measured(_Complete):
    """Result of perfhooks try for the rule of a finding: the recorded operators, run again in another variant."""

    variant: str
    device: str
    interval_ms: Annotated[Interval, Meta(description="Range of the time that a step saves if nothing else changes.")]


class FindingRow(_Complete):
    """One problem and its fix."""

    rule: Annotated[str, Meta(description="Name of the rule. The documentation explains each rule.")]
    title: str
    values: Annotated[dict[str, Value], Meta(description="The values in the title.")]
    evidence: list[EvidenceLine]
    fix: str
    code: Annotated[str | None, Meta(description="Code of the fix.")]
    file: Annotated[str | None, Meta(description="Source file, as the recorder names it.")]
    line: Annotated[int | None, Meta(description="Line in this file.")]
    function: Annotated[str | None, Meta(description="Function at this location.")]
    rank: Annotated[int | None, Meta(description="Rank of the values; null for the whole run.")]
    ranks: Annotated[list[int], Meta(description="All ranks with this finding.")]
    doubts_others: Annotated[bool, Meta(description="Whether the finding makes the times of other findings doubtful.")]
    gain: Annotated[Gain | None, Meta(description="Null if no gain is estimated; see reason.")]
    measured: Measured | None
    confidence: Annotated[
        str,
        Meta(
            pattern="^(measured|estimate|bound|none)$",
            description="measured: perfhooks try measured the fix here. estimate: measurements elsewhere showed "
            "that the fix helps for this kind of device and work. bound: the gain is at most this. "
            "none: no gain is estimated.",
        ),
    ]
    reason: Annotated[str | None, Meta(description="Reason why no gain is estimated.")]


class FindingsFile(_Complete):
    """Findings of a run or a trace, largest gain first. Gains overlap and do not add up."""

    version: Annotated[int, Meta(ge=1, le=1)]
    perfhooks: Annotated[str, Meta(description="Version of perfhooks that wrote this file.")]
    run: Annotated[str, Meta(description="Name of the run folder or the trace.")]
    command: Annotated[list[str], Meta(description="Command of the training; empty if unknown.")]
    window: Annotated[str | None, Meta(description="Folder of the window in the run folder.")]
    step: Annotated[Step | None, Meta(description="Null if the step time is unknown.")]
    warnings: Annotated[list[str], Meta(description="Doubts about the numbers, the most important first.")]
    findings: list[FindingRow]
    reason: Annotated[str | None, Meta(description="Reason why there are no findings.")]


def from_data(data: Mapping[str, Any], window_name: str | None = None) -> FindingsFile:
    """Return the findings of one window and of the run, from the data of the report.

    Without ``window_name``, the window is that on the report's first screen.
    """
    summary = msgspec.convert(data["summary"], RunSummary)
    name = window_name or summary.window
    window: Mapping[str, Any] = next((window for window in data["windows"] if window["name"] == name), {})
    details = window.get("details", {})
    of_ranks = {int(rank): of_rank.get("findings", {}).get("rows", []) for rank, of_rank in details.items()}
    is_one = len(window.get("ranks", ())) <= 1
    rows = [_row(row, data.get("tried", ())) for row in merge_findings(of_ranks, data.get("findings", ()))]
    return FindingsFile(
        version=VERSION,
        perfhooks=__version__,
        run=data["title"],
        command=list(data.get("run", {}).get("command", ())),
        window=name or None,
        step=_step(summary),
        warnings=list(dict.fromkeys(_warnings(data, summary, window))),
        findings=[msgspec.structs.replace(row, rank=None, ranks=[]) for row in rows] if is_one else rows,
        reason=None if rows else _reason(window, details),
    )


def schema(kind: type[msgspec.Struct] = FindingsFile, name: str = "findings.json") -> bytes:
    """Return the JSON schema of the file."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": name + " of perfhooks"}
    return to_json(head | msgspec.json.schema(kind))


def to_json(content: object) -> bytes:
    return msgspec.json.format(encoded(content), indent=2) + b"\n"


def _step(summary: RunSummary) -> Step | None:
    if summary.step_ms is None:
        return None
    return Step(
        unit=summary.unit,
        ms=summary.step_ms,
        basis=summary.steps,
        is_profiled=summary.is_profiled,
        profiled_ms=summary.profiled_ms,
        parts=[Part(name=part.name, ratio=part.share, where=part.where or None) for part in summary.parts],
    )


def _warnings(data: Mapping[str, Any], summary: RunSummary, window: Mapping[str, Any]) -> Iterator[str]:
    if summary.warning:
        yield summary.warning
    for rank in window.get("ranks", ()):
        if rank.get("partial"):
            yield f"rank {rank['rank']}: the window is not complete: {rank['partial']}"
    yield from data.get("unread", ())


def _row(row: Mapping[str, Any], tried: Any) -> FindingRow:
    measured = next((_measured(trial) for trial in tried if trial["rule"] == row["rule"]), None)
    gain = None if row.get("gain_ms") is None else _gain(row)
    location = finding.source_location(row["evidence"])
    return FindingRow(
        rule=row["rule"],
        title=row["title"],
        values=msgspec.convert(row.get("values", {}), dict[str, Value]),
        evidence=msgspec.convert(row["evidence"], list[EvidenceLine]),
        fix=row["advice"],
        code=row["code"] or None,
        file=location.file,
        line=location.line,
        function=location.function,
        rank=row["rank"],
        ranks=list(row["ranks"]),
        doubts_others=row.get("doubts_others", False),
        gain=gain,
        measured=measured,
        confidence=_confidence(row, is_measured=measured is not None),
        reason=row["estimate"] if gain is None else None,
    )


def _confidence(row: Mapping[str, Any], *, is_measured: bool) -> str:
    if is_measured:
        return "measured"
    return "none" if row.get("gain_ms") is None else "bound" if row.get("is_bound") else "estimate"


def _gain(row: Mapping[str, Any]) -> Gain:
    most_ms = max(row["gain_ms"], row.get("most_ms") or 0.0)
    return Gain(
        ms=row["gain_ms"], percent=row.get("gain_percent"), interval_ms=[0.0, most_ms], basis=finding.estimate(row)
    )


def _measured(trial: Mapping[str, Any]) -> Measured:
    most = trial.get("most") or trial
    return Measured(variant=trial["variant"], device=trial["device"], interval_ms=[trial["saved_ms"], most["saved_ms"]])


def _reason(window: Mapping[str, Any], details: Mapping[str, Any]) -> str:
    if not window:
        return "No window is finished."
    accounted = [of_rank["findings"]["accounted"] for of_rank in details.values() if "findings" in of_rank]
    if not accounted:
        return "The findings of this window were not computed."
    share = words.share(min(accounted))
    return f"No rule found a problem. The rules checked {share} of the step time."
