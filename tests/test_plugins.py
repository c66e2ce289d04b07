"""Handlers and rules of installed packages."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from perfhooks import Capture, testing, trace
from perfhooks.analysis import findings
from perfhooks.cli.app import app
from perfhooks.core import plugins
from perfhooks.core.errors import OptionError
from perfhooks.report import handlers

PAGE = (Path(__file__).parents[1] / "docs/plugins.md").read_text(encoding="utf-8")
TRAINING = """
import torch
import perfhooks

table, index = torch.nn.Embedding(9, 4), torch.tensor([1, 2])
handlers = ["page", {"type": "longest-step", "digits": 3}]
options = {"schedule": "wait=5 warmup=1 active=5 repeat=1", "on_trace_ready": handlers, "exit_timeout": 200}
with perfhooks.Profiler(out="perf", **options) as prof:
    for _ in range(12):
        for _ in range(400):
            table(index)
        prof.step()
assert prof.wait()
"""


def install(folder, module, entry_points, *, name="example"):
    """Write a package as an installer does."""
    folder.mkdir(exist_ok=True)
    (folder / f"{name}_plugin.py").write_text(module, encoding="utf-8")
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = [
        f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in points.items())
        for group, points in entry_points.items()
    ]
    (info / "entry_points.txt").write_text("\n".join(groups))


@pytest.fixture
def documented(tmp_path):
    """The package of the documentation."""
    project, module = (re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1] for language in ("toml", "python"))
    facts = msgspec.toml.decode(project)["project"]
    points = {
        group: {key: value.replace("perfhooks_embeddings", "embeddings_plugin") for key, value in of_group.items()}
        for group, of_group in facts["entry-points"].items()
    }
    install(tmp_path / "site", module, points, name="embeddings")
    return tmp_path / "site"


@pytest.fixture
def rule(tmp_path, monkeypatch, request):
    """Installs a rule into this process, from the body of its function."""

    def add(body, *, name="own-rule", value="example_plugin:rule"):
        module = "from perfhooks.analysis.findings import RuleTexts\n\ndef rule(window):\n" + textwrap.indent(
            body, "    "
        )
        install(tmp_path / "site", module, {plugins.RULES: {name: value}})
        monkeypatch.syspath_prepend(tmp_path / "site")
        findings._plugin_rules.cache_clear()
        findings._warn_once.cache_clear()

    monkeypatch.delitem(sys.modules, "example_plugin", raising=False)
    yield add
    sys.modules.pop("example_plugin", None)
    findings._plugin_rules.cache_clear()
    findings._warn_once.cache_clear()


@pytest.fixture
def found(tmp_path):
    """Returns the findings of a small trace."""
    events = [testing.step_mark(number, number * 1000, number * 1000 + 1000) for number in (10, 11)]
    events += [testing.op("aten::mm", number * 1000 + 100, number * 1000 + 900) for number in (10, 11)]
    path = testing.write_trace(tmp_path / "trace.json", events)
    return lambda: findings.find(Capture(stage="train", first=10, last=11, reached=11), trace.read(path))


@pytest.mark.worker
@pytest.mark.process
def test_documented_package_adds_a_file_and_a_finding(documented, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(documented)}
    (tmp_path / "train.py").write_text(TRAINING)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    run = next((tmp_path / "perf").glob("2*"))
    (longest,) = run.glob("train-*/rank0.longest.txt")
    assert re.fullmatch(r"\d+\.\d{3} ms", longest.read_text())
    (window,) = json.loads((run / "report.json").read_text())["windows"]
    (finding,) = [row for row in window["details"]["0"]["findings"]["rows"] if row["rule"] == "embedding-lookups"]
    assert re.fullmatch(r"Embedding lookups take [\d.]+ .?s of a step\.", finding["title"])
    assert "400 lookups in a step" in str(finding["evidence"])
    assert finding["gain_ms"] > 0
    assert finding["is_bound"]


def test_example_package_of_the_docs_has_thirty_lines():
    lines = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0].splitlines()
    assert len([line for line in lines if line.strip()]) <= 30


def test_rule_gets_values_and_texts_of_the_window(rule, found):
    rule(
        "own = RuleTexts(title='{count} steps of {step_ms:ms}', evidence={'n': 'n {n}'})\n"
        "text = window.texts('own-rule', own=own, count=window.count, step_ms=window.step_ms)\n"
        "yield from window.finding(text, 0.0005, evidence=[text('n', n=3)])"
    )
    (finding,) = [row for row in found() if row.rule == "own-rule"]
    assert finding.title == "2 steps of 1 us"
    assert finding.gain_ms == 0.0005


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("return 7", "TypeError"),
        ("yield {'rule': 'own-rule'}", "must yield findings whose rule is 'own-rule'"),
        (
            "yield from window.finding(window.texts('other', own=RuleTexts(title='t')), None, evidence=[])",
            "must yield findings whose rule is 'own-rule'",
        ),
    ],
)
def test_broken_rule_is_one_warning_and_keeps_other_findings(rule, found, caplog, body, problem):
    before = found()
    rule(body)
    assert [found(), found()] == [before, before]
    (record,) = [record for record in caplog.records if record.name == "perfhooks"]
    assert record.levelname == "WARNING"
    assert "'own-rule'" in record.getMessage()
    assert problem in record.getMessage()
    assert "\n" not in record.getMessage()


@pytest.mark.parametrize(("field", "value"), [("gain_ms", "nan"), ("gain_ms", "'much'"), ("title", "None")])
def test_finding_with_a_wrong_value_is_dropped(rule, found, caplog, field, value):
    rule(
        "import dataclasses\nfrom math import nan\n"
        "for finding in window.finding(window.texts('own-rule', own=RuleTexts(title='t')), None, evidence=[]):\n"
        f"    yield dataclasses.replace(finding, {field}={value})"
    )
    assert [row for row in found() if row.rule == "own-rule"] == []
    assert caplog.text.count("own-rule") == 1 or caplog.text.count("is skipped") == 1


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("no_such_module:rule", "cannot be imported: ModuleNotFoundError"),
        ("example_plugin:missing", "cannot be imported: AttributeError"),
        ("example_plugin:RuleTexts.__module__", "is no function or class"),
    ],
)
def test_rule_is_loaded_strictly(rule, value, problem):
    rule("return []", value=value)
    (point,) = plugins.entry_points(plugins.RULES)
    with pytest.raises(OptionError, match=problem):
        plugins.load(point)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("own-rule", "no_such_module:rule", "rule 'own-rule' cannot be imported: ModuleNotFoundError"),
        ("host-bound", "example_plugin:rule", "perfhooks has a rule with this name"),
    ],
)
def test_unusable_rule_is_one_warning(rule, found, caplog, name, value, problem):  # noqa: PLR0917 -- parameters
    before = found()
    rule("return []", name=name, value=value)
    assert [found(), found()] == [before, before]
    assert caplog.text.count(f"The rule {name!r} of a plugin is skipped: {problem}") == 1


def test_handler_that_cannot_be_imported_raises_at_construction(tmp_path, monkeypatch):
    install(tmp_path / "site", "raise RuntimeError('too old')", {plugins.HANDLERS: {"mine": "example_plugin:Own"}})
    monkeypatch.syspath_prepend(tmp_path / "site")
    with pytest.raises(OptionError, match=r"handler 'mine' cannot be imported: RuntimeError: too old"):
        handlers.build("mine")


def test_doctor_lists_plugins_and_their_problems(rule, monkeypatch):
    from perfhooks.cli import doctor

    rule("return []")
    assert doctor._plugins() == ("ok", "own-rule")
    monkeypatch.setattr(importlib.metadata.EntryPoint, "load", lambda point: 1 / 0)
    state, text = doctor._plugins()
    assert state == "note"
    assert "rule 'own-rule' cannot be imported: ZeroDivisionError" in text


def test_rule_of_a_plugin_is_shown_for_a_trace(rule, tmp_path, found):
    rule("yield from window.finding(window.texts('own-rule', own=RuleTexts(title='Own.')), None, evidence=[])")
    found()
    shown = CliRunner().invoke(app, ["show", str(tmp_path / "trace.json"), "-t", "findings", "--csv"]).output
    assert "own-rule,Own." in shown
