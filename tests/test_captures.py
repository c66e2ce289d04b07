"""When graphs were captured, and which launches became a part of one."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.testing import kernel, launch, step_mark
from perfhooks.trace import read
from perfhooks.trace.nesting import captures, device
from perfhooks.trace.tables import steps

BEGIN, END = "cudaStreamBeginCapture_v10000", "cudaStreamEndCapture_v10000"


def trace_of(folder, events):
    return read(testing.write_trace(folder / "t.json", events))


def test_captured_work_is_not_launched(tmp_path):
    events = [step_mark(0, 0, 100), kernel(9, 95, 99)]
    events += [launch(1, 10, 11, name=BEGIN), launch(2, 20, 21), launch(3, 30, 31), launch(4, 40, 41, name=END)]
    events += [launch(5, 50, 51), launch(9, 60, 61, name="cudaGraphLaunch"), launch(6, 25, 26, tid=9)]
    trace = trace_of(tmp_path, events)
    assert sorted(trace.correlation[device.launch_calls(trace)].tolist()) == [5, 6, 9]
    assert steps.table(trace)["launches"].item() == 3


edges = st.lists(st.tuples(st.integers(0, 3), st.sampled_from([BEGIN, END, "cudaLaunchKernel"])), max_size=9)


@pytest.mark.slow
@given(edges, edges)
def test_a_call_is_captured_if_a_capture_is_open(tmp_path_factory, first, second):
    """On its thread, where one that ends without a begin began before the trace, and one without an end never ends."""
    events, expected = [step_mark(0, 0, 100)], {}
    for tid, calls in ((1, first), (2, second)):
        named = [name for _, name in calls if name != "cudaLaunchKernel"]
        is_open, time = bool(named) and named[0] == END, 0
        for gap, name in calls:
            time += 1 + gap
            number = 1000 * tid + time
            events.append(launch(number, time, time, name=name, tid=tid))
            is_open = name == BEGIN or (is_open and name != END)
            expected[number] = is_open
    trace = trace_of(tmp_path_factory.mktemp("c"), events)
    calls = np.array([row for row in range(len(trace)) if trace.names[trace.name[row]] == "cudaLaunchKernel"], np.int64)
    found = dict(zip(trace.correlation[calls].tolist(), captures.captured(trace, calls).tolist(), strict=True))
    assert found == {number: expected[number] for number in found}
