from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import device_work, runtime_calls
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.step_marks import step_of
from perfhooks.trace.once import cached_per_trace

if TYPE_CHECKING:
    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
    from perfhooks.trace.model import Ints, Trace


_FITS: Final = "graph-fits"
_WAITS: Final = "graph-waits"
_DIFFERS: Final = "graph-differs"


class Replay(NamedTuple):
    version: str = ""
    """Name of the alternative texts in ``host-bound.toml``; empty if the window has only one step."""
    kernels: int = 0
    has_shapes: bool = False
    waits: float = 0.0
    places: tuple[EvidenceLine, ...] = ()

    def evidence(self, text: FindingText) -> list[EvidenceLine]:
        if self.version == _WAITS:
            return [text("graph-waits", count=self.waits, places=self.places)]
        if self.version == _DIFFERS:
            return [text("graph-differs")]
        if self.version == _FITS:
            return [text("graph-fits-shapes" if self.has_shapes else "graph-fits", kernels=self.kernels)]
        return []


def check_replay(window: Evidence) -> Replay:
    """Check whether a CUDA graph can replay the launches of the steps.

    A CUDA graph replays the same kernels with the same shapes. A CUDA graph can contain waits for CUDA events, but no
    wait of the host for a value of the device.
    """
    between = _waits_between(window)
    if len(between):
        return Replay(_WAITS, waits=window.count_per_step(between), places=tuple(top_lines(between, 2)))
    marks = zip(window.marks.start.tolist(), window.marks.end.tolist(), strict=True)
    kernels = [_launches(window, begin, end) for begin, end in marks]
    if not window.are_numbered or len(kernels) == 1:
        return Replay()
    are_equal = all(np.array_equal(kernels[0], step_kernels) for step_kernels in kernels)
    if not are_equal:
        return Replay(_DIFFERS)
    return Replay(_FITS, kernels=len(kernels[0]), has_shapes="dims" in window.trace.arguments)


def _launches(window: Evidence, begin: int, end: int) -> Ints:
    trace, time = window.trace, device.launch_times(window.trace)
    works = np.flatnonzero((time >= begin) & (time < end))
    works = works[np.lexsort((time[works], trace.thread[trace.device_rows[works]]))]
    names = _uncounted(trace)[trace.name[trace.device_rows[works]]]
    owner = device.owners(trace)[works]
    shapes = np.where(owner >= 0, trace.argument("dims")[owner], -1) if "dims" in trace.arguments else names
    return np.stack([names, shapes], axis=1)


@cached_per_trace
def _uncounted(trace: Trace) -> Ints:
    matches = map(device_work.NUMBERED.match, trace.names)
    texts = [match[0] if match else name for match, name in zip(matches, trace.names, strict=True)]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] for text in texts], np.int64)


def _waits_between(window: Evidence) -> list[tuple[str, float]]:
    table = window.synchronisations
    table = table.filter((pl.col("host_ms") > 0) & ~pl.col("call").str.contains(runtime_calls.TIMED.pattern))
    launched = device.launch_times(window.trace)[window.trace.kind[window.trace.device_rows] == Kind.KERNEL]
    step = step_of(window.marks, launched)
    first, last = np.full(window.count + 1, np.iinfo(np.int64).max), np.full(window.count + 1, -1)
    np.minimum.at(first, step, launched)
    np.maximum.at(last, step, launched)
    time = int(window.trace.start.min()) + np.rint(table["start_ms"].to_numpy() * 1e6).astype(np.int64)
    step_of_wait = step_of(window.marks, time)
    between = (step_of_wait >= 0) & (time > first[step_of_wait]) & (time < last[step_of_wait])
    rows = table.filter(pl.Series(between, dtype=pl.Boolean)).select("line", "operator", "call", "host_ms")
    return [(line or operator or call, ms / window.count) for line, operator, call, ms in rows.iter_rows()]
