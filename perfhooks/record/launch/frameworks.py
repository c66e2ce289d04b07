"""Under ``perfhooks run`` a framework's own face takes over: it knows what the signal of `step_signal` cannot."""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING, Any

from perfhooks.core.guard import guard, hide_frames, speak_up
from perfhooks.record.launch import step_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.step_signal import StepSignal


def lightning_callbacks() -> list[Any]:
    """For the entry point ``lightning.pytorch.callbacks_factory``: a callback, if ``perfhooks run`` is at work."""
    signal, callbacks = step_signal.current(), list[Any]()
    if signal is not None:
        _take_over(signal, "perfhooks_lightning", "ProfilerCallback", callbacks.append)
    return callbacks


def give_mmengine_its_hook(runner: Any, signal: StepSignal) -> None:
    """Have every Runner register our hook when it is made.

    Args:
        runner: The class ``mmengine.runner.Runner``.
        signal: What was asked for; it stands down once a Runner is made.
    """
    _when_made(runner, lambda made: _take_over(signal, "perfhooks_mmengine", "ProfilerHook", made.register_hook))


def give_transformers_its_callback(trainer: Any, signal: StepSignal) -> None:
    """Have every Trainer take our callback when it is made.

    Args:
        trainer: The class ``transformers.Trainer``; those that derive from it call its constructor.
        signal: What was asked for; it stands down once a Trainer is made.
    """
    _when_made(
        trainer, lambda made: _take_over(signal, "perfhooks_transformers", "ProfilerCallback", made.add_callback)
    )


def _when_made(kind: Any, take_over: Callable[[Any], None]) -> None:
    """Let our face take over every object of a class once it is made."""
    plain = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            plain(self, *args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        take_over(self)

    kind.__init__ = __init__


def _take_over(signal: StepSignal, package: str, name: str, give: Callable[[Any], object]) -> None:
    """Give a face to its framework; what fails on our side leaves the training as it was."""
    if signal.asked.turns:  # nothing is recorded, and steps are told as in any loop
        return
    asked = signal.next_request()

    with guard("profiling with the framework's own face"):
        from perfhooks.record.launch.profiling import leave_note  # torch, which is being imported when this module is

        kind = getattr(importlib.import_module(package), name)
        speak_up(apart=True)
        face = kind(schedule=asked.schedule, on_trace_ready=asked.handlers, log_results=False, **asked.options)
        for profiler in face.profilers.values():
            profiler.when_saved(functools.partial(leave_note, asked.notes))
            profiler.say_less()
        give(face)
        signal.give_way(face.profilers)
