"""Finished windows of a run, in the order of their ends, and the rank that represents the run."""

from __future__ import annotations

import contextlib
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import PerfhooksError
from perfhooks.core.guard import logger
from perfhooks.run import layout, steps
from perfhooks.run.folder import Run, places_of
from perfhooks.run.layout import Listing
from perfhooks.run.timeline import in_timeline

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from perfhooks.run.capture import Capture, Place
    from perfhooks.run.manifest import Manifest
    from perfhooks.run.steps import Steps

_WINDOWS: Final = 256
"""Number of latest windows that ``FinishedRun(brief=True)`` reads."""


@dataclass(frozen=True)
class FinishedWindow:
    folder: Path
    captures: dict[Place, Capture]
    """Facts of the window on each rank, keyed by folder and rank, the lowest rank first."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def place(self) -> Place:
        return next(iter(self.captures))

    @property
    def capture(self) -> Capture:
        """Facts of the window on the lowest rank, which represents all ranks."""
        return self.captures[self.place]

    @property
    def last(self) -> int:
        return self.capture.end


def in_order(windows: Iterable[FinishedWindow]) -> list[FinishedWindow]:
    """Sort windows by their end, on the clock of the lowest rank, because clocks of hosts differ.

    Windows without times keep their order.
    """
    return sorted(windows, key=lambda window: window.capture.time)


class FinishedRun:
    """Content of a run folder. Each file is read once, on first use.

        run = FinishedRun(Path("perf/latest"))
        run.last("validate")  # the last window of a loop
        run.steps["train"].unrecorded()  # unprofiled steps of the lowest rank, without warm-up

    ``brief`` reads only the latest windows and a sample of the steps.
    """

    def __init__(self, folder: Path, *, brief: bool = False) -> None:
        self.run = Run.existing(folder)
        self.folder = folder
        self.listing = Listing.of(folder)
        self._is_brief = brief

    @cached_property
    def manifest(self) -> Manifest:
        return self.run.manifest()

    @cached_property
    def places(self) -> dict[Path, list[Place]]:
        folders, ranks_of_windows = self.run.window_folders(), None
        if self._is_brief:
            folders, ranks_of_windows = (
                self.run.latest_windows(_WINDOWS, self.listing, self.manifest.windows),
                16_384,
            )
        by_folder: dict[Path, list[Place]] = {}
        for folder in folders:
            if ranks_of_windows is not None and sum(map(len, by_folder.values())) >= ranks_of_windows:
                break
            with contextlib.suppress(FileNotFoundError):
                by_folder[folder] = places_of(folder)
        return dict(sorted(by_folder.items()))

    @cached_property
    def recorded(self) -> list[FinishedWindow]:
        read = {folder: {place: _facts(place) for place in places} for folder, places in self.places.items()}
        found = {folder: {place: entry for place, entry in ranks.items() if entry} for folder, ranks in read.items()}
        return in_order(FinishedWindow(folder, captures) for folder, captures in found.items() if captures)

    @cached_property
    def _done(self) -> list[FinishedWindow]:
        done = (
            FinishedWindow(
                window.folder,
                {p: entry for p, entry in window.captures.items() if entry.state == "done"},
            )
            for window in self.recorded
        )
        return in_order(window for window in done if window.captures)

    @cached_property
    def windows(self) -> list[FinishedWindow]:
        return [window for window in self._done if not window.capture.explains]

    @property
    def folders(self) -> list[Path]:
        """Folders of windows, finished or not, except second windows, which only supply stacks and shapes."""
        explaining = {window.folder for window in self.recorded if window.capture.explains}
        return [folder for folder in self.places if folder not in explaining]

    def explanation(self, stage: str) -> FinishedWindow | None:
        """Return the second window of a loop, which was recorded only for stacks and shapes."""
        candidates = (window for window in reversed(self._done) if window.capture.explains)
        return next((window for window in candidates if window.capture.stage == stage), None)

    def last(self, stage: str | None = None) -> FinishedWindow | None:
        return next(
            (entry for entry in reversed(self.windows) if stage in (None, entry.capture.stage)),
            None,
        )

    @cached_property
    def ranks(self) -> list[int]:
        """Ranks with a finished window, else ranks with timed steps."""
        recorded = {place.rank for window in self.windows for place in window.captures}
        return sorted(recorded or layout.timeline.ranks(self.listing.files))

    @property
    def rank(self) -> int:
        return min(self.ranks, default=0)

    @cached_property
    def steps(self) -> dict[str, Steps]:
        """Steps of the lowest rank for each loop, in the order of the loops' first steps."""
        path = self.run.timeline(self.rank)
        raw = [] if self._is_brief else [raw for raw, rank in self.run.left_steps() if rank == self.rank]
        try:
            return steps.read_sample(path) if self._is_brief else steps.read(path, raw)
        except (OSError, ValueError) as error:
            raise PerfhooksError(f"{path}: no timeline ({error})") from error

    def steps_of(self, stage: str) -> Steps:
        return self.steps.get(in_timeline(stage), steps.NONE)

    @property
    def stages(self) -> list[str]:
        return list(dict.fromkeys([*self.steps, *(in_timeline(window.capture.stage) for window in self.windows)]))

    @property
    def inputs(self) -> str:
        """Return a fingerprint of the files in a report. A report with the same fingerprint is up to date."""
        kinds = (layout.timeline, layout.startup, layout.processor, layout.rare, layout.slow_steps)
        files = [self.folder / layout.MANIFEST, *(self.folder / kind(self.rank) for kind in kinds)]
        for places in self.places.values():
            files += (file for place in places for file in (place.capture_file, place.artifact(layout.SHARE)))
        checksum = 0
        for file in files:
            with contextlib.suppress(FileNotFoundError):
                facts = file.lstat()
                text = f"{file.relative_to(self.folder)} {facts.st_size} {facts.st_mtime_ns}\n"
                checksum = zlib.crc32(text.encode(errors="replace"), checksum)
        return f"{checksum:08x}"

    @property
    def is_written(self) -> bool:
        """Whether the training or the worker process still writes files of the run."""
        saved = (path.name for path in self.folder.glob("*/.*"))
        return self.run.is_any_recording() or any(map(layout.saved_trace_of, saved))


def _facts(place: Place) -> Capture | None:
    try:
        return place.load()
    except PerfhooksError as error:
        logger.debug("%s is left out: %s", place.folder, error)
        return None
