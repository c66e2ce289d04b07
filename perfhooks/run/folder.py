from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.clocks import time
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.guard import logger
from perfhooks.run import layout, remote
from perfhooks.run.capture import Capture, Place
from perfhooks.run.layout import Listing
from perfhooks.run.liveness import Process
from perfhooks.run.locking import LONGEST_S, locked
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import OwnFolder, draft_of, file_name, is_newer, is_whole_json, publish_json
from perfhooks.run.reading import is_plain, read_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfhooks.core.job import Job
    from perfhooks.run.manifest import StepsBy


@dataclass(frozen=True)
class Run:
    folder: Path
    rank: int = 0
    is_new: bool = field(default=False, compare=False)
    remote: str | None = field(default=None, compare=False)

    @classmethod
    def open(
        cls, out: str | os.PathLike[str], name: str | None, job: Job, facts: Mapping[str, Any], *, before: int = 0
    ) -> Run:
        """Create a run folder in ``out``, a folder or an fsspec URL.

        ``name`` must be equal on all ranks. None uses the job id of torchrun or SLURM, else time and process id.
        ``before`` is the number of earlier runs with the same job id.
        """
        parent = remote.local_folder(out) if remote.is_url(out) else Path(out).absolute()
        remote.check_text(parent)
        parent.mkdir(parents=True, exist_ok=True)
        again = f"-{before}" if before else ""
        shared = name or (job.identity and job.identity + again)
        folder = parent / file_name(shared) if shared else _unique(parent)
        folder.mkdir(exist_ok=True)
        is_new = not (folder / layout.MANIFEST).exists()
        url = f"{os.fspath(out).rstrip('/')}/{folder.name}" if remote.is_url(out) else None
        run = cls(folder, job.rank, is_new, url)
        run._claim()
        steps_by = facts.get("steps_by")
        if is_new:
            Manifest.of(job, remote=url, **facts).write(folder)
        elif steps_by is not None and job.rank == 0:
            run.say_steps_by(steps_by)
        if is_new or name or job.rank or job.is_restart or folder in _OPENED:
            pass
        elif run.manifest().windows:
            logger.warning(
                "%s contains windows of an earlier launch; if that was another job, set another name with run=",
                folder,
            )
        _OPENED.add(folder)
        if not remote.is_url(out):
            _point(parent / layout.LATEST, folder.name)
        return run

    @classmethod
    def existing(cls, folder: Path) -> Run:
        """Return the run in a folder. Raise PerfhooksError if the run is missing, broken, or of another format."""
        run = cls(folder)
        try:
            if not folder.exists():
                raise PerfhooksError(f"{folder} does not exist")
            if (folder / layout.LATEST).exists():
                raise PerfhooksError(f"{folder} contains runs; did you mean its latest run, {folder / layout.LATEST}?")
            if not (folder / layout.MANIFEST).exists():
                raise PerfhooksError(f"{folder} is no run folder: it has no {layout.MANIFEST}")
        except PermissionError as error:
            raise PerfhooksError(f"{folder} cannot be read: {error.strerror}") from error
        except (OSError, ValueError) as error:  # the name is too long, or has a NUL
            raise PerfhooksError(f"{str(folder)[:200]!r} is no run folder ({error})") from error
        run.manifest()
        return run

    @classmethod
    def of(cls, place: Place) -> Run:
        return cls(place.folder.parent, place.rank)

    def discard(self) -> None:
        """Delete an empty run, unless the user has named it."""
        if (
            self.is_new
            and self.folder.name.endswith(f"-{os.getpid()}")
            and not any(map(Path.is_dir, self.folder.iterdir()))
        ):
            for _ in range(2):  # the watcher may write a file while the folder is deleted
                shutil.rmtree(self.folder, ignore_errors=True)

    def forget_steps(self) -> None:
        own = OwnFolder(self.folder)
        for kind in layout.OF_RUN:
            if kind is not layout.startup:
                own.remove(kind(self.rank))

    def manifest(self) -> Manifest:
        """Return ``run.json``. Raise PerfhooksError if the file is broken, or of another format."""
        return Manifest.read(self.folder)

    def place(self, stage: str, first: int, last: int | None) -> Place:
        return Place(self.folder / layout.window(file_name(stage), first, last), self.rank)

    def spool(self, place: Place) -> OwnFolder:
        """Return the path for a saved trace, on a disk of this node, because network disks may be unavailable."""
        if remote.is_network_disk(self.folder):
            try:
                return place.of_node
            except (OSError, PerfhooksError) as error:
                logger.warning("traces are saved on the disk of the run, which may be slow: %s", error)
        return place.own

    def raw_steps(self, rank: int, first: int) -> Path:
        return self.folder / layout.raw_steps(rank, first)

    def left_steps(self) -> list[tuple[Path, int]]:
        ranks = ((name, layout.rank_of_raw_steps(name)) for name in Listing.of(self.folder).files)
        return sorted((self.folder / name, rank) for name, rank in ranks if rank is not None)

    def timeline(self, rank: int) -> Path:
        return self.folder / layout.timeline(rank)

    def window_folders(self) -> list[Path]:
        """Return the window folders. Links are left out, because they may lead out of the run."""
        return [self.folder / name for name in sorted(Listing.of(self.folder).windows)]

    def owners(self) -> dict[int, Process]:
        """The last process that recorded each rank."""
        names = layout.owner.ranks(Listing.of(self.folder).files)
        places = {rank: _owner(self.folder / name) for rank, name in names.items()}
        return {rank: process for rank, process in places.items() if process is not None}

    def latest_windows(self, most: int, listing: Listing, finished: Sequence[str]) -> list[Path]:
        there, finished_names = set(listing.windows), set(finished)
        latest = [name for name in finished[-most:] if name in there]
        if len(latest) < min(most, len(there)):
            finished_names.clear()
        places = []
        for path in (self.folder / name for name in {*latest, *(there - finished_names)}):
            with contextlib.suppress(FileNotFoundError):
                places.append((path.lstat().st_mtime_ns, path))
        return [path for _, path in sorted(places, reverse=True)[:most]]

    def places(self) -> list[Place]:
        return [place for folder in self.window_folders() for place in places_of(folder)]

    def adopt(self) -> None:
        """Write the descriptions of windows whose processes died after saving the trace."""
        unfinished = []
        for folder in self.window_folders():
            for entry in _entries(folder):
                if (named := layout.saved_trace_of(entry.name)) and entry.is_file(follow_symlinks=False):
                    with contextlib.suppress(FileNotFoundError):
                        unfinished.append((entry.stat().st_mtime, Path(entry.path), *named))
        busy = [place for place, _, is_gone in self._marks() if not is_gone]
        manifest = self.manifest() if unfinished else None
        for saved, trace, rank, token in sorted(unfinished):
            place = Place(trace.parent, rank)
            steps = layout.steps_of(trace.parent.name)
            if steps is None or manifest is None or place in busy or place.knows(token, saved):
                continue
            if place.capture_file.exists() and not is_whole_json(trace):
                continue  # an earlier attempt left a more complete window
            place.save(
                Capture(
                    rank=place.rank,
                    stage=steps.stage,
                    first=steps.first,
                    last=steps.last,
                    reached=steps.first if steps.last is None else steps.last + 1,
                    partial="the process ended while it saved the window",
                    state="spooled",
                    token=token,
                    handlers=manifest.handlers,
                    keep_windows=manifest.keep_windows,
                    time=saved,
                )
            )

    def enter_window(self, name: str | None) -> None:
        """Keep a mark file while a window is open, to detect later that the process was killed in the window."""
        own, mark = OwnFolder(self.folder), layout.mark(self.rank)
        with contextlib.suppress(OSError):  # saving the window will report the error
            if name is None:
                own.remove(mark)
            else:
                own.publish_json(mark, _Mark(name, Process.current()))

    def _marks(self, listing: Listing | None = None) -> Iterator[tuple[Place, Path, bool]]:
        for rank, name in layout.mark.ranks((listing or Listing.of(self.folder)).files).items():
            path = self.folder / name
            with contextlib.suppress(OSError, PerfhooksError):
                mark = read_json(path, _Mark, "the mark of a window")
                alive = mark.process.is_alive
                # processes of other hosts are unknown, but no window lasts that long
                is_gone = time.time() - path.stat().st_mtime > LONGEST_S if alive is None else not alive
                yield Place(layout.below(self.folder, mark.window), rank), path, is_gone

    def is_recording(self, place: Place) -> bool:
        return any(item == place and not is_gone for item, _, is_gone in self._marks())

    def is_any_recording(self) -> bool:
        return any(not is_gone for _, _, is_gone in self._marks())

    def died_recording(self, listing: Listing | None = None) -> list[Place]:
        return [
            place for place, mark, is_gone in self._marks(listing) if is_gone and not is_newer(place.capture_file, mark)
        ]

    def note_window(self, place: Place) -> None:
        """Add a finished window to ``run.json``. Only the first rank that finishes the window needs the lock.

        A window that is repeated after a restart moves to the end.
        """
        name = place.folder.name
        if name in self.manifest().windows[-_LATE:]:
            return
        with locked(self.folder / layout.MANIFEST_LOCK, timeout=60):
            manifest = self.manifest()
            if name not in manifest.windows[-_LATE:]:
                remaining = tuple(item for item in manifest.windows if item != name)
                msgspec.structs.replace(manifest, windows=(*remaining, name)).write(self.folder)

    def say_steps_by(self, detector: StepsBy) -> None:
        with locked(self.folder / layout.MANIFEST_LOCK, timeout=60):
            msgspec.structs.replace(self.manifest(), steps_by=detector).write(self.folder)

    def forget_old_windows(self, capture: Capture, remote_run: str | None = None) -> None:
        """Delete the oldest windows of this rank and stage, also in ``remote_run``."""
        if capture.keep_windows is None or capture.explains:
            return
        ours = [place for place in self.places() if place.rank == self.rank and is_plain(place.capture_file)]
        if len(ours) <= capture.keep_windows:
            return
        loaded = [(place.load(), place) for place in ours]
        old = [(item, place) for item, place in loaded if (item.stage, item.state) == (capture.stage, "done")]
        old = [(item, place) for item, place in old if not item.explains]
        old.sort(key=lambda entry: entry[0].time)
        for item, place in old[: -capture.keep_windows]:
            names = place.files(item)
            for name in names:
                place.own.remove(name)
            place.forget_saved_traces(item.time)
            with contextlib.suppress(OSError):
                if {path.name for path in place.folder.iterdir()} == {layout.MERGED}:
                    place.own.remove(layout.MERGED)
                place.own.delete()
            remote.delete(remote_run, place.folder.name, names)

    def upload(self, place: Place, capture: Capture, url: str | None) -> None:
        if url is None:
            return
        remote.copy(place.folder, place.files(capture), f"{url}/{place.folder.name}")
        self.upload_own(url)

    def upload_own(self, url: str) -> None:
        remote.copy(self.folder, [layout.MANIFEST, *(kind(self.rank) for kind in layout.OF_RUN)], url)

    def _claim(self) -> None:
        path, current = self.folder / layout.owner(self.rank), Process.current()
        # writing the first file will report other errors
        with contextlib.suppress(OSError), locked(self.folder / layout.owner_lock(self.rank), timeout=10):
            owner = _owner(path)
            if owner is not None and owner != current and owner.is_alive:
                raise PerfhooksError(
                    f"process {owner.pid} of another job is recording into {self.folder}: "
                    "set another name for this job, run="
                )
            publish_json(path, current)


def _owner(path: Path) -> Process | None:
    try:
        return read_json(path, Process, "a process")
    except (FileNotFoundError, PerfhooksError):
        return None


_OPENED: set[Path] = set()
_LATE: Final = 128
"""Number of latest windows that keep their position in ``run.json`` when a further rank finishes them. Earlier windows
move to the end.
"""


class _Mark(msgspec.Struct):
    window: str
    process: Process


def places_of(window: Path) -> list[Place]:
    return [Place(window, rank) for rank in sorted(layout.ranks_of_window(entry.name for entry in _entries(window)))]


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        return list(entries)


def _unique(parent: Path) -> Path:
    stem = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    for count in range(1000):
        folder = parent / (f"{stem}-{count}" if count else stem)
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            return folder
    raise PerfhooksError(f"no free name for a run in {parent}")


def _point(link: Path, target: str) -> None:
    draft = draft_of(link)
    try:
        draft.symlink_to(target, target_is_directory=True)
        draft.replace(link)
    except (OSError, NotImplementedError):
        with contextlib.suppress(OSError):
            draft.unlink()


def opened() -> frozenset[Path]:
    return frozenset(_OPENED)
