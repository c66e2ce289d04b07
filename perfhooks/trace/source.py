"""The bytes of a trace, block by block, wherever it lies and however it is packed."""

from __future__ import annotations

import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from perfhooks.errors import TraceError

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 1 << 19
"""Bytes to read at once, after unpacking: what is made of so many stays in the processor's cache."""

_GZIP_MAGIC: Final = b"\x1f\x8b"
_PACKED_BLOCK: Final = 1 << 18


class TornArchiveError(Exception):
    """The archive ends early or is damaged; what came before it is good."""


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    """Open a local file, or whatever fsspec opens.

    Raises:
        TraceError: it cannot be opened.
    """
    try:
        file = _open(path)
    except Exception as error:  # fsspec's file systems raise what they like
        raise TraceError(f"cannot open the trace {path}: {error}") from error
    with file:
        yield file


def _open(path: str) -> IO[bytes]:
    if "://" not in path:
        return Path(path).open("rb")
    import fsspec  # slow to import, and only URLs need it

    file: IO[Any] = fsspec.open(path, "rb").open()
    return file


def blocks(file: IO[bytes]) -> Iterator[bytes]:
    """Read a file in blocks, unpacked if it is a gzip archive (of any number of members, under any name).

    Raises:
        TornArchiveError: after the last good block of a damaged archive.
    """
    start = file.read(_PACKED_BLOCK)
    if start.startswith(_GZIP_MAGIC):
        yield from _unpacked(start, file)
        return
    while start:
        yield start
        start = file.read(BLOCK)


def _unpacked(data: bytes, file: IO[bytes]) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    while data:
        try:
            block = inflater.decompress(data, BLOCK)
        except zlib.error as error:
            raise TornArchiveError(f"the gzip archive is damaged: {error}") from error
        if block:
            yield block
        data = inflater.unconsumed_tail or inflater.unused_data.lstrip(b"\0") or file.read(_PACKED_BLOCK)
        if inflater.eof and data:
            if not data.startswith(_GZIP_MAGIC[: len(data)]):
                raise TornArchiveError("something that is no gzip follows the archive")
            inflater = zlib.decompressobj(wbits=31)
    if not inflater.eof:
        raise TornArchiveError("the gzip archive is cut off")
