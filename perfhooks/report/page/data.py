"""What the page is made from, as it stands in files: a window's share of it (``page.json``) and the whole."""

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
"""Of what was tried. 1: the first."""
SHARE_FORMAT: Final = 1
"""Of a window's share. 1: the first."""
FORMAT: Final = 1
"""Of the whole. 1: the first."""


class _Part(msgspec.Struct, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What is not known is absent. What is not named here is an error, as it would be lost between the files."""


class Subject(_Part):
    """What was profiled."""

    model: str | None = None
    device: str | None = None
    device_traced: bool | None = None
    world_size: int | None = None
    python_frames: bool | None = None
    stacks_by: str | None = None
    """What records stacks, where they were not."""


class StepKind(_Part):
    """The steps of another kind."""

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
    """Of each row, see `perfhooks.trace.names.step_kinds`."""
    usual: dict[str, float | None]
    """The means of the steps of no other kind."""
    others: list[StepKind]
    headline: str
    without_steps: bool = False
    """Whether the one row is no step, but all from start to stop."""
    is_part: bool = False
    """Whether only a part of one step was recorded, so that its time is no step time."""
    no_device_data: bool = False
    """Whether the work of the device was not recorded, though there was some."""


class FirstRows(_Part):
    """The first rows of a table, and how many there are."""

    rows: Columns
    count: int | None = None
    classes: Columns | None = None
    """Kernels only: time and number by class."""


class MemoryPart(_Part):
    """Memory of each device over time, its peak, and what was alive then."""

    over_time: dict[str, Columns]
    peak: Columns
    alive: Columns


class CounterLane(_Part):
    """One counter of one device: power, a clock, whatever the trace has."""

    counter: str
    device: int | None
    mean: list[float | None]
    """Over each of the parts."""


class CountersPart(_Part):
    """Counters over time."""

    parts: Columns
    """Into which the steps are cut: ``step``, ``begin_ms``, ``end_ms``."""
    lanes: list[CounterLane]
    """The first of them."""
    count: int
    """How many there are."""


class CompiledPart(_Part):
    """What torch.compile had made, and how much of a step it runs; see `perfhooks.report.page.compiled_rows`."""

    functions: Columns
    breaks: Columns
    inside_ms: float
    step_ms: float
    device_ms: float | None
    busy_ms: float | None


class Roofline(_Part):
    """How fast operators were, and what their device can do at most; see `perfhooks.report.page.roofline`."""

    points: Columns
    roofs: dict[str, float]
    """10^12 operations a second, by type."""
    gb_per_s: float
    device: str
    source: str
    """Where the peaks are from."""


class Findings(_Part):
    """What to do about the window, what gains most first."""

    rows: list[Finding]
    accounted: float | None = None
    """The part of the steps that the tables account for, from 0 to 1."""
    step_ms: float | None = None
    """The time of a profiled step."""


class DevicePart(_Part):
    """Where the time of the devices went; see `perfhooks.report.page.device_rows`."""

    steps: Columns
    """That of each step."""
    parts: Columns
    """That of a usual step: work by class, work of other steps, idle time by cause; they sum to its wall."""
    idle: Columns
    """Why it was idle: what the host did, with lines."""
    queue: dict[str, float | None]
    """Shares of its time by how much was launched and had not begun."""


class LoaderPlanPart(_Part):
    """How many workers would keep up; see `perfhooks.analysis.findings.loader_plan`."""

    said: str
    """In a sentence."""
    rows: Columns


class Share(_Part):
    """One window of one rank, as far as the page shows it; parts that the trace does not show are absent."""

    format: int
    rank: int
    stage: str
    events: int
    subject: Subject | None = None
    steps: StepsPart | None = None
    findings: Findings | None = None
    compiled: CompiledPart | None = None
    labels: Columns | None = None
    """Where somebody wrote some of their own."""
    operators: dict[str, Columns] | None = None
    """By what they are told apart by."""
    behind_operators: Columns | None = None
    """Where the time of the costliest operators goes: see `perfhooks.report.page.operator_rows`."""
    limits: list[str] = []
    """How far from the limit it was, in sentences: see `perfhooks.report.page.limits_said`."""
    roofline: Roofline | None = None
    kernels: FirstRows | None = None
    categories: Columns | None = None
    """What kind of work was done."""
    flames: dict[str, dict[str, list[Any]]] | None = None
    """Flame graphs by what their widths are, as `perfhooks.analysis.flames` makes them."""
    functions: FirstRows | None = None
    workers: Columns | None = None
    """Where the workers of the loader spent their time."""
    unseen_workers: str = ""
    """That there were some whom nobody saw, and how to see them."""
    plan: LoaderPlanPart | None = None
    modules: FirstRows | None = None
    memory: MemoryPart | None = None
    counters: CountersPart | None = None
    collectives: Columns | None = None
    copies: Columns | None = None
    synchronisations: Columns | None = None
    device: DevicePart | None = None
    gaps: Columns | None = None
    """The longest pauses of the devices."""
    checks: FirstRows | None = None
    problems: list[str] = []
    """Parts that failed, and why."""
    explained: bool = False
    """Whether lines, modules and shapes are in `RunData.explanations`, as this window was recorded without them."""


EXPLAINED: Final = ("flames", "functions", "modules", "behind_operators", "limits", "roofline")
"""The parts of a share that tell of lines and modules."""


class ExplanationPart(_Part):
    """What was recorded with stacks and shapes, beside windows without them. Its times are longer than theirs."""

    name: str
    """Of its window."""
    steps: str
    """Which it has, for people."""
    rank: int
    """Which one recorded it."""
    parts: dict[str, Any]
    """Those of `Share` that are in `EXPLAINED`, and ``shapes``, the operators by them."""
    findings: list[Finding]
    model: str | None = None
    least_ms: float | None = None
    """What the device needs at least for what a step computes, by its peaks."""


class Rank(_Part):
    """What one rank says of a window."""

    rank: int
    mean: dict[str, float | None]
    headline: str | None = None
    is_far: bool = False
    """Whether its recorded steps are far from what a step takes when nobody records."""
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
    details: dict[str, Share]
    """By rank, as far as there is room."""


class SlowStepsPart(_Part):
    """Steps that took much longer than others, of all ranks."""

    rows: Columns
    """The longest of them: the columns of ``rank0.slow.csv``, and ``rank`` where several had slow steps."""
    rows_count: int
    """How many rows there are."""
    count: int
    """How many steps that are: one that was slow on several ranks counts once."""
    wall_ms: float
    """How long they took together."""
    causes: dict[str, int]
    """How many steps each cause has, the most frequent first."""
    ranks: int
    """How many ranks had slow steps."""
    steps: int | None = None
    """How many steps there were in all, on the lowest rank."""
    is_cut: bool = False
    """Whether there are more, earlier ones, that were not read."""


class TriedMost(_Part):
    """The other end, where what was measured says no more than a range."""

    times: float
    saved_ms: float
    saved_percent: float


class TriedAdvice(_Part):
    """What following the advice of a finding gave when `perfhooks try` ran its operators."""

    rule: str
    variant: str
    times: float
    """How many times as fast they were together."""
    saved_ms: float
    """Milliseconds of a step, if nothing else changes."""
    saved_percent: float
    operators: int
    """How many different ones."""
    device: str
    most: TriedMost | None = None
    """Where the calls alone took another time than in the training, or it was not decided: all above is the least."""


class TriedFile(_Part):
    """All of a run: the latest of each rule."""

    format: int
    measured: list[TriedAdvice]


class RunData(_Part):
    """All that the page shows."""

    format: int
    title: str
    run: dict[str, Any]
    """Who, when, where: of `perfhooks.run.manifest.Manifest` what is known."""
    windows: list[WindowPart]
    """The latest ones, in the order of their end."""
    lost: list[str]
    timeline: dict[str, Columns]
    slow: SlowStepsPart | None = None
    startup: Columns = {}
    """What the process did before its first step, where ``perfhooks run`` looked."""
    windows_count: int | None = None
    """How many windows there are, where these are not all."""
    ranks_together: dict[str, Any] | None = None
    findings: list[RunFinding] = []
    """About the run, and not about one window of one rank."""
    explanations: dict[str, ExplanationPart] = {}
    """By loop."""
    unread: list[str] = []
    """Traces of a folder that could not be read, and why."""
    tried: list[TriedAdvice] = []
    """What the advice of findings was measured to give."""
    summary: RunSummary | None = None
    """The facts of the first screen."""


def read_share(path: Path) -> Share:
    """A window's share of the page.

    Raises:
        FileNotFoundError: There is none.
        PerfhooksError: It is broken, or of another format.
    """
    return read_format(path, Share, SHARE_FORMAT, "a share of the page")


def read_tried(path: Path) -> list[TriedAdvice]:
    """What was tried with a run.

    Raises:
        FileNotFoundError: Nothing.
        PerfhooksError: It is broken, or of another format.
    """
    return read_format(path, TriedFile, TRIED_FORMAT, "what was tried").measured


def read_run(path: Path) -> RunData:
    """The data of a page.

    Raises:
        FileNotFoundError: There is none.
        PerfhooksError: It is broken, or of another format.
    """
    return read_format(path, RunData, FORMAT, "the data of a page")
