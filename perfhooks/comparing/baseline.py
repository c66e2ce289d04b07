"""A baseline: what a comparison needs of a training, as a small file that can be committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.comparing import saved
from perfhooks.comparing.side import Side
from perfhooks.errors import PerfhooksError
from perfhooks.statistics import Level

if TYPE_CHECKING:
    from pathlib import Path

FORMAT: Final = 1
"""Of a baseline. 1: the first."""

_MARK: Final = b'{"perfhooks_baseline":'
_ROWS: Final = 400
"""How many rows of costs it keeps; with these it has some 50 kB."""
_PRIVATE: Final = ("host",)
"""Facts that tell more than a comparison needs."""


class _BaselineFile(msgspec.Struct, kw_only=True):
    """The layout of the file."""

    perfhooks_baseline: int
    label: str
    stage: str
    facts: dict[str, str]
    levels: list[Level]
    costs: msgspec.Raw
    windows: int
    findings: dict[str, str]
    ranks: dict[int, float]
    waited: list[float] = []


def is_baseline(path: Path) -> bool:
    """Whether a file says that it is one."""
    with path.open("rb") as file:
        return file.read(len(_MARK)) == _MARK


def encode(side: Side) -> bytes:
    """Write down what a comparison needs of a side, without paths, flame graphs and names of machines.

    Args:
        side: Any.
    """
    facts = {name: text for name, text in side.facts.items() if name not in _PRIVATE and not _is_path(text)}
    file: dict[str, Any] = {"perfhooks_baseline": FORMAT, "label": side.label, "stage": side.stage, "facts": facts}
    file |= {name: getattr(side, name) for name in ("levels", "windows", "findings", "ranks", "waited")}
    file["costs"] = msgspec.Raw(saved.encode(side.costs, most=_ROWS))
    return msgspec.json.encode(file) + b"\n"


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
    return Side(
        label=found.label,
        stage=found.stage,
        facts=found.facts,
        levels=found.levels,
        costs=saved.decode(bytes(found.costs), path),
        windows=found.windows,
        findings=found.findings,
        ranks=found.ranks,
        waited=found.waited,
    )
