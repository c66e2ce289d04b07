"""What a whole run becomes: one page over all its windows and ranks, and the data it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from filelock import FileLock

from perfhooks.run import remote
from perfhooks.run.folder import Run
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.run.capture import Place

PAGE: Final = "report.html"
DATA: Final = "report.json"

PART: Final = "page.json"
"""What a window's share of the page's data is called, after its rank."""

_LOCK_TIMEOUT_S: Final = 120


def write(folder: Path) -> Path:
    """Bring the page of a run up to date: ``report.html``, and beside it its data, ``report.json``.

    Args:
        folder: A run folder.

    Returns:
        The page.

    Raises:
        PerfhooksError: It is no run folder.
        OSError: A file could not be written, or another process has been writing the page for two minutes.
    """
    import msgspec

    from perfhooks.report.data import gather
    from perfhooks.report.page import render

    # whoever comes second gathers after the first has written, so the last page has everything
    with FileLock(folder / ".page.lock", timeout=_LOCK_TIMEOUT_S):
        data = gather(folder)
        for name, content in ((DATA, msgspec.json.encode(data)), (PAGE, render(data).encode())):
            with publish(folder / name) as file:
                file.write(content)
    target = Run(folder).manifest().get("remote")
    if target is not None:
        remote.copy(folder, [DATA, PAGE], target)
    return folder / PAGE


def headlines(page: Path) -> list[str]:
    """What the page of a run says of all its ranks together, what gains most first, a line each.

    Args:
        page: What `write` gave.
    """
    import msgspec

    data = msgspec.json.decode(page.with_name(DATA).read_bytes(), type=dict[str, msgspec.Raw])
    found = msgspec.json.decode(data.get("findings", b"[]"), type=list[dict[str, Any]])
    return [finding["title"] for finding in found]


def write_trace(trace: Path, page: Path) -> Path:
    """Make a page of one trace, whoever recorded it.

    Args:
        trace: A Kineto trace, packed or not.
        page: The file to write.

    Returns:
        The page.

    Raises:
        TraceError: It is no trace.
        OSError: The page could not be written.
    """
    from perfhooks.report.data import from_trace
    from perfhooks.report.page import render

    made = render(from_trace(trace)).encode()
    with publish(page) as file:
        file.write(made)
    return page


def is_due(place: Place) -> bool:
    """Whether whoever has just finished a window should bring the page up to date: one rank for all.

    That is the lowest rank that has a share in the page; and the rank that finishes a window last, of all that have
    recorded it so far, so that no rank's share is missing in the end.

    Args:
        place: The window that was finished.
    """
    if not place.artifact(PART).exists():
        return False
    ranks = [int(path.name[len("rank") : -len(PART) - 1]) for path in place.folder.parent.glob(f"*/rank*.{PART}")]
    recorded, shared = (len(list(place.folder.glob(f"rank*.{name}"))) for name in ("capture.json", PART))
    return place.rank == min(ranks) or recorded == shared
