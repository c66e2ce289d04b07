"""Summaries in markdown: small enough for a reader in a hurry, and with all that matters."""

import dataclasses
import re

import msgspec
import pytest
from comparing_runs import make_run, training
from typer.testing import CliRunner

from perfhooks import testing, trace
from perfhooks.cli.app import app
from perfhooks.core.errors import OptionError
from perfhooks.report import handlers
from perfhooks.report import page as report
from perfhooks.report.page import markdown
from perfhooks.report.page.run_summary import read_summary
from perfhooks.run.capture import Capture, Place


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of which every window is finished."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "base", training(data=6000), [8.0] * 50)
    finished(folder)
    return folder


def shown(target, *words):
    return CliRunner().invoke(app, ["show", str(target), "--format", "markdown", *words])


def test_markdown_of_a_run_has_facts_parts_and_fixes(run):
    text = shown(run).output
    for part in ("# base", "- torch: 2.15", "## Where the step goes", "| data | 6 |", "## What to do", "## Files"):
        assert part in text
    assert "- **The step waits 6 ms for data" in text
    assert "| aten::addmm | 2 | 1.7 |" in text
    assert "rank0.pt.trace.json.gz" in text


def test_partial_window_names_its_reason(tmp_path):
    folder = make_run(tmp_path / "base", training(), [8.0] * 50)
    assert "\n- partial:" not in shown(folder).output
    place = finished(folder)
    place.save(dataclasses.replace(place.load(), partial="SIGTERM"))
    assert "\n- partial: SIGTERM\n" in shown(folder).output


