"""The clock of every step, profiled or not: what a step costs when nobody looks."""

from __future__ import annotations

import time
from array import array
from typing import IO, TYPE_CHECKING, NamedTuple

import numpy as np

from perfhooks.schedule import Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = "stage,step,phase,wall_ms,data_ms\n"
CAPACITY = 1 << 16
"""Steps kept in memory before they are appended to the file."""

_ROW_BYTES = 48
_FIRST_STEPS = 3

clock = time.perf_counter_ns


def wall_times(path: Path, stage: str) -> tuple[list[float], list[float]]:
    """What steps took without and with the recorder, from the last :data:`CAPACITY` steps that were written.

    Args:
        path: A timeline file; one that is not there has no steps.
        stage: The loop.

    Returns:
        The wall times of idle and of active steps, in milliseconds. The first steps of a training are in neither: they
        start what is started once.
    """
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - CAPACITY * _ROW_BYTES))
            # the first row may have lost its beginning, or be the header
            rows = [line.split(",") for line in file.read().decode("utf-8", "replace").splitlines()[1:]]
    except FileNotFoundError:
        return [], []
    times: dict[str, list[float]] = {"wait": [], "active": []}
    for name, step, phase, wall, *_ in rows:
        if name == stage and phase in times and int(step) >= _FIRST_STEPS:
            times[phase].append(float(wall))
    return times["wait"], times["active"]


class Timeline:
    """Begins and arrivals of data of consecutive steps, as raw clock readings; arithmetic waits until they are written.

    Args:
        stage: The loop that is timed.
    """

    def __init__(self, stage: str) -> None:
        self._stage = stage
        self._first = 0
        self._changes: list[tuple[int, Phase]] = [(0, Phase.WAIT)]
        self._ends = array("q")
        self._arrivals = array("q")
        self._begins: dict[int, int] = {}

    @property
    def end_step(self) -> Callable[[int], None]:
        """Takes the clock at the end of a step."""
        return self._ends.append

    @property
    def data_arrived(self) -> Callable[[int], None]:
        """Takes the clock when a step has its batch."""
        return self._arrivals.append

    def begin(self, step: int) -> None:
        """Say that ``step`` begins now: at the start, and after we kept the loop waiting."""
        if not self._ends and not self._begins:
            self._first = step
        self._begins[step] = clock()

    def enter(self, step: int, phase: Phase) -> None:
        """Say that ``phase`` begins with ``step``."""
        if self._changes[-1][1] is not phase:
            self._changes.append((step, phase))

    @property
    def full_at(self) -> int:
        """The step at which the readings should be written."""
        return self._first + CAPACITY

    def take(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Forget the steps that have ended and return them.

        Returns:
            Their numbers, their wall time and their wait for data, in nanoseconds; a wait nobody measured is -1.
        """
        ends = np.array(self._ends, dtype=np.int64)
        numbers = self._first + np.arange(len(ends))
        begins = np.concatenate([ends[:0], np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
        for step, begin in self._begins.items():
            if 0 <= step - self._first < len(begins):
                begins[step - self._first] = begin
        waits = np.full(len(ends), -1, dtype=np.int64)
        arrivals = np.array(self._arrivals, dtype=np.int64)
        owner = np.searchsorted(ends, arrivals, side="right")
        inside = owner < len(ends)
        waits[owner[inside]] = arrivals[inside] - begins[owner[inside]]
        self._restart(int(ends[-1]) if len(ends) else None, arrivals[~inside])
        return numbers, ends - begins, waits

    def _restart(self, last_end: int | None, arrivals: np.ndarray) -> None:
        count = len(self._ends)
        begins = {step: begin for step, begin in self._begins.items() if step >= self._first + count}
        self._first += count
        if last_end is not None:
            begins.setdefault(self._first, last_end)
        self._begins = begins
        del self._ends[:]
        self._arrivals[:] = array("q", arrivals.tolist())

    def rows(self) -> Rows:
        """Forget the steps that have ended and return them, ready to be written."""
        numbers, walls, waits = self.take()
        return Rows(self._stage, numbers, self._phases(numbers), walls, waits)

    def _phases(self, numbers: np.ndarray) -> np.ndarray:
        """The phase of each step; of the changes, only the last is needed later."""
        if not len(numbers):
            return np.empty(0, np.int8)
        steps, phases = zip(*self._changes, strict=True)
        found = np.searchsorted(steps, numbers, side="right") - 1
        self._changes = self._changes[int(found[-1]) :]
        return np.array([list(Phase).index(phase) for phase in phases], np.int8)[found]


class Rows(NamedTuple):
    """Steps that have ended, as they go into the file."""

    stage: str
    numbers: np.ndarray
    phases: np.ndarray
    """Indices into the members of :class:`Phase`."""
    walls: np.ndarray
    """Nanoseconds."""
    waits: np.ndarray
    """Nanoseconds; -1 where nobody measured."""

    def append_to(self, path: Path) -> None:
        """Append to a CSV file: stage, step, phase, wall time and wait for data in ms."""
        columns = (self.numbers.tolist(), self.phases.tolist(), self.walls.tolist(), self.waits.tolist())
        lines = [
            f"{self.stage},{step},{_PHASES[phase]},{wall / 1e6:.6f},{_ms(wait)}\n"
            for step, phase, wall, wait in zip(*columns, strict=True)
        ]
        if lines:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(("" if file.tell() else HEADER) + "".join(lines))

    def save(self, file: IO[bytes]) -> None:
        """Write as they are: fifty times as fast as text, for somebody else to :meth:`load`."""
        np.savez(file, stage=self.stage, numbers=self.numbers, phases=self.phases, walls=self.walls, waits=self.waits)

    @classmethod
    def load(cls, path: Path) -> Rows:
        """Read what was saved."""
        with np.load(path) as saved:
            return cls(str(saved["stage"]), saved["numbers"], saved["phases"], saved["walls"], saved["waits"])


_PHASES = tuple(phase.name.lower() for phase in Phase)


def _ms(nanoseconds: int) -> str:
    return "" if nanoseconds < 0 else f"{nanoseconds / 1e6:.6f}"
