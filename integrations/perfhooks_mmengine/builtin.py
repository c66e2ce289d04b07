"""Arguments of mmengine's own ProfilerHook, converted to those of perfhooks."""

from __future__ import annotations

import inspect
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch.profiler
from torch.autograd.profiler_util import EventList
from torch.profiler import ProfilerActivity

from perfhooks import OptionError
from perfhooks.adapters import logger

if TYPE_CHECKING:
    from perfhooks.adapters import HandlerLike

OfRunner = Callable[[], Any]
"""Function that computes a value from the runner, which exists only when a training begins."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The part of a training that mmengine's own hook profiles."""

    by_epoch: bool = True
    """Whether ``profile_times`` counts epochs. An iteration-based loop is one epoch."""
    profile_times: int = 1
    """Number of epochs (at most 1) or of iterations."""

    def __post_init__(self) -> None:
        _check_bool("by_epoch", self.by_epoch)
        if not isinstance(self.profile_times, int) or self.profile_times < 1:
            raise OptionError(f"profile_times must be an integer >= 1, got {self.profile_times!r}")
        if self.by_epoch and self.profile_times > 1:
            raise OptionError(
                f"profile_times must be 1 with by_epoch=True, got {self.profile_times!r}: "
                "use by_epoch=False to count iterations, or a schedule"
            )

    @classmethod
    def of(cls, by_epoch: bool | None, profile_times: int | None, *, by_default: bool = False) -> Beginning | None:
        """Apply mmengine's defaults; return None if neither argument is set and ``by_default`` is false."""
        if by_epoch is None and profile_times is None and not by_default:
            return None
        return cls(
            by_epoch=True if by_epoch is None else by_epoch, profile_times=1 if profile_times is None else profile_times
        )

    def last_iter(self, first: int) -> int | None:
        """Last iteration to profile; None if the profile ends with an epoch."""
        return None if self.by_epoch else first + self.profile_times - 1

    def check(self, runner: Any) -> None:
        """Raise an OptionError if the training has fewer than ``profile_times`` epochs or iterations."""
        available = runner.max_epochs if self.by_epoch else runner.max_iters
        if self.profile_times > available:
            unit = "epochs" if self.by_epoch else "iterations"
            raise OptionError(
                f"profile_times must be at most the {available} {unit} of training, got {self.profile_times}"
            )


def activities(with_cpu: bool | None, with_cuda: bool | None) -> list[ProfilerActivity] | None:
    """Return None (all activities) if mmengine's arguments are not set or both False."""
    if with_cpu is None and with_cuda is None:
        return None
    for name, value in (("activity_with_cpu", with_cpu), ("activity_with_cuda", with_cuda)):
        if value is not None:
            _check_bool(name, value)
    supported = torch.profiler.supported_activities()
    devices = supported - {ProfilerActivity.CPU}
    selected = [] if with_cpu is False else [ProfilerActivity.CPU]
    if with_cuda:
        selected += sorted(devices, key=str)
        if not devices:
            logger.warning("activity_with_cuda: torch cannot record a device on this host")
    return selected or None


def handlers(
    on_trace_ready: HandlerLike | Sequence[HandlerLike] | None, json_trace_path: str | None, runner: OfRunner
) -> list[HandlerLike]:
    """Return the handlers, including mmengine's own ``log_trace`` and ``tb_trace``."""
    is_list = isinstance(on_trace_ready, Sequence) and not isinstance(on_trace_ready, str)
    value: Any = "default" if on_trace_ready is None else on_trace_ready
    result = [_convert(handler, runner) for handler in (value if is_list else [value])]
    if json_trace_path is None:
        return result
    if not isinstance(json_trace_path, str | os.PathLike):
        raise OptionError(f"json_trace_path must be a path, got {json_trace_path!r}")
    return [*result, json_trace(runner, json_trace_path)]


def _convert(handler: HandlerLike, runner: OfRunner) -> HandlerLike:
    options = dict(handler) if isinstance(handler, Mapping) else {"type": handler}
    kind = options.pop("type", None)
    if not isinstance(kind, str) or kind not in _OWN:
        return handler
    make, accepts = _OWN[kind]
    try:
        inspect.signature(accepts).bind_partial(**options)
    except TypeError as error:
        raise OptionError(f"{kind} does not take these options: {options!r} ({error})") from error
    return make(runner, **options)


def is_own(on_trace_ready: object) -> bool:
    return isinstance(on_trace_ready, Mapping) and on_trace_ready.get("type") in _OWN


def log_trace(runner: OfRunner, **table: Any) -> Callable[[Any], None]:
    """Return a handler that writes ``key_averages().table(**table)`` to the runner's log."""

    def show(window: Any) -> None:
        log = runner().logger
        # mmengine's own handler prints the table at any log level, which is the level of the log's handlers
        level = min((handler.level for handler in log.handlers), default=logging.INFO)
        log.log(max(level, logging.INFO), "\n%s", window.key_averages().table(**table))

    return show


def tb_trace(
    runner: OfRunner, dir_name: str = "tf_tracing_logs", worker_name: str | None = None, **more: Any
) -> Callable[[Any], None]:
    """Return a handler that writes the trace for TensorBoard's profiler plugin.

    A relative ``dir_name`` is inside the runner's ``log_dir``. File names consist of the rank (if there are several
    ranks) and ``worker_name``, by default host name and process id.
    """

    def save(window: Any) -> None:
        here = runner()
        name = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"rank{here.rank}.{name}" if here.world_size > 1 else name
        torch.profiler.tensorboard_trace_handler(str(Path(here.log_dir, dir_name)), name, **more)(window)

    return save


def json_trace(runner: OfRunner, path: str | os.PathLike[str]) -> Callable[[Any], None]:
    """Return a handler that writes ``json_trace_path``. Ranks other than 0 prefix the file name with their number."""

    def save(window: Any) -> None:
        rank, target = runner().rank, Path(path)
        if rank:
            target = target.with_name(f"rank{rank}.{target.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        window.export_chrome_trace(str(target))

    return save


_OWN: Final[dict[str, tuple[Callable[..., Callable[[Any], None]], Callable[..., Any]]]] = {
    "log_trace": (log_trace, EventList.table),
    "tb_trace": (tb_trace, torch.profiler.tensorboard_trace_handler),
}
"""Supported ``on_trace_ready`` handlers of mmengine, each with the function that receives its options."""


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, got {value!r}")
