"""The GitHub Action: its steps run as they stand in action.yml, with a gh that keeps its comments in a file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from comparing_runs import make_run, training
from test_comparing import steps

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[1]
HELD = ROOT / "tests" / "held_training.py"
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))

GH = f"""#!{sys.executable}
import json, os, re, sys
path = os.environ["COMMENTS"]
comments = json.load(open(path)) if os.path.exists(path) else {{}}
words = sys.argv[1:]
print(*words, file=open(path + ".log", "a"))
if os.environ.get("GH_TOKEN") != "may-write":
    sys.exit("HTTP 403: Resource not accessible by integration")
body = next((open(word[6:]).read() for word in words if word.startswith("body=@")), None)
if body is None:
    starts = os.environ["mark"]
    print(*[number for number, text in comments.items() if text.startswith(starts)], sep="\\n")
elif "PATCH" in words:
    number = next(re.fullmatch("repos/o/r/issues/comments/(.*)", word)[1] for word in words if word.startswith("repos"))
    comments[number] = body
else:
    assert "repos/o/r/issues/7/comments" in words
    comments[str(len(comments) + 1)] = body
json.dump(comments, open(path, "w"))
"""


def test_documentation_describes_all_inputs_of_the_action():
    (told,) = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs/ci.md").read_text(), re.MULTILINE | re.DOTALL)
    (ours,) = [step for step in yaml.safe_load(told)["steps"] if "perfhooks@" in step.get("uses", "")]
    needed = {name for name, given in ACTION["inputs"].items() if given.get("required")}
    assert needed <= set(ours["with"]) <= set(ACTION["inputs"])


def filled(text, known):
    """An expression of the runner with what it stands for."""
    return re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], text)


class Job:
    """One job on a runner: the steps one after the other, until one fails."""

    def __init__(self, folder):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        (self.bin / "gh").write_text(GH)
        (self.bin / "perfhooks").write_text(f'#!/bin/sh\nexec {sys.executable} -m perfhooks "$@"\n')
        for each in self.bin.iterdir():
            each.chmod(0o755)

    def run(self, **given):
        """The exit code of the last step, and what was printed."""
        values = {name: str(told.get("default", "")) for name, told in ACTION["inputs"].items()}
        values |= {"pull-request": "7", "token": "may-write"}
        values |= {name.replace("_", "-"): text for name, text in given.items()}
        outputs, said, code = {}, "", 0
        for step in ACTION["runs"]["steps"]:
            (self.folder / "output").write_text("")
            known = {f"inputs.{name}": value for name, value in values.items()}
            known |= {f"steps.compare.outputs.{name}": value for name, value in outputs.items()}
            own = {name: filled(text, known) for name, text in step["env"].items()}
            files = {"GITHUB_STEP_SUMMARY": "summary", "GITHUB_OUTPUT": "output", "COMMENTS": "comments.json"}
            env = {name: str(self.folder / file) for name, file in files.items()} | own
            env |= {"GITHUB_ACTION_PATH": str(ROOT), "GITHUB_REPOSITORY": "o/r", "RUNNER_TEMP": str(self.folder)}
            env |= {"PATH": f"{self.bin}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
            done = subprocess.run(
                ["sh", "-e", "-c", step["run"]], cwd=self.folder, env=env, capture_output=True, text=True, check=False
            )
            said, code = said + done.stdout + done.stderr, done.returncode
            outputs |= dict(line.split("=", 1) for line in (self.folder / "output").read_text().splitlines())
            if code:
                break
        return code, said

    @property
    def comments(self):
        path = self.folder / "comments.json"
        return list(json.loads(path.read_text()).values()) if path.exists() else []


@pytest.fixture
def job(tmp_path):
    make_run(tmp_path / "base", training(), steps())
    make_run(tmp_path / "slow", training(data=4000), steps(9.0, seed=1))
    make_run(tmp_path / "near", training(), steps(5.1, seed=2))
    return Job(tmp_path)


def test_slower_training_fails_the_job_after_one_comment(job):
    code, said = job.run(base="base", new="slow")
    assert code == 3, said
    (comment,) = job.comments
    assert comment.startswith("<!-- perfhooks compare: perfhooks -->\n### base → slow")
    assert "**Slower: a step takes" in comment
    assert (job.folder / "summary").read_text() in comment
    assert 'id="data"' in (job.folder / "comparison.html").read_text()
    # the next push brings the same comment up to date, and another title has its own
    assert job.run(base="base", new="near")[0] == 0
    (comment,) = job.comments
    assert "### base → near" in comment
    job.run(base="base", new="near", title="of the small model")
    assert len(job.comments) == 2


def test_fail_if_undecided_sets_the_exit_code(job):
    assert job.run(base="base", new="near", by="2%", fail_if_undecided="true")[0] == 4
    assert job.run(base="base", new="near", by="2%")[0] == 0


def test_several_runs_can_be_names_or_patterns(job):
    code, said = job.run(base="base", new="slo* near")
    assert "slow and 1 more" in job.comments[0], said
    assert code in (0, 3)


def test_forks_and_pushes_get_a_summary_instead_of_a_comment(job):
    code, said = job.run(base="base", new="slow", token="reads")
    assert (code, job.comments) == (3, [])
    assert "::warning::perfhooks: the comment could not be written" in said
    assert job.run(base="base", new="slow", pull_request="")[0] == 3
    assert job.comments == []
    assert (job.folder / "summary").read_text().count("### base → slow") == 2


def git(folder, *words):
    own = ("-c", "user.name=a", "-c", "user.email=a@b")
    subprocess.run(["git", *own, *words], cwd=folder, check=True, capture_output=True)


def test_command_is_interleaved_with_that_of_the_target_branch(job):
    """The recipe of the documentation: the branch is fetched, and its worktree runs beside the pull request's."""
    text = (
        f"import runpy, sys\nsys.argv[1:] = ['100000000', 'WORK']\nrunpy.run_path({str(HELD)!r}, run_name='__main__')"
    )
    origin = job.folder / "origin"
    origin.mkdir()
    git(origin, "init", "-q", "-b", "main")
    (origin / "train.py").write_text(text.replace("WORK", "2000"))
    git(origin, "add", ".")
    git(origin, "commit", "-q", "-m", "base")
    git(job.folder, "clone", "-q", str(origin), "checkout")
    job.folder /= "checkout"
    (job.folder / "train.py").write_text(text.replace("WORK", "16000"))
    code, said = job.run(run="train.py", at="main", seconds="3")
    assert code == 3, said
    (comment,) = job.comments
    assert "### `train.py, at FETCH_HEAD` → `train.py`" in comment
    assert "**Slower: " in comment
    assert (job.folder / "summary").read_text() in comment


def test_missing_run_is_an_error_without_a_comment(job):
    code, said = job.run(base="base", new="missing")
    assert (code, job.comments) == (2, [])
    assert "missing does not exist" in said


def test_used_and_declared_inputs_are_equal():
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert set(re.findall(r"\$\{\{ inputs\.([\w-]+) \}\}", text)) == set(ACTION["inputs"])
    for step in ACTION["runs"]["steps"]:
        assert "${{" not in step["run"], "what others write is no part of a script"
        (script,) = re.findall(r"action/\w+\.sh", step["run"]) or [None]
        script_text = (ROOT / script).read_text() if script else step["run"]
        assert set(step["env"]) - {"GH_TOKEN"} <= set(re.findall(r"\b[A-Z][A-Z_]+\b", script_text))
