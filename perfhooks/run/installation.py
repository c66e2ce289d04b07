"""Folders of the training's Python, to recognize the user's code on other hosts."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import site
import sys
import sysconfig
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from perfhooks.core.frames import display_path, is_ours, is_torch
from perfhooks.core.process import working_directory
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.origins import KNOWN, Origin, file_of, first_part, origin

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import CodeType, FrameType

    from perfhooks.trace import Trace

Line = tuple["CodeType", int]
_PACKAGE_FOLDERS: Final = frozenset(("site-packages", "dist-packages"))
"""Names of the folders into which pip and Debian install packages."""


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Folders of one Python installation, which traces omit from file names."""

    path: tuple[str, ...] = ()
    """Entries of ``sys.path``, and folders of editable installations."""
    sites: tuple[str, ...] = ()
    standard: tuple[str, ...] = ()
    prefix: str = ""
    folder: str = ""

    @classmethod
    def current(cls) -> Installation:
        """Return the installation of this process, without disk access."""
        folder = working_directory()
        paths = sysconfig.get_paths()
        sites = [*site.getsitepackages(), site.getusersitepackages(), paths["purelib"], paths["platlib"]]
        return cls(
            path=tuple(os.path.normpath(os.path.join(folder, entry)) for entry in sys.path if isinstance(entry, str)),
            sites=tuple(dict.fromkeys(sites)),
            standard=tuple(dict.fromkeys((paths["stdlib"], paths["platstdlib"]))),
            prefix=sys.prefix,
            folder=folder,
        )

    def owners(self, trace: Trace) -> dict[str, str]:
        """Map traced files to their `Origin`. A key is the `first_part` of a relative name, or an absolute name.

        Call the function on the recording host.
        """
        frames = {trace.names[name] for name in set(trace.name[trace.rows(Kind.PYTHON)].tolist())}
        files = {first_part(name) or file: file for name in frames if (file := file_of(name))}
        paths = {part: path for part, file in sorted(files.items()) if (path := self._path_of(file))}
        origins = {part: _origin(self, path) for part, path in paths.items()}
        # only an absolute name shows its origin if libraries run from their sources
        return {
            part: owner.value
            for part, owner in origins.items()
            if not os.path.isabs(part) or owner is not origin(f"{part}(1): f")
        }

    def origin_of(self, file: str) -> Origin:
        """Return the origin of a file: the user, an installed package, torch, and so on.

        A name in angle brackets is generated code.
        """
        if file.startswith("<"):
            return Origin.NO_SOURCE
        if is_torch(file):
            return Origin.TORCH
        if is_ours(file):
            return Origin.PERFHOOKS
        return _origin(self, file)

    def named(self, file: str) -> str:
        """Return the recorder's name of a file: its path without the longest matching folder."""
        return file.removeprefix(os.path.join(self.top_of(file), ""))

    def top_of(self, file: str) -> str:
        tops = (top for top in (*self.path, *self.sites) if top and file.startswith(os.path.join(top, "")))
        return max(tops, key=len, default="")

    def _path_of(self, file: str) -> str | None:
        folders = ("",) if os.path.isabs(file) else sorted({*self.path, *self.sites}, reverse=True)
        return next((path for folder in folders if os.path.isfile(path := os.path.join(folder, file))), None)


@lru_cache(4096)
def _origin(installation: Installation, path: str) -> Origin:
    """Classify a file by the folder around its package.

    Environments may be stacked, for example by ``--system-site-packages`` or ``PYTHONPATH``, so a library may be
    outside of the environment of this process.
    """
    folders = Path(path).parts[:-1]
    if _below(path, installation.sites) or not _PACKAGE_FOLDERS.isdisjoint(folders):
        return Origin.INSTALLED
    if _below(path, installation.standard) or any(folder.endswith(".zip") for folder in folders):
        return Origin.STANDARD
    top = installation.top_of(path) or _around_package(path)
    part = path.removeprefix(os.path.join(top, "")).partition(os.sep)[0]
    # a library from its sources belongs to the user only if the training runs in or from its folder
    projects = (installation.folder, *installation.path[:1])
    is_library = part in KNOWN and not any(_below(top, (entry,)) or _below(entry, (top,)) for entry in projects)
    return Origin.INSTALLED if is_library or part in _targeted(top) else Origin.USER


def _around_package(path: str) -> str:
    parents = [str(folder) for folder in Path(path).parents]
    return next((folder for folder in parents if not os.path.isfile(os.path.join(folder, "__init__.py"))), "")


@lru_cache(64)
def _targeted(folder: str) -> frozenset[str]:
    parts: set[str] = set()
    with contextlib.suppress(OSError, ValueError):
        for path in filter(Path.is_file, Path(folder).glob("*.dist-info/RECORD")):
            record = path.read_text(encoding="utf-8", errors="replace")
            parts.update(re.findall(r"^[^/,\n]+", record, re.MULTILINE))
    return frozenset(parts)


def _below(path: str, tops: tuple[str, ...]) -> bool:
    return any(top and Path(path).is_relative_to(top) for top in tops)


def lines_here() -> list[Line]:
    """Return the 100 innermost lines of the calling stack, without a read of the file system."""
    return [(frame.f_code, frame.f_lineno) for frame in itertools.islice(_outwards(sys._getframe(1)), 100)]


def line_of_user(lines: Iterable[Line]) -> str:
    """Return the innermost line of the program, ``evaluate (train.py:20)``."""
    for code, number in lines:
        if _is_of_user(code.co_filename):
            return f"{code.co_name} ({display_path(code.co_filename)}:{number})"
    return ""


def lines_of_user(count: int, frame: FrameType | None = None) -> list[tuple[str, int]]:
    frames = itertools.islice(_frames_of_user(frame or sys._getframe(1)), count)
    folder = working_directory()
    return [(os.path.normpath(os.path.join(folder, frame.f_code.co_filename)), frame.f_lineno) for frame in frames]


def _frames_of_user(frame: FrameType | None) -> Iterator[FrameType]:
    return (frame for frame in _outwards(frame) if _is_of_user(frame.f_code.co_filename))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


@cache
def _is_of_user(file: str) -> bool:
    return _installation().origin_of(file) is Origin.USER


@cache
def _installation() -> Installation:
    return Installation.current()
