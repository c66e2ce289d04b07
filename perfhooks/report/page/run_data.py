"""The data of a whole run: what its windows and ranks left behind, merged into what one page shows."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import numpy as np
import polars as pl

import perfhooks.analysis.ranks
import perfhooks.trace
from perfhooks.analysis.findings import rare_work as findings
from perfhooks.analysis.findings.explained import explained
from perfhooks.analysis.findings.finding import OVERHEAD, UNNAMED, of_unprofiled, ordered
from perfhooks.analysis.ranks.known import SummaryCache
from perfhooks.core import json_values, words
from perfhooks.core.errors import PerfhooksError
from perfhooks.report.page import slow_rows, startup_rows, window_data
from perfhooks.report.page.data import EXPLAINED, FORMAT, read_share, read_tried
from perfhooks.report.page.run_summary import summarize
from perfhooks.run import layout, rare_work
from perfhooks.run.capture import LARGE, Capture, Cost, Place
from perfhooks.run.finished import FinishedRun, FinishedWindow
from perfhooks.run.layout import SHARE
from perfhooks.trace.names import stages

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from perfhooks.run.manifest import Manifest
    from perfhooks.run.steps import Steps

_BUDGET: Final = 5 << 19
"""Maximum bytes of windows' data in a page, and of what ranks say together; what else does not fit is there as a row
of numbers."""
_BUDGET_RANKS: Final = 5 << 17
"""Maximum of these bytes for what ranks say together."""
_TRAINING: Final = "train"
_MISSING: Final = 60
_UNSHOWN: Final = ("steps", "own", "worst")
"""Of what `perfhooks.analysis.ranks.gather` says of a window: more than the page shows."""
_LINES: Final = 40
"""Of what came before the first step: what takes less is seconds in all."""
_SAMPLES: Final = 400
"""Points of the clock of all steps, for each stage."""
_COST: Final = ("stop_s", "save_s", "free_s", "trace_bytes", "idle_step_ms", "recorded_step_ms")

_log = logging.getLogger("perfhooks")


def gather(folder: Path) -> dict[str, Any]:
    """Merge what a run's windows and ranks left behind.

    Args:
        folder: A run folder.

    Returns:
        Plain data in the form of `perfhooks.report.page.data.RunData`: ``run`` (who, when, where), the latest
        ``windows`` in the order of their end, each with its ``ranks`` (facts and means of every rank) and ``details``
        (what `window_data.reduce` made, by rank, as far as there is room: of each window the lowest and the slowest
        rank first, late windows before early ones), ``timeline``, and ``slow`` where steps were, see `slow_rows`; of
        several ranks also ``ranks_together``, see `_together`, and ``findings``, those about the run and not about one
        window of one rank.

    Raises:
        PerfhooksError: It is no run folder.
    """
    run = FinishedRun(folder, brief=True)
    of_ranks, explanations = _of_ranks(run), _explanations(run)
    shown = _chosen(run.windows, _BUDGET - len(msgspec.json.encode([of_ranks, explanations])))
    steps, count = _steps(run), len(run.listing.windows)
    of_run = [*of_ranks.pop("findings", ()), *_rare(run, steps)]
    data = {
        "format": FORMAT,
        "title": folder.resolve().name,
        "run": _run_facts(run.manifest),
        "windows": [_window(window, shown, explanations) for window in run.windows],
        "lost": [f"{place.folder.name} of rank {place.rank}" for place in run.run.died_recording(run.listing)],
        "timeline": {stage: thinned for stage, each in steps.items() if (thinned := _thinned(each))},
        **({} if count == len(run.places) else {"windows_count": count}),
        **json_values.facts({"slow": slow_rows.gather(folder, _count(steps), run.listing)}),
        **json_values.facts({"tried": _tried(folder / layout.TRIED)}),
        **json_values.facts({"explanations": explanations}),
        **json_values.facts({"startup": _startup(folder, run.rank)}),
        **of_ranks,
        **json_values.facts({"findings": ordered(of_run)}),
    }
    return data | {"summary": msgspec.to_builtins(summarize(data, steps))}


def from_trace(path: Path, *, communication: str | None = None) -> dict[str, Any]:
    """The same of one trace file, wherever it came from.

    Args:
        path: A Kineto trace, packed or not.
        communication: Kernels that communicate, see `perfhooks.trace.read`.

    Returns:
        What `gather` gives, of one window.

    Raises:
        TraceError: It is no trace.
    """
    trace = perfhooks.trace.read(path, communication=communication)
    # last, whatever it is, says that no step was cut short
    stage = stages.shown(trace)
    details = window_data.reduce(Capture(rank=trace.rank or 0, stage=stage, last=0), trace)
    numbers = [step for step in details.get("steps", {}).get("rows", {}).get("step", []) if step is not None]
    first, last = min(numbers, default=0), max(numbers, default=0)
    capture = Capture(rank=trace.rank or 0, stage=stage, first=first, last=last, reached=last)
    mean = details.get("steps", {}).get("mean", {})
    window = FinishedWindow(path, {Place(path, capture.rank): capture})
    shown = {"ranks": [_rank(capture, mean)], "details": {str(capture.rank): details}}
    data: dict[str, Any] = {
        "format": FORMAT,
        "title": path.name,
        "run": {},
        "windows": [_facts(window) | ({} if numbers else {"first": None, "last": None}) | shown],
        "lost": [],
        "timeline": {},
    }
    return data | {"summary": msgspec.to_builtins(summarize(data, {}))}


def _chosen(windows: list[FinishedWindow], room: int) -> dict[Place, dict[str, Any]]:
    """The parts that go into the page: in each round one rank of each window, late windows first, until it is full."""
    queues = [_by_interest(window) for window in reversed(windows)]
    found: dict[Place, dict[str, Any]] = {}
    left = room
    for turn in range(max(map(len, queues), default=0)):
        for place in [queue[turn] for queue in queues if turn < len(queue)]:
            share = place.artifact(SHARE)
            try:
                size = share.stat().st_size
                if size <= left:
                    found[place] = msgspec.to_builtins(read_share(share))
                    left -= size
            except FileNotFoundError:
                continue  # none was asked for
            except (OSError, ValueError, PerfhooksError) as error:
                _log.warning("it is not on the page: %s", error)
    return found


def _by_interest(window: FinishedWindow) -> list[Place]:
    """The lowest rank, the slowest, then all others."""
    slowest = max(window.captures, key=lambda place: window.captures[place].summary.get("wall_ms", 0.0))
    return list(dict.fromkeys([window.place, slowest, *window.captures]))


def _explanations(run: FinishedRun) -> dict[str, Any]:
    """What was recorded to explain the windows of each loop."""
    found = {stage: window for stage in run.stages if (window := run.explanation(stage)) is not None}
    told = {stage: (window, _chosen([window], _BUDGET).get(window.place)) for stage, window in found.items()}
    return {stage: _explanation(window, share) for stage, (window, share) in told.items() if share is not None}


def _explanation(window: FinishedWindow, share: dict[str, Any]) -> dict[str, Any]:
    shapes = share.get("operators", {}).get("shapes")
    parts = {name: share[name] for name in EXPLAINED if name in share} | ({"shapes": shapes} if shapes else {})
    return {
        "name": window.name,
        "steps": words.steps(window.capture.first, window.last),
        "rank": window.capture.rank,
        **json_values.facts({"model": share.get("subject", {}).get("model"), "least_ms": _least_ms(share)}),
        "parts": parts,
        "findings": share.get("findings", {}).get("rows", []),
    }


def _least_ms(share: dict[str, Any]) -> float | None:
    """What the device needs at least for what a step of a window computes; that does not depend on how long it took."""
    rows = share.get("steps", {}).get("rows", {})
    least = [
        mfu * wall / 100 for mfu, wall in zip(rows.get("mfu_percent", ()), rows.get("wall_ms", ()), strict=False) if mfu
    ]
    return json_values.number(sum(least) / len(least)) if least else None


def _window(window: FinishedWindow, shown: dict[Place, dict[str, Any]], explanations: dict[str, Any]) -> dict[str, Any]:
    details = {
        str(place.rank): _of_unprofiled(shown[place], capture.cost)
        for place, capture in window.captures.items()
        if place in shown
    }
    explanation = explanations.get(window.capture.stage)
    if explanation is not None:
        idle = {str(each.rank): each.cost.idle_step_ms for each in window.captures.values()}
        details = {
            rank: _used(_explained(share, explanation), explanation, idle.get(rank)) for rank, share in details.items()
        }
    ranks = [_rank(each, each.summary, brief=place not in shown) for place, each in window.captures.items()]
    return _facts(window) | {"ranks": ranks, "details": details}


def _of_unprofiled(share: dict[str, Any], cost: Cost) -> dict[str, Any]:
    """A window's share, with its findings for an unprofiled step: few of them are known when the window ends."""
    told = share.get("findings")
    if not told or not told.get("step_ms") or not cost.idle_step_ms:
        return share
    rows = of_unprofiled(told["rows"], told["step_ms"], cost.idle_step_ms, cost.idle_data_ms)
    doubtful = {UNNAMED} if told["step_ms"] >= LARGE * cost.idle_step_ms else set()
    doubtful |= set() if cost.is_large else {OVERHEAD}
    rows = [row for row in rows if row.get("rule") not in doubtful]
    return share | {"findings": told | {"rows": ordered(rows)}}


