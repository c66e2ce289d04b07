"""Memory: planted allocations, real captures, and twins of what real machines recorded."""

from __future__ import annotations

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import Capture, Memory, OptionError, testing
from perfhooks.trace import read
from perfhooks.trace.tables import memory

HOST, DEVICE = -1, 0


def event(time, size, address, allocated, device=HOST, **options):
    found = testing.memory(time, size, allocated=allocated, device=device, **options)
    found["args"] |= {"Addr": address, "Total Reserved": 1000 if device >= 0 else 0}
    return found


def opened(tmp_path, events):
    return read(testing.write_trace(tmp_path / "t.json", events))


PLANTED = [
    testing.step_mark(4, 0, 1000),
    testing.python_frame("train.py(3): step", 0, 1000),
    testing.python_frame("torch/nn/functional.py(9): linear", 100, 300),
    testing.python_frame("<built-in function linear>", 110, 290),
    testing.op("aten::linear", 120, 280),
    testing.op("aten::addmm", 130, 200),
    testing.op("aten::clone", 210, 270),
    testing.op("aten::empty_like", 220, 230),
    testing.op("aten::empty", 400, 410),
    event(150, 64, 1, 564, DEVICE),
    event(225, 32, 2, 596, DEVICE),
    event(300, -64, 1, 532, DEVICE),
    event(310, -100, 77, 432, DEVICE),  # allocated before the recording
    event(405, 200, 1, 632, DEVICE),  # the same address again
    event(500, 8, 3, 640, DEVICE),
    event(510, -200, 1, 440, DEVICE),
    event(160, 16, 1, 16),
    event(170, -16, 1, 0),
]


@pytest.mark.parametrize(
    ("kind", "number", "name"),
    [(0, -1, "cpu"), (1, 3, "cuda:3"), (12, 0, "xpu:0"), (20, 1, "privateuseone:1"), (77, 0, "device-77:0")],
)
def test_devices_have_the_names_of_torch(kind, number, name, tmp_path):
    one = event(10, 64, 1, 64)
    one["args"] |= {"Device Type": kind, "Device Id": number}
    assert memory.peak(opened(tmp_path, [one]))["device"].to_list() == [name]


def test_a_trace_without_memory_has_no_rows(tmp_path):
    trace = opened(tmp_path, [testing.op("aten::mm", 0, 5)])
    assert [found(trace).height for found in (memory.over_time, memory.peak, memory.alive_at_peak)] == [0, 0, 0]
    assert memory.thinned(memory.over_time(trace)).height == 0
    assert list(Memory().artifacts(Capture(), trace)) == []


def check_conservation(trace):
    """What was alive at the peak sums to it; before the recording is what the first event says, less its releases."""
    peaks = dict(memory.peak(trace).select("device", "allocated_bytes").iter_rows())
    alive = memory.alive_at_peak(trace)
    assert dict(alive.group_by("device").agg(pl.col("bytes").sum()).iter_rows()) == {
        k: v for k, v in peaks.items() if v
    }
    for usage in memory._usages(trace):
        sizes, addresses = (column[usage.event].tolist() for column in (trace.instants.size, trace.instants.address))
        held, before = {}, int(usage.allocated[0]) - sizes[0]
        for size, address in zip(sizes[: usage.allocated.argmax() + 1], addresses, strict=False):
            if size > 0:
                held[address] = size
            elif held.pop(address, None) is None:
                before += size
        row = alive.filter((pl.col("device") == usage.device) & (pl.col("operator") == memory.BEFORE))
        assert (row["bytes"].sum(), row.height) == (before, int(before != 0))
        assert sum(held.values()) == alive.filter(pl.col("device") == usage.device)["bytes"].sum() - before


def test_planted_memory_is_conserved(tmp_path):
    check_conservation(opened(tmp_path, PLANTED))


@pytest.mark.recorder
def test_memory_of_a_real_recording_is_conserved(tmp_path):
    import torch
    from torch.profiler import ProfilerActivity, profile

    def keep_an_image():
        return torch.randn(3, 500, 500)

    with profile(activities=[ProfilerActivity.CPU], with_stack=True, profile_memory=True) as prof:
        image = keep_an_image()
        (image @ image.mT).relu()
        del image
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read(tmp_path / "t.json")
    check_conservation(trace)
    found = memory.alive_at_peak(trace)
    (row,) = found.filter(pl.col("source").str.ends_with(": keep_an_image")).iter_rows(named=True)
    assert (row["operator"], row["count"], row["bytes"]) == ("aten::randn", 1, 3_000_000)
    assert "test_memory.py(" in row["source"]


@pytest.mark.parametrize(("name", "device"), [("h100-bert-small", "cuda:0"), ("mi300-bert-small", "hip:0")])
def test_memory_of_any_gpu_is_conserved(name, device, traces):
    trace = read(traces / f"{name}.json.gz")
    check_conservation(trace)
    assert memory.peak(trace)["device"].to_list() == ["cpu", device]
    before = memory.alive_at_peak(trace).filter(pl.col("operator") == memory.BEFORE)
    assert before["device"].to_list() == [device]  # the weights


steps = st.lists(
    st.tuples(st.integers(0, 4), st.integers(1, 50), st.sampled_from([HOST, DEVICE, 1])), min_size=1, max_size=60
)


@pytest.mark.slow
@given(steps, st.integers(0, 100))
def test_memory_is_conserved_for_random_allocations(tmp_path_factory, rows, before):
    """Each address is allocated and released in turn."""
    events, held, level = [], {}, {}
    for time, (address, size, device) in enumerate(rows):
        change = -held.pop((device, address)) if (device, address) in held else size
        if change > 0:
            held[device, address] = change
        level[device] = level.get(device, before) + change
        events.append(event(10 * time, change, address, level[device], device))
    check_conservation(opened(tmp_path_factory.mktemp("fuzz"), events))


@pytest.mark.slow
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=300), st.integers(1, 100))
def test_thinning_keeps_the_ends_the_peak_and_the_size(levels, rows):
    table = pl.DataFrame(
        {"time_ms": range(len(levels)), "device": "cpu", "allocated_bytes": levels, "reserved_bytes": None},
        schema=memory._OVER_TIME,
    )
    other = table.with_columns(device=pl.lit("cuda:0"), allocated_bytes=-pl.col("allocated_bytes"))
    found = memory.thinned(pl.concat([table, other]), rows)
    for device, whole in (("cpu", table), ("cuda:0", other)):
        mine = found.filter(pl.col("device") == device)
        assert mine.height <= max(rows, 3) + 1
        assert {mine["time_ms"][0], mine["time_ms"][-1]} == {0, len(levels) - 1}
        kept = (mine["allocated_bytes"].min(), mine["allocated_bytes"].max())
        assert kept == (whole["allocated_bytes"].min(), whole["allocated_bytes"].max())
        assert mine["time_ms"].is_sorted()
        assert whole.height > rows or mine.height == whole.height


@pytest.mark.parametrize("rows", [0, "many", True])
def test_invalid_number_of_rows_is_rejected(rows):
    with pytest.raises(OptionError, match="rows must be an integer >= 1"):
        Memory(rows=rows)
