"""Summaries in markdown: small enough for a reader in a hurry, and with all that matters."""

import pytest
from comparing_runs import make_run, training
from typer.testing import CliRunner

from perfhooks import handlers, testing, trace
from perfhooks.command.app import app
from perfhooks.errors import OptionError
from perfhooks.report import markdown
from perfhooks.run.capture import Capture, Place


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of which every window is finished."""
    folder = make_run(tmp_path_factory.mktemp("runs") / "base", training(data=6000), [8.0] * 50)
    (window,) = folder.glob("train-*")
    place = Place(window)
    capture = place.load()
    read = trace.read(place.artifact("pt.trace.json.gz"))
    for artifact in handlers.build("page").artifacts(capture, read):
        with place.artifact(artifact.name).open("wb") as file:
            artifact.write(file)
    return folder


def shown(target, *words):
    return CliRunner().invoke(app, ["show", str(target), "--format", "markdown", *words])


def test_a_run_in_markdown_says_what_it_was_where_the_step_goes_and_what_to_do(run):
    text = shown(run).output
    for part in ("# base", "- torch: 2.15", "## Where the step goes", "| data | 6 |", "## What to do", "## Files"):
        assert part in text
    assert "- **The step waits 6 ms for data" in text
    assert "| aten::addmm | 2 | 1.7 |" in text
    assert "rank0.pt.trace.json.gz" in text


def test_a_trace_in_markdown_has_what_a_trace_tells(tmp_path):
    path = testing.write_trace(tmp_path / "t.json", training())
    text = shown(path).output
    assert "| optimizer | 0.4 |" in text
    assert str(path) in text


def test_markdown_is_never_longer_than_two_thousand_tokens(tmp_path):
    names = [testing.op(f"aten::{'x' * 200}{place}", 10 * place, 10 * place + 9) for place in range(500)]
    path = testing.write_trace(tmp_path / ("long" * 40 + ".json"), [testing.step_mark(0, 0, 6000), *names])
    assert len(markdown.of_trace(path)) <= markdown.MOST


def test_a_summary_of_the_whole_is_no_table(run):
    assert isinstance(shown(run, "--table", "steps").exception, OptionError)


def test_a_notebook_shows_a_summary_as_it_is():
    table = markdown.Text.of("a < b")
    assert (table, table._repr_html_(), table._repr_markdown_()) == ("a < b", "<pre>a &lt; b</pre>", None)
    drawn = markdown.Text.of("# a", is_markdown=True)
    assert (drawn._repr_html_(), drawn._repr_markdown_()) == (None, "# a")


def test_a_window_without_a_share_is_said_to_have_its_details_in_files(tmp_path):
    folder = make_run(tmp_path / "r", None, [8.0] * 30)
    Place(folder / "train-000003-000004").save(Capture(first=3, last=4))
    assert "details of this window are in its files" in markdown.of_run(folder)
