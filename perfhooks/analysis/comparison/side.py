"""One side of a comparison: what a run, some runs, a trace or a baseline say of a training."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec

import perfhooks.analysis.ranks
import perfhooks.trace
from perfhooks.analysis import flames as tree
from perfhooks.analysis.comparison import saved
from perfhooks.analysis.comparison.costs import Amount, Costs, Text, measure, together
from perfhooks.analysis.comparison.facts import facts
from perfhooks.analysis.comparison.timed import TimedRun
from perfhooks.analysis.ranks.known import SummaryCache
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
    """What is known of one side, as far as a baseline keeps it as it is."""

    label: Text
    stage: Text
    facts: dict[Text, Text] = msgspec.field(default_factory=dict)
    """What may differ besides: versions, device, schedule, ..."""
    levels: list[Level] = msgspec.field(default_factory=list)
    """What the unrecorded steps of each run take."""
    windows: Amount = 0
    findings: dict[Text, Text] = msgspec.field(default_factory=dict)
    """Title by rule, of the last window; those of ranks that others wait for also by the rank and the part."""
    ranks: dict[_Rank, _Milliseconds] = msgspec.field(default_factory=dict)
    """Milliseconds of the median step of each rank, recorded or not."""


class Side(BaselineFile, kw_only=True):
    """What is known of one side."""

    costs: Costs = msgspec.field(default_factory=Costs)
    """Of all windows of the lowest rank that kept them."""
    flames: dict[str, Any] = msgspec.field(default_factory=dict)
    """Flame graphs of the last window, as the page has them."""
    runs: list[TimedRun] = msgspec.field(default_factory=list)
    """The steps themselves, of those that are no baselines."""
    flame_steps: int = 1
    """How many steps that has."""
    earlier: list[list[Level]] = msgspec.field(default_factory=list)
    """What steps take in other runs of the same program that lie beside those compared; a list for each program."""
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def step_ms(self) -> float:
        """The mean recorded step."""
        return self.costs.wall / self.costs.steps / 1e6 if self.costs.steps else 0.0


class RunOrTrace:
    """A run folder, or a trace, that is to be compared.

    Args:
        path: Where it is.

    Raises:
        PerfhooksError: It is neither, or of a newer perfhooks.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.run = None if path.is_file() else FinishedRun(path)
        """None for a trace."""
        if self.run is not None and not self.run.stages:
            raise PerfhooksError(f"{path} has nothing to compare: no step was timed and no window finished")

    @property
    def stages(self) -> list[str] | None:
        """The loops that it knows of; None for a trace, which does not tell."""
        return None if self.run is None else self.run.stages

    def side(self, stage: str) -> Side:
        """What it says of a stage.

        Raises:
            TraceError: A trace that is needed cannot be read.
        """
        return self._of_trace(stage) if self.run is None else self._of_run(self.run, stage)

    def _of_trace(self, stage: str) -> Side:
        trace = perfhooks.trace.read(self.path)
        capture = Capture(rank=trace.rank or 0, stage=stage, last=0)
        costs = measure(capture.tables(trace))
        made = Side(label=self.path.name, stage=stage, costs=costs, windows=1, facts=facts(Manifest(), capture, costs))
        made.flames, made.flame_steps = tree.flames(capture, trace), costs.steps
        made.findings = _found(capture, trace)
        if CLOCKS_LOCKED in capture.tables(trace).checks["text"].to_list():
            made.notes.append(f"{made.label}: {CLOCKS_LOCKED}")
        made.notes.append(f"{made.label} is a trace: it does not tell what steps take that nobody records")
        return made

    def _of_run(self, run: FinishedRun, stage: str) -> Side:
        made = Side(label=self.path.resolve().name, stage=stage)
        _add_steps(made, run, stage)
        for window in run.windows:
            if window.capture.stage != stage:
                continue
            for place, capture in window.captures.items():
                made.ranks[place.rank] = capture.cost.idle_step_ms or capture.summary.get("wall_ms", 0.0)
                if place.rank == run.rank and CLOCKS_LOCKED in capture.notes:
                    made.notes.append(f"{made.label}: {window.name} is left out: {CLOCKS_LOCKED}")
                elif place.rank == run.rank:
                    _add_window(made, place, capture)
        made.findings = _of_ranks(run, stage) | made.findings
        last = run.last(stage)
        made.facts = facts(run.manifest, Capture() if last is None else last.capture, made.costs)
        if not made.costs.steps:
            made.notes.append(f"{made.label} kept no window of {stage}: what its steps are spent on is not known")
        if run.is_written:
            made.notes.append(f"{made.label} is still being written: compared as far as it is")
        return made


def _add_steps(made: Side, run: FinishedRun, stage: str) -> None:
    timed = timed_run(run, stage)
    if timed.is_enough:
        made.runs.append(timed)
        made.levels.append(timed.level())
        return
    steps = len(timed.steps.wall_ms)
    made.notes.append(f"{made.label} has {steps} steps of {stage} that nobody recorded; {LEAST_STEPS} are needed")


