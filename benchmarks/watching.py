"""What it takes to watch the steps of a training, in the thread that does nothing else."""

from __future__ import annotations

import tempfile
import threading
import time

from comparison import Comparison, say

import perfhooks
from perfhooks.record.watch import watcher

SECONDS = 60.0
SETTLE_S = 3.0
"""Until there is a pace, and the files of the run are made."""
GOAL_MS = 2.0
"""Of a second: 0.2% of a core."""


def measure() -> list[Comparison]:
    """The thread's time on a processor, at three paces."""
    rows = [(f"the watcher, {1 / step:.0f} steps a second", watched(step)) for step in (0.1, 0.01, 0.001)]
    title = f"What watching takes of a core, over {SECONDS:.0f} seconds of steps that none of is slow"
    return [Comparison(title=title, unit="ms/s", rows=(("the goal, 0.2%", GOAL_MS), *rows))]


def watched(step_s: float) -> float:
    """Milliseconds a second that the thread computes while a loop makes steps."""
    say(f"watching steps of {step_s * 1e3:g} ms for {SECONDS:.0f} s")
    schedule = perfhooks.Schedule(wait=10**9, warmup=1, active=1)
    with tempfile.TemporaryDirectory() as out:
        prof = perfhooks.Profiler(schedule=schedule, out=out)
        prof.start()
        step_for(prof, step_s, SETTLE_S)
        (thread,) = [thread for thread in threading.enumerate() if thread.name == watcher.NAME]
        clock = time.pthread_getcpuclockid(thread.ident or 0)
        began, spent = time.perf_counter(), time.clock_gettime(clock)
        step_for(prof, step_s, SECONDS)
        share = (time.clock_gettime(clock) - spent) / (time.perf_counter() - began)
        prof.pause()  # stop() would tell that no window came
        prof.wait()
    return share * 1e3


def step_for(prof: perfhooks.Profiler, step_s: float, seconds: float) -> None:
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        time.sleep(step_s)
        prof.step()
