from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

import perfhooks.analysis.ranks
import perfhooks.trace
from perfhooks.analysis import flames as tree
from perfhooks.analysis.comparison import saved
from perfhooks.analysis.comparison.costs import Amount, Costs, Text, measure, merge_rows
from perfhooks.analysis.comparison.facts import facts
from perfhooks.analysis.comparison.timed import TimedRun
from perfhooks.analysis.ranks.known import SummaryCache
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.labels import CLOCKS_LOCKED
from perfhooks.core.statistics import LEAST_STEPS, Level
from perfhooks.run import layout, steps
from perfhooks.run.capture import Capture
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import SHARE
from perfhooks.run.live.status import Status
from perfhooks.run.manifest import Manifest
from perfhooks.run.reading import read_bytes, said
from perfhooks.run.timeline import in_timeline

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perfhooks.run.capture import Place

_Rank = Annotated[int, msgspec.Meta(ge=0, lt=10**6)]
_Milliseconds = Annotated[float, msgspec.Meta(ge=0, le=1e12)]


class BaselineFile(msgspec.Struct, kw_only=True):
    label: Text
    stage: Text
    facts: dict[Text, Text] = msgspec.field(default_factory=dict)
    levels: list[Level] = msgspec.field(default_factory=list)
    windows: Amount = 0
    findings: dict[Text, Text] = msgspec.field(default_factory=dict)
    """Titles of findings, keyed by rule. The keys of titles about stragglers also contain rank and part of the step."""
    ranks: dict[_Rank, _Milliseconds] = msgspec.field(default_factory=dict)
    """Median step time of each rank in ms: of unprofiled steps if available, otherwise of profiled steps."""


class Side(BaselineFile, kw_only=True):
    costs: Costs = msgspec.field(default_factory=Costs)
    flames: dict[str, Any] = msgspec.field(default_factory=dict)
    runs: list[TimedRun] = msgspec.field(default_factory=list)
    flame_steps: int = 1
    earlier: list[list[Level]] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def step_ms(self) -> float:
        return self.costs.wall / self.costs.steps / 1e6 if self.costs.steps else 0.0


class RunOrTrace:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = None if path.is_file() else FinishedRun(path)
        if self.run is not None and not self.run.stages:
            raise PerfhooksError(f"{path} has nothing to compare: it contains no timed step and no finished window")

    @property
    def stages(self) -> list[str] | None:
        return None if self.run is None else self.run.stages

    def side(self, stage: str) -> Side:
        return self._read_trace(stage) if self.run is None else self._read_run(self.run, stage)

    def _read_trace(self, stage: str) -> Side:
        trace = perfhooks.trace.read(self.path)
        capture = Capture(rank=trace.rank or 0, stage=stage, last=0)
        costs = measure(capture.tables(trace))
        side = Side(label=self.path.name, stage=stage, costs=costs, windows=1, facts=facts(Manifest(), capture, costs))
        side.flames, side.flame_steps = tree.flames(capture, trace), costs.steps
        side.findings = _find_titles(capture, trace)
        if CLOCKS_LOCKED in capture.tables(trace).checks["text"].to_list():
            side.notes.append(f"{side.label}: {CLOCKS_LOCKED}")
        side.notes.append(f"{side.label} is a trace: it contains no unprofiled steps")
        return side

    def _read_run(self, run: FinishedRun, stage: str) -> Side:
        side = Side(label=self.path.resolve().name, stage=stage)
        _add_steps(side, run, stage)
        for window in run.windows:
            if window.capture.stage != stage:
                continue
            for place, capture in window.captures.items():
                side.ranks[place.rank] = capture.cost.idle_step_ms or capture.summary.get("wall_ms", 0.0)
                if place.rank == run.rank and CLOCKS_LOCKED in capture.notes:
                    side.notes.append(f"{side.label}: {window.name} is skipped: {CLOCKS_LOCKED}")
                elif place.rank == run.rank:
                    _add_window(side, place, capture)
        side.findings = _find_stragglers(run, stage) | side.findings
        last = run.last(stage)
        side.facts = facts(run.manifest, Capture() if last is None else last.capture, side.costs)
        if not side.costs.steps:
            side.notes.append(f"{side.label} has no window of {stage}: the parts of its steps are unknown")
        if run.is_written:
            side.notes.append(f"{side.label} is still being written: only its finished part is compared")
        return side


def _add_steps(side: Side, run: FinishedRun, stage: str) -> None:
    timed = timed_run(run, stage)
    if timed.is_enough:
        side.runs.append(timed)
        side.levels.append(timed.level())
        return
    steps = len(timed.steps.wall_ms)
    side.notes.append(f"{side.label} has {words.count(steps, 'unprofiled step')} of {stage}; {LEAST_STEPS} are needed")


def timed_run(run: FinishedRun, stage: str) -> TimedRun:
    return TimedRun(run.steps_of(stage).unrecorded(), _read_waits(run, stage))


