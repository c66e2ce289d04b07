"""What is in the folder of a run, looked at once: a run of 10,000 windows has as many folders, and each look costs."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from perfhooks.run import layout

if TYPE_CHECKING:
    from pathlib import Path


class Listing(NamedTuple):
    """The names in the folder of a run."""

    windows: tuple[str, ...]
    """The folders, but that of requests; links are left out, as they may lead anywhere."""
    files: tuple[str, ...]
    """All else."""

    @classmethod
    def of(cls, run: Path) -> Listing:
        """That of a run folder."""
        windows: list[str] = []
        files: list[str] = []
        with os.scandir(run) as entries:
            for entry in entries:
                is_window = entry.is_dir(follow_symlinks=False) and entry.name != layout.REQUESTS
                (windows if is_window else files).append(entry.name)
        return cls(tuple(windows), tuple(files))
