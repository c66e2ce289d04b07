"""Under ``perfhooks run`` a framework's own face takes over: it knows what the signal of `step_signal` cannot."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfhooks.guard import guard
from perfhooks.launching import farewell, step_signal

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.launching.step_signal import StepSignal


def lightning_callbacks() -> list[Any]:
    """For the entry point ``lightning.pytorch.callbacks_factory``: a callback, if ``perfhooks run`` is at work."""
    return _faces(_lightning)


def _faces(make: Callable[[StepSignal], Any]) -> list[Any]:
    signal = step_signal.current()
    if signal is None:
        return []
    with guard("profiling with the framework's own face"):
        face = make(signal)
        signal.give_way(face.profilers.values())
        return [face]
    return []


def _lightning(signal: StepSignal) -> Any:
    from perfhooks_lightning import ProfilerCallback

    asked = signal.asked
    callback = ProfilerCallback(asked.schedule, asked.handlers, **asked.options)
    _tell(signal, callback.profilers)
    return callback


def give_mmengine_its_hook(runner: Any, signal: StepSignal) -> None:
    """Have every Runner register our hook when it is made.

    Args:
        runner: The class ``mmengine.runner.Runner``.
        signal: What was asked for; it stands down once a Runner is made.
    """

    def add(made: Any) -> Any:
        from perfhooks_mmengine import ProfilerHook

        asked = signal.asked
        hook = ProfilerHook(schedule=asked.schedule, on_trace_ready=asked.handlers, **asked.options)
        made.register_hook(hook, priority=ProfilerHook.priority)
        return hook

    _when_made(runner, signal, add)


def give_transformers_its_callback(trainer: Any, signal: StepSignal) -> None:
    """Have every Trainer take our callback when it is made.

    Args:
        trainer: The class ``transformers.Trainer``; those that derive from it call its constructor.
        signal: What was asked for; it stands down once a Trainer is made.
    """

    def add(made: Any) -> Any:
        from perfhooks_transformers import ProfilerCallback

        asked = signal.asked
        callback = ProfilerCallback(asked.schedule, asked.handlers, **asked.options)
        made.add_callback(callback)
        return callback

    _when_made(trainer, signal, add)


def _when_made(kind: Any, signal: StepSignal, add: Callable[[Any], Any]) -> None:
    """Let every object of a class have our face once it is made; what fails on our side leaves it as it was."""
    plain = kind.__init__

    @functools.wraps(plain)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        with guard("profiling with the framework's own face"):
            face = add(self)
            _tell(signal, face.profilers)
            signal.give_way(face.profilers.values())

    kind.__init__ = __init__


def _tell(signal: StepSignal, profilers: dict[str, Any]) -> None:
    """Leave a note of the run at the end of each window, as its folder is known only then."""
    for profiler in profilers.values():
        profiler.when_finished(
            lambda _capture, place: farewell.leave_note(signal.asked.notes, run=str(place.folder.parent))
        )
