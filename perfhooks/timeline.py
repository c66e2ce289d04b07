"""The clock of every step, profiled or not: what a step costs when nobody looks."""

from __future__ import annotations

import collections
import time
from array import array
from typing import TYPE_CHECKING

import numpy as np

from perfhooks.schedule import Phase

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = "stage,step,phase,wall_ms,data_ms\n"
CAPACITY = 1 << 16
"""Steps kept in memory before they are appended to the file."""

clock = time.perf_counter_ns


def wall_times(path: Path, stage: str) -> tuple[list[float], list[float]]:
    """What steps took without and with the recorder, from the last :data:`CAPACITY` steps that were written.

    Args:
        path: A timeline file; one that is not there has no steps.
        stage: The loop.

    Returns:
        The wall times of idle and of active steps, in milliseconds. The first step of a loop is in neither: it starts
        what is started once.
    """
    try:
        with path.open(encoding="utf-8") as file:
            rows = [line.split(",") for line in collections.deque(file, CAPACITY)]
    except FileNotFoundError:
        return [], []
    times: dict[str, list[float]] = {"wait": [], "active": []}
    for name, step, phase, wall, *_ in rows:
        if name == stage and step != "0" and phase in times:
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
        self._changes: list[tuple[int, str]] = [(0, Phase.WAIT.name.lower())]
        self._ends = array("q")
        self._arrivals = array("q")
        self._begins: dict[int, int] = {}
        self.end_step: Callable[[int], None] = self._ends.append
        """Takes the clock at the end of a step."""
        self.data_arrived: Callable[[int], None] = self._arrivals.append
        """Takes the clock when a step has its batch."""

    def begin(self, step: int) -> None:
        """Say that ``step`` begins now: at the start, and after we kept the loop waiting."""
        if not self._ends and not self._begins:
            self._first = step
        self._begins[step] = clock()

    def enter(self, step: int, phase: Phase) -> None:
        """Say that ``phase`` begins with ``step``."""
        if self._changes[-1][1] != phase.name.lower():
            self._changes.append((step, phase.name.lower()))

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

    def append_to(self, path: Path) -> None:
        """Append the steps that have ended to a CSV file: stage, step, phase, wall time and wait for data in ms."""
        numbers, walls, waits = self.take()
        if not len(numbers):
            return
        rows = [
            f"{self._stage},{step},{phase},{wall / 1e6:.6f},{_ms(wait)}\n"
            for step, phase, wall, wait in zip(
                numbers.tolist(), self._phases(numbers), walls.tolist(), waits.tolist(), strict=True
            )
        ]
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(("" if file.tell() else HEADER) + "".join(rows))

    def _phases(self, numbers: np.ndarray) -> list[str]:
        """The phase of each step; of the changes, only the last is needed later."""
        steps = [step for step, _ in self._changes]
        found = np.searchsorted(steps, numbers, side="right") - 1
        names = [self._changes[index][1] for index in found.tolist()]
        self._changes = self._changes[found[-1] :]
        return names


def _ms(nanoseconds: int) -> str:
    return "" if nanoseconds < 0 else f"{nanoseconds / 1e6:.6f}"
