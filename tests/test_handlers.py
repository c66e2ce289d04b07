"""Handlers: made from what a config file says, told as what a config file could say, and the files they give."""

from __future__ import annotations

import csv
import dataclasses
import gzip
import io
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import perfhooks
from perfhooks import Artifact, Capture, ChromeTrace, OperatorTable, Stacks, StepTable, testing
from perfhooks.core.errors import OptionError
from perfhooks.report import handlers
from perfhooks.trace import read

OURS = """
from dataclasses import dataclass
from perfhooks import Artifact

@dataclass(frozen=True, kw_only=True)
class Count:
    unit: str = "events"

    def artifacts(self, capture, trace):
        yield Artifact("count.txt", lambda file: file.write(f"{len(trace)} {self.unit}".encode()))

class NoDataclass:
    def artifacts(self, capture, trace):
        return []

@dataclass(frozen=True)
class NoHandler:
    unit: str = ""

def count(prof):
    pass

number = 3
"""
MAKE = """
try:
    perfhooks.Profiler(on_trace_ready=Count())
except perfhooks.OptionError as error:
    print(error)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A user's module with handlers, importable."""
    (tmp_path / "own_handlers.py").write_text(OURS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_handlers", raising=False)
    import own_handlers

    return own_handlers


@pytest.fixture
def trace(tmp_path):
    """Two steps with three operators, saved as the recorder saves it."""
    events = [testing.step_mark(3, 0, 100), testing.step_mark(4, 100, 200)]
    events += [
        testing.op("aten::mm", 10, 60, Input_Dims=[[2, 2]]),
        testing.op("aten::mm", 110, 130, Input_Dims=[[3, 3]]),
    ]
    events += [testing.op("aten::add", 70, 90), testing.op("aten::mul", 140, 141)]
    return read(testing.write_trace(tmp_path / "spool.json", events))


def files(handler, trace):
    """What a handler writes, by name."""
    written = {}
    for name, write in handler.artifacts(Capture(), trace):
        file = io.BytesIO()
        write(file)
        written[name] = file.getvalue()
    return written


def rows(table):
    return list(csv.DictReader(io.StringIO(table.decode())))


# --- from a config file and back ---


@pytest.mark.parametrize(
    ("option", "names"),
    [("with_stack", {"stacks", "flame", "functions", "modules"}), ("profile_memory", {"memory"})],
)
def test_recorded_options_select_the_default_files(option, names):
    without = set(handlers.by_default({option: False}))
    assert {"trace", "steps", "page"} <= without
    assert set(handlers.by_default({option: True})) - without == names


@pytest.mark.parametrize(
    ("wanted", "made"),
    [
        ("trace", ChromeTrace()),
        ("steps", StepTable()),
        ("operators", OperatorTable()),
        ("stacks", Stacks()),
        ({"type": "trace", "compress": False}, ChromeTrace(compress=False)),
        ({"type": "operators", "row_limit": 50, "by": ["shapes"]}, OperatorTable(row_limit=50, by=("shapes",))),
        ({"type": "operators", "by": "shapes"}, OperatorTable(by=("shapes",))),
        ({"type": "stacks", "by": ["host", "bytes"]}, Stacks(by=("host", "bytes"))),
        ("perfhooks:StepTable", StepTable()),
    ],
)
def test_handler_is_built_from_its_name_or_a_mapping(wanted, made):
    assert handlers.build(wanted) == made


@pytest.mark.parametrize("name", handlers.NAMES)
def test_recipe_of_a_handler_makes_an_equal_handler(name):
    handler = handlers.build(name)
    assert handlers.spec(handler)["type"] == name
    assert handlers.build(handlers.spec(handler)) == handler


def test_passed_mapping_stays_unchanged():
    wanted = {"type": "operators", "row_limit": 3}
    handlers.build(wanted)
    assert wanted == {"type": "operators", "row_limit": 3}


def test_every_public_handler_has_a_name():
    public = {name for name in perfhooks.__all__ if isinstance(getattr(perfhooks, name), type)}
    ours = {made.__name__ for made in handlers.NAMES.values()}
    assert ours <= public
    assert all(dataclasses.is_dataclass(made) for made in handlers.NAMES.values())


# --- handlers of one's own ---


def test_custom_handler_is_named_by_module_and_class(own, trace):
    handler = handlers.build({"type": "own_handlers:Count", "unit": "things"})
    assert handler == own.Count(unit="things")
    assert handlers.spec(handler) == {"type": "own_handlers:Count", "unit": "things"}
    assert files(handler, trace) == {"count.txt": b"6 things"}


@pytest.mark.worker
def test_custom_handler_writes_its_files_beside_default_files(own, tmp_path, monkeypatch):
    """Given as an object or by its path, beside names of ours."""
    import torch

    monkeypatch.chdir(tmp_path)
    wanted = ["steps", own.Count()]
    schedule = "wait=0 warmup=0 active=2 repeat=1"
    with perfhooks.Profiler(schedule=schedule, on_trace_ready=wanted, out="runs", run="r") as prof:
        for _ in range(3):
            torch.ones(3).sum()
            prof.step()
    prof.wait()
    folder = tmp_path / "runs/r/train-000000-000001"
    assert (folder / "rank0.count.txt").read_text().endswith(" events")
    assert (folder / "rank0.steps.csv").exists()


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ("stack", "no handler is called 'stack'"),
        ("stack", "or 'module:Class'; did you mean 'stacks'?"),
        ("flames", "no handler is called 'flames'"),
        ({"row_limit": 3}, "a handler given as a mapping needs a type"),
        ({"type": 3}, "a handler given as a mapping needs a type"),
        ({"type": "steps", "colour": 3}, "handler 'steps' does not take these options: {'colour': 3}"),
        ({"type": "operators", "row_limit": 0}, "row_limit must be an integer >= 1 or None, got 0"),
        ({"type": "operators", "row_limit": "many"}, "row_limit must be an integer >= 1 or None, got 'many'"),
        ({"type": "stacks", "by": "weight"}, "by must name some of host, device, bytes, got ('weight',)"),
        ({"type": "stacks", "by": []}, "by must name some of host, device, bytes, got ()"),
        ({"type": "trace", "compress": "yes"}, "compress must be true or false, got 'yes'"),
        ("nowhere.at.all:Count", "handler 'nowhere.at.all:Count' cannot be imported"),
        ("own_handlers:Missing", "handler 'own_handlers:Missing' cannot be imported"),
        ("own_handlers:number", "handler 'own_handlers:number' is not a class"),
        ("own_handlers:NoHandler", "handler 'own_handlers:NoHandler' has no method artifacts(capture, trace)"),
        ("own_handlers:count", "handler 'own_handlers:count' does not take these options"),
    ],
)
@pytest.mark.usefixtures("own")
def test_invalid_handler_is_one_clear_error(wanted, words):
    with pytest.raises(OptionError) as caught:
        handlers.build(wanted)
    assert words in str(caught.value)


