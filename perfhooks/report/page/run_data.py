from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

import perfhooks.analysis.ranks
import perfhooks.trace
from perfhooks.analysis.findings import rare_work as findings
from perfhooks.analysis.findings.data import LoaderUse
from perfhooks.analysis.findings.finding import (
    OVERHEAD,
    UNNAMED,
    WAITING,
    add_source_lines,
    additional_findings,
    ordered,
    scale_to_unprofiled,
)
from perfhooks.analysis.findings.loader_plan import COLUMNS
from perfhooks.analysis.findings.texts import shared
from perfhooks.analysis.ranks.known import SummaryCache
from perfhooks.core import json_values, words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.words import MAX_TEXT
from perfhooks.report.page import headline, slow_rows, startup_rows, window_data
from perfhooks.report.page.data import EXPLAINED, FORMAT, read_tried, read_window
from perfhooks.report.page.run_summary import summarize
from perfhooks.report.page.tuned_file import TunedFile, tuned_advice
from perfhooks.run import layout, rare_work
from perfhooks.run.capture import LARGE, Capture, Cost, Place
from perfhooks.run.finished import FinishedRun, FinishedWindow
from perfhooks.run.layout import SHARE
from perfhooks.run.live import slow_steps
from perfhooks.run.reading import read_json
from perfhooks.run.steps import NONE
from perfhooks.run.timeline import in_timeline
from perfhooks.trace.names import stages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from perfhooks.run.manifest import Manifest
    from perfhooks.run.steps import Steps

_BUDGET: Final = 5 << 19
"""Maximum bytes of window summaries in the report. Other windows have only a row in the table."""
_TRAINING: Final = "train"
_UNSHOWN: Final = ("steps", "own", "worst")
_COST: Final = ("stop_s", "save_s", "free_s", "trace_bytes", "idle_step_ms", "recorded_step_ms")

_log = logging.getLogger("perfhooks")


def gather(folder: Path) -> dict[str, Any]:
    """Return the data of a run as `perfhooks.report.page.data.RunData`.

    If the summaries of all windows exceed `_BUDGET`, the latest windows have priority, and in each window the lowest
    and the slowest rank.
    """
    run = FinishedRun(folder, brief=True)
    inputs = run.inputs  # read this first: if a file changes later, the report is outdated
    of_ranks, steps = _compare_ranks(run), _read_steps(run)
    explanations = _explanations(run, steps)
    shown = _load_summaries(run.windows, _BUDGET - len(msgspec.json.encode([of_ranks, explanations])))
    count = len(run.listing.windows)
    of_run = [*of_ranks.pop("findings", ()), *_rare_work_findings(run, steps)]
    data = {
        "format": FORMAT,
        "title": json_values.text(folder.resolve().name),
        "run": _run_facts(run.manifest),
        "windows": [_window(window, shown, explanations) for window in run.windows],
        "lost": [f"{place.folder.name} of rank {place.rank}" for place in run.run.died_recording(run.listing)],
        "timeline": {stage: points for stage, of_stage in steps.items() if (points := _downsample(of_stage))},
        **({} if count == len(run.places) else {"windows_count": count}),
        **json_values.facts({"slow": slow_rows.gather(folder, _count_steps(steps), run.listing)}),
        **json_values.facts({"tried": [*_read_trials(folder), *_read_tuned(folder)] or None}),
        **json_values.facts({"explanations": {stage: _without_findings(row) for stage, row in explanations.items()}}),
        **json_values.facts({"startup": _read_startup(folder, run.rank)}),
        **of_ranks,
        **json_values.facts({"findings": ordered(of_run)}),
    }
    return data | {"summary": msgspec.to_builtins(summarize(data, steps)), "inputs": inputs}


def from_trace(path: Path, *, communication: str | None = None) -> dict[str, Any]:
    trace = perfhooks.trace.read(path, communication=communication)
    stage = stages.shown(trace)
    described = headline.described(Capture(rank=trace.rank or 0, stage=stage, last=0), trace)
    details = _rate_unprofiled(window_data.reduce(described, trace), described)
    numbers = [step for step in details.get("steps", {}).get("rows", {}).get("step", []) if step is not None]
    first, last = min(numbers, default=0), max(numbers, default=0)
    capture = replace(described, headline="", first=first, last=last, reached=last)
    window = FinishedWindow(path, {Place(path, capture.rank): capture})
    shown = {"ranks": [_rank(capture)], "details": {str(capture.rank): details}}
    data: dict[str, Any] = {
        "format": FORMAT,
        "title": json_values.text(path.name),
        "run": {},
        "windows": [_facts(window) | ({} if numbers else {"first": None, "last": None}) | shown],
        "lost": [],
        "timeline": {},
    }
    return data | {"summary": msgspec.to_builtins(summarize(data, {}))}


