"""What code that was written for ``torch.profiler.profile`` asks a profiler, answered by its course."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from perfhooks.core.errors import NothingRecordedError, OptionError
from perfhooks.core.guard import logger
from perfhooks.record.loop.like_torch.accepted import metadata_json
from perfhooks.record.loop.window import TorchProfile, Window, is_exchanged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.record.loop.course import LoopController


class _Exchanged(type):
    """Lets ``isinstance(window, torch.profiler.profile)`` hold where that name was given to a face of ours."""

    def __instancecheck__(cls, instance: object) -> bool:
        return super().__instancecheck__(instance) or (is_exchanged(cls) and isinstance(instance, Window))


class TorchFace(TorchProfile, metaclass=_Exchanged):
    """A ``torch.profiler.profile`` by its type, its attributes and its methods, which itself records nothing.

    Args:
        course: Knows the steps and has the windows.
        on_trace_ready: What the user gave.

    Raises:
        OptionError: torch refuses an option.
    """

    def __init__(self, course: LoopController, on_trace_ready: Any) -> None:
        self._course = course
        self.pulse = course.pulse
        """What the loop touches at each step."""
        recording = course.windows.recording
        try:
            super().__init__(**recording, on_trace_ready=on_trace_ready)
        except (AssertionError, TypeError, ValueError) as error:
            raise OptionError(f"torch.profiler refuses these options: {recording!r} ({error})") from error
        self.action_map.clear()  # it refers to this object, which is to be gone when the program drops it
        self.schedule = course.action
        self.record_steps = not course.requests.is_until_stop
        # torch may have made one, as the environment asks for
        recording["execution_trace_observer"] = self.execution_trace_observer

    @property
    def is_recording(self) -> bool:
        """Whether the current step is recorded."""
        return self.pulse.is_recording

    @property
    def step_num(self) -> int:
        """Number of the current step, from 0."""
        return self.pulse.step

    @step_num.setter
    def step_num(self, step: int) -> None:
        self.pulse.step = step

    @property
    def current_action(self) -> Any:
        """What the schedule says of the current step, as torch names it."""
        window = self._course.windows.current
        return self._course.action(self.step_num) if window is None else window.current_action

    @current_action.setter
    def current_action(self, action: Any) -> None:
        """Only torch's own constructor gives one; the schedule decides."""

    @property
    def profiler(self) -> Any:
        """torch's recorder of the window that is open, else of the last one; None if there is none."""
        windows = self._course.windows
        window = windows.current or windows.last
        return None if window is None else window.profiler

    @profiler.setter
    def profiler(self, recorder: Any) -> None:
        """Only torch's own constructor gives one; every window has its own."""

    def prepare_trace(self) -> None:
        """Nothing: a window prepares itself when it begins."""

    def start_trace(self) -> None:
        """The same as ``start()``."""
        self.start()

    def stop_trace(self) -> None:
        """The same as ``stop()``."""
        self.stop()

    @property
    def _results(self) -> Window:
        last = self._course.windows.last
        if last is None:
            raise NothingRecordedError(self._course.why_nothing())
        return last

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        """torch's operator table of the last window, averaged by name; takes what torch takes."""
        return self._results.key_averages(*args, **kwargs)

    def events(self) -> Any:
        """torch's events of the last window."""
        return self._results.events()

    def table(self, *args: Any, **kwargs: Any) -> str:
        """Every event of the last window as torch's table, as ``torch.autograd.profiler.profile`` gives it."""
        return str(self.events().table(*args, **kwargs))

    @property
    def function_events(self) -> Any:
        """The same as ``events()``."""
        return self.events()

    @property
    def self_cpu_time_total(self) -> float:
        """The time of the host in the last window, in microseconds."""
        return float(self.events().self_cpu_time_total)

    def total_average(self) -> Any:
        """All events of the last window together."""
        return self.events().total_average()

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        """Write the last window's trace; any number of times, compressed where the name ends in ``.gz``."""
        self._results.export_chrome_trace(path, *args, **kwargs)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write the last window's folded stacks, times in microseconds as torch does."""
        self._results.export_stacks(path, metric)

    def export_memory_timeline(self, path: str, device: str | None = None) -> None:
        """Write torch's memory timeline of the last window; deprecated by torch."""
        self._results.export_memory_timeline(path, device)

    def wait_for_exports(self, *args: Any, **kwargs: Any) -> Any:
        """Wait for what the last window still writes, where the installed torch writes later."""
        last = self._course.windows.last
        return None if last is None else last.wait_for_exports(*args, **kwargs)

    def take_pending_cuspy_export(self, *args: Any, **kwargs: Any) -> Any:
        """What the last window has still to write; private to torch, and since 2.15."""
        last: Any = self._course.windows.last
        return None if last is None else last.take_pending_cuspy_export(*args, **kwargs)

    def take_pending_cupti_export(self, *args: Any, **kwargs: Any) -> Any:
        """The same under the name that torch 2.14 has for it."""
        last: Any = self._course.windows.last
        return None if last is None else last.take_pending_cupti_export(*args, **kwargs)

    def get_trace_id(self) -> Any:
        """The trace id of the window that records, else of the last one."""
        return (self._course.windows.current or self._results).get_trace_id()  # type: ignore[no-untyped-call]  # as above

    def set_custom_trace_id_callback(self, callback: Callable[[], str]) -> None:
        """Make the trace ids of the windows to come by another callback."""
        self.custom_trace_id_callback = callback
        self._course.windows.recording["custom_trace_id_callback"] = callback

    def add_metadata(self, key: str, value: str) -> None:
        """Add a string to the trace that is being recorded, or to the next one."""
        self.add_metadata_json(key, json.dumps(value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace that is being recorded, or to the next one.

        Raises:
            OptionError: It is no JSON, and the trace would be none either.
        """
        window = self._course.windows.current
        if window is not None and self.is_recording:
            window.add_metadata_json(key, metadata_json(value))
        else:
            self.preset_metadata_json(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to every trace from the next one on."""
        windows = self._course.windows
        windows.metadata[key] = value = metadata_json(value)
        if windows.current is not None:
            windows.current.preset_metadata_json(key, value)

    def toggle_collection_dynamic(self, enable: bool, activities: Iterable[Any]) -> None:
        """Switch the collection of some activities off or on while a window records; nothing happens otherwise."""
        window = self._course.windows.current
        if window is None or not self.is_recording:
            return
        if hasattr(window, "toggle_collection_dynamic"):
            window.toggle_collection_dynamic(enable, activities)
        else:
            logger.warning("this torch cannot switch collection off and on; it came with torch 2.5")
