from __future__ import annotations

import contextlib
import math
import os
import re
import threading
from array import array
from bisect import bisect_right
from collections import deque
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from perfhooks.core import labels
from perfhooks.core.clocks import system_ahead_s, time
from perfhooks.core.schedule import Phase
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

HEADER = "stage,step,phase,wall_ms,data_ms,backward_ms,update_ms\n"
CAPACITY = 1 << 16
"""Maximum steps in memory. Older steps are in the file."""

_ASIDE: Final = 1024
"""Number of latest validations and checkpoints in memory. A training has about two of them per epoch."""

clock = time.perf_counter_ns


OWN_WORK: Final[deque[tuple[int, int, int]]] = deque(maxlen=_ASIDE)
"""Intervals in which perfhooks blocked a thread: identifier of the thread, begin and end in ns."""


def own_work_s(began: float, ended: float) -> tuple[tuple[float, float], ...]:
    """Return begin and end of the intervals in which perfhooks blocked the calling thread, in seconds since 1970."""
    ahead_s, thread = system_ahead_s(), threading.get_ident()
    work = ((begin * 1e-9 + ahead_s, end * 1e-9 + ahead_s) for own, begin, end in list(OWN_WORK) if own == thread)
    return tuple((max(begin, began), min(end, ended)) for begin, end in work if begin < ended and end > began)


class Row(NamedTuple):
    stage: str
    step: int
    phase: str
    wall_ms: float
    data_ms: float | None
    backward_ms: float | None = None
    """Time in ms from the start of the step to the start of the last backward pass."""
    update_ms: float | None = None
    """Time in ms from the start of the step to the update, which begins after the last backward pass."""


def parsed(text: bytes) -> Iterator[Row]:
    """Yield the rows of a timeline. The first line, which may be torn, is skipped."""
    for line in text.decode("utf-8", "replace").splitlines()[1:]:
        with contextlib.suppress(ValueError):
            stage, step, phase, wall, *parts = line.split(",")
            row = Row(stage, int(step), phase, float(wall), *(float(part) if part else None for part in parts[:3]))
            if all(math.isfinite(value or 0.0) for value in row[3:]):
                yield row


class Aside(NamedTuple):
    step: int
    part: str
    ns: int
    line: str


class Ended(NamedTuple):
    numbers: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    waits: np.ndarray
    """Waits for data in ns; -1 if unknown, also in the following fields."""
    backwards: np.ndarray
    updates: np.ndarray


