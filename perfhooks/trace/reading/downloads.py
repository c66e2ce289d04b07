"""Downloads with limits: of their size, and of the time without progress."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fsspec.callbacks import Callback
from fsspec.core import url_to_fs

from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Mapping

SILENCE_S: Final = 30.0
"""Longest time without progress, in seconds."""
_SLOWEST: Final = 1000
"""Bytes per second below which a download makes no progress: a modem of 1990 is faster."""
_OF_UNKNOWN_SIZE: Final = 256_000_000
"""Largest download of a size that the server does not state, in bytes."""


class _Limits(Callback):  # type: ignore[misc]  # fsspec ships no types
    """Limits of the download of one file.

    Args:
        name: The name of the file, for messages.
        most: Bytes that the disk has room for.
    """

    def __init__(self, name: str, most: int) -> None:
        super().__init__()
        self._name, self._room, self._most = name, most, min(most, _OF_UNKNOWN_SIZE)
        self._held = self._before = 0
        self._since = time.monotonic()

    def branched(self, path: str, *_: Any, **__: Any) -> _Limits:
        """Return the limits of one of several files."""
        return _Limits(path, self._room)

    def set_size(self, size: int | None) -> None:
        """The server states the size."""
        if size is not None:
            self._most = max(size, 0)
            if size > self._room:
                raise PerfhooksError(f"{self._name} has {size:,} bytes, and the disk has room for {self._room:,}")

    def absolute_update(self, size: int) -> None:
        """So many bytes are here."""
        self.relative_update(size - self._held)

    def relative_update(self, more: int = 1) -> None:
        """More bytes are here.

        Raises:
            PerfhooksError: There are more than there may be, or too few in the last seconds.
        """
        self._held += more
        if self._held > self._most:
            raise PerfhooksError(f"{self._name} has more than {self._most:,} bytes: the download ends here")
        now = time.monotonic()
        if now - self._since > SILENCE_S:
            if self._held - self._before < _SLOWEST * SILENCE_S:
                raise PerfhooksError(f"{self._name} came with less than {_SLOWEST} bytes per second: the download ends")
            self._since, self._before = now, self._held


def download(system: Any, wanted: Mapping[str, Path]) -> None:
    """Copy files to paths here. On Linux a file has no name until it is whole, so a killed download leaves nothing.

    Args:
        system: The file system of fsspec.
        wanted: The path of each file here, by its path there.

    Raises:
        PerfhooksError: A file is too large, or comes too slowly.
    """
    folders = {path.parent for path in wanted.values()}
    limits: Any = _Limits("", min((shutil.disk_usage(folder).free // 2 for folder in folders), default=0))
    unnamed = {path: _unnamed(path.parent) for path in wanted.values()}
    try:
        aims = [path if (file := unnamed[path]) is None else _path_of(file) for path in wanted.values()]
        if wanted:
            system.get(list(wanted), [str(aim) for aim in aims], callback=limits)
        for path, file in unnamed.items():
            if file is not None:
                path.unlink(missing_ok=True)
                os.link(_path_of(file), path, src_dir_fd=file)  # with a descriptor it follows the link
    except BaseException:
        for path, file in unnamed.items():
            if file is None:
                path.unlink(missing_ok=True)
        raise
    finally:
        for file in unnamed.values():
            if file is not None:
                os.close(file)


def opened(url: str) -> IO[bytes]:
    """Download a file, and open it; it is gone when it is closed.

    Raises:
        PerfhooksError: The file is too large, or comes too slowly.
    """
    system, path = located(url)
    with tempfile.TemporaryDirectory(prefix="perfhooks-") as folder:
        here = Path(folder) / "content"
        download(system, {path: here})
        return here.open("rb")


def located(url: str) -> tuple[Any, str]:
    """Return the file system of a URL, and the path there. By default, HTTP waits for five minutes in all."""
    options = {}
    if url.startswith(("http://", "https://")):
        from aiohttp import ClientTimeout  # fsspec needs it for these

        options = {"client_kwargs": {"timeout": ClientTimeout(sock_connect=SILENCE_S, sock_read=SILENCE_S)}}
    system, path = url_to_fs(url, **options)
    return system, path


def _unnamed(folder: Path) -> int | None:
    """Open a new file without a name; None if the system has none."""
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except (AttributeError, OSError):
        return None


def _path_of(file: int) -> Path:
    return Path(f"/proc/self/fd/{file}")