def _load_summaries(windows: list[FinishedWindow], max_bytes: int) -> dict[Place, dict[str, Any]]:
    queues = [_order_ranks(window) for window in reversed(windows)]
    summaries: dict[Place, dict[str, Any]] = {}
    for turn in range(max(map(len, queues), default=0)):
        for place in [queue[turn] for queue in queues if turn < len(queue)]:
            path = place.artifact(SHARE)
            try:
                size = path.stat().st_size
                if size <= max_bytes:
                    summaries[place] = msgspec.to_builtins(read_window(path))
                    max_bytes -= size
            except FileNotFoundError:
                continue
            except (OSError, ValueError, PerfhooksError) as error:
                _log.warning("The report omits one window, because its summary is broken: %s", error)
    return summaries


def _order_ranks(window: FinishedWindow) -> list[Place]:
    slowest = max(window.captures, key=lambda place: window.captures[place].summary.get("wall_ms", 0.0))
    return list(dict.fromkeys([window.place, slowest, *window.captures]))


def _explanations(run: FinishedRun, steps: Mapping[str, Steps]) -> dict[str, Any]:
    windows = {stage: window for stage in run.stages if (window := run.explanation(stage)) is not None}
    summaries = {stage: _load_summaries([window], _BUDGET).get(window.place) for stage, window in windows.items()}
    return {
        stage: _explanation(windows[stage], summary, steps.get(in_timeline(stage), NONE))
        for stage, summary in summaries.items()
        if summary is not None
    }


def _explanation(window: FinishedWindow, summary: dict[str, Any], steps: Steps) -> dict[str, Any]:
    shapes = summary.get("operators", {}).get("shapes")
    parts = {name: summary[name] for name in EXPLAINED if name in summary} | ({"shapes": shapes} if shapes else {})
    found = summary.get("findings") or {"rows": []}
    if findings.is_periodically_long(steps, window.capture.first):  # its functions are not those of the usual steps
        parts.pop("largest_functions", None)
        found = found | {"rows": [row for row in found["rows"] if row["rule"] != UNNAMED]}
    return {
        "name": window.name,
        "steps": words.steps(window.capture.first, window.last),
        "rank": window.capture.rank,
        **json_values.facts({"model": summary.get("subject", {}).get("model"), "least_ms": _least_ms(summary)}),
        "parts": parts,
        "findings": found,
    }


def _without_findings(explanation: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in explanation.items() if name != "findings"}


def _least_ms(summary: dict[str, Any]) -> float | None:
    rows = summary.get("steps", {}).get("rows", {})
    least = [
        mfu * wall / 100 for mfu, wall in zip(rows.get("mfu_percent", ()), rows.get("wall_ms", ()), strict=False) if mfu
    ]
    return json_values.number(sum(least) / len(least)) if least else None


def _window(window: FinishedWindow, shown: dict[Place, dict[str, Any]], explanations: dict[str, Any]) -> dict[str, Any]:
    details = {
        str(place.rank): _rate_unprofiled(shown[place], capture)
        for place, capture in window.captures.items()
        if place in shown
    }
    explanation = explanations.get(window.capture.stage)
    if explanation is not None:
        costs = {str(capture.rank): capture.cost for capture in window.captures.values()}
        details = {
            rank: _add_mfu(_add_explanation(summary, explanation, costs[rank]), explanation, costs[rank].idle_step_ms)
            for rank, summary in details.items()
        }
    ranks = [_rank(capture, brief=place not in shown) for place, capture in window.captures.items()]
    return _facts(window) | {"ranks": ranks, "details": details}


def _rate_unprofiled(summary: dict[str, Any], capture: Capture) -> dict[str, Any]:
    use = summary.get("loader_use") and msgspec.convert(summary["loader_use"], LoaderUse)
    cost, findings, summary = capture.cost, summary.get("findings"), _add_plan(summary, use, capture)
    if not findings or not findings.get("step_ms") or not cost.idle_step_ms:
        return summary
    rows = scale_to_unprofiled(findings["rows"], findings["step_ms"], cost.idle_step_ms, cost.idle_data_ms)
    doubtful = {UNNAMED} if findings["step_ms"] >= LARGE * cost.idle_step_ms else set()
    doubtful |= set() if cost.is_large else {OVERHEAD}
    rows = [row for row in rows if row.get("rule") not in doubtful]
    if use:
        rows = [row | _advise(row, use, capture) if row["rule"] == WAITING else row for row in rows]
    return summary | {"findings": findings | {"rows": ordered(rows)}}


