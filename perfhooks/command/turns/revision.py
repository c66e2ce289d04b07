"""A revision of git beside the working tree, for as long as something runs there."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextlib.contextmanager
def checked_out(revision: str) -> Iterator[tuple[Path, Path]]:
    """Make a worktree of a revision, and remove it afterwards.

    Args:
        revision: As git knows it.

    Yields:
        The folder of the worktree, and that in it which is the current one in the working tree.

    Raises:
        OptionError: There is no such revision, or no repository, or the revision has no such folder.
    """
    top = Path(_git("rev-parse", "--show-toplevel"))
    try:
        commit = _git("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    except OptionError as error:
        raise OptionError(f"git knows no revision {revision!r}") from error
    with tempfile.TemporaryDirectory(prefix="perfhooks-revision-") as folder:
        tree = Path(folder, top.name)
        _git("worktree", "add", "--detach", str(tree), commit)
        try:
            here = tree / Path.cwd().resolve().relative_to(top.resolve())
            if not here.is_dir():
                raise OptionError(f"revision {revision!r} has no folder {here.relative_to(tree)}")
            yield tree, here
        finally:
            _git("worktree", "remove", "--force", str(tree))


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        raise OptionError(f"git cannot be run: {error.strerror}") from error
    if done.returncode:
        raise OptionError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout.strip()