def _read_waits(run: FinishedRun, stage: str) -> steps.Waits | None:
    waits = steps.read_waits(run.folder / layout.processor(run.rank), in_timeline(stage))
    status = Status.read(run.folder, run.rank)
    if waits is None and status is not None and status.waited is not None:
        return steps.Waits.of_share(status.waited)
    return waits


class _Finding(msgspec.Struct):
    rule: str
    title: str


class _Findings(msgspec.Struct):
    rows: list[_Finding] = []


class _SummaryFile(msgspec.Struct):
    flames: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    findings: _Findings | msgspec.UnsetType = msgspec.UNSET


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        summary = msgspec.json.decode(read_bytes(path), type=_SummaryFile)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise PerfhooksError(f"{path} cannot be read: {said(error)}") from error
    fields: dict[str, Any] = {} if summary.flames is msgspec.UNSET else {"flames": summary.flames}
    if summary.findings is not msgspec.UNSET:
        fields["findings"] = {finding.rule: finding.title for finding in summary.findings.rows}
    return fields


def _find_stragglers(run: FinishedRun, stage: str) -> dict[str, str]:
    if len(layout.ranks_of_run(run.listing.files)) <= 1:
        return {}
    ranks = perfhooks.analysis.ranks.gather(run.folder, run.folders, SummaryCache.read(run.folder), run.listing)
    ranks["windows"] = [window for window in ranks["windows"] if window["stage"] == stage]
    ranks["frontier"] = [group for group in ranks["frontier"] if group["stage"] == in_timeline(stage)]
    findings = perfhooks.analysis.ranks.findings(ranks)
    return {f"{finding['rule']} {finding['rank']} {finding['part']}": finding["title"] for finding in findings}


def _read_file(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise PerfhooksError(f"{path} cannot be read: {said(error)}") from error


def _add_window(side: Side, place: Place, capture: Capture) -> None:
    costs_path, summary_path = place.artifact(saved.NAME), place.artifact(SHARE)
    summary: dict[str, Any] = {}
    if summary_path.exists():
        summary = _read_summary(summary_path)
    content = _read_file(costs_path) if costs_path.exists() else b""
    if content and not saved.is_old(content):
        costs = saved.decode(content, costs_path)
    else:
        path = place.trace()
        if path is None:
            return
        trace = perfhooks.trace.read(path, communication=capture.options.get("communication"))
        costs = measure(capture.tables(trace))
        summary.setdefault("flames", tree.flames(capture, trace))
    side.windows += 1
    side.costs = sum_costs([side.costs, costs])
    if "flames" in summary:
        side.flames, side.flame_steps = summary["flames"], costs.steps
    side.findings = summary.get("findings", side.findings)


def _find_titles(capture: Capture, trace: perfhooks.trace.Trace) -> dict[str, str]:
    from perfhooks.analysis import findings

    return {finding.rule: finding.title for finding in findings.find(capture, trace)}


def sum_costs(parts: Sequence[Costs]) -> Costs:
    """Sum the costs of several runs. A column that one of the runs lacks is dropped."""
    costs = [cost for cost in parts if cost.steps]
    if len(costs) <= 1:
        return costs[0] if costs else Costs()
    total = Costs(
        steps=sum(cost.steps for cost in costs),
        wall=sum(cost.wall for cost in costs),
        fetches=sum(cost.fetches for cost in costs),
        shapes=all(cost.shapes for cost in costs),
        frames=all(cost.frames for cost in costs),
        batch=costs[-1].batch,
        device_name=costs[-1].device_name,
        collectives=[row for cost in costs for row in cost.collectives],
        host=merge_rows(row for cost in costs for row in cost.host.items()),
        device=merge_rows(row for cost in costs for row in cost.device.items()),
    )
    for cost in costs:
        for name, count in cost.counts.items():
            total.counts[name] = total.counts.get(name, 0) + count
        for name, size in cost.peak_bytes.items():
            total.peak_bytes[name] = max(size, total.peak_bytes.get(name, 0))
    return total


def merge_runs(sides: Sequence[Side]) -> Side:
    first = sides[0]
    if len(sides) == 1:
        return first
    return Side(
        label=f"{first.label} and {len(sides) - 1} more",
        stage=first.stage,
        facts={
            name: " / ".join(dict.fromkeys(side.facts.get(name, "") for side in sides)) for name in _fact_names(sides)
        },
        levels=[level for side in sides for level in side.levels],
        runs=[run for side in sides for run in side.runs],
        earlier=[levels for side in sides for levels in side.earlier],
        costs=sum_costs([side.costs for side in sides]),
        windows=sum(side.windows for side in sides),
        findings={rule: title for side in sides for rule, title in side.findings.items()},
        ranks=first.ranks,
        flames=sides[-1].flames,
        flame_steps=sides[-1].flame_steps,
        notes=[note for side in sides for note in side.notes],
    )


def _fact_names(sides: Sequence[Side]) -> list[str]:
    return list(dict.fromkeys(name for side in sides for name in side.facts))