def test_handler_that_is_no_dataclass_is_rejected(own):
    with pytest.raises(OptionError, match="NoDataclass must be a dataclass in a module that can be imported"):
        perfhooks.Profiler(on_trace_ready=own.NoDataclass())


def test_handler_defined_inside_a_function_is_rejected():
    @dataclass(frozen=True)
    class Local:
        def artifacts(self, capture, trace):
            return [Artifact("x", lambda file: None)]

    with pytest.raises(OptionError, match=r"Local must be a dataclass in a module that can be imported"):
        perfhooks.Profiler(on_trace_ready=[Local()])


def test_handler_defined_in_the_script_is_rejected(run_script):
    """Its module is ``__main__``, which is another one in another process."""
    done = run_script(f"import perfhooks\n{OURS}{MAKE}")
    assert "handler Count must be a dataclass in a module that can be imported" in done.stdout


# --- what they write ---


@pytest.mark.parametrize(
    ("compress", "name", "opened"),
    [(True, "pt.trace.json.gz", gzip.decompress), (False, "pt.trace.json", bytes)],
)
@pytest.mark.parametrize("packed", [False, True])
def test_trace_equals_the_saved_recording(compress, name, opened, packed, trace):
    """To the byte, whether it was saved plain or compressed."""
    saved = Path(trace.path)
    plain = saved.read_bytes()
    if packed:
        saved = saved.with_suffix(".json.gz")
        saved.write_bytes(gzip.compress(plain))
    written = files(ChromeTrace(compress=compress), read(saved))
    assert {name: opened(content) for name, content in written.items()} == {name: plain}


