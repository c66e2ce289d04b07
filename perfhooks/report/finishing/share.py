"""Share files: a trace reduced to some tens of kilobytes."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Final

import msgspec

import perfhooks.trace
from perfhooks.core.errors import TraceError
from perfhooks.core.version import __version__
from perfhooks.report import handlers
from perfhooks.report.page.headline import described
from perfhooks.run import loose
from perfhooks.run.capture import Capture
from perfhooks.trace.names import stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace import Trace

FORMAT: Final = 1
_HANDLERS: Final = ("steps", "collectives", "page")
"""Handlers whose files the comparison of ranks and the report need."""


class NoTraceError(TraceError):
    """A JSON file that is no trace, because it has no list of events."""


class TraceShare(msgspec.Struct, frozen=True):
    format: int
    version: str
    rank: int | None
    """Rank of the trace; None if neither the trace nor its file name contains it."""
    capture: Capture
    files: dict[str, bytes]
    """Contents of the files of a window, keyed by name without the rank: ``steps.csv``."""


def share(trace: str | os.PathLike[str], *, communication: str | None = None) -> bytes:
    """Reduce a trace to the bytes of a ``*.share`` file, as ``perfhooks report FOLDER --on ENGINE`` does on many hosts.

    The result depends only on the trace. To use your own cluster, map this function over the names of traces. Write
    each result to a file ``*.share``, and run ``perfhooks report`` with the folder of these files.

    Args:
        trace: A Kineto trace, compressed or not: a path, or a URL that fsspec opens.
        communication: Kernels that communicate, see `perfhooks.trace.read`.

    Returns:
        The content of a file ``*.share``: `TraceShare` as MessagePack, some 60 kB for a trace of 1 MB.

    Raises:
        TraceError: The file is no trace, or is broken.
    """
    head = loose.looked_at(os.fspath(trace))
    if head is None:
        raise NoTraceError(f"{trace} is no trace: it has no list of traceEvents")
    read = perfhooks.trace.read(os.fspath(trace), communication=communication)
    capture = _capture(head.rank, read)
    files = {}
    for name in _HANDLERS:
        for artifact in handlers.build({"type": name}).artifacts(capture, read):
            buffer = io.BytesIO()
            artifact.write(buffer)
            files[artifact.name] = buffer.getvalue()
    return msgspec.msgpack.encode(TraceShare(FORMAT, __version__, head.rank, capture, files), order="sorted")


def unpacked(packed: bytes, where: str) -> TraceShare:
    try:
        content = msgspec.msgpack.decode(packed, type=TraceShare)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceError(f"{where}: not a .share file ({error})") from error
    if content.format != FORMAT:
        problem = f".share file of format {content.format}, written by perfhooks {content.version}"
        raise TraceError(f"{where}: {problem}; perfhooks {__version__} reads format {FORMAT}")
    return content


def _capture(rank: int | None, trace: Trace) -> Capture:
    number = rank if rank is not None else trace.rank or 0
    stage = stages.shown(trace)
    table = Capture(rank=number, stage=stage, last=0).tables(trace).steps
    numbers: Sequence[int] = table["step"].drop_nulls().to_list()
    first, last = min(numbers, default=0), max(numbers, default=0)
    return described(Capture(rank=number, stage=stage, first=first, last=last, reached=last), trace)
