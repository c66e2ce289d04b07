"""The run folder: where the files of a run are, what they are called, and who is recording what."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from filelock import FileLock

import perfhooks
from perfhooks.errors import OptionError, PerfhooksError
from perfhooks.guard import logger
from perfhooks.run import remote
from perfhooks.run.capture import FORMAT, MERGED, Capture, Place
from perfhooks.run.liveness import Process
from perfhooks.run.publishing import draft_of, file_name, is_newer, is_whole_json, publish_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.run.job import Job


@dataclass(frozen=True)
class Run:
    """One run's folder, seen from one of its ranks."""

    folder: Path
    rank: int = 0
    is_new: bool = field(default=False, compare=False)
    """Whether this process has begun it, and no other rank."""

    @classmethod
    def open(
        cls, out: str | os.PathLike[str], name: str | None, job: Job, facts: Mapping[str, Any], *, before: int = 0
    ) -> Run:
        """Make the folder of a run and its ``run.json``.

        Args:
            out: The folder that holds runs, or an fsspec URL: files are then finished in a local folder and copied.
            name: What the run is called, the same on all ranks; None takes the launcher's identity, else the time and
                the process.
            job: Who this process is.
            facts: What else ``run.json`` says: schedule, options, handlers.
            before: How many runs of this job every rank had before; tells one from them if the launcher's identity is
                all there is.
        """
        parent = remote.local_folder(out) if remote.is_url(out) else Path(out).absolute()
        parent.mkdir(parents=True, exist_ok=True)
        again = f"-{before}" if before else ""
        shared = name or (job.identity and job.identity + again)
        folder = _shared(parent / file_name(shared)) if shared else _unique(parent)
        is_new = not (folder / "run.json").exists()
        run = cls(folder, job.rank, is_new)
        if is_new:
            publish_json(run._manifest, _manifest(out, folder.name, job) | dict(facts))
        elif name or job.rank or job.is_restart or folder in _OPENED:
            pass
        elif run.manifest().get("windows"):
            logger.warning(
                "%s holds windows of an earlier launch; if that was another job, give this one a name of its own: run=",
                folder,
            )
        _OPENED.add(folder)
        if not remote.is_url(out):
            _point(parent / "latest", folder.name)
        return run

    @classmethod
    def existing(cls, folder: Path) -> Run:
        """A run folder that is there.

        Raises:
            PerfhooksError: There is none, or it was written by a newer perfhooks.
        """
        run = cls(folder)
        if not folder.exists():
            raise PerfhooksError(f"{folder} does not exist")
        if (folder / "latest").exists():
            raise PerfhooksError(f"{folder} holds runs and is none itself; the last one is {folder / 'latest'}")
        if not run._manifest.exists():
            raise PerfhooksError(f"{folder} is no run folder: it has no run.json")
        if (found := run.manifest().get("format", 0)) > FORMAT:
            raise PerfhooksError(f"{folder}/run.json: format {found} is newer than this perfhooks knows")
        return run

    @classmethod
    def of(cls, place: Place) -> Run:
        """The run that a window belongs to."""
        return cls(place.folder.parent, place.rank)

    @property
    def _manifest(self) -> Path:
        return self.folder / "run.json"

    def manifest(self) -> dict[str, Any]:
        """What ``run.json`` says.

        Raises:
            PerfhooksError: It is broken.
        """
        try:
            return msgspec.json.decode(self._manifest.read_bytes(), type=dict[str, Any])
        except FileNotFoundError:
            return {}
        except (OSError, msgspec.MsgspecError) as error:
            raise PerfhooksError(f"{self._manifest}: cannot be read ({error})") from error

    def place(self, stage: str, first: int, last: int | None) -> Place:
        """Where a window goes: ``train-000012-000014``; ``train-000012`` where no last step was planned."""
        steps = f"{first:06d}" if last is None else f"{first:06d}-{last:06d}"
        return Place(self.folder / f"{file_name(stage)}-{steps}", self.rank)

    def spool_for(self, place: Place, token: str) -> Path:
        """Where to save a window's trace: a disk of this node, as others may not be there when they are needed."""
        own = place.spool(token)
        if not remote.is_network_disk(self.folder):
            return own
        return remote.local_folder(self.folder) / self.folder.name / place.folder.name / own.name

    def raw_steps(self, rank: int, first: int) -> Path:
        """Steps as the loop left them, until they are in the timeline."""
        return self.folder / f".rank{rank}.steps.{first:012d}.npz"

    def left_steps(self) -> list[tuple[Path, Path]]:
        """Such files that nobody has taken care of, and the timelines that they belong to."""
        found = sorted(self.folder.glob(".rank*.steps.*.npz"))
        return [(path, self.folder / f"{path.name.split('.')[1]}.timeline.csv") for path in found]

    def timeline(self, rank: int) -> Path:
        """The wall times of all steps of a rank."""
        return self.folder / f"rank{rank}.timeline.csv"

    def places(self) -> list[Place]:
        """Every window of every rank, finished or not, in the order of the folders' names."""
        found = {
            (path.parent, int(match[1])) for path in self.folder.glob("*/*rank*.json") if (match := _OF(path.name))
        }
        return [Place(folder, rank) for folder, rank in sorted(found)]

    def adopt(self) -> None:
        """Write facts for traces whose process ended between saving them and saying so.

        The order matters where a training goes on: traces, then who is recording, then what was said of them.
        """
        left = []
        for spool in self.folder.glob("*/.rank*.*.spool.json"):
            with contextlib.suppress(FileNotFoundError):  # it has just been finished
                left.append((spool.stat().st_mtime, spool))
        busy = [place for place, _, gone in self._marks() if not gone]
        for saved, spool in sorted(left):
            _, rank, token, *_ = spool.name.split(".")
            place = Place(spool.parent, int(rank.removeprefix("rank")))
            match = _WINDOW(spool.parent.name)
            if match is None or place in busy or place.knows(token, saved):
                continue
            if place.capture_file.exists() and not is_whole_json(spool):
                continue  # what there is of an earlier attempt is worth more
            stage, first, last = match.groups()
            manifest = self.manifest()
            place.save(
                Capture(
                    rank=place.rank,
                    stage=stage,
                    first=int(first),
                    last=int(last) if last else None,
                    reached=int(last or first) + bool(last),
                    partial="the process ended while it saved the window",
                    state="spooled",
                    token=token,
                    handlers=tuple(manifest.get("handlers", ())),
                    keep_windows=manifest.get("keep_windows"),
                    time=saved,
                )
            )

    def enter_window(self, name: str | None) -> None:
        """Leave a mark while a window is open, so that a later look can say what was lost with a killed process."""
        mark = self.folder / f".rank{self.rank}.recording"
        with contextlib.suppress(OSError):  # it is worth no trouble; saving the window will say what is wrong
            if name is None:
                mark.unlink(missing_ok=True)
            else:
                mark.write_bytes(msgspec.json.encode(_Mark(name, Process.current())))

    def _marks(self) -> Iterator[tuple[Place, Path, bool]]:
        """Windows that were begun and not ended, with the mark of each, and whether its process is gone."""
        for path in sorted(self.folder.glob(".rank*.recording")):
            with contextlib.suppress(OSError, msgspec.MsgspecError):
                mark = msgspec.json.decode(path.read_bytes(), type=_Mark)
                alive = mark.process.is_alive
                # nobody can be asked about a process elsewhere; but no window lasts that long
                gone = time.time() - path.stat().st_mtime > _LONGEST_WINDOW_S if alive is None else not alive
                yield Place(self.folder / mark.window, int(path.name[len(".rank") : -len(".recording")])), path, gone

    def is_recording(self, place: Place) -> bool:
        """Whether a rank may be recording or saving a window this moment."""
        return any(each == place and not gone for each, _, gone in self._marks())

    def died_recording(self) -> list[Place]:
        """The ranks whose process ended while a window was open, and that window."""
        return [place for place, mark, gone in self._marks() if gone and not is_newer(place.capture_file, mark)]

    def note_window(self, place: Place) -> None:
        """Name a finished window in ``run.json``; the first rank does, the others need no lock to see it."""
        if place.folder.name in self.manifest().get("windows", ()):
            return
        with FileLock(self.folder / ".run.lock", timeout=60):
            manifest = self.manifest()
            windows = sorted({*manifest.get("windows", ()), place.folder.name})
            if windows != manifest.get("windows"):
                publish_json(self._manifest, manifest | {"windows": windows})

    def forget_old_windows(self, capture: Capture) -> None:
        """Delete this rank's oldest windows of a stage, as far as this run made them, beyond those to be kept."""
        if capture.keep_windows is None:
            return
        ours = [
            (place.load(), place) for place in self.places() if place.rank == self.rank and place.capture_file.exists()
        ]
        old = [(each.time, each, place) for each, place in ours if each.stage == capture.stage and each.state == "done"]
        old.sort(key=lambda entry: entry[0])
        for _, each, place in old[: -capture.keep_windows]:
            for name in (*each.artifacts, place.capture_file.name):
                (place.folder / name).unlink(missing_ok=True)
            place.forget_spools(each.time)
            with contextlib.suppress(OSError):  # another rank's files are still there
                if {path.name for path in place.folder.iterdir()} == {MERGED}:
                    (place.folder / MERGED).unlink()
                place.folder.rmdir()
            remote.delete(self.manifest().get("remote"), place.folder.name, [*each.artifacts, place.capture_file.name])

    def upload(self, place: Place, capture: Capture) -> None:
        """Copy a finished window, and the run's own files, to where the run was asked to go, if that is a URL."""
        target = self.manifest().get("remote")
        if target is None:
            return
        remote.copy(place.folder, [*capture.artifacts, place.capture_file.name], f"{target}/{place.folder.name}")
        remote.copy(self.folder, ["run.json", self.timeline(self.rank).name], target)


