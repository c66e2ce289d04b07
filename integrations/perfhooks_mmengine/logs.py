"""What mmengine's users read: the runner's log, its log line and the scalars of its visualizer."""

from __future__ import annotations

import csv
import logging
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from perfhooks import labels

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from perfhooks import Capture
    from perfhooks.run.capture import Place

FILE: Final = "perfhooks.json"
"""In the visualizer's folder: one line of JSON per recorded step."""

_LOGGER: Final = logging.getLogger("perfhooks")
_KEYS: Final = ("rank", "stage", "step")
_SPLIT: Final = ("wall_ms", *(f"{part}_ms" for part in labels.PARTS), "other_ms", "busy_ms")
"""The columns that a log line shows."""


class _PassOn(logging.Handler):
    """Gives what perfhooks logs to a runner's logger."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self.target = target
        self.users = 0

    def emit(self, record: logging.LogRecord) -> None:
        if self.target.isEnabledFor(record.levelno):
            self.target.handle(record)


class RunnerLog:
    """Lets what perfhooks logs appear in the log of a runner, once, whatever the number of hooks that want it."""

    def __init__(self) -> None:
        self._handler: _PassOn | None = None

    def join(self, runner: Any) -> None:
        """Pass on what is logged from now on."""
        self.leave()
        known = (handler for handler in _LOGGER.handlers if isinstance(handler, _PassOn))
        self._handler = next((handler for handler in known if handler.target is runner.logger), None)
        if self._handler is None:
            self._handler = _PassOn(runner.logger)
            _LOGGER.addHandler(self._handler)
        self._handler.users += 1
        if _LOGGER.level == logging.NOTSET:
            _LOGGER.setLevel(logging.INFO)  # the runner's log has a level of its own

    def leave(self) -> None:
        """Pass on nothing more."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.users -= 1
        if not handler.users:
            _LOGGER.removeHandler(handler)


def show(runner: Any, capture: Capture, place: Place) -> None:
    """Hand the steps of a window to the visualizer, and their mean to the log line if they are training steps."""
    rows = list(_steps(place.artifact("steps.csv")))
    for step, row in rows:
        scalars = {f"perf/{capture.stage}/{name}": value for name, value in row.items()}
        runner.visualizer.add_scalars(scalars, step=step, file_path=FILE)
    if capture.stage != "train":
        return
    for name in _SPLIT:
        values = [row[name] for _, row in rows if name in row]
        if values:
            runner.message_hub.update_scalar(f"train/perf_{name}", fmean(values), resumed=False)


def _steps(table: Path) -> Iterator[tuple[int, Mapping[str, float]]]:
    """The numbered steps of a table, less what was not measured; nothing if there is no table."""
    if not table.exists():
        return
    with table.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["step"]:
                yield int(row["step"]), {name: float(row[name]) for name in row if name not in _KEYS and row[name]}
