"""The stored data of reports: ``page.json`` of a window and ``report.json`` of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.findings.data import LoaderUse
from perfhooks.analysis.findings.finding import Finding
from perfhooks.analysis.ranks.findings import RunFinding
from perfhooks.core.json_values import Columns
from perfhooks.report.page.run_summary import RunSummary
from perfhooks.run.reading import read_format

if TYPE_CHECKING:
    from pathlib import Path

TRIED_FORMAT: Final = 1
WINDOW_FORMAT: Final = 1
FORMAT: Final = 1


class _Part(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Part of a stored report. Values without a measurement are omitted. Undeclared fields raise an error."""


class Subject(_Part):
    model: str | None = None
    device: str | None = None
    device_traced: bool | None = None
    world_size: int | None = None
    python_frames: bool | None = None
    stacks_by: str | None = None


class StepKind(_Part):
    kind: str
    count: int
    wall_ms: float


class StepsPart(_Part):
    rows: Columns
    count: int
    median_ms: float | None
    kinds: list[str]
    usual: dict[str, float | None]
    """Mean of each column over the usual steps."""
    others: list[StepKind]
    headline: str
    is_usual: list[bool] = []
    """Whether each row is a usual step (`perfhooks.trace.names.step_kinds.usual`)."""
    usual_steps: str = ""
    """Text that names the usual steps (`step_kinds.described`): ``steps 10-14 without 12``."""
    without_steps: bool = False
    """Whether the trace has no steps. If so, the only row is the whole recording."""
    is_part: bool = False
    no_device_data: bool = False
    """Whether the trace has kernel launches but no device work."""


class FirstRows(_Part):
    rows: Columns
    count: int | None = None
    classes: Columns | None = None


class MemoryPart(_Part):
    over_time: dict[str, Columns]
    peak: Columns
    alive: Columns


class CounterLane(_Part):
    counter: str
    device: int | None
    mean: list[float | None]


class CountersPart(_Part):
    parts: Columns
    """Intervals of each step, with the columns ``step``, ``begin_ms`` and ``end_ms``."""
    lanes: list[CounterLane]
    count: int


class CompiledPart(_Part):
    functions: Columns
    breaks: Columns
    inside_ms: float
    step_ms: float
    device_ms: float | None
    busy_ms: float | None


class Roofline(_Part):
    points: Columns
    roofs: dict[str, float]
    gb_per_s: float
    device: str
    source: str


class Findings(_Part):
    rows: list[Finding]
    accounted: float | None = None
    """Fraction of the steps that the tables account for, from 0 to 1."""
    step_ms: float | None = None


class DevicePart(_Part):
    steps: Columns
    parts: Columns
    """Device time per step: each class of work, work of other steps, and idle time for each cause. The sum is the wall
    time of the step.
    """
    idle: Columns
    queue: dict[str, float | None]
    """Fraction of the step for each length of the launch queue, by the names in `device_time.QUEUE`."""


class LoaderPlanPart(_Part):
    summary: str
    rows: Columns


class WindowData(_Part):
    format: int
    rank: int
    stage: str
    events: int
    subject: Subject | None = None
    steps: StepsPart | None = None
    findings: Findings | None = None
    compiled: CompiledPart | None = None
    labels: Columns | None = None
    operators: dict[str, Columns] | None = None
    """Operator tables for the groupings ``name``, ``shapes`` and ``step``."""
    behind_operators: Columns | None = None
    limits: list[str] = []
    roofline: Roofline | None = None
    kernels: FirstRows | None = None
    categories: Columns | None = None
    flames: dict[str, dict[str, list[Any]]] | None = None
    functions: FirstRows | None = None
    largest_functions: dict[str, str] = {}
    workers: Columns | None = None
    unseen_workers: str = ""
    loader_use: LoaderUse | None = None
    plan: LoaderPlanPart | None = None
    """Plan of loader workers for the unprofiled step time. Only reports contain it, because later steps change the step
    time.
    """
    modules: FirstRows | None = None
    memory: MemoryPart | None = None
    counters: CountersPart | None = None
    collectives: Columns | None = None
    copies: Columns | None = None
    synchronisations: Columns | None = None
    device: DevicePart | None = None
    gaps: Columns | None = None
    checks: FirstRows | None = None
    problems: list[str] = []
    explained: bool = False
    """Whether `RunData.explanations` has lines and modules for this window."""