def _explained(share: dict[str, Any], explanation: dict[str, Any]) -> dict[str, Any]:
    """A window's share, with what another one names for it; one that has stacks needs none."""
    subject, findings = share.get("subject", {}), share.get("findings")
    if findings is None or subject.get("python_frames"):
        return share
    rows = explained(findings["rows"], explanation["findings"], explanation["steps"])
    subject = {"model": explanation.get("model")} | subject
    return share | {"findings": findings | {"rows": rows}, "explained": True, "subject": subject}


def _used(share: dict[str, Any], explanation: dict[str, Any], idle_ms: float | None) -> dict[str, Any]:
    """With the MFU of what a step takes when nobody records, by the operations of a window that has shapes."""
    wall = idle_ms or share.get("steps", {}).get("usual", {}).get("wall_ms")
    if not share.get("explained") or not wall or not explanation.get("least_ms"):
        return share
    mfu = f"MFU {100 * explanation['least_ms'] / wall:.3g}%"
    said = (
        f"{mfu}: the operations of {explanation['steps']} at the dense peaks of the device, in {words.ms(wall)} a step."
    )
    return share | {"limits": [*share.get("limits", ()), said]}


def _facts(window: FinishedWindow) -> dict[str, Any]:
    """What all ranks of a window have in common."""
    capture = window.capture
    facts = {"stage": capture.stage, "first": capture.first, "last": window.last, "time": capture.time}
    return {"name": window.name, **facts}


