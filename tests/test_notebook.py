"""The cell magic ``%%perfhooks`` and the example notebook."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

NOTEBOOK = Path(__file__).parents[1] / "examples/first_look.ipynb"
TRAINING = """
import torch
layer = torch.nn.Linear(8, 1)
optimizer, other = torch.optim.SGD(layer.parameters(), lr=0.1), torch.optim.SGD(layer.parameters(), lr=0.1)
for step in range(STEPS):
    layer(torch.randn(4, 8)).sum().backward()
    optimizer.step()
    other.step()
    if step == FAILS:
        raise KeyError("in the middle")
step
"""
SOON = 'schedule="wait=2 warmup=1 active=2 repeat=1"'


@pytest.fixture
def shell(tmp_path, monkeypatch):
    """IPython in an empty folder, with the extension."""
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setattr("perfhooks.notebook._WAIT_S", 300.0)
    instance = shells.InteractiveShell()
    instance.history_manager.enabled = False
    assert instance.run_line_magic("load_ext", "perfhooks") is None
    instance.user_ns |= {"STEPS": 8, "FAILS": None}
    yield instance
    instance.history_manager.end_session()


@pytest.mark.process
def test_magic_profiles_a_cell_and_returns_its_report(shell, tmp_path, capsys):
    report = shell.run_cell_magic("perfhooks", SOON, TRAINING)
    (window,) = (tmp_path / "perf/latest").glob("train-*")
    assert window.name == "train-000003-000004", "a step ends with the update of the first optimizer"
    assert report.path.resolve() == (tmp_path / "perf/latest/report.html").resolve()
    assert f"report: {report.path}" in repr(report)
    assert repr(report).startswith("step ")
    page = report._repr_html_()
    assert '<iframe srcdoc="&lt;!doctype html&gt;' in page.lower()
    assert page.count("<iframe") == 1
    assert shell.user_ns["step"] == 7, "the cell's names stay"
    assert "7" in capsys.readouterr().out, "the last expression is displayed"
    from torch.optim import optimizer

    assert not optimizer._global_optimizer_post_hooks


@pytest.mark.process
def test_cell_without_a_window_prints_the_reason_and_the_remedy(shell, capsys):
    shell.user_ns["STEPS"] = 2
    assert shell.run_cell_magic("perfhooks", "", TRAINING) is None
    text = capsys.readouterr().out
    assert "perfhooks shows no report: " in text
    assert "Profile a cell with more updates" in text


@pytest.mark.process
def test_error_of_the_cell_is_raised(shell):
    from torch.optim import optimizer

    shell.user_ns["FAILS"] = 1
    with pytest.raises(KeyError, match="in the middle"):
        shell.run_cell_magic("perfhooks", SOON, TRAINING)
    assert not optimizer._global_optimizer_post_hooks


@pytest.mark.process
@pytest.mark.parametrize("line", ["--with-stack", "'perf'", "with_stack", "**x", "out=name", ") + f("])
def test_wrong_options_of_the_magic_are_an_error(shell, line):
    from perfhooks import OptionError

    with pytest.raises(OptionError, match="%%perfhooks takes options like"):
        shell.run_cell_magic("perfhooks", line, "1")


def test_notebook_has_no_outputs():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    assert [cell for cell in cells if cell.get("outputs")] == []


@pytest.mark.process
@pytest.mark.nightly
@pytest.mark.filterwarnings("default")
def test_notebook_runs_from_top_to_bottom(tmp_path):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in book.cells for output in cell.get("outputs", ())]
    assert sum("<iframe" in str(output.get("data", {}).get("text/html", "")) for output in outputs) == 2
    text = "".join(output.get("text", "") for output in outputs)
    assert "for data" in text, "the finding is printed"
