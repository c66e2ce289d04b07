"""What mmengine's own ProfilerHook takes, in terms of ours."""

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
"""Gives the runner, which is known when a training begins."""


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """The part of a training that mmengine's own hook profiles."""

    by_epoch: bool = True
    """Whether ``profile_times`` counts epochs; an iteration-based loop is one epoch."""
    profile_times: int = 1
    """How many epochs, at most 1, or how many iterations."""

    def __post_init__(self) -> None:
        _check_bool("by_epoch", self.by_epoch)
        if not isinstance(self.profile_times, int) or self.profile_times < 1:
            raise OptionError(f"profile_times must be an integer >= 1, got {self.profile_times!r}")
        if self.by_epoch and self.profile_times > 1:
            raise OptionError(
                f"profile_times must be 1 with by_epoch=True, got {self.profile_times!r}: "
                "count iterations with by_epoch=False, or give a schedule"
            )

    @classmethod
    def of(cls, by_epoch: bool | None, profile_times: int | None, *, by_default: bool = False) -> Beginning | None:
        """As mmengine completes the two arguments; None if neither is given, unless mmengine's default is wanted."""
        if by_epoch is None and profile_times is None and not by_default:
            return None
        return cls(
            by_epoch=True if by_epoch is None else by_epoch, profile_times=1 if profile_times is None else profile_times
        )

    def last_iter(self, first: int) -> int | None:
        """The last iteration of those that begin with ``first``; None where the end of an epoch ends them."""
        return None if self.by_epoch else first + self.profile_times - 1

    def check(self, runner: Any) -> None:
        """Find out whether the training is as long.

        Raises:
            OptionError: It is not.
        """
        most = runner.max_epochs if self.by_epoch else runner.max_iters
        if self.profile_times > most:
            unit = "epochs" if self.by_epoch else "iterations"
            raise OptionError(f"profile_times must be at most the {most} {unit} of training, got {self.profile_times}")


def activities(with_cpu: bool | None, with_cuda: bool | None) -> list[ProfilerActivity] | None:
    """What to record; None, which records everything, if mmengine's arguments are not given or are both False.

    Args:
        with_cpu: Whether to record the host; True in mmengine.
        with_cuda: Whether to record the device, whatever kind it is; False in mmengine.
    """
    if with_cpu is None and with_cuda is None:
        return None
    for name, value in (("activity_with_cpu", with_cpu), ("activity_with_cuda", with_cuda)):
        if value is not None:
            _check_bool(name, value)
    supported = torch.profiler.supported_activities()
    devices = supported - {ProfilerActivity.CPU}
    chosen = [] if with_cpu is False else [ProfilerActivity.CPU]
    if with_cuda:
        chosen += sorted(devices, key=str)
        if not devices:
            logger.warning("activity_with_cuda: torch can record no device here")
    return chosen or None


def handlers(
    on_trace_ready: HandlerLike | Sequence[HandlerLike] | None, json_trace_path: str | None, runner: OfRunner
) -> list[HandlerLike]:
    """What to make of each window, mmengine's own ``log_trace`` and ``tb_trace`` among it.

    Raises:
        OptionError: One of mmengine's own does not take such options.
    """
    several = isinstance(on_trace_ready, Sequence) and not isinstance(on_trace_ready, str)
    given: Any = "default" if on_trace_ready is None else on_trace_ready
    made = [_made(one, runner) for one in (given if several else [given])]
    if json_trace_path is None:
        return made
    if not isinstance(json_trace_path, str | os.PathLike):
        raise OptionError(f"json_trace_path must be a path, got {json_trace_path!r}")
    return [*made, json_trace(runner, json_trace_path)]


def _made(one: HandlerLike, runner: OfRunner) -> HandlerLike:
    options = dict(one) if isinstance(one, Mapping) else {"type": one}
    kind = options.pop("type", None)
    if not isinstance(kind, str) or kind not in _OWN:
        return one
    make, takes = _OWN[kind]
    try:
        inspect.signature(takes).bind_partial(**options)
    except TypeError as error:
        raise OptionError(f"{kind} does not take these options: {options!r} ({error})") from error
    return make(runner, **options)


def is_own(on_trace_ready: object) -> bool:
    """Whether a handler is written as mmengine's own hook takes it."""
    return isinstance(on_trace_ready, Mapping) and on_trace_ready.get("type") in _OWN


def log_trace(runner: OfRunner, **table: Any) -> Callable[[Any], None]:
    """Make what writes torch's operator table to the runner's log.

    Args:
        runner: Whose log.
        **table: What ``key_averages().table()`` takes.
    """

    def show(window: Any) -> None:
        log = runner().logger
        # mmengine's own prints it, whatever the log's level; that is the one of its handlers
        level = min((handler.level for handler in log.handlers), default=logging.INFO)
        log.log(max(level, logging.INFO), "\n%s", window.key_averages().table(**table))

    return show


def tb_trace(
    runner: OfRunner, dir_name: str = "tf_tracing_logs", worker_name: str | None = None, **more: Any
) -> Callable[[Any], None]:
    """Make what writes the trace for TensorBoard's profiler plugin.

    Args:
        runner: A relative ``dir_name`` is one in its ``log_dir``.
        dir_name: The folder.
        worker_name: What the files begin with, after the rank if there are several; None is host and process.
        **more: What else ``torch.profiler.tensorboard_trace_handler`` takes.
    """

    def save(window: Any) -> None:
        here = runner()
        name = worker_name or f"{socket.gethostname()}_{os.getpid()}"
        name = f"rank{here.rank}.{name}" if here.world_size > 1 else name
        torch.profiler.tensorboard_trace_handler(str(Path(here.log_dir, dir_name)), name, **more)(window)

    return save


def json_trace(runner: OfRunner, path: str | os.PathLike[str]) -> Callable[[Any], None]:
    """Make what writes the trace to a file; ranks other than the first put their number before its name."""

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
"""mmengine's own names of handlers, and what takes their options."""


def _check_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(f"{name} must be true or false, got {value!r}")
