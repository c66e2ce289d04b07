"""What a program does once, and what only looks like it."""

import pytest

from perfhooks import testing
from perfhooks.testing import kernel, launch, op, slice_event
from perfhooks.trace import read
from perfhooks.trace.nesting import intervals, starts

MS = 1_000_000


def spent(tmp_path, *events):
    """Milliseconds of each part of a start, in a trace in which the device works from 200 to 300 ms."""
    work = [launch(1, 199 * MS, 199 * MS + 10), kernel(1, 200 * MS, 300 * MS)]
    trace = read(testing.write_trace(tmp_path / "t.json", [op("a", 0, 400 * MS), *work, *events]))
    return {name: intervals.total(moments) / MS for name, moments in starts.by_kind(trace).items()}


def call(name, begin, end, number=9):
    return launch(number, begin * MS, end * MS, name=name)


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("cudaLaunchKernel", 10, 16),
        ("hipExtModuleLaunchKernel", 10, 16),
        ("cudaDeviceGetStreamPriorityRange", 10, 15),
        ("cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags", 10, 17),
        ("cudaFree", 10, 90),
        ("cudaMemcpyAsync", 10, 90),
        ("aCallOfTheFuture", 10, 90),
    ],
)
def test_long_call_before_a_first_run_is_a_start(tmp_path, name, begin, end):
    launched = [kernel(9, end * MS, end * MS + 1000, name="first")] if "Launch" in name else []
    assert spent(tmp_path, call(name, begin, end), *launched) == {"loading kernels": end - begin}


def test_idle_time_that_is_in_doubt_shows_no_start(tmp_path):
    """A launch has no kernel, so the device may have worked."""
    assert spent(tmp_path, call("cudaFree", 10, 90)) == {"loading kernels": 80}
    assert spent(tmp_path, call("cudaFree", 10, 90), call("cudaLaunchKernel", 5, 6)) == {}


def test_busy_device_is_no_part_of_a_start(tmp_path):
    """A kernel ends 10 ms after the call began."""
    before = [launch(3, 0, 10), kernel(3, 20, 20 * MS, name="other")]
    assert spent(tmp_path, *before, call("cudaFuncGetAttributes", 10, 90)) == {"loading kernels": 70}


@pytest.mark.parametrize(("second", "is_start"), [(4, True), (6, False)])
def test_call_that_is_long_before_later_runs_too_is_no_start(tmp_path, second, is_start):
    later = [call("cudaMalloc", 310, 310 + second), launch(5, 330 * MS, 331 * MS), kernel(5, 332 * MS, 333 * MS)]
    found = spent(tmp_path, call("cudaMalloc", 10, 20), *later)
    assert found == ({"loading kernels": 10} if is_start else {})


@pytest.mark.parametrize("name", ["Lazy Function Loading", "Runtime Triggered Module Loading", "Driver Compiler"])
def test_records_of_the_driver_are_a_start(tmp_path, name):
    record = slice_event("overhead", name, 10 * MS, 12 * MS, pid=-1, tid=0)
    assert spent(tmp_path, record) == {"loading kernels": 2}


@pytest.mark.parametrize("name", ["cuModuleLoadData", "cuLibraryLoadData", "hipModuleLoadData"])
def test_module_load_after_a_compilation_is_in_one_operator(tmp_path, name):
    """As MIOpen does; what another operator did before is none of it, nor what Python did outside of operators."""
    assert spent(tmp_path, op("view", 3 * MS, 4 * MS), call(name, 10, 11)) == {"loading kernels": 7}
    assert spent(tmp_path, call(name, 410, 411)) == {"loading kernels": 1}


@pytest.mark.parametrize(
    ("name", "begin", "end"),
    [
        ("cudaLaunchKernel", 10, 14),
        ("cudaLaunchKernel", 210, 290),
        ("cudaDeviceGetStreamPriorityRange", 10, 14),
        ("cudaFree", 310, 390),
        ("cudaStreamSynchronize", 10, 90),
    ],
)
def test_short_calls_waits_and_later_calls_are_no_start(tmp_path, name, begin, end):
    assert spent(tmp_path, call(name, begin, end)) == {}


def test_convolutions_timed_with_events_are_one_time_work(tmp_path):
    convolution = op("aten::cudnn_convolution", 10 * MS, 40 * MS)
    assert spent(tmp_path, convolution, call("cudaEventSynchronize", 20, 30)) == {"trying convolution algorithms": 30}
    assert spent(tmp_path, convolution, call("cudaEventSynchronize", 50, 60)) == {}


def test_first_convolution_of_a_trace_is_one_time_work_too(tmp_path):
    events = [op("aten::cudnn_convolution", 0, 30 * MS), call("cudaEventSynchronize", 20, 25)]
    work = [launch(1, 40 * MS, 41 * MS), kernel(1, 41 * MS, 42 * MS)]
    (found,) = starts.by_kind(read(testing.write_trace(tmp_path / "t.json", [*events, *work]))).items()
    assert (found[0], intervals.total(found[1])) == ("trying convolution algorithms", 30 * MS)


def test_recording_a_graph_is_no_compilation(tmp_path):
    ranges = [
        op("CUDAGraphNode.record (dynamo_timed)", 10 * MS, 20 * MS),
        op("backend_compile (dynamo_timed)", 30 * MS, 35 * MS),
    ]
    assert spent(tmp_path, *ranges) == {"capturing graphs": 10, "compiling": 5}
