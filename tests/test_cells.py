"""A notebook cell that runs again while the profiler of its first run is still open."""

from __future__ import annotations

import json
import logging
import sys
import textwrap

import pytest
import torch

import perfhooks

pytestmark = pytest.mark.recorder

CELL = """
prof = perfhooks.Profiler(schedule=SCHEDULE, out=OUT, on_trace_ready=["steps"], background=False)
prof.start()
for step in range(6):
    x @ x
    if step == FAILS:
        raise ValueError("in the middle")
    prof.step()
prof.stop()
"""
RECORDS = "wait=0 warmup=0 active=5 repeat=1"


@pytest.fixture
def run_cell(tmp_path, caplog):
    """Run the cell; with the step in which it fails, None if it does not."""
    caplog.set_level(logging.INFO, "perfhooks")
    space = {"perfhooks": perfhooks, "x": torch.ones(8, 8), "OUT": str(tmp_path / "runs"), "SCHEDULE": RECORDS}

    def run(fails=None, cell=CELL, **names):
        space.update({"FAILS": fails} | names)
        if fails is None:
            exec(compile(cell, "<cell>", "exec"), space)
        else:
            with pytest.raises(ValueError, match="in the middle"):
                exec(compile(cell, "<cell>", "exec"), space)
        return space

    yield run
    space.get("prof", perfhooks.Profiler()).stop()


def captures(tmp_path):
    """The facts of all windows, in the order of their ends."""
    paths = (tmp_path / "runs").glob("*/*/rank0.capture.json")
    facts = [json.loads(path.read_text()) for path in paths if not path.parent.parent.is_symlink()]
    return sorted(facts, key=lambda each: each["time"])


def test_second_run_of_a_cell_records_and_keeps_the_first_window(run_cell, tmp_path, caplog):
    run_cell(fails=3)
    run_cell()
    partial = [(each["partial"], each["reached"]) for each in captures(tmp_path)]
    assert partial == [("left open when another profiler started", 3), (None, 5)]
    assert "another profiler is recording" not in caplog.text
    assert caplog.text.count("that line 3 of a cell started was left open and is ended") == 1


def test_edited_cell_records_again(run_cell, tmp_path):
    run_cell(fails=1)
    run_cell(fails=2, cell=f"# edited\n\n{CELL}")
    run_cell(cell=f"# edited again\n{CELL}")
    assert [each["reached"] for each in captures(tmp_path)] == [1, 2, 5]


def test_cell_that_runs_again_between_windows_records_its_window(run_cell, tmp_path):
    run_cell(fails=1, SCHEDULE="wait=3 warmup=0 active=2 repeat=1")
    run_cell(SCHEDULE="wait=3 warmup=0 active=2 repeat=1")
    assert [each["partial"] for each in captures(tmp_path)] == [None]


def test_cell_with_steps_of_a_loader_runs_again(run_cell, tmp_path):
    cell = """
prof = perfhooks.Profiler(schedule=SCHEDULE, out=OUT, on_trace_ready=["steps"], background=False)
for step in prof.steps(range(6)):
    x @ x
    if step == FAILS:
        raise ValueError("in the middle")
prof.stop()
"""
    run_cell(fails=2, cell=cell)
    run_cell(cell=cell)
    assert [each["partial"] is None for each in captures(tmp_path)] == [False, True]


def test_function_of_a_cell_that_failed_in_a_session_runs_again(run_cell, tmp_path, monkeypatch):
    """An interactive session keeps the last traceback, and so the variables of its functions."""
    head, loop = CELL.split("prof.start()\n")
    cell = f"{head}prof.start()\ndef train(prof):\n{textwrap.indent(loop, '    ')}\ntrain(prof)\n"
    with pytest.raises(ValueError, match="in the middle") as error:
        run_cell(cell=cell, FAILS=3)
    monkeypatch.setattr(sys, "last_traceback", error.tb, raising=False)
    run_cell(cell=cell)
    assert [each["partial"] is None for each in captures(tmp_path)] == [False, True]


def test_open_profiler_that_the_program_still_has_is_named(run_cell, tmp_path, caplog):
    kept = [run_cell(fails=3)["prof"]]
    run_cell()
    assert "another profiler is recording, which line 3 of a cell started" in caplog.text
    assert kept[0].in_window
    kept[0].stop()
    assert [each["partial"] for each in captures(tmp_path)] == ["stopped before its last step"]


def test_both_profilers_of_one_program_are_kept(tmp_path):
    both = [
        perfhooks.Profiler(schedule=f"wait={wait} warmup=0 active=1 repeat=1", out=tmp_path / "runs", background=False)
        for wait in (1, 3)
    ]
    for prof in both:
        prof.start()
    for _ in range(6):
        torch.ones(2) + 1
        for prof in both:
            prof.step()
    for prof in both:
        prof.stop()
    assert [(each["partial"], each["first"]) for each in captures(tmp_path)] == [(None, 1), (None, 3)]
