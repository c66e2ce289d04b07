"""Finish windows that a dead worker process or training left behind."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfhooks.core.errors import PerfhooksError
from perfhooks.report.finishing.finish import NO_PERMIT, finish
from perfhooks.run.capture import Place
from perfhooks.run.folder import Run
from perfhooks.run.publishing import OwnFolder, drafts
from perfhooks.run.reading import said
from perfhooks.run.timeline import Rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from perfhooks.report.handlers.permit import Permit
    from perfhooks.run.capture import Capture


@dataclass(frozen=True)
class WindowOutcome:
    place: Place
    capture: Capture | None = None
    finished_now: bool = False
    problem: str = ""


def finish_all(folder: Path, permit: Permit = NO_PERMIT) -> Iterator[WindowOutcome]:
    """Finish all windows and yield an outcome for each, then for each rank that died during recording."""
    run = Run.existing(folder)
    for raw, rank in run.left_steps():
        try:
            write_steps(raw, run.timeline(rank))
        except Exception as error:  # noqa: BLE001 -- windows can be finished without the timeline
            yield WindowOutcome(Place(folder, rank), problem=f"{raw.name} cannot be read: {said(error)}")
    run.adopt()
    for draft in drafts(folder):
        with contextlib.suppress(OSError):
            OwnFolder(folder, *draft.relative_to(folder).parts[:-1]).remove(draft.name)
    for place in run.places():
        try:
            if not place.capture_file.exists() and run.is_recording(place):
                continue
            before = place.load().state
            yield WindowOutcome(place, finish(place, permit), finished_now=before == "spooled")
        except Exception as error:  # noqa: BLE001 -- the other windows must still be finished
            if isinstance(error, PerfhooksError) and place not in run.places():
                continue
            yield WindowOutcome(place, problem=f"{type(error).__name__}: {said(error)}")
    for place in run.died_recording():
        yield WindowOutcome(place, problem="the process ended during the recording: this window is lost")


def write_steps(raw: Path, timeline: Path) -> None:
    Rows.load(raw).append_to(timeline)
    OwnFolder(raw.parent).remove(raw.name)
