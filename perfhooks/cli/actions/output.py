"""Output of tables in pieces, because the text of a whole table may not fit into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.core.errors import PerfhooksError
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import polars as pl

_ROWS: Final = 500


def write(path: Path, content: bytes) -> None:
    """Write a file completely or not at all."""
    if path.is_dir():
        raise PerfhooksError(f"{path} cannot be written: it is a folder")
    try:
        with publish(path) as file:
            file.write(content)
    except OSError as error:
        raise PerfhooksError(f"{path} cannot be written: {error.strerror}") from error


def csv(table: pl.DataFrame) -> Iterator[str]:
    yield table.head(0).write_csv()
    for piece in table.iter_slices(_ROWS):
        yield piece.write_csv(include_header=False, float_precision=6)


def csv_of_three_digits(table: pl.DataFrame) -> str:
    rounded = [column.round_sig_figs(3) for column in table if column.dtype.is_float()]
    return table.with_columns(rounded).write_csv()


def json(table: pl.DataFrame) -> Iterator[str]:
    yield "["
    for number, piece in enumerate(table.iter_slices(_ROWS)):
        text = piece.write_json().strip()[1:-1]
        yield f",{text}" if number and text else text
    yield "]"


def json_object(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    yield "{"
    for number, (name, table) in enumerate(tables.items()):
        separator = ",\n " if number else ""
        yield f'{separator}"{name}": '
        yield from json(table)
    yield "}"
