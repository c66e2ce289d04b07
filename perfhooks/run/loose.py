"""Traces of other recorders in a folder, and their ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core.errors import TraceError
from perfhooks.run import remote
from perfhooks.run.layout import MERGED, MOST_RANKS, TRACES
from perfhooks.trace.reading import ascend
from perfhooks.trace.reading.events import decode_object
from perfhooks.trace.reading.source import OF_PERFETTO, TornArchiveError, blocks, opened

if TYPE_CHECKING:
    from collections.abc import Sequence

SHARE: Final = ".share"
_NAMES: Final = (".json", ".json.gz")
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[|\A(?:\xef\xbb\xbf)?\s*\[\s*\{[^\]]{0,4096}?"ph"\s*:')
"""Start of the event list in a trace file: after the key ``traceEvents``, or at the begin of a file without keys."""
_KEY_BYTES: Final = 64
"""Maximum bytes of the key ``traceEvents`` and its bracket. Read blocks overlap by this length, so that a key across
two blocks is found.
"""
_JSON: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*[\[{"\dtfn-]')
_HEAD_BYTES: Final = 4 << 20
"""Maximum bytes before the first event of a trace. Kineto writes some kilobytes there."""
# rank-0, inference_rank_3, rank34; TP-0 in SGLang
_RANK: Final = re.compile(r"(?<![a-z])(?:rank|tp)[-_.]?(\d{1,6})(?!\d)", re.IGNORECASE)


class Loose(NamedTuple):
    path: str
    rank: int | None
    """Rank of the trace; None if neither the trace nor its name contains it."""

    @property
    def name(self) -> str:
        """The name of the file, or of its folder if the recorder gives all files the same name."""
        return ascend.process_of(self.path) or self.path.rpartition("/")[2]


def candidates(folder: str | Path) -> list[str]:
    if not remote.is_url(folder) and Path(folder).is_file():
        return [str(folder)]
    found = remote.names(str(folder)) if remote.is_url(folder) else [path.name for path in Path(folder).iterdir()]
    ends = (*_NAMES, SHARE)
    names = sorted(name for name in found if name.endswith(ends) and not name.startswith(".") and name != MERGED)
    inside = _ascend_at(str(folder)) if remote.is_url(folder) else ascend.traces_below(Path(folder))
    return [*(f"{str(folder).rstrip('/')}/{name}" for name in names), *inside]


def _ascend_at(url: str) -> list[str]:
    found = [trace for pattern in ascend.PATTERNS for trace in remote.matching(url, pattern)]
    return sorted(
        trace for trace in found if trace.removesuffix(".gz") == trace or trace.removesuffix(".gz") not in found
    )


def looked_at(path: str) -> Loose | None:
    """Return a trace with the rank in its metadata, in a file beside it, or in its file name.

    Return None if the file is no trace.
    """
    head = _head(path) if remote.is_url(path) or Path(path).is_file() else None
    return None if head is None else Loose(path, _rank(head, path))


def traces(folder: Path) -> list[Loose]:
    """Return files ``*.json`` and ``*.json.gz`` that have a list of events."""
    named = (path for path in candidates(folder) if not path.endswith(SHARE))
    return [names for path in named if (names := looked_at(path)) is not None]


def lacking(folder: Path | str) -> str:
    other = None if remote.is_url(folder) else next(Path(folder).glob("*.pftrace*"), None)
    instead = f"; {other.name} {OF_PERFETTO}" if other else ""
    return f"no *.json or *.json.gz file in it has a list of traceEvents{instead}"


def windows(traces: Sequence[Loose]) -> list[list[Loose]]:
    """Group traces into windows: the first trace of each rank, the second trace of each rank, and so on.

    Each trace without a rank is a separate window.
    """
    of_rank: dict[int, list[Loose]] = {}
    for trace in traces:
        if trace.rank is not None:
            of_rank.setdefault(trace.rank, []).append(trace)
    turns = max(map(len, of_rank.values()), default=0)
    together = [[of_rank[rank][turn] for rank in sorted(of_rank) if turn < len(of_rank[rank])] for turn in range(turns)]
    return together + [[trace] for trace in traces if trace.rank is None]


def _head(path: str) -> bytes | None:
    """Return the text before the event list; None if the file is JSON without events."""
    head = bytearray()
    try:
        with opened(path) as file:
            for block in blocks(file):
                begin = max(len(head) - _KEY_BYTES, 0)
                head += block
                if match := _EVENTS.search(head, begin):
                    return bytes(head[: match.end()])
                if len(head) > _HEAD_BYTES:
                    break
    except (OSError, TornArchiveError) as error:
        raise TraceError(f"{path} cannot be read: {error}") from error
    if _JSON.match(head) is None:
        raise TraceError(f"{path} is {'no JSON' if head else 'empty'}")
    if path.endswith(TRACES):
        raise TraceError(f"{path} has no list of traceEvents")
    return None


def _rank(head: bytes, path: str) -> int | None:
    info = (decode_object(head + b"]}") or {}).get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if type(rank) is int and 0 <= rank < MOST_RANKS:
        return rank
    if ascend.process_of(path):
        rank = ascend.rank_of(path)
        return rank if rank is not None and rank < MOST_RANKS else None
    match = _RANK.search(path.rpartition("/")[2])
    return int(match[1]) if match else None
