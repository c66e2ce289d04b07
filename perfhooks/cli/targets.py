from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import PerfhooksError
from perfhooks.run.layout import LATEST, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DEPTH: Final = 5
"""Maximum depth of folders in the search for runs. ``lightning_logs/version_3/perf/RUN`` is four deep."""
_MOST: Final = 20_000
"""Maximum folders in the search for runs, because a user waits for the search."""


def last_run() -> Path:
    """Return ``perf/latest``, else the newest run folder below the working directory."""
    latest = Path("perf", LATEST)
    if (latest / MANIFEST).exists():
        return latest
    newest = _newest(_manifests())
    if newest is None:
        raise PerfhooksError("there is no run below the current folder; pass a run folder, for example perf/latest")
    return newest


def _manifests() -> Iterator[Path]:
    for count, (folder, below, files) in enumerate(os.walk(".")):
        depth = folder.count(os.sep)
        below[:] = [name for name in below if not name.startswith(".") and depth < _DEPTH]
        if MANIFEST in files:
            yield Path(folder, MANIFEST)
            below.clear()
        if count > _MOST:
            return


def run_in(folder: Path) -> Path | None:
    """Return the folder if it is a run, else the latest run in it.

    A copied folder may lack the link to the latest run.
    """
    linked = next((path for path in (folder, folder / LATEST) if (path / MANIFEST).exists()), None)
    return linked or _newest(folder.glob(f"*/{MANIFEST}"))


def _newest(manifests: Iterable[Path]) -> Path | None:
    newest = max(manifests, key=lambda path: path.stat().st_mtime, default=None)
    return None if newest is None else newest.parent
