"""Folders of torch_npu: ``{host}_{pid}_{time}_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json``."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import TraceError
from perfhooks.trace.bounds import MAX_ID
from perfhooks.trace.reading.events import decode_object
from perfhooks.trace.reading.source import downloads, opened

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_END: Final = "_ascend_pt"
_OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
_TRACES: Final = ("trace_view.json", "trace_view.json.gz")
_FACTS: Final = "profiler_info_*.json"
PATTERNS: Final = tuple(f"{above}{_OUTPUT}/{name}" for above in ("", f"*{_END}/") for name in _TRACES)


def process_of(path: str) -> str | None:
    *_, process, output, name = ["", "", *re.split(r"[/\\]", path)]
    return process or output if output == _OUTPUT and name in _TRACES else None


def traces_below(folder: Path) -> list[str]:
    """Return the traces in a folder of one or several processes, sorted."""
    processes = [folder, *(path for path in sorted(folder.iterdir()) if path.name.endswith(_END))]
    files = ([path / _OUTPUT / name for name in _TRACES] for path in processes)
    return [str(path) for paths in files for path in [*filter(Path.is_file, paths)][:1]]


def is_part(name: str) -> bool | None:
    """Return whether a file is the trace of a process or contains its rank; None outside of process folders."""
    process, slash, inside = name.partition(f"{_END}/")
    if not slash or "/" in process:
        return None
    return fnmatch(inside, _FACTS) or inside in [f"{_OUTPUT}/{trace}" for trace in _TRACES]


def base_of(url: str) -> str:
    """Return the process folder around a trace or the folder of a trace; return other URLs unchanged."""
    above, _, name = url.rstrip("/").rpartition("/")
    return above.rpartition("/")[0] if process_of(url) else above if name == _OUTPUT else url


def rank_of(path: str) -> int | None:
    """Return ``rank_id`` of ``profiler_info_{rank}.json`` one folder above."""
    try:
        ranks = {_rank(text) for text in (_facts_at(path) if "://" in path else _facts_beside(path))}
    except (OSError, TraceError):
        return None
    return ranks.pop() if len(ranks) == 1 else None


def _facts_beside(path: str) -> Iterator[bytes]:
    for facts in Path(path).absolute().parent.parent.glob(_FACTS):
        if facts.is_file() and not facts.is_symlink():
            with opened(str(facts)) as file:
                yield file.read(1 << 20)


def _facts_at(url: str) -> Iterator[bytes]:
    if process_of(url) is None:
        return
    try:
        system, folder = downloads().located(base_of(url))
        found = [system.unstrip_protocol(path) for path in system.glob(f"{folder}/{_FACTS}")]
    except Exception as error:  # file systems of fsspec raise any exception
        raise TraceError(f"cannot list {base_of(url)}: {error}") from error
    for facts in found:
        with opened(facts) as file:
            yield file.read(1 << 20)


def _rank(text: bytes) -> int | None:
    rank = (decode_object(text) or {}).get("rank_id")
    return rank if type(rank) is int and 0 <= rank < MAX_ID else None


def with_rank(metadata: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the metadata with the rank, as other recorders write it."""
    rank = None if "distributedInfo" in metadata else rank_of(path)
    return dict(metadata) if rank is None else {**metadata, "distributedInfo": {"rank": rank}}