def _advise(row: Mapping[str, Any], use: LoaderUse, capture: Capture) -> dict[str, Any]:
    """Return advice and gain of a data wait, computed like the worker plan for the current unprofiled step time."""
    text, fix = use.advise(capture)
    is_bound = row["is_bound"] or fix.remaining_ms is None
    gain_ms = row["most_ms"] - (0.0 if is_bound else fix.remaining_ms)
    gain = {"gain_ms": gain_ms, "gain_percent": 100 * gain_ms / capture.cost.idle_step_ms, "is_bound": is_bound}
    estimate = row["estimate"] if is_bound else str(shared("overlap", estimate=text.estimate))
    return {"advice": text.fix, "code": text.code, "estimate": estimate, **gain}


def _add_plan(summary: dict[str, Any], use: LoaderUse | None, capture: Capture) -> dict[str, Any]:
    plan = use and use.shown_plan(capture)
    if not plan or not (plan.is_larger or plan.ahead):
        return summary
    rows = json_values.columns(pl.DataFrame(plan.rows, schema=COLUMNS))
    return summary | {"plan": {"summary": str(plan), "rows": rows}}


def _add_explanation(summary: dict[str, Any], explanation: dict[str, Any], cost: Cost) -> dict[str, Any]:
    subject, findings, explaining = summary.get("subject", {}), summary.get("findings"), explanation["findings"]
    if findings is None or subject.get("python_frames"):
        return summary
    additional = additional_findings(findings["rows"], explaining["rows"], explanation["steps"])
    if explaining.get("step_ms") and cost.idle_step_ms:
        step_ms, data_ms = cost.idle_step_ms, cost.idle_data_ms
        additional = scale_to_unprofiled(additional, explaining["step_ms"], step_ms, data_ms)
    rows = ordered([*add_source_lines(findings["rows"], explaining["rows"], explanation["steps"]), *additional])
    subject = {"model": explanation.get("model")} | subject
    return summary | {"findings": findings | {"rows": rows}, "explained": True, "subject": subject}


def _add_mfu(summary: dict[str, Any], explanation: dict[str, Any], idle_ms: float | None) -> dict[str, Any]:
    wall = idle_ms or summary.get("steps", {}).get("usual", {}).get("wall_ms")
    if not summary.get("explained") or not wall or not explanation.get("least_ms"):
        return summary
    mfu = f"MFU {100 * explanation['least_ms'] / wall:.3g}%"
    sentence = (
        f"{mfu}: at the dense peaks of the device, the operations of {explanation['steps']} would take this "
        f"percentage of the {words.ms(wall)} of a step."
    )
    return summary | {"limits": [*summary.get("limits", ()), sentence]}


def _facts(window: FinishedWindow) -> dict[str, Any]:
    capture = window.capture
    facts = {"stage": capture.stage, "first": capture.first, "last": window.last, "time": capture.time}
    return {"name": window.name, **facts}


def _rank(capture: Capture, *, brief: bool = False) -> dict[str, Any]:
    cost = {} if brief else {name: getattr(capture.cost, name) for name in _COST}
    return {
        "rank": capture.rank,
        "mean": {name: json_values.number(value) for name, value in capture.summary.items()},
        **json_values.facts(
            {
                "headline": capture.line,
                "is_far": capture.is_far or None,
                "partial": capture.partial,
                "notes": [json_values.text(note, MAX_TEXT) for note in capture.notes],
                "cost": json_values.facts(cost),
                "options": {} if brief else capture.options,
                "versions": {} if brief else capture.versions,
            }
        ),
    }


def _run_facts(manifest: Manifest) -> dict[str, Any]:
    names = ("started", "host", "world_size", "command", "versions", "schedule", "options", "steps_by")
    return json_values.facts(msgspec.to_builtins({name: getattr(manifest, name) for name in names}))


def _compare_ranks(run: FinishedRun) -> dict[str, Any]:
    if _has_one_rank(run):
        return {}
    try:
        cache = SummaryCache.read(run.folder)
        comparison = perfhooks.analysis.ranks.gather(run.folder, run.folders, cache, run.listing)
        cache.keep(run.folder, [folder.name for folder in run.folders])
        missing = {rank for entry in comparison["missing"] for rank in entry["ranks"]}
        if len(missing.union(comparison["ranks"])) <= 1:
            return {}
        return {"ranks_together": _together(comparison), "findings": perfhooks.analysis.ranks.findings(comparison)}
    except Exception as error:  # noqa: BLE001 -- the report is useful without the comparison
        _log.debug("The ranks could not be compared for the report.", exc_info=True)
        return {"ranks_together": {"problem": json_values.text(f"{type(error).__name__}: {error}")}}


