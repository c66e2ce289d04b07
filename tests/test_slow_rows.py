"""Slow steps in the data of the page and in ``perfhooks show``: of all ranks, bounded, and whatever is in the files."""

import csv
import io
import json
import os
import sys

import msgspec
import pytest
from rich.console import Console

from perfhooks.cli import app
from perfhooks.record.watch.samples import FoldedStacks, Sample
from perfhooks.record.watch.sampling import Frame
from perfhooks.report import page as report
from perfhooks.report.page import run_data, slow_rows, terminal_tables
from perfhooks.report.page.data import RunData
from perfhooks.report.page.definitions import DEFINITIONS
from perfhooks.report.page.markdown import of_run
from perfhooks.run.live import slow_steps
from perfhooks.run.live.slow_steps import SlowStep
from perfhooks.run.publishing import publish_json

HOSTILE = '</script><img src=x onerror="alert(1)">\x1b[31m\u202e'


LINES = {"checkpoint": "save (train.py:9)", "disk": "read (train.py:5)"}


def slow(step, wall_ms=500.0, cause="data", **given):
    row = {
        "stage": "train", "times_median": wall_ms / 10, "explained_ms": wall_ms - 20,
        "line": LINES.get(cause, "load (train.py:3)"),
        "data_ms": None, "gc_ms": 0.0, "cpu_share": 0.5, "switches": 3, "faults": 0, "alloc_retries": None,
    }  # fmt: skip
    return SlowStep(step=step, wall_ms=wall_ms, cause=cause, **row | given)


@pytest.fixture
def run(tmp_path):
    """A run of 12,000 steps without a window."""
    folder = tmp_path / "run"
    folder.mkdir()
    publish_json(folder / "run.json", {"format": 1})
    rows = "".join(f"train,{step},wait,10.0,\n" for step in range(12_000))
    (folder / "rank0.timeline.csv").write_text("stage,step,phase,wall_ms,data_ms\n" + rows)
    return folder


def keep(run, rank, *rows):
    slow_steps.append(run / f"rank{rank}.slow.csv", list(rows))


def of_page(run):
    """What the page is made from, as the reader of its file takes it."""
    return msgspec.convert(run_data.gather(run), RunData).slow


def test_how_many_steps_were_slow_and_why(run):
    keep(run, 0, slow(90), slow(91, 900.0, "garbage collection"), slow(92, 600.0))
    found = of_page(run)
    assert (found.count, found.steps, found.wall_ms, found.ranks) == (3, 12_000, 2000, 1)
    assert list(found.causes.items()) == [("data", 2), ("garbage collection", 1)]
    keep(run, 0, slow(94, cause="disk"))
    assert list(of_page(run).causes) == ["data", "disk", "garbage collection"], "by name where they are as many"
    assert found.rows["step"] == [91, 92, 90]
    assert "rank" not in found.rows
    assert "data_ms" not in found.rows, "nobody said when a batch arrives"


def test_slow_steps_of_one_function_share_a_cause(run):
    """Of the first slow steps little was seen; what happened by chance is no name of a function."""
    causes = [("unknown", 9), ("own code", 9), ("evaluation", 13), ("evaluation", 13), ("CPU contention", 13)]
    keep(
        run, 0, *(slow(90 + at, cause=cause, line=f"rollout (r.py:{line})") for at, (cause, line) in enumerate(causes))
    )
    keep(run, 0, slow(99, cause="unknown", line="<module> (r.py:13)"))
    found = dict(zip(of_page(run).rows["step"], of_page(run).rows["cause"], strict=True))
    assert [found[90 + at] for at in range(4)] == ["evaluation"] * 4
    assert (found[94], found[99]) == ("CPU contention", "unknown")


def test_run_without_slow_steps_has_no_text(run):
    assert "slow" not in run_data.gather(run)
    keep(run, 0)
    assert "slow" not in run_data.gather(run)
    assert slow_rows.table(run).height == 0


def test_a_step_that_is_slow_on_several_ranks_counts_once(run):
    """With the cause of the rank that the others waited for, whichever it is."""
    keep(run, 0, slow(90, 510.0, "other ranks"), slow(95, 100.0, "checkpoint"))
    keep(run, 1, slow(90, 500.0, "data"))
    keep(run, 2, slow(90, 520.0, "unknown"))
    found = of_page(run)
    assert (found.count, found.rows_count, found.ranks, found.wall_ms) == (2, 4, 3, 620)
    assert found.causes == {"checkpoint": 1, "data": 1}
    assert list(zip(found.rows["rank"], found.rows["step"], strict=True)) == [(2, 90), (0, 90), (1, 90), (0, 95)]


@pytest.mark.slow
def test_longest_of_thousands_of_slow_steps_are_in_the_report(run):
    keep(run, 0, *(slow(step, 100.0 + step) for step in range(5000)))
    found = of_page(run)
    assert (found.count, found.rows_count, found.is_cut) == (5000, 5000, False)
    assert found.rows["step"] == list(range(4999, 4799, -1))
    assert report.write(run).stat().st_size < 3_000_000


def test_latest_rows_of_an_endless_table_are_read(run, monkeypatch):
    monkeypatch.setattr(slow_rows, "LARGEST_TABLE", 1000)
    monkeypatch.setattr(slow_rows, "_LEAST", 1000)
    keep(run, 0, *map(slow, range(100)))
    found = of_page(run)
    assert found.is_cut
    assert 0 < found.count < 20
    assert max(found.rows["step"]) == 99


