"""A recorded window: steps and times, and results with the methods of ``torch.profiler.profile``."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import weakref
from itertools import accumulate, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

import torch.profiler

import perfhooks.trace
from perfhooks.core import labels
from perfhooks.core.errors import NothingRecordedError, OptionError, PerfhooksError
from perfhooks.record.loop import frame_names, next_recorder
from perfhooks.record.loop.like_torch import averages
from perfhooks.run.publishing import is_whole_json, publish
from perfhooks.trace.reading.packing import copy_stream, copy_with_names

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.core.schedule import Planned
    from perfhooks.record.loop.limits.budget import WindowBudget
    from perfhooks.record.loop.requested import RequestedWindow
    from perfhooks.run.circumstances import Loader
    from perfhooks.run.loader.workers import LoaderWorker

TorchProfile = torch.profiler.profile

_METRICS: Final[dict[str, Literal["host", "device", "bytes"]]] = {
    "self_cpu_time_total": "host",
    "self_cuda_time_total": "device",
    "self_device_time_total": "device",
}


class RecordedWindow:
    first: int
    reached: int
    """Number of the step that was open, or would have been next, when the recording ended."""
    began: float = 0.0
    """Start of the recording in s since 1970; 0 if unknown."""
    ended: float = 0.0
    partial: str | None = None
    planned: Planned | None
    shortened: int = 0
    stop_s: float = 0.0
    request: RequestedWindow | None = None
    loader: Loader | None = None
    loader_workers: tuple[LoaderWorker, ...] = ()
    unseen_workers: int = 0
    notes: list[str]
    budget: WindowBudget
    ready: bool = False

    def save(self, path: Path) -> object:
        raise NotImplementedError


class WindowResults(RecordedWindow, TorchProfile):
    """Trace file, operator table and stacks. The trace file has no name, and stays open until ``release()``."""

    marks_before: int = 0
    """Number of ``ProfilerStep#`` marks before the first step of the training."""
    _saved: IO[bytes] | None = None

    @property
    def is_empty(self) -> bool:
        recorded = getattr(self.profiler, "kineto_results", None)
        return recorded is not None and not recorded.experimental_event_tree()

    def save(self, path: Path) -> IO[bytes]:
        """Write the trace, and return the open file without a name. Kineto reports no error for an incomplete file."""
        try:
            super().export_chrome_trace(os.fspath(path))
            if (written := next_recorder.export_path(self, path)) != path:
                written.replace(path)
            _check_complete(path)
            if self.marks_before:
                _renumber(path, self.marks_before)
            if self.with_stack:
                with path.open("r+b") as file:
                    frame_names.add(file, self.profiler)
        except BaseException:
            for partial in (path, Path(f"{path}.tmp"), Path(f"{path}.gz")):
                partial.unlink(missing_ok=True)
            raise
        self._forget_file()
        self._saved = saved = path.open("rb")
        self._close_file = weakref.finalize(self, saved.close)
        return saved

    def export_chrome_trace(self, path: str, *args: Any, **kwargs: Any) -> None:
        if args or any(kwargs.values()):
            super().export_chrome_trace(path, *args, **kwargs)
            return
        with publish(Path(path)) as target:
            copy_with_names(self._file(), target, compress=str(path).endswith(".gz"))

    def events(self) -> Any:
        events: Any = super().events()  # type: ignore[no-untyped-call]  # untyped in torch
        averages.unescape_names(events or ())
        return events

    def key_averages(self, *args: Any, **kwargs: Any) -> Any:
        events = self.events()
        if kwargs.get("group_by_stack_n", args[1] if len(args) > 1 else 0):
            averages.give_stacks(events)
        with_frames = args[3:] or [kwargs.get("include_python_functions")]
        with contextlib.nullcontext() if with_frames[0] else averages.without_frames(events):
            return super().key_averages(*args, **kwargs)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Write folded stacks: ``a;b;c value``, in whole microseconds as in torch. Equal stacks are summed."""
        if metric not in _METRICS:
            raise OptionError(f"metric must be one of {', '.join(_METRICS)}, got {metric!r}")
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / "trace.json"
            with copy.open("wb") as target:
                copy_stream(self._file(), target, compress=False)
            folded = perfhooks.trace.stacks.folded(perfhooks.trace.read(copy), by=_METRICS[metric])
        with publish(Path(path)) as target:
            perfhooks.trace.stacks.write(_microseconds(folded), target)

    def release(self) -> None:
        """Free the results now: torch's objects are reference cycles, which the garbage collector frees late."""
        self.ready = False
        self._forget_file()
        next_recorder.finish_exports(self)
        recorder, self.profiler = self.profiler, None
        # not getattr: torch's property would parse all events only to free them
        attributes = {} if recorder is None else vars(recorder)
        for event in attributes.get("_function_events") or attributes.get("function_events") or ():
            event.cpu_children.clear()
            event.cpu_parent = None
        if recorder is not None:
            vars(recorder).clear()
        self.action_map.clear()
        self.on_trace_ready = None
        self.schedule: Any = None

    def _file(self) -> IO[bytes]:
        saved = self._saved
        if saved is None:
            if not self.ready:
                raise NothingRecordedError("this window has no trace: it was released, or never recorded")
            with tempfile.TemporaryDirectory() as folder:
                saved = self.save(Path(folder) / "trace.json")
        saved.seek(0)
        return saved

    def _forget_file(self) -> None:
        if self._saved is not None:
            self._close_file()
            self._saved = None


def _microseconds(folded: Mapping[str, int]) -> dict[str, int]:
    ends = [*accumulate(folded.values(), initial=0)]
    ends_us = [end // 1000 for end in ends]
    values = zip(folded, (after - before for before, after in pairwise(ends_us)), strict=True)
    return {stack: value for stack, value in values if value}


def _check_complete(path: Path) -> None:
    if not is_whole_json(path):
        raise PerfhooksError(f"the recorder wrote an incomplete {path.name}: is the disk full?")


def _renumber(path: Path, before: int) -> None:
    mark = labels.STEP_MARK.encode()
    text = path.read_bytes()
    path.write_bytes(re.sub(mark + rb"(\d+)", lambda match: mark + b"%d" % (int(match[1]) - before), text))
