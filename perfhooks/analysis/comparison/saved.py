"""The file of costs, which stores each text once. Rows refer to texts by index."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from perfhooks.analysis.comparison.around import CostKey
from perfhooks.analysis.comparison.costs import (
    FORMAT,
    MOST_ROWS,
    Amount,
    Costs,
    KeyCost,
    StoredCosts,
    Text,
    merge_small,
)
from perfhooks.core.errors import PerfhooksError
from perfhooks.run.reading import check_format, said

if TYPE_CHECKING:
    from pathlib import Path

NAME: Final = "costs.json"

_ROW_LENGTH: Final = len(CostKey._fields) + len(KeyCost._fields)


_Rows = Annotated[list[list[Amount]], msgspec.Meta(max_length=2 * MOST_ROWS)]


class _CostsFile(StoredCosts, kw_only=True):
    format: int
    texts: list[Text]
    host: _Rows
    device: _Rows
    counts: _Rows


def encode(costs: Costs, *, most: int = MOST_ROWS) -> bytes:
    """Encode the ``most`` largest rows of the host and of devices. Smaller rows are merged."""
    texts: dict[str, int] = {}

    def number(text: str) -> int:
        return texts.setdefault(text, len(texts))

    def rows(costs_by_key: dict[CostKey, KeyCost]) -> list[list[int]]:
        return [[*map(number, key), *cost] for key, cost in merge_small(costs_by_key, most).items()]

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
    return content.startswith((b'{"format":1,', b'{"format":2,'))


def decode(content: bytes, source: Path) -> Costs:
    try:
        file = msgspec.json.decode(content, type=_CostsFile)
        if 0 < file.format < FORMAT:
            raise PerfhooksError(f"{source} is from an older perfhooks: create it again")
        check_format(source, file.format, FORMAT)
        fields = {name: getattr(file, name) for name in StoredCosts.__struct_fields__}
        counts = {file.texts[name]: count for name, count in file.counts}
        return Costs(
            host=_decode_rows(file, file.host), device=_decode_rows(file, file.device), counts=counts, **fields
        )
    except (msgspec.MsgspecError, IndexError, ValueError, TypeError, RecursionError) as error:
        raise PerfhooksError(f"{source}: the stored times of its steps are damaged ({said(error)})") from error


def _decode_rows(file: _CostsFile, rows: list[list[int]]) -> dict[CostKey, KeyCost]:
    width = len(CostKey._fields)
    if any(len(row) != _ROW_LENGTH for row in rows):
        raise ValueError("a row of costs is too short")
    return {CostKey(*(file.texts[index] for index in row[:width])): KeyCost(*row[width:]) for row in rows}
