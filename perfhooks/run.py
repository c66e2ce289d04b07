"""The run folder: where the files of a run are, what they are called, and the facts of each finished window.

Every file is written under a temporary name and renamed, so that a file with its final name is whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import msgspec

import perfhooks
from perfhooks.errors import OptionError, PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.job import Job

FORMAT = 1
"""Of run.json and capture.json. 1: the first."""

State = Literal["spooled", "done"]


@contextmanager
def publish(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is whole, and vanishes when writing it fails."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            yield file
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def publish_json(path: Path, data: object) -> None:
    """Write ``data`` as indented JSON under its final name, whole or not at all."""
    with publish(path) as file:
        file.write(msgspec.json.format(msgspec.json.encode(data, order="sorted"), indent=1))


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What recording one window cost the training process."""

    stop_s: float = 0.0
    """Seconds the recorder took to stop."""
    save_s: float = 0.0
    """Seconds the one save of the trace took."""
    free_s: float = 0.0
    """Seconds it took to free what the recorder held."""
    trace_bytes: int = 0
    """Size of the saved trace."""


@dataclass(frozen=True, kw_only=True)
class Capture:
    """The facts of one finished window, kept beside its artifacts as ``rank0.capture.json``."""

    rank: int = 0
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
    handlers: tuple[dict[str, Any], ...] = ()
    """What to make of it: handlers by name, with their options."""
    artifacts: tuple[str, ...] = ()
    """The files that were made."""
    headline: str = ""
    """Where the step time went, in one line."""
    summary: dict[str, float] = field(default_factory=dict)
    """The step table as one number a column, for loggers."""
    notes: tuple[str, ...] = ()
    """What went wrong on our side, or is doubtful about the trace."""
    cost: Cost = field(default_factory=Cost)
    options: dict[str, Any] = field(default_factory=dict)
    """What was recorded: shapes, memory, stacks, ..."""
    versions: dict[str, str] = field(default_factory=dict)
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

    @property
    def spool(self) -> Path:
        """The trace as the recorder saved it, until it is finished."""
        return self.folder / f".rank{self.rank}.spool.json"

    def artifact(self, name: str) -> Path:
        """Path of ``name`` (``steps.csv``) of this rank."""
        return self.folder / f"rank{self.rank}.{name}"

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


@dataclass(frozen=True)
class Run:
    """One run's folder, seen from one of its ranks."""

    folder: Path
    rank: int = 0

    @classmethod
    def open(cls, out: str | os.PathLike[str], name: str | None, job: Job, facts: Mapping[str, Any]) -> Run:
        """Make the folder of a run and its ``run.json``.

        Args:
            out: The folder that holds runs.
            name: What the run is called, the same on all ranks; None takes the launcher's identity, else the time and
                the process.
            job: Who this process is.
            facts: What else ``run.json`` says: schedule, options, versions.
        """
        parent = Path(out)
        parent.mkdir(parents=True, exist_ok=True)
        shared = name or job.identity
        folder = _shared(parent / file_name(shared)) if shared else _unique(parent)
        run = cls(folder, job.rank)
        if not (folder / "run.json").exists():
            started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
            who = {"host": job.node, "pid": os.getpid(), "world_size": job.world_size, "command": sys.argv}
            publish_json(folder / "run.json", {"format": FORMAT, "started": started, **who, **facts})
        _point(parent / "latest", folder.name)
        return run

    def place(self, stage: str, first: int, last: int | None) -> Place:
        """Where a window goes: ``train-000012-000014``; ``train-000012`` where no last step was planned."""
        steps = f"{first:06d}" if last is None else f"{first:06d}-{last:06d}"
        return Place(self.folder / f"{file_name(stage)}-{steps}", self.rank)


def file_name(text: str) -> str:
    """``text`` as the name of a file or folder anywhere: letters, digits, dot, dash and underscore."""
    return re.sub(r"[^\w.-]+", "-", text).strip(".-") or "run"


def check_out(out: str | os.PathLike[str]) -> None:
    """Find out before training starts that nothing can be written to ``out``.

    Raises:
        OptionError: ``out`` cannot be made or written to.
    """
    folder = Path(out)
    probe = folder / f".probe.{os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise OptionError(f"out must be a folder that can be written to, got {os.fspath(out)!r} ({error})") from error


def versions() -> dict[str, str]:
    """The versions that a reader of the files may need to know."""
    found = {"perfhooks": perfhooks.__version__, "python": sys.version.split()[0]}
    for name in ("torch", "lightning", "pytorch_lightning", "mmengine"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


def replace(capture: Capture, **changes: Any) -> Capture:
    """The same capture with some facts changed."""
    return dataclasses.replace(capture, **changes)


def _shared(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


def _unique(parent: Path) -> Path:
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for count in range(1000):
        folder = parent / (f"{stem}-{count}" if count else stem)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise PerfhooksError(f"no free name for a run in {parent}")


def _point(link: Path, target: str) -> None:
    """Let ``latest`` lead to this run; file systems without links do without."""
    draft = link.with_name(f".{link.name}.{os.getpid()}.tmp")
    try:
        draft.symlink_to(target, target_is_directory=True)
        draft.replace(link)
    except (OSError, NotImplementedError):
        with contextlib.suppress(OSError):
            draft.unlink()
