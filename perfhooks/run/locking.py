"""One process at a time, on file systems with locks and without."""

from __future__ import annotations

import errno
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from filelock import FileLock, SoftFileLock

from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import check_plain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_NO_LOCKS: Final = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What a file system without locks answers, such as NFS without its lock service."""
_LONGEST_S: Final = 3600
"""Nothing that is done under a lock takes an hour: a file that has stood for one so long was left by a machine that
died. Of a process of this machine filelock itself sees that it is gone."""


@contextmanager
def locked(path: Path, timeout: float) -> Iterator[None]:
    """Hold a lock. Where the file system has none, a file that is there only while it is held takes its place.

    Args:
        path: The lock's file.
        timeout: How long to wait for another process, in seconds.

    Raises:
        TimeoutError: Another process held it for so long.
        OSError: The file cannot be made, or is a link, a hard one included: that may lead to a file of somebody else.
    """
    with suppress(FileNotFoundError):
        check_plain(path, writes=True)
    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        held = path.with_name(f"{path.name}.held")
        with suppress(OSError):
            if time.time() - held.lstat().st_mtime > _LONGEST_S:
                OwnFolder(path.parent).remove(held.name)
        lock = SoftFileLock(held, timeout=timeout)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
