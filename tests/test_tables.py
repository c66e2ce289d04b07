"""The tables of a window: one object computes each once, and says for everybody which steps count."""

import io
import weakref
from dataclasses import replace

import polars as pl
import pytest

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.cli.actions import show
from perfhooks.report import handlers
from perfhooks.report.page import window_data
from perfhooks.report.page.headline import described
from perfhooks.run.capture import Capture
from perfhooks.testing import annotation, op, step_mark
from perfhooks.trace import read
from perfhooks.trace.tables import collectives, memory, modules, stacks, steps
from perfhooks.trace.window import Tables

MS = 1_000_000
WHOLE = Capture(first=0, last=2, reached=3)


def trace_of(tmp_path, events):
    return read(testing.write_trace(tmp_path / "t.json", events))


def with_a_stub():
    """Three whole steps of 100 ms, and a mark of a tenth of a millisecond, as an idle ``step()`` leaves."""
    for number in (0, 1, 2):
        yield step_mark(number, 100 * number * MS, 100 * (number + 1) * MS)
        yield op("aten::mm", 100 * number * MS + 1, (100 * number + 60) * MS)
    yield step_mark(3, 300 * MS, 300 * MS + 100_000)


@pytest.fixture
def trace(tmp_path):
    return trace_of(tmp_path, with_a_stub())


def table_of_steps(capture, trace):
    (artifact,) = handlers.build("steps").artifacts(capture, trace)
    file = io.BytesIO()
    artifact.write(file)
    return pl.read_csv(file.getvalue())["step"].to_list()


@pytest.mark.parametrize(
    ("capture", "expected"),
    [
        (WHOLE, [0, 1, 2]),
        (replace(WHOLE, reached=2, partial="stopped"), [0, 1]),
        (replace(WHOLE, reached=7, partial="stopped"), [0, 1, 2]),
    ],
    ids=["a stub", "cut short", "cut short elsewhere"],
)
def test_the_same_steps_count_for_everybody(capture, expected, trace):
    page = window_data.reduce(described(capture, trace), trace)["steps"]
    assert table_of_steps(capture, trace) == expected
    assert page["rows"]["step"] == expected
    assert page["headline"].startswith(f"steps 0-{expected[-1]}: 100 ms")
    assert findings.Evidence(capture, trace).steps["step"].to_list() == expected
    assert show.compute(trace, "steps", capture=capture)["step"].to_list() == expected


def test_unfinished_step_counts_if_no_other_step_exists(tmp_path):
    trace = trace_of(tmp_path, [step_mark(0, 0, 10 * MS)])
    assert Capture(first=0, last=3, reached=0, partial="stopped").tables(trace).steps["step"].to_list() == [0]


def test_recording_without_marks_is_the_step(tmp_path):
    assert Tables(trace_of(tmp_path, [op("a", 0, 5)])).steps["step"].to_list() == [None]


def test_tables_are_computed_once(trace):
    assert WHOLE.tables(trace).steps is WHOLE.tables(trace).steps
    assert WHOLE.tables(trace).operators("step") is WHOLE.tables(trace).operators(("step",))
    assert replace(WHOLE, stage="test").tables(trace).steps["stage"].unique().to_list() == ["test"]


MAKERS = (
    (steps, "table"),
    (collectives, "table"),
    (modules, "table"),
    (stacks, "folded"),
    (memory, "over_time"),
)


def noting(asked, make):
    def made(*args, **kwargs):
        asked.append((make.__module__, *args[1:]))
        return make(*args, **kwargs)

    return made


def test_every_table_of_a_window_is_computed_once(trace, monkeypatch):
    """Handlers, page, findings and the line for the log together."""
    asked = []
    for module, name in MAKERS:
        monkeypatch.setattr(module, name, noting(asked, getattr(module, name)))
    for name in ("steps", "collectives", "stacks", "flame", "modules", "memory", "page"):
        for artifact in handlers.build(name).artifacts(WHOLE, trace):
            artifact.write(io.BytesIO())
    assert len(asked) == len(set(asked))
    assert ("perfhooks.trace.tables.steps",) in asked


def test_computed_tables_are_freed_with_the_trace(tmp_path):
    """At once, and not when the garbage collector comes: the next window is read meanwhile."""
    trace = trace_of(tmp_path, [annotation("forward", 0, 5)])
    assert Tables(trace).steps.height == 1
    gone = weakref.ref(trace)
    del trace
    assert gone() is None


@pytest.mark.parametrize(("inside", "last"), [([], 2), ([op("aten::mm", 300 * MS + 10, 300 * MS + 20)], 3)])
def test_short_step_counts_unless_last_and_empty(tmp_path, inside, last):
    """A step that only accumulates may take a hundredth of one that validates; a last idle step() is none."""
    ends = [100, 101, 300, 301]
    marks = [step_mark(i, start * MS, end * MS) for i, (start, end) in enumerate(zip([0, *ends], ends, strict=False))]
    trace = trace_of(tmp_path, [*marks, op("aten::mm", 10, 20), *inside])
    assert WHOLE.tables(trace).steps["step"].to_list() == list(range(last + 1))