def _rank(capture: Capture, mean: dict[str, float], *, brief: bool = False) -> dict[str, Any]:
    """What one rank says of a window: its facts, and the means of its step table; ranks can be thousands."""
    cost = {} if brief else {name: getattr(capture.cost, name) for name in _COST}
    return {
        "rank": capture.rank,
        "mean": {name: json_values.number(value) for name, value in mean.items()},
        **json_values.facts(
            {
                "headline": capture.line,
                "is_far": capture.is_far or None,
                "partial": capture.partial,
                "notes": [json_values.text(note, 1000) for note in capture.notes],
                "cost": json_values.facts(cost),
                "options": {} if brief else capture.options,
                "versions": {} if brief else capture.versions,
            }
        ),
    }


def _run_facts(manifest: Manifest) -> dict[str, Any]:
    wanted = ("started", "host", "world_size", "command", "versions", "schedule", "options", "steps_by")
    return json_values.facts(msgspec.to_builtins({name: getattr(manifest, name) for name in wanted}))


def _of_ranks(run: FinishedRun) -> dict[str, Any]:
    """What several ranks say together, and what to do about it; nothing of one rank of which nothing is missing."""
    if _is_alone(run):
        return {}
    try:
        known = SummaryCache.read(run.folder)
        told = perfhooks.analysis.ranks.gather(run.folder, run.folders, known, run.listing)
        known.keep(run.folder, [folder.name for folder in run.folders])
        named = {rank for entry in told["missing"] for rank in entry["ranks"]}
        if len(named.union(told["ranks"])) <= 1:
            return {}
        return {"ranks_together": _together(told), "findings": perfhooks.analysis.ranks.findings(told)}
    except Exception as error:  # noqa: BLE001 -- the page is worth having without it
        _log.debug("the page lacks what the ranks say together", exc_info=True)
        return {"ranks_together": {"problem": json_values.text(f"{type(error).__name__}: {error}")}}


