"""What torch.compile made, where it broke a graph, why it compiled again, and what of that is said."""

import dataclasses
import sys

import pytest
import torch

import perfhooks
from perfhooks.analysis import findings
from perfhooks.analysis.findings import Evidence, compiled
from perfhooks.report.page import compiled_rows
from perfhooks.run.capture import Capture, Cost, Place
from perfhooks.run.compilation import Break, Compilation, Graph
from perfhooks.run.installation import Installation
from perfhooks.testing import op, step_mark, write_trace
from perfhooks.trace import read

pytestmark = pytest.mark.usefixtures("nothing_compiled")
OF_COMPILING = ("recompilation", "left-uncompiled", "graph-breaks")
NUMBERED = torch.__version__ >= (2, 6)
"""Whether the trace says which graph runs, and torch why it compiled again."""
MS = 1_000_000


def speak(value):
    sys.stdout.write("")  # where graphs break
    return value * 2


def breaks(x, _step):
    return speak(x + 1).relu()


def clean(x, _step):
    return (x + 1).relu()


def shorter(x, step):
    return x[: 8 - step] + 1


def writes_in_a_loop(x, _step):
    for _ in range(2):
        sys.stdout.write("")
        x = x + 1
    return x


def trained(function, out, *, steps=7, **settings):
    """A window of three steps in which a compiled function runs, and what is found in it."""
    run = torch.compile(function, backend="eager", **settings)
    with perfhooks.Profiler(schedule="wait=3 warmup=1 active=3 repeat=1", out=out, background=False) as prof:
        for step in prof.steps(range(steps)):
            run(torch.ones(8, 8), step)
    (facts,) = {path.resolve() for path in out.glob("*/train-*/rank0.capture.json")}
    place = Place(facts.parent)
    capture = place.load()
    calm = dataclasses.replace(capture.circumstances, queued=None)
    capture = dataclasses.replace(capture, cost=Cost(), circumstances=calm)
    trace = read(place.artifact("pt.trace.json.gz"))
    found = {finding.rule: finding for finding in findings.find(capture, trace) if finding.rule in OF_COMPILING}
    return capture, trace, found


def line_of(function):
    return function.__code__.co_firstlineno


@pytest.mark.recorder
def test_graph_break_is_reported_with_reason_and_line(tmp_path):
    capture, trace, _ = trained(breaks, tmp_path)
    (met,) = capture.compilation.breaks
    assert met.line == f"test_compilation.py({line_of(speak) + 1}): speak"
    assert "write" in met.reason
    assert (met.is_own, met.count) == (True, 2)
    assert met.functions == ("test_compilation.py: speak", "test_compilation.py: breaks")
    assert compiled.inside_ms(Evidence(capture, trace)) > 0
    # how much of a step that is, is a matter of the machine
    found = window(tmp_path, capture.compilation)
    assert any(met.line in line and "write" in line for line in found["graph-breaks"].lines)


@pytest.mark.recorder
def test_fully_compiled_function_is_not_reported(tmp_path):
    capture, _, found = trained(clean, tmp_path)
    (graph,) = capture.compilation.graphs
    assert graph.function == f"test_compilation.py({line_of(clean)}): clean"
    assert (graph.operators, graph.reason, graph.failed, graph.is_recorded) == (2, "", "", False)
    assert 0 <= graph.inductor_s <= graph.backend_s <= graph.seconds
    assert capture.compilation.breaks == ()
    assert found == {}


@pytest.mark.recorder
def test_recompilation_is_reported_with_the_failed_guard(tmp_path):
    capture, _, found = trained(shorter, tmp_path, dynamic=False)
    again = [graph for graph in capture.compilation.graphs if graph.is_recorded]
    assert len(again) == 3, "one in each recorded step"
    assert list(found) == ["recompilation"]
    if NUMBERED:
        assert all("step == " in graph.reason for graph in again)
        assert any("shorter: step == " in line for line in found["recompilation"].lines)


@pytest.mark.recorder
@pytest.mark.skipif(not NUMBERED, reason="this torch says nothing of its limit")
def test_function_that_was_compiled_too_often_is_reported(tmp_path):
    with torch._dynamo.config.patch(recompile_limit=2):
        _, _, found = trained(shorter, tmp_path, dynamic=False)
    assert list(found) == ["left-uncompiled"]
    (first, *why) = found["left-uncompiled"].lines
    assert first == f"test_compilation.py({line_of(shorter)}): shorter: compiled 2 times, which is the limit"
    assert found["left-uncompiled"].title.startswith("torch.compile stopped compiling test_compilation.py")
    assert any("step == 0" in line for line in why)
    assert "recompile_limit" in found["left-uncompiled"].advice


