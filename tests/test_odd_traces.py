"""Traces with odd names, types and nesting: each defect costs what it damages, and nothing else."""

from __future__ import annotations

import json
from importlib.metadata import version

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfhooks import testing
from perfhooks.core import labels
from perfhooks.report.page.headline import of_window
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, kernel, launch, op, step_mark
from perfhooks.trace import Kind, read
from perfhooks.trace.tables import operators
from perfhooks.trace.tables.labels import table as labels_table
from perfhooks.trace.tables.stacks import folded
from perfhooks.trace.window import Tables

SHAPES = {"Input_Dims": [[64, 64], [64, 64]], "Concrete_Inputs": ["", ""]}


def bytes_per_second(tmp_path, spelled):
    events = [op("aten::mul", 0, 100, external=1, Input_type=[spelled, spelled], **SHAPES)]
    events += [launch(1, 10, 20, external=1), kernel(1, 30, 4030, external=1)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    row = operators.table(trace).filter(operators.table(trace)["name"] == "aten::mul")
    return row["gb_per_s"].item()


@pytest.mark.parametrize("spelled", ["Float", "FLOAT", "fp32", "float"])
def test_types_are_recognized_in_upper_and_lower_case(tmp_path, spelled):
    assert bytes_per_second(tmp_path, spelled) == pytest.approx(3 * 64 * 64 * 4 / 4000)


@pytest.mark.parametrize("spelled", ["Posit16", "", "c10::complex<Half>"])
def test_unknown_type_leaves_the_bytes_of_its_operator_unknown(tmp_path, spelled):
    assert bytes_per_second(tmp_path, spelled) is None


def test_own_times_of_crossing_labels_are_not_negative(tmp_path):
    events = [step_mark(number, 3000 * number, 3000 * number + 3000) for number in range(4)]
    events.append(annotation("epoch", 500, 11500))
    for number in range(3):
        at = 3000 * number + 1000
        events += [annotation("batch", at, at + 2600), annotation("update", at + 100, at + 2500)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    assert (labels_table(trace)["self_ms"] >= 0).all()
    assert (Tables(trace).operators()["self_cpu_ms"] >= 0).all()


def test_operators_of_other_threads_are_no_part_of_a_step(tmp_path):
    events = []
    for number in range(3):
        at = 10_000_000 * number
        events += [step_mark(number, at, at + 10_000_000), op("aten::mm", at, at + 2_000_000)]
        events += [op(name, at, at + 5_000_000, tid=7) for name in ("aten::sort", "aten::mm")]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    said = of_window(Capture(stage="train", last=0), trace)
    assert "80% outside of operators, 20% aten::mm" in said


FRAMES = (
    r"C:\users\me\train.py(3): <module>",
    r"torch\nn\modules\linear.py(12): forward",
    r"torch\autograd\function.py(301): apply",
    r"D:\temp\run\base.py(1): u",
    r"\\server\share\tools\net.py(7): read",
    r"D:\data\u2net\u00e9.py(3): f",
    r"C:\Program Files\Python313\Lib\runpy.py(86): _run_code",
)


@pytest.mark.parametrize("frame", FRAMES)
def test_windows_paths_keep_their_names(tmp_path, frame):
    """Kineto writes them without escapes."""
    event = json.dumps(testing.python_frame("PATH", 0, 5)).replace("PATH", frame)
    (tmp_path / "t.json").write_text(f'{{"traceEvents":[{json.dumps(op("a", 1, 2))},{event}]}}')
    trace = read(tmp_path / "t.json")
    assert trace.doubts == []
    assert frame in trace.names


@pytest.mark.parametrize(
    ("recorded", "shown"),
    [
        ((-1, -1, -1), (None, None, None)),
        ((1 << 20, -1, 2 << 20), (1 << 20, None, 2 << 20)),
        ((None, -1, 0), (None, None, 0)),
        ((2**64 - 1, -(2**40), "-1"), (None, None, None)),
    ],
)
def test_a_reserved_size_that_is_not_counted_is_empty(tmp_path, recorded, shown):
    events = [testing.memory(10 * number, 64, allocated=64 * number, device=0) for number in range(1, 4)]
    for event, size in zip(events, recorded, strict=True):
        event["args"] |= {"Total Reserved": size}
    tables = Tables(read(testing.write_trace(tmp_path / "t.json", events)))
    assert tables.memory["reserved_bytes"].to_list() == list(shown)
    assert tables.memory_peak["reserved_bytes"].item() == max(
        (size for size in shown if size is not None), default=None
    )


@pytest.mark.slow
@given(st.text())
def test_escaped_name_is_ascii_and_restored(name):
    assert labels.escaped(name).isascii()
    if not any(0xD800 <= ord(letter) < 0xE000 for letter in name) and "&#x" not in name:
        assert labels.unescaped(labels.escaped(name)) == name


@pytest.mark.parametrize("name", ["&#x41;", "&#xd800;", "&#x110000;", "&#x;", "&#xzz;", "a &#x8bad b"])
def test_other_texts_are_no_escapes(name):
    assert labels.unescaped(name) == name


TRAINING = r"""
import gzip, json, sys, torch, perfhooks
with perfhooks.Profiler(schedule="wait=0 warmup=1 active=2", out=sys.argv[1], run="r", background=False) as prof:
    for _ in range(4):
        with prof.region("\u8bad\u7ec3"):
            torch.randn(8, 8) @ torch.randn(8, 8)
        with torch.profiler.record_function("\u00e9valuation"):
            torch.randn(8, 8)
        prof.step()
assert torch.profiler.record_function("\u8bad").name == "\u8bad"
names = {"\u8bad\u7ec3", "\u00e9valuation"}
assert names <= {row.key for row in prof.key_averages()}
for name in ("a.json", "a.json.gz"):
    prof.export_chrome_trace(name)
    with (gzip.open if name.endswith("gz") else open)(name, "rb") as file:
        assert names <= {event["name"] for event in json.load(file)["traceEvents"]}
"""


def test_labels_that_are_not_ascii_keep_their_names(tmp_path, run_script):
    done = run_script(TRAINING, tmp_path / "perf")
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "perf").rglob("rank0.pt.trace.json*")
    table = labels_table(read(path))
    assert dict(table.filter(table["name"] != "ProfilerStep*").select("name", "calls").rows()) == {
        "\u8bad\u7ec3": 2,
        "\u00e9valuation": 2,
    }


def dispatched(at, external, *, local=64, dispatcher="PythonDispatchMode", inner="aten::mm", meta=""):
    """A product of 64 x 64 matrices that a dispatcher calls again for so many rows.

    ``meta`` is the way of a distributed tensor to call it before on tensors without data.
    """
    shapes = {"Input_type": ["float", "float"]}
    outer = op("aten::mm", at, at + 900, external=external, Input_Dims=[[64, 64], [64, 64]], **shapes)
    events = [outer, op(dispatcher, at + 10, at + 890, external=external + 1)]
    if meta:
        events += [
            op("aten::mm", at + 20, at + 200, external=external + 2, Input_Dims=[[64, 64], [64, 64]], **shapes),
            op("PythonDispatchMode", at + 30, at + 190, external=external + 3),
        ]
    if meta == "an operator":
        whole = {"Input_Dims": [[64, 64], [64, 64]], **shapes}
        events.append(op("aten::mm", at + 40, at + 180, external=external + 4, **whole))
    begin = at + 300
    events.append(op(inner, begin, begin + 500, external=external + 5, Input_Dims=[[local, 64], [64, 64]], **shapes))
    return [*events, launch(external + 5, begin + 10, begin + 20, external=external + 5)], external + 5


def product_row(tmp_path, *, calls=5, **how):
    events = [step_mark(0, 0, 1_000_000)]
    for call in range(calls):
        found, number = dispatched(1000 + 2000 * call, 100 + 10 * call, **how)
        start = 100_000 + 10_000 * call
        events += [*found, kernel(number, start, start + 5000, external=number)]
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    table = operators.table(trace)
    (tflop,) = Tables(trace).steps["tflop"]
    return table.filter(table["name"] == "aten::mm").row(0, named=True), tflop


@pytest.mark.parametrize("dispatcher", ["PythonDispatchMode", "PythonSubclass"])
def test_an_operator_that_a_dispatcher_calls_again_counts_once(tmp_path, dispatcher):
    row, tflop = product_row(tmp_path, dispatcher=dispatcher)
    assert (row["count"], row["flops"]) == (5, 5 * 2 * 64**3)
    assert row["cpu_ms"] == pytest.approx(5 * 0.0009)
    assert row["device_ms"] == row["self_device_ms"] == pytest.approx(5 * 0.005)
    assert tflop == pytest.approx(5 * 2 * 64**3 / 1e12)


@pytest.mark.parametrize("meta", ["", "an operator", "no operator"])
@pytest.mark.parametrize("local", [16, 32, 64])
def test_a_distributed_product_counts_its_local_part(tmp_path, local, meta):
    row, tflop = product_row(tmp_path, dispatcher="PythonSubclass", local=local, meta=meta)
    assert (row["count"], row["flops"]) == (5, 5 * 2 * local * 64 * 64)
    assert row["tflops_per_s"] == pytest.approx(2 * local * 64 * 64 / 5e-6 / 1e12)
    assert tflop == pytest.approx(row["flops"] / 1e12)


def test_another_operator_in_a_dispatcher_has_its_own_row(tmp_path):
    row, _ = product_row(tmp_path, inner="aten::bmm")
    assert (row["count"], row["flops"]) == (5, 5 * 2 * 64**3)


DISTRIBUTED = """
import sys, torch
from torch.distributed import init_process_group
from torch.distributed.device_mesh import init_device_mesh
try:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
except ImportError:  # before torch 2.5
    from torch.distributed._tensor import Replicate, Shard, distribute_tensor
from torch.testing._internal.distributed.fake_pg import FakeStore

init_process_group("fake", rank=0, world_size=4, store=FakeStore())
mesh = init_device_mesh("cpu", (4,))
pairs = [((64, 32), Shard(0), (32, 16), Replicate()), ((64, 32), Shard(1), (32, 16), Shard(0))]
pairs += [((8, 16, 32), Shard(0), (8, 32, 16), Shard(0))]
pairs = [(distribute_tensor(torch.randn(a), mesh, [p]), distribute_tensor(torch.randn(b), mesh, [q]))
         for a, p, b, q in pairs]
with torch.profiler.profile(record_shapes=True) as profiler:
    for a, b in pairs * 2:
        torch.matmul(a, b)
profiler.export_chrome_trace(sys.argv[1])
"""


@pytest.mark.skipif(version("torch").startswith("2.4"), reason="torch 2.4 writes no range of a tensor subclass")
def test_recorded_distributed_products_count_their_local_parts(tmp_path, run_script):
    """16 x 32 x 16 and 64 x 8 x 16, and two of eight products of 16 x 32 x 16."""
    done = run_script(DISTRIBUTED, tmp_path / "t.json")
    assert done.returncode == 0, done.stderr
    tables = Tables(read(tmp_path / "t.json"))
    rows = dict(tables.operators().filter(kind="op").select("name", "flops").iter_rows())
    assert (rows["aten::mm"], rows["aten::bmm"]) == (2 * 2 * (16 * 32 * 16 + 64 * 8 * 16), 2 * 2 * 2 * 16 * 32 * 16)
    assert tables.steps["tflop"].item() == pytest.approx((rows["aten::mm"] + rows["aten::bmm"]) / 1e12)


DISPATCH = """
import sys, torch
from torch.utils._python_dispatch import TorchDispatchMode

class Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

with torch.profiler.profile(record_shapes=True) as profiler, Mode():
    for _ in range(4):
        torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)) + torch.randn(8, 16).mm(
            torch.randn(16, 6)
        ).sum()
profiler.export_chrome_trace(sys.argv[1])
"""


def test_recorded_dispatch_mode_doubles_nothing(tmp_path, run_script):
    done = run_script(DISPATCH, tmp_path / "t.json")
    assert done.returncode == 0, done.stderr
    table = operators.table(read(tmp_path / "t.json"))
    rows = {row["name"]: row for row in table.rows(named=True)}
    assert (rows["aten::mm"]["count"], rows["aten::mm"]["flops"]) == (4, 4 * 2 * 8 * 16 * 6)
    assert (rows["aten::conv2d"]["count"], rows["aten::conv2d"]["flops"]) == (4, 4 * 2 * 36 * 4 * 27)


def test_launches_without_work_have_no_rates(tmp_path):
    events = []
    for call in range(5):
        at = 1000 * call
        events.append(op("aten::mm", at, at + 90, external=call + 1, Input_type=["float", "float"], **SHAPES))
        events.append(launch(call + 1, at + 10, at + 20, external=call + 1))
    events.append(op("aten::add", 9000, 9100, external=99, Input_type=["float", "float"], **SHAPES))
    table = operators.table(read(testing.write_trace(tmp_path / "t.json", events)))
    for column in ("tflops_per_s", "gb_per_s", "limit_percent", "limit"):
        assert table[column].null_count() == table.height
    assert table.filter(table["name"] == "aten::mm")["flops"].item() == 5 * 2 * 64**3


@pytest.mark.parametrize(("name", "span", "is_told"), [("aten::mm", 60, True), ("aten::mm", 4, False)])
@pytest.mark.parametrize("device", ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"])
def test_a_rate_above_the_peak_is_withheld_with_the_reason(tmp_path, name, span, is_told, device):
    shapes = {"Input_Dims": [[2048, 2048], [2048, 2048]], "Input_type": ["c10::BFloat16"] * 2}
    events = [op(name, 0, 9000, external=1, **shapes), launch(1, 100, 200, external=1)]
    events.append(kernel(1, 10_000, 10_000 + span * 1000, external=1))
    properties = [{"id": 0, "name": device}]
    tables = Tables(read(testing.write_trace(tmp_path / "t.json", events, deviceProperties=properties)))
    row = tables.operators().filter(tables.operators()["name"] == name).row(0, named=True)
    checks = dict(tables.checks.select("name", "text").rows())
    assert (row["tflops_per_s"] is not None) == (row["limit_percent"] is not None) == is_told
    assert tables.kernels["tflops_per_s"].null_count() == (0 if is_told else 1)
    assert ("rate-above-peak" in checks) == (not is_told)
    if not is_told:
        assert name in checks["rate-above-peak"]


def never_closed(count, *, depth=1, tail=0):
    """Calls of one function that the recorder never closes; each calls others, which it closes."""
    frames = [testing.python_frame("train.py(1): main", 0, 100_000, Python_id=1, Python_parent_id=None)]
    for call in range(count):
        start, number = 1000 + 4000 * call, 10 + 10 * call
        last = number + depth - 1
        for inner in range(depth):
            name, caller = f"ops.py({inner}): call{inner}", number + inner - 1 if inner else 1
            at = start + 100 * inner
            frames.append(
                testing.python_frame(name, at, 99_000 + tail, Python_id=number + inner, Python_parent_id=caller)
            )
        frames.append(
            testing.python_frame(
                "ops.py(9): closed",
                start + 1000,
                start + 1500,
                Python_id=number + 9,
                Python_parent_id=last,
            )
        )
    return [step_mark(0, 0, 100_000), *frames]


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("tail", [0, 1000, 5000])
def test_unclosed_frame_ends_with_its_caller(tmp_path, depth, tail):
    trace = read(testing.write_trace(tmp_path / "t.json", never_closed(5, depth=depth, tail=tail)))
    stacks_ = list(folded(trace))
    assert not any(stack.count("call0") > 1 for stack in stacks_)
    functions = Tables(trace).functions
    row = functions.filter(functions["function"] == "call0").row(0, named=True)
    assert (row["calls"], row["total_ms"] <= 0.1) == (5, True)
    checks = dict(Tables(trace).checks.select("name", "count").rows())
    assert checks["frames-without-end"] >= 4 * depth


def test_single_unclosed_frame_ends(tmp_path):
    events = never_closed(2)
    events[2]["dur"] = 50.0
    trace = read(testing.write_trace(tmp_path / "t.json", events))
    assert not any(stack.count("call0") > 1 for stack in folded(trace))


@pytest.mark.parametrize("number", [2**62, -5, "a"])
def test_frames_with_odd_numbers_stay_unchanged(tmp_path, number):
    events = never_closed(2)
    events[2]["args"]["Python id"] = number
    assert read(testing.write_trace(tmp_path / "t.json", events)).rows(Kind.PYTHON).size == 5


def test_frames_that_are_open_at_the_end_are_no_doubt(tmp_path):
    frames = []
    for depth in range(20):
        numbers = {"Python_id": depth + 1, "Python_parent_id": depth or None}
        frames.append(testing.python_frame(f"a.py({depth}): f", 100 * depth, 90_000, **numbers))
    trace = read(testing.write_trace(tmp_path / "t.json", [step_mark(0, 0, 95_000), *frames]))
    assert "frames-without-end" not in Tables(trace).checks["name"].to_list()
    assert (trace.end[trace.rows(Kind.PYTHON)] == 90_000).all()


@pytest.mark.parametrize(
    ("category", "has_cuda"), [("cuda_runtime", True), ("xpu_runtime", False), ("mtia_ccp", False)]
)
def test_devices_of_other_makers_have_no_cuda(tmp_path, category, has_cuda):
    events = [op("aten::mm", 0, 900), launch(1, 100, 200) | {"cat": category}]
    assert read(testing.write_trace(tmp_path / "t.json", events)).has_cuda == has_cuda
