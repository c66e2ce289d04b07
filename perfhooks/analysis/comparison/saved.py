"""Costs as a file: every text once, rows as numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from perfhooks.analysis.comparison.around import CostKey
from perfhooks.analysis.comparison.costs import FORMAT, MOST_ROWS, Amount, Costs, KeyCost, StoredCosts, Text, shortened
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.reading import check_format, said

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "costs.json"
"""What a window's file is called, after its rank."""

_ROW: Final = len(CostKey._fields) + len(KeyCost._fields)


_MOST_ROWS: Final = 2 * MOST_ROWS
"""Of a file: what is summed because it is small has a row for each part and kind besides."""
_Rows = Annotated[list[list[Amount]], msgspec.Meta(max_length=_MOST_ROWS)]


class _CostsFile(StoredCosts, kw_only=True):
    """The layout of the file."""

    format: int
    texts: list[Text]
    host: _Rows
    device: _Rows
    counts: _Rows


def encode(costs: Costs, *, most: int = MOST_ROWS) -> bytes:
    """Write costs down.

    Args:
        costs: Any.
        most: How many of the costliest rows to keep apart, on the host and on devices each.
    """
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def rows(given: dict[CostKey, KeyCost]) -> list[list[int]]:
        return [[*map(number, where), *cost] for where, cost in shortened(given, most).items()]

    counts = sorted(costs.counts.items(), key=lambda item: -item[1])[:most]
    return msgspec.json.encode(
        {
            "format": FORMAT,
            "host": rows(costs.host),
            "device": rows(costs.device),
            "counts": [[number(name), count] for name, count in counts],
            **{name: getattr(costs, name) for name in StoredCosts.__struct_fields__},
            "texts": list(texts),
        }
    )


def is_old(content: bytes) -> bool:
    """Whether an older perfhooks wrote it, so that it tells too little."""
    return content.startswith((b'{"format":1,', b'{"format":2,'))


def decode(content: bytes, source: Path) -> Costs:
    """Read what `encode` wrote.

    Args:
        content: The file.
        source: Where it was.

    Raises:
        PerfhooksError: It is none, or of a newer perfhooks.
    """
    try:
        found = msgspec.json.decode(content, type=_CostsFile)
        if 0 < found.format < FORMAT:
            raise PerfhooksError(f"{source} is of an older perfhooks: make it anew")
        check_format(source, found.format, FORMAT)
        plain = {name: getattr(found, name) for name in StoredCosts.__struct_fields__}
        counts = {found.texts[name]: count for name, count in found.counts}
        return Costs(host=_rows(found, found.host), device=_rows(found, found.device), counts=counts, **plain)
    except (msgspec.MsgspecError, IndexError, ValueError, TypeError, RecursionError) as error:
        raise PerfhooksError(f"{source}: not the costs of a window ({said(error)})") from error


def _rows(found: _CostsFile, rows: list[list[int]]) -> dict[CostKey, KeyCost]:
    width = len(CostKey._fields)
    if any(len(row) != _ROW for row in rows):
        raise ValueError("a row is too short")
    return {CostKey(*(found.texts[each] for each in row[:width])): KeyCost(*row[width:]) for row in rows}
