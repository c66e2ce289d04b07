"""The trace in the words that TensorBoard's profiler plugin understands."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

from perfhooks.core.errors import OptionError
from perfhooks.report.handlers.artifact import Artifact
from perfhooks.run.publishing import file_name, publish
from perfhooks.trace.reading.packing import packed
from perfhooks.trace.reading.source import TornArchiveError, blocks

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

_log: Final = logging.getLogger("perfhooks")
_LONGEST_CATEGORY: Final = 1 << 12
"""Bytes of text that a category may be cut in two by, where no comma tells."""
# The plugin (torch-tb-profiler 0.4.3, its last release) knows the categories of 2021. Today's calls into the runtime it
# drops, with them every link from a kernel to its operator; and labels, with them the wait for data. The shadows of
# step marks on streams it takes for steps.
_CATEGORY: Final = re.compile(rb'("cat"\s*:\s*")([^"\\]*)"')
_RUNTIME: Final = re.compile(rb"\w+_(?:runtime|driver)")


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """The trace for TensorBoard's profiler plugin, which misreads what today's torch writes.

    Categories are put as the plugin knows them, so that it finds the steps, the wait for data, and the operators of
    kernels; nothing else is changed.
    """

    folder: str | os.PathLike[str] | None = None
    """Where ``tensorboard --logdir`` looks: each stage is a run there, each rank a worker, each window a span that is
    named by its first step. None puts ``rank0.tensorboard.pt.trace.json.gz`` beside the other files of the window."""

    def __post_init__(self) -> None:
        if self.folder is None:
            return
        if not isinstance(self.folder, (str, Path)) or "://" in str(self.folder):
            raise OptionError(f"folder must be a local folder or None, got {self.folder!r}")
        # the files are made by another process, and perhaps later
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file, or none beside the others."""
        write = functools.partial(translate, Path(trace.path))
        if self.folder is None:
            yield Artifact("tensorboard.pt.trace.json.gz", write)
            return
        run = Path(self.folder) / file_name(capture.stage)
        run.mkdir(parents=True, exist_ok=True)
        # the plugin sorts spans as text
        with publish(run / f"rank{capture.rank}.{capture.first:06d}.pt.trace.json.gz") as file:
            write(file)


def translate(source: Path, target: IO[bytes]) -> None:
    """Copy a saved trace as gzip, with its categories as the plugin knows them.

    Args:
        source: The saved trace: JSON, or gzip of it by its name.
        target: An open binary file.
    """
    with source.open("rb") as file, packed(target, compress=True) as archive:
        rest = b""
        for block in _whole_blocks(file):
            text = rest + block
            # what is looked for holds no comma, so no comma cuts it in two
            end = text.rfind(b",") + 1
            # a text without any is no category
            end = end or max(0, len(text) - _LONGEST_CATEGORY)
            archive.write(_CATEGORY.sub(_translated, text[:end]))
            rest = text[end:]
        archive.write(_CATEGORY.sub(_translated, rest))


def _whole_blocks(file: IO[bytes]) -> Iterator[bytes]:
    """The blocks of a trace; of an archive that is torn, those that can be unpacked."""
    try:
        yield from blocks(file)
    except TornArchiveError as error:
        _log.warning("the trace for TensorBoard is not whole: %s", error)


def _translated(match: re.Match[bytes]) -> bytes:
    category = match[2]
    if category == b"user_annotation":
        category = b"cpu_op"
    elif category == b"gpu_user_annotation":
        category = b"gpu_annotation"
    elif _RUNTIME.fullmatch(category):
        category = b"runtime"
    return match[1] + category + b'"'