def test_markdown_of_a_trace_has_the_available_facts(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", training())
    text = shown(path).output
    assert "## Where the step goes\nstep 3.15 ms (profiled steps 10-12), " in text
    assert "| optimizer | 0.4 |" in text
    assert str(path) in text


@pytest.mark.parametrize("option", ["--table=steps", "--by=shapes", "--sort=count", "--limit=0", "--csv", "--json"])
def test_markdown_rejects_options_of_tables(run, option):
    outcome = shown(run, option)
    assert isinstance(outcome.exception, OptionError)
    assert "--format markdown is a summary of the run" in str(outcome.exception)


def test_markdown_of_a_trace_uses_the_names_of_communication(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", training())
    assert shown(path, "--communication", "mine|other").exit_code == 0
    assert isinstance(shown(path, "--communication", "mine|").exception, OptionError), "an empty part"


HOSTILE = "<script>a</script> `b` | c\n# d\x1b[31m\u202ee @everyone [f](https://g)" + 1_000_000 * "h"


def test_hostile_names_stay_text(tmp_path):
    """A name neither ends a row, nor writes markup or a command of a terminal, nor hides the rows after it."""
    events = [
        testing.step_mark(1, 0, 10_000_000),
        testing.annotation(HOSTILE, 0, 9_000_000),
        testing.op(HOSTILE, 0, 8_000_000),
        testing.op("aten::mm", 8_000_000, 9_000_000),
    ]
    text = shown(testing.write_trace(tmp_path / "t.json", events)).output
    assert not set("\x1b\u202e").intersection(text)
    assert "<script>" not in text
    assert "@everyone" not in text
    assert not re.search(r"(?<!\\)[`\[]", text)
    assert "\n# d" not in text
    assert text.count("&lt;script>") >= 2
    assert "| aten::mm | 1 | 1 |" in text
    assert len(text) < 10_000


def finished(folder):
    """A run of which the one window has its share of the page."""
    (window,) = folder.glob("train-*")
    place = Place(window)
    capture = place.load()
    read = trace.read(place.artifact("pt.trace.json.gz"))
    for artifact in handlers.build("page").artifacts(capture, read):
        with place.artifact(artifact.name).open("wb") as file:
            artifact.write(file)
    return place


def test_show_and_markdown_have_the_findings_of_the_report(tmp_path):
    """A run goes on after the window: what a rule computes again later differs."""
    folder = make_run(tmp_path / "base", training(data=6000), [8.0] * 50)
    place = finished(folder)
    share = msgspec.json.decode(place.artifact("page.json").read_bytes())
    row = share["findings"]["rows"][0]
    share["findings"]["rows"] = [row | {"title": title, "gain_ms": ms} for title, ms in (("One.", 3.0), ("Two.", 2.0))]
    place.artifact("page.json").write_bytes(msgspec.json.encode(share))
    report.write(folder)
    table = CliRunner().invoke(app, ["show", str(folder), "-t", "findings", "--json"]).output
    text = shown(folder).output
    assert [row["title"] for row in msgspec.json.decode(table)] == ["One.", "Two."]
    assert [finding.title for finding in read_summary(folder).findings] == ["One.", "Two."]
    assert text.index("- **One.** Gain: about 3 ms") < text.index("- **Two.** Gain: about 2 ms")
    assert read_summary(folder).line in text


def tokens(text):
    """No fewer than any usual tokenizer makes of it: words in pieces of six letters, three digits, each sign."""
    return len(re.findall(r"[A-Za-z]{1,6}|\d{1,3}|[^\sA-Za-z\d]", text))


def test_markdown_of_a_large_run_has_at_most_2000_tokens(tmp_path):
    """With all there is to say, and long names: 400 operators, findings, six doubts, and the files of 40 handlers."""
    step = 400 * 100_000
    events = [testing.step_mark(number, number * step, (number + 1) * step) for number in (10, 11, 12)]
    for number in (10, 11, 12):
        begin = number * step
        events.append(testing.annotation("data", begin, begin + step // 3))
        events += [
            testing.op(f"my_library::fused_attention_backward_{place}_{'wide' * 30}", at, at + 60_000)
            for place in range(400)
            for at in (begin + 100_000 * place,)
        ]
    command = [f"--model.encoder.layers.{place}.hidden_size={1024 + place}" for place in range(60)]
    run = make_run(tmp_path / "experiment" / ("a_long_name_of_a_run_" * 6), events, [8.0] * 50, command=command)
    (window,) = run.glob("train-*")
    notes = tuple(f"handler number {place} failed: {'it could not write its file, ' * 8}" for place in range(20))
    place = Place(window)
    place.save(dataclasses.replace(place.load(), notes=notes, state="done"))
    for number in range(40):
        (window / f"rank0.table_of_handler_{number}.csv").write_text("")
    finished(run)
    text = markdown.of_run(run)
    assert tokens(text) <= 2000
    # each section that matters is there, and is cut where it is long
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert [head.lstrip("# ") for head in heads[1:5]] == [
        "Where the step goes",
        "What to do",
        "Largest operators in one step",
        "Doubts",
    ]
    assert max(map(len, text.splitlines())) <= 260
    assert text.count("my_library::fused") == 7
    assert text.count("- handler number") <= 6


def test_markdown_with_hundreds_of_files_has_at_most_2000_tokens(tmp_path):
    """Paths have the most tokens for their length; which are left out is said by none of them being cut."""
    folder = make_run(tmp_path / "base", training(), [8.0] * 30)
    (window,) = folder.glob("train-*")
    for number in range(300):
        (window / f"rank0.mine{number}.txt").touch()
    text = markdown.of_run(folder)
    assert 1500 < tokens(text) <= 2000
    assert all(line.endswith((".txt", ".json", ".csv", ".gz")) for line in text.splitlines() if line.startswith("- /"))


def test_notebook_shows_a_summary_unchanged():
    table = markdown.Text.of("a < b")
    assert (table, table._repr_html_(), table._repr_markdown_()) == ("a < b", "<pre>a &lt; b</pre>", None)
    drawn = markdown.Text.of("# a", is_markdown=True)
    assert (drawn._repr_html_(), drawn._repr_markdown_()) == (None, "# a")


def test_window_without_details_refers_to_its_files(tmp_path):
    folder = make_run(tmp_path / "r", None, [8.0] * 30)
    Place(folder / "train-000003-000004").save(Capture(first=3, last=4))
    assert "details of this window are in its files" in markdown.of_run(folder)


def test_run_without_a_window_shows_its_facts(tmp_path):
    text = markdown.of_run(make_run(tmp_path / "r", None, [8.0] * 30))
    assert text.startswith("# r\n")
    assert "rank0.timeline.csv" in text


def test_a_recording_without_parts_has_its_headline(tmp_path):
    """Idle time before the first and after the last work is separate."""
    events = [testing.op("aten::empty", 0, 1_000)]
    for number in range(1, 11):
        at = number * 1_000_000 + 9_000_000
        events += [testing.op("aten::mm", at, at + 30_000, external=number), testing.launch(number, at, at + 9_000)]
        events += [testing.kernel(number, at + 20_000, at + 920_000)]
    events += [testing.op("aten::empty", 39_000_000, 40_000_000)]
    text = markdown.of_trace(testing.write_trace(tmp_path / "t.json", events))
    assert "device busy 91% between its first and last work, idle 10 ms before and 20.1 ms after" in text
    assert "100% other code" not in text
