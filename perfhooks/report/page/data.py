"""The stored data of reports: the summary of one window (``page.json``) and the data of a run (``report.json``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.findings.finding import Finding
from perfhooks.analysis.ranks.findings import RunFinding
from perfhooks.core.json_values import Columns
from perfhooks.report.page.run_summary import RunSummary
from perfhooks.run.reading import read_format

if TYPE_CHECKING:
    from pathlib import Path

TRIED_FORMAT: Final = 1
"""Format number of the results of ``perfhooks try``."""
WINDOW_FORMAT: Final = 1
"""Format number of the summary of a window."""
FORMAT: Final = 1
"""Format number of the data of a run."""


class _Part(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Unknown values are omitted; unknown fields are rejected."""


class Subject(_Part):
    """The profiled model and its device."""

    model: str | None = None
    device: str | None = None
    device_traced: bool | None = None
    world_size: int | None = None
    python_frames: bool | None = None
    stacks_by: str | None = None
    """Option that records stacks, if they were not recorded."""


class StepKind(_Part):
    """Steps of a kind that is not the most common one."""

    kind: str
    count: int
    wall_ms: float


class StepsPart(_Part):
    """The table of steps."""

    rows: Columns
    count: int
    mean: dict[str, float | None]
    median_ms: float | None
    kinds: list[str]
    """Kind of each row, see `perfhooks.trace.names.step_kinds`."""
    usual: dict[str, float | None]
    """Means of the steps of the most common kind."""
    others: list[StepKind]
    headline: str
    without_steps: bool = False
    """Whether the only row is the whole recording, because there are no steps."""
    is_part: bool = False
    """Whether only a part of one step was recorded. Its time is no step time."""
    no_device_data: bool = False
    """Whether the trace has launches but no device work."""


class FirstRows(_Part):
    """The first rows of a table, and the number of all rows."""

    rows: Columns
    count: int | None = None
    classes: Columns | None = None
    """Time and number of kernels by class; only in the table of kernels."""


class MemoryPart(_Part):
    """Memory of each device over time, its peak, and the allocations at the peak."""

    over_time: dict[str, Columns]
    peak: Columns
    alive: Columns


class CounterLane(_Part):
    """One counter of one device, for example power or a clock."""

    counter: str
    device: int | None
    mean: list[float | None]
    """Mean of each part of `CountersPart.parts`."""


class CountersPart(_Part):
    """Counters over time."""

    parts: Columns
    """Intervals of the steps: ``step``, ``begin_ms``, ``end_ms``."""
    lanes: list[CounterLane]
    """The first counters."""
    count: int
    """Number of all counters."""


class CompiledPart(_Part):
    """Compiled functions and their time in a step; see `perfhooks.report.page.compiled_rows`."""

    functions: Columns
    breaks: Columns
    inside_ms: float
    step_ms: float
    device_ms: float | None
    busy_ms: float | None


class Roofline(_Part):
    """Speed of operators and peaks of their device; see `perfhooks.report.page.roofline`."""

    points: Columns
    roofs: dict[str, float]
    """Peak in 10^12 operations per second, by data type."""
    gb_per_s: float
    device: str
    source: str
    """Source of the peaks."""


class Findings(_Part):
    """Findings of the window, by falling gain."""

    rows: list[Finding]
    accounted: float | None = None
    """Fraction of the steps that the tables account for, from 0 to 1."""
    step_ms: float | None = None
    """Mean time of a profiled step."""


class DevicePart(_Part):
    """Time of the devices; see `perfhooks.report.page.device_rows`."""

    steps: Columns
    """Device time of each step."""
    parts: Columns
    """Device time of a usual step: work by class, work of other steps, idle time by cause. It sums to the wall time."""
    idle: Columns
    """Causes of idle time: calls and lines of the host."""
    queue: dict[str, float | None]
    """Fractions of a usual step by the length of the launch queue."""


class LoaderPlanPart(_Part):
    """Number of workers that the step needs; see `perfhooks.analysis.findings.loader_plan`."""

    said: str
    """The result in one sentence."""
    rows: Columns


class WindowData(_Part):
    """Summary of one window of one rank. Parts that are not in the trace are absent."""

    format: int
    rank: int
    stage: str
    events: int
    subject: Subject | None = None
    steps: StepsPart | None = None
    findings: Findings | None = None
    compiled: CompiledPart | None = None
    labels: Columns | None = None
    """The table of labels, if the user wrote some."""
    operators: dict[str, Columns] | None = None
    """Tables of operators by their grouping: ``name``, ``shapes``, ``step``."""
    behind_operators: Columns | None = None
    """Shapes, lines and modules of the costliest operators; see `perfhooks.report.page.operator_rows`."""
    limits: list[str] = []
    """Sentences about speed and limits; see `perfhooks.report.page.limit_sentences`."""
    roofline: Roofline | None = None
    kernels: FirstRows | None = None
    categories: Columns | None = None
    """Time by kind of work."""
    flames: dict[str, dict[str, list[Any]]] | None = None
    """Flame graphs of `perfhooks.analysis.flames`, by measure."""
    functions: FirstRows | None = None
    workers: Columns | None = None
    """Time of the loader workers by function."""
    unseen_workers: str = ""
    """Message if loader workers were not sampled, with the remedy."""
    plan: LoaderPlanPart | None = None
    modules: FirstRows | None = None
    memory: MemoryPart | None = None
    counters: CountersPart | None = None
    collectives: Columns | None = None
    copies: Columns | None = None
    synchronisations: Columns | None = None
    device: DevicePart | None = None
    gaps: Columns | None = None
    """The longest idle intervals of the devices."""
    checks: FirstRows | None = None
    problems: list[str] = []
    """Parts that failed, with their errors."""
    explained: bool = False
    """Whether lines, modules and shapes are in `RunData.explanations`, because this window has none."""


