"""What the ranks of a run wrote of a window: their small files, never a trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import polars as pl

from perfhooks.core.errors import PerfhooksError
from perfhooks.run import layout
from perfhooks.run.capture import Step
from perfhooks.run.layout import CAPTURE, artifact, ranks_of_run
from perfhooks.run.reading import read_bytes, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.layout import Listing

STEPS: Final[Mapping[str, pl.DataType]] = {
    "rank": pl.Int64(),
    "step": pl.Int64(),
    **dict.fromkeys(("wall_ms", "data_ms"), pl.Float64()),
    **dict.fromkeys(("busy_ms", "device_idle_ms", "compute_ms", "comm_ms", "exposed_comm_ms"), pl.Float64()),
    **dict.fromkeys(("ops", "kernels"), pl.Int64()),
}
"""The columns of a step table that are compared."""

COLLECTIVES: Final[Mapping[str, pl.DataType]] = {
    **dict.fromkeys(("rank", "step", "start_ns"), pl.Int64()),
    **dict.fromkeys(("operation", "backend", "group"), pl.String()),
    "group_size": pl.Int64(),
    "dtype": pl.String(),
    "bytes": pl.Int64(),
    **dict.fromkeys(("duration_ms", "exposed_ms", "bus_gb_per_s"), pl.Float64()),
    "device": pl.Int64(),
}
"""Those of a table of collectives."""

_APART_S: Final = 60.0
"""Seconds that the clocks of two machines never differ by."""

_BATCH: Final = 8 << 20
"""Maximum bytes of tables that are held as text at once."""


class Facts(msgspec.Struct, gc=False):
    """What a rank says of a window, as far as ranks are compared by it; see `perfhooks.run.capture.Capture`."""

    node: str = ""
    boot: str = ""
    stage: str = "train"
    first: Step = 0
    last: Step | None = None
    reached: Step = 0
    partial: str | None = None
    state: str = "spooled"
    notes: tuple[str, ...] = ()
    keep_windows: int | None = None
    began: float = 0.0
    time: float = 0.0

    @property
    def clock(self) -> str:
        """A name for its clock, if it said where it ran: that of the machine alone others may have, too."""
        return f"{self.node} {self.boot}" if self.boot else ""


@dataclass(frozen=True)
class RankedWindow:
    """One window of all ranks."""

    name: str
    facts: dict[int, Facts]
    """By rank; of those that left anything that can be read."""
    steps: pl.DataFrame
    collectives: pl.DataFrame
    unreadable: dict[int, str] = field(default_factory=dict)
    """Ranks of whom something cannot be read, and what."""
    earlier: dict[int, float] = field(default_factory=dict)
    """Ranks that left it of an earlier attempt of the job only, and how many seconds before; not in the tables."""

    @property
    def clocks(self) -> dict[int, str]:
        """The clock of each rank that said where it ran."""
        return {rank: facts.clock for rank, facts in self.facts.items() if facts.clock}


def began(seen: Listing) -> set[int]:
    """The ranks that left any sign of having been asked to record in the folder of a run."""
    return ranks_of_run(seen.files)


def read(folder: Path, ranks: Iterable[int]) -> RankedWindow:
    """Read one window.

    Args:
        folder: The window's.
        ranks: Those that left anything in it.
    """
    facts: dict[int, Facts] = {}
    problems: dict[int, str] = {}
    for rank in sorted(ranks):
        try:
            facts[rank] = _facts(folder / artifact(rank, CAPTURE))
        except PerfhooksError as error:
            problems[rank] = str(error)
    earlier = _earlier(facts)
    of_last = [rank for rank in facts if rank not in earlier]
    steps, collectives = (
        _table(folder, name, of_last, schema, problems)
        for name, schema in ((layout.STEPS, STEPS), (layout.COLLECTIVES, COLLECTIVES))
    )
    return RankedWindow(folder.name, facts, steps, collectives, problems, earlier)


def of_tables(name: str, steps: Mapping[int, pl.DataFrame], collectives: Mapping[int, pl.DataFrame]) -> RankedWindow:
    """Return a window whose tables are in memory.

    Args:
        name: Its name.
        steps: The step table of each rank.
        collectives: The table of `perfhooks.report.handlers.collectives.rows` of each rank.
    """
    facts = {rank: Facts(state="done") for rank in sorted(steps)}
    return RankedWindow(name, facts, _stacked(steps, STEPS), _stacked(collectives, COLLECTIVES))


def _stacked(tables: Mapping[int, pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    of_ranks = (table.with_columns(rank=pl.lit(rank, pl.Int64)) for rank, table in sorted(tables.items()))
    return pl.concat([_with_schema(table, schema) for table in of_ranks])


def _earlier(facts: Mapping[int, Facts]) -> dict[int, float]:
    """The ranks that ended a window before the processes had begun that recorded it last, and how many seconds before.

    On one clock that is certain; between machines, whose clocks may differ, it takes a minute.
    """
    last = max((fact.began for fact in facts.values()), default=0.0)
    on_clock: dict[str, float] = {}
    for fact in facts.values():
        on_clock[fact.clock] = max(fact.began, on_clock.get(fact.clock, 0.0))
    found = {}
    for rank, fact in facts.items():
        is_before = fact.clock and fact.time < on_clock[fact.clock]
        if fact.time and (is_before or fact.time < last - _APART_S):
            found[rank] = last - fact.time
    return found


def _facts(path: Path) -> Facts:
    try:
        return read_json(path, Facts, "the facts of a window")
    except FileNotFoundError:
        return Facts()  # its trace was saved, and not even that could be said


def _table(
    folder: Path, name: str, ranks: Iterable[int], schema: Mapping[str, pl.DataType], problems: dict[int, str]
) -> pl.DataFrame:
    """The rows of all ranks, one rank's below the other's."""
    parts = [pl.DataFrame(schema=dict(schema))]
    texts: dict[int, bytes] = {}
    for rank in ranks:
        try:
            texts[rank] = read_bytes(folder / artifact(rank, name))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems[rank] = _said(error)
        if sum(map(len, texts.values())) >= _BATCH:
            parts += _typed(texts, schema, problems)
            texts.clear()
    return pl.concat([*parts, *_typed(texts, schema, problems)])


def _typed(
    texts: Mapping[int, bytes], schema: Mapping[str, pl.DataType], problems: dict[int, str]
) -> Iterator[pl.DataFrame]:
    """The tables of some ranks; files of one header are read as one, which is ten times as fast."""
    alike: dict[bytes, list[int]] = {}
    for rank, text in texts.items():
        alike.setdefault(text.partition(b"\n")[0], []).append(rank)
    for ranks in alike.values():
        try:
            parts = [_parsed(texts, ranks)]
        except (ValueError, pl.exceptions.PolarsError):
            parts = list(_one_by_one(texts, ranks, problems))
        for part in parts:
            yield _with_schema(part, schema)


def _with_schema(table: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    return table.select(
        pl.col(name).cast(kind, strict=False) if name in table.columns else pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
    )


def _one_by_one(texts: Mapping[int, bytes], ranks: Iterable[int], problems: dict[int, str]) -> Iterator[pl.DataFrame]:
    for rank in ranks:
        try:
            yield _parsed(texts, [rank])
        except (ValueError, pl.exceptions.PolarsError) as error:
            problems[rank] = _said(error)


def _parsed(texts: Mapping[int, bytes], ranks: Sequence[int]) -> pl.DataFrame:
    """Rows of some ranks under one header, all of them text but the rank, which is that of the file's name.

    Raises:
        ValueError: A row is not a line.
    """
    header = texts[ranks[0]].partition(b"\n")[0]
    bodies = [texts[rank].partition(b"\n")[2].rstrip(b"\n") for rank in ranks]
    lines = [body.count(b"\n") + 1 if body else 0 for body in bodies]
    table = pl.read_csv(b"\n".join([header, *filter(None, bodies)]), infer_schema=False)
    if table.height != sum(lines):
        raise ValueError(f"{sum(lines)} lines are {table.height} rows")
    return table.with_columns(pl.Series("rank", np.repeat(ranks, lines), dtype=pl.Int64))


def _said(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
