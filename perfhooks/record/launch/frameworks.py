"""Integrations of frameworks under ``perfhooks run``. An integration replaces the step detection of `perfhooks run`."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.core import process
from perfhooks.core.guard import enable_console_log, guard, hide_frames
from perfhooks.record.launch import step_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.step_signal import StepSignal


def lightning_callbacks() -> list[Any]:
    signal, callbacks = step_signal.current(), list[Any]()
    if signal is not None:
        _integrate(signal, "perfhooks_lightning", "ProfilerCallback", callbacks.append)
    return callbacks


def hook_mmengine(runner: Any, signal: StepSignal) -> None:
    _after_init(
        runner, lambda instance: _integrate(signal, "perfhooks_mmengine", "ProfilerHook", instance.register_hook)
    )


def hook_transformers(trainer: Any, signal: StepSignal) -> None:
    _after_init(
        trainer,
        lambda instance: _integrate(signal, "perfhooks_transformers", "ProfilerCallback", instance.add_callback),
    )


def _after_init(kind: Any, act: Callable[[Any], None]) -> None:
    init = kind.__init__

    @functools.wraps(init)
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
