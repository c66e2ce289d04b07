"""What the README and the site show works: blocks run, commands exist, a run leaves the files of the tree."""

from __future__ import annotations

import html
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import typer.main
import warm

from perfhooks import Schedule
from perfhooks.cli.app import app
from perfhooks.report import handlers

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")
GENERATED = re.compile(r"^<!-- generated.*?^<!-- end -->$", re.MULTILINE | re.DOTALL)
"""Parts of pages that come from other files, which have their own tests."""
SITE = {page.name: GENERATED.sub("", page.read_text(encoding="utf-8")) for page in sorted((ROOT / "docs").glob("*.md"))}
FILES = SITE["files.md"]
ADDED = {
    # a config file only names its hooks: make them, as a Runner would
    "custom_hooks": "\nfrom mmengine.registry import HOOKS\nfor hook in custom_hooks:\n    HOOKS.build(hook)\n",
}


TRAINING = """
import torch

model = torch.nn.Linear(8, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch in torch.utils.data.DataLoader(torch.randn(80, 8), batch_size=4):
    optimizer.zero_grad()
    model(batch).square().mean().backward()
    optimizer.step()
"""
"""The script of the first command."""


class Block(NamedTuple):
    line: int
    language: str
    text: str


def blocks(language, text=README):
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    every = [Block(text.count("\n", 0, match.start()) + 1, match[1], match[2]) for match in found]
    assert {block.language for block in every} <= {"json", "python", "sh", "text", "toml", "yaml"}, (
        "each block says what it is"
    )
    return [block for block in every if block.language == language]


def run(channel, block, here):
    """A block as a program, which has ended before the next one begins: by then the files of a run are there."""
    file = here.with_name(f"{here.name}-block.py")
    file.write_text(block.text + "".join(code for words, code in ADDED.items() if words in block.text))
    return warm.run(channel, file, folder=here, environment=os.environ | {"TMPDIR": str(here)}, timeout=240)


@pytest.fixture(scope="module")
def done(frameworks, tmp_path_factory):
    """All Python blocks, run one after the other in one folder, as a reader would."""
    here = tmp_path_factory.mktemp("readme")
    (here / "train.py").write_text(TRAINING)
    return here, {block: run(frameworks, block, here) for block in blocks("python")}


@pytest.mark.framework
def test_every_python_block_runs(done):
    for block, result in done[1].items():
        assert result.returncode == 0, f"line {block.line}: {result.stderr}"
        assert "Traceback" not in result.stderr, f"line {block.line}: {result.stderr}"
        assert "WARNING perfhooks" not in result.stderr, f"line {block.line}: {result.stderr}"


@pytest.mark.framework
def test_run_writes_exactly_the_files_of_the_tree(done):
    """What the first block leaves: all but those that the tree makes depend on something."""
    (tree,) = [block.text for block in blocks("text", FILES) if block.text.startswith("perf/latest/")]
    told = dict(re.findall(r"^ {2,4}(\S+) +(.+)", tree, re.MULTILINE))
    run = min((done[0] / "perf").glob("[0-9]*"))
    left = {f"{path.name}/" if path.is_dir() else path.name for path in run.rglob("*") if path.name[0] != "."}
    assert {name for name, what in told.items() if "; if " not in what} <= left
    assert left <= told.keys()


def test_complete_python_blocks_of_the_docs_run(frameworks, tmp_path):
    examples = [(page, block) for page, text in SITE.items() for block in blocks("python", text)]
    examples = [(page, block) for page, block in examples if "import " in block.text]
    assert len(examples) > 5
    printed = {}
    for page, block in examples:
        result = run(frameworks, block, tmp_path)
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), f"{page}:{block.line}: {result.stderr}"
        printed[page] = printed.get(page, "") + result.stdout
    (drawn,) = [block.text for block in blocks("text", SITE["schedule.md"])]
    assert drawn in printed["schedule.md"]


def test_handlers_in_the_readme_exist():
    rows = re.findall(r'^\| `"(\w+)"` \|', FILES, re.MULTILINE)
    assert set(rows) == handlers.NAMES.keys()


