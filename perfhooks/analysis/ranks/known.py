"""What was said of earlier windows: so that a page after the thousandth window costs what one after the tenth does."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.errors import PerfhooksError
from perfhooks.core.guard import logger
from perfhooks.core.version import __version__
from perfhooks.run.layout import PAGE_CACHE
from perfhooks.run.publishing import encoded, publish
from perfhooks.run.reading import read_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

_SETTLED_S: Final = 2.0
"""A folder that changed so few seconds ago may change again without showing it: clocks of disks tick slowly."""


class WindowSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the ranks say of one window."""

    changed: int = 0
    """When its folder changed last, in nanoseconds since 1970."""
    ranks: tuple[int, ...]
    """Those that left anything."""
    is_trimmed: bool
    """Whether ranks delete their old windows."""
    compared: dict[str, Any]
    missing: tuple[dict[str, Any], ...]


class _KnownFile(msgspec.Struct):
    """The file; of another version it is worth nothing."""

    version: str
    windows: dict[str, WindowSummary]


class SummaryCache:
    """What was said of windows whose folders have not changed since.

    Args:
        windows: By name.
    """

    def __init__(self, windows: dict[str, WindowSummary] | None = None) -> None:
        self._windows = windows or {}

    @classmethod
    def read(cls, run: Path) -> SummaryCache:
        """What was kept in a run folder; nothing if it was kept by another version, or cannot be read."""
        try:
            kept = read_json(run / PAGE_CACHE, _KnownFile, "what is known of windows")
        except (FileNotFoundError, PerfhooksError):
            return cls()
        return cls(kept.windows if kept.version == __version__ else None)

    def keep(self, run: Path, names: Iterable[str]) -> None:
        """Write it into a run folder, as far as it is of windows that are still shown."""
        windows = {name: self._windows[name] for name in names if name in self._windows}
        try:
            with publish(run / PAGE_CACHE) as file:
                file.write(encoded(_KnownFile(__version__, windows)))
        except OSError as error:
            logger.debug("what is known of windows is not kept: %s", error)

    def of(self, window: Path, make: Callable[[Path], WindowSummary]) -> WindowSummary:
        """What is said of a window; made anew if its folder has changed."""
        changed = window.lstat().st_mtime_ns
        known = self._windows.get(window.name)
        if known is not None and known.changed == changed:
            return known
        told = msgspec.structs.replace(make(window), changed=changed)
        if time.time() - changed / 1e9 > _SETTLED_S:
            self._windows[window.name] = told
        return told
