"""What can be seen of a run from outside, from its files alone: what `perfhooks top` shows."""

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

from perfhooks.analysis.ranks.leads import RankSteps, StageTimes, aligned, alike, leads, said
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.schedule import Phase
from perfhooks.core.statistics import OUTLIER
from perfhooks.run import layout
from perfhooks.run.folder import Run, places_of
from perfhooks.run.live import slow_steps
from perfhooks.run.live.status import Status
from perfhooks.run.live.tail import Tail
from perfhooks.run.liveness import Process
from perfhooks.run.reading import is_plain, read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from perfhooks.run.live.slow_steps import SlowStep
    from perfhooks.run.timeline import Row

MINUTE_MS: Final = 60_000.0
"""Steps that follow each other are the last minute as long as they add up to it."""
RANK_STEPS: Final = 200
"""Ranks are compared by so many of their last steps."""
_CELLS: Final = 200_000
"""Steps of all ranks that are kept at most, or `RANK_STEPS` of each: those that all of them know are compared."""
LAST_SLOW: Final = 8
"""Slow steps that are kept of all ranks."""

_STEPS: Final = 1 << 16
"""Of the first rank, whose last minute is shown: steps of 1 ms."""
_RANK_ROWS: Final = 4096
"""Of each other rank at most: it writes its steps every ten seconds, and not when the others do."""
_ROW_BYTES: Final = 80
_SLOW_BYTES: Final = 64 << 10
_LONGEST_STAGE: Final = 400
_LARGEST_STEP: Final = 1 << 61
_MOST_RANKS: Final = 20_000
_AT_ONCE: Final = 64
"""Ranks whose files are read in one look, after the first: a disk that a thousand of them share has other work."""
_WINDOWS: Final = 32
"""The windows that changed last: one that is being finished is among them."""


class Times(NamedTuple):
    """What steps that follow each other took."""

    steps: int
    rate: float | None
    """Steps in a second; None where they took no time."""
    median_ms: float
    p95_ms: float
    """The shortest time that 95 of 100 steps did not exceed."""
    data_share: float | None
    """How much of them was waiting for data; None where nobody measured it."""


def times(rows: Sequence[Row]) -> Times | None:
    """What some steps took; None of none."""
    if not rows:
        return None
    walls = sorted(row.wall_ms for row in rows)
    known = [row for row in rows if row.data_ms is not None]
    total, of_known = sum(walls), sum(row.wall_ms for row in known)
    waited = sum(row.data_ms or 0.0 for row in known)
    return Times(
        steps=len(walls),
        rate=len(walls) * 1e3 / total if total else None,
        median_ms=median(walls),
        p95_ms=walls[math.ceil(0.95 * len(walls)) - 1],
        data_share=waited / of_known if of_known else None,
    )


def last_minute(rows: Iterable[Row], stage: str) -> list[Row]:
    """The last steps of a loop that add up to a minute, and the one that makes it full; in their order."""
    found: list[Row] = []
    total = 0.0
    for row in reversed([row for row in rows if row.stage == stage]):
        found.append(row)
        total += row.wall_ms
        if total >= MINUTE_MS:
            break
    return found[::-1]


def bars(walls: Sequence[float], most: int) -> list[float]:
    """Step times as heights from 0 to 1, full at `OUTLIER` medians, beyond which something else is in a step.

    Args:
        walls: Times in milliseconds.
        most: How many bars there may be. Where there are more steps, a bar is the longest of several.
    """
    if not walls or most < 1:
        return []
    full = OUTLIER * median(walls) or 1.0
    each = math.ceil(len(walls) / most)
    return [min(1.0, max(walls[at : at + each]) / full) for at in range(0, len(walls), each)]


class RankSeen(NamedTuple):
    """One rank."""

    rank: int
    step: int | None
    """The step that goes on, as far as is known."""
    median_ms: float | None
    """Of its last `RANK_STEPS` steps."""
    data_ms: float | None
    """What a step of them waited for data, the mean; None where nobody measured it."""
    is_alive: bool | None
    """Whether its process is there; None where nobody here can tell."""
    slow: str = ""
    """By what it makes the others wait, if it does."""
    role: int | None = None
    """Where ranks do different work, as the last page says."""


def judged(ranks: Sequence[RankSeen], rows: Sequence[Sequence[Row]]) -> list[RankSeen]:
    """The ranks, with what is said of those that make the others wait, by the rule of the page: see `frontier.leads`.

    Args:
        ranks: Who is judged.
        rows: The last steps of each of them; of those that all know, the last `RANK_STEPS` count.
    """
    known = [_columns(mine) for mine in rows]
    found = list(ranks)
    for places in alike(known, [rank.role for rank in ranks]):
        stages = aligned([known[place] for place in places])
        if stages is None:
            continue
        last = StageTimes(stages.names, stages.numbers[-RANK_STEPS:], stages.times[:, :, -RANK_STEPS:])
        for lead in reversed(leads(last)):  # of several parts, that which costs most is said
            place = places[lead.row]
            found[place] = found[place]._replace(slow=said(lead, last.names[lead.stage]))
    return found


