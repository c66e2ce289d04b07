from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import attribution
from perfhooks.trace.nesting import host, idle_threads, own_frames
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.nesting.slices import nest

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace


_SCHEMA: Final = {
    "function": pl.String,
    "calls": pl.Int64,
    **dict.fromkeys(("self_ms", "total_ms", "mean_ms"), pl.Float64),
    "file": pl.String,
    "line": pl.Int64,
}
_PLACE: Final = r"^(.+)\((\d{1,9})\): (.+)$"
"""File, line and function in the name of a frame: ``train.py(12): main``."""


def table(trace: Trace) -> pl.DataFrame:
    """Return the cost of each Python function in the recorded stacks, most self time first.

    ``self_ms`` is the time of the function without called functions (cProfile's ``tottime``), but with operators.
    ``total_ms`` includes called functions (``cumtime``). ``line`` is the first line of the function; null for functions
    called before the recording.

    Frames of perfhooks and waits on threads without steps are left out. On each thread, self times sum to the time in
    which any listed function ran.
    """
    tree = host.tree(trace)
    rows = tree.row[trace.kind[tree.row] == Kind.PYTHON]
    nesting = nest(trace.thread[rows], trace.start[rows], trace.end[rows])
    frames = pl.DataFrame(
        {
            "place": trace.name[rows].astype(np.int64),
            "thread": trace.thread[rows],
            "start": trace.start[rows],
            "end": nesting.end,
            "own": np.where(idle_threads.waiting(trace)[tree.entry[rows]], 0, nesting.own),
        }
    ).filter(~own_frames.is_perfhooks(trace)[tree.entry[rows]])
    # a call is nested if it begins before all earlier calls of the same function have ended
    latest_end = pl.col("end").cum_max().shift(1).over("place", "thread")
    outermost = (pl.col("start") >= latest_end).fill_null(value=True)
    by_function = (
        frames.with_columns(pl.when(outermost).then(pl.col("end") - pl.col("start")).otherwise(0).alias("span"))
        .group_by("place", maintain_order=True)
        .agg(pl.len().alias("calls"), pl.col("own").sum(), pl.col("span").sum())
    )
    name = pl.Series(trace.names, dtype=pl.String)[by_function["place"]]
    parts = [name.str.extract(_PLACE, group) for group in (1, 2, 3)]
    columns = {
        "function": parts[2].fill_null(name),
        "calls": by_function["calls"],
        "self_ms": by_function["own"] * MS,
        "total_ms": by_function["span"] * MS,
        "mean_ms": by_function["span"] * MS / by_function["calls"],
        "file": parts[0],
        "line": parts[1].set(by_function["place"].is_in(_names_open_at_start(trace).tolist()), None),
    }
    functions = pl.DataFrame({column: columns[column].cast(kind) for column, kind in _SCHEMA.items()})
    return functions.sort("self_ms", "file", "line", descending=[True, False, False], maintain_order=True)


def _names_open_at_start(trace: Trace) -> Ints:
    open_counts, counts = (
        np.bincount(trace.name[frames], minlength=len(trace.names))
        for frames in (sorted(attribution.open_at_start(trace)), trace.rows(Kind.PYTHON))
    )
    return np.flatnonzero((open_counts > 0) & (open_counts == counts))
