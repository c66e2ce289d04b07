"""The steps of a run that nobody recorded, as far as they are like each other."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.errors import PerfhooksError
from perfhooks.run.reading import open_plain
from perfhooks.run.timeline import Rows

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from perfhooks.statistics import Values
    from perfhooks.trace.model import Flags, Ints

_SCHEMA: Final = {"stage": pl.String, "step": pl.Int64, "phase": pl.String, "wall_ms": pl.Float64}
_FEWEST_FIRST, _MOST_FIRST = 3, 10
_OF_FIRST: Final = 20
"""One in so many steps is a first one: what is started once, tuned or compiled is over then."""
_FAR: Final = 3.0
"""A step that takes as many times the median has had validation, a checkpoint or a pause in it."""
_IDLE: Final = "wait"


class Unrecorded(NamedTuple):
    """What a comparison takes of a timeline."""

    wall: Values
    """Milliseconds, in the order of the steps."""
    first: int
    """How many first steps were left out."""
    far: int
    """How many were left out because something else happened in them."""

    @property
    def uneven(self) -> float:
        """The mean step as a multiple of the median one, where there are any."""
        return float(self.wall.mean() / np.median(self.wall)) if len(self.wall) else 1.0


def read(timeline: Path, raw: Iterable[Path] = ()) -> pl.DataFrame:
    """All steps of one rank: stage, step, phase and wall time in ms.

    Args:
        timeline: The file; none has no steps.
        raw: Steps that are not in it yet.

    Raises:
        PerfhooksError: It is no timeline.
    """
    frames = [pl.DataFrame(schema=_SCHEMA)]
    try:
        # a training that goes on may be writing the last row
        with os.fdopen(open_plain(timeline), "rb") as file:
            frames.append(pl.read_csv(file, schema_overrides=_SCHEMA, truncate_ragged_lines=True, ignore_errors=True))
    except FileNotFoundError:
        pass
    except (OSError, pl.exceptions.PolarsError) as error:
        raise PerfhooksError(f"{timeline}: no timeline ({str(error).splitlines()[0]})") from error
    for path in raw:
        rows = Rows.load(path)
        frames.append(pl.DataFrame({"step": rows.numbers, "wall_ms": rows.walls / 1e6, "phase": rows.phase_names()}))
        frames[-1] = frames[-1].with_columns(pl.lit(rows.stage).alias("stage"))
    missing = set(_SCHEMA) - set(frames[-1].columns)
    if missing:
        raise PerfhooksError(f"{timeline}: no timeline, it has no column {min(missing)}")
    return pl.concat([frame.select(*_SCHEMA) for frame in frames]).drop_nulls()


def chosen(table: pl.DataFrame, stage: str) -> Unrecorded:
    """The steps of a stage that nobody recorded, without the first ones and those in which something else happened.

    Args:
        table: What `read` gave.
        stage: The loop.
    """
    every = table.filter(pl.col("stage") == stage)
    first = min(max(_FEWEST_FIRST, every.height // _OF_FIRST), _MOST_FIRST)
    kept = every[first:].filter((pl.col("phase") == _IDLE) & (pl.col("wall_ms") > 0))
    wall = kept["wall_ms"].to_numpy()
    near = is_near(wall)
    return Unrecorded(wall[near], min(first, every.height), int((~near).sum()))


def is_near(wall: Values | Ints) -> Flags:
    """Which of some steps, by how long they took, had nothing else in them."""
    near: Flags = wall <= _FAR * np.median(wall) if len(wall) else np.zeros(0, np.bool_)
    return near
