"""The order of tables: torch's eleven keys, and columns of ours."""

from __future__ import annotations

import csv
import inspect
import io
import re

import pytest
import torch
from torch.autograd.profiler_util import EventList

from perfhooks import KernelTable, OperatorTable, OptionError, Profiler, testing
from perfhooks.cli.actions import show
from perfhooks.run.capture import Capture
from perfhooks.testing import kernel, launch, memory, op, step_mark
from perfhooks.trace import functions, kernels, labels, operators, read
from perfhooks.trace.names import sort_keys

KEYS = (
    *("cpu_time", "cuda_time", "cpu_time_total", "cuda_time_total", "self_cpu_time_total", "self_cuda_time_total"),
    *("cpu_memory_usage", "cuda_memory_usage", "self_cpu_memory_usage", "self_cuda_memory_usage", "count"),
)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A trace of some operators with their memory, and what torch says of them."""
    with Profiler(activities=["cpu"], profile_memory=True) as prof:
        for size in (10, 200):
            matrix = torch.rand(size, size)
            for _ in range(20 if size == 10 else 2):
                (matrix @ matrix).relu().sum()
    path = tmp_path_factory.mktemp("sorted") / "t.json"
    prof.export_chrome_trace(str(path))
    return path, prof.key_averages()


@pytest.mark.recorder
@pytest.mark.parametrize("key", KEYS)
def test_sorting_by_a_torch_key_equals_torch(recorded, key):
    path, averages = recorded
    attribute = key.replace("cuda", "device")
    wanted = sorted((getattr(each, attribute) for each in averages), reverse=True)
    by_name = {each.key: getattr(each, attribute) for each in averages}
    names = sort_keys.ordered("operators", operators.table(read(path)), key)["name"]
    assert [by_name[name] for name in names] == pytest.approx(wanted)


def test_sort_keys_of_the_installed_torch_are_accepted():
    named = re.findall(
        r"``(\w+)``", inspect.getdoc(EventList.table).partition("Valid keys include:")[2].partition("(")[0]
    )
    assert len(named) > 8
    for key in named:
        if key.endswith(("_time", "_total", "_usage", "count")):
            OperatorTable(sort_by=key)


@pytest.mark.recorder
def test_sortable_columns_equal_those_of_the_tables(recorded):
    trace = read(recorded[0])
    made = {"operators": operators, "labels": labels, "functions": functions, "kernels": kernels}
    assert {name: tuple(table.table(trace).columns) for name, table in made.items()} == sort_keys.COLUMNS


def trace_of(tmp_path):
    events = [step_mark(0, 0, 1000), op("aten::mm", 0, 500, external=1), op("aten::add", 600, 640, external=2)]
    events += [op("aten::add", 650, 660, external=3), memory(10, 64, allocated=64)]
    for number, (name, spent) in enumerate([("gemm", 50), ("add", 30), ("add", 30)], 1):
        events += [launch(number, 10 * number, 10 * number + 2)]
        events += [kernel(number, 100 * number, 100 * number + spent, name=name, external=number)]
    return testing.write_trace(tmp_path / "t.json", events)


def shown(path, *names, sort, capsys, limit=None):
    show.show(str(path), names, form="csv", sort=sort, limit=limit)
    return list(csv.DictReader(io.StringIO(capsys.readouterr().out)))


def test_sort_applies_to_the_requested_table(tmp_path, capsys):
    path = trace_of(tmp_path)
    assert [row["name"] for row in shown(path, sort="cuda_time_total", capsys=capsys, limit=2)] == [
        "ProfilerStep*",
        "aten::add",
    ]
    assert [row["name"] for row in shown(path, "kernels", sort="cuda_time", capsys=capsys)] == ["gemm", "add"]
    assert [row["name"] for row in shown(path, "kernels", sort="count", capsys=capsys)] == ["add", "gemm"]
    assert [row["name"] for row in shown(path, "kernels", sort="name", capsys=capsys)] == ["add", "gemm"]


def test_tables_without_torch_keys_are_sorted_by_their_columns(tmp_path, capsys):
    steps = [step_mark(number, begin, end) for number, begin, end in ((3, 0, 1000), (4, 1000, 4000), (5, 4000, 6000))]
    path = testing.write_trace(tmp_path / "t.json", steps)
    assert [row["step"] for row in shown(path, "steps", sort="wall_ms", capsys=capsys)] == ["4", "5", "3"]


def test_invalid_sort_key_error_lists_valid_keys(tmp_path, capsys):
    with pytest.raises(OptionError, match=r"'kernels'.*total_ms.*got 'cpu_time'"):
        shown(trace_of(tmp_path), "kernels", sort="cpu_time", capsys=capsys)
    with pytest.raises(OptionError, match=r"'cuda_time_totl'.*did you mean 'device_time_total'"):
        OperatorTable(sort_by="cuda_time_totl")
    with pytest.raises(OptionError, match="'kernels'"):
        KernelTable(sort_by="self_cpu_time_total")


def test_files_are_sorted_by_the_option_of_the_handler(tmp_path):
    trace = read(trace_of(tmp_path))

    def names(handler):
        (artifact,) = handler.artifacts(Capture(), trace)
        file = io.BytesIO()
        artifact.write(file)
        return [row["name"] for row in csv.DictReader(io.StringIO(file.getvalue().decode()))]

    assert names(KernelTable(row_limit=1)) == ["add"]
    assert names(KernelTable(sort_by="max_ms", row_limit=1)) == ["gemm"]
    counted = [name for name in names(OperatorTable(sort_by="count")) if name.startswith("aten")]
    assert counted == ["aten::add", "aten::mm"]
