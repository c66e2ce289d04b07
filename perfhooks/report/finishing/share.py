"""One trace of many, reduced to what a page of all of them is made of: some tens of kilobytes."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, Final

import msgspec

import perfhooks.trace
from perfhooks.core.errors import TraceError
from perfhooks.core.version import __version__
from perfhooks.report import handlers
from perfhooks.report.page.headline import headline, summary
from perfhooks.run import loose
from perfhooks.run.capture import Capture
from perfhooks.trace.names import stages

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace import Trace

FORMAT: Final = 1
"""1: the first."""
_MADE: Final = ("steps", "collectives", "page")
"""What is made of each trace: all that ranks are compared by, and the page."""


class NoTraceError(TraceError):
    """A file of JSON that has no list of events."""


class TraceShare(msgspec.Struct, frozen=True):
    """What `share` packs."""

    format: int
    version: str
    """Of the perfhooks that made it."""
    rank: int | None
    """Of the process that recorded the trace; None where neither the trace nor its name says it."""
    capture: Capture
    """The facts of its window."""
    files: dict[str, bytes]
    """Tables and the share of the page, by their names after the rank: ``steps.csv``."""


def share(trace: str | os.PathLike[str], *, communication: str | None = None) -> bytes:
    """Reduce a trace to its share of a page: what ``perfhooks report FOLDER --on ENGINE`` runs where the traces are.

    It reads the trace and nothing else, and gives the same bytes wherever it runs: map it over the names of traces
    with whatever starts processes on many machines, and give ``perfhooks report`` the folder of what it returned.

    Args:
        trace: A Kineto trace, packed or not: a path, or a URL that fsspec opens.
        communication: Kernels that communicate, see `perfhooks.trace.read`.

    Returns:
        What a file ``*.share`` holds: `TraceShare` as MessagePack, some 60 kB for a trace of 1 MB.

    Raises:
        TraceError: It is no trace, or a broken one.
    """
    seen = loose.looked_at(os.fspath(trace))
    if seen is None:
        raise NoTraceError(f"{trace} is no trace: it has no list of traceEvents")
    read = perfhooks.trace.read(os.fspath(trace), communication=communication)
    capture = _capture(seen.rank, read)
    files = {}
    for name in _MADE:
        for artifact in handlers.build({"type": name}).artifacts(capture, read):
            written = io.BytesIO()
            artifact.write(written)
            files[artifact.name] = written.getvalue()
    return msgspec.msgpack.encode(TraceShare(FORMAT, __version__, seen.rank, capture, files), order="sorted")


def unpacked(packed: bytes, where: str) -> TraceShare:
    """What `share` packed.

    Args:
        packed: Its bytes.
        where: What they came from, for the error.

    Raises:
        TraceError: They are no share, or one of another format.
    """
    try:
        found = msgspec.msgpack.decode(packed, type=TraceShare)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise TraceError(f"{where}: no share of a trace ({error})") from error
    if found.format != FORMAT:
        made = f"a share of format {found.format}, made by perfhooks {found.version}"
        raise TraceError(f"{where}: {made}; perfhooks {__version__} reads format {FORMAT}")
    return found


def _capture(rank: int | None, trace: Trace) -> Capture:
    """The facts of a trace; a last step of any number says that no step was cut short."""
    of_rank = rank if rank is not None else trace.rank or 0
    stage = stages.shown(trace)
    table = Capture(rank=of_rank, stage=stage, last=0).tables(trace).steps
    numbers: Sequence[int] = table["step"].drop_nulls().to_list()
    first, last = min(numbers, default=0), max(numbers, default=0)
    told: dict[str, Any] = {"headline": headline(table), "summary": summary(table)}
    return Capture(rank=of_rank, stage=stage, first=first, last=last, reached=last, **told)
