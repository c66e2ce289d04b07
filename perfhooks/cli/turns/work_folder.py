"""The temporary folder of a comparison: sockets, output of the programs, and git worktrees.

A lock marks a live comparison. The next comparison removes the folders of killed comparisons.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Final

_RUNNING: Final = "perfhooks-running-"
_ENDED: Final = "perfhooks-compare-"
_LOCK: Final = "lock"
_REPOSITORIES: Final = "repositories"


class WorkFolder:
    def __init__(self) -> None:
        while True:
            self.path = Path(tempfile.mkdtemp(prefix=_RUNNING))
            descriptor = _locked(self.path)
            if descriptor is not None:
                self._lock = descriptor  # released at the end of this process
                return

    def use_repository(self, common: Path) -> None:
        """Store the repository, whose worktrees are removed with the folder.

        Call this function before the first worktree is created.
        """
        with (self.path / _REPOSITORIES).open("ab") as file:
            file.write(os.fsencode(common) + b"\0")

    def keep_output(self) -> Path:
        output = Path(tempfile.mkdtemp(prefix=_ENDED))
        for log in self.path.glob("*.txt"):
            log.rename(output / log.name)
        return output

    def remove(self) -> None:
        _remove(self.path)


def remove_stale() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_RUNNING}*"):
        _remove_if_stale(folder)


def remove_stale_worktrees(common: Path) -> None:
    for entry, tree in _worktrees(common):
        for folder in tree.parents:
            if folder.name.startswith(_RUNNING) and (_owner(folder) is None or _remove_if_stale(folder)):
                shutil.rmtree(entry, ignore_errors=True)


def _remove_if_stale(folder: Path) -> bool:
    lock = _locked(folder) if _owner(folder) == os.geteuid() else None
    if lock is None:
        return False
    try:
        _remove(folder)
    finally:
        os.close(lock)
    return True


def _owner(folder: Path) -> int | None:
    try:
        info = folder.lstat()
    except FileNotFoundError:
        return None
    except OSError:
        return -1
    return info.st_uid if stat.S_ISDIR(info.st_mode) else -1


def _locked(folder: Path) -> int | None:
    with contextlib.suppress(OSError):
        descriptor = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), (folder / _LOCK).stat()):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)
    return None


def _remove(folder: Path) -> None:
    repositories = b""
    with contextlib.suppress(OSError):
        repositories = (folder / _REPOSITORIES).read_bytes()
    for common in filter(None, repositories.split(b"\0")):
        for entry, tree in _worktrees(Path(os.fsdecode(common))):
            if folder.resolve() in tree.parents:
                shutil.rmtree(entry, ignore_errors=True)
        with contextlib.suppress(OSError):
            Path(os.fsdecode(common), "worktrees").rmdir()
    shutil.rmtree(folder, ignore_errors=True)


def _worktrees(common: Path) -> list[tuple[Path, Path]]:
    worktrees = []
    for entry in (common / "worktrees").glob("*"):
        with contextlib.suppress(OSError):
            worktrees.append((entry, Path(os.fsdecode((entry / "gitdir").read_bytes().removesuffix(b"\n")))))
    return worktrees
