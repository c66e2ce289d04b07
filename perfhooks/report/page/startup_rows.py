from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA: Final = {"phase": pl.String, "what": pl.String, "seconds": pl.Float64}
_NAME: Final = re.compile(r"rank(\d{1,9})\.startup\.csv")


def read(path: Path) -> pl.DataFrame:
    try:
        return pl.read_csv(read_bytes(path), schema_overrides=_SCHEMA).select(*_SCHEMA)
    except (OSError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=_SCHEMA)


def table(run: Path | None) -> pl.DataFrame:
    matches = {} if run is None else {path: _NAME.fullmatch(path.name) for path in run.glob("rank*.startup.csv")}
    ranks = sorted((int(match[1]), path) for path, match in matches.items() if match)
    tables = [read(path).select(pl.lit(rank, pl.Int64).alias("rank"), *_SCHEMA) for rank, path in ranks]
    return pl.concat([pl.DataFrame(schema={"rank": pl.Int64, **_SCHEMA}), *tables])
