"""What mmengine's users read: the runner's log, its log line and the scalars of its visualizer."""

from __future__ import annotations

import functools
import logging
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final

from perfhooks.adapters import WrappedMethods, labels, logger, step_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perfhooks import Capture
    from perfhooks.adapters import Place

FILE: Final = "perfhooks.json"
"""In the visualizer's folder: one line of JSON per recorded step."""

_SPLIT: Final = ("wall_ms", *(f"{part}_ms" for part in labels.PARTS), "other_ms", "device_busy_ms")
"""The columns that a log line shows."""
_SHOWN: Final = "train/perf_"


class _PassOn(logging.Handler):
    """Gives what perfhooks logs to a runner's logger."""

    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self.target = target
        self.users = 0
        self.runs: set[str] = set()
        """The folders that lines must name, once the training is over."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.runs and not any(run in record.getMessage() for run in self.runs):
            return  # of another training, or of none
        if any(getattr(getattr(handler, "stream", None), "closed", False) for handler in self.target.handlers):
            return
        if self.target.isEnabledFor(record.levelno):
            self.target.handle(record)


class RunnerLog:
    """Lets what perfhooks logs appear in the log of a runner, once, whatever the number of hooks that want it.

    Args:
        is_wanted: Whether this one does.
    """

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._handler: _PassOn | None = None

    def join(self, runner: Any) -> None:
        """Pass on what is logged from now on."""
        self.leave()
        if not self._is_wanted:
            return
        known = (handler for handler in logger.handlers if isinstance(handler, _PassOn))
        self._handler = next((handler for handler in known if handler.target is runner.logger), None)
        if self._handler is None:
            self._handler = _PassOn(runner.logger)
            logger.addHandler(self._handler)
        self._handler.users += 1
        self._handler.runs.clear()
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)  # the runner's log has a level of its own

    def stay_for(self, runs: Iterable[str]) -> None:
        """Pass on only what is said of some runs: the training is over, and others may follow in this process."""
        if self._handler is not None:
            self._handler.runs.update(runs)

    def leave(self) -> None:
        """Pass on nothing more."""
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.users -= 1
        if not handler.users:
            logger.removeHandler(handler)


class LogLine:
    """The line that mmengine logs every so many iterations: it shows the numbers of a window once."""

    def __init__(self) -> None:
        self._methods = WrappedMethods()

    def show(self, runner: Any, values: Mapping[str, float]) -> None:
        """Have the next line of the training show some numbers."""
        for name, value in values.items():
            runner.message_hub.update_scalar(f"{_SHOWN}{name}", value, resumed=False)
        self._methods.wrap(runner.log_processor, "get_log_after_iter", self._and_forget)

    def leave(self) -> None:
        """The training is over."""
        self._methods.unwrap()

    def _and_forget(self, make_line: Callable[..., Any]) -> Callable[..., Any]:
        """A line shows all that the runner's message hub has: take our numbers out when one line has shown them."""

        @functools.wraps(make_line)
        def line(runner: Any, batch_idx: int, mode: str) -> Any:
            made = make_line(runner, batch_idx, mode)
            if mode == "train":
                self._methods.unwrap()
                shown = runner.message_hub.log_scalars
                for name in [name for name in shown if name.startswith(_SHOWN)]:
                    del shown[name]
            return made

        return line


def show(runner: Any, capture: Capture, place: Place, line: LogLine) -> None:
    """Hand the steps of a window to the visualizer, and their mean to the log line if they are training steps."""
    rows = list(step_rows(place))
    for step, row in rows:
        scalars = {f"perf/{capture.stage}/{name}": value for name, value in row.items()}
        runner.visualizer.add_scalars(scalars, step=step, file_path=FILE)
    if capture.stage == "train":
        columns = {name: [row[name] for _, row in rows if name in row] for name in _SPLIT}
        line.show(runner, {name: fmean(values) for name, values in columns.items() if values})
