from __future__ import annotations

import codecs
import contextlib
import os
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from perfhooks.core.errors import OptionError, PerfhooksError, TraceError
from perfhooks.core.guard import cause_of
from perfhooks.core.variables import MAX_UNPACKED_MB
from perfhooks.trace.bounds import FLOOR
from perfhooks.trace.reading.packing import GZIP_MAGIC

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

BLOCK: Final = 1 << 18
"""Number of decompressed bytes in a block, which fits into the CPU cache."""

LONGEST: Final = 16 << 20
"""Maximum bytes of one event. A collective that lists 100,000 ranks has less than 1 MB."""

RATIO: Final = 100
"""Default maximum ratio of decompressed to compressed size. Recorded traces have ratios of 10 to 23."""

OBJECTS: Final = 0.5
"""Maximum objects (events, arguments) per byte of an archive. Recorded traces have 0.03 to 0.13 objects per byte."""
OBJECTS_FLOOR: Final = 1 << 20

_PACKED_BLOCK: Final = 1 << 16
"""Compressed bytes to read at once. Large blocks are slow: zlib copies the remaining block after each gzip member."""


OF_PERFETTO: Final = (
    "has Perfetto's format (.pftrace), which perfhooks does not read: export to a name that ends in .json or .json.gz, "
    "and torch writes JSON"
)


class TornArchiveError(Exception):
    """The archive is damaged, or exceeds its size limit when decompressed."""


@contextmanager
def opened(path: str) -> Iterator[IO[bytes]]:
    try:
        file = _open(path)
    except Exception as error:  # file systems of fsspec raise any exception
        why = error if isinstance(error, (OSError, PerfhooksError)) else cause_of(error)
        raise TraceError(f"cannot open the trace {path}: {why}") from error
    with file:
        yield file


def _open(path: str) -> IO[bytes]:
    if "://" not in path:
        return Path(path).open("rb")
    file: IO[bytes] = downloads().opened(path)
    return file


def downloads() -> ModuleType:
    from perfhooks.trace.reading import downloads as module

    return module


def blocks(file: IO[bytes], max_unpacked_mb: float | None = None) -> Iterator[bytes]:
    """Yield the blocks of a file, decompressed if it is gzip with any number of members.

    ``max_unpacked_mb`` (10^6 bytes) is by default the variable `MAX_UNPACKED_MB`, else `RATIO` times the size of the
    archive, but at least `FLOOR` bytes. Raises TornArchiveError after all valid blocks.
    """
    limit = _limit_bytes(max_unpacked_mb)
    start = file.read(_PACKED_BLOCK).removeprefix(codecs.BOM_UTF8)
    if start.startswith(GZIP_MAGIC):
        yield from _unpacked(start, file, limit)
        return
    while start:
        yield start
        start = file.read(BLOCK)


def _limit_bytes(max_unpacked_mb: float | None) -> float | None:
    variable = os.environ.get(MAX_UNPACKED_MB, "").strip()
    name = "max_unpacked_mb" if max_unpacked_mb is not None else MAX_UNPACKED_MB
    try:
        limit = max_unpacked_mb if max_unpacked_mb is not None else float(variable) if variable else None
        if limit is None:
            return None
        if limit > 0:
            return limit * 1e6
    except (TypeError, ValueError):
        pass
    value = variable if max_unpacked_mb is None else max_unpacked_mb
    raise OptionError(f"{name} must be a number of megabytes above 0, got {value!r}")


def _unpacked(data: bytes, file: IO[bytes], limit: float | None) -> Iterator[bytes]:
    inflater = zlib.decompressobj(wbits=31)
    packed, unpacked, objects = len(data), 0, 0
    while data:
        before = inflater.copy()
        try:
            block = inflater.decompress(data, BLOCK)
        except zlib.error as error:
            yield from _until_damage(before, data)
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
                raise TornArchiveError("the gzip archive is followed by other data")
            inflater = zlib.decompressobj(wbits=31)
    if not inflater.eof:
        raise TornArchiveError("the gzip archive is cut off")


def _until_damage(inflater: zlib._Decompress, data: bytes) -> Iterator[bytes]:
    """Yield the text before the damage. zlib drops the output of a call that fails, so each call reads one byte."""
    with contextlib.suppress(zlib.error):
        for byte in range(len(data)):
            if block := inflater.decompress(data[byte : byte + 1]):
                yield block


def _check(packed: int, unpacked: int, objects: int, limit: float | None) -> None:
    max_bytes = max(RATIO * packed, FLOOR) if limit is None else limit
    if unpacked <= max_bytes and objects <= max(OBJECTS * packed, OBJECTS_FLOOR):
        return
    rule = f"{RATIO} times its size" if limit is None else f"the limit of {limit / 1e6:g} MB"
    problem = (
        f"unpacks to more than {rule}" if unpacked > max_bytes else f"has more than {objects // 10**6} million objects"
    )
    raise TornArchiveError(
        f"the gzip archive {problem}; if you trust it, set {MAX_UNPACKED_MB} (or --max-unpacked-mb) "
        "to a larger limit in megabytes"
    )
