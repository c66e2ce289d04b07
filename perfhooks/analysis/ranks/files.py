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
from perfhooks.trace.bounds import APART_NS

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

COLLECTIVES: Final[Mapping[str, pl.DataType]] = {
    **dict.fromkeys(("rank", "step", "start_ns"), pl.Int64()),
    **dict.fromkeys(("operation", "backend", "group"), pl.String()),
    "group_size": pl.Int64(),
    "dtype": pl.String(),
    "bytes": pl.Int64(),
    **dict.fromkeys(("duration_ms", "exposed_ms", "bus_gb_per_s"), pl.Float64()),
    "device": pl.Int64(),
}


class _Cost(msgspec.Struct, gc=False):
    idle_step_ms: float | None = None


class Facts(msgspec.Struct, gc=False):
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
    cost: _Cost = msgspec.field(default_factory=_Cost)

    @property
    def clock(self) -> str:
        """Identifier of the host's clock; empty without a boot id, because host names are not unique."""
        return f"{self.node} {self.boot}" if self.boot else ""


@dataclass(frozen=True)
class RankedWindow:
    name: str
    facts: dict[int, Facts]
    steps: pl.DataFrame
    collectives: pl.DataFrame
    unreadable: dict[int, str] = field(default_factory=dict)
    earlier: dict[int, float] = field(default_factory=dict)
    """Time in s from the files of a rank to the job's last attempt, for ranks without files of this attempt."""

    @property
    def clocks(self) -> dict[int, str]:
        return {rank: facts.clock for rank, facts in self.facts.items() if facts.clock}


def ranks_asked(listing: Listing) -> set[int]:
    return ranks_of_run(listing.files)


def read(folder: Path, ranks: Iterable[int]) -> RankedWindow:
    facts: dict[int, Facts] = {}
    problems: dict[int, str] = {}
    for rank in sorted(ranks):
        try:
            facts[rank] = _read_facts(folder / artifact(rank, CAPTURE))
        except PerfhooksError as error:
            problems[rank] = str(error)
    earlier = _find_earlier(facts)
    of_last = [rank for rank in facts if rank not in earlier]
    steps, collectives = (
        _read_table(folder, name, of_last, schema, problems)
        for name, schema in ((layout.STEPS, STEPS), (layout.COLLECTIVES, COLLECTIVES))
    )
    return RankedWindow(folder.name, facts, steps, collectives, problems, earlier)


def of_tables(name: str, steps: Mapping[int, pl.DataFrame], collectives: Mapping[int, pl.DataFrame]) -> RankedWindow:
    facts = {rank: Facts(state="done") for rank in sorted(steps)}
    return RankedWindow(name, facts, _stack(steps, STEPS), _stack(collectives, COLLECTIVES))


def _stack(tables: Mapping[int, pl.DataFrame], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    of_ranks = (table.with_columns(rank=pl.lit(rank, pl.Int64)) for rank, table in sorted(tables.items()))
    return pl.concat([_with_schema(table, schema) for table in of_ranks])


def _find_earlier(facts: Mapping[int, Facts]) -> dict[int, float]:
    last = max((fact.began for fact in facts.values()), default=0.0)
    on_clock: dict[str, float] = {}
    for fact in facts.values():
        on_clock[fact.clock] = max(fact.began, on_clock.get(fact.clock, 0.0))
    ages = {}
    for rank, fact in facts.items():
        is_before = fact.clock and fact.time < on_clock[fact.clock]
        if fact.time and (is_before or fact.time < last - APART_NS / 1e9):
            ages[rank] = last - fact.time
    return ages


def _read_facts(path: Path) -> Facts:
    try:
        return read_json(path, Facts, "a description of a window")
    except FileNotFoundError:
        return Facts()


def _read_table(
    folder: Path, name: str, ranks: Iterable[int], schema: Mapping[str, pl.DataType], problems: dict[int, str]
) -> pl.DataFrame:
    parts = [pl.DataFrame(schema=dict(schema))]
    texts: dict[int, bytes] = {}
    for rank in ranks:
        try:
            texts[rank] = read_bytes(folder / artifact(rank, name))
        except FileNotFoundError:
            continue
        except OSError as error:
            problems[rank] = _describe_error(error)
        if sum(map(len, texts.values())) >= 8 << 20:
            parts += _parse_tables(texts, schema, problems)
            texts.clear()
    return pl.concat([*parts, *_parse_tables(texts, schema, problems)])


def _parse_tables(
    texts: Mapping[int, bytes], schema: Mapping[str, pl.DataType], problems: dict[int, str]
) -> Iterator[pl.DataFrame]:
    by_header: dict[bytes, list[int]] = {}
    for rank, text in texts.items():
        by_header.setdefault(text.partition(b"\n")[0], []).append(rank)
    for ranks in by_header.values():
        try:
            parts = [_parse(texts, ranks)]
        except (ValueError, pl.exceptions.PolarsError):
            parts = list(_parse_singly(texts, ranks, problems))
        for part in parts:
            yield _with_schema(part, schema)


def _with_schema(table: pl.DataFrame, schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    return table.select(
        pl.col(name).cast(kind, strict=False) if name in table.columns else pl.lit(None, kind).alias(name)
        for name, kind in schema.items()
    )


def _parse_singly(texts: Mapping[int, bytes], ranks: Iterable[int], problems: dict[int, str]) -> Iterator[pl.DataFrame]:
    for rank in ranks:
        try:
            yield _parse(texts, [rank])
        except (ValueError, pl.exceptions.PolarsError) as error:
            problems[rank] = _describe_error(error)


def _parse(texts: Mapping[int, bytes], ranks: Sequence[int]) -> pl.DataFrame:
    header = texts[ranks[0]].partition(b"\n")[0]
    bodies = [texts[rank].partition(b"\n")[2].rstrip(b"\n") for rank in ranks]
    lines = [body.count(b"\n") + 1 if body else 0 for body in bodies]
    table = pl.read_csv(b"\n".join([header, *filter(None, bodies)]), infer_schema=False)
    if table.height != sum(lines):
        raise ValueError(f"rows: expected {sum(lines)}, got {table.height}")
    return table.with_columns(pl.Series("rank", np.repeat(ranks, lines), dtype=pl.Int64))


def _describe_error(error: Exception) -> str:
    return f"{type(error).__name__}: {error}".partition("\n")[0]
