"""Steps of a run from its timelines, without warm-up and outliers.

A series of steps ends when the step numbers jump or go back, for example at a restart from a checkpoint. The first
steps of a series (5%, but 3 to 10) contain one-time work and are excluded. Steps longer than three times the median
contain a validation, a checkpoint or a pause. Warm-up steps of the recorder are neither profiled nor unprofiled.
"""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.core.statistics import LEAST_STEPS, is_near, most_common
from perfhooks.run.capture import LARGE
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import open_plain, read_table
from perfhooks.run.timeline import CAPACITY, HEADER, Rows, in_timeline, parsed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import TypeAlias

    from numpy.typing import NDArray
    from polars import DataFrame

    from perfhooks.core.statistics import Values

    Flags: TypeAlias = NDArray[np.bool_]
    Ints: TypeAlias = NDArray[np.int64]

FEWEST_FIRST: Final = 3
MOST_FIRST: Final = 10
OF_FIRST: Final = 20
_ROW_BYTES: Final = 68
LAST: Final = CAPACITY * _ROW_BYTES
_SAMPLE: Final = 4 << 20
"""Maximum bytes to read for a chart: about 85,000 steps, 200 per point."""
_PARTS: Final = 512
_TIMES: Final = ("wall_ms", "data_ms", "backward_ms", "update_ms")
"""Columns of times. Older versions of perfhooks wrote only the first two."""
_SEAM: Final = b"\n,-1,,,\n"
_FILE: Final = b"\n,-2,,,\n"


