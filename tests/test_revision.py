"""The commit that a run holds is the one that git says."""

import subprocess
import sys

import pytest

from perfhooks.run import revision

pytestmark = pytest.mark.process


def git(folder, *words):
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    done = subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    folder = tmp_path / "repository"
    (folder / "inner").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    commit(folder)
    return folder


def commit(folder):
    git(folder, "commit", "-q", "--allow-empty", "-m", "x")


STATES = {
    "a branch": [],
    "packed": [("pack-refs", "--all")],
    "a commit and no branch": [("checkout", "-q", "--detach")],
    "a branch with a folder in its name": [("checkout", "-q", "-b", "feature/x")],
    "packed, and then one more": [("pack-refs", "--all"), ("commit", "-q", "--allow-empty", "-m", "y")],
}


@pytest.mark.parametrize("state", STATES.values(), ids=STATES)
def test_commit_is_that_of_the_git_checkout(repository, state):
    for words in state:
        git(repository, *words)
    assert revision.checked_out(repository / "inner") == git(repository, "rev-parse", "HEAD")


def test_a_worktree_has_a_commit_of_its_own(repository, tmp_path):
    git(repository, "worktree", "add", "-q", "-b", "other", str(tmp_path / "tree"))
    commit(tmp_path / "tree")
    assert revision.checked_out(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD")
    assert revision.checked_out(tmp_path / "tree") != revision.checked_out(repository)
    git(repository, "pack-refs", "--all")
    assert revision.checked_out(tmp_path / "tree") == git(tmp_path / "tree", "rev-parse", "HEAD")


def test_folder_without_a_commit_has_no_revision(tmp_path):
    git(tmp_path, "init", "-q")
    assert revision.checked_out(tmp_path) == ""
    (tmp_path / ".git" / "HEAD").write_text("ref: ../../etc/passwd\n")
    assert revision.checked_out(tmp_path) == ""


def test_repository_of_the_program_precedes_the_current_folder(repository, tmp_path, monkeypatch):
    program = repository / "train.py"
    program.write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(program)])
    assert revision.of_program() == git(repository, "rev-parse", "HEAD")
    monkeypatch.chdir(repository)
    (tmp_path / "alone.py").write_text("")
    for words in (["-c"], [str(tmp_path / "alone.py")]):
        monkeypatch.setattr(sys, "argv", words)
        assert revision.of_program() == git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert revision.of_program() == git(repository, "rev-parse", "HEAD")
    monkeypatch.setattr(sys, "argv", ["\0"])
    assert revision.of_program() in ("", git(repository, "rev-parse", "HEAD"))
