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

from perfhooks import testing
from perfhooks.cli import app
from perfhooks.cli.actions import capture, output, show
from perfhooks.cli.actions.asking import RankOutcome
from perfhooks.report.page import terminal_tables
from perfhooks.run.capture import Capture, Place
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


def test_a_run_shows_the_steps_of_all_windows_and_ranks(run, run_folder):
    rows = as_csv(run(run_folder)[1])
    assert len(rows) == 8
    assert {(row["window"], row["rank"]) for row in rows} == {
        (f"train-000{first}12-000{first}14", rank) for first in (0, 1) for rank in "01"
    }


def test_other_tables_of_a_run_come_from_its_last_window(run, run_folder):
    rows = as_csv(run(run_folder, "-t", "kernels")[1])
    assert {(row["window"], row["rank"]) for row in rows} == {("train-000112-000114", rank) for rank in "01"}


def test_table_of_one_window_has_no_window_column(run, run_folder):
    rows = as_csv(run(run_folder / "train-000012-000014", "-t", "kernels")[1])
    assert {row["rank"] for row in rows} == {"0", "1"}
    assert "window" not in rows[0]


def test_a_folder_of_runs_shows_the_latest(run, run_folder):
    assert len(as_csv(run(run_folder.parent)[1])) == 8


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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["missing.json"], "missing.json does not exist"),
        (["file://missing.json"], "cannot open the trace"),
        (["{folder}"], "empty.json is empty"),
        (["{folder}/text.json"], "is no trace"),
        (["{folder}/empty.json"], "is empty"),
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
    code, text, errors = run(*(each.format(folder=folder, trace=trace) for each in arguments))
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


def test_run_without_traces_is_reported(run, tmp_path):
    place(tmp_path / "train-000012-000014")
    code, _, errors = run(tmp_path / "train-000012-000014")
    assert (code, "its windows have no trace" in errors) == (2, True)


def test_run_of_a_newer_perfhooks_is_reported(run, tmp_path):
    publish_json(tmp_path / "run.json", {"format": 99})
    code, _, errors = run(tmp_path)
    assert (code, "newer" in errors) == (2, True)


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


def test_a_line_is_free_between_two_tables():
    frame = pl.DataFrame({"name": ["x"]})
    alone = drawn({"one": frame})
    assert drawn({"one": frame, "two": frame}) == f"{alone}\n{alone.replace('one', 'two')}"


def test_number_columns_are_omitted_before_a_line_breaks():
    frame = pl.DataFrame({"name": ["x" * 80, "y"], "a_ms": [1.5, 20000.0], "b_ms": [None, 2.0], "c": [3, 4]})
    wide, narrow, tiny = (drawn({"kernels": frame}, width) for width in (120, 40, 34))
    assert "no room" not in wide
    assert f"{'x' * 80}  1.500" in wide
    assert "20000" in wide
    assert "…" in narrow
    assert "no room for c:" in narrow
    assert "no room for b_ms, c:" in tiny
    for text in (wide, narrow):
        assert len(text.splitlines()[1]) <= 120


def test_a_wide_table_of_few_steps_is_turned():
    frame = pl.DataFrame({f"part_{place}_ms": [1.0, 2.0] for place in range(20)})
    lines = drawn({"steps": frame}, 60).splitlines()
    assert lines[0] == "steps 2 rows, times in ms"
    assert lines[1].split() == ["part", "0", "1.000", "2.000"]
    assert len(lines) == 21


def test_end_of_a_stack_is_shown():
    text = drawn({"stacks": pl.DataFrame({"self_ms": [1.0], "stack": ["a;" * 100 + "leaf"]})}, 40)
    assert "leaf" in text
    assert "…" in text


def test_omitted_columns_are_named():
    frame = pl.DataFrame({"name": [str(number) for number in range(100)]})
    assert "80 more rows: --limit 0 shows all" in drawn({"operators": frame})
    assert "90 more rows" in drawn({"operators": frame, "kernels": frame})
    assert "97 more rows" in drawn({"operators": frame}, limit=3)
    assert "more rows" not in drawn({"operators": frame}, limit=0)


def test_empty_tables_have_a_text():
    assert drawn({"copies": pl.DataFrame({"name": []})}) == "copies: none in this trace\n"
    assert drawn({"checks": pl.DataFrame({"name": []})}) == "checks: no doubts about the trace itself\n"


