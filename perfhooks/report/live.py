"""The state of a running training, read from its files, for `perfhooks top`."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter, deque
from dataclasses import dataclass
from statistics import fmean, median
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec
import numpy as np

from perfhooks.analysis.ranks.leads import RankSteps, StageTimes, align_steps, describe_lead, group_comparable, leads
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.schedule import Phase
from perfhooks.core.statistics import OUTLIER
from perfhooks.core.words import MAX_TEXT
from perfhooks.run import layout
from perfhooks.run.folder import Run, places_of
from perfhooks.run.live import slow_steps
from perfhooks.run.live.status import Status
from perfhooks.run.live.tail import Tail
from perfhooks.run.liveness import Process
from perfhooks.run.reading import is_plain, read_json
from perfhooks.run.steps import LAST_STEP, LONGEST_MS
from perfhooks.run.timeline import CAPACITY

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.live.slow_steps import SlowStep
    from perfhooks.run.timeline import Row

RANK_STEPS: Final = 200
LAST_SLOW: Final = 8

_RANK_ROWS: Final = 4096
"""Number of latest steps to read of each rank except the first. Ranks write every 10 s, so with fewer steps, two ranks
may have no common step.
"""


class Times(NamedTuple):
    steps: int
    rate: float | None
    median_ms: float
    p95_ms: float
    data_share: float | None


def times(rows: Sequence[Row]) -> Times | None:
    if not rows:
        return None
    walls = sorted(row.wall_ms for row in rows)
    with_data = [row for row in rows if row.data_ms is not None]
    total, with_data_ms = sum(walls), sum(row.wall_ms for row in with_data)
    waited_ms = sum(row.data_ms or 0.0 for row in with_data)
    return Times(
        steps=len(walls),
        rate=len(walls) * 1e3 / total if total else None,
        median_ms=median(walls),
        p95_ms=walls[math.ceil(0.95 * len(walls)) - 1],
        data_share=waited_ms / with_data_ms if with_data_ms else None,
    )


def last_minute(rows: Iterable[Row], stage: str) -> list[Row]:
    """Return the latest steps of a loop, at least one minute."""
    minute: list[Row] = []
    total = 0.0
    for row in reversed([row for row in rows if row.stage == stage]):
        minute.append(row)
        total += row.wall_ms
        if total >= 60 * 1e3:
            break
    return minute[::-1]


def bars(walls: Sequence[float], most: int) -> list[float]:
    """Return bar heights from 0 to 1 for step times. Height 1 is `OUTLIER` times the median or more.

    If there are more than ``most`` steps, a bar is the longest of several steps.
    """
    if not walls or most < 1:
        return []
    full = OUTLIER * median(walls) or 1.0
    width = math.ceil(len(walls) / most)
    return [min(1.0, max(walls[at : at + width]) / full) for at in range(0, len(walls), width)]


class RankState(NamedTuple):
    rank: int
    step: int | None
    median_ms: float | None
    """Median of the rank's last `RANK_STEPS` steps in ms."""
    data_ms: float | None
    is_alive: bool | None
    slow: str = ""
    """Message if the rank is a straggler, otherwise empty."""
    role: int | None = None


def mark_stragglers(ranks: Sequence[RankState], rows: Sequence[Sequence[Row]]) -> list[RankState]:
    """Add messages about stragglers, by `perfhooks.analysis.ranks.leads` for the last `RANK_STEPS` common steps."""
    steps = [_unprofiled(of_rank) for of_rank in rows]
    states = list(ranks)
    for places in group_comparable(steps, [rank.role for rank in ranks]):
        stages = align_steps([steps[place] for place in places])
        if stages is None:
            continue
        last = StageTimes(stages.names, stages.numbers[-RANK_STEPS:], stages.times[:, :, -RANK_STEPS:])
        for lead in reversed(leads(last)):
            place = places[lead.row]
            states[place] = states[place]._replace(slow=describe_lead(lead, last.names[lead.stage]))
    return states


def _unprofiled(rows: Sequence[Row]) -> RankSteps:
    idle = [row for row in rows if row.phase == _IDLE]
    times = np.array([row[3:] for row in idle], np.float64).reshape(-1, len(RankSteps._fields) - 1)
    return RankSteps(np.array([row.step for row in idle], np.int64), *times.T)


_IDLE: Final = Phase.WAIT.name.lower()


