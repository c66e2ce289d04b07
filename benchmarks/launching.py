"""What `perfhooks run` costs while it records nothing: each fetch, each update, each start of a Python.

Times of the processor, the least of many, so that others on the machine matter little.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from comparison import Comparison, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.step_signal import StepSignal

ROUNDS = 30
CALLS = 50_000
STARTS = 20


class Numbers:
    """An iterator that costs as little as one in Python can."""

    def __iter__(self) -> Numbers:
        return self

    def __next__(self) -> int:
        return 1


class ToldNumbers(Numbers):
    """The same, for an iterator that tells of its fetches."""

    def __init__(self) -> None:
        """Do nothing: torch's iterators have one of their own."""

    def _reset(self) -> None:
        """Do nothing: it makes one pass."""

    def __next__(self) -> int:
        return 1


class Optimizer:
    """Stands for one of torch's."""


class NoTable:
    """Stands for the table of the start, which ends with the first step."""

    is_over = True

    def wait(self) -> None:
        """Nothing to wait for."""

    def first_step(self) -> None:
        """Nothing to note."""


def measure() -> list[Comparison]:
    """A fetch, a backward pass and an update between two windows, and the start of a Python that does nothing."""
    fetch, backward, update = signals()
    bare, launched = start({}), start(run_environment())
    return [
        Comparison(
            title="perfhooks run, idle: what it adds to each, CPU time",
            unit="us",
            rows=(("a fetch", fetch), ("a backward pass", backward), ("an update", update)),
        ),
        Comparison(
            title="Start and end of a Python that does nothing, CPU time",
            unit="ms",
            rows=(("bare", bare), ("under perfhooks run", launched), ("added", launched - bare)),
        ),
    ]


def signals() -> tuple[float, float, float]:
    """Microseconds that a fetch, a backward pass and an update take longer with us."""
    from perfhooks import Profiler
    from perfhooks.record.launch.command_line import Request
    from perfhooks.record.launch.loaders import listen
    from perfhooks.record.launch.step_detectors import NEVER, ByLoader
    from perfhooks.record.launch.step_signal import StepSignal

    say("fetches and updates of perfhooks run")
    signal = StepSignal(Request(), NoTable())  # type: ignore[arg-type]  # as far as it is asked
    heard, updated, optimizer = signal.events, signal.hook(), Optimizer()
    updated(optimizer, (), {})
    with tempfile.TemporaryDirectory() as out:
        profiler: Any = Profiler(schedule="wait=1000000000 warmup=1 active=1", out=out)
        profiler.start()
        # settled, as after the first steps of a training with a loader
        heard.detector, heard.pulse, heard.armed = ByLoader(heard), profiler.pulse, False
        heard.due = heard.due_update = NEVER
        module = SimpleNamespace(_BaseDataLoaderIter=ToldNumbers, _MultiProcessingDataLoaderIter=ToldNumbers)
        listen(module, signal)
        fetch = per_call(ToldNumbers().__next__) - per_call(Numbers().__next__)
        backward = backward_pass(signal)
        update = per_call(lambda: updated(optimizer, (), {})) - per_call(lambda: None)
        profiler.pause()
        profiler.wait()
    return fetch, backward, update


def backward_pass(signal: StepSignal) -> float:
    """Microseconds that a backward pass on a host takes longer with us, which torch does nothing for here."""
    from torch import autograd, ones

    from perfhooks.record.launch import calls

    calls.listen(lambda: True, signal.on_backward, lambda *_: None)
    heard, nothing, torchs = vars(autograd)["_engine_run_backward"], lambda *_, **__: None, vars(calls)["_backward"]
    vars(calls)["_backward"] = nothing
    given = (ones(1),), (None,), False, False, ()
    told, bare = (per_call(partial(run, *given, accumulate_grad=True)) for run in (heard, nothing))
    vars(calls)["_backward"] = torchs
    return told - bare


def per_call(call: Callable[[], object]) -> float:
    """Microseconds of the processor for one call."""

    def once() -> float:
        began = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        return (time.thread_time_ns() - began) / CALLS / 1e3

    return min(once() for _ in range(ROUNDS))


def run_environment() -> dict[str, str]:
    """What `perfhooks run` puts into the environment."""
    from perfhooks.record.launch.command_line import environment, request

    return environment(request(None, (), {}), {"PYTHONPATH": os.environ.get("PYTHONPATH", "")})


def start(more: dict[str, str]) -> float:
    """Milliseconds of the processor for ``python -c pass``."""
    say("starts of Python")

    def once() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", "pass"], env={**os.environ, **more}, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3

    return min(once() for _ in range(STARTS))
