"""What the training's Python had where: what is needed to tell the user's code from everybody else's, elsewhere."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.frames import is_ours, is_torch
from perfhooks.process import working_directory
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names.whose import Origin, file_of, first_part

if TYPE_CHECKING:
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Installation:
    """Folders of one Python; kept in the capture, because the trace names files without them."""

    path: tuple[str, ...] = ()
    """Where it looked for modules (``sys.path``), what is installed in editable mode included."""
    sites: tuple[str, ...] = ()
    """Where its packages are installed."""
    standard: tuple[str, ...] = ()
    """Where its standard library is."""
    prefix: str = ""
    """The environment that it ran in."""
    folder: str = ""
    """The working directory."""

    @classmethod
    def current(cls) -> Installation:
        """Of this process; it asks Python, and not the disk."""
        folder = working_directory()
        paths = sysconfig.get_paths()
        sites = [*site.getsitepackages(), site.getusersitepackages(), paths["purelib"], paths["platlib"]]
        return cls(
            path=tuple(os.path.normpath(os.path.join(folder, each)) for each in sys.path if isinstance(each, str)),
            sites=tuple(dict.fromkeys(sites)),
            standard=tuple(dict.fromkeys((paths["stdlib"], paths["platstdlib"]))),
            prefix=sys.prefix,
            folder=folder,
        )

    def owners(self, trace: Trace) -> dict[str, str]:
        """Look up, on the machine that recorded, whose the files in a trace are.

        Args:
            trace: What was recorded.

        Returns:
            For the first part of each file's name (``lightning``, ``train.py``) the value of its `Origin`; what is not
            found, as on another machine, is left out. One file is looked up for each.
        """
        frames = {trace.names[name] for name in set(trace.name[trace.rows(Kind.PYTHON)].tolist())}
        files = {first: file for name in frames if (first := first_part(name)) and (file := file_of(name))}
        found = {first: self._folder_of(file) for first, file in sorted(files.items())}
        return {first: self._origin(folder).value for first, folder in found.items() if folder is not None}

    def origin_of(self, file: str) -> Origin:
        """Whose a file of this process is, by its whole path; a name in brackets is generated code."""
        if file.startswith("<"):
            return Origin.NO_SOURCE
        if is_torch(file):
            return Origin.TORCH
        if is_ours(file):
            return Origin.PERFHOOKS
        return self._origin(os.path.dirname(file))

    def named(self, file: str) -> str:
        """What the recorder calls a file of this process: without the longest folder that it can cut off."""
        tops = (top for top in (*self.path, *self.sites) if top and file.startswith(os.path.join(top, "")))
        return file[len(os.path.join(max(tops, key=len, default=""), "")) :]

    def _folder_of(self, file: str) -> str | None:
        """The folder that the recorder cut off a file's name; it cuts the longest."""
        folders = sorted({*self.path, *self.sites}, reverse=True)
        return next((folder for folder in folders if Path(folder, file).is_file()), None)

    def _origin(self, folder: str) -> Origin:
        if _below(folder, self.sites):
            return Origin.INSTALLED
        if _below(folder, self.standard) or folder.endswith(".zip"):
            return Origin.STANDARD
        return Origin.USER


def _below(folder: str, tops: tuple[str, ...]) -> bool:
    return any(Path(folder).is_relative_to(top) for top in tops)
