"""Write into a run folder: a file gets its name when it is complete, and no link is followed.

Other users may place links in the folder at any time, so each file and folder in the run is opened relative to the open
parent folder:

    perf/latest          may be a link: the user has named it
      train-000012-14    opened from it, and no link
        rank0.steps.csv  created, replaced and deleted in the open folder
"""

from __future__ import annotations

import contextlib
import csv
import io
import os
import re
import secrets
import stat
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.clocks import time
from perfhooks.core.process import working_directory
from perfhooks.run.reading import NotPlainError, kind_of, open_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_OPENS_RELATIVE: Final = {os.open, os.mkdir, os.rmdir, os.unlink, os.rename, os.stat} <= os.supports_dir_fd
"""Whether the system opens names relative to an open folder. If not (Windows), folders are checked for links."""
_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0)
_DESCRIPTORS: Final = Path("/proc/self/fd")

SILENT_S: Final = 600.0
"""Time in s without a sign of life after which another process counts as dead. Slow network disks take minutes, and
NCCL's collectives time out after ten minutes, too.
"""


class _Opened:
    """An open folder, on Windows without ``descriptor``."""

    def __init__(self, path: Path, descriptor: int | None) -> None:
        self.path, self.descriptor = path, descriptor
        self._given: set[str] = set()

    def __call__(self, name: str) -> str:
        if self.descriptor is None:
            return str(self.path / name)
        self._given.add(name)
        return name

    def name_whole(self, error: OSError) -> None:
        if error.filename in self._given:
            error.filename = str(self.path / error.filename)


class OwnFolder:
    """The folder of a run, which may be a link, or a subfolder, which must not be a link.

    Each method raises an ``OSError`` if a subfolder is a link, a file or a FIFO.
    """

    def __init__(self, run: Path, *names: str) -> None:
        self._run, self._names = run, names
        self.path = run.joinpath(*names)

    def make(self) -> None:
        self._run.mkdir(parents=True, exist_ok=True)
        with self.opened(make=True):
            pass

    def make_for_owner(self) -> None:
        """Create the folder. If root creates the folder, it belongs to the owner of the run."""
        with contextlib.suppress(FileNotFoundError), self.opened():
            return
        self.make()
        with self.opened() as here:
            _give(here, self._run.stat())

    @contextmanager
    def publish(self, name: str) -> Iterator[IO[bytes]]:
        """Open a new file. The file gets its final name when it is complete, and is deleted on errors."""
        draft = draft_of(Path(name)).name
        with self.opened() as here:
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK | getattr(os, "O_BINARY", 0)
                with os.fdopen(os.open(here(draft), flags, 0o666, dir_fd=here.descriptor), "wb") as file:
                    yield file
                os.replace(here(draft), here(name), src_dir_fd=here.descriptor, dst_dir_fd=here.descriptor)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    os.unlink(here(draft), dir_fd=here.descriptor)
                if isinstance(error, OSError) and error.filename == here(draft):
                    error.filename = here(name)
                raise

    def publish_json(self, name: str, data: object) -> None:
        with self.publish(name) as file:
            file.write(msgspec.json.format(encoded(data), indent=1))

    def append(self, name: str) -> IO[bytes]:
        with self.opened() as here:
            flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
            return os.fdopen(open_plain(here.path / here(name), flags, here.descriptor), "rb+")

    def append_rows(self, name: str, header: Sequence[str], rows: Iterable[Iterable[object]]) -> None:
        with self.append(name) as file:
            is_new = not file.seek(0, os.SEEK_END)
            file.write(csv_bytes([header, *rows] if is_new else rows))

    def remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError), self.opened() as here:
            os.unlink(here(name), dir_fd=here.descriptor)

    def delete(self) -> None:
        *outer, name = self._names
        with OwnFolder(self._run, *outer).opened() as here:
            os.rmdir(here(name), dir_fd=here.descriptor)

    @contextmanager
    def lent(self) -> Iterator[Path]:
        """Yield a path to the folder, in which libraries such as Kineto can write.

        On Linux the path uses the descriptor of the open folder.
        """
        with self.opened() as here:
            path = _DESCRIPTORS / str(here.descriptor)
            yield path if path.is_dir() else self.path

    @contextmanager
    def opened(self, *, make: bool = False) -> Iterator[_Opened]:
        """Open the folder. A later rename of the folder has no effect."""
        here = _Opened(self._run, os.open(self._run, _FOLDER) if _OPENS_RELATIVE else None)
        try:
            for name in self._names:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(here(name), dir_fd=here.descriptor)
                inner = _Opened(here.path / name, _opened_below(here, name))
                outer, here = here, inner
                _close(outer)
            yield here
        except OSError as error:
            here.name_whole(error)
            raise
        finally:
            _close(here)


