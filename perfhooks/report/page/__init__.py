"""What a whole run becomes: one page over all its windows and ranks, and the data it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from perfhooks.core import json_values
from perfhooks.report.page.run_summary import read_summary
from perfhooks.run import layout
from perfhooks.run.layout import PAGE, PAGE_DATA, PAGE_LOCK
from perfhooks.run.locking import locked
from perfhooks.run.publishing import encoded, publish
from perfhooks.run.remote import copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perfhooks.run.capture import Place

_LOCK_TIMEOUT_S: Final = 120
_UNREAD: Final = 60
"""Traces that could not be read and are named on the page; the terminal names all."""


def write(folder: Path, *, remote: str | None = None, title: str | None = None, unread: Sequence[str] = ()) -> Path:
    """Bring the page of a run up to date: ``report.html``, and beside it its data, ``report.json``.

    Args:
        folder: A run folder.
        remote: The URL to copy it to, if the user said one.
        title: What to call it; None is the name of the folder.
        unread: What could not be read of it, and why, a line each.

    Returns:
        The page.

    Raises:
        PerfhooksError: It is no run folder.
        OSError: A file could not be written, or another process has been writing the page for two minutes.
    """
    from perfhooks.report.page import data, page, run_data

    # whoever comes second gathers after the first has written, so the last page has everything
    with locked(folder / PAGE_LOCK, _LOCK_TIMEOUT_S):
        said = {"title": title, "unread": [json_values.text(each, 1000) for each in unread[:_UNREAD]]}
        shown = run_data.gather(folder) | json_values.facts(said)
        whole = encoded(msgspec.convert(shown, data.RunData))
        for name, content in ((PAGE_DATA, whole), (PAGE, page.render(shown).encode())):
            with publish(folder / name) as file:
                file.write(content)
    if remote is not None:
        copy(folder, [PAGE_DATA, PAGE], remote)
    return folder / PAGE


def headlines(page: Path) -> list[str]:
    """Return the first findings of a report and the reason to doubt them, a line each.

    Args:
        page: What `write` returned.
    """
    found = read_summary(page.parent)
    if found is None:
        return []
    lines = [
        f"{number}. {row.title}{row.gain and f' ({row.gain} of a step)'}{row.where and f' at {row.where}'}"
        for number, row in enumerate(found.findings, 1)
    ]
    return [*lines, *([f"Warning: {found.warning}"] if found.warning else [])]


def is_due(place: Place) -> bool:
    """Whether whoever has just finished a window should bring the page up to date: one rank for all.

    That is the lowest rank that has recorded it; and the rank that finishes it last, of all that have recorded it so
    far, so that no rank's share is missing in the end.

    Args:
        place: The window that was finished. A training that keeps its latest windows may have deleted it since.
    """
    names = [path.name for path in place.folder.iterdir()] if place.folder.exists() else []
    shared, recorded = set(layout.share.ranks(names)), layout.ranks_of_window(names)
    return place.rank in shared and (place.rank == min(recorded) or recorded == shared)
