from __future__ import annotations

import errno
import os
import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from perfhooks.core.clocks import time
from perfhooks.core.process import POLL_S
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import check_plain

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LONGEST_S: Final = 3600
"""Maximum age in s of a lock file or an open window. Older files are from a crashed host."""
_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of file systems without locks, such as NFS without its lock service."""


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold a lock. On file systems without locks, the existence of a file is the lock.

    Raises TimeoutError after ``timeout`` seconds, and OSError if the file is a symbolic link or has several hard links.
    """
    with suppress(FileNotFoundError):
        check_plain(path, writes=True)
    try:
        release = _lock(path, timeout) if sys.platform != "win32" else _lock_by_library("FileLock", path, timeout)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        release = _lock_without_system(path, timeout)
    try:
        yield
    finally:
        release()


def _lock(path: Path, timeout: float) -> Callable[[], object]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)

    def release() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a fork may share the descriptor and so the lock
        os.close(descriptor)

    end = time.monotonic() + timeout
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):  # some file systems raise PermissionError
                if time.monotonic() >= end:
                    raise TimeoutError(f"{path} is locked by another process") from None
                time.sleep(POLL_S)
            else:
                return release
    except BaseException:
        os.close(descriptor)
        raise


def _lock_without_system(path: Path, timeout: float) -> Callable[[], object]:
    marker = path.with_name(f"{path.name}.held")
    with suppress(OSError):
        if time.time() - marker.lstat().st_mtime > LONGEST_S:
            OwnFolder(path.parent).remove(marker.name)
    return _lock_by_library("SoftFileLock", marker, timeout)


def _lock_by_library(kind: str, path: Path, timeout: float) -> Callable[[], object]:
    import filelock

    lock: filelock.BaseFileLock = getattr(filelock, kind)(path, timeout=timeout)
    lock.acquire()
    return lock.release
