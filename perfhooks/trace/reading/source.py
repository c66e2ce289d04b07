"""The bytes of a trace, block by block, wherever it lies and however it is packed."""

from __future__ import annotations

import os
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from perfhooks.core.errors import OptionError, TraceError
from perfhooks.core.variables import MAX_UNPACKED_MB
from perfhooks.trace.reading.packing import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK: Final = 1 << 18
"""Bytes to read at once, after unpacking: what is made of them stays in the processor's cache."""

RATIO: Final = 100
"""A packed trace may unpack to this multiple of its size, unless somebody sets another limit. Recorded traces unpack to
10 to 23 times; a file made to fill the memory of whoever opens it, to 1,000 times."""
FLOOR: Final = 256 << 20
"""Bytes that any packed trace may unpack to, however small it is."""

OBJECTS: Final = 0.5
"""Objects (events, arguments) that an archive may hold for each of its bytes. Recorded traces hold 0.03 to 0.13, and
the least event that there can be, again and again, would be ten: each costs memory, however short it is."""
OBJECTS_FLOOR: Final = 1 << 20
"""Objects that any archive may hold, however small it is."""

_PACKED_BLOCK: Final = 1 << 16
"""Bytes to read of an archive at once. What follows a member is copied for each member that begins in them."""


OF_PERFETTO: Final = (
    "it is Perfetto's (.pftrace); export it to a name that ends in .json or .json.gz, and torch writes JSON"
)
"""What is said of a trace in a form that is not read."""


class TornArchiveError(Exception):
    """The archive ends early, is damaged, or holds more than is allowed; what came before it is good."""


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
    from perfhooks.trace.reading import downloads  # slow to import, and only URLs need it

    return downloads.opened(path)


def blocks(file: IO[bytes], max_unpacked_mb: float | None = None) -> Iterator[bytes]:
    """Read a file in blocks, unpacked if it is a gzip archive (of any number of members, under any name).

    Args:
        file: an open binary file.
        max_unpacked_mb: how many megabytes (10^6 bytes) an archive may unpack to; None is what the variable
            `MAX_UNPACKED_MB` of the environment says, else `RATIO` times its size, at least `FLOOR`.

    Raises:
        TornArchiveError: after the last good block of an archive that is damaged, or unpacks to more.
        OptionError: the limit is no number above 0.
    """
    limit = _limit(max_unpacked_mb)
    start = file.read(_PACKED_BLOCK)
    if start.startswith(GZIP_MAGIC):
        yield from _unpacked(start, file, limit)
        return
    while start:
        yield start
        start = file.read(BLOCK)


def _limit(given: float | None) -> float | None:
    """The limit in bytes, or None where it follows from the size of the file."""
    said = os.environ.get(MAX_UNPACKED_MB, "").strip()
    name = "max_unpacked_mb" if given is not None else MAX_UNPACKED_MB
    try:
        limit = given if given is not None else float(said) if said else None
        if limit is None:
            return None
        if limit > 0:
            return limit * 1e6
    except (TypeError, ValueError):
        pass
    raise OptionError(f"{name} must be a number of megabytes above 0, got {said if given is None else given!r}")


def _unpacked(data: bytes, file: IO[bytes], limit: float | None) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    packed, unpacked, objects = len(data), 0, 0
    while data:
        try:
            block = inflater.decompress(data, BLOCK)
        except zlib.error as error:
            raise TornArchiveError(f"the gzip archive is damaged: {error}") from error
        if block:
            yield block
        unpacked += len(block)
        objects += block.count(b"{") if limit is None else 0
        _check(packed, unpacked, objects, limit)
        data = inflater.unconsumed_tail or inflater.unused_data.lstrip(b"\0")
        if not data:
            data = file.read(_PACKED_BLOCK)
            packed += len(data)
        if inflater.eof and data:
            if not data.startswith(GZIP_MAGIC[: len(data)]):
                raise TornArchiveError("something that is no gzip follows the archive")
            inflater = zlib.decompressobj(wbits=31)
    if not inflater.eof:
        raise TornArchiveError("the gzip archive is cut off")


def _check(packed: int, unpacked: int, objects: int, limit: float | None) -> None:
    most = max(RATIO * packed, FLOOR) if limit is None else limit
    if unpacked <= most and objects <= max(OBJECTS * packed, OBJECTS_FLOOR):
        return
    rule = f"{RATIO} times its size" if limit is None else f"the {limit / 1e6:g} MB that are allowed"
    what = f"unpacks to more than {rule}" if unpacked > most else f"holds more than {objects // 10**6} million objects"
    raise TornArchiveError(
        f"the gzip archive {what}; if you trust it, set {MAX_UNPACKED_MB} (or --max-unpacked-mb) "
        "to the megabytes that it may have"
    )
