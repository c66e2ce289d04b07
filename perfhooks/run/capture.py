"""One window of one rank: its facts, and where its files are."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from perfhooks.errors import PerfhooksError
from perfhooks.run.publishing import publish_json

FORMAT = 1
"""Of run.json and capture.json. 1: the first."""

MERGED = "merged.pt.trace.json.gz"
"""The traces of all ranks of a window side by side."""

State = Literal["spooled", "done"]


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What recording one window cost the training process."""

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
    recorded_step_ms: float | None = None
    """Median wall time of those that were."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The facts of one finished window, kept beside its artifacts as ``rank0.capture.json``."""

    rank: int = 0
    node: str = ""
    """Name of the machine that the rank ran on."""
    boot: str = ""
    """Which of its starts that was, see `perfhooks.run.liveness.boot`; empty where it does not say."""
    stage: str = "train"
    """Which loop was profiled: train, validate, test or predict."""
    first: int = 0
    """First active step, as planned."""
    last: int | None = None
    """Last active step, as planned; None where recording went from start to stop."""
    reached: int = 0
    """Number of the step during which, or before which, recording ended."""
    partial: str | None = None
    """Why the window ended before its last step; None for a whole window."""
    state: State = "done"
    """``spooled`` until the artifacts are made from the saved trace."""
    token: str = ""
    """Tells it from the same window of another process, as after an elastic restart; part of the saved trace's name."""
    spool: str | None = None
    """Where the saved trace is until it is finished, if not beside the artifacts but on a disk of the node."""
    handlers: tuple[dict[str, Any], ...] = ()
    """What to make of it: handlers by name, with their options."""
    artifacts: tuple[str, ...] = ()
    """The files that were made."""
    headline: str = ""
    """Where the step time went, in one line."""
    summary: dict[str, float] = field(default_factory=dict)
    """The step table as one number a column, for loggers."""
    keep_windows: int | None = None
    """How many finished windows of this stage a rank keeps; None keeps all."""
    notes: tuple[str, ...] = ()
    """What went wrong on our side, or is doubtful about the trace."""
    cost: Cost = field(default_factory=Cost)
    options: dict[str, Any] = field(default_factory=dict)
    """What was recorded: shapes, memory, stacks, ..."""
    versions: dict[str, str] = field(default_factory=dict)
    began: float = 0.0
    """When its process came to perfhooks, in seconds since 1970; 0 where that is not known."""
    time: float = 0.0
    """When recording ended, in seconds since 1970."""
    format: int = FORMAT

    @property
    def unfinished_step(self) -> int | None:
        """The step that was still open when recording ended: its mark is shorter than the step, or of no step."""
        return self.reached if self.partial is not None or self.last is None else None


@dataclass(frozen=True)
class Place:
    """Where one rank's files of one window are."""

    folder: Path
    rank: int = 0

    @property
    def capture_file(self) -> Path:
        """The facts of the window."""
        return self.artifact("capture.json")

    def spool(self, token: str) -> Path:
        """Where a process saves the trace as it was recorded, until it is finished."""
        return self.folder / f".rank{self.rank}.{token}.spool.json"

    def saved(self, capture: Capture) -> Path:
        """The trace as it was recorded."""
        return self.spool(capture.token) if capture.spool is None else Path(capture.spool)

    def artifact(self, name: str) -> Path:
        """Path of ``name`` (``steps.csv``) of this rank."""
        return self.folder / f"rank{self.rank}.{name}"

    def knows(self, token: str, saved: float) -> bool:
        """Whether the facts are those of a trace, or of one that was saved later; broken ones are nobody's.

        Args:
            token: That of the trace.
            saved: When it was saved, in seconds since 1970.
        """
        with contextlib.suppress(FileNotFoundError):
            said = self.capture_file.stat().st_mtime >= saved
            try:
                return said or self.load().token == token
            except PerfhooksError:
                return self.capture_file.exists()
        return False

    def forget_spools(self, before: float) -> None:
        """Delete what attempts of this rank left of the window before a time, in seconds since 1970."""
        for path in self.folder.glob(f".rank{self.rank}.*.spool.json*"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime <= before:
                    path.unlink()

    def load(self) -> Capture:
        """Read the facts of the window.

        Raises:
            PerfhooksError: The file is not there, broken, or written by a newer perfhooks.
        """
        try:
            capture = msgspec.json.decode(self.capture_file.read_bytes(), type=Capture)
        except (OSError, msgspec.MsgspecError) as error:
            raise PerfhooksError(f"{self.capture_file}: not the facts of a window ({error})") from error
        if capture.format > FORMAT:
            raise PerfhooksError(f"{self.capture_file}: format {capture.format} is newer than this perfhooks knows")
        return capture

    def save(self, capture: Capture) -> None:
        """Write the facts of the window."""
        self.folder.mkdir(parents=True, exist_ok=True)
        publish_json(self.capture_file, capture)