def _columns(rows: Sequence[Row]) -> RankSteps:
    """The steps that nobody recorded."""
    idle = [row for row in rows if row.phase == _IDLE]
    times = np.array([row[3:] for row in idle], np.float64).reshape(-1, len(RankSteps._fields) - 1)
    return RankSteps(np.array([row.step for row in idle], np.int64), *times.T)


_IDLE: Final = Phase.WAIT.name.lower()


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A run as it was seen at one moment."""

    run: Path
    stage: str
    """The loop that is shown: the one that most ranks are in, else the one that ended a step last."""
    rank: int | None
    """The rank whose steps are shown, the first one; None where there is none yet."""
    step: int | None
    times: Times | None
    """Of its last minute."""
    walls: tuple[float, ...]
    """What its steps took in that minute, in milliseconds."""
    ranks: tuple[RankSeen, ...]
    slow: tuple[tuple[int, SlowStep], ...]
    """The last slow steps with their rank, the last one first."""
    windows: int
    """How many there are."""
    unfinished: Mapping[str, int]
    """Those of which files are still to be made, with the number of ranks."""
    is_recording: bool
    page: Path | None
    is_alive: bool | None
    """Whether any process of it is there; None where nobody here can tell."""
    silent_s: float
    """For how long no file of a rank has changed."""


class _Compared(msgspec.Struct):
    rank: list[int] = []
    role: list[int] = []


class _Window(msgspec.Struct):
    ranks: _Compared = msgspec.field(default_factory=_Compared)


class _Together(msgspec.Struct):
    windows: dict[str, _Window] = {}


class _PageData(msgspec.Struct):
    """What is asked of the data of a page: see `perfhooks.analysis.ranks.gather`."""

    ranks_together: _Together | None = None


class View:
    """Looks at a run again and again, and reads what has changed.

    Args:
        folder: The run folder.

    Raises:
        PerfhooksError: It is none.
    """

    def __init__(self, folder: Path) -> None:
        # `latest` may lead to the next run while this one is looked at
        self._run = Run(Run.existing(folder).folder.resolve())
        self._ranks: dict[int, _Rank] = {}
        self._turn = 0
        self._roles: dict[int, int] = {}
        self._page_changed = 0
        self._finished: dict[Path, int] = {}
        """Windows of which nothing is left to be done, and when they had changed last."""

    def look(self) -> Seen:
        """What there is now.

        Raises:
            PerfhooksError: The folder is gone.
        """
        try:
            self._read()
            self._read_roles()
            windows, unfinished = self._windows()
            is_recording = self._run.is_any_recording()
        except OSError as error:
            raise PerfhooksError(f"{self._run.folder} cannot be read any more ({error.strerror})") from error
        return self._seen(windows, unfinished, is_recording=is_recording)

    def _seen(self, windows: int, unfinished: dict[str, int], *, is_recording: bool) -> Seen:
        ranks = list(self._ranks.values())
        stage = _stage(ranks)
        first = next((rank for rank in ranks if rank.rows), ranks[0] if ranks else None)
        minute = [] if first is None else last_minute(first.rows, stage)
        alive = {rank.is_alive for rank in ranks}
        page = self._run.folder / layout.PAGE
        changed = max((rank.changed for rank in ranks), default=0.0)
        return Seen(
            run=self._run.folder,
            stage=stage,
            rank=None if first is None else first.rank,
            step=None if first is None else first.step(stage),
            times=times(minute),
            walls=tuple(row.wall_ms for row in minute),
            ranks=tuple(judged([rank.seen(stage, self._roles) for rank in ranks], [rank.of(stage) for rank in ranks])),
            slow=_last_slow(ranks),
            windows=windows,
            unfinished=unfinished,
            is_recording=is_recording and alive != {False},
            page=page if is_plain(page) else None,
            is_alive=True if True in alive else False if alive == {False} else None,
            silent_s=max(0.0, time.time() - changed),
        )

    def _read(self) -> None:
        """The files of all ranks at first, then of some in turn; those of the first rank each time."""
        new = sorted(self._found() - set(self._ranks))[: _MOST_RANKS - len(self._ranks)]
        kept = min(_RANK_ROWS, max(RANK_STEPS, _CELLS // max(len(new), 1)))
        for rank in new:
            self._ranks[rank] = _Rank(self._run, rank, _STEPS if not self._ranks else kept)
            self._ranks[rank].read()
        if new:
            self._ranks = dict(sorted(self._ranks.items()))
        known = [rank for rank in self._ranks if rank not in new]
        due = {known[(self._turn + count) % len(known)] for count in range(min(_AT_ONCE, len(known)))}
        self._turn += _AT_ONCE
        for rank in due.union(known[:1]):
            self._ranks[rank].read()

    def _read_roles(self) -> None:
        """Which ranks do the same work, as the last page says: nothing of a run that has none."""
        page = self._run.folder / layout.PAGE_DATA
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            changed = page.lstat().st_mtime_ns
            if changed != self._page_changed:
                self._page_changed = changed
                told = read_json(page, _PageData, "a page").ranks_together
                for window in () if told is None else told.windows.values():
                    self._roles.update(zip(window.ranks.rank, window.ranks.role, strict=False))

    def _found(self) -> set[int]:
        """The ranks that left a sign of themselves."""
        names = [path.name for path in self._run.folder.iterdir()]
        return layout.ranks_of_run(names).union(layout.owner.ranks(names), layout.status.ranks(names))

    def _windows(self) -> tuple[int, dict[str, int]]:
        """How many windows there are, and those that are not finished, with how many ranks are not."""
        changed: dict[Path, int] = {}
        for folder in self._run.window_folders():
            if layout.steps_of(folder.name):
                with contextlib.suppress(FileNotFoundError):  # an old one has just been deleted
                    changed[folder] = folder.lstat().st_mtime_ns
        self._finished = {folder: at for folder, at in self._finished.items() if changed.get(folder) == at}
        unfinished = {}
        for folder in sorted(changed, key=changed.__getitem__)[-_WINDOWS:]:
            if folder not in self._finished:
                count = sum(_unfinished(folder))
                if count:
                    unfinished[folder.name] = count
                else:
                    self._finished[folder] = changed[folder]
        return len(changed), unfinished


class _Rank:
    """What is known of a rank."""

    def __init__(self, run: Run, rank: int, rows: int) -> None:
        self.rank = rank
        self._run = run
        self._tail = Tail(run.timeline(rank), rows * _ROW_BYTES)
        self.rows: deque[Row] = deque(maxlen=rows)
        self.status: Status | None = None
        self.slow: list[SlowStep] = []
        self._slow_file: tuple[int, int] | None = None
        self.is_alive: bool | None = None
        self.changed = 0.0
        """When a file of it changed last, in seconds since 1970."""

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
            found = path.lstat()
            if (found.st_ino, found.st_size) != self._slow_file:
                self._slow_file = (found.st_ino, found.st_size)
                self.slow = slow_steps.read(path, _SLOW_BYTES)[-LAST_SLOW:]

    def step(self, stage: str) -> int | None:
        """The step that goes on: after the last one that is written, or where the rank said later that it is."""
        found = [row.step + 1 for row in self.rows if row.stage == stage][-1:]
        if self.status is not None and self.status.loop.stage == stage:
            found.append(self.status.loop.step)
        return max(found, default=None)

    def of(self, stage: str) -> list[Row]:
        return [row for row in list(self.rows)[-_RANK_ROWS:] if row.stage == stage]

    def seen(self, stage: str, roles: Mapping[int, int]) -> RankSeen:
        rows = self.of(stage)[-RANK_STEPS:]
        waits = [row.data_ms for row in rows if row.data_ms is not None]
        return RankSeen(
            rank=self.rank,
            step=self.step(stage),
            median_ms=median(row.wall_ms for row in rows) if rows else None,
            data_ms=fmean(waits) if waits else None,
            is_alive=self.is_alive,
            role=roles.get(self.rank),
        )


def _is_step(row: Row) -> bool:
    """Whether a row is of a step: the file may be anybody's."""
    is_time = all(0 <= (each or 0.0) < MINUTE_MS * 1e6 for each in row[3:])
    return is_time and 0 <= row.step < _LARGEST_STEP and len(row.stage) <= _LONGEST_STAGE


def _stage(ranks: Sequence[_Rank]) -> str:
    loops = [rank.status.loop for rank in ranks if rank.status is not None]
    running = Counter(loop.stage for loop in loops if loop.is_running)
    if running:
        return running.most_common(1)[0][0]
    last = [rank.rows[-1].stage for rank in ranks if rank.rows]
    return (last or [loop.stage for loop in loops] or [""])[0]


def _last_slow(ranks: Sequence[_Rank]) -> tuple[tuple[int, SlowStep], ...]:
    """The last slow steps of all ranks; those of several loops have numbers that say nothing of their order."""
    found = [(rank.rank, step) for rank in ranks for step in rank.slow]
    return tuple(sorted(found, key=lambda each: each[1].step, reverse=True)[:LAST_SLOW])


def _unfinished(window: Path) -> Iterator[bool]:
    """For each rank of a window, whether its files are still to be made."""
    for place in places_of(window):
        with contextlib.suppress(PerfhooksError):
            yield place.load().state != "done"
