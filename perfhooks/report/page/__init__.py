from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from perfhooks.core import json_values, words
from perfhooks.report.page.run_summary import read_summary
from perfhooks.run import layout
from perfhooks.run.layout import FINDINGS, PAGE, PAGE_DATA, PAGE_LOCK
from perfhooks.run.locking import locked
from perfhooks.run.publishing import encoded, publish
from perfhooks.run.remote import copy

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from perfhooks.run.capture import Place


def write(folder: Path, *, remote: str | None = None, title: str | None = None, unread: Sequence[str] = ()) -> Path:
    """Write ``report.html``, ``report.json`` and ``findings.json``. ``unread`` has a message for each unreadable trace.

    Raises OSError if another process held the lock of the report for two minutes.
    """
    from perfhooks.report.page import data, findings_file, page, run_data

    # read inside the lock, so that the last writer includes the windows of all ranks
    with locked(folder / PAGE_LOCK, 120):
        facts = {"title": title, "unread": [json_values.text(message, words.MAX_TEXT) for message in unread[:60]]}
        report = run_data.gather(folder) | json_values.facts(facts)
        stored = encoded(msgspec.convert(report, data.RunData))
        del report["inputs"]  # equal recordings must result in equal bytes of the page
        findings = findings_file.to_json(findings_file.from_data(report))
        for name, content in ((PAGE_DATA, stored), (FINDINGS, findings), (PAGE, page.render(report))):
            with publish(folder / name) as file:
                file.write(content)
    if remote is not None:
        copy(folder, [PAGE_DATA, FINDINGS, PAGE], remote)
    return folder / PAGE


def headlines(page: Path) -> list[str]:
    summary = read_summary(page.parent)
    if summary is None:
        return []
    lines = [
        f"{number}. {row.title}{row.gain and f' ({words.of_step(row.gain)})'}{row.where and f' at {row.where}'}"
        for number, row in enumerate(summary.findings, 1)
    ]
    return [*lines, *([f"Warning: {summary.warning}"] if summary.warning else [])]


def is_due(place: Place) -> bool:
    """Return whether the rank that finished a window writes the report.

    The lowest rank and the rank that finishes last write the report, so that the final report includes all ranks.
    """
    names = [path.name for path in place.folder.iterdir()] if place.folder.exists() else []
    finished, recorded = set(layout.share.ranks(names)), layout.ranks_of_window(names)
    return place.rank in finished and (place.rank == min(recorded) or recorded == finished)
