"""One window of one rank: its facts, and the paths of its files."""

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

LARGE: Final = 1.5
"""Ratio of a profiled to an unprofiled step above which the shares of the step are no longer those of the training.
Recording costs 25 to 45% if the step waits for the host."""

EXPLAINS: Final = "explanation"
"""Value of `Capture.request`, see `Capture.explains`."""

Step = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""Number of a step, small enough that a table can hold one more."""

State = Literal["spooled", "done"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of one window for the training process."""

    stop_s: float = 0.0
    """Time to stop the recorder."""
    save_s: float = 0.0
    """Time to save the trace once."""
    free_s: float = 0.0
    """Time to free the recorder's results; 0 if they were kept."""
    trace_bytes: int = 0
    """Size of the saved trace as plain JSON."""
    events: int | None = None
    """Slices in the trace."""
    idle_step_ms: float | None = None
    """Median unprofiled step so far."""
    idle_data_ms: float | None = None
    """Mean wait for data in it, without slow steps."""
    idle_thread_ms: float | None = None
    """Mean CPU time of the stepping thread in it."""
    recorded_step_ms: float | None = None

    @property
    def slowdown(self) -> float | None:
        """Ratio of a profiled to an unprofiled step."""
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
    boot: str = ""
    """Boot of the host, see `perfhooks.run.liveness.boot`."""
    stage: str = "train"
    """Profiled loop: train, validate, test, predict, or the content of a foreign trace."""
    first: Step = 0
    """First profiled step, as planned."""
    last: Step | None = None
    """Last profiled step, as planned; None without a plan."""
    reached: Step = 0
    """The step during which, or before which, recording ended."""
    starting_steps: Step = 0
    """Number of profiled steps that are among the first steps of the process."""
    partial: str | None = None
    """Why the window ended before its last step."""
    state: State = "done"
    """``spooled`` until the artifacts are made from the saved trace."""
    token: str = ""
    """Distinguishes the same window of two processes, for example after an elastic restart."""
    spool: str | None = None
    """Path of the saved trace until the window is finished, if it is on a disk of the node."""
    handlers: tuple[dict[str, Any], ...] = ()
    artifacts: tuple[str, ...] = ()
    headline: str = ""
    """Parts of the profiled steps, see `line`."""
    summary: dict[str, float] = field(default_factory=dict)
    """Means of the columns of the step table."""
    keep_windows: int | None = None
    """Maximum finished windows of this stage per rank; None keeps all."""
    notes: tuple[str, ...] = ()
    """Failures of perfhooks, and doubts about the trace."""
    cost: Cost = field(default_factory=Cost)
    options: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    installation: Installation | None = None
    """Folders of its Python."""
    circumstances: Circumstances = field(default_factory=Circumstances)
    compilation: Compilation = field(default_factory=Compilation)
    """Work of torch.compile until the end of the window."""
    owners: dict[str, str] = field(default_factory=dict)
    """Owners of files by the first part of their names, see `perfhooks.trace.names.attribution`."""
    own_work: tuple[tuple[float, float], ...] = ()
    """When perfhooks blocked the recorded thread: begin and end in seconds since 1970."""
    request: str = ""
    """Reason for a window outside of the schedule: the name of a request, ``code``, ``signal``, ``slow``,
    ``explanation``."""
    began: float = 0.0
    """When its process began, in seconds since 1970; 0 if unknown."""
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
        """The last complete step, else the first step."""
        last = self.reached if self.last is None else self.last
        return last - 1 if self.unfinished_step == last > self.first else last

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
        """Whether no step ended in the window. The one row of its step table is then no step."""
        return self.last is None and self.reached == self.first

    def tables(self, trace: Trace) -> Tables:
        """Return the tables of the window. Each is computed once."""
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
        """A folder for the window on a disk of this node, because network disks may be unavailable."""
        digest = remote.local_folder(self.run).name
        return OwnFolder(remote.temporary_folder(), digest, self.run.name, self.folder.name)

    def saved(self, capture: Capture) -> Path:
        """Return the path of the unprocessed trace. Raise PerfhooksError if it is outside of this window."""
        own = self.saved_trace(capture.token)
        if capture.spool is None:
            return own
        path, root = Path(capture.spool), remote.temporary_folder()
        # the run may be reached by another path than in the training, so the digest in the path may differ
        is_own = path.parts[-3:] == (self.run.resolve().name, self.folder.name, own.name)
        if not is_own or ".." in path.parts or tuple(path.parents[3:4]) != (root,):
            raise PerfhooksError(
                f"{self.capture_file} says that its trace is {capture.spool}, which is not in {root}; if that was the "
                "training's folder for temporary files, set TMPDIR to it"
            )
        return path

    def forget(self, saved: Path) -> None:
        """Delete a saved trace."""
        (self.own if saved.parent == self.folder else OwnFolder(saved.parent)).remove(saved.name)

    def artifact(self, name: str) -> Path:
        """Return the path of a file of this rank. Raise PerfhooksError if ``name`` is no plain name."""
        return layout.below(self.folder, layout.artifact(self.rank, name))

    def trace(self) -> Path | None:
        return next((path for path in map(self.artifact, layout.TRACES) if is_plain(path)), None)

    def files(self, capture: Capture) -> list[str]:
        """Return the files that a finished window of this rank has, without those of other windows."""
        prefix = layout.artifact(self.rank, "")
        named = [name for name in capture.artifacts if name.startswith(prefix)]
        return [*(layout.below(self.folder, name).name for name in named), self.capture_file.name]

    def knows(self, token: str, saved: float) -> bool:
        """Return whether the facts belong to this trace or a later one. ``saved`` is in seconds since 1970."""
        with contextlib.suppress(FileNotFoundError):
            is_later = self.capture_file.stat().st_mtime >= saved
            try:
                return is_later or self.load().token == token
            except PerfhooksError:
                return self.capture_file.exists()
        return False

    def forget_saved_traces(self, before: float) -> None:
        """Delete traces of earlier attempts of this rank, saved before a time in seconds since 1970."""
        for path in self.folder.glob(f"{layout.saved_trace(self.rank, '*')}*"):
            with contextlib.suppress(OSError):
                if path.lstat().st_mtime <= before:
                    self.own.remove(path.name)

    def load(self) -> Capture:
        """Read the facts. Raise PerfhooksError if they are missing, broken, or have another format."""
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
"""Maximum characters of a note: an exception may have 20 MB."""


def shortened(text: str) -> str:
    """Cut the middle out of a long text."""
    half = _LONGEST_TEXT // 2
    return text if len(text) <= _LONGEST_TEXT else f"{text[:half]} ... {text[-half:]}"
