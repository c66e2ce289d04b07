"""Baselines: the data of a training that a comparison needs, as a small file to commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import msgspec

from perfhooks.analysis.comparison import saved
from perfhooks.analysis.comparison.side import BaselineFile, Side
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.reading import check_format, said

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 2
"""Format of a baseline. 1: first version; 2: with mean and median step."""
FEWEST_RUNS: Final = 5
"""Recommended minimum runs of a baseline. With fewer runs, a warning names the smallest detectable change."""

_MARK: Final = "perfhooks_baseline"
_MAX_BYTES: Final = 4 << 20
"""Maximum bytes to read of a baseline file, which usually has 50 kB."""
_PRIVATE_FACTS: Final = ("host",)


class _Marked(msgspec.Struct):
    perfhooks_baseline: int


class _BaselineFile(BaselineFile, kw_only=True):
    perfhooks_baseline: int
    costs: msgspec.Raw


def is_baseline(path: Path) -> bool:
    """Return whether a file contains the key `_MARK` at any position: JSON formatters may sort keys."""
    return f'"{_MARK}"' in _read_text(path, "replace")


def _read_text(path: Path, errors: str = "strict") -> str:
    with path.open("rb") as file:
        content = file.read(_MAX_BYTES)
    return content.decode(json.detect_encoding(content), errors)


def _read_checked(path: Path) -> str:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"the file is larger than {_MAX_BYTES >> 20} MB")
    return _read_text(path)


def encode(side: Side) -> bytes:
    fields = {name: getattr(side, name) for name in BaselineFile.__struct_fields__}
    fields["facts"] = {
        name: text for name, text in side.facts.items() if name not in _PRIVATE_FACTS and not _is_path(text)
    }
    costs = msgspec.Raw(saved.encode(side.costs, most=400))
    return msgspec.json.encode({_MARK: FORMAT, **fields, "costs": costs}) + b"\n"


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "\\")) or text[1:3] == ":\\"


def decode(path: Path) -> Side:
    try:
        text = _read_checked(path)
        written = msgspec.json.decode(text, type=_Marked).perfhooks_baseline
        if 0 < written < FORMAT:
            raise PerfhooksError(
                f"{path} lacks mean step times, because an older perfhooks wrote it; save its runs again with --save"
            )
        check_format(path, written, FORMAT)
        file = msgspec.json.decode(text, type=_BaselineFile)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PerfhooksError(f"{path}: not a baseline ({said(error)})") from error
    fields = {name: getattr(file, name) for name in BaselineFile.__struct_fields__}
    return Side(costs=saved.decode(bytes(file.costs), path), **fields)