def firsts(numbers: Ints, seams: Flags) -> Flags:
    """Mark the first steps of each series. ``seams`` are the positions before which steps were not read."""
    ahead = np.diff(numbers, prepend=numbers[0])
    begins = (ahead != 1) & ~(seams & (ahead > 1))
    begins[0] = not seams[0]
    series = np.cumsum(begins)
    start = np.concatenate([numbers[:1], numbers[begins]])[series]
    last = np.flatnonzero(np.append(np.diff(series) > 0, True))
    length = np.zeros(int(series[-1]) + 1, np.int64)
    length[series[last]] = numbers[last] - start[last] + 1
    count = np.clip(length // OF_FIRST, FEWEST_FIRST, MOST_FIRST)
    is_first: Flags = (series > 0) & (numbers - start < count[series])
    return is_first


class Steps(NamedTuple):
    numbers: Ints
    is_idle: Flags
    is_recorded: Flags
    wall_ms: Values
    data_ms: Values
    backward_ms: Values
    update_ms: Values
    is_first: Flags

    def unrecorded(self) -> Counted:
        return self._counted(self.is_idle)

    def typical(self) -> Counted:
        """Unprofiled steps without warm-up and outliers. If no step remains, all except the first."""
        typical = self.unrecorded()
        if len(typical.numbers):
            return typical
        begins = self.is_first & (np.diff(self.numbers, prepend=self.numbers[:1] - 2) != 1)
        return self._replace(is_first=begins).unrecorded()

    def recorded(self) -> Counted:
        return self._counted(self.is_recorded)

    def beside(self, first: int, last: int) -> Counted | None:
        """Return the unprofiled steps next to a window if they differ clearly from the run's, else None."""
        typical = self.typical()
        is_beside = np.maximum(first - typical.numbers, typical.numbers - last) <= LEAST_STEPS // 2
        if typical.median_ms is None or is_beside.sum() < FEWEST_FIRST:
            return None
        short, long = np.quantile(typical.all_ms[is_beside], (0.25, 0.75))
        if short / LARGE < typical.median_ms < long * LARGE:
            return None
        return Counted._make([column[is_beside] for column in typical])

    def _counted(self, is_wanted: Flags) -> Counted:
        is_chosen = is_wanted & ~self.is_first & (self.wall_ms > 0)
        wall, data = self.wall_ms[is_chosen], self.data_ms[is_chosen]
        return Counted(self.numbers[is_chosen], wall, data, ~is_near(wall))


class Counted(NamedTuple):
    numbers: Ints
    all_ms: Values
    all_data_ms: Values
    is_far: Flags
    """Whether each step is an outlier."""

    @property
    def wall_ms(self) -> Values:
        return self.all_ms[~self.is_far]

    @property
    def median_ms(self) -> float | None:
        """Median of all steps, or of the largest group of similar steps if the median step is not in this group."""
        if not len(self.all_ms):
            return None
        median, common = float(np.median(self.all_ms)), self.all_ms[most_common(self.all_ms)]
        return median if common.min() <= median <= common.max() else float(np.median(common))

    @property
    def data_ms(self) -> Values:
        return self.all_data_ms[~self.is_far]

    @property
    def far(self) -> int:
        return int(self.is_far.sum())

    @property
    def waiting(self) -> float | None:
        """Wait for data as a fraction of the step: median of at most ten blocks of steps.

        The result is None after too few steps. A single long wait, such as the start of loader workers, changes only
        one block.
        """
        columns = np.isfinite(self.all_data_ms)
        if columns.sum() < max(5, len(columns) / 2):
            return None
        wall, data = self.all_ms[columns], np.minimum(self.all_data_ms[columns], self.all_ms[columns])
        # a step that is long because it waits for data contains no validation or checkpoint
        usual = np.flatnonzero(is_near(wall - data))
        blocks = np.array_split(usual, np.clip(len(usual) // LEAST_STEPS, 1, 10))
        return float(np.median([data[block].sum() / wall[block].sum() for block in blocks]))


_NO: Final = np.zeros(0)
NONE: Final = Steps(_NO.astype(np.int64), _NO > 0, _NO > 0, _NO, _NO, _NO, _NO, _NO > 0)


def read(path: Path, raw: Iterable[Path] = ()) -> dict[str, Steps]:
    """Read all steps of a timeline, grouped by loop. ``raw`` is the file of steps that are not in the timeline yet.

    Raises OSError if a file is unreadable or no regular file, and ValueError if raw steps are broken.
    """
    return _steps(_text(path, None), [Rows.load(rows) for rows in raw])


def read_last(path: Path) -> dict[str, Steps]:
    """Read at least the last `CAPACITY` steps, without the older part of the file."""
    return _steps(_text(path, LAST))


def read_in_training(path: Path, raw: Iterable[Path] = ()) -> dict[str, Steps]:
    """Read about 5,000 last steps without polars, which a training does not import."""
    rows = [row[:7] for row in parsed(_SEAM + b"\n" + _text(path, 1 << 18))]
    for stage, numbers, phases, *times in (_plain(Rows.load(each)) for each in raw):
        rows += [(stage, *row) for row in zip(numbers, phases, *times, strict=True)]
    loops = {}
    for loop in dict.fromkeys(row[0] for row in rows):
        _, numbers, phases, *times = zip(*(row for row in rows if row[0] == loop), strict=True)
        steps, phase = np.array(numbers, np.int64), np.array(phases)
        columns = [np.array(column, np.float64) for column in times]
        is_first = firsts(steps, np.zeros(len(steps), np.bool_))
        loops[loop] = Steps._make([steps, phase == "wait", phase == "active", *columns, is_first])
    return loops


def _plain(rows: Rows) -> tuple[Any, ...]:
    times = (np.where(column < 0, np.nan, column / 1e6).tolist() for column in rows[3:])
    return (rows.stage, rows.numbers.tolist(), rows.phase_names(), *times)


def read_last_of(paths: Iterable[Path], most: int) -> list[dict[str, Steps]]:
    """Read the last ``most`` bytes of several files. Parsing small files together is faster."""
    texts = [_text(path, most) for path in paths]
    if any(
        b",-2," in text for text in texts
    ):  # the step number -2 marks the begin of a file in the joined text, so a damaged row could contain it too
        return [_steps(text) for text in texts]
    loops: list[dict[str, Steps]] = [{} for _ in texts]
    table = _rows(b"".join(_FILE + text for text in texts))
    for (file, stage), rows in table.group_by("file", "stage", maintain_order=True):
        loops[int(file) - 1][str(stage)] = _of_loop(rows)
    return loops


def read_sample(path: Path) -> dict[str, Steps]:
    try:
        size = path.lstat().st_size
    except FileNotFoundError:
        return {}
    if size <= _SAMPLE:
        return _steps(_text(path, None))
    parts = []
    with os.fdopen(open_plain(path), "rb") as file:
        for part in range(_PARTS):
            file.seek(size * part // _PARTS)
            text = file.read(_SAMPLE // _PARTS)
            parts.append(text.partition(b"\n")[2].rpartition(b"\n")[0])
    return _steps(_SEAM.join(parts))


def _text(path: Path, most: int | None) -> bytes:
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if most is None or size <= most:
                return file.read()
            file.seek(size - most)
            return _SEAM + file.read(most).partition(b"\n")[2]
    except FileNotFoundError:
        return b""


def _steps(text: bytes, raw: Iterable[Rows] = ()) -> dict[str, Steps]:
    table = _rows(text, raw)
    return {str(stage): _of_loop(rows) for (stage,), rows in table.group_by("stage", maintain_order=True)}


def _rows(text: bytes, raw: Iterable[Rows] = ()) -> DataFrame:
    import polars as pl

    schema = {"stage": pl.String, "step": pl.Int64, "phase": pl.String, **dict.fromkeys(_TIMES, pl.Float64)}
    frames = [pl.DataFrame(schema=schema)]
    options: dict[str, Any] = {"ignore_errors": True, "truncate_ragged_lines": True, "quote_char": None}
    content = HEADER.encode() + text
    with contextlib.suppress(pl.exceptions.PolarsError):
        frames.append(pl.read_csv(content, has_header=False, schema=schema, encoding="utf8-lossy", **options))
    for rows in raw:
        waits = (np.where(column < 0, np.nan, column / 1e6) for column in rows[3:])
        columns = {"step": rows.numbers, "phase": rows.phase_names(), **dict(zip(_TIMES, waits, strict=True))}
        frames.append(pl.DataFrame(columns).select(pl.lit(rows.stage).alias("stage"), *columns))
    part, file = ((pl.col("step") == row).fill_null(value=False).cum_sum() for row in (-1, -2))
    is_step = pl.col("wall_ms").is_finite() & (pl.col("step") >= 0) & pl.col("phase").is_not_null()
    times = pl.col(*_TIMES).cast(pl.Float64).fill_null(float("nan"))
    phases = ((pl.col("phase") == phase).alias(phase) for phase in ("wait", "active"))
    every = pl.concat(frames).lazy().with_columns(part=part, file=file)
    steps = every.filter(is_step & pl.col("stage").is_not_null())
    return steps.select("file", "stage", "step", *phases, times, "part").collect()


def _of_loop(rows: DataFrame) -> Steps:
    numbers, *columns, part = (column.to_numpy() for column in rows.get_columns()[2:])
    return Steps._make([numbers, *columns, firsts(numbers, np.diff(part, prepend=0) > 0)])


LONGEST_MS: Final = 1e12
"""Maximum time in ms. Larger times and steps above `LAST_STEP` are invalid, because sums could overflow."""
LAST_STEP: Final = 1 << 61


class CpuInterval(NamedTuple):
    """CPU times in ms during about one second of a loop: a row of ``rank0.processor.csv`` without its ``stage``."""

    first: int
    last: int
    """Exclusive end: number of the first step after this interval."""
    wall_ms: float
    thread_ms: float
    process_ms: float
    waited_ms: float
    """Run-queue wait of the stepping thread."""
    others_ms: float = math.nan
    """Mean CPU time per CPU of programs outside the job."""


def append_waits(path: Path, stage: str, rows: Sequence[CpuInterval]) -> None:
    cells = ([in_timeline(stage), row.first, row.last, *map(_written, row[2:])] for row in rows)
    OwnFolder(path.parent).append_rows(path.name, ("stage", *CpuInterval._fields), cells)


def _written(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.6f}"


class Waits(NamedTuple):
    intervals: tuple[CpuInterval, ...]

    @classmethod
    def of_share(cls, share: float) -> Waits:
        return cls((CpuInterval(0, LAST_STEP, 1.0, 1.0, 1.0, share),))

    @property
    def computed(self) -> float:
        return min(sum(row.thread_ms for row in self.intervals) / sum(row.wall_ms for row in self.intervals), 1.0)

    @property
    def others(self) -> float | None:
        used = sum(row.others_ms for row in self.intervals) / sum(row.wall_ms for row in self.intervals)
        return None if math.isnan(used) else min(used, 1.0)

    def shares(self, numbers: Ints) -> Values:
        """Return the run-queue wait of each step as a fraction: of its interval, else of the whole loop."""
        ends = np.array([row.last for row in self.intervals])
        place = np.searchsorted(ends, numbers, side="right").clip(max=len(ends) - 1)
        firsts = np.array([row.first for row in self.intervals])
        walls, waits = (np.array([getattr(row, name) for row in self.intervals]) for name in ("wall_ms", "waited_ms"))
        is_inside = (firsts[place] <= numbers) & (numbers < ends[place])
        shares: Values = np.where(is_inside, (waits / walls)[place], waits.sum() / walls.sum())
        return shares.clip(max=0.999)  # a step cannot consist of waiting only


def read_waits(path: Path, stage: str) -> Waits | None:
    """Return None if the loop has no rows. Invalid and torn rows are dropped."""
    rows: dict[int, CpuInterval] = {}
    for line in read_table(path).splitlines():
        with contextlib.suppress(ValueError, TypeError):
            name, first, last, *values = line.split(",")
            row = CpuInterval(int(first), int(last), *(float(value or "nan") for value in values[:5]))
            if name == stage and _is_valid(row):
                rows[row.last] = row  # a resumed loop ran some steps twice
    return Waits(tuple(row for _, row in sorted(rows.items()))) if rows else None


def _is_valid(row: CpuInterval) -> bool:
    is_time = row.wall_ms > 0 and all(0 <= value < LONGEST_MS for value in row[2:6])
    is_time &= math.isnan(row.others_ms) or 0 <= row.others_ms < LONGEST_MS
    return is_time and 0 <= row.first < row.last <= LAST_STEP