class Timeline:
    """Raw clock readings of the steps of a loop.

    Step times are computed from the readings when the timeline is written. The training thread only adds clock
    readings. Another thread removes ended steps, and holds the lock ``taking`` like all callers of `take`, `take_rare`,
    `reached`, `since` and `walls_since`. Each access is one operation of a list, a dictionary or an array in C,
    without a garbage collection in between, so no thread waits for another.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._first = 0
        self._changes: list[tuple[int, Phase]] = [(0, Phase.WAIT)]
        self._ends = array("q")
        self._arrivals = array("q")
        self._asked = array("q")
        self._passes = array("q")
        self._aside: deque[tuple[int, int, str]] = deque(maxlen=_ASIDE)
        self._rare: deque[tuple[int, int, str, str]] = deque(maxlen=_ASIDE)
        self._rare_until: dict[str, int] = {}
        self._begins: dict[int, int] = {}
        self.is_kept = False
        """Whether perfhooks currently blocks the loop."""
        self._tail = Ended(*(np.empty(0, np.int64) for _ in Ended._fields))
        self.taking = threading.RLock()
        """Lock for `take`. The caller holds the lock until the steps are written, to keep their order."""

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "taking"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, taking=threading.RLock())

    @property
    def end_step(self) -> Callable[[int], None]:
        return self._ends.append

    @property
    def data_arrived(self) -> Callable[[int], None]:
        return self._arrivals.append

    @property
    def data_asked(self) -> Callable[[int], None]:
        """Function that records the time in ns at which the training requests a batch: the start of a wait for data."""
        return self._asked.append

    @property
    def passed_back(self) -> Callable[[Iterable[int]], None]:
        return self._passes.extend

    def set_aside(self, begin: int, end: int, part: str = labels.VALIDATION, line: str = "") -> None:
        """Store the interval of a validation or checkpoint.

        Waits for validation batches are no data waits of the training.

        ::

            step    |   fetch  update |    fetch fetch fetch     fetch  update |
                                         [ evaluation, set aside ]
            wait        ~~~~~                                    ~~~~~
        """
        self._aside.append((begin, end, part))
        if part == labels.VALIDATION:
            self._asked.append(end)
        self._rare.append((begin, end, part, line))

    def take_rare(self) -> list[Aside]:
        """Remove and return the validations and checkpoints so far.

        The caller calls `take` later. Nested intervals of one part count once.
        """
        taken: list[Aside] = []
        rare = [self._rare.popleft() for _ in range(len(self._rare))]
        for begin, end, part, line in sorted(rare):
            since = max(begin, self._rare_until.get(part, 0))
            if end > since:
                self._rare_until[part] = end
                # a fetch for a validation can end the step before
                taken.append(Aside(self._first + bisect_right(self._ends, (begin + end) // 2), part, end - since, line))
        return taken

    def aside_within(self, begin: int, end: int, part: str) -> list[tuple[int, int]]:
        """Return the validations or checkpoints between two times, as sorted disjoint intervals."""
        intervals: list[tuple[int, int]] = []
        for first, last, of_part in sorted(self._aside):
            since = max(first, begin, intervals[-1][1] if intervals else begin)
            if of_part == part and min(last, end) > since:
                intervals.append((since, min(last, end)))
        return intervals

    def phase_of(self, step: int) -> Phase:
        changes = self._changes[:]
        return next((phase for first, phase in reversed(changes) if first <= step), changes[0][1])

    def begin(self, step: int) -> None:
        """Restart the clock of a step: at the start, and after perfhooks blocked the loop."""
        if not self._ends and not self._begins:
            self._first = step
        self._begins[step] = clock()
        self.is_kept = False

    def enter(self, step: int, phase: Phase) -> None:
        if self._changes[-1][1] is not phase:
            self._changes.append((step, phase))

    @property
    def full_at(self) -> int:
        return self._first + CAPACITY

    @property
    def waiting(self) -> int:
        return len(self._ends)

    @property
    def reached(self) -> int:
        """Number of the first step that has not ended."""
        return self._first + len(self._ends)

    def begin_of(self, step: int) -> int | None:
        """Return the start of a step in ns; None if the step has been removed by `take`."""
        result = self._begins.get(step)
        return self.end_of(step - 1) if result is None else result

    def end_of(self, step: int) -> int | None:
        """Return the end of a step in ns; None if it has not ended or has been removed by `take`."""
        place = step - self._first
        return self._ends[place] if 0 <= place < len(self._ends) else None

    def walls_since(self, step: int) -> tuple[int, np.ndarray]:
        """Return the number of the first stored step from ``step`` on, and the wall times in ns from there.

        `since`, which adds waits, takes three times as long.
        """
        place = step - self._first
        before = self._begins.get(step) if place == 0 else None
        if place <= 0 and before is None:
            steps = self.since(step)
            return int(steps.numbers[0]) if len(steps.numbers) else step, steps.ends - steps.begins
        ends = np.array(self._ends[place - 1 :] if before is None else [before, *self._ends], dtype=np.int64)
        walls = ends[1:] - ends[:-1]
        for again, begin in self._begins.copy().items():
            if 0 <= again - step < len(walls):
                walls[again - step] = ends[again - step + 1] - begin
        return step, walls

    def since(self, step: int) -> Ended:
        columns = [np.concatenate(pair) for pair in zip(self._tail, self._read()[0], strict=True)]
        return Ended(*(column[columns[0] >= step] for column in columns))

    def take(self) -> Ended:
        steps, arrived, requests, passed = self._read()
        if len(steps.numbers):
            before = (
                self._tail.numbers < steps.numbers[0]
            )  # this is not possible if a loop began again with an earlier step
            pairs = zip(self._tail, steps, strict=True)
            self._tail = Ended(*(np.concatenate([old[before], new])[-1024:] for old, new in pairs))
            self._forget(len(steps.numbers), arrived, requests, int(steps.ends[-1]))
            del self._passes[: 2 * passed]
        return steps

    def _read(self) -> tuple[Ended, int, int, int]:
        # slices: the training cannot append to an array while NumPy has a view of it
        ends = np.array(self._ends[:], dtype=np.int64)
        arrivals, requests, passes = (
            self._arrivals[:],
            self._asked[:],
            np.array(self._passes[:], np.int64).reshape(-1, 2),
        )
        first, begins = self._first, np.concatenate([ends[:0], np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
        for step, begin in self._begins.copy().items():
            if 0 <= step - first < len(begins):
                begins[step - first] = begin
        arrived = np.array(arrivals, dtype=np.int64)
        owner = np.searchsorted(ends, arrived, side="right")
        inside = owner < len(ends)
        validations = [(begin, end) for begin, end, part in list(self._aside) if part == labels.VALIDATION]
        counts = inside & ~_is_aside(arrived, validations)
        waits = _waits(begins, owner[counts], arrived[counts], requests)
        over = bisect_right(requests, int(ends[-1])) - 1 if len(ends) else 0
        passed = int(np.searchsorted(passes[:, 1], ends[-1], side="right")) if len(ends) else 0
        last_passes = _last_passes(begins, ends, passes[:passed])
        return Ended(first + np.arange(len(ends)), begins, ends, waits, *last_passes), int(inside.sum()), over, passed

    def _forget(self, count: int, arrived: int, requests: int, last_end: int) -> None:
        """Remove the first steps. Keep the begin of the first remaining step, which ends the last removed step."""
        following = self._first + count
        self._begins.setdefault(following, last_end)
        for step in list(self._begins):
            if step < following:
                del self._begins[step]
        self._first = following
        del self._ends[:count]
        del self._arrivals[:arrived]
        del self._asked[: max(0, requests)]

    def rows(self) -> Rows:
        steps = self.take()
        walls = steps.ends - steps.begins
        return Rows(self._stage, steps.numbers, self._phases(steps.numbers), walls, *steps[3:])

    def _phases(self, numbers: np.ndarray) -> np.ndarray:
        if not len(numbers):
            return np.empty(0, np.int8)
        steps, phases = zip(*self._changes[:], strict=True)
        result = np.searchsorted(steps, numbers, side="right") - 1
        del self._changes[: int(result[-1])]
        return np.array([list(Phase).index(phase) for phase in phases], np.int8)[result]


def _is_aside(times: np.ndarray, aside: list[tuple[int, int]]) -> np.ndarray:
    begins, ends = np.array([(-1, -1), *sorted(aside)], np.int64).T
    result: np.ndarray = times <= ends[np.searchsorted(begins, times, side="right") - 1]
    return result


def _waits(begins: np.ndarray, owner: np.ndarray, arrivals: np.ndarray, requests: array[int]) -> np.ndarray:
    requested = _last_asked(requests, arrivals)
    is_first = np.diff(owner, prepend=-1) != 0
    is_asked = requested >= np.concatenate([arrivals[:0], arrivals[:1], arrivals[:-1]])
    counts = is_first | is_asked
    since = np.where(is_first, np.maximum(begins[owner], requested), requested)
    waits = np.full(len(begins), -1, dtype=np.int64)
    waits[owner] = 0
    np.add.at(waits, owner[counts], (arrivals - since)[counts])
    return waits


def _last_passes(begins: np.ndarray, ends: np.ndarray, passes: np.ndarray) -> np.ndarray:
    result = np.full((2, len(ends)), -1, np.int64)
    owner = np.searchsorted(ends, passes[:, 1], side="left")
    result[:, owner] = (passes - begins[owner, None]).T
    result[:, result[0] < 0] = -1
    return result


def _last_asked(requests_ns: array[int], arrivals: np.ndarray) -> np.ndarray:
    requests = np.array([np.iinfo(np.int64).min, *requests_ns])
    result: np.ndarray = requests[np.searchsorted(requests, arrivals, side="right") - 1]
    return result


class Rows(NamedTuple):
    stage: str
    numbers: np.ndarray
    phases: np.ndarray
    walls: np.ndarray
    waits: np.ndarray
    """Waits for data in ns; -1 if unknown, also in the following fields."""
    backwards: np.ndarray
    updates: np.ndarray

    def phase_names(self) -> list[str]:
        return [_PHASES[phase] for phase in self.phases.tolist()]

    def append_to(self, path: Path) -> None:
        stage = in_timeline(self.stage)
        columns = (self.numbers.tolist(), self.phase_names(), *(column.tolist() for column in self[3:]))
        lines = [
            f"{stage},{step},{phase},{wall / 1e6:.6f},{_ms(wait)},{_ms(backward)},{_ms(update)}\n"
            for step, phase, wall, wait, backward, update in zip(*columns, strict=True)
        ]
        if lines:
            run = OwnFolder(path.parent)
            run.make()
            with run.append(path.name) as file:
                file.write((_before(file) + "".join(lines)).encode("utf-8", "replace"))

    def save(self, file: IO[bytes]) -> None:
        """Write binary data, fifty times as fast as text. Only `load` on this host can read the file."""
        file.write(f"{in_timeline(self.stage)}\n".encode("utf-8", "replace") + np.array(self[1:], np.int64).tobytes())

    @classmethod
    def load(cls, path: Path) -> Rows:
        """Read the file of `save`.

        Raise OSError if the file is unreadable or too large, ValueError if the content is invalid.
        """
        stage, _, columns = read_bytes(path).partition(b"\n")
        result = cls(
            stage.decode("utf-8", "replace"), *np.frombuffer(columns, np.int64).reshape(len(cls._fields) - 1, -1)
        )
        if not len(result.numbers) or not np.isin(result.phases, range(len(_PHASES))).all():
            raise ValueError("the file has no steps, or steps with an unknown phase")
        return result


_PHASES = tuple(phase.name.lower() for phase in Phase)


def in_timeline(stage: str) -> str:
    """Return a stage without special characters of CSV."""
    return re.sub(r'[\s,"]+', " ", stage)


def _before(file: IO[bytes]) -> str:
    if not file.seek(0, os.SEEK_END):
        return HEADER
    file.seek(-1, os.SEEK_END)
    return "" if file.read(1) == b"\n" else "\n"


def _ms(nanoseconds: int) -> str:
    return "" if nanoseconds < 0 else f"{nanoseconds / 1e6:.6f}"
