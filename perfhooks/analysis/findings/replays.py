"""Whether what steps launch could be replayed as a CUDA graph: the same kernels each time, and no wait in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import most
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.step_marks import step_of
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.trace.model import Ints, Trace

_SHOWN: Final = 2


class Replay(NamedTuple):
    """What is known of it."""

    fits: bool | None
    """None where one recording alone does not tell."""
    evidence: str = ""
    advice: str = ""


def of_steps(window: Evidence) -> Replay:
    """Whether a CUDA graph can hold what the steps launch.

    A graph replays the same kernels with the same shapes. It cannot hold a call in which the host waits for the device
    to read a value, nor a copy that does; before the first kernel of a step, and after its last, such waits are outside
    of it. Events that are waited for, as by what times or logs, are left alone.

    Args:
        window: the window; a trace of the host's calls.
    """
    between = _waits_between(window)
    if len(between):
        places = ", ".join(most(between, _SHOWN))
        return Replay(
            fits=False,
            evidence=(
                f"a CUDA graph cannot hold the waits between kernels, {window.count_per_step(between)} in a step: "
                f"{places}"
            ),
            advice="For a CUDA graph, take what reads values out of the step first: it can hold no wait.",
        )
    marks = zip(window.marks.start.tolist(), window.marks.end.tolist(), strict=True)
    kernels = [_launched(window, begin, end) for begin, end in marks]
    if not window.are_numbered or len(kernels) == 1:
        return Replay(fits=None)
    alike = all(np.array_equal(kernels[0], each) for each in kernels)
    shapes = " with the same shapes" if "dims" in window.trace.arguments else ""
    if alike:
        return Replay(
            fits=True,
            evidence=(
                f"each step launches the same {len(kernels[0]):,} kernels, copies and memsets{shapes}, in the same "
                "order, and waits for none of them in between"
            ),
            advice=(
                "Here CUDA graphs can replay what is launched one by one: compile in mode reduce-overhead, or have the "
                "model's calls recorded by torch.cuda.make_graphed_callables; inputs then stay in the same memory."
            ),
        )
    return Replay(
        fits=False,
        evidence="the kernels differ from step to step, and a CUDA graph replays the same ones",
        advice="Where that comes from shapes, pad them to a few lengths: each has a CUDA graph of its own then.",
    )


def _launched(window: Evidence, begin: int, end: int) -> Ints:
    """What was launched in some time, stream by stream in its order: names, and shapes of operators if recorded."""
    trace, time = window.trace, device.launch_times(window.trace)
    works = np.flatnonzero((time >= begin) & (time < end))
    works = works[np.lexsort((time[works], trace.thread[trace.device_rows[works]]))]
    names = _uncounted(trace)[trace.name[trace.device_rows[works]]]
    owner = device.owners(trace)[works]
    shapes = np.where(owner >= 0, trace.argument("dims")[owner], -1) if "dims" in trace.arguments else names
    return np.stack([names, shapes], axis=1)


@cached_per_trace
def _uncounted(trace: Trace) -> Ints:
    """Return a number for each name of a trace; names that differ only by a count of calls share one."""
    matches = map(device_work.NUMBERED.match, trace.names)
    texts = [match[0] if match else name for match, name in zip(matches, trace.names, strict=True)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] for text in texts], np.int64)


def _waits_between(window: Evidence) -> list[tuple[str, float]]:
    """The waits of the host that have kernels of their step before and after them, with milliseconds a step."""
    table = window.synchronisations
    table = table.filter((pl.col("host_ms") > 0) & ~pl.col("call").str.contains(runtime_calls.TIMED.pattern))
    launched = device.launch_times(window.trace)[window.trace.kind[window.trace.device_rows] == Kind.KERNEL]
    step = step_of(window.marks, launched)
    first, last = np.full(window.count + 1, np.iinfo(np.int64).max), np.full(window.count + 1, -1)
    np.minimum.at(first, step, launched)  # the last place is for what lies in no step
    np.maximum.at(last, step, launched)
    time = int(window.trace.start.min()) + np.rint(table["start_ms"].to_numpy() * 1e6).astype(np.int64)
    here = step_of(window.marks, time)
    between = (here >= 0) & (time > first[here]) & (time < last[here])
    rows = table.filter(pl.Series(between, dtype=pl.Boolean)).select("line", "operator", "call", "host_ms")
    return [(line or operator or call, ms / window.count) for line, operator, call, ms in rows.iter_rows()]
