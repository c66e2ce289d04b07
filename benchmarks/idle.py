"""What a step costs while nothing is recorded."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from itertools import repeat
from typing import TYPE_CHECKING, Any

import torch.profiler
from comparison import Comparison, per_pass, say
from torch.profiler import ProfilerActivity, profile

import perfhooks

if TYPE_CHECKING:
    from collections.abc import Iterator

CALLS = 1_000_000
PEER_CALLS = 100_000  # each takes many times as long
NEVER = 10**9


def measure() -> list[Comparison]:
    """One idle step of a raw loop."""
    with tempfile.TemporaryDirectory() as out:
        rows = (
            ("torch.profiler: step(), waiting", torch_waiting()),
            ("torch.profiler: step(), after its last window", torch_done()),
            ("perfhooks: step()", ours_step(on_trace_ready=ignore)),
            ("perfhooks: for batch in steps(loader)", ours_steps(on_trace_ready=ignore)),
            ("perfhooks: step(), all on: watched, writing timeline.csv", ours_step(out=out)),
            ("perfhooks: steps(loader), all on", ours_steps(out=out)),
            ("perfhooks: step(), writing timeline.csv, watch=False", ours_step(out=out, watch=False)),
        )
    return [Comparison(title="One idle step of a raw loop", unit="us", rows=rows)]


def torch_waiting() -> float:
    say("idle steps of torch.profiler")
    schedule = torch.profiler.schedule(wait=NEVER, warmup=1, active=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule) as prof:
        return per_pass(lambda: repeat(None, PEER_CALLS), PEER_CALLS, prof.step)


def torch_done() -> float:
    schedule = torch.profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with profile(activities=[ProfilerActivity.CPU], schedule=schedule) as prof:
        for _ in range(3):
            prof.step()
        return per_pass(lambda: repeat(None, PEER_CALLS), PEER_CALLS, prof.step)


def ours_step(**files: Any) -> float:
    say("idle steps of perfhooks")
    with waiting(files) as prof:
        return per_pass(lambda: repeat(None, CALLS), CALLS, prof.step)


def ours_steps(**files: Any) -> float:
    with waiting(files) as prof:
        return per_pass(lambda: prof.steps(repeat(None, CALLS)), CALLS)


@contextmanager
def waiting(files: dict[str, Any]) -> Iterator[perfhooks.Profiler]:
    """A profiler whose first window never comes."""
    prof = perfhooks.Profiler(schedule=perfhooks.Schedule(wait=NEVER, warmup=1, active=1), **files)
    prof.start()
    yield prof
    prof.pause()  # stop() would tell that no window came
    prof.wait()


def ignore(window: object) -> None:
    """A handler, so that no file is written."""
