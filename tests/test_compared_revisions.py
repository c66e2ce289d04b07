"""`perfhooks compare --run-at`: the worktree of a revision, and its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.process

LIMIT_S = 300.0


def git(*words, at):
    command = ["git", "-c", "user.name=n", "-c", "user.email=e", "-c", "protocol.file.allow=always", *words]
    return os.fsdecode(subprocess.run(command, cwd=at, check=True, capture_output=True).stdout)


@pytest.fixture
def place():
    with tempfile.TemporaryDirectory(prefix="revision-") as folder:
        (Path(folder) / "tmp").mkdir()
        yield Path(folder)


def repository(folder, **files):
    folder.mkdir()
    git("init", "-q", at=folder)
    return commit(folder, **files)


def commit(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    git("add", ".", at=folder)
    git("commit", "-qm", "text", at=folder)
    return folder


def start(place, *words, at):
    command = [sys.executable, "-m", "perfhooks", "compare", *words]
    environment = os.environ | {"TMPDIR": str(place / "tmp")}
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    return subprocess.Popen(command, cwd=at, env=environment, **streams)


def compared(place, at):
    """What both sides have printed before too few steps."""
    process = start(place, "--run-at", "HEAD", "print.py", "--", "print.py", at=at)
    output = os.fsdecode(process.communicate(timeout=LIMIT_S)[0])
    assert_nothing_is_left(place, at)
    return output


PRINTS = """
import os, sys, time
import part
path = os.environ["TMPDIR"] + "/../printed"
with open(path, "a") as file:
    file.write(f"{part.VALUE}\\n")
while open(path).read().count("\\n") < 2:
    time.sleep(0.01)
sys.exit(3)
"""


def assert_nothing_is_left(place, at):
    left = [path for path in (place / "tmp").iterdir() if path.name.startswith("perfhooks-running")]
    assert left == []
    assert len(git("worktree", "list", at=at).splitlines()) == 1
    assert not (at / ".git" / "worktrees").exists()


def printed(place):
    return sorted((place / "printed").read_text().split())


def test_dirty_tree_stays_unchanged(place):
    """Changes in the index, in the tree, and files that git does not know."""
    work = repository(place / "work", print=PRINTS, part="VALUE = 1", other="")
    (work / "part.py").write_text("VALUE = 2")
    (work / "other.py").write_text("x = 1")
    git("add", "other.py", at=work)
    (work / "unknown.py").write_text("")
    before = git("status", "--porcelain", at=work)
    compared(place, work)
    assert printed(place) == ["1", "2"]
    assert git("status", "--porcelain", at=work).replace("?? __pycache__/\n", "") == before


def test_revision_has_the_submodules_of_the_working_tree(place):
    """At the commits of the revision, and without a download; also a submodule of a submodule."""
    inner = repository(place / "inner", part="VALUE = 'inner-1'")
    outer = repository(place / "outer", part="from .inner.part import VALUE")
    git("submodule", "add", "-q", str(inner), "inner", at=outer)
    commit(outer)
    work = repository(place / "work", print=PRINTS.replace("import part", "from outer import part"))
    git("submodule", "add", "-q", str(outer), "outer", at=work)
    git("submodule", "update", "-q", "--init", "--recursive", at=work)
    commit(work)
    for folder in (inner, outer):  # none is needed any more
        folder.rename(folder.with_name(f"{folder.name}-moved"))
    deepest = work / "outer" / "inner"
    commit(deepest, part="VALUE = 'inner-2'")
    assert "exit code 3" in compared(place, work)
    assert printed(place) == ["inner-1", "inner-2"]
    for folder in (work / "outer", deepest):
        assert len(git("worktree", "list", at=folder).splitlines()) == 1


def test_submodule_without_the_commit_is_one_line(place):
    part = repository(place / "part", part="VALUE = 1")
    work = repository(place / "work", print=PRINTS)
    git("submodule", "add", "-q", str(part), "part", at=work)
    commit(work)
    git("update-index", "--cacheinfo", f"160000,{'1' * 40},part", at=work)
    git("commit", "-qm", "no such commit", at=work)
    output = compared(place, work)
    assert "git worktree: " in output
    assert "Traceback" not in output


@pytest.mark.skipif(sys.platform != "linux", reason="paths are bytes on Linux")
def test_path_that_is_not_utf_8(place):
    """Of the repository, and of a folder in it."""
    work = repository(place / os.fsdecode(b"w\xffork"), other="")
    folder = work / os.fsdecode(b"f\xff")
    folder.mkdir()
    commit(folder, print=PRINTS, part="VALUE = 1")
    process = start(place, "--run-at", "HEAD", "print.py", "--", "print.py", "--format", "json", at=folder)
    output = process.communicate(timeout=LIMIT_S)[0]
    assert process.returncode == 2, output
    assert printed(place) == ["1", "1"]
    assert_nothing_is_left(place, work)


HANGS = "[ -e '{gate}' ] && {{ touch '{there}'; sleep 1000; }}; cat"


@pytest.mark.nightly
@pytest.mark.parametrize("how", ["INT", "KILL", "KILL supervisor", "KILL both"])
def test_kill_while_git_makes_the_worktree(place, how):
    """A filter of git holds the checkout."""
    work = repository(place / "work", train="")
    (work / ".gitattributes").write_text("*.py filter=slow\n")
    gate, there = place / "gate", place / "there"
    git("config", "filter.slow.smudge", HANGS.format(gate=gate, there=there), at=work)
    commit(work)
    gate.touch()
    process = start(place, "--run-at", "HEAD", "train.py", "--", "train.py", at=work)
    deadline = time.monotonic() + LIMIT_S
    while not there.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    perfhooks = psutil.Process(process.pid)
    below = perfhooks.children(recursive=True)
    (supervisor,) = perfhooks.children()
    if how == "KILL both":
        supervisor.suspend()
    if how == "KILL supervisor":
        supervisor.kill()
    else:
        process.send_signal(signal.SIGINT if how == "INT" else signal.SIGKILL)
    if how == "KILL both":
        supervisor.kill()
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == {"INT": 130, "KILL supervisor": 2}.get(how, -signal.SIGKILL)
    _, alive = psutil.wait_procs(below, timeout=LIMIT_S)
    if how == "KILL both":
        for orphan in alive:
            orphan.kill()
    else:
        assert alive == []
    gate.unlink()
    if how == "KILL both":
        assert (
            b"made no steps"
            in start(place, "--run-at", "HEAD", "train.py", "--", "train.py", at=work).communicate(timeout=LIMIT_S)[0]
        )
    assert_nothing_is_left(place, work)
