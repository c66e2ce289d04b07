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
# The plugin (torch-tb-profiler 0.4.3, its last release) expects the categories of 2021. From newer traces it drops
# runtime calls, which link kernels to operators, and labels, which mark the wait for data. It counts copies of step
# marks as steps.
_CATEGORY: Final = re.compile(rb'("cat"\s*:\s*")([^"\\]*)"')
_RUNTIME: Final = re.compile(rb"\w+_(?:runtime|driver)")


@dataclass(frozen=True, kw_only=True)
class TensorBoard:
    """The trace for TensorBoard's profiler plugin, which cannot read categories of current torch versions.

    Only the categories of events change, so that the plugin finds the steps, the wait for data, and the operators of
    kernels.
    """

    folder: str | os.PathLike[str] | None = None
    """The folder of ``tensorboard --logdir``. Each stage is a run there, each rank a worker, and each window a span
    named by its first step. None writes ``rank0.tensorboard.pt.trace.json.gz`` into the folder of the window."""

    def __post_init__(self) -> None:
        if self.folder is None:
            return
        if not isinstance(self.folder, (str, Path)) or "://" in str(self.folder):
            raise OptionError(f"folder must be a local folder or None, got {self.folder!r}")
        # the worker process, which writes the files, may have another current folder
        object.__setattr__(self, "folder", str(Path(self.folder).absolute()))

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file; none if `folder` is set, because the file is then written there."""
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
    """Copy a trace as gzip, with the categories of the plugin."""
    with source.open("rb") as file, packed(target, compress=True) as archive:
        tail = b""
        for block in _readable_blocks(file):
            text = tail + block
            # end blocks at a comma: matches contain none, so no match is cut
            end = text.rfind(b",") + 1
            end = end or max(0, len(text) - 4096)
            archive.write(_CATEGORY.sub(_translate_category, text[:end]))
            tail = text[end:]
        archive.write(_CATEGORY.sub(_translate_category, tail))


def _readable_blocks(file: IO[bytes]) -> Iterator[bytes]:
    try:
        yield from blocks(file)
    except TornArchiveError as error:
        _log.warning("The trace for TensorBoard is incomplete, because its source is damaged: %s", error)


def _translate_category(match: re.Match[bytes]) -> bytes:
    category = match[2]
    if category == b"user_annotation":
        category = b"cpu_op"
    elif category == b"gpu_user_annotation":
        category = b"gpu_annotation"
    elif _RUNTIME.fullmatch(category):
        category = b"runtime"
    return match[1] + category + b'"'
