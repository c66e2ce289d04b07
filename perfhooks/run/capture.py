from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from perfhooks.core import json_values, words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.labels import CLOCKS_LOCKED, FOREIGN
from perfhooks.core.words import MAX_TEXT
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

LARGE: Final = 1.5
"""Ratio of profiled to unprofiled step time above which the parts of the profiled step are misleading. Recording costs
25 to 45% if the step waits for the host.
"""

EXPLAINS: Final = "explanation"

Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""Step number, limited so that a table can store the next number."""

State = Literal["spooled", "done"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    stop_s: float = 0.0
    save_s: float = 0.0
    free_s: float = 0.0
    trace_bytes: int = 0
    events: int | None = None
    idle_step_ms: float | None = None
    idle_data_ms: float | None = None
    """Mean wait for data of unprofiled steps in ms, without slow steps."""
    idle_thread_ms: float | None = None
    recorded_step_ms: float | None = None
    others: float | None = None
    """CPU use by other programs during the loop, as a fraction of all CPUs of the host."""

    @property
    def slowdown(self) -> float | None:
        return self.recorded_step_ms / self.idle_step_ms if self.recorded_step_ms and self.idle_step_ms else None

    @property
    def is_large(self) -> bool:
        return (self.slowdown or 1.0) >= LARGE


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The facts of one window on one rank, stored as ``rank0.capture.json``."""

    rank: int = 0
    node: str = ""
    boot: str = ""
    """Identity of the host's last boot, see `perfhooks.run.liveness.boot`."""
    stage: str = "train"
    """Name of the profiled loop. In a trace of another recorder it is detected from the content."""
    first: Step = 0
    """First planned step."""
    last: Step | None = None
    """Last planned step; None if the window has no planned end."""
    reached: Step = 0
    """Number of the step that was open, or would have been next, when the recording ended."""
    starting_steps: Step = 0
    """Number of profiled steps that are among the first steps of the process."""
    partial: str | None = None
    """Reason if the window ended before its last planned step."""
    state: State = "done"
    """``spooled`` until the worker has made the files from the saved trace."""
    token: str = ""
    """Text that differs if a restarted process records the same steps again."""
    spool: str | None = None
    """Path of the saved trace, if it is on a disk of the node."""
    handlers: tuple[dict[str, Any], ...] = ()
    artifacts: tuple[str, ...] = ()
    headline: str = ""
    summary: dict[str, float] = field(default_factory=dict)
    usual: dict[str, float] = field(default_factory=dict)
    """Means of the most common kind of steps, which ``usual_steps`` names."""
    usual_steps: str = ""
    keep_windows: int | None = None
    """Maximum finished windows per rank and stage; None keeps all."""
    notes: tuple[str, ...] = ()
    """Failures of perfhooks, and doubts about the trace."""
    cost: Cost = field(default_factory=Cost)
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    installation: Installation | None = None
    circumstances: Circumstances = field(default_factory=Circumstances)
    compilation: Compilation = field(default_factory=Compilation)
    owners: dict[str, str] = field(default_factory=dict)
    """Origins of code files, keyed by the first part of the file names; see `perfhooks.trace.names.origins.Owners`."""
    own_work: tuple[tuple[float, float], ...] = ()
    """Intervals in which perfhooks blocked the training thread: begin and end in s since 1970."""
    request: str = ""
    """Origin of a window outside of the schedule: ID of a request, ``code``, ``signal``, ``slow`` or ``explanation``.
    """
    began: float = 0.0
    """Start of the process, in seconds since 1970."""
    time: float = 0.0
    """End of the recording, in seconds since 1970."""
    format: int = FORMAT

    @property
    def explains(self) -> bool:
        """Whether the window supplies stacks and shapes only, and no times."""
        return self.request == EXPLAINS

    @property
    def is_far(self) -> bool:
        """Whether profiled and unprofiled step times differ by the ratio `LARGE` or more."""
        idle, recorded = self.cost.idle_step_ms, self.cost.recorded_step_ms or self.summary.get("wall_ms")
        return bool(idle and recorded) and not 1 / LARGE < (recorded or 1.0) / (idle or 1.0) < LARGE

    @property
    def line(self) -> str:
        """Log line: the median unprofiled step, if available, the headline and at most one warning."""
        if self.explains:
            return f"{words.steps(self.first, self.end)}: recorded with stacks and shapes, to name lines and modules"
        cost, line = self.cost, self.headline
        if line and cost.idle_step_ms and not (self.is_without_steps or self.is_part):
            recorded, *parts = line.split(", ")
            step = f"step {words.ms(cost.idle_step_ms)}"
            if self.is_far and cost.idle_data_ms is not None:
                step += f", {words.share(cost.idle_data_ms / cost.idle_step_ms)} waiting for data"
                recorded, parts = line, []
            line = ", ".join([f"{step} (profiled {recorded})", *parts])
        return f"{line}. Warning: {self.warning}" if line and self.warning else line

    @property
    def warning(self) -> str:
        """Why the times are unreliable."""
        if CLOCKS_LOCKED in self.notes:
            return "sampling hardware counters locked the clocks of the device"
        if self.circumstances.is_busy:
            waited = words.share(self.circumstances.queued or 0.0)
            return f"this job waited for a CPU {waited} of the time, so times are too high"
        return ""

    @property
    def end(self) -> int:
        """Number of the last complete step; the first step if none is complete."""
        if self.unfinished_step is None:
            return self.reached if self.last is None else self.last
        return max(self.unfinished_step - 1, self.first)

    @property
    def unfinished_step(self) -> int | None:
        """The step that was still open when recording ended."""
        return self.reached if self.partial is not None or self.last is None else None

    @property
    def is_part(self) -> bool:
        """Whether only a part of the first step was recorded, so the recorded time is no step time."""
        return self.partial is not None and self.reached <= self.first

    @property
    def is_without_steps(self) -> bool:
        """Whether no step ended in the window. If so, the only row of the step table is not a step."""
        return self.last is None and self.reached == self.first

    @property
    def has_step_times(self) -> bool:
        """Whether the means are of complete steps."""
        return "wall_ms" in self.usual and not (self.explains or self.is_part or self.is_without_steps)

    def tables(self, trace: Trace) -> Tables:
        """Return the tables of the window."""
        from perfhooks.trace.window import Tables

        first = self.first if self.last is None else 0
        stage = None if self.stage == FOREIGN else self.stage
        owners = tuple(sorted(self.owners.items()))
        return Tables(trace, self.rank, stage, first, self.last, self.unfinished_step, self.own_work, owners)


