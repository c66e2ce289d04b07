"""One window of one rank: its facts, and where its files are."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.labels import CLOCKS_LOCKED, FOREIGN
from perfhooks.run import layout, remote
from perfhooks.run.circumstances import Circumstances
from perfhooks.run.compilation import Compilation
from perfhooks.run.installation import Installation  # noqa: TC001 -- msgspec reads the annotation of a dataclass, too
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import check_format, is_plain, read_json

if TYPE_CHECKING:
    from perfhooks.trace import Trace
    from perfhooks.trace.window import Tables

FORMAT: Final = 1
"""Format of capture.json."""

LARGE: Final = 1.5
"""Times the unrecorded step. Recording a step that waits for the host costs 25 to 45%; beyond half as much again,
shares of a step are no longer those of the training."""

EXPLAINS: Final = "explanation"
"""Why a window was recorded that explains another one, see `Capture.explains`."""

Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""The number of a step: so that a table can hold one more."""

State = Literal["spooled", "done"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one window for the training process."""

    stop_s: float = 0.0
    """Seconds the recorder took to stop."""
    save_s: float = 0.0
    """Seconds the one save of the trace took."""
    free_s: float = 0.0
    """Seconds it took to free what the recorder held; 0 where its results were kept."""
    trace_bytes: int = 0
    """Size of the saved trace, as plain JSON."""
    events: int | None = None
    """Number of slices in the trace."""
    idle_step_ms: float | None = None
    """Median wall time of the steps of this run so far that were not recorded."""
    idle_data_ms: float | None = None
    """How much of that they waited for data, on average; slow steps are left out."""
    idle_thread_ms: float | None = None
    """How much of it the thread that steps computed, on average over about each second of the run."""
    recorded_step_ms: float | None = None
    """Median wall time of the profiled steps."""

    @property
    def slowdown(self) -> float | None:
        """How many times as long as an unrecorded step a recorded one took; None where that is not known."""
        return self.recorded_step_ms / self.idle_step_ms if self.recorded_step_ms and self.idle_step_ms else None

    @property
    def is_large(self) -> bool:
        """Whether recording changes the shares of a step too much."""
        return (self.slowdown or 1.0) >= LARGE


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The facts of one finished window, kept beside its artifacts as ``rank0.capture.json``."""

    rank: int = 0
    node: str = ""
    """Name of the machine that the rank ran on."""
    boot: str = ""
    """Which of its starts that was, see `perfhooks.run.liveness.boot`; empty where it does not say."""
    stage: str = "train"
    """Which loop was profiled: train, validate, test or predict; of a trace that others recorded what it shows."""
    first: Step = 0
    """First active step, as planned."""
    last: Step | None = None
    """Last active step, as planned; None where recording went from start to stop."""
    reached: Step = 0
    """Number of the step during which, or before which, recording ended."""
    starting_steps: Step = 0
    """How many of its first steps are among the first ones of the process: imports and first calls take their time."""
    partial: str | None = None
    """Why the window ended before its last step; None for a whole window."""
    state: State = "done"
    """``spooled`` until the artifacts are made from the saved trace."""
    token: str = ""
    """Tells it from the same window of another process, as after an elastic restart; part of the saved trace's name."""
    spool: str | None = None
    """Path of the saved trace until the window is finished, if it is on a disk of the node."""
    handlers: tuple[dict[str, Any], ...] = ()
    """Handlers by name, with their options."""
    artifacts: tuple[str, ...] = ()
    """The files that were made."""
    headline: str = ""
    """Parts of the profiled steps in one line; see `line`."""
    summary: dict[str, float] = field(default_factory=dict)
    """The step table as one number a column, for loggers."""
    keep_windows: int | None = None
    """How many finished windows of this stage a rank keeps; None keeps all."""
    notes: tuple[str, ...] = ()
    """Failures of perfhooks, and doubts about the trace."""
    cost: Cost = field(default_factory=Cost)
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the recorder: shapes, memory, stacks, ..."""
    versions: dict[str, str] = field(default_factory=dict)
    installation: Installation | None = None
    """Folders of its Python; None if unknown."""
    circumstances: Circumstances = field(default_factory=Circumstances)
    """Resources of the process."""
    compilation: Compilation = field(default_factory=Compilation)
    """Work of torch.compile until the end of the window."""
    owners: dict[str, str] = field(default_factory=dict)
    """Owner of each file in the trace, by the first part of its name; see `perfhooks.trace.names.attribution`."""
    own_work: tuple[tuple[float, float], ...] = ()
    """When perfhooks itself kept the recorded thread waiting, begin and end in seconds since 1970."""
    request: str = ""
    """Why it was recorded outside of the schedule: the name of a request, ``code``, ``signal``, ``slow``, or
    ``explanation``, see `explains`."""
    began: float = 0.0
    """When its process began, in seconds since 1970; 0 where that is not known."""
    time: float = 0.0
    """When recording ended, in seconds since 1970."""
    format: int = FORMAT

    @property
    def explains(self) -> bool:
        """Whether the window supplies stacks and shapes only, and no times."""
        return self.request == EXPLAINS

    @property
    def is_far(self) -> bool:
        """Whether profiled steps differ too much from unprofiled ones."""
        idle, recorded = self.cost.idle_step_ms, self.cost.recorded_step_ms or self.summary.get("wall_ms")
        return bool(idle and recorded) and not 1 / LARGE < (recorded or 1.0) / (idle or 1.0) < LARGE

    @property
    def line(self) -> str:
        """The typical unprofiled step, if available, the headline and at most one warning."""
        if self.explains:
            return f"{words.steps(self.first, self.end)}: recorded with stacks and shapes, to name lines and modules"
        cost, line = self.cost, self.headline
        if line and cost.idle_step_ms and not (self.is_without_steps or self.is_part):
            recorded, *parts = line.split(", ")
            step = f"step {words.ms(cost.idle_step_ms)}"
            if self.is_far and cost.idle_data_ms is not None:
                step += f", {words.share(cost.idle_data_ms / cost.idle_step_ms)} waiting for data"
            line = ", ".join([f"{step} (profiled {recorded})", *parts])
        return f"{line}. Warning: {self._warning}" if line and self._warning else line

    @property
    def _warning(self) -> str:
        """The most important reason to doubt the times of the window; empty if there is none."""
        if CLOCKS_LOCKED in self.notes:
            return "the clocks of the device were locked to sample counters"
        if self.circumstances.is_busy:
            waited = words.share(self.circumstances.queued or 0.0)
            return f"this job waited for a CPU {waited} of the time, so times are too high"
        return ""

    @property
    def end(self) -> int:
        """Its last complete step, else its first step."""
        last = self.reached if self.last is None else self.last
        return last - 1 if self.unfinished_step == last > self.first else last

    @property
    def unfinished_step(self) -> int | None:
        """The step that was still open when recording ended: its mark is shorter than the step, or of no step."""
        return self.reached if self.partial is not None or self.last is None else None

    @property
    def is_part(self) -> bool:
        """Whether only a part of its first step was recorded, so that the recorded time is no step time."""
        return self.partial is not None and self.reached <= self.first

    @property
    def is_without_steps(self) -> bool:
        """Whether it goes from start to stop and no step ended in it: its one row of the step table is no step."""
        return self.last is None and self.reached == self.first

    def tables(self, trace: Trace) -> Tables:
        """The tables of the window, each computed once, whoever asks.

        Args:
            trace: What was recorded in it.
        """
        from perfhooks.trace.window import Tables

        owners = tuple(sorted(self.owners.items()))
        first = self.first if self.last is None else 0
        stage = None if self.stage == FOREIGN else self.stage
        return Tables(
            trace, self.rank, stage, first=first, unfinished=self.unfinished_step, owners=owners, own_work=self.own_work
        )


@dataclass(frozen=True)
class Place:
    """Folder and file names of one rank of one window."""

    folder: Path
    rank: int = 0

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.folder.parent

    @property
    def own(self) -> OwnFolder:
        """The folder, for writing."""
        return OwnFolder(self.run, self.folder.name)

    @property
    def capture_file(self) -> Path:
        """The facts of the window."""
        return self.artifact(layout.CAPTURE)

    def saved_trace(self, token: str) -> Path:
        """Path of the trace of a process, until the window is finished."""
        return layout.below(self.folder, layout.saved_trace(self.rank, token))

    @property
    def of_node(self) -> OwnFolder:
        """A folder for it on a disk of this node, as others may not be there when they are needed."""
        digest = remote.local_folder(self.run).name
        return OwnFolder(remote.temporary_folder(), digest, self.run.name, self.folder.name)

    def saved(self, capture: Capture) -> Path:
        """The unprocessed trace.

        Raises:
            PerfhooksError: The facts name a file outside this window.
        """
        own = self.saved_trace(capture.token)
        if capture.spool is None:
            return own
        path, root = Path(capture.spool), remote.temporary_folder()
        # the run may be reached by another path than the one that it was recorded by, so the digest in it may differ
        is_own = path.parts[-3:] == (self.run.resolve().name, self.folder.name, own.name)
        if not is_own or ".." in path.parts or tuple(path.parents[3:4]) != (root,):
            raise PerfhooksError(
                f"{self.capture_file} says that its trace is {capture.spool}, which is not in {root}; if that was the "
                "training's folder for temporary files, set TMPDIR to it"
            )
        return path

    def forget(self, saved: Path) -> None:
        """Delete a trace as it was recorded, as `saved` said where it is."""
        (self.own if saved.parent == self.folder else OwnFolder(saved.parent)).remove(saved.name)

    def artifact(self, name: str) -> Path:
        """Path of ``name`` (``steps.csv``) of this rank.

        Raises:
            PerfhooksError: It is no plain name.
        """
        return layout.below(self.folder, layout.artifact(self.rank, name))

    def trace(self) -> Path | None:
        """The finished trace, packed or not; None where none was kept."""
        return next((path for path in map(self.artifact, layout.TRACES) if is_plain(path)), None)

    def files(self, capture: Capture) -> list[str]:
        """The names of the files that a window of this rank became, as far as they are its own."""
        prefix = layout.artifact(self.rank, "")
        named = [name for name in capture.artifacts if name.startswith(prefix)]
        return [*(layout.below(self.folder, name).name for name in named), self.capture_file.name]

    def knows(self, token: str, saved: float) -> bool:
        """Whether the facts belong to this trace or to a later one.

        Args:
            token: Token of the trace.
            saved: Time of the save, in seconds since 1970.
        """
        with contextlib.suppress(FileNotFoundError):
            is_later = self.capture_file.stat().st_mtime >= saved
            try:
                return is_later or self.load().token == token
            except PerfhooksError:
                return self.capture_file.exists()
        return False

    def forget_saved_traces(self, before: float) -> None:
        """Delete what attempts of this rank left of the window before a time, in seconds since 1970."""
        for path in self.folder.glob(f"{layout.saved_trace(self.rank, '*')}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime <= before:
                    self.own.remove(path.name)

    def load(self) -> Capture:
        """Read the facts of the window.

        Raises:
            PerfhooksError: The file is not there, broken, or of another format.
        """
        path = self.capture_file
        try:
            capture = read_json(path, Capture, "the facts of a window")
        except FileNotFoundError as error:
            raise PerfhooksError(f"{path}: not there") from error
        check_format(path, capture.format, FORMAT)
        if capture.rank != self.rank:
            raise PerfhooksError(f"{path}: not the facts of rank {self.rank}, but of rank {capture.rank}")
        return capture

    def save(self, capture: Capture) -> None:
        """Write the facts of the window. Foreign texts are shortened."""
        self.own.make()
        partial = capture.partial and shortened(capture.partial)
        notes = tuple(map(shortened, capture.notes))
        self.own.publish_json(self.capture_file.name, replace(capture, partial=partial, notes=notes))


_LONGEST_TEXT: Final = 2000
"""Characters of the longest note: an exception may have 20 MB."""


def shortened(text: str) -> str:
    """Cut the middle out of a long text."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]} ... {text[-half:]}"