_OPENED: set[Path] = set()
"""The folders of runs that this process took part in."""
_LONGEST_WINDOW_S = 3600
_OF = re.compile(r"^\.?rank(\d+)\.(?:capture|\w+\.spool)\.json$").match
_WINDOW = re.compile(r"(.+?)-(\d{6,})(?:-(\d{6,}))?$").match


class _Mark(msgspec.Struct):
    """That a process is recording a window."""

    window: str
    process: Process


def _manifest(out: str | os.PathLike[str], name: str, job: Job) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": job.node,
        "pid": os.getpid(),
        "world_size": job.world_size,
        "command": sys.argv,
        "versions": versions(),
        "remote": f"{str(out).rstrip('/')}/{name}" if remote.is_url(out) else None,
        "windows": [],
    }


def step_range(first: int, last: int) -> str:
    """Steps as a person would say them."""
    return f"step {first}" if first == last else f"steps {first}-{last}"


def check_out(out: str | os.PathLike[str]) -> None:
    """Find out before training starts that nothing can be written to ``out``.

    Raises:
        OptionError: ``out`` cannot be made or written to.
    """
    try:
        (remote.check if remote.is_url(out) else _check_folder)(os.fspath(out))
    except Exception as error:  # a remote file system has errors of its own
        why = "it is a file" if isinstance(error, FileExistsError) else error
        raise OptionError(f"out must be a folder that can be written to, got {os.fspath(out)!r} ({why})") from error


def _check_folder(out: str) -> None:
    probe = draft_of(Path(out) / "probe")
    probe.parent.mkdir(parents=True, exist_ok=True)
    probe.touch()
    probe.unlink()


def versions() -> dict[str, str]:
    """The versions that a reader of the files may need to know."""
    found = {"perfhooks": perfhooks.__version__, "python": sys.version.split()[0]}
    for name in ("torch", "lightning", "pytorch_lightning", "mmengine"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


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
    draft = draft_of(link)
    try:
        draft.symlink_to(target, target_is_directory=True)
        draft.replace(link)
    except (OSError, NotImplementedError):
        with contextlib.suppress(OSError):
            draft.unlink()
