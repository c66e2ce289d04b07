from __future__ import annotations

import functools
import json
import re
from importlib.metadata import version

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.core.errors import OptionError
from perfhooks.trace import read
from perfhooks.trace.names import ranges
from perfhooks.trace.tables import operators

TORCH_24 = version("torch").startswith("2.4")


def train(**options):
    """Two epochs of a small conv net under torch's profiler: the profiler, not yet exported."""
    import torch
    from torch.profiler import ProfilerActivity, profile
    from torch.utils.data import DataLoader, TensorDataset

    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 10)
    )
    optimizer = torch.optim.AdamW(model.parameters())
    loader = DataLoader(TensorDataset(torch.randn(32, 3, 8, 8), torch.randint(0, 10, (32,))), batch_size=8)
    with profile(activities=[ProfilerActivity.CPU], **options) as prof:
        kept = torch.empty(1000)
        for _ in range(2):
            for images, classes in loader:
                with torch.profiler.record_function("forward"):
                    loss = torch.nn.functional.cross_entropy(model(images), classes)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                prof.step()
        del kept
    return prof


def flat(shapes):
    """Shapes as torch shows them, which writes nothing for a list of tensors."""
    return str([[] if any(isinstance(each, list) for each in shape) else shape for shape in json.loads(shapes)])


def ours(table):
    rows = {}
    for row in table.iter_rows(named=True):
        key = (row["name"], flat(row["input_shapes"]) if "input_shapes" in row else "")
        values = [row[column] or 0 for column in ("count", "self_cpu_bytes", "cpu_bytes")]
        times = [round(row[column] * 1e6) for column in ("self_cpu_ms", "cpu_ms")]
        rows[key] = np.add(rows.get(key, 0), [*values, *times])
    return {key: value.tolist() for key, value in rows.items()}


def theirs(averages, grouped):
    return {
        (row.key, str(row.input_shapes) if grouped else ""): [
            *(row.count, row.self_cpu_memory_usage, row.cpu_memory_usage),
            *(round(row.self_cpu_time_total * 1e3), round(row.cpu_time_total * 1e3)),
        ]
        for row in averages
    }


@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """Records the training once for each set of options; gives the profiler and the trace."""

    @functools.cache
    def record(*, verbose=False, **options):
        import torch

        if verbose:
            options["experimental_config"] = torch._C._profiler._ExperimentalConfig(verbose=True)
        path = tmp_path_factory.mktemp("recorded") / "t.json"
        prof = train(**options)
        prof.export_chrome_trace(str(path))
        return prof, read(path)

    return record


@pytest.mark.recorder
@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("shapes", [False, True])
@pytest.mark.parametrize("grouped", [False, True])
def test_the_table_is_that_of_torch(recording, shapes, memory, grouped):
    """Names, counts and bytes are equal, and times to the nanosecond.

    torch 2.4 looks for the allocations of an operator in microseconds since 1970, as floats: it misses some.
    """
    prof, trace = recording(record_shapes=shapes, profile_memory=memory)
    found = ours(operators.table(trace, by=("shapes",) if grouped else ()))
    expected = theirs(prof.key_averages(group_by_input_shape=grouped), grouped)
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        if memory and TORCH_24:
            assert found[key][0] == values[0], key
            continue
        assert found[key] == pytest.approx(values, abs=1), key
        assert found[key][:3] == values[:3], key


@pytest.mark.recorder
def test_stacks_leave_the_table_unchanged(recording):
    """torch subtracts Python frames from the self time of labels; here they take nothing from it."""
    prof, trace = recording(record_shapes=True, with_stack=True, profile_memory=True)
    found = {row["name"]: row for row in operators.table(trace).iter_rows(named=True)}
    expected = {row.key: row for row in prof.key_averages()}
    for name, row in expected.items():
        if name != ranges.MEMORY:
            assert found[name]["count"] == row.count, name
            assert found[name]["cpu_bytes"] == row.cpu_memory_usage or TORCH_24, name
    ops = {name: row for name, row in found.items() if row["kind"] == "op"}
    assert all(row["self_cpu_ms"] <= row["cpu_ms"] for row in ops.values())
    assert found["forward"]["self_cpu_ms"] > 0


def table(tmp_path, events, **options):
    rows = operators.table(read(testing.write_trace(tmp_path / "t.json", events)), **options)
    return {row["name"]: row for row in rows.iter_rows(named=True)}


@pytest.mark.parametrize("name", sorted(ranges.HIDDEN))
def test_hidden_names_belong_to_their_callers(tmp_path, name):
    """What ran inside belongs to what ran around it."""
    events = [testing.op("outer", 0, 100), testing.op(name, 10, 90), testing.op("inner", 20, 30)]
    found = table(tmp_path, events)
    assert set(found) == {"outer", "inner"}
    assert found["outer"]["self_cpu_ms"] == pytest.approx(90e-6)


