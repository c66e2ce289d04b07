from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import torch

from perfhooks.core.errors import NothingRecordedError, OptionError
from perfhooks.core.guard import logger
from perfhooks.record.loop.like_torch.accepted import metadata_json
from perfhooks.record.loop.like_torch.results import TorchProfile
from perfhooks.record.loop.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.record.loop.controller import LoopController


class _ReplacesTorch(type):
    """Makes windows pass ``isinstance`` checks if the program replaced ``torch.profiler.profile`` by ``Profiler``."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (torch.profiler.profile is cls and isinstance(instance, Window))


class TorchInterface(TorchProfile, metaclass=_ReplacesTorch):
    """Type, attributes and methods of ``torch.profiler.profile``."""

    def __init__(self, course: LoopController, on_trace_ready: Any) -> None:
        self._course = course
        self.pulse = course.pulse
        recording = course.windows.recording
        try:
            super().__init__(**recording, on_trace_ready=on_trace_ready)
        except (AssertionError, TypeError, ValueError) as error:
            raise OptionError(f"torch.profiler rejects these options: {recording!r} ({error})") from error
        self.action_map.clear()  # delete torch's reference to this object, which must be freed with its last reference
        self.schedule = course.action
        self.record_steps = not course.requests.is_until_stop
        # torch may have created one because of an environment variable
        recording["execution_trace_observer"] = self.execution_trace_observer

    @property
    def is_recording(self) -> bool:
        return self.pulse.is_recording

    @property
    def step_num(self) -> int:
        return self.pulse.step

    @step_num.setter
    def step_num(self, step: int) -> None:
        self.pulse.step = step

    @property
    def current_action(self) -> Any:
        window = self._course.windows.current
        return self._course.action(self.step_num) if window is None else window.current_action

    @current_action.setter
    def current_action(self, action: Any) -> None:
        """Ignore the value, which only torch's constructor assigns."""

    @property
    def profiler(self) -> Any:
        """torch's recorder of the open window, else of the last window."""
        windows = self._course.windows
        window = windows.current or windows.last
        return None if window is None else window.profiler

    @profiler.setter
    def profiler(self, recorder: Any) -> None:
        """Ignore the value, which only torch's constructor assigns."""

    def prepare_trace(self) -> None:
        """Do nothing, because each window prepares its own recorder."""

    def start_trace(self) -> None:
        self.start()

    def stop_trace(self) -> None:
        self.stop()

    @property
    def _results(self) -> Window:
        last = self._course.windows.last
        if last is None:
            raise NothingRecordedError(self._course.why_nothing())
        return last

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """Return torch's operator table of the last window."""
        return self._results.key_averages(*args, **kwargs)

    def events(self) -> Any:
        return self._results.events()

    def table(self, *args: Any, **kwargs: Any) -> str:
        return str(self.events().table(*args, **kwargs))

    @property
    def function_events(self) -> Any:
        return self.events()

    @property
    def self_cpu_time_total(self) -> float:
        return float(self.events().self_cpu_time_total)

    def total_average(self) -> Any:
        return self.events().total_average()

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write the last window's trace, compressed if the name ends in ``.gz``."""
        self._results.export_chrome_trace(path, *args, **kwargs)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write the last window's folded stacks, in microseconds as in torch."""
        self._results.export_stacks(path, metric)

    def export_memory_timeline(self, path: str, device: str | None = None) -> None:
        self._results.export_memory_timeline(path, device)

    def wait_for_exports(self, *args: Any, **kwargs: Any) -> Any:
        last = self._course.windows.last
        return None if last is None else last.wait_for_exports(*args, **kwargs)

    def take_pending_cuspy_export(self, *args: Any, **kwargs: Any) -> Any:
        last: Any = self._course.windows.last
        return None if last is None else last.take_pending_cuspy_export(*args, **kwargs)

    def take_pending_cupti_export(self, *args: Any, **kwargs: Any) -> Any:
        last: Any = self._course.windows.last
        return None if last is None else last.take_pending_cupti_export(*args, **kwargs)

    def get_trace_id(self) -> Any:
        return (self._course.windows.current or self._results).get_trace_id()  # type: ignore[no-untyped-call]  # untyped in torch

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        self.custom_trace_id_callback = callback
        self._course.windows.recording["custom_trace_id_callback"] = callback

    def add_metadata(self, key: str, value: str) -> None:
        self.add_metadata_json(key, json.dumps(value))

    def add_metadata_json(self, key: str, value: str) -> None:
        window = self._course.windows.current
        if window is not None and self.is_recording:
            window.add_metadata_json(key, metadata_json(value))
        else:
            self.preset_metadata_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to all later traces."""
        windows = self._course.windows
        windows.metadata[key] = value = metadata_json(value)
        if windows.current is not None:
            windows.current.preset_metadata_json(key, value)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        window = self._course.windows.current
        if window is None or not self.is_recording:
            return
        if hasattr(window, "toggle_collection_dynamic"):
            window.toggle_collection_dynamic(enable, activities)
        else:
            logger.warning("this torch cannot disable or enable collection; torch 2.5 or later can")
