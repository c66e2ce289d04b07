"""Read files that other users may have written: bounded, typed, and never through a link."""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

LARGEST: Final = 64 << 20
"""Maximum bytes of a file to read. A large window summary has 0.2 MB, a table of 10^5 collectives 15 MB."""
LARGEST_TABLE: Final = 16 << 20
"""Maximum bytes of a table from a training. 10^5 slow steps or validations fit, or three days of run-queue waits."""


class NotPlainError(OSError):
    """A link, a folder or a FIFO; for writing, also a file with a second hard link."""


def is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except (OSError, ValueError):
        return False


def check_plain(path: Path, *, writes: bool = False) -> None:
    """Raise NotPlainError for links, folders and FIFOs.

    If ``writes``, also raise the error for files with a second hard link, which another program may use.
    """
    _check(path, path.lstat(), writes=writes)


def open_plain(path: Path, flags: int = os.O_RDONLY, folder: int | None = None) -> int:
    """Open a regular file in the open ``folder``. Raise NotPlainError for other files, without blocking on a FIFO."""
    name = path if folder is None else path.name
    writes = bool(flags & (os.O_WRONLY | os.O_RDWR))
    with contextlib.suppress(FileNotFoundError):
        _check(path, os.stat(name, dir_fd=folder, follow_symlinks=False), writes=writes)
    safely = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    descriptor = os.open(name, flags | safely | getattr(os, "O_BINARY", 0), 0o666, dir_fd=folder)
    try:
        _check(path, os.fstat(descriptor), writes=writes)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: Path, most: int = LARGEST) -> bytes:
    with os.fdopen(open_plain(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise NotPlainError(f"{path} is larger than {most >> 20} MB")
        return file.read(size)  # without a size, read() would allocate memory for more


def read_table(path: Path, most: int = LARGEST_TABLE, *, from_end: bool = False) -> str:
    """Return the first or last bytes of a table as text; an empty text if the file cannot be read."""
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            if from_end:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most).decode("utf-8", "replace")
    except OSError:
        return ""


def read_json(path: Path, kind: type[T], what: str, most: int = LARGEST) -> T:
    """Read a JSON file. ``what`` describes the file in errors: ``"a description of a window"``.

    Raises FileNotFoundError, or PerfhooksError if the file is unreadable, too large, or has another type.
    """
    try:
        return msgspec.json.decode(read_bytes(path, most), type=kind)
    except FileNotFoundError:
        raise
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PerfhooksError(f"{path}: not {what} ({said(error)})") from error


class _Format(msgspec.Struct):
    format: int


def read_format(path: Path, kind: type[T], supported: int, what: str) -> T:
    check_format(path, read_json(path, _Format, what).format, supported)
    return read_json(path, kind, what)


def check_format(path: Path, number: int, supported: int) -> None:
    """Raise PerfhooksError if another version of perfhooks wrote another format."""
    if number != supported:
        why = "is from a newer perfhooks: update perfhooks" if number > supported else "is unknown"
        raise PerfhooksError(f"{path}: format {number} {why} (this version reads format {supported})")


def said(error: BaseException) -> str:
    """Return the text of an error for the end of a message."""
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text.partition("\n")[0] or type(error).__name__


def kind_of(info: os.stat_result) -> str:
    return next((name for test, name in _KINDS if test(info.st_mode)), "no file")


def _check(path: Path, info: os.stat_result, *, writes: bool) -> None:
    if not stat.S_ISREG(info.st_mode):
        raise NotPlainError(f"{path} is {kind_of(info)}, not a regular file")
    if writes and info.st_nlink > 1:
        raise NotPlainError(f"{path} has a hard link elsewhere, so it may belong to another program")


_KINDS: Final = (
    (stat.S_ISLNK, "a link, which is not followed"),
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISREG, "a file"),
)