slices = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(0, 40), st.integers(0, 20), st.integers(1, 2), st.booleans()),
    max_size=10,
)


@pytest.mark.slow
@given(slices)
def test_exclusive_time_sums_to_the_time_with_running_calls(tmp_path_factory, made):
    """On each thread, with calls and operators among each other; whatever has a name that torch merges, too."""
    events, ran = [testing.memory(5, 64)], {1: set(), 2: set()}
    for place, (name, start, span, tid, call) in enumerate(made):
        make = testing.launch(place + 1, start, start + span, name=name, tid=tid, external=0)
        events.append(make if call else testing.op(name, start, start + span, tid=tid, external=place + 1))
        ran[tid] |= set(range(start, start + span))
    events.append(testing.op("last", 99, 100))
    rows = operators.table(read(testing.write_trace(tmp_path_factory.mktemp("x") / "t.json", events)))
    assert round(rows["exclusive_cpu_ms"].sum() * 1e6) == sum(map(len, ran.values())) + 1


SUMS = (
    *("count", "self_cpu_ms", "cpu_ms", "exclusive_cpu_ms", "self_device_ms"),
    *("self_cpu_bytes", "self_device_bytes", "flops"),
)


def check_groups(trace, by):
    """Grouped rows of a name sum to its ungrouped row."""
    whole, parts = operators.table(trace), operators.table(trace, by)
    for column in SUMS:
        summed = {}
        for name, kind, value in parts.select("name", "kind", column).iter_rows():
            summed[name, kind] = summed.get((name, kind), 0) + (value or 0)
        for name, kind, value in whole.select("name", "kind", column).iter_rows():
            assert summed[name, kind] == pytest.approx(value or 0), (name, column)
    assert parts.height >= whole.height


@pytest.mark.recorder
@pytest.mark.parametrize("by", [*((group,) for group in operators.GROUPS), operators.GROUPS])
def test_groups_sum_to_the_table(by, recording):
    check_groups(recording(record_shapes=True, with_stack=True, profile_memory=True)[1], by)


@pytest.mark.parametrize("by", operators.GROUPS)
@pytest.mark.parametrize("name", ["h100-bert-small", "b200-eager-stacks-shapes", "a100-ddp2-train"])
def test_groups_of_any_gpu_sum_to_the_table(name, by, traces):
    check_groups(read(traces / f"{name}.json.gz"), by)


@pytest.mark.skipif(TORCH_24, reason="torch 2.4 groups by stacks of other calls as well; why was not looked into")
def stack_in_torch(prof):
    """Each event with its stack; in the backward pass that of the operator which made the node.

    torch takes the first operator that bears the number of the node, but numbers are used again until one makes a node:
    it books the backward pass of a convolution on the line that loads the batch. Here it is the last one, and a node
    is all that autograd does for it.
    """
    engine = "autograd::engine::evaluate_function: "

    def node(event):
        while event is not None and not event.name.startswith(engine):
            event = event.cpu_parent
        return event

    events = sorted(prof.events(), key=lambda event: event.time_range.start)
    made = {(event.sequence_nr, event.thread): event.stack for event in events if node(event) is None}
    for event in events:
        back = node(event)
        yield event, event.stack if back is None else made.get((back.sequence_nr, back.fwd_thread), [])


@pytest.mark.recorder
@pytest.mark.parametrize("depth", [1, 3, 8])
def test_stacks_equal_those_of_torch(depth, recording):
    """torch has stacks only with a private flag, innermost frame first, and leaves out what calls autograd."""
    from torch.autograd.profiler_util import _filter_stack_entry

    prof, trace = recording(with_stack=True, verbose=True)
    deep = operators.table(trace, by="stack", stack_depth=depth + 2)
    # detach runs in AccumulateGrad, which no operator made: torch shows no stack, we show who called autograd
    names = {name for name in deep["name"] if name.startswith("aten::")} - {"aten::detach"}
    theirs, found = {}, {}
    for event, stack in stack_in_torch(prof):
        if event.name in names and stack:
            key = (event.name, *[re.sub(" at 0x[0-9a-f]+", "", frame) for frame in stack[:depth]])
            theirs[key] = theirs.get(key, 0) + 1
    # ours goes further, so that as much is left after leaving out the same
    for name, stack, count in deep.drop_nulls("stack").select("name", "stack", "count").iter_rows():
        key = (name, *[frame for frame in reversed(stack.split(";")) if _filter_stack_entry(frame)][:depth])
        found[key] = found.get(key, 0) + count
    assert {key: count for key, count in found.items() if key[0] in names} == theirs


def test_the_handler_knows_the_groups():
    """It cannot ask the table, which imports polars."""
    from perfhooks.report.handlers import tables

    assert tables._GROUPS == operators.GROUPS


def test_a_wrong_grouping_is_named():
    with pytest.raises(OptionError, match="'colour'"):
        operators.table(None, by=("colour",))
