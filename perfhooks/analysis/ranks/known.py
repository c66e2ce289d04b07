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
"""Minimum age in s of a cached folder, because two changes soon after each other may have the same mtime."""


class WindowSummary(msgspec.Struct, frozen=True, kw_only=True):
    changed: int = 0
    """Modification time of the window's folder in ns."""
    ranks: tuple[int, ...]
    is_trimmed: bool
    compared: dict[str, Any]
    missing: tuple[dict[str, Any], ...]


class _CacheFile(msgspec.Struct):
    version: str
    windows: dict[str, WindowSummary]


class SummaryCache:
    def __init__(self, windows: dict[str, WindowSummary] | None = None) -> None:
        self._windows = windows or {}

    @classmethod
    def read(cls, run: Path) -> SummaryCache:
        """Read the cache. An unreadable cache, or one from another version of perfhooks, counts as empty."""
        try:
            cache = read_json(run / PAGE_CACHE, _CacheFile, "a cache of window summaries")
        except (FileNotFoundError, PerfhooksError):
            return cls()
        return cls(cache.windows if cache.version == __version__ else None)

    def keep(self, run: Path, names: Iterable[str]) -> None:
        windows = {name: self._windows[name] for name in names if name in self._windows}
        try:
            with publish(run / PAGE_CACHE) as file:
                file.write(encoded(_CacheFile(__version__, windows)))
        except OSError as error:
            logger.debug("the cache of window summaries cannot be written: %s", error)

    def of(self, window: Path, make: Callable[[Path], WindowSummary]) -> WindowSummary:
        changed = window.lstat().st_mtime_ns
        cached = self._windows.get(window.name)
        if cached is not None and cached.changed == changed:
            return cached
        summary = msgspec.structs.replace(make(window), changed=changed)
        if time.time() - changed / 1e9 > _SETTLED_S:
            self._windows[window.name] = summary
        return summary
