from __future__ import annotations

import gzip
import mmap
import os
import shutil
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Final

from perfhooks.core.labels import ESCAPE, unescaped_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GZIP_MAGIC: Final = b"\x1f\x8b"


def is_packed(file: IO[bytes]) -> bool:
    position = file.tell()
    start = file.read(len(GZIP_MAGIC))
    file.seek(position)
    return start == GZIP_MAGIC


def plain_size(path: Path) -> int:
    """Return the decompressed size of a trace in bytes. For gzip the size is correct up to 4 GB."""
    with path.open("rb") as file:
        if not is_packed(file):
            return path.stat().st_size
        file.seek(-4, os.SEEK_END)
        return int.from_bytes(file.read(), "little")


def copy_trace(source: Path, target: IO[bytes], *, compress: bool) -> None:
    with source.open("rb") as file:
        copy_stream(file, target, compress=compress)


def copy_stream(source: IO[bytes], target: IO[bytes], *, compress: bool) -> None:
    has_gzip = is_packed(source)
    if has_gzip == compress:
        shutil.copyfileobj(source, target)
    elif has_gzip:
        shutil.copyfileobj(gzip.GzipFile(fileobj=source), target)
    else:
        with packed(target, compress=True) as archive:
            shutil.copyfileobj(source, archive)


def copy_with_names(source: IO[bytes], target: IO[bytes], *, compress: bool) -> None:
    """Copy a trace with decoded non-ASCII names. A compressed file is copied unchanged."""
    try:
        with mmap.mmap(source.fileno(), 0, access=mmap.ACCESS_READ) as text:
            has_escapes = text.find(ESCAPE.encode()) >= 0
    except (OSError, ValueError):  # empty files, and some file systems, do not support mmap
        has_escapes = True
    if not has_escapes or is_packed(source):
        copy_stream(source, target, compress=compress)
        return
    with packed(target, compress=compress) as file:
        while lines := source.readlines(1 << 20):
            file.write(unescaped_text(b"".join(lines)))


@contextmanager
def packed(target: IO[bytes], *, compress: bool) -> Iterator[IO[bytes] | gzip.GzipFile]:
    if not compress:
        yield target
        return
    # level 9 takes eight times as long and saves up to 10%
    with gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=4, mtime=0) as archive:
        yield archive
