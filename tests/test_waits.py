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
from perfhooks.trace.nesting import waits
from perfhooks.trace.tables import copies, steps, synchronisations

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


def test_blocking_copy_counts_beyond_the_cost_of_its_call(tmp_path):
    """The other copy's call, which did not wait, took 10 ns."""
    row = steps.table(trace_of(tmp_path, item())).row(0, named=True)
    assert round(row["sync_ms"] / MS) == 390 + 10
    assert row["syncs"] == 1


def test_the_wait_for_a_copy_names_line_and_size(tmp_path):
    first, second = synchronisations.table(trace_of(tmp_path, item())).rows(named=True)
    assert (first["call"], first["kind"], first["operator"]) == ("cudaMemcpyAsync", "Blocking Copy", "aten::item")
    assert (first["line"], first["bytes"], round(first["host_ms"] / MS)) == ("train.py(12): step", 4, 390)
    assert (second["call"], second["kind"], second["bytes"]) == ("cudaStreamSynchronize", None, None)


def test_copies_have_the_time_of_their_call(tmp_path):
    """Of a copy that a graph made the call is not its own, and of one without a call it is not known."""
    events = [*item(), *copy(7, (700, 710), (720, 730), call="cudaGraphLaunch")]
    events.append(kernel(9, 740, 750, name=PAGEABLE, category="gpu_memcpy"))
    table = copies.table(trace_of(tmp_path, events))
    assert [each and round(each / MS) for each in table["host_ms"]] == [10, 400, None, None]
    assert table["blocking"].to_list() == [False, True, False, None]


def test_report_shows_unknown_values_as_unknown(tmp_path):
    events = [*item(), *copy(7, (700, 710), (720, 730), "Memcpy DtoD (Device -> Device)", call="cudaGraphLaunch")]
    found = window_data.reduce(Capture(last=0), trace_of(tmp_path, events))["copies"]
    known = sorted(each for each in found["host_ms"] if each is not None)
    assert ([round(each / MS) for each in known], found["host_ms"].count(None)) == ([10, 400], 1)


def test_call_is_all_wait_if_no_call_returns_early(tmp_path):
    found = waits.blocking(trace_of(tmp_path, copy(1, (0, 100), (50, 90))))
    assert (found.start.tolist(), found.end.tolist()) == ([0], [100])


def test_launches_give_the_cost_of_a_call_without_copies(tmp_path):
    found = waits.blocking(trace_of(tmp_path, [*copy(1, (0, 100), (50, 90)), launch(2, 200, 205), kernel(2, 210, 220)]))
    assert found.start.tolist() == [5]


@pytest.mark.parametrize(
    "events",
    [
        copy(1, (0, 100), (50, 90), PINNED),
        copy(1, (0, 100), (50, 90), "Memcpy DtoD (Device -> Device)"),
        copy(1, (0, 100), (110, 120)),
        copy(1, (0, 100), (50, 90), call="cudaMemcpy"),
        [kernel(1, 50, 90, name=PAGEABLE, category="gpu_memcpy")],
        [launch(1, 0, 100), kernel(1, 50, 90, name=PAGEABLE)],
    ],
    ids=["pinned", "on the device", "begins later", "counted already", "no call", "no copy"],
)
def test_copies_that_return_early_do_not_block(tmp_path, events):
    assert len(waits.blocking(trace_of(tmp_path, events)).call) == 0


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
