"""Finishing what was left: by a worker or a training that died, or that nobody told."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from perfhooks.core.errors import PerfhooksError
from perfhooks.report.finishing.finish import NOTHING_SAID, finish
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
    """What became of one window that was looked at afterwards."""

    place: Place
    capture: Capture | None = None
    finished_now: bool = False
    problem: str = ""
    """Why it is not finished."""


def finish_all(folder: Path, permit: Permit = NOTHING_SAID) -> Iterator[WindowOutcome]:
    """Finish whatever a dead worker or training process left behind in a run folder; what is finished stays as it is.

    Args:
        folder: A run folder.
        permit: What the user has said, that is not believed of a file.

    Yields:
        An outcome for each window of each rank, in the order of the folders' names; then one for each rank whose
        process ended while it recorded.

    Raises:
        PerfhooksError: It is no run folder.
    """
    run = Run.existing(folder)
    for raw, rank in run.left_steps():
        try:
            write_steps(raw, run.timeline(rank))
        except Exception as error:  # noqa: BLE001 -- windows can be finished without the clock
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
        except Exception as error:  # noqa: BLE001 -- one broken window must not hide the others
            if isinstance(error, PerfhooksError) and place not in run.places():
                continue  # its training keeps only its latest windows, and has just deleted it
            yield WindowOutcome(place, problem=f"{type(error).__name__}: {said(error)}")
    for place in run.died_recording():
        yield WindowOutcome(place, problem="the process ended while it recorded: this window is lost")


def write_steps(raw: Path, timeline: Path) -> None:
    """Append steps to a timeline, and delete them as the loop left them."""
    Rows.load(raw).append_to(timeline)
    OwnFolder(raw.parent).remove(raw.name)
