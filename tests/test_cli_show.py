"""`perfhooks show`: every table of any trace, as a table, as CSV and as JSON; and an error in one line."""

from __future__ import annotations

import csv
import io
import json
import os
import pty
import shutil
import subprocess
import sys

import polars as pl
import pytest
from rich.console import Console
from twins import TRACES

import perfhooks
from perfhooks import testing
from perfhooks.cli import app
from perfhooks.cli.actions import capture, output, show
from perfhooks.cli.actions.asking import RankOutcome
from perfhooks.cli.actions.sources import Source
from perfhooks.report.page import terminal_tables
from perfhooks.run.capture import Capture, Place
from perfhooks.run.circumstances import Circumstances
from perfhooks.run.publishing import publish_json
from perfhooks.testing import annotation, kernel, launch, memory, op, python_frame, step_mark

EVENTS = [
    *(step_mark(3, 0, 1000), step_mark(4, 1000, 2000)),
    *(op("aten::mm", 0, 500, external=1), op("aten::item", 1200, 1400)),
    *(launch(1, 10, 20), kernel(1, 300, 700, external=1), launch(2, 1300, 1350, name="cudaStreamSynchronize")),
    *(
        launch(3, 30, 40, name="cudaMemcpyAsync"),
        kernel(3, 710, 720, name="Memcpy HtoD (Pinned -> Device)", category="gpu_memcpy"),
    ),
    *(launch(5, 1010, 1020), kernel(5, 1030, 1040), launch(6, 1050, 1060), kernel(6, 1070, 1080)),
    *(launch(4, 50, 60), kernel(4, 730, 800, name="ncclDevKernel_AllReduce", stream=9)),
    *(annotation("forward", 0, 400), annotation("backward", 400, 410), memory(5, 64, allocated=64)),
    *(python_frame("train.py(3): main", 0, 2000), python_frame("nn.Module: Linear_0", 10, 600, Python_module_id=0)),
]


@pytest.fixture
def trace(tmp_path):
    return testing.write_trace(tmp_path / "tiny.json.gz", EVENTS)