def timed_run(run: FinishedRun, stage: str) -> TimedRun:
    """The steps of a stage of a run that nobody recorded, and what they waited for processors."""
    return TimedRun(run.steps_of(stage).unrecorded(), _waits(run, stage))


def _waits(run: FinishedRun, stage: str) -> steps.Waits | None:
    found = steps.read_waits(run.folder / layout.processor(run.rank), in_timeline(stage))
    status = Status.read(run.folder, run.rank)
    if found is None and status is not None and status.waited is not None:
        return steps.Waits.of_share(status.waited)
    return found


class _Finding(msgspec.Struct):
    rule: str
    title: str


class _Findings(msgspec.Struct):
    rows: list[_Finding] = []


class _Share(msgspec.Struct):
    """Of the page of a window, what two are compared by."""

    flames: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    findings: _Findings | msgspec.UnsetType = msgspec.UNSET


def _told(path: Path) -> dict[str, Any]:
    try:
        share = msgspec.json.decode(read_bytes(path), type=_Share)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise PerfhooksError(f"{path} cannot be read: {said(error)}") from error
    found: dict[str, Any] = {} if share.flames is msgspec.UNSET else {"flames": share.flames}
    if share.findings is not msgspec.UNSET:
        found["findings"] = {each.rule: each.title for each in share.findings.rows}
    return found


def _of_ranks(run: FinishedRun, stage: str) -> dict[str, str]:
    """Who makes the other ranks wait."""
    if len(layout.ranks_of_run(run.listing.files)) <= 1:
        return {}
    told = perfhooks.analysis.ranks.gather(run.folder, run.folders, SummaryCache.read(run.folder), run.listing)
    told["windows"] = [window for window in told["windows"] if window["stage"] == stage]
    told["frontier"] = [group for group in told["frontier"] if group["stage"] == in_timeline(stage)]
    found = perfhooks.analysis.ranks.findings(told)
    return {f"{each['rule']} {each['rank']} {each['part']}": each["title"] for each in found}


def _whole(path: Path) -> bytes:
    try:
        return read_bytes(path)
    except OSError as error:
        raise PerfhooksError(f"{path} cannot be read: {said(error)}") from error


def _add_window(made: Side, place: Place, capture: Capture) -> None:
    """Take what a window's files tell; the trace is read only where they are of an older perfhooks."""
    kept, share = place.artifact(saved.NAME), place.artifact(SHARE)
    told: dict[str, Any] = {}
    if share.exists():
        told = _told(share)
    content = _whole(kept) if kept.exists() else b""
    if content and not saved.is_old(content):
        costs = saved.decode(content, kept)
    else:
        path = place.trace()
        if path is None:
            return
        trace = perfhooks.trace.read(path, communication=capture.options.get("communication"))
        costs = measure(capture.tables(trace))
        told.setdefault("flames", tree.flames(capture, trace))
    made.windows += 1
    made.costs = added([made.costs, costs])
    if "flames" in told:
        made.flames, made.flame_steps = told["flames"], costs.steps
    made.findings = told.get("findings", made.findings)


def _found(capture: Capture, trace: perfhooks.trace.Trace) -> dict[str, str]:
    from perfhooks.analysis import findings

    return {finding.rule: finding.title for finding in findings.find(capture, trace)}


def added(parts: Sequence[Costs]) -> Costs:
    """The costs of several windows or runs together; what one lacks, all lack."""
    known = [each for each in parts if each.steps]
    if len(known) <= 1:
        return known[0] if known else Costs()
    total = Costs(
        steps=sum(each.steps for each in known),
        wall=sum(each.wall for each in known),
        fetches=sum(each.fetches for each in known),
        shapes=all(each.shapes for each in known),
        frames=all(each.frames for each in known),
        batch=known[-1].batch,
        device_name=known[-1].device_name,
        collectives=[row for each in known for row in each.collectives],
        host=together(row for each in known for row in each.host.items()),
        device=together(row for each in known for row in each.device.items()),
    )
    for each in known:
        for name, count in each.counts.items():
            total.counts[name] = total.counts.get(name, 0) + count
        for name, size in each.peak_bytes.items():
            total.peak_bytes[name] = max(size, total.peak_bytes.get(name, 0))
    return total


def joined(sides: Sequence[Side]) -> Side:
    """Several runs of the same training as one side."""
    first = sides[0]
    if len(sides) == 1:
        return first
    return Side(
        label=f"{first.label} and {len(sides) - 1} more",
        stage=first.stage,
        facts={name: " / ".join(dict.fromkeys(each.facts.get(name, "") for each in sides)) for name in _names(sides)},
        levels=[level for each in sides for level in each.levels],
        runs=[run for each in sides for run in each.runs],
        earlier=[each for side in sides for each in side.earlier],
        costs=added([each.costs for each in sides]),
        windows=sum(each.windows for each in sides),
        findings={rule: title for each in sides for rule, title in each.findings.items()},
        ranks=first.ranks,
        flames=sides[-1].flames,
        flame_steps=sides[-1].flame_steps,
        notes=[note for each in sides for note in each.notes],
    )


def _names(sides: Sequence[Side]) -> list[str]:
    return list(dict.fromkeys(name for each in sides for name in each.facts))
