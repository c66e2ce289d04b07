"""The trace itself, for Perfetto, chrome://tracing, the TensorBoard profiler plugin and HTA."""

from __future__ import annotations

import functools
import gzip
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from perfhooks.errors import OptionError
from perfhooks.handlers.artifact import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

_CHUNK = 1 << 20
LEVEL = 4
"""Of gzip: on traces it writes within a tenth of level 9's size in an eighth of its time."""


@dataclass(frozen=True, kw_only=True)
class ChromeTrace:
    """The recorder's own JSON, unchanged: ``rank0.pt.trace.json.gz``."""

    compress: bool = True
    """Write ``.json.gz``, which every viewer opens, rather than ``.json``, some fifteen times as large."""

    def __post_init__(self) -> None:
        if not isinstance(self.compress, bool):
            raise OptionError(f"compress must be true or false, got {self.compress!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:  # noqa: ARG002 -- the form of a handler
        """One file with the whole trace."""
        name = "pt.trace.json.gz" if self.compress else "pt.trace.json"
        yield Artifact(name, functools.partial(copy_trace, Path(trace.path), compress=self.compress))


def copy_trace(source: Path, target: IO[bytes], *, compress: bool) -> None:
    """Copy a saved trace, plain or compressed, into an open file, in chunks.

    Args:
        source: The saved trace: JSON, or gzip of it by its name.
        target: An open binary file.
        compress: Whether the copy is to be gzip.
    """
    with source.open("rb") as file:
        copy_stream(gzip.GzipFile(fileobj=file) if source.name.endswith(".gz") else file, target, compress=compress)


def copy_stream(plain: IO[bytes] | gzip.GzipFile, target: IO[bytes], *, compress: bool) -> None:
    """Copy an open file into another, in chunks, compressed on request."""
    if not compress:
        shutil.copyfileobj(plain, target, _CHUNK)
        return
    with gzip.GzipFile(filename="", mode="wb", fileobj=target, compresslevel=LEVEL, mtime=0) as packed:
        shutil.copyfileobj(plain, packed, _CHUNK)
