"""The table of Python functions, as cProfile's: how often each was called, and how long it took."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import attribution
from perfhooks.trace.nesting import host, idle_threads, own_frames
from perfhooks.trace.nesting.slices import nest

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace

_MS: Final = 1e-6  # milliseconds in a nanosecond
_SCHEMA: Final = {
    "function": pl.String,
    "calls": pl.Int64,
    **dict.fromkeys(("self_ms", "total_ms", "mean_ms"), pl.Float64),
    "file": pl.String,
    "line": pl.Int64,
}
_PLACE: Final = r"^(.+)\((\d{1,9})\): (.+)$"
"""A frame as torch writes it: ``train.py(12): main``."""


def table(trace: Trace) -> pl.DataFrame:
    """Say what each Python function cost: one row for each that was called while stacks were recorded.

    Most self time first. ``calls`` counts all of them, also those that it made of itself; ``self_ms`` is its time
    without the functions that it called (cProfile's ``tottime``), with the operators that ran in it; ``total_ms`` is
    with them (``cumtime``), a call that lies in one of the same function counted once; ``mean_ms`` is the total by the
    number of calls. ``file`` and ``line`` say where the function begins, null for what is written in C and for modules
    (``nn.Module: Linear_0``): a trace has no other lines. ``line`` is null as well where recording began in the only
    call of the function, see `perfhooks.trace.names.attribution.open_at_start`.

    Frames of perfhooks, and what they call for themselves, have no row, and their time is in no self time. The other
    self times sum to the time in which any function ran, of each thread, to the nanosecond; what threads other than
    those of the steps wait for locks, queues, files or time is in no self time, as in the folded stacks::

        main   |----------------|     self 6, total 18
        load     |-----|              self 7
        load              |---|       self 5, so of load 12 in all

    Args:
        trace: any trace; without Python frames there are no rows.
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
    # by time, of one function and thread: what begins before all earlier calls have ended lies in one of them
    reached = pl.col("end").cum_max().shift(1).over("place", "thread")
    outermost = (pl.col("start") >= reached).fill_null(value=True)
    found = (
        frames.with_columns(pl.when(outermost).then(pl.col("end") - pl.col("start")).otherwise(0).alias("span"))
        .group_by("place", maintain_order=True)
        .agg(pl.len().alias("calls"), pl.col("own").sum(), pl.col("span").sum())
    )
    name = pl.Series(trace.names, dtype=pl.String).gather(found["place"])
    parts = [name.str.extract(_PLACE, group) for group in (1, 2, 3)]
    columns = {
        "function": parts[2].fill_null(name),
        "calls": found["calls"],
        "self_ms": found["own"] * _MS,
        "total_ms": found["span"] * _MS,
        "mean_ms": found["span"] * _MS / found["calls"],
        "file": parts[0],
        "line": parts[1].set(found["place"].is_in(_begun(trace).tolist()), None),
    }
    made = pl.DataFrame({column: columns[column].cast(kind) for column, kind in _SCHEMA.items()})
    return made.sort("self_ms", "file", "line", descending=[True, False, False], maintain_order=True)


def _begun(trace: Trace) -> Ints:
    """The names that only frames have in which recording began."""
    begun, every = (
        np.bincount(trace.name[frames], minlength=len(trace.names))
        for frames in (sorted(attribution.open_at_start(trace)), trace.rows(Kind.PYTHON))
    )
    return np.flatnonzero((begun > 0) & (begun == every))