EXPLAINED: Final = ("flames", "functions", "modules", "behind_operators", "limits", "roofline")
"""Fields of `WindowData` with lines and modules."""


class ExplanationPart(_Part):
    """A window with stacks and shapes that explains windows without them. Its steps are slower than theirs."""

    name: str
    """Name of the window."""
    steps: str
    """Its steps in words."""
    rank: int
    """The rank that recorded it."""
    parts: dict[str, Any]
    """The fields of `WindowData` that are in `EXPLAINED`, and ``shapes``, the operators by shape."""
    findings: list[Finding]
    model: str | None = None
    least_ms: float | None = None
    """Minimum device time of a step's operations at the peaks of the device, in ms."""


class Rank(_Part):
    """Facts of one rank about a window."""

    rank: int
    mean: dict[str, float | None]
    headline: str | None = None
    is_far: bool = False
    """Whether its profiled step times differ too much from unprofiled ones to be representative."""
    partial: str | None = None
    notes: list[str] = []
    cost: dict[str, float | None] = {}
    options: dict[str, Any] = {}
    versions: dict[str, str] = {}


class WindowPart(_Part):
    """One window of all ranks."""

    name: str
    stage: str
    first: int | None
    last: int | None
    time: float
    ranks: list[Rank]
    details: dict[str, WindowData]
    """Summaries by rank, as far as they fit."""


class SlowStepsPart(_Part):
    """Steps that took much longer than others, of all ranks."""

    rows: Columns
    """The longest ones: the columns of ``rank0.slow.csv``, and ``rank`` if several ranks have slow steps."""
    rows_count: int
    """Number of all rows."""
    count: int
    """Number of slow steps. A step that was slow on several ranks counts once."""
    wall_ms: float
    """Sum of their times."""
    causes: dict[str, int]
    """Number of steps by cause, the most frequent first."""
    ranks: int
    """Number of ranks with slow steps."""
    steps: int | None = None
    """Number of all steps of the lowest rank."""
    is_cut: bool = False
    """Whether earlier slow steps were not read."""


class TriedMost(_Part):
    """The upper end, if the result is a range."""

    times: float
    saved_ms: float
    saved_percent: float


class TriedAdvice(_Part):
    """Measured effect of the advice of a finding, by `perfhooks try`."""

    rule: str
    variant: str
    times: float
    """Speed-up of all operators together."""
    saved_ms: float
    """Saved milliseconds per step, if nothing else changes."""
    saved_percent: float
    operators: int
    """Number of different operators."""
    device: str
    most: TriedMost | None = None
    """The upper end of the effect; the values above are then the lower end. It is present if the calls took another
    time than in the training, or if the trial was undecided."""


class TriedFile(_Part):
    """The latest result of each rule in a run."""

    format: int
    measured: list[TriedAdvice]


class RunData(_Part):
    """The data of a report."""

    format: int
    title: str
    run: dict[str, Any]
    """The known facts of `perfhooks.run.manifest.Manifest`."""
    windows: list[WindowPart]
    """The latest windows, in the order of their end."""
    lost: list[str]
    timeline: dict[str, Columns]
    slow: SlowStepsPart | None = None
    startup: Columns = {}
    """Work of the process before its first step, if ``perfhooks run`` recorded it."""
    windows_count: int | None = None
    """Number of all windows, if `windows` is not complete."""
    ranks_together: dict[str, Any] | None = None
    findings: list[RunFinding] = []
    """Findings about the whole run."""
    explanations: dict[str, ExplanationPart] = {}
    """Explaining windows, by loop."""
    unread: list[str] = []
    """Traces of a folder that could not be read, with their errors."""
    tried: list[TriedAdvice] = []
    """Measured effects of advice."""
    summary: RunSummary | None = None
    """The facts of the first screen."""


def read_window(path: Path) -> WindowData:
    """Read the summary of a window.

    Raises:
        FileNotFoundError: The file does not exist.
        PerfhooksError: The file is broken, or has another format.
    """
    return read_format(path, WindowData, WINDOW_FORMAT, "the summary of a window")


def read_tried(path: Path) -> list[TriedAdvice]:
    """Read the results of ``perfhooks try`` for a run.

    Raises:
        FileNotFoundError: The file does not exist.
        PerfhooksError: The file is broken, or has another format.
    """
    return read_format(path, TriedFile, TRIED_FORMAT, "the results of perfhooks try").measured


def read_run(path: Path) -> RunData:
    """Read the data of a report.

    Raises:
        FileNotFoundError: The file does not exist.
        PerfhooksError: The file is broken, or has another format.
    """
    return read_format(path, RunData, FORMAT, "the data of a report")