@dataclass(frozen=True, kw_only=True)
class RunState:
    run: Path
    stage: str
    """Loop that runs on most ranks; if none runs, the loop of the last step."""
    rank: int | None
    step: int | None
    times: Times | None
    walls: tuple[float, ...]
    ranks: tuple[RankState, ...]
    slow: tuple[tuple[int, SlowStep], ...]
    """Slow steps as pairs of rank and step, the latest first."""
    windows: int
    unfinished: Mapping[str, int]
    is_recording: bool
    page: Path | None
    is_alive: bool | None
    """Whether the training runs; None if it is on another host."""
    silent_s: float
    """Time in s since the last change of a file of the run."""


class _Compared(msgspec.Struct):
    rank: list[int] = []
    role: list[int] = []


class _Window(msgspec.Struct):
    ranks: _Compared = msgspec.field(default_factory=_Compared)


class _Together(msgspec.Struct):
    windows: dict[str, _Window] = {}


class _PageData(msgspec.Struct):
    """The part of ``report.json`` that compares ranks."""

    ranks_together: _Together | None = None


class View:
    """Reads the state of a run repeatedly. Unchanged files are not read again."""

    def __init__(self, folder: Path) -> None:
        # resolve the link `latest` once, because it later points to the next run
        self._run = Run(Run.existing(folder).folder.resolve())
        self._ranks: dict[int, _Rank] = {}
        self._turn = 0
        self._roles: dict[int, int] = {}
        self._page_changed = 0
        self._finished: dict[Path, int] = {}

    def refresh(self) -> RunState:
        """Read the changed files. Raise PerfhooksError if the folder was deleted."""
        try:
            self._read()
            self._read_roles()
            windows, unfinished = self._windows()
            is_recording = self._run.is_any_recording()
        except OSError as error:
            raise PerfhooksError(f"{self._run.folder} cannot be read any more: {error.strerror}") from error
        return self._state(windows, unfinished, is_recording=is_recording)

    def _state(self, windows: int, unfinished: dict[str, int], *, is_recording: bool) -> RunState:
        ranks = list(self._ranks.values())
        stage = _stage(ranks)
        first = next((rank for rank in ranks if rank.rows), ranks[0] if ranks else None)
        minute = [] if first is None else last_minute(first.rows, stage)
        states = [rank.state(stage, self._roles) for rank in ranks]
        alive = {rank.is_alive for rank in ranks}
        page = self._run.folder / layout.PAGE
        changed = max((rank.changed for rank in ranks), default=0.0)
        return RunState(
            run=self._run.folder,
            stage=stage,
            rank=None if first is None else first.rank,
            step=None if first is None else first.step(stage),
            times=times(minute),
            walls=tuple(row.wall_ms for row in minute),
            ranks=tuple(mark_stragglers(states, [rank.rows_of(stage) for rank in ranks])),
            slow=_last_slow(ranks),
            windows=windows,
            unfinished=unfinished,
            is_recording=is_recording and alive != {False},
            page=page if is_plain(page) else None,
            is_alive=True if True in alive else False if alive == {False} else None,
            silent_s=max(0.0, time.time() - changed),
        )

    def _read(self) -> None:
        new = sorted(self._list_ranks() - set(self._ranks))[: 20_000 - len(self._ranks)]
        max_rows = min(_RANK_ROWS, max(RANK_STEPS, 200_000 // max(len(new), 1)))
        for rank in new:
            self._ranks[rank] = _Rank(self._run, rank, CAPACITY if not self._ranks else max_rows)
            self._ranks[rank].read()
        if new:
            self._ranks = dict(sorted(self._ranks.items()))
        old = [rank for rank in self._ranks if rank not in new]
        # at most 64 ranks at once, for the load of a shared disk
        due = {old[(self._turn + count) % len(old)] for count in range(min(64, len(old)))}
        self._turn += len(due)
        for rank in due.union(old[:1]):
            self._ranks[rank].read()

    def _read_roles(self) -> None:
        page = self._run.folder / layout.PAGE_DATA
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            changed = page.lstat().st_mtime_ns
            if changed != self._page_changed:
                self._page_changed = changed
                comparison = read_json(page, _PageData, "the data of a report").ranks_together
                for window in () if comparison is None else comparison.windows.values():
                    self._roles.update(zip(window.ranks.rank, window.ranks.role, strict=False))

    def _list_ranks(self) -> set[int]:
        names = [path.name for path in self._run.folder.iterdir()]
        return layout.ranks_of_run(names).union(layout.owner.ranks(names), layout.status.ranks(names))

    def _windows(self) -> tuple[int, dict[str, int]]:
        changed: dict[Path, int] = {}
        for folder in self._run.window_folders():
            if layout.steps_of(folder.name):
                with contextlib.suppress(FileNotFoundError):
                    changed[folder] = folder.lstat().st_mtime_ns
        self._finished = {folder: at for folder, at in self._finished.items() if changed.get(folder) == at}
        unfinished = {}
        for folder in sorted(changed, key=changed.__getitem__)[-32:]:
            if folder not in self._finished:
                count = sum(_unfinished(folder))
                if count:
                    unfinished[folder.name] = count
                else:
                    self._finished[folder] = changed[folder]
        return len(changed), unfinished


class _Rank:
    def __init__(self, run: Run, rank: int, rows: int) -> None:
        self.rank = rank
        self._run = run
        self._tail = Tail(run.timeline(rank), rows * 80)
        self.rows: deque[Row] = deque(maxlen=rows)
        self.status: Status | None = None
        self.slow: list[SlowStep] = []
        self._slow_file: tuple[int, int] | None = None
        self.is_alive: bool | None = None
        self.changed = 0.0
        """Time of the last change of a file, in s since 1970."""

    def read(self) -> None:
        self.rows.extend(filter(_is_step, self._tail.read()))
        self.status = Status.read(self._run.folder, self.rank) or self.status
        self._read_slow(self._run.folder / layout.slow_steps(self.rank))
        owner = self._run.folder / layout.owner(self.rank)
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            self.is_alive = read_json(owner, Process, "a process").is_alive
        for path in (self._run.timeline(self.rank), self._run.folder / layout.status(self.rank), owner):
            with contextlib.suppress(OSError):
                self.changed = max(self.changed, path.lstat().st_mtime)

    def _read_slow(self, path: Path) -> None:
        with contextlib.suppress(OSError):
            stat = path.lstat()
            if (stat.st_ino, stat.st_size) != self._slow_file:
                self._slow_file = (stat.st_ino, stat.st_size)
                self.slow = slow_steps.read(path, 64 << 10)[-LAST_SLOW:]

    def step(self, stage: str) -> int | None:
        steps = [row.step + 1 for row in self.rows if row.stage == stage][-1:]
        if self.status is not None and self.status.loop.stage == stage:
            steps.append(self.status.loop.step)
        return max(steps, default=None)

    def rows_of(self, stage: str) -> list[Row]:
        return [row for row in list(self.rows)[-_RANK_ROWS:] if row.stage == stage]

    def state(self, stage: str, roles: Mapping[int, int]) -> RankState:
        rows = self.rows_of(stage)[-RANK_STEPS:]
        waits = [row.data_ms for row in rows if row.data_ms is not None]
        return RankState(
            rank=self.rank,
            step=self.step(stage),
            median_ms=median(row.wall_ms for row in rows) if rows else None,
            data_ms=fmean(waits) if waits else None,
            is_alive=self.is_alive,
            role=roles.get(self.rank),
        )


def _is_step(row: Row) -> bool:
    is_time = all(0 <= (value or 0.0) < LONGEST_MS for value in row[3:])
    return is_time and 0 <= row.step < LAST_STEP and len(row.stage) <= MAX_TEXT


def _stage(ranks: Sequence[_Rank]) -> str:
    loops = [rank.status.loop for rank in ranks if rank.status is not None]
    running = Counter(loop.stage for loop in loops if loop.is_running)
    if running:
        return running.most_common(1)[0][0]
    last = [rank.rows[-1].stage for rank in ranks if rank.rows]
    return (last or [loop.stage for loop in loops] or [""])[0]


def _last_slow(ranks: Sequence[_Rank]) -> tuple[tuple[int, SlowStep], ...]:
    steps = [(rank.rank, step) for rank in ranks for step in rank.slow]
    return tuple(sorted(steps, key=lambda entry: entry[1].step, reverse=True)[:LAST_SLOW])


def _unfinished(window: Path) -> Iterator[bool]:
    for place in places_of(window):
        with contextlib.suppress(PerfhooksError):
            yield place.load().state != "done"
