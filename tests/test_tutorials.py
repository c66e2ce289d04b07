"""The tutorials: their commands run, their outputs are real, and the code that they show is that of the example."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "examples/tutorial/train.py"
PAGES = {name: (ROOT / f"docs/{name}.md").read_text(encoding="utf-8") for name in ("bottleneck", "faster")}
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def commands(page):
    return [line for language, text in BLOCK.findall(PAGES[page]) if language == "sh" for line in text.splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_shown_code_is_in_the_example(page):
    lines = {line.strip() for line in SCRIPT.read_text(encoding="utf-8").splitlines()}
    shown = [text for language, text in BLOCK.findall(PAGES[page]) if language == "python"]
    assert [line for text in shown for line in text.splitlines() if line.strip() not in lines] == []


@pytest.mark.parametrize("page", PAGES)
def test_options_of_the_commands_are_options_of_the_example(page):
    script = SCRIPT.read_text(encoding="utf-8")
    words = " ".join(commands(page)).replace("'", " ").split("train.py")[1:]
    used = {word for text in words for word in re.findall(r"--[a-z]+", text.partition("perfhooks")[0])}
    assert used <= {"--fail", *re.findall(r'"(--\w+)"', script)}


@pytest.mark.parametrize("page", PAGES)
def test_outputs_show_the_results_that_the_text_explains(page):
    outputs = [text for language, text in BLOCK.findall(PAGES[page]) if language == "text"]
    assert [text for text in outputs if not text.strip()] == [], "run `python benchmarks/tutorials.py`"
    assert "Faster: " in outputs[-1]
    assert "/tmp/" not in "".join(outputs).replace("/tmp/perfhooks-compare", "")
    if page == "bottleneck":
        assert "waiting for data" in outputs[0]
        assert [line for text in outputs for line in text.splitlines() if "warning:" in line] == []


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("page", PAGES)
def test_commands_run_in_their_order(page, tmp_path):
    shutil.copy(SCRIPT, tmp_path)
    for command in commands(page):
        program, *arguments = shlex.split(re.sub(r"--seconds \d+", "--seconds 3", command))
        assert program == "perfhooks"
        call = [sys.executable, "-m", "perfhooks", *arguments]
        done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=380, check=False)
        assert (done.returncode, "Traceback" in done.stderr) == (0, False), f"{command}: {done.stderr}"