@pytest.mark.recorder
@pytest.mark.skipif(not NUMBERED, reason="this torch does not tell it from a function with nothing to compile")
def test_function_whose_graph_cannot_break_is_uncompiled(tmp_path):
    """A break in a loop leaves all of the function to Python."""
    _, _, found = trained(writes_in_a_loop, tmp_path)
    assert list(found) == ["left-uncompiled"]
    (why,) = found["left-uncompiled"].lines
    assert why.startswith(f"test_compilation.py({line_of(writes_in_a_loop)}): writes_in_a_loop: ")
    assert found["left-uncompiled"].title.startswith("torch.compile cannot compile test_compilation.py")
    assert "write" in why
    assert "fullgraph=True" in found["left-uncompiled"].code


@pytest.mark.recorder
def test_compilations_before_a_reset_are_not_reported(tmp_path):
    """torch counts graphs anew then, so those of before would be taken for others."""
    trained(breaks, tmp_path / "first")
    torch.compiler.reset()
    capture, _, _ = trained(clean, tmp_path / "second")
    assert [graph.function.rpartition(": ")[2] for graph in capture.compilation.graphs] == ["clean"]


@pytest.mark.slow
def test_backward_pass_belongs_to_the_graph_with_its_number():
    """torch accounts for it when it is compiled, later and without the name of a function."""

    class Metric:
        def __init__(self, **known):
            vars(self).update(known)

    whole = {"compile_id": "0/0", "co_filename": "/x/net.py", "co_name": "forward", "co_firstlineno": 3}
    metrics = [
        Metric(**whole, entire_frame_compile_time_s=3.0, backend_compile_time_s=2.0, inductor_compile_time_s=1.5),
        Metric(compile_id="0/0", is_forward=False, inductor_compile_time_s=4.0, duration_us=5_000_000),
        Metric(compile_id="0/0", is_runtime=True, duration_us=9_000_000),
    ]
    (graph,) = of_torch(get_compilation_metrics=lambda: metrics).graphs
    assert (graph.seconds, graph.backend_s, graph.inductor_s) == (8.0, 7.0, 5.5)


def of_torch(**dynamo):
    """What is said where torch's account is another one."""
    kept = sys.modules.get("torch._dynamo.utils")
    sys.modules["torch._dynamo.utils"] = type("Dynamo", (), {name: staticmethod(it) for name, it in dynamo.items()})
    try:
        return Compilation.current(Installation.current(), 0.0)
    finally:
        sys.modules["torch._dynamo.utils"] = kept


@pytest.mark.slow
@pytest.mark.parametrize("dynamo", [{}, {"get_compilation_metrics": lambda: [None, 3]}, {"get_compilation_metrics": 1}])
def test_a_torch_that_accounts_otherwise_is_no_failure(dynamo):
    assert of_torch(**dynamo).breaks == ()


def test_compilation_with_recorded_parts_counts_once(tmp_path):
    events = []
    for number in range(4):
        begin = number * 100 * MS
        events.append(step_mark(number, begin, begin + 100 * MS))
        for name, at in (("_compile.compile_inner", 1), ("backend_compile", 3), ("inductor_compile", 5)):
            events.append(op(f"{name} (dynamo_timed)", begin + at * MS, begin + (20 - at) * MS))
    trace = read(write_trace(tmp_path / "t.json", events))
    (found,) = [each for each in findings.find(Capture(last=3), trace) if each.rule == "recompilation"]
    assert found.lines[0].startswith("4 compilations in")


def window(tmp_path, compilation, region="Torch-Compiled Region: 0/0", took=40):
    """Two steps in which compiled code runs."""
    events = []
    for number in (0, 1):
        begin = number * 100 * MS
        events += [step_mark(number, begin, begin + 100 * MS), op(region, begin + MS, begin + (1 + took) * MS)]
    trace = read(write_trace(tmp_path / "t.json", events))
    found = findings.find(Capture(first=0, last=1, reached=2, compilation=compilation), trace)
    return {each.rule: each for each in found}


def broken(**known):
    graph = Graph(id="0/0", function="net.py(3): forward", is_own=True)
    met = Break(reason="print", line="net.py(5): forward", functions=("net.py: forward",), is_own=True)
    return Compilation(graphs=(graph,), breaks=(dataclasses.replace(met, **known),))


def test_breaks_are_reported_for_functions_in_the_steps(tmp_path):
    assert "graph-breaks" in window(tmp_path, broken())
    assert "graph-breaks" in window(tmp_path, broken(), region="Torch-Compiled Region"), "torch 2.4 numbers none"
    assert "graph-breaks" not in window(tmp_path, broken(), region="Torch-Compiled Region: 7/0"), "another function"
    assert "graph-breaks" not in window(tmp_path, broken(), took=0.5)
    assert "graph-breaks" not in window(tmp_path, broken(), region="aten::mm"), "nothing compiled runs"


def test_breaks_in_torch_are_not_reported(tmp_path):
    assert "graph-breaks" not in window(tmp_path, broken(is_own=False))


def test_table_of_breaks_has_lines_and_reasons():
    compilation = broken()
    said = [(met.line, met.reason) for met in compilation.breaks]
    assert all(map(all, said))
    assert compiled_rows.breaks(compilation).select("line", "reason").rows() == said