def test_missing_timeline_leaves_the_number_of_steps_unknown(run):
    """As where the disk was full when the timeline was to be written."""
    (run / "rank0.timeline.csv").write_text("stage,step,phase,wall_ms,data_ms\ntrain,0,wait,1.0,\n")
    keep(run, 0, slow(90), slow(91))
    assert of_page(run).steps is None


@pytest.mark.parametrize(
    "text",
    [
        "train,9",
        "train,x,1,2,data,,,,0,,,,",
        "train,9,nan,2,data,,,,0,,,,",
        "train,9,1e999,2,data,,,,0,,,,",
        f"train,{10**30},1,2,data,,,,0,,,,",
        f"train,9,1,2,data,,,,0,,{10**30},,",
        f"train,{'9' * 5000},1,2,data,,,,0,,,,",
        "\0" * 40,
        "train,9,1,2,data," + "x" * 200_000,
        '"' + "x" * 200_000 + '"',
    ],
    ids=["torn", "no number", "nan", "infinite", "large", "large count", "long", "zeros", "long torn", "long cell"],
)
def test_invalid_row_does_not_affect_other_rows(run, text):
    keep(run, 0, slow(90))
    with (run / "rank0.slow.csv").open("a") as file:
        file.write(f"{text}\n")
    keep(run, 0, slow(92))
    assert slow_rows.table(run)["step"].to_list() == [90, 92]
    assert of_page(run).count == 2


def test_bytes_that_are_no_text_are_no_error(run):
    (run / "rank0.slow.csv").write_bytes(os.urandom(5000))
    assert slow_rows.table(run).height == 0


def test_no_link_is_followed(run, tmp_path):
    slow_steps.append(tmp_path / "else.csv", [slow(90)])
    (run / "rank0.slow.csv").symlink_to(tmp_path / "else.csv")
    (run / "rank1.slow.csv").mkdir()
    os.mkfifo(run / "rank2.slow.csv")
    (run / "rank99999999.slow.csv").write_text("")
    assert slow_rows.table(run).height == 0
    assert "slow" not in run_data.gather(run)


def test_texts_are_printable_and_no_markup(run):
    keep(run, 0, slow(90, cause=HOSTILE, line=HOSTILE + "x" * 5000))
    found = of_page(run)
    assert "\x1b" not in found.rows["line"][0]
    assert "\u202e" not in found.rows["line"][0]
    assert len(found.rows["line"][0]) < 300
    page = report.write(run).read_text(encoding="utf-8")
    assert "<img" not in page
    assert "onerror=" in page


# --- perfhooks show ---


@pytest.fixture
def show(monkeypatch, capfd):
    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["perfhooks", "show", *map(str, arguments), "--table", "slow"])
        with pytest.raises(SystemExit) as ended:
            app.main()
        out, err = capfd.readouterr()
        assert (ended.value.code or 0, err) == (0, "")
        return out

    return call


def test_a_run_without_a_window_shows_its_slow_steps(run, show):
    keep(run, 0, slow(90))
    keep(run, 1, slow(91, 700.0, explained_ms=None))
    for target in (run, run.parent / "run"):
        rows = list(csv.DictReader(io.StringIO(show(target))))
        assert [(row["rank"], row["step"], row["wall_ms"]) for row in rows] == [
            ("1", "91", "700.000000"), ("0", "90", "500.000000"),
        ]  # fmt: skip
        unknown = {"data_ms", "alloc_retries"}
        assert list(rows[0]) == ["rank", *(name for name in SlowStep._fields if name not in unknown)]
        assert rows[0]["explained_ms"] == ""
    (first, _) = json.loads(show(run, "--json"))
    assert (first["cause"], first["explained_ms"], first["line"]) == ("data", None, "load (train.py:3)")
    assert len(show(run, "--limit", "1").splitlines()) == 2


def test_summary_has_two_lines_about_slow_steps(run):
    assert "Slow steps" not in of_run(run)
    keep(run, 0, slow(90))
    assert "\n1 of 12,000 steps was slow and took " in of_run(run)
    keep(run, 0, slow(90), slow(91, 900.0, "garbage collection"), slow(92, 600.0))
    assert (
        "## Slow steps\n"
        "3 of 12,000 steps were slow and took 2 s together: data (2), garbage collection (1).\n"
        "The longest: step 91, 900 ms, garbage collection, load (train.py:3).\n"
    ) in of_run(run)


def test_terminal_states_the_absence_of_slow_steps(run, show):
    console = Console(file=io.StringIO(), width=100)
    terminal_tables.draw({"slow": slow_rows.table(run)}, console=console)
    assert console.file.getvalue() == "slow: no slow steps\n"
    assert len(show(run).splitlines()) == 1
    keep(run, 0, slow(90))
    terminal_tables.draw({"slow": slow_rows.table(run)}, console=console)
    assert "load (train.py:3)" in console.file.getvalue()


def test_every_column_is_explained():
    named = {name for term in DEFINITIONS["slow"] for name in term.split(", ")}
    assert set(SlowStep._fields) <= named


def test_stacks_are_written_only_after_changes():
    stacks = FoldedStacks()
    assert not stacks.is_new
    stacks.add([Sample((Frame(FoldedStacks.text.__code__, 7),), 3_000_000)])
    assert (stacks.is_new, stacks.text().endswith(" 3\n"), stacks.is_new) == (True, True, False)
