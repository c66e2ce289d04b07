from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from perfhooks.core import words
from perfhooks.trace.names import step_kinds
from perfhooks.trace.nesting import device, intervals, missing_work, starts
from perfhooks.trace.nesting.step_marks import MarkedSteps, step_of
from perfhooks.trace.tables import step_columns
from perfhooks.trace.tables.steps import own_moments

if TYPE_CHECKING:
    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.model import Ints
    from perfhooks.trace.nesting.intervals import Flags, Intervals


class WindowSteps:
    """Complete steps after the first steps of the program, without rare validations, rare checkpoints and outliers.

    If the trace has no step marks, the whole recording counts as one step.
    """

    def __init__(self, capture: Capture, trace: Trace) -> None:
        self.capture = capture
        self.circumstances = capture.circumstances
        self.trace = trace
        self.tables = capture.tables(trace)

    @cached_property
    def steps(self) -> pl.DataFrame:
        return self.tables.steps.filter(pl.Series(self._selected, dtype=pl.Boolean))

    @cached_property
    def _selected(self) -> Flags:
        table = self.tables.steps
        usual, numbers = step_kinds.usual(table), table["step"].fill_null(0).to_numpy()
        later: Flags = usual & (numbers >= self.capture.first + self.capture.starting_steps)
        return later if later.any() else usual

    @cached_property
    def is_device_traced(self) -> bool:
        unknown = missing_work.unknown(self.trace).wall[self.selected_marks]
        return self.trace.is_device_traced and not unknown.any()

    @property
    def uses_device(self) -> bool:
        """Whether the program launched device work, even if device times are unknown."""
        return self.trace.is_device_traced or len(device.launch_calls(self.trace)) > 0

    @cached_property
    def is_start(self) -> bool:
        """Whether all steps are first steps of the program."""
        until = self.capture.first + self.capture.starting_steps
        unnumbered = self.capture.first if self.capture.is_part else until
        is_starting: bool = (self.steps["step"].fill_null(unnumbered) < until).all()
        return self.count > 0 and is_starting

    @cached_property
    def marks(self) -> MarkedSteps:
        marks, counting = self.tables.marks, np.flatnonzero(self.tables.counting)[self._selected]
        return MarkedSteps(
            [marks.number[index] for index in counting.tolist()], *(column[counting] for column in marks[1:])
        )

    @property
    def are_numbered(self) -> bool:
        return self.steps.height > 0 and self.steps["step"].null_count() == 0

    @property
    def unit(self) -> str:
        return "step" if self.are_numbered else "recording"

    @cached_property
    def count(self) -> int:
        return self.steps.height

    @cached_property
    def numbers(self) -> str:
        if not self.are_numbered:
            return "the whole recording"
        return words.steps_of_mean(self.steps["step"].to_list(), self.tables.steps["step"].to_list())

    def mean(self, column: str) -> float:
        values = step_columns.known(self.steps[column])
        return float(values.sum()) / self.count if len(values) else 0.0

    @cached_property
    def step_ms(self) -> float:
        """Mean over the steps of the wall time, or of the device time if it is longer."""
        wall, busy = self.steps["wall_ms"].to_numpy(), self.steps["busy_ms"].fill_null(0).to_numpy()
        return float(np.maximum(wall, busy).mean()) if self.count else 0.0

    @cached_property
    def selected_marks(self) -> Flags:
        mask: Flags = self.tables.counting.copy()
        mask[mask] = self._selected
        return mask

    @cached_property
    def windows(self) -> Intervals:
        """Intervals of the steps, without the work of perfhooks itself."""
        return intervals.subtract(intervals.union(self.marks.start, self.marks.end), self._own_work)

    @cached_property
    def _own_work(self) -> Intervals:
        return own_moments(self.trace, self.tables.own_work)

    def inside(self, time: Ints) -> Flags:
        return step_of(self.marks, time) >= 0

    @cached_property
    def startup(self) -> dict[str, Intervals]:
        """Intervals of each kind of one-time work. Compilation does not count if the last step compiles, too."""
        by_name = {
            name: intervals.intersect(intervals_of_name, self.windows)
            for name, intervals_of_name in starts.by_kind(self.trace).items()
        }
        if self.are_numbered and len(by_name.get(starts.COMPILING, ())):
            begin, end = int(self.marks.start.max()), int(self.marks.end.max())
            if len(intervals.clip(by_name[starts.COMPILING], begin, end)):
                del by_name[starts.COMPILING]
        return {name: moments for name, moments in by_name.items() if len(moments)}

    @cached_property
    def _usual_intervals(self) -> Intervals:
        return intervals.subtract(self.windows, intervals.joined(*self.startup.values()))

    def spans(self, rows: Ints) -> Intervals:
        return self.clipped(intervals.of_slices(self.trace, rows))

    def clipped(self, moments: Intervals) -> Intervals:
        """Return the intersection of the intervals with the steps, without one-time work."""
        return intervals.intersect(moments, self._usual_intervals)

    def per_step(self, moments: Intervals) -> float:
        return intervals.total(moments) * intervals.MS / max(self.count, 1)

    @cached_property
    def busy(self) -> Intervals:
        return device.busy(self.trace) if self.is_device_traced else intervals.nothing()
