"""Copies of pageable memory that hold the host, though their calls are named asynchronous."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.report.page import window_data
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, launch, op, python_frame, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import steps

MS = 1e-6
PAGEABLE = "Memcpy DtoH (Device -> Pageable)"
PINNED = "Memcpy DtoH (Device -> Pinned)"


def trace_of(folder, events):
    return read(testing.write_trace(folder / "t.json", events))


def copy(number, asked, ran, name=PAGEABLE, *, call="cudaMemcpyAsync", **args):
    """A copy and the call that asked for it; both from first nanosecond to last."""
    return [launch(number, *asked, name=call), kernel(number, *ran, name=name, category="gpu_memcpy", **args)]


def item():
    """``loss.item()`` while the device works: the copy's call waits, and leaves little to the one that synchronises."""
    return [
        step_mark(0, 0, 1000),
        python_frame("train.py(12): step", 0, 990),
        *copy(1, (0, 10), (20, 30), PINNED),
        *(launch(2, 20, 25), kernel(2, 40, 500)),
        op("aten::item", 100, 600),
        *copy(3, (110, 510), (500, 505), bytes=4),
        launch(4, 520, 530, name="cudaStreamSynchronize"),
    ]


def test_report_shows_unknown_values_as_unknown(tmp_path):
    events = [*item(), *copy(7, (700, 710), (720, 730), "Memcpy DtoD (Device -> Device)", call="cudaGraphLaunch")]
    found = window_data.reduce(Capture(last=0), trace_of(tmp_path, events))["copies"]
    known = sorted(each for each in found["host_ms"] if each is not None)
    assert ([round(each / MS) for each in known], found["host_ms"].count(None)) == ([10, 400], 1)


calls = st.tuples(st.integers(0, 60), st.integers(0, 20))
pieces = st.lists(
    st.tuples(calls, calls, st.sampled_from([PAGEABLE, PINNED, "gemm"]), st.sampled_from(["Async", ""])), max_size=8
)


@pytest.mark.slow
@given(pieces)
def test_the_wait_is_that_of_every_nanosecond(tmp_path_factory, made):
    """On one thread after the other, against a slow obvious count."""
    events, free = [step_mark(0, 0, 100)], {"copy": [], "gemm": []}
    for number, ((called, took), (start, span), name, ending) in enumerate(made, 1):
        plain = name == "gemm"
        call = "cudaLaunchKernel" if plain else f"cudaMemcpy{ending}"
        category = "kernel" if plain else "gpu_memcpy"
        events.append(launch(number, called, called + took, name=call, tid=number))
        events.append(kernel(number, start, start + span, name=name, category=category, stream=number))
        if start >= called + took:
            free["gemm" if plain else "copy"].append(took)
    cost = int(np.median(free["copy"] or free["gemm"] + free["copy"] or [0]))
    waited = set()
    for (called, took), (start, _), name, ending in made:
        if name != "gemm" and not ending:
            waited |= set(range(called, called + took))
        elif name == PAGEABLE and start < called + took:
            waited |= set(range(called + cost, called + took))
    row = steps.table(trace_of(tmp_path_factory.mktemp("w"), events)).row(0, named=True)
    assert round((row["sync_ms"] or 0) / MS) == len(waited)