def test_the_operator_table_keeps_the_costliest_rows(trace):
    every = rows(files(OperatorTable(), trace)["operators.csv"])
    few = rows(files(OperatorTable(row_limit=2), trace)["operators.csv"])
    assert few == every[:2]
    times = [float(row["self_cpu_ms"]) for row in every]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(
    ("by", "counts"), [((), [2]), ("shapes", [1, 1]), ("step", [1, 1]), (("shapes", "step"), [1, 1])]
)
def test_operator_table_splits_by_the_requested_keys(by, counts, trace):
    table = rows(files(OperatorTable(by=by), trace)["operators.csv"])
    assert [int(row["count"]) for row in table if row["name"] == "aten::mm"] == counts


def test_step_table_has_a_row_for_each_step(trace):
    table = rows(files(StepTable(), trace)["steps.csv"])
    assert [(row["step"], float(row["wall_ms"])) for row in table] == [("3", 0.0001), ("4", 0.0001)]


def test_stacks_are_one_file_for_each_measure(trace):
    assert set(files(Stacks(by=("host", "device", "bytes")), trace)) == {
        "stacks.folded",
        "stacks.device.folded",
        "stacks.bytes.folded",
    }


@pytest.mark.parametrize("by", ["colour", ("shapes", "colour")])
def test_a_wrong_grouping_of_operators_is_found_at_construction(by):
    with pytest.raises(OptionError, match="'colour'"):
        OperatorTable(by=by)


# --- options that are taken ---


def test_kernel_table_keeps_the_costliest_rows(tmp_path):
    """Two operators launch the same kernel, and one of them another."""
    events = [testing.step_mark(3, 0, 1000)]
    for number, (name, launched, kernel, spent) in enumerate(
        [("aten::mm", 10, "gemm", 50), ("aten::bmm", 30, "gemm", 60), ("aten::bmm", 40, "reduce", 5)], 1
    ):
        events.append(testing.op(name, launched - 5, launched + 4))
        events.append(testing.launch(number, launched, launched + 2))
        events.append(testing.kernel(number, 100 * number, 100 * number + spent, name=kernel))
    found = read(testing.write_trace(tmp_path / "t.json", events))

    def table(**options):
        return rows(files(handlers.KernelTable(**options), found)["kernels.csv"])

    assert [row["name"] for row in table()] == ["gemm", "reduce"]
    assert [row["name"] for row in table(row_limit=1)] == ["gemm"]
    by_launch = [(row["operator"], row["name"]) for row in table(by_launch=True)]
    assert by_launch == [("aten::bmm", "gemm"), ("aten::mm", "gemm"), ("aten::bmm", "reduce")]


def test_memory_over_time_is_thinned_and_keeps_its_peak(tmp_path):
    events = [testing.step_mark(3, 0, 100_000)]
    events += [testing.memory(10 * place, 8, allocated=place if place != 1234 else 9999) for place in range(5000)]
    found = read(testing.write_trace(tmp_path / "t.json", events))
    for wanted in (50, 500):
        table = rows(files(handlers.Memory(rows=wanted), found)["memory.csv"])
        assert wanted / 3 <= len(table) <= 2 * wanted
        assert max(float(row["allocated_bytes"]) for row in table) == 9999


def test_stack_depth_distinguishes_stacks(tmp_path):
    """The innermost frame is the same, the one around it is not."""
    events = [testing.step_mark(3, 0, 1000)]
    for begin, around in ((0, "a"), (100, "b")):
        events.append(testing.python_frame(f"{around}.py(1): f", begin, begin + 90))
        events.append(testing.python_frame("net.py(2): forward", begin + 10, begin + 80))
        events.append(testing.op("aten::mm", begin + 20, begin + 70))
    found = read(testing.write_trace(tmp_path / "t.json", events))
    for depth, count in ((1, 1), (2, 2)):
        table = rows(files(OperatorTable(by="stack", stack_depth=depth), found)["operators.csv"])
        assert sum(row["name"] == "aten::mm" for row in table) == count


def test_all_flops_counts_operations_that_torch_omits(tmp_path):
    attention = testing.op("aten::_flash_attention_forward", 0, 10, Input_Dims=[[2, 4, 8, 16]] * 3)
    events = [testing.step_mark(3, 0, 100), attention]
    found = read(testing.write_trace(tmp_path / "t.json", events))

    def flops(**options):
        (row,) = (
            row
            for row in rows(files(OperatorTable(**options), found)["operators.csv"])
            if row["name"].startswith("aten")
        )
        return float(row["flops"] or 0)

    assert flops() == 0
    assert flops(all_flops=True) > 0
