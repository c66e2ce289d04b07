"""A baseline: what a comparison needs of a training, as a small file that can be committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from perfhooks.comparing import saved
from perfhooks.comparing.side import Kept, Side
from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
"""Of a baseline. 1: the first."""

_MARK: Final = b'{"perfhooks_baseline":'
_ROWS: Final = 400
"""How many rows of costs it keeps; with these it has some 50 kB."""
_PRIVATE: Final = ("host",)
"""Facts that tell more than a comparison needs."""


class _BaselineFile(Kept, kw_only=True):
    """The layout of the file."""

    perfhooks_baseline: int
    costs: msgspec.Raw


def is_baseline(path: Path) -> bool:
    """Whether a file says that it is one."""
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


def encode(side: Side) -> bytes:
    """Write down what a comparison needs of a side, without paths, flame graphs and names of machines.

    Args:
        side: Any.
    """
    kept = {name: getattr(side, name) for name in Kept.__struct_fields__}
    kept["facts"] = {name: text for name, text in side.facts.items() if name not in _PRIVATE and not _is_path(text)}
    costs = msgspec.Raw(saved.encode(side.costs, most=_ROWS))
    return msgspec.json.encode({"perfhooks_baseline": FORMAT, **kept, "costs": costs}) + b"\n"


def _is_path(text: str) -> bool:
    return text.startswith(("/", "~", "\\")) or text[1:3] == ":\\"


def decode(path: Path) -> Side:
    """Read a baseline.

    Raises:
        PerfhooksError: It is none, or of a newer perfhooks.
    """
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_BaselineFile)
    except (OSError, msgspec.MsgspecError) as error:
        raise PerfhooksError(f"{path}: not a baseline ({error})") from error
    if found.perfhooks_baseline > FORMAT:
        raise PerfhooksError(f"{path}: format {found.perfhooks_baseline} is newer than this perfhooks knows")
    kept = {name: getattr(found, name) for name in Kept.__struct_fields__}
    return Side(costs=saved.decode(bytes(found.costs), path), **kept)
