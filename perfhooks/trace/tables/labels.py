from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.core.labels import AUTOMATIC, PARTS, STEP_MARK
from perfhooks.trace.names import communication, ranges
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import operators

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace


_BEGINNINGS: Final = (
    STEP_MARK[:-1],
    ranges.UPDATE,
    ranges.ZERO_GRAD,
    ranges.LOADER,
    ranges.LIGHTNING,
    *ranges.WRAPPERS,
)
_WORDS: Final = re.compile(
    f"{ranges.COMPILED}|{ranges.COMPILING}|{ranges.CAPTURING}|{ranges.LIGHTNING_HOOKS}|^{communication.LABEL.pattern}"
)
_PARTS: Final = frozenset((*PARTS, *AUTOMATIC.values()))


def table(trace: Trace) -> pl.DataFrame:
    """Return the cost of each label, sorted by ``own`` (labels of the user first) and by descending time.

    ``own`` is false for labels of torch and frameworks, and for `perfhooks.core.labels.PARTS`. ``percent`` is relative
    to the recorded time. Percentages may sum to more than 100, because nested and parallel labels count in full.
    """
    return of_operators(trace, operators.table(trace))


def of_operators(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    rows = rows.filter(pl.col("kind") == "annotation")
    total, recorded = pl.col("cpu_ms"), operators.recorded(trace) * MS
    return rows.select(
        "name",
        pl.Series("own", map(_is_own, rows["name"]), dtype=pl.Boolean),
        pl.col("count").alias("calls"),
        total.alias("total_ms"),
        (total / pl.col("count")).alias("mean_ms"),
        pl.col("self_cpu_ms").alias("self_ms"),
        (100 * total / max(recorded, MS)).alias("percent"),
        "device_ms",
    ).sort("own", "total_ms", descending=True, maintain_order=True)


def _is_own(name: str) -> bool:
    return not (name.startswith(_BEGINNINGS) or name in _PARTS or _WORDS.search(name))
