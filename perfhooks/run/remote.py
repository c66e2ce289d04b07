"""Runs at URLs that fsspec opens."""

from __future__ import annotations

import contextlib
import getpass
import hashlib
import os
import re
import secrets
import stat
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.guard import cause_of
from perfhooks.core.words import line
from perfhooks.run.publishing import draft_of
from perfhooks.run.reading import is_plain
from perfhooks.trace.reading.source import downloads

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def is_url(out: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(out)


def local_folder(url: str | os.PathLike[str]) -> Path:
    """Return the local folder in which runs are finished before they are copied to ``url``."""
    return temporary_folder() / hashlib.sha256(os.fsencode(url)).hexdigest()[:12]


def temporary_folder() -> Path:
    """Return the folder of this user for unfinished windows and copies.

    Raises PerfhooksError if another user could change the content of the folder.
    """
    folder = Path(tempfile.gettempdir()) / f"perfhooks-{_user()}"
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or (hasattr(os, "getuid") and info.st_uid != os.getuid()):
        raise PerfhooksError(f"{folder} belongs to another user: set TMPDIR to a folder of your own")
    return folder


_MOUNTS = Path("/proc/self/mounts")
_OCTAL = re.compile(rb"\\(\d{3})")
"""Pattern of an escaped space, tab, line break or backslash in ``/proc/self/mounts``."""
_NETWORK_DISKS = ("nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "afs", "9p")


def is_network_disk(folder: Path) -> bool:
    """Return whether a folder is on a disk of another host. Disks of unknown types count as local."""
    holding = [(len(mount), kind) for mount, kind in _disks() if folder.is_relative_to(mount)]
    kind = max(holding, default=(0, ""))[1]
    return kind in _NETWORK_DISKS or kind.startswith("fuse.")


def _disks() -> list[tuple[str, str]]:
    if sys.platform == "linux":
        try:
            rows = [line.split() for line in _MOUNTS.read_bytes().splitlines()]
        except OSError:
            return []
        return [(os.fsdecode(_OCTAL.sub(_unescape, row[1])), os.fsdecode(row[2])) for row in rows]
    import psutil

    try:
        return [(disk.mountpoint, disk.fstype) for disk in psutil.disk_partitions(all=True)]
    except (psutil.Error, OSError):
        return []


def _unescape(octal: re.Match[bytes]) -> bytes:
    return bytes([int(octal[1], 8)])


def check(url: str) -> None:
    """Write and delete a temporary file in a folder. Raise the error of fsspec if the folder is not writable."""
    temporary_folder()
    system, path = downloads().located(url)
    system.makedirs(path, exist_ok=True)
    probe = f"{path}/.probe.{secrets.token_hex(6)}"
    system.pipe_file(probe, b"")
    system.rm_file(probe)


def in_this_process(url: str | os.PathLike[str]) -> bool:
    """Return whether the URL is an in-memory file system, which a child process does not share."""
    return os.fspath(url).startswith("memory://")


def copy(folder: Path, names: Iterable[str], url: str) -> None:
    system, path = downloads().located(url)
    system.makedirs(path, exist_ok=True)
    for name in names:
        if is_plain(folder / name):
            system.put_file(str(folder / name), f"{path}/{name}")


@contextlib.contextmanager
def reaching(url: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system and the path of a URL. Errors of fsspec become PerfhooksError."""
    try:
        yield downloads().located(url)
    except PerfhooksError:
        raise
    except Exception as error:  # file systems of fsspec have no common base of their exceptions
        cause = error.__cause__ or error  # fsspec raises FileNotFoundError for any error of HTTP
        if isinstance(cause, PerfhooksError):
            raise cause from error
        raise PerfhooksError(f"{url} cannot be read: {line(cause_of(cause))}") from error


def names(url: str) -> list[str]:
    with reaching(url) as (system, path):
        entries = system.ls(path, detail=True)
    return [entry["name"].rpartition("/")[2] for entry in entries if entry.get("type") == "file"]


def matching(url: str, pattern: str) -> list[str]:
    with reaching(url) as (system, path):
        return sorted(map(system.unstrip_protocol, system.glob(f"{path.rstrip('/')}/{pattern}")))


def content(url: str) -> bytes:
    file: IO[bytes]
    with reaching(url), downloads().opened(url) as file:
        return file.read()


def delete(run: str | None, window: str, names: Iterable[str]) -> None:
    if run is None:
        return
    system, path = downloads().located(f"{run}/{window}")
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            system.rm_file(f"{path}/{name}")


def _user() -> str:
    """Return the user ID, because a container may have no user names; on Windows, the user name."""
    return str(os.getuid()) if hasattr(os, "getuid") else getpass.getuser()


def check_out(out: str | os.PathLike[str]) -> None:
    """Raise OptionError if ``out`` is not writable, before the training starts."""
    try:
        (check if is_url(out) else _check_folder)(os.fspath(out))
    except Exception as error:
        why = "it is a file" if isinstance(error, FileExistsError) else getattr(error, "strerror", None) or error
        raise OptionError(f"out must be a writable folder, got {os.fspath(out)!r} ({why})") from error


def _check_folder(out: str) -> None:
    folder = Path(out).absolute()
    check_text(folder)
    if os.path.lexists(folder) and not folder.is_dir():
        raise FileExistsError
    # delete only the probe file, because other ranks check the folder at the same time
    there = next(path for path in (folder, *folder.parents) if path.exists())
    probe = draft_of(there / "probe")
    probe.touch()
    probe.unlink()


def check_text(path: Path) -> None:
    """Raise ValueError if the recorder cannot save to this path."""
    if any(ord(mark) < ord(" ") for mark in str(path)):
        raise ValueError("the recorder cannot save under a name with a line break or another control character")
