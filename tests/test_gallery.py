"""The gallery: trainings of examples/slow, their recorded findings, and patches that apply and were faster."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import browser
import pytest

from perfhooks.report.page import page

ROOT = Path(__file__).parents[1]
SLOW = ROOT / "examples/slow"
RESULTS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / "docs/gallery").glob("*.json")}
RULES = {
    "adam": "optimizer-loop",
    "attention": "written-out-attention",
    "checkpoint": "checkpoint-in-steps",
    "convolution": "slow-convolution",
    "loader": "waiting-for-data",
    "validation": "validation-in-steps",
}


def test_each_slow_training_has_a_result_and_a_section():
    sections = (ROOT / "docs/gallery.md").read_text(encoding="utf-8")
    assert {path.stem for path in SLOW.glob("*.py")} == {path.stem for path in SLOW.glob("*.patch")} == set(RULES)
    assert RESULTS.keys() == RULES.keys(), "run `python benchmarks/gallery.py`"
    assert [name for name in RULES if f"<!-- generated: gallery {name} -->" not in sections] == []


@pytest.mark.parametrize("name", RULES)
def test_first_finding_names_the_fault_and_the_patch_was_faster(name):
    result = RESULTS[name]
    found = result["report"].get("findings", [])
    found += [row for window in result["report"]["windows"] for row in window["details"]["0"]["findings"]["rows"]]
    assert RULES[name] in {finding["rule"] for finding in found}
    assert result["report"]["summary"]["findings"], "the printed summary shows it"
    assert result["verdict"].startswith("Faster: ")
    assert "warning:" not in result["printed"]
    assert "/tmp/" not in json.dumps(result)


@pytest.mark.process
@pytest.mark.parametrize("name", RULES)
def test_patch_applies(name, tmp_path):
    script = shutil.copy(SLOW / f"{name}.py", tmp_path)
    before = Path(script).read_text(encoding="utf-8")
    subprocess.run(["git", "apply", SLOW / f"{name}.patch"], cwd=tmp_path, check=True)
    after = Path(script).read_text(encoding="utf-8")
    assert after != before
    compile(after, script, "exec")


@pytest.mark.browser
def test_reports_of_the_gallery_render(tmp_path):
    if browser.find() is None:
        pytest.skip("no Chromium")
    with browser.Browser() as opened:
        for name, result in RESULTS.items():
            (tmp_path / f"{name}.html").write_bytes(page.render(result["report"]))
            opened.open(tmp_path / f"{name}.html")
            assert opened.run("document.querySelectorAll('.where-time table').length") >= 1
        assert opened.complaints == []


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("name", RULES)
def test_training_runs_before_and_after_the_fix(name, tmp_path):
    shutil.copy(SLOW / f"{name}.py", tmp_path)
    for _ in range(2):
        done = subprocess.run([sys.executable, f"{name}.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")
        subprocess.run(["git", "apply", SLOW / f"{name}.patch"], cwd=tmp_path, check=False)
