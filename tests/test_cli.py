"""The command line: each verb, its files, and what it says when something is wrong."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
import typer.main
from many_ranks import ManyRanks
from typer.testing import CliRunner

from perfhooks import testing
from perfhooks.cli import app


@pytest.fixture
def trace(tmp_path):
    events = [
        testing.step_mark(1, 0, 100),
        testing.op("aten::mm", 10, 60),
        testing.python_frame("train.py(3): f", 5, 80),
    ]
    return testing.write_trace(tmp_path / "t.json", events)


@pytest.fixture
def run(monkeypatch, capfd):
    """Runs a command in a folder: in this process, as another one would have to import everything again."""

    def run(*words, folder):
        command = ["perfhooks", *map(str, words)]
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "argv", command)
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            app.main()
        return subprocess.CompletedProcess(command, ended.value.code or 0, *capfd.readouterr())

    return run


@pytest.mark.process
@pytest.mark.parametrize(
    "safe", ["", pytest.param("1", marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="Python has no -P"))]
)
def test_first_entries_of_the_import_path_stay_first(tmp_path, safe):
    """Only the working directory goes, which Python puts before it where nobody tells it not to."""
    ours, here = tmp_path / "ours", tmp_path / "here"
    for folder in (ours, here):
        folder.mkdir()
    (ours / "sitecustomize.py").write_text("import atexit, sys; atexit.register(lambda: print('first', sys.path[0]))")
    environment = {**os.environ, "PYTHONPATH": str(ours), "PYTHONSAFEPATH": safe}
    command = [sys.executable, "-m", "perfhooks", "--help"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True, cwd=here)
    assert done.stdout.splitlines()[-1] == f"first {ours}"


@pytest.mark.process
def test_help_fits_a_screen_and_names_every_verb(tmp_path):
    command, environment = [sys.executable, "-m", "perfhooks", "--help"], {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=True)
    assert len(done.stdout.splitlines()) <= 40
    for verb in typer.main.get_command(app.app).commands:
        assert verb in done.stdout


def test_a_schedule_is_drawn(tmp_path, run):
    done = run("schedule", "wait=1 warmup=1", "active=3", "repeat=2", folder=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("wait=1 warmup=1 active=3 repeat=2\n")
    assert "███" in done.stdout


@pytest.mark.slow
def test_report_of_a_trace_is_written_next_to_the_trace(trace, run):
    done = run("report", trace.name, folder=trace.parent)
    assert (done.returncode, done.stdout) == (0, "t.report.html\n")
    assert "aten::mm" in (trace.parent / "t.report.html").read_text()
    assert run("report", trace.name, "-o", "-", folder=trace.parent).stdout.startswith("<!")


def test_flame_graph_is_svg_folded_or_speedscope(trace, run):
    assert run("flame", trace.name, folder=trace.parent).stdout == "t.flame.svg\n"
    assert "<svg" in (trace.parent / "t.flame.svg").read_text()
    assert "train.py(3): f" in run("flame", trace.name, "-f", "folded", "-o", "-", folder=trace.parent).stdout
    assert run("flame", trace.name, "-o", "x.folded", folder=trace.parent).returncode == 0
    folded = (trace.parent / "x.folded").read_text()
    assert "train.py(3): f" in folded, "the name of the file says what is written"
    assert not folded.startswith("<")
    assert run("flame", trace.name, "-f", "speedscope", "-o", "x.json", folder=trace.parent).returncode == 0
    assert "shared" in json.loads((trace.parent / "x.json").read_text())


@pytest.mark.process
def test_doctor_records_a_window_and_lists_working_features(tmp_path, run):
    done = run("doctor", folder=tmp_path)
    assert done.returncode == 0, done.stdout
    rows = {line.split()[1]: line.split()[0] for line in done.stdout.splitlines() if line[:1].islower()}
    assert rows["recorder"] == rows["torch"] == rows["files"] == "ok"
    assert "INFO perfhooks" not in done.stdout + done.stderr, "the recorded step is only a check"
    assert not list(tmp_path.iterdir())


@pytest.mark.recorder
def test_doctor_reports_that_nothing_can_be_recorded(tmp_path):
    """While another profiler records; it tries, and does not conclude from versions."""
    import torch

    from perfhooks.cli.doctor import examine

    def recorder():
        return next(each for each in examine(tmp_path / "perf") if each.subject == "recorder")

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        assert (recorder().state, recorder().text.split(";")[0]) == ("problem", "no step was recorded")
    assert recorder().state == "ok"


@pytest.mark.recorder
def test_the_doctor_finds_a_place_that_cannot_be_written(tmp_path, run):
    (tmp_path / "file").touch()
    done = run("doctor", "--out", "file", folder=tmp_path)
    assert done.returncode == 1
    assert "problem  files" in done.stdout


@pytest.mark.worker
def test_demo_writes_a_report(tmp_path, run):
    done = run("demo", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "forward" in done.stdout
    assert (tmp_path / done.stdout.splitlines()[-1]).exists()
    assert run("report", "perf/latest", folder=tmp_path).returncode == 0


def test_report_names_the_rank_that_other_ranks_wait_for(tmp_path, run):
    ManyRanks(ranks=3, node=1, slow_data={1: 30.0}).write(tmp_path / "run")
    done = run("report", "run", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == [
        (
            "1. Rank 1 on node1 waits longer for its data: the other ranks wait 30 ms in a step for this rank. "
            "(about 30 ms, 38% of a step)"
        ),
        "run/report.html",
    ]


def test_report_prints_one_line_for_equal_outcomes_of_ranks(tmp_path, run):
    job = ManyRanks(ranks=16, windows=1)
    folder = job.write(tmp_path / "run")
    (window,) = (path for path in folder.iterdir() if path.is_dir())
    for rank, change in {3: {"partial": "killed"}, 4: {"partial": "killed"}, 0: {"headline": "9 ms a step"}}.items():
        facts = window / f"rank{rank}.capture.json"
        facts.write_text(json.dumps(json.loads(facts.read_text()) | change))
    (window / "rank7.capture.json").write_text("{")
    done = run("report", "run", folder=tmp_path)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{window.name} ranks 0-2, 5-6, 8-15: finished: rank 0: 9 ms a step",
        f"{window.name} ranks 3-4: finished, partial (killed)",
        "run/report.html",
    ]
    assert f"{window.name} rank 7: " in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("report", "nowhere"),
        ("report", "broken.json"),
        ("flame", "nowhere.json"),
        ("flame", "broken.json"),
        ("show", "nowhere"),
        ("schedule", "wait=-1 warmup=1 active=1"),
        ("schedule", "wait"),
        ("merge", "nowhere"),
    ],
)
def test_errors_are_one_line_with_exit_code_2(tmp_path, words, run):
    (tmp_path / "broken.json").write_text("{")
    done = run(*words, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("perfhooks: ")
    assert len(done.stderr.splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("verb", ["report", "flame"])
@pytest.mark.parametrize("out", ["nowhere/x", "."])
def test_unwritable_folder_is_an_error_of_one_line(trace, verb, out, run):
    done = run(verb, trace.name, "-o", out, folder=trace.parent)
    assert done.returncode == 2
    assert done.stderr.startswith(f"perfhooks: {out} cannot be written: ")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.process
def test_only_demo_and_doctor_import_torch(trace):
    code = (
        "import sys; from perfhooks.cli.app import app; from typer.testing import CliRunner;"
        f"print(CliRunner().invoke(app, ['report', {str(trace)!r}]).exit_code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "0 False\n"


@pytest.mark.slow
def test_help_of_run_fits_two_screens():
    short, whole = (CliRunner().invoke(app.app, ["run", word]).output for word in ("--help", "--help-all"))
    assert len(short.splitlines()) <= 2 * 40
    shown, every = (set(re.findall(r"--[a-z][a-z-]+", text)) for text in (short, whole))
    assert {"--schedule", "--with-stack", "--out", "--help-all"} <= shown < every
    assert {"--activities", "--trigger", "--poll", "--keep-windows"} <= every - shown


@pytest.mark.recorder
def test_doctor_measures_peaks_that_later_traces_use(tmp_path, monkeypatch):
    """A training on a processor that nobody measured has rates and no limit; the file is asked for by its name."""
    import torch

    from perfhooks import Profiler, trace
    from perfhooks.trace.window import Tables

    kept = tmp_path / "settings/peaks.json"
    monkeypatch.setenv("PERFHOOKS_PEAKS", str(kept))
    monkeypatch.setattr("perfhooks.cli.actions.peaks._LONG_S", 0.0)
    monkeypatch.setattr("perfhooks.cli.actions.peaks._COPIED", {"cpu": 1 << 16})
    with Profiler(
        schedule="wait=0 warmup=0 active=1", record_shapes=True, out=tmp_path, run="r", background=False
    ) as prof:
        torch.mm(torch.ones(64, 64), torch.ones(64, 64))
        prof.step()
    (path,) = tmp_path.glob("r/*/*.pt.trace.json.gz")

    def product():
        rows = Tables(trace.read(path)).operators().iter_rows(named=True)
        return next(each for each in rows if each["name"] == "aten::mm")

    assert product()["tflops_per_s"] > 0
    assert product()["limit_percent"] is None
    done = CliRunner().invoke(app.app, ["doctor", "--peaks"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert {line.partition(":")[0] for line in lines[:-1]} >= {"float32", "float64", "copy"}
    assert lines[-1].endswith(str(kept))
    (measured,) = json.loads(kept.read_text()).values()
    each = product()
    assert each["limit_percent"] == pytest.approx(
        100 * max(each["tflops_per_s"] / measured["tflops"]["float32"], each["gb_per_s"] / measured["gb_per_s"]),
        rel=0.01,
    )
    kept.write_text("{")
    assert product()["limit_percent"] is None
