from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.cli.turns.work_folder import remove_stale_worktrees
from perfhooks.core.errors import OptionError
from perfhooks.core.process import POLL_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.cli.turns.supervisor import Owner
    from perfhooks.cli.turns.work_folder import WorkFolder


def check_out(revision: str, name: str, folder: WorkFolder, owner: Owner) -> tuple[Path, Path]:
    """Make worktrees of a revision and its submodules. Return the first worktree, and the current folder in it."""
    top = Path(git(owner, "rev-parse", "--show-toplevel"))
    try:
        commit = git(owner, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except OptionError as error:
        raise OptionError(f"git has no revision {revision!r}") from error
    tree = folder.path / name / top.name
    tree.parent.mkdir()
    _add(top, commit, tree, folder, owner)
    here = tree / Path.cwd().resolve().relative_to(top.resolve())
    if not here.is_dir():
        raise OptionError(f"revision {revision!r} has no folder {here.relative_to(tree)}")
    return tree, here


def _add(repository: Path, commit: str, tree: Path, folder: WorkFolder, owner: Owner) -> None:
    common = (repository / git(owner, "rev-parse", "--git-common-dir", at=repository)).resolve()
    remove_stale_worktrees(common)
    folder.use_repository(common)
    # hooks of the repository must not run
    git(owner, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", str(tree), commit, at=repository)
    for path, part in _submodules(tree, owner):
        if (repository / path / ".git").exists():
            _add(repository / path, part, tree / path, folder, owner)


def _submodules(tree: Path, owner: Owner) -> Iterator[tuple[str, str]]:
    for line in git(owner, "ls-tree", "-r", "-z", "HEAD", at=tree).split("\0"):
        facts, _, path = line.partition("\t")
        if facts.startswith("160000"):
            yield path, facts.split()[2]


def git(owner: Owner, *words: str, at: Path | None = None) -> str:
    try:
        process = owner.start(
            ["git", *words],
            cwd=at,
            env={**os.environ, "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    except OSError as error:
        raise OptionError(f"git cannot be run: {error.strerror}") from error
    written: tuple[bytes, bytes] | None = None
    while written is None:
        owner.check()
        with contextlib.suppress(subprocess.TimeoutExpired):
            written = process.communicate(timeout=POLL_S)
    if process.returncode:
        command = next(word for word in words if word != "-c" and "=" not in word)
        raise OptionError(f"git {command}: {written[1].decode('utf-8', 'replace').strip()}")
    return os.fsdecode(written[0].removesuffix(b"\n"))