EXPLAINED: Final = ("flames", "functions", "largest_functions", "modules", "behind_operators", "limits", "roofline")


class ExplanationPart(_Part):
    """A window recorded with stacks and shapes. The window adds source lines and shapes to other windows."""

    name: str
    steps: str
    rank: int
    parts: dict[str, Any]
    """Fields `EXPLAINED` of `WindowData`, and ``shapes``: the table of operators grouped by shapes."""
    model: str | None = None
    least_ms: float | None = None
    """Time in ms of the operations of a step at peak speed of the device. MFU is this time divided by the step time."""


class Rank(_Part):
    rank: int
    mean: dict[str, float | None]
    headline: str | None = None
    is_far: bool = False
    """Whether the profiler overhead is so large that the times of the parts of the step are misleading."""
    partial: str | None = None
    notes: list[str] = []
    cost: dict[str, float | None] = {}
    options: dict[str, Any] = {}
    versions: dict[str, str] = {}


class WindowPart(_Part):
    name: str
    stage: str
    first: int | None
    last: int | None
    time: float
    ranks: list[Rank]
    details: dict[str, WindowData]
    """Data of each rank. The size limit of the report can omit ranks."""


class SlowStepsPart(_Part):
    rows: Columns
    """Columns of ``rank0.slow.csv``, and ``rank`` if several ranks are slow."""
    rows_count: int
    count: int
    """Number of slow steps. A step that is slow on several ranks counts once."""
    wall_ms: float
    causes: dict[str, int]
    ranks: int
    steps: int | None = None
    is_cut: bool = False
    """Whether the oldest slow steps were not read."""


class TriedMost(_Part):
    times: float
    saved_ms: float
    saved_percent: float


class TriedAdvice(_Part):
    rule: str
    variant: str
    times: float
    """Speed-up of the measured operators together, as a factor."""
    saved_ms: float
    """Saved time per step in ms, if all other times are unchanged."""
    saved_percent: float
    operators: int
    device: str
    most: TriedMost | None = None
    """Upper ends of the ranges of ``times``, ``saved_ms`` and ``saved_percent``; None for single values."""


class TriedFile(_Part):
    format: int
    measured: list[TriedAdvice]


class RunData(_Part):
    format: int
    title: str
    run: dict[str, Any]
    windows: list[WindowPart]
    lost: list[str]
    timeline: dict[str, Columns]
    slow: SlowStepsPart | None = None
    startup: Columns = {}
    """Time before the first step for each kind of work, recorded by ``perfhooks run``."""
    windows_count: int | None = None
    ranks_together: dict[str, Any] | None = None
    findings: list[RunFinding] = []
    explanations: dict[str, ExplanationPart] = {}
    unread: list[str] = []
    tried: list[TriedAdvice] = []
    summary: RunSummary | None = None
    inputs: str = ""
    """Fingerprint of the files in this report, see `perfhooks.run.finished.FinishedRun.inputs`."""


def read_window(path: Path) -> WindowData:
    """Read the summary of a window. Raise PerfhooksError if the file is broken or has another format."""
    return read_format(path, WindowData, WINDOW_FORMAT, "the summary of a window")


def read_tried(path: Path) -> list[TriedAdvice]:
    return read_format(path, TriedFile, TRIED_FORMAT, "the results of perfhooks try").measured


def read_run(path: Path) -> RunData:
    return read_format(path, RunData, FORMAT, "the data of a report")
