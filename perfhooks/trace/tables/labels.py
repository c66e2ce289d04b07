"""The table of labels: how often each ran, and how long it took."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.core.labels import AUTOMATIC, PARTS, STEP_MARK
from perfhooks.trace.names import communication, ranges
from perfhooks.trace.tables import operators

if TYPE_CHECKING:
    from perfhooks.trace.model import Trace

_MS: Final = 1e-6  # milliseconds in a nanosecond

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
    """Say what each label cost: ``record_function``, ``prof.region``, and what torch writes of itself, as its steps.

    One row for each name, the user's own first, then by time. ``own`` is whether somebody wrote it into their code:
    not torch, no framework, and no name of `perfhooks.core.labels.PARTS`, which the table of steps has. ``calls`` is
    how often it ran; ``total_ms`` its time on the host with all that ran in it, ``mean_ms`` that of one call,
    ``self_ms`` what is left of the total without the labels and operators in it; ``percent`` the total as a share of
    the time that was recorded, from the first to the last call of the host; ``device_ms`` the device work that was
    launched in it, null if the trace shows no device. Labels in one another, or side by side on two threads, count
    each, so shares may sum to more than 100.

    The times are those of the table of operators: it is the same sum.

    Args:
        trace: any trace.
    """
    return of_operators(trace, operators.table(trace))


def of_operators(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """The same from the table of operators, where that has been made."""
    rows = rows.filter(pl.col("kind") == "annotation")
    total, recorded = pl.col("cpu_ms"), operators.recorded(trace) * _MS
    return rows.select(
        "name",
        pl.Series("own", map(_is_own, rows["name"]), dtype=pl.Boolean),
        pl.col("count").alias("calls"),
        total.alias("total_ms"),
        (total / pl.col("count")).alias("mean_ms"),
        pl.col("self_cpu_ms").alias("self_ms"),
        (100 * total / max(recorded, _MS)).alias("percent"),
        "device_ms",
    ).sort("own", "total_ms", descending=True, maintain_order=True)


def _is_own(name: str) -> bool:
    """Whether a label was written by whoever wrote the training."""
    return not (name.startswith(_BEGINNINGS) or name in _PARTS or _WORDS.search(name))
