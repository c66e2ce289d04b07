"""The tree of modules: planted times on two threads, a real net, and twins of what real machines recorded."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.report.page import run_data, window_data
from perfhooks.trace import Kind, read
from perfhooks.trace.nesting import host, intervals
from perfhooks.trace.nesting.slices import nest
from perfhooks.trace.tables import modules

NODE = "autograd::engine::evaluate_function: "
LOSS = ("MeanBackward0", "PowBackward0")
AUTOGRAD = 999
"""The thread of autograd, as on GPUs."""


def module(name, start, end, **args):
    return testing.python_frame(f"nn.Module: {name}", start, end, Python_module_id=0, **args)


def table(tmp_path, events):
    return modules.table(read(testing.write_trace(tmp_path / "t.json", events)))


def times(found, *columns):
    """Nanoseconds by path."""
    return {row["path"]: tuple(round(row[each] * 1e6) for each in columns) for row in found.iter_rows(named=True)}


def annotated(number, start, end, name, **args):
    event = testing.kernel(number, start, end, graph_node_id=7)
    event["args"] |= {"name": name, **args}
    return event


def replayed():
    """A network replays what was captured of it, forward and backward, in one call; another replays in no module."""
    calls = [module("Net_0", 0, 100), module("Head_0", 80, 95)]
    calls += [testing.launch(1, 10, 20, name="cudaGraphLaunch"), testing.launch(2, 82, 84)]
    calls += [testing.launch(3, 110, 120, name="cudaGraphLaunch")]
    work = [annotated(1, 30, 40, "mlp"), annotated(1, 40, 60, "attention"), annotated(1, 60, 63, "mlp")]
    work += [annotated(1, 63, 70, "mlp", autograd_phase="backward"), testing.kernel(1, 70, 75, graph_node_id=8)]
    work += [testing.kernel(2, 90, 94), annotated(3, 130, 190, "mlp")]
    return [*calls, *work]


def test_report_keeps_the_regions_with_most_device_time(tmp_path, monkeypatch):
    """The host spends nothing in them, so that its time alone would cut them off first."""
    monkeypatch.setattr(window_data, "_ROWS", 1)
    short = [module(f"Short_{number}", 200 + number, 201 + number) for number in range(20)]
    path = testing.write_trace(tmp_path / "t.json", [*replayed(), *short])
    (details,) = run_data.from_trace(path)["windows"][0]["details"].values()
    assert details["modules"]["rows"]["name"] == ["Net_0", "mlp", "attention", "mlp"]
    assert details["modules"]["count"] == 25


def test_regions_below_too_deep_modules_have_no_parent(tmp_path, monkeypatch):
    """Each would write the path of all the modules around it again."""
    monkeypatch.setattr(host, "MAX_LETTERS", 16)
    monkeypatch.setattr(host, "MAX_LETTERS_PER_SLICE", 0)
    paths = set(table(tmp_path, replayed())["path"])
    assert {"Net_0", "mlp", "attention"} <= paths
    assert not {"Net_0/mlp", "Net_0/attention"} & paths


def test_unknown_values_are_null(tmp_path):
    found = table(tmp_path, [module("A_0", 0, 50)])
    columns = ("forward_device_ms", "backward_ms", "backward_device_ms")
    assert found.select(columns).row(0) == (None,) * 3
    assert table(tmp_path, [testing.op("aten::a", 0, 5)]).rows() == []
    assert found.schema == table(tmp_path, [testing.op("aten::a", 0, 5)]).schema


def check_sums(found):
    """The self times of a module and of all below it sum to its own time, to the nanosecond."""
    own = times(found, "forward_self_ms", "forward_ms")
    for path, (_, total) in own.items():
        assert total == sum(self for other, (self, _) in own.items() if other == path or other.startswith(f"{path}/"))
    assert all(self >= 0 for self, _ in own.values())


@pytest.mark.process  # torch starts one at its first optimizer
def test_real_network_has_its_modules_and_backward_time(tmp_path):
    import torch
    from torch.profiler import ProfilerActivity, profile

    net = torch.nn.Sequential(
        torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU()),
        torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 12 * 12, 10),
    )
    with profile(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
        for _ in range(3):
            net(torch.randn(4, 3, 16, 16)).square().mean().backward()
    prof.export_chrome_trace(str(tmp_path / "t.json"))
    trace = read(tmp_path / "t.json")
    found = modules.table(trace)
    paths = found["path"].to_list()
    tails = ["Sequential_1", "Sequential_1/Conv2d_0", "Sequential_1/BatchNorm2d_0", "Sequential_1/ReLU_0"]
    tails += ["Sequential_2", "Sequential_2/Conv2d_1", "Sequential_2/ReLU_1", "Flatten_0", "Linear_0"]
    assert paths == ["Sequential_0", *(f"Sequential_0/{tail}" for tail in tails)]
    assert set(found["calls"]) == {3}
    check_sums(found)

    def spent(*names):
        nodes = trace.named(Kind.OP, names=tuple(f"{NODE}{name}" for name in names))
        return (trace.end - trace.start)[nodes[np.argsort(trace.start[nodes])]] * 1e-6

    nodes = trace.named(Kind.OP, prefix=NODE)
    autograd = intervals.total(intervals.union(trace.start[nodes], trace.end[nodes])) * 1e-6
    backward = dict(found.select("path", "backward_ms").iter_rows())
    # a gradient belongs to a module or to none
    gradients, loss = (spent(*names).sum() for names in (["torch::autograd::AccumulateGrad"], LOSS))
    tolerance = 1e-9 * autograd
    assert autograd - loss - gradients - tolerance <= backward["Sequential_0"] <= autograd + tolerance
    first = spent("ConvolutionBackward0")[1::2].sum()  # the last one that is passed back
    assert first - tolerance <= backward["Sequential_0/Sequential_1/Conv2d_0"] <= first + gradients + tolerance
    assert backward["Sequential_0/Flatten_0"] > 0


@pytest.mark.parametrize("name", ["b200-eager-stacks-shapes", "h100-bert-small", "mi300-bert-small"])
def test_modules_of_any_gpu_launch_work(name, traces):
    trace = read(traces / f"{name}.json.gz")
    found = modules.table(trace)
    check_sums(found)
    spans = (trace.end - trace.start)[trace.device_rows].sum() * 1e-6
    assert 0.5 * spans < found.filter(found["depth"] == 0)["forward_device_ms"].sum() <= spans + 1e-9
    assert found["backward_ms"].null_count() == found.height  # none of them trains


kinds = st.sampled_from(["nn.Module: A_0", "nn.Module: B_0", "f.py(1): f", f"{NODE}X", "aten::mm"])
spans = st.tuples(kinds, st.integers(0, 40), st.integers(0, 30), st.integers(1, 2), st.integers(0, 3))


@pytest.mark.slow
@given(st.lists(spans, min_size=1, max_size=25))
def test_sums_hold_for_any_trace(tmp_path_factory, rows):
    events = []
    for name, start, span, tid, number in rows:
        python = name.startswith(("nn.", "f.py"))
        make = testing.python_frame if python else testing.op
        args = {} if python else {"Sequence_number": number, "Fwd_thread_id": int(name.startswith(NODE))}
        events.append(make(name, start, start + span, tid=tid, **args))
    folder = tmp_path_factory.mktemp("fuzz")
    trace = read(testing.write_trace(folder / "t.json", events))
    found = modules.table(trace)
    check_sums(found)
    nodes = trace.named(Kind.OP, prefix=NODE)
    most = sum((trace.end - trace.start)[nodes].tolist())
    assert sum(value for (value,) in times(found.drop_nulls("backward_ms"), "backward_ms").values()) <= most * 25


# --- the tree that stacks, modules and memory share ---


def climb(parent, own, entry):
    """`host.inherited` for one entry, the obvious way."""
    while entry >= 0 and own[entry] < 0:
        entry = parent[entry]
    return own[entry] if entry >= 0 else -1


@pytest.mark.slow
@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 30), st.integers(-1, 3)), max_size=30))
def test_value_is_inherited_from_the_innermost_ancestor(rows):
    rows.sort(key=lambda row: (row[0], -row[1]))
    start, span, own = (np.array([row[column] for row in rows], np.int64) for column in range(3))
    parent = nest(np.zeros(len(rows), np.int64), start, start + span).parent
    expected = [climb(parent.tolist(), own.tolist(), entry) for entry in range(len(rows))]
    assert host.inherited(parent, own).tolist() == expected


def test_module_tree_is_built_once_per_trace(tmp_path):
    trace = read(testing.write_trace(tmp_path / "t.json", [testing.op("a", 0, 5)]))
    assert host.tree(trace) is host.tree(trace)
    tree = weakref.ref(host.tree(trace).row)
    del trace
    assert tree() is None


def model_of(tmp_path, events):
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    return modules.model(trace, modules.table(trace))


def launched(number, at, span, **options):
    return [testing.launch(number, at, at + 1, **options), testing.kernel(number, 1000 + at, 1000 + at + span)]