@pytest.fixture
def run(monkeypatch, capfdbinary):
    """Runs the command line in this process: exit code, standard output, standard error."""

    def call(*arguments, verb="show"):
        monkeypatch.setattr(sys, "argv", ["perfhooks", verb, *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfdbinary.readouterr()
        return ended.value.code or 0, out.decode(), err.decode()

    return call


def as_csv(text):
    return list(csv.DictReader(io.StringIO(text)))


# --- what is written


@pytest.mark.slow
@pytest.mark.parametrize("name", show.TABLES)
def test_every_table_as_csv_and_json(run, trace, name):
    code, text, errors = run(trace, "--table", name, "--csv")
    assert (code, errors) == (0, "")
    rows = as_csv(text)
    assert (rows == []) == (name in ("checks", "compiled", "counters", "startup", "slow", "workers", "plan"))
    code, text, errors = run(trace, "-t", name, "--json")
    assert (code, errors) == (0, "")
    assert [list(row) for row in json.loads(text)] == [list(row) for row in rows]


def test_pipe_gets_the_steps(run, trace):
    _, text, _ = run(trace)
    assert [(row["step"], row["wall_ms"]) for row in as_csv(text)] == [("3", "0.001000"), ("4", "0.001000")]


def test_a_pipe_gets_no_empty_columns_and_csv_gets_all(run, trace):
    """A script asks for --csv, and finds each column that the documentation names."""
    piped, complete = (as_csv(run(trace, *options)[1]) for options in ((), ("--csv",)))
    assert set(piped[0]) < set(complete[0])
    assert all(any(row[name] for row in piped) for name in piped[0])
    assert [{name: row[name] for name in piped[0]} for row in complete] == piped


def test_json_of_several_tables_has_them_by_name(run, trace):
    _, text, _ = run(trace, "--json", "-t", "kernels", "-t", "copies")
    found = json.loads(text)
    assert list(found) == ["kernels", "copies"]
    assert found["kernels"][0]["name"] == "gemm"


def test_limit_applies_to_rows(run, trace):
    assert len(as_csv(run(trace, "-t", "operators", "--limit", "2")[1])) == 2
    assert len(as_csv(run(trace, "-t", "operators", "--limit", "0")[1])) > 2


@pytest.mark.parametrize(
    ("table", "by", "column"),
    [
        ("operators", "shapes", "input_shapes"),
        ("operators", "step", "step"),
        ("kernels", "operator", "operator"),
        ("idle", "step", "step"),
        ("stacks", "bytes", "bytes"),
        ("stacks", "device", "self_ms"),
    ],
)
def test_tables_can_be_split(run, trace, table, by, column):
    assert column in as_csv(run(trace, "-t", table, "--by", by)[1])[0]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_every_table_of_every_dialect(run, traces, name):
    arguments = [argument for table in show.TABLES for argument in ("-t", table)]
    code, text, errors = run(traces / f"{name}.json.gz", *arguments, "--json")
    assert (code, errors) == (0, "")
    found = json.loads(text)
    assert list(found) == list(show.TABLES)
    assert found["steps"]


# --- where it is read from


def place(folder, rank=0, **facts):
    facts = {"first": 12, "last": 14, "reached": 15, "artifacts": ("pt.trace.json.gz",)} | facts
    made = Place(folder, rank)
    made.save(Capture(rank=rank, **facts))
    return made


@pytest.fixture
def run_folder(tmp_path, trace):
    """Two windows of two ranks."""
    folder = tmp_path / "perf" / "run-1"
    for window, moment in (("train-000012-000014", 1.0), ("train-000112-000114", 2.0)):
        for rank in (0, 1):
            made = place(folder / window, rank, time=moment)
            shutil.copy(trace, made.artifact("pt.trace.json.gz"))
    publish_json(folder / "run.json", {"format": 1})
    (tmp_path / "perf" / "latest").symlink_to("run-1")
    return folder


@pytest.mark.parametrize(
    ("target", "table", "windows"),
    [
        ("perf/run-1", "steps", (0, 0, 1, 1)),  # two steps of each window
        ("perf", "steps", (0, 0, 1, 1)),  # a folder of runs, of which the last is shown
        ("perf/run-1", "kernels", (1, 1, 1)),
        ("perf/run-1/train-000012-000014", "kernels", (None, None, None)),
    ],
)
def test_tables_of_a_run_name_windows_and_ranks(run, run_folder, target, table, windows):
    """Steps are those of all windows, other tables those of the last one."""
    rows = as_csv(run(run_folder.parents[1] / target, "-t", table)[1])
    shown = [None if window is None else f"train-000{window}12-000{window}14" for window in windows for _ in "01"]
    assert sorted((row.get("window"), row["rank"]) for row in rows) == sorted(
        zip(shown, "01" * len(windows), strict=True)
    )


def test_an_unfinished_window_is_read_from_its_spool(run, tmp_path):
    made = place(tmp_path / "train-000012-000014", state="spooled", token="0a1b")
    testing.write_trace(made.saved_trace("0a1b"), EVENTS)
    assert [row["step"] for row in as_csv(run(made.folder)[1])] == ["3", "4"]


def test_shortened_step_is_omitted(run, tmp_path):
    made = place(tmp_path / "train-000003-000005", first=3, last=5, reached=4, partial="KeyboardInterrupt")
    testing.write_trace(made.artifact("pt.trace.json.gz"), EVENTS)
    assert [row["step"] for row in as_csv(run(made.folder)[1])] == ["3"]


def test_a_folder_of_torchs_own_handler_is_read(run, tmp_path):
    """tensorboard_trace_handler writes host_pid.time.pt.trace.json; those of all ranks belong together."""
    for rank in (0, 1):
        testing.write_trace(tmp_path / f"host_{rank}.17.pt.trace.json", EVENTS, distributedInfo={"rank": rank})
    rows = as_csv(run(tmp_path)[1])
    assert {row["rank"] for row in rows} == {"0", "1"}
    assert "window" not in rows[0]


# --- errors: one line and exit code 2


def test_missing_run_names_the_newest_run(run, tmp_path, monkeypatch):
    """Integrations write below the log folder of the framework."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs/perf/r").mkdir(parents=True)
    publish_json(tmp_path / "logs/perf/r/run.json", {"format": 1})
    assert "perf/latest does not exist; the newest run is logs/perf/r" in run("perf/latest")[2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "missing.json does not exist"),
        (["file://missing.json"], "cannot open the trace"),
        (["{folder}"], "empty.json is empty"),
        (["{folder}/text.json"], "is no trace"),
        (["{folder}/empty.json"], "is empty"),
        (["{tmp}/window/train-000012-000014"], "its windows have no trace"),
        (["{tmp}/newer"], "newer"),
        (["{trace}", "-t", "stepz"], "got 'stepz'; did you mean 'steps'?"),
        (["{trace}", "-t", "steps", "--by", "shapes"], "not for 'steps', got 'shapes'"),
        (["{trace}", "-t", "stacks", "--by", "host", "--by", "device"], "by must be one of"),
        (["{trace}", "--csv", "--json"], "use either --csv or --json"),
        (["{trace}", "--csv", "-t", "steps", "-t", "copies"], "CSV contains one table"),
        (["{trace}", "--limit", "-1"], "limit must be an integer >= 0"),
    ],
)
def test_errors_are_one_line(run, tmp_path, trace, arguments, message):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "text.json").write_text("no trace\nat all")
    (folder / "empty.json").write_text("")
    place(tmp_path / "window" / "train-000012-000014")
    (tmp_path / "newer").mkdir()
    publish_json(tmp_path / "newer" / "run.json", {"format": 99})
    code, text, errors = run(*(each.format(folder=folder, tmp=tmp_path, trace=trace) for each in arguments))
    assert (code, text) == (2, "")
    assert message in errors
    assert errors.startswith("perfhooks: ")
    assert errors.count("\n") == 1


@pytest.mark.parametrize("verb", ["show", "report", "merge"])
def test_folder_of_perfetto_traces_reports_how_to_write_json(run, tmp_path, verb):
    (tmp_path / "rank0.pftrace").write_bytes(b"")
    code, text, errors = run(tmp_path, verb=verb)
    assert (code, text, errors.count("\n")) == (2, "", 1)
    assert "rank0.pftrace has Perfetto's format (.pftrace), which perfhooks does not read" in errors
    assert "export to a name that ends in .json" in errors


def test_a_torn_trace_is_shown_with_its_doubt(run, tmp_path, trace):
    torn = tmp_path / "torn.json.gz"
    torn.write_bytes(trace.read_bytes()[:-30])
    code, text, _ = run(torn, "-t", "checks")
    assert (code, as_csv(text)[0]["name"]) == (0, "cut-off")


# --- as a person sees it


def drawn(tables, width=100, limit=None):
    page = io.StringIO()
    terminal_tables.draw(tables, limit, Console(file=page, width=width, color_system=None, highlight=False))
    return page.getvalue()


NAMES = pl.DataFrame({"name": [str(number) for number in range(30)]})
LONG_NAMES = pl.DataFrame({"name": ["x" * 80, "y"], "a_ms": [1.5, 20000.0], "b_ms": [None, 2.0], "c": [3, 4]})
ONE_DOUBT = {"severity": ["error"], "name": ["cut-off"], "count": [1], "text": ["it [ends]"], "first": ["1 ms: x"]}
DOUBT = {"severity": "info", "name": "no-steps", "count": 1, "text": "no marks", "first": ""}
FINDING = {"title": "It waits.", "gain_ms": 5.0, "gain_percent": 25.0, "advice": "Do [this]."}
FINDING |= {"evidence": "twice", "where": "main, my train.py:7", "code": "first()\n    second()"}
NO_GAIN = {"gain_ms": None, "gain_percent": None}
RANKS = [
    {"rank": 3, "ranks": "3", "title": "Rank 3 computes longer.", **NO_GAIN, "advice": "Check it."},
    {"rank": 0, "ranks": "0-2", "title": "It waits.", **NO_GAIN, "advice": "Do this."},
]
TEXTS = {name: [name * 20] for name in ("name", "kind", "stack")} | {f"t{n}_ms": [12.345] for n in range(3)}
DRAWN = {
    "two tables": ({"one": NAMES[:1], "two": NAMES[:1]}, 100, None),
    "long names in 120 columns": ({"kernels": LONG_NAMES}, 120, None),
    "long names in 40 columns": ({"kernels": LONG_NAMES}, 40, None),
    "long names in 34 columns": ({"kernels": LONG_NAMES}, 34, None),
    "many columns of few steps": ({"steps": pl.DataFrame({f"part_{n}_ms": [1.0, 2.0] for n in range(20)})}, 60, None),
    "a long stack": ({"stacks": pl.DataFrame({"self_ms": [1.0], "stack": ["a;" * 100 + "leaf"]})}, 40, None),
    "three long texts": ({"operators": pl.DataFrame(TEXTS)}, 80, None),
    "30 rows": ({"operators": NAMES}, 100, None),
    "30 rows of two tables": ({"operators": NAMES, "kernels": NAMES}, 100, None),
    "30 rows, limit 3": ({"operators": NAMES}, 100, 3),
    "30 rows, limit 0": ({"operators": NAMES}, 100, 0),
    "no rows": (dict.fromkeys(("copies", *terminal_tables.NOTHING), NAMES[:0]), 100, None),
    "a doubt": ({"checks": pl.DataFrame(ONE_DOUBT)}, 100, None),
    "doubts of ranks": (
        {"checks": pl.DataFrame([DOUBT | {"rank": rank} for rank in range(3)] + [DOUBT | {"name": "cut", "rank": 2}])},
        *(100, None),
    ),
    "a finding": ({"findings": pl.DataFrame([FINDING])}, 100, None),
    "a finding about the run": ({"findings": pl.DataFrame([FINDING | {"is_percent_of_run": True}])}, 100, None),
    "findings of ranks": ({"findings": pl.DataFrame(RANKS)}, 100, None),
}
"""Tables, and the width and the limit of rows with which a person sees them."""


def test_drawn_tables_equal_the_golden_file(golden):
    sections = []
    for name, (tables, width, limit) in DRAWN.items():
        lines = drawn(tables, width, limit).splitlines()
        assert max(map(len, lines)) <= width
        sections += [f"=== {name}", *map(str.rstrip, lines), ""]
    golden("terminal_tables.txt", "\n".join(sections))


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACES)
def test_traces_of_any_dialect_fit_the_terminal(traces, name):
    found = show.tables(str(traces / f"{name}.json.gz"), show.TABLES)
    for width in (40, 80, 200):
        assert max(map(len, drawn(found, width).splitlines())) <= width


@pytest.mark.slow
def test_recordings_of_real_machines_fit_the_terminal(recordings):
    for path in recordings.glob("*.json.gz"):
        lines = drawn(show.tables(str(path), show.TABLES), 80).splitlines()
        assert max(map(len, lines)) <= 80, path.name


@pytest.mark.process
def test_terminal_gets_an_overview(trace):
    main, side = pty.openpty()
    environment = os.environ | {"COLUMNS": "120", "TERM": "xterm", "PYTHONIOENCODING": "ascii"}
    command = [sys.executable, "-m", "perfhooks", "show", str(trace)]
    subprocess.run(command, stdin=side, stdout=side, stderr=side, check=True, env=environment, timeout=300)
    os.close(side)
    text = b""
    while True:
        try:
            text += os.read(main, 1 << 16)
        except OSError:
            break
    os.close(main)
    for word in (b"steps", b"operators", b"aten::mm", b"kernels", b"checks", b"no doubts", b"reading"):
        assert word in text


# --- as a command


IMPORTS = """
import sys
import perfhooks.cli.verbs
assert not {"torch", "polars", "numpy", "plotly"} & sys.modules.keys()
from perfhooks.cli.app import main
try:
    main()
finally:
    assert "torch" not in sys.modules
"""


@pytest.mark.process
def test_names_are_shown_without_torch_on_any_terminal(tmp_path):
    """The verbs, as for their help, import nothing heavy."""
    path = testing.write_trace(tmp_path / "t.json", [op("aten::ü™", 0, 10)])
    command = [sys.executable, "-c", IMPORTS, "show", str(path), "-t", "operators"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, capture_output=True, env=environment, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, b"")
    assert "aten::ü™" in done.stdout.decode()


@pytest.mark.process
def test_reader_that_closes_the_pipe_is_no_error(tmp_path):
    """More is written than a pipe holds."""
    events = [op(f"aten::{'long_' * 10}{number}", 10 * number, 10 * number + 5) for number in range(5000)]
    path = testing.write_trace(tmp_path / "long.json.gz", events)
    shell = f"{sys.executable} -m perfhooks show {path} -t stacks --limit 0 | head -1"
    done = subprocess.run(shell, shell=True, capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "self_ms,stack\n"
    assert "Traceback" not in done.stderr


def test_stacks_sum_to_the_time_with_running_functions(run, tmp_path):
    """Of a function of 2 us that calls an operator of 0.5 us."""
    path = testing.write_trace(
        tmp_path / "t.json", [python_frame("train.py(3): main", 0, 2000), op("aten::mm", 0, 500)]
    )
    _, out, _ = run(path, "-t", "stacks", "--format", "csv")
    found = {row["stack"].rpartition(";")[2]: float(row["self_ms"]) for row in csv.DictReader(io.StringIO(out))}
    assert found == pytest.approx({"aten::mm": 0.0005, "train.py(3): main": 0.0015})


# --- what a person need not say ---


def test_the_last_run_is_found_by_itself(tmp_path, monkeypatch):
    from perfhooks.cli import targets

    monkeypatch.chdir(tmp_path)
    with pytest.raises(targets.PerfhooksError, match="there is no run below the current folder"):
        targets.last_run()
    for number, folder in enumerate(["logs/version_0/perf/a", "work/perf/b", ".hidden/c"]):
        file = tmp_path / folder / "run.json"
        file.parent.mkdir(parents=True)
        file.write_text("{}")
        os.utime(file, (number, number))
    assert targets.last_run() == targets.Path("work/perf/b")
    (tmp_path / "perf/d").mkdir(parents=True)
    (tmp_path / "perf/d/run.json").write_text("{}")
    (tmp_path / "perf/latest").symlink_to("d")
    assert targets.last_run() == targets.Path("perf/latest"), "the usual place comes first"


def test_short_help_and_version_options_work(run):
    text = run("--help", verb="show")[1]
    assert "perfhooks show trace.json.gz" in text
    assert run("-h", verb="show")[1] == text
    assert run(verb="--version")[1].strip() == perfhooks.__version__


def test_a_table_in_pieces_is_the_table(monkeypatch):
    """CSV and JSON are written some rows at a time; what comes of it is what polars writes at once."""
    table = pl.DataFrame({"a": range(7), "b": ["x,\n", None, "é", '"', "", "y", "z"], "c": [0.1234567] * 7})
    for size in (1, 3, 7, 500):
        monkeypatch.setattr(output, "_ROWS", size)
        for rows in range(8):
            head = table.head(rows)
            assert "".join(output.csv(head)) == head.write_csv(float_precision=6)
            assert json.loads("".join(output.json(head))) == json.loads(head.write_json())
    assert max(map(len, output.json(table.head(0)))) == 1


def test_unexpected_state_of_a_rank_is_shown(tmp_path, capsys):
    late = RankOutcome(3, Place(tmp_path, 3), Capture(rank=3), note="recorded steps 7 to 9 and not 5 to 7")
    cut = RankOutcome(4, Place(tmp_path, 4), Capture(rank=4, partial="the loop ended"))
    assert capture._show([late, cut])
    assert capsys.readouterr().err == "rank 3: recorded steps 7 to 9 and not 5 to 7\nrank 4: the loop ended\n"


@pytest.mark.parametrize("table", ["functions", "modules"])
def test_empty_table_of_stacks_explains_how_to_record_stacks(tmp_path, capsys, table):
    """And says nothing of it where there are some."""
    path = testing.write_trace(tmp_path / "t.json", [testing.op("aten::mm", 100, 200)])
    show.show(str(path), (table,), form="table")
    assert "no stacks were recorded; Profiler(..., with_stack=True)" in capsys.readouterr().out
    frames = [testing.python_frame(name, 50, 300) for name in ("train.py(3): step", "nn.Module: Net_0")]
    path = testing.write_trace(tmp_path / "t.json", [*frames, testing.op("aten::mm", 100, 200)])
    show.show(str(path), (table,), form="table")
    assert "no stacks" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("recorded", "warning"),
    [
        ((12, None), "modules from step 12 only: times of few steps vary; perfhooks run --with-stack"),
        ((12, "a limit"), "modules from a part of step 12 only (a limit): times of few steps vary; "),
        ((14, None), ""),
    ],
)
def test_tables_of_few_steps_have_a_warning(monkeypatch, tmp_path, capsys, recorded, warning):
    frames = [testing.python_frame(name, 50, 300) for name in ("train.py(3): step", "nn.Module: Net_0")]
    path = testing.write_trace(tmp_path / "t.json", [*frames, testing.op("aten::mm", 100, 200)])
    facts = {"options": {"with_stack": True}, "circumstances": Circumstances(is_launched=True)}
    last, partial = recorded
    window = Capture(first=12, last=last, reached=last, partial=partial, **facts)
    monkeypatch.setattr(show, "find", lambda _: [Source(path, "w", window)])
    show.show(str(path), ("operators",), form="csv")
    assert not capsys.readouterr().err
    show.show(str(path), ("modules",), form="csv")
    error = capsys.readouterr().err
    assert warning in error
    assert bool(error) == bool(warning)


@pytest.mark.parametrize(
    ("table", "by", "needed"),
    [
        ("functions", (), "with_stack"),
        ("stacks", ("device",), None),
        ("operators", ("shapes",), "record_shapes"),
        ("operators", (), None),
    ],
)
def test_table_comes_from_the_window_with_the_needed_options(table, by, needed):
    assert show._need(table, by) == needed
