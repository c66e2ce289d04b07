"""A baseline: what a comparison needs of a training, as a small file that can be committed."""

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
"""Of a baseline. 2: the mean step beside the median one; 1: the first."""
FEWEST_RUNS: Final = 5
"""With fewer runs a side a change of 5% may pass."""

_MARK: Final = "perfhooks_baseline"
_LARGEST: Final = 4 << 20
"""Bytes of a baseline: one that somebody's formatter has given a line for each number has 0.5 MB."""
_ROWS: Final = 400
"""How many rows of costs it keeps; with these it has some 50 kB."""
_PRIVATE: Final = ("host",)
"""Facts that tell more than a comparison needs."""


class _Marked(msgspec.Struct):
    """What says in which way the rest is written."""

    perfhooks_baseline: int


class _BaselineFile(BaselineFile, kw_only=True):
    """The layout of the file."""

    perfhooks_baseline: int
    costs: msgspec.Raw


def is_baseline(path: Path) -> bool:
    """Whether a file says that it is one, wherever in it: formatters indent and sort."""
    return f'"{_MARK}"' in _text(path, "replace")


def _text(path: Path, errors: str = "strict") -> str:
    """A file, as far as it is no larger than a baseline, in any of the encodings in which programs write JSON."""
    with path.open("rb") as file:
        content = file.read(_LARGEST)
    return content.decode(json.detect_encoding(content), errors)


def _whole(path: Path) -> str:
    if path.stat().st_size > _LARGEST:
        raise ValueError(f"it is larger than {_LARGEST >> 20} MB")
    return _text(path)


def encode(side: Side) -> bytes:
    """Write down what a comparison needs of a side, without paths, flame graphs and names of machines.

    Args:
        side: Any.
    """
    kept = {name: getattr(side, name) for name in BaselineFile.__struct_fields__}
    kept["facts"] = {name: text for name, text in side.facts.items() if name not in _PRIVATE and not _is_path(text)}
    costs = msgspec.Raw(saved.encode(side.costs, most=_ROWS))
    return msgspec.json.encode({_MARK: FORMAT, **kept, "costs": costs}) + b"\n"


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "\\")) or text[1:3] == ":\\"


def decode(path: Path) -> Side:
    """Read a baseline.

    Raises:
        PerfhooksError: It is none, or of a newer perfhooks.
    """
    try:
        text = _whole(path)
        written = msgspec.json.decode(text, type=_Marked).perfhooks_baseline
        if 0 < written < FORMAT:
            raise PerfhooksError(f"{path}: an older perfhooks kept no mean steps in it; keep its runs anew with --save")
        check_format(path, written, FORMAT)
        found = msgspec.json.decode(text, type=_BaselineFile)
    except (OSError, msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise PerfhooksError(f"{path}: not a baseline ({said(error)})") from error
    kept = {name: getattr(found, name) for name in BaselineFile.__struct_fields__}
    return Side(costs=saved.decode(bytes(found.costs), path), **kept)