def _opened_below(here: _Opened, name: str) -> int | None:
    info = os.stat(here(name), dir_fd=here.descriptor, follow_symlinks=False)
    # Windows junctions have the mode of a folder
    is_junction = getattr(info, "st_file_attributes", 0) & getattr(stat, "FILE_ATTRIBUTE_REPARSE_POINT", 0)
    if is_junction or not stat.S_ISDIR(info.st_mode):
        raise NotPlainError(f"{here.path / name} is {kind_of(info)}, not a folder")
    return None if here.descriptor is None else os.open(here(name), _FOLDER | _NO_LINK, dir_fd=here.descriptor)


def _give(here: _Opened, owner: os.stat_result) -> None:
    """Change the owner of the folder, unless it has content.

    Another user may have put a folder with content there.
    """
    if here.descriptor is None or os.geteuid() != 0 or owner.st_uid == 0:
        return
    folder = os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=here.descriptor)
    try:
        with contextlib.suppress(OSError), os.scandir(folder) as entries:  # some network disks have no owners
            if next(entries, None) is None:
                os.fchown(folder, owner.st_uid, owner.st_gid)
    finally:
        os.close(folder)


def _close(here: _Opened) -> None:
    if here.descriptor is not None:
        os.close(here.descriptor)


def csv_bytes(rows: Iterable[Iterable[object]]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode("utf-8", "replace")


def publish(path: Path) -> contextlib.AbstractContextManager[IO[bytes]]:
    """Write a complete file into a folder of the user, which may be a link."""
    return OwnFolder(path.parent).publish(path.name)


def publish_json(path: Path, data: object) -> None:
    OwnFolder(path.parent).publish_json(path.name, data)


def draft_of(path: Path) -> Path:
    """Return a unique name for an unfinished file: nodes may have equal host names and process numbers."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def drafts(folder: Path) -> Iterator[Path]:
    for draft in folder.rglob(".*.tmp"):
        if _DRAFT.fullmatch(draft.name) and draft.lstat().st_mtime < time.time() - SILENT_S:
            yield draft


_DRAFT: Final = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


def encoded(data: object) -> bytes:
    """Encode as JSON. Surrogates of paths that are not UTF-8 are written as their bytes."""
    try:
        return msgspec.json.encode(data, order="sorted")
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(data)), order="sorted")


def _writable(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_writable(key): _writable(value) for key, value in data.items()}
    return [_writable(value) for value in data] if isinstance(data, list | tuple) else data


def is_whole_json(path: Path) -> bool:
    """Return whether a JSON object is complete: Kineto reports no error if the disk is full."""
    try:
        with path.open("rb") as file:
            if file.read(2) == b"\x1f\x8b":
                return True
            file.seek(max(path.stat().st_size - 100, 0))
            return file.read().rstrip().endswith(b"}")
    except OSError:
        return False


def is_newer(path: Path, other: Path) -> bool:
    try:
        return path.stat().st_mtime_ns >= other.stat().st_mtime_ns
    except FileNotFoundError:
        return False


def shown(path: Path) -> Path:
    """Return a path for messages: relative to the working directory if inside it."""
    here = working_directory()
    return path.relative_to(here) if here and path.is_relative_to(here) else path


def file_name(text: str) -> str:
    # With steps, rank and draft, a name stays below the 255 bytes of file systems.
    name = re.sub(r"[^\w.-]+", "-", text).encode("utf-8", "replace")[:120].decode("utf-8", "ignore")
    return name.strip(".-") or "run"