def test_doubts_are_sentences():
    row = {"severity": ["error"], "name": ["cut-off"], "count": [1], "text": ["it [ends]"], "first": ["1 ms: x"]}
    assert drawn({"checks": pl.DataFrame(row)}).splitlines()[1] == "error cut-off: it [ends] (1 ms: x)"


@pytest.mark.parametrize("name", TRACES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_traces_of_any_dialect_fit_the_terminal(traces, name, width):
    found = show.tables(str(traces / f"{name}.json.gz"), show.TABLES)
    lines = drawn(found, width).splitlines()
    assert max(map(len, lines)) <= width


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


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "perfhooks", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        **options,
    )


@pytest.mark.process
def test_help_has_examples_and_imports_nothing_heavy():
    assert "perfhooks show trace.json.gz" in command("show", "--help").stdout
    heavy = {"torch", "polars", "numpy", "plotly"}
    imports = f"import sys, perfhooks.cli.verbs; print({heavy!r} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "set()\n"


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


@pytest.mark.process
def test_showing_imports_no_torch(trace):
    script = f"import sys; sys.argv = ['perfhooks', 'show', {str(trace)!r}]\n"
    script += "from perfhooks.cli.app import main\ntry:\n    main()\n"
    script += "finally:\n    assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.process
def test_names_that_the_terminal_cannot_show_are_no_error(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", [op("aten::ü™", 0, 10)])
    done = command("show", path, "-t", "operators", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "aten::ü™" in done.stdout


# --- what a person need not say ---


def test_findings_are_sentences_with_gains():
    row = {"title": ["It waits."], "gain_ms": [5.0], "gain_percent": [25.0], "advice": ["Do [this]."]}
    row |= {"evidence": ["twice; main (train.py:7) requests it"], "code": ["first()\n    second()"]}
    assert [line.rstrip() for line in drawn({"findings": pl.DataFrame(row)}).splitlines()] == [
        "findings with fixes, largest estimated gain first",
        "1. It waits. train.py:7 (gain: about 5 ms, 25% of a step)",
        "   Do [this].",
        "      first()",
        "          second()",
    ]


def test_findings_of_ranks_name_their_ranks():
    rows = {
        "rank": [3, 0],
        "ranks": ["3", "0-2"],
        "title": ["Rank 3 computes longer.", "It waits."],
        "gain_ms": [None, None],
        "gain_percent": [None, None],
        "advice": ["Check it.", "Do this."],
    }
    assert [line.rstrip() for line in drawn({"findings": pl.DataFrame(rows)}).splitlines()][1:] == [
        "1. Rank 3 computes longer.",
        "   Check it.",
        "2. Rank 0: It waits.",
        "   Ranks 0-2 have this finding. Do this.",
    ]


def test_equal_doubts_of_ranks_share_a_line():
    columns = {"name": "no-steps", "count": 1, "text": "no marks", "first": ""}
    rows = [{"rank": rank, "severity": "info", **columns} for rank in (0, 1, 2)]
    rows += [{"rank": 2, "severity": "error", **columns, "name": "no-kernels"}]
    assert [line.rstrip() for line in drawn({"checks": pl.DataFrame(rows)}).splitlines()] == [
        "checks 2 doubts about the trace itself",
        "info no-steps: ranks 0-2: no marks",
        "error no-kernels: rank 2: no marks",
    ]


def test_shortened_table_shows_the_number_of_rows():
    frame = pl.DataFrame({"name": ["x"] * 93, "count": [1] * 93})
    assert "operators 7 of 93 rows" in drawn({"operators": frame}, limit=7)


def test_long_texts_are_cut_before_times_are_omitted():
    texts = {name: [name * 20] for name in ("name", "kind", "stack")}
    numbers = {f"t{number}_ms": [12.345] for number in range(3)}
    lines = drawn({"operators": pl.DataFrame(texts | numbers)}, width=80)
    assert "12.345  12.345  12.345" in lines
    assert "no room" not in lines


def test_the_last_run_is_found_by_itself(tmp_path, monkeypatch):
    from perfhooks.cli import targets

    monkeypatch.chdir(tmp_path)
    with pytest.raises(targets.PerfhooksError, match="there is no run below this folder"):
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


@pytest.mark.process
def test_short_help_and_version_options_work():
    assert command("-h").stdout == command("--help").stdout
    assert command("--version").stdout.strip() == the_version()


def the_version():
    from perfhooks import __version__

    return __version__


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
