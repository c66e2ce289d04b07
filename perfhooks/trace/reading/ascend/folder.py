"""Folders of torch_npu: ``{host}_{pid}_{time}_ascend_pt/ASCEND_PROFILER_OUTPUT/trace_view.json``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import TraceError
from perfhooks.trace.reading.events import decode_object
from perfhooks.trace.reading.source import opened

if TYPE_CHECKING:
    from collections.abc import Mapping

_END: Final = "_ascend_pt"
_OUTPUT: Final = "ASCEND_PROFILER_OUTPUT"
_TRACES: Final = ("trace_view.json", "trace_view.json.gz")
_FACTS: Final = "profiler_info_*.json"
_MAX_BYTES: Final = 1 << 20
_MAX_RANKS: Final = 1_000_000


def process_of(path: str) -> str | None:
    *_, process, output, name = ["", "", *re.split(r"[/\\]", path)]
    return process or output if output == _OUTPUT and name in _TRACES else None


def traces_below(folder: Path) -> list[str]:
    """Return the traces in a folder of one or several processes, sorted."""
    processes = [folder, *(path for path in sorted(folder.iterdir()) if path.name.endswith(_END))]
    files = ([path / _OUTPUT / name for name in _TRACES] for path in processes)
    return [str(path) for paths in files for path in [*filter(Path.is_file, paths)][:1]]


def rank_of(path: str) -> int | None:
    """Return ``rank_id`` of ``profiler_info_{rank}.json`` one folder above. URLs have none."""
    ranks = set()
    try:
        for facts in Path(path).absolute().parent.parent.glob(_FACTS) if "://" not in path else ():
            if facts.is_file() and not facts.is_symlink():
                with opened(str(facts)) as file:
                    ranks.add(_rank(file.read(_MAX_BYTES)))
    except (OSError, TraceError):
        return None
    return ranks.pop() if len(ranks) == 1 else None


def _rank(text: bytes) -> int | None:
    rank = (decode_object(text) or {}).get("rank_id")
    return rank if type(rank) is int and 0 <= rank < _MAX_RANKS else None


def with_rank(metadata: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Return the metadata with the rank, as other recorders write it."""
    rank = None if "distributedInfo" in metadata else rank_of(path)
    return dict(metadata) if rank is None else {**metadata, "distributedInfo": {"rank": rank}}
