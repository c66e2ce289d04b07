"""Results in mmengine's log, its log line and the scalars of its visualizer."""

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
"""File in the visualizer's folder, with one line of JSON per recorded step."""

_SPLIT: Final = ("wall_ms", *(f"{part}_ms" for part in labels.PARTS), "other_ms", "device_busy_ms")
_SHOWN: Final = "train/perf_"


class _ForwardingHandler(logging.Handler):
    def __init__(self, target: logging.Logger) -> None:
        super().__init__()
        self.target = target
        self.users = 0
        self.runs: set[str] = set()
        """Run folders of this training. After the training, only log lines with one of these names are added."""

    def emit(self, record: logging.LogRecord) -> None:
        if self.runs and not any(run in record.getMessage() for run in self.runs):
            return
        if any(getattr(getattr(handler, "stream", None), "closed", False) for handler in self.target.handlers):
            return
        if self.target.isEnabledFor(record.levelno):
            self.target.handle(record)


class RunnerLog:
    """Adds log records of perfhooks to the log of a runner, once for all its hooks."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._handler: _ForwardingHandler | None = None

    def join(self, runner: Any) -> None:
        self.leave()
        if not self._is_wanted:
            return
        handlers = (handler for handler in logger.handlers if isinstance(handler, _ForwardingHandler))
        self._handler = next((handler for handler in handlers if handler.target is runner.logger), None)
        if self._handler is None:
            self._handler = _ForwardingHandler(runner.logger)
            logger.addHandler(self._handler)
        self._handler.users += 1
        self._handler.runs.clear()
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)

    def stay_for(self, runs: Iterable[str]) -> None:
        """Send only log lines that name one of ``runs`` from now on, because the process may start other trainings."""
        if self._handler is not None:
            self._handler.runs.update(runs)

    def leave(self) -> None:
        handler, self._handler = self._handler, None
        if handler is None:
            return
        handler.users -= 1
        if not handler.users:
            logger.removeHandler(handler)


class LogLine:
    """The periodic log line of mmengine, which shows the numbers of each window once."""

    def __init__(self) -> None:
        self._methods = WrappedMethods()

    def show(self, runner: Any, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            runner.message_hub.update_scalar(f"{_SHOWN}{name}", value, resumed=False)
        self._methods.wrap(runner.log_processor, "get_log_after_iter", self._show_once)

    def leave(self) -> None:
        self._methods.unwrap()

    def _show_once(self, make_line: Callable[..., Any]) -> Callable[..., Any]:
        """Remove the numbers of perfhooks after one line, because each line shows the whole message hub."""

        @functools.wraps(make_line)
        def line(runner: Any, batch_idx: int, mode: str) -> Any:
            entry = make_line(runner, batch_idx, mode)
            if mode == "train":
                self._methods.unwrap()
                shown = runner.message_hub.log_scalars
                for name in [name for name in shown if name.startswith(_SHOWN)]:
                    del shown[name]
            return entry

        return line


def show(runner: Any, capture: Capture, place: Place, line: LogLine) -> None:
    """Send the steps to the visualizer, and the mean of training steps to the log line."""
    rows = list(step_rows(place))
    for step, row in rows:
        scalars = {f"perf/{capture.stage}/{name}": value for name, value in row.items()}
        runner.visualizer.add_scalars(scalars, step=step, file_path=FILE)
    if capture.stage == "train":
        columns = {name: [row[name] for _, row in rows if name in row] for name in _SPLIT}
        line.show(runner, {name: fmean(values) for name, values in columns.items() if values})