def _is_alone(run: FinishedRun) -> bool:
    """Whether the run has no other rank, so that there is nothing to compare."""
    ranks = {place.rank for places in run.places.values() for place in places} | layout.ranks_of_run(run.listing.files)
    return (run.manifest.world_size or 1) == 1 and len(ranks) <= 1


def _rare(run: FinishedRun, steps: Mapping[str, Steps]) -> list[dict[str, Any]]:
    """Findings about the validations and checkpoints of the training."""
    training = steps.get(_TRAINING)
    if training is None:
        return []
    rows = [row for row in rare_work.read(run.folder / layout.rare(run.rank)) if row.stage == _TRAINING]
    last = run.last(_TRAINING)
    found = findings.of_run(rows, training, last.capture.circumstances.framework if last is not None else "")
    return [msgspec.to_builtins(each) for each in found]


def _together(told: dict[str, Any]) -> dict[str, Any]:
    """What `perfhooks.analysis.ranks.gather` told, as far as the page shows it and there is room: late windows first.

    Args:
        told: What it gave.

    Returns:
        ``world_size``, ``ranks`` (how many), ``windows`` by name, ``missing``, and ``missing_count``, that of all.
    """
    windows: dict[str, Any] = {}
    left = _BUDGET_RANKS
    for each in reversed(told["windows"]):
        shown = {name: value for name, value in each.items() if name not in _UNSHOWN}
        left -= len(msgspec.json.encode(shown))
        if windows and left < 0:
            break
        windows[each["name"]] = shown
    return {
        "world_size": told["world_size"],
        "ranks": len(told["ranks"]),
        "windows": windows,
        "frontier": told["frontier"],
        "missing": [entry | {"text": json_values.text(entry["text"], 1000)} for entry in told["missing"][:_MISSING]],
        "missing_count": len(told["missing"]),
    }


def _startup(run: Path, rank: int) -> json_values.Columns:
    """What the process did before its first step, what took longest first; empty where nobody looked."""
    table = startup_rows.read(run / layout.startup(rank))
    return json_values.columns(table.sort("seconds", descending=True), _LINES) if table.height else {}


def _tried(path: Path) -> list[dict[str, Any]] | None:
    """What `perfhooks try` measured; None where nobody tried anything."""
    try:
        return [msgspec.to_builtins(each) for each in read_tried(path)]
    except FileNotFoundError:
        return None
    except PerfhooksError as error:
        _log.warning("it is not on the page: %s", error)
        return None


def _steps(run: FinishedRun) -> dict[str, Steps]:
    """Steps of the run by loop, as far as they can be read."""
    try:
        return run.steps
    except PerfhooksError as error:
        _log.debug("the page lacks the steps: %s", error)
        return {}


class StoredFindings(NamedTuple):
    """The findings of a run as its report has them."""

    window: str
    """Name of the window that the summary describes."""
    of_run: list[Mapping[str, Any]]
    """Findings about the whole run, those about slow ranks among them."""
    of_ranks: dict[tuple[str, int], list[Mapping[str, Any]]]
    """By window and rank; windows without a share of the report are absent."""


def stored_findings(folder: Path) -> StoredFindings:
    """Read the findings of a run as its report has them.

    Args:
        folder: The run folder.
    """
    data = gather(folder)
    found = {
        (window["name"], int(rank)): share["findings"]["rows"]
        for window in data["windows"]
        for rank, share in window["details"].items()
        if "findings" in share
    }
    return StoredFindings(data["summary"].get("window", ""), [*data.get("findings", ())], found)


def _count(steps: dict[str, Steps]) -> int | None:
    """How many steps that is, each number once; None where none is known."""
    return sum(int(np.ptp(each.numbers)) + 1 for each in steps.values()) or None


def _thinned(steps: Steps) -> json_values.Columns:
    """The median wall time of stretches of all steps but those at a start; recorded steps apart from others."""
    width = max(-(-(int(np.ptp(steps.numbers)) + 1) // _SAMPLES), 1)
    columns = {
        "step": steps.numbers // width * width,
        "recorded": steps.is_recorded,
        "wall_ms": steps.wall_ms,
        "data_ms": pl.Series(steps.data_ms, nan_to_null=True),
    }
    table = pl.DataFrame(columns).filter(~steps.is_first & (steps.is_idle | steps.is_recorded))
    return json_values.columns(table.group_by("step", "recorded").median().sort("step", "recorded"))
