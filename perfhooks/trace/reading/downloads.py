from __future__ import annotations

import asyncio
import functools
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fsspec.callbacks import Callback
from fsspec.core import url_to_fs

from perfhooks.core.errors import PerfhooksError
from perfhooks.trace.bounds import FLOOR

if TYPE_CHECKING:
    from collections.abc import Mapping

SILENCE_S: Final = 30.0
"""Maximum wait for a server, and the period over which the download speed is measured."""
_SLOWEST: Final = 1000
"""Minimum bytes per second of a download, so that every download ends."""


class DownloadLimits(Callback):  # type: ignore[misc]  # fsspec ships no types
    def __init__(self, name: str, free_bytes: int) -> None:
        super().__init__()
        self._name, self._room, self._most = name, free_bytes, min(free_bytes, FLOOR)
        self._received = self._before = 0
        self._since = time.monotonic()

    def set_size(self, size: int | None) -> None:
        if size is not None:  # a body that is compressed for the transfer is larger than its stated length
            self._most = max(size, self._most)
            if size > self._room:
                raise PerfhooksError(f"{self._name} has {size:,} bytes, and the disk has room for {self._room:,}")

    def absolute_update(self, size: int) -> None:
        self.relative_update(size - self._received)

    def relative_update(self, more: int = 1) -> None:
        """Add received bytes; raises PerfhooksError if the file is too large or too slow."""
        self._received += more
        if self._received > self._most:
            raise PerfhooksError(f"{self._name} has more than {self._most:,} bytes; the download was stopped")
        now = time.monotonic()
        if now - self._since > SILENCE_S:
            if self._received - self._before < _SLOWEST * SILENCE_S:
                raise PerfhooksError(
                    f"{self._name} arrives at less than {_SLOWEST} bytes per second; the download was stopped"
                )
            self._since, self._before = now, self._received


class _LimitsOfFiles(Callback):  # type: ignore[misc]  # fsspec ships no types
    def __init__(self, free_bytes: int) -> None:
        super().__init__()
        self._free_bytes = free_bytes

    def branched(self, path: str, *_: Any, **__: Any) -> DownloadLimits:
        return DownloadLimits(path, self._free_bytes)


def download(system: Any, targets: Mapping[str, Path]) -> None:
    """Copy files of fsspec to local paths; raises PerfhooksError if a file is too large or too slow.

    On Linux a file has no name until it is complete, so a killed download leaves no file.
    """
    folders = {path.parent for path in targets.values()}
    limits = _LimitsOfFiles(min((shutil.disk_usage(folder).free // 2 for folder in folders), default=0))
    unnamed = {path: _unnamed(path.parent) for path in targets.values()}
    try:
        paths = [path if (file := unnamed[path]) is None else _path_of(file) for path in targets.values()]
        if targets:
            system.get(list(targets), [str(target) for target in paths], callback=limits)
        for path, file in unnamed.items():
            if file is not None:
                path.unlink(missing_ok=True)
                # with a folder descriptor, os.link follows the symbolic link in /proc
                os.link(_path_of(file), path, src_dir_fd=file)
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
    """Open a local copy of a URL. Closing the file deletes the copy."""
    system, path = located(url)
    with tempfile.TemporaryDirectory(prefix="perfhooks-") as folder:
        local = Path(folder) / "content"
        download(system, {path: local})
        return local.open("rb")


def located(url: str) -> tuple[Any, str]:
    """Return the file system and path of a URL.

    Limits of size and speed replace aiohttp's limit of five minutes per file.
    """
    options = {}
    if url.startswith(("http://", "https://")):
        options = {"client_kwargs": _client_options()}
    system, path = url_to_fs(url, **options)
    return system, path


def _unnamed(folder: Path) -> int | None:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except (AttributeError, OSError):
        return None


def _path_of(file: int) -> Path:
    return Path(f"/proc/self/fd/{file}")


@functools.cache
def _client_options() -> dict[str, Any]:
    from aiohttp import ClientResponse, ClientTimeout

    class LimitedResponse(ClientResponse):
        async def start(self, connection: Any) -> Any:
            response = await _in_time(self, super().start(connection))
            self.content: Any = _LimitedContent(self.content, self)
            return response

        async def read(self) -> bytes:
            if self._body is None:
                limits, parts = DownloadLimits(str(self.url), FLOOR), []
                while part := await self.content.read(1 << 16):
                    limits.relative_update(len(part))
                    parts.append(part)
                self._body = b"".join(parts)
            return await super().read()

    timeout = ClientTimeout(sock_connect=SILENCE_S, sock_read=SILENCE_S)
    return {"timeout": timeout, "response_class": LimitedResponse}


class _LimitedContent:
    def __init__(self, content: Any, response: Any) -> None:
        self._content, self._response = content, response

    def __getattr__(self, name: str) -> Any:
        return getattr(self._content, name)

    async def read(self, most: int = -1) -> Any:
        return await _in_time(self._response, self._content.read(most))


async def _in_time(response: Any, result: Any) -> Any:
    try:
        return await asyncio.wait_for(result, SILENCE_S)
    except asyncio.TimeoutError as error:
        response.close()
        raise PerfhooksError(f"{response.url} sent no data for {SILENCE_S:g} s; the download was stopped") from error
