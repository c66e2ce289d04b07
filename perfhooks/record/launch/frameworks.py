"""Subscribes ``perfhooks run`` to torch and frameworks when the program imports them.

This module runs inside ``import torch``, so it imports neither torch nor modules that import torch.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.core import process
from perfhooks.core.frames import hide_from_warnings
from perfhooks.core.guard import enable_console_log, guard, hide_frames
from perfhooks.record.launch import loader_trials, loaders, step_signal
from perfhooks.record.launch.command_line import Request

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.step_signal import StepSignal


def imported(name: str, module: Any, began: int) -> None:
    request = Request.current()
    if request is not None and request.trial:
        if name == "torch.utils.data.dataloader":
            loader_trials.listen(module, request)
        return
    if name == "torch" and request is not None and request.changes is not None:
        importlib.import_module("perfhooks.record.launch.changes").listen(request)
    signal = step_signal.current(began)
    if signal is None:
        return
    actions: dict[str, Callable[[], object]] = {
        "torch": signal.listen,
        "torch._dynamo is coming": signal.before_dynamo,
        "torch._dynamo": signal.exclude_from_compile,
        "torch.optim.optimizer": lambda: signal.keep(module.register_optimizer_step_post_hook(signal.hook()).remove),
        "torch.utils.data.dataloader": lambda: signal.keep(loaders.listen(module, signal)),
        "mmengine.runner.runner": lambda: _hook_mmengine(module.Runner, signal),
        "transformers.trainer": lambda: _hook_transformers(module.Trainer, signal),
    }
    if name in actions:
        actions[name]()


def lightning_callbacks() -> list[Any]:
    signal, callbacks = step_signal.current(), list[Any]()
    if signal is not None:
        _integrate(signal, "perfhooks_lightning", "ProfilerCallback", callbacks.append)
    return callbacks


def _hook_mmengine(runner: Any, signal: StepSignal) -> None:
    _after_init(
        runner, lambda instance: _integrate(signal, "perfhooks_mmengine", "ProfilerHook", instance.register_hook)
    )


def _hook_transformers(trainer: Any, signal: StepSignal) -> None:
    _after_init(
        trainer,
        lambda instance: _integrate(signal, "perfhooks_transformers", "ProfilerCallback", instance.add_callback),
    )


def _after_init(kind: Any, act: Callable[[Any], None]) -> None:
    init = kind.__init__

    @functools.wraps(init)
    @hide_from_warnings
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            init(self, *args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        act(self)

    kind.__init__ = __init__


def _integrate(signal: StepSignal, package: str, name: str, register: Callable[[Any], object]) -> None:
    if signal.request.turns:  # `compare --run` records nothing, and detects steps as in a loop without a framework
        return
    request = signal.next_request()

    with guard("profiling with the integration of the framework"):
        kind = getattr(importlib.import_module(package), name)
        enable_console_log(apart=True)
        integration = kind(
            schedule=request.schedule, on_trace_ready=request.handlers, log_results=False, **request.options
        )
        registration = Registration(integration, request.notes)
        registration.register(signal)
        integration.perfhooks_registration = registration
        register(integration)


class Registration:
    """Connects an integration, and its copies in processes of multiprocessing, with `perfhooks run`."""

    def __init__(self, integration: Any, notes: str) -> None:
        self._integration, self._notes = integration, notes

    def register(self, signal: StepSignal) -> None:
        from perfhooks.record.launch.profiling import leave_note

        for profiler in self._integration.profilers.values():
            profiler.when_saved(functools.partial(leave_note, self._notes))
            profiler.say_less()
        signal.yield_to_integration(self._integration.profilers)

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        signal = step_signal.current() if process.is_child() else None
        if signal is not None:
            # later, because unpickling has not restored the integration yet
            signal.when_child_begins.append(functools.partial(self.register, signal))