def _has_one_rank(run: FinishedRun) -> bool:
    ranks = {place.rank for places in run.places.values() for place in places} | layout.ranks_of_run(run.listing.files)
    return (run.manifest.world_size or 1) == 1 and len(ranks) <= 1


def _rare_work_findings(run: FinishedRun, steps: Mapping[str, Steps]) -> list[dict[str, Any]]:
    training = steps.get(_TRAINING)
    if training is None:
        return []
    rows = [row for row in rare_work.read(run.folder / layout.rare(run.rank)) if row.stage == _TRAINING]
    slow = [row for row in slow_steps.read(run.folder / layout.slow_steps(run.rank)) if row.stage == _TRAINING]
    last = run.last(_TRAINING)
    framework = last.capture.circumstances.framework if last is not None else ""
    run_findings = findings.of_run(rows, training, framework, slow)
    return [msgspec.to_builtins(finding) for finding in run_findings]


def _together(comparison: dict[str, Any]) -> dict[str, Any]:
    windows: dict[str, Any] = {}
    room = _BUDGET // 4
    for window in reversed(comparison["windows"]):
        shown = {name: value for name, value in window.items() if name not in _UNSHOWN}
        room -= len(msgspec.json.encode(shown))
        if windows and room < 0:
            break
        windows[window["name"]] = shown
    missing = comparison["missing"]
    return {
        "world_size": comparison["world_size"],
        "ranks": len(comparison["ranks"]),
        "windows": windows,
        "frontier": comparison["frontier"],
        "missing": [entry | {"text": json_values.text(entry["text"], MAX_TEXT)} for entry in missing[:60]],
        "missing_count": len(missing),
    }


def _read_startup(run: Path, rank: int) -> json_values.Columns:
    table = startup_rows.read(run / layout.startup(rank))
    return json_values.columns(table.sort("seconds", descending=True), 40) if table.height else {}


def _read_trials(folder: Path) -> list[dict[str, Any]]:
    try:
        return [msgspec.to_builtins(advice) for advice in read_tried(folder / layout.TRIED)]
    except FileNotFoundError:
        return []
    except PerfhooksError as error:
        _log.warning("The report omits the results of `perfhooks try`: %s", error)
        return []


def _read_tuned(folder: Path) -> list[dict[str, Any]]:
    try:
        changes = read_json(folder / layout.TUNED, TunedFile, "the results of perfhooks tune").changes
    except FileNotFoundError:
        return []
    except PerfhooksError as error:
        _log.warning("The report omits the results of `perfhooks tune`: %s", error)
        return []
    return [msgspec.to_builtins(advice) for change in changes for advice in tuned_advice(change)]


def _read_steps(run: FinishedRun) -> dict[str, Steps]:
    try:
        return run.steps
    except PerfhooksError as error:
        _log.debug("The report has no timeline: %s", error)
        return {}


class StoredFindings(NamedTuple):
    window: str
    of_run: list[Mapping[str, Any]]
    of_ranks: dict[tuple[str, int], list[Mapping[str, Any]]]


def stored_findings(folder: Path) -> StoredFindings:
    data = gather(folder)
    of_ranks = {
        (window["name"], int(rank)): summary["findings"]["rows"]
        for window in data["windows"]
        for rank, summary in window["details"].items()
        if "findings" in summary
    }
    return StoredFindings(data["summary"].get("window", ""), [*data.get("findings", ())], of_ranks)


def _count_steps(steps: dict[str, Steps]) -> int | None:
    return sum(int(np.ptp(of_loop.numbers)) + 1 for of_loop in steps.values()) or None


def _downsample(steps: Steps) -> json_values.Columns:
    width = max(-(-(int(np.ptp(steps.numbers)) + 1) // 400), 1)
    columns = {
        "step": steps.numbers // width * width,
        "recorded": steps.is_recorded,
        "wall_ms": steps.wall_ms,
        "data_ms": pl.Series(steps.data_ms, nan_to_null=True),
    }
    table = pl.DataFrame(columns).filter(~steps.is_first & (steps.is_idle | steps.is_recorded))
    return json_values.columns(table.group_by("step", "recorded").median().sort("step", "recorded"))