def test_schedules_in_the_readme_are_valid():
    for words in re.findall(r'schedule="([^"]+)"', README):
        Schedule.parse(words)


def commands(*texts):
    lines = [line for text in texts for block in blocks("sh", text) for line in block.text.splitlines() if line]
    return lines + [line[2:] for text in texts for line in re.findall(r"^\$ .+", text, re.MULTILINE)]


def targets():
    return re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def extras():
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    return re.findall(r"^(\w+) = ", section, re.MULTILINE)


@pytest.mark.parametrize("command", dict.fromkeys(commands(README, *SITE.values())))
def test_commands_in_the_readme_exist(command):
    """Those that install or take minutes are not run here; examples and tests have tests of their own."""
    program, *arguments = shlex.split(command, comments=True)
    if program == "make":
        assert set(arguments) <= set(targets())
    elif program == "pip":
        assert arguments[0] == "install"
        assert set(re.findall(r"\w+", arguments[1])) <= set(extras())
    elif arguments[0] == "-c":
        assert program == "python"
        compile(arguments[1], command, "exec")
    elif program in ("python", "torchrun"):
        (script,) = [word for word in arguments if word.endswith(".py")]
        assert (ROOT / script).is_file()
    elif program == "git":
        assert arguments == ["fetch", "--depth", "1", "origin", "main"]
    else:
        assert program == "perfhooks"
        words = arguments[1 : arguments.index("|")] if "|" in arguments else arguments[1:]
        words = words[1:] if words[:1] == ["-m"] else words  # begins the command of `run`
        typer.main.get_command(app).commands[arguments[0]].make_context(arguments[0], words)  # raises on wrong options


@pytest.mark.framework
def test_lines_of_the_command_work(channel, done):
    """Those of the README, and those of the site that need only the last run."""
    last = (done[0] / "perf/latest").resolve()
    for name in ("perf/base", "perf/new"):
        shutil.copytree(last, done[0] / name)
    site = r"perfhooks (?:(?:show|report) perf/latest(?: -.*)?|schedule .*)"
    lines = [line for line in commands(README) if line.startswith("perfhooks ")]
    lines += [line for line in commands(*SITE.values()) if re.fullmatch(site, line)]
    for line in dict.fromkeys(lines):
        result = warm.command(channel, done[0], *shlex.split(line)[1:], timeout=240)
        assert (result.returncode, "Traceback" in result.stderr) == (0, False), f"{line}: {result.stderr}"


def test_every_make_target_and_extra_in_its_text_exists():
    assert set(re.findall(r"`make ([\w-]+)`", README)) <= set(targets())
    for text, before, after in ((README, "The extras are", "Reading,"), (CHINESE, "可选依赖有", "所有框架")):
        named = text.partition(before)[2].partition(after)[0]
        assert set(re.findall(r"`(\w+)`", named)) == set(extras())


@pytest.mark.parametrize("text", [README, CHINESE], ids=["English", "Chinese"])
def test_linked_files_exist(text):
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_both_languages_have_equal_blocks_commands_and_links():
    for pattern in (r"^```.*?^```$", r"`perfhooks [^`]+`", r"\]\((?!README)[^)]+\)"):
        english, chinese = (re.findall(pattern, text, re.MULTILINE | re.DOTALL) for text in (README, CHINESE))
        assert {*english} - {*chinese} == set(), pattern
    assert len(blocks("sh")) == len(blocks("sh", CHINESE))


def test_both_languages_have_at_most_150_lines():
    assert [len(text.splitlines()) for text in (README, CHINESE) if len(text.splitlines()) > 150] == []


def test_box_in_the_readme_equals_that_of_the_terminal():
    """Both come from one real run of `benchmarks/pictures.py`."""
    (box,) = [block.text for block in blocks("text")]
    picture = (ROOT / "docs/terminal.svg").read_text(encoding="utf-8")
    rows = re.findall(r"<text [^>]*>(.*?)</text>", picture)
    printed = html.unescape(" ".join(rows)).replace("\xa0", " ")
    assert [line for line in box.splitlines() if " ".join(line.split()) not in " ".join(printed.split())] == []
    assert "http" not in picture.replace("http://www.w3.org/2000/svg", ""), "it loads nothing"