@dataclass(frozen=True)
class Place:
    """Folder and file names of one rank of one window."""

    folder: Path
    rank: int = 0

    @property
    def run(self) -> Path:
        return self.folder.parent

    @property
    def own(self) -> OwnFolder:
        return OwnFolder(self.run, self.folder.name)

    @property
    def capture_file(self) -> Path:
        return self.artifact(layout.CAPTURE)

    def saved_trace(self, token: str) -> Path:
        return layout.below(self.folder, layout.saved_trace(self.rank, token))

    @property
    def of_node(self) -> OwnFolder:
        """The window's folder on a disk of this node, because network disks may be unavailable."""
        digest = remote.local_folder(self.run).name
        return OwnFolder(remote.temporary_folder(), digest, self.run.name, self.folder.name)

    def saved(self, capture: Capture) -> Path:
        """Return the path of the unprocessed trace. Raise PerfhooksError if the path is outside of this window."""
        own = self.saved_trace(capture.token)
        if capture.spool is None:
            return own
        path, root = Path(capture.spool), remote.temporary_folder()
        # the digest is not compared, because the run may have been moved or mounted elsewhere
        is_own = path.parts[-3:] == (self.run.resolve().name, self.folder.name, own.name)
        if not is_own or ".." in path.parts or tuple(path.parents[3:4]) != (root,):
            raise PerfhooksError(
                f"{self.capture_file} names the trace {capture.spool}, which is not in the folder for temporary files, "
                f"{root}. If the training used another folder for temporary files, set TMPDIR to that folder"
            )
        return path

    def forget(self, saved: Path) -> None:
        (self.own if saved.parent == self.folder else OwnFolder(saved.parent)).remove(saved.name)

    def artifact(self, name: str) -> Path:
        """Return the path of a file of this rank. Raise PerfhooksError if ``name`` is not a plain file name."""
        return layout.below(self.folder, layout.artifact(self.rank, name))

    def trace(self) -> Path | None:
        return next((path for path in map(self.artifact, layout.TRACES) if is_plain(path)), None)

    def files(self, capture: Capture) -> list[str]:
        prefix = layout.artifact(self.rank, "")
        named = [name for name in capture.artifacts if name.startswith(prefix)]
        return [*(layout.below(self.folder, name).name for name in named), self.capture_file.name]

    def knows(self, token: str, saved: float) -> bool:
        """Return whether the stored data belong to the trace saved at the time ``saved``, or to a later trace."""
        with contextlib.suppress(FileNotFoundError):
            is_later = self.capture_file.stat().st_mtime >= saved
            try:
                return is_later or self.load().token == token
            except PerfhooksError:
                return self.capture_file.exists()
        return False

    def forget_saved_traces(self, before: float) -> None:
        """Delete traces that this rank saved before a time in seconds since 1970."""
        for path in self.folder.glob(f"{layout.saved_trace(self.rank, '*')}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime <= before:
                    self.own.remove(path.name)

    def load(self) -> Capture:
        """Return the stored facts. Raise PerfhooksError if the file is missing, broken, or of another format."""
        path = self.capture_file
        try:
            capture = read_json(path, Capture, "a description of a window")
        except FileNotFoundError as error:
            raise PerfhooksError(f"{path} does not exist") from error
        check_format(path, capture.format, FORMAT)
        if capture.rank != self.rank:
            raise PerfhooksError(
                f"{path} has the file name of rank {self.rank}, but was written by rank {capture.rank}: "
                "restore its original name or delete it"
            )
        return capture

    def save(self, capture: Capture) -> None:
        """Write the facts. Long texts from the training or the trace are shortened."""
        self.own.make()
        partial = capture.partial and json_values.text(capture.partial, 2 * MAX_TEXT)
        notes = tuple(json_values.text(note, 2 * MAX_TEXT) for note in capture.notes)
        self.own.publish_json(self.capture_file.name, replace(capture, partial=partial, notes=notes))
