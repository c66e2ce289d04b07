from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Final

from perfhooks.run.reading import read_bytes

_COMMIT: Final = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


def of_program() -> str:
    """Return the commit of the program's repository, else of the working directory, without starting git.

    Uncommitted changes are not detected, because the detection would read every file.
    """
    program = Path(sys.argv[0] if sys.argv else "")
    try:
        places = [program.resolve().parent, Path.cwd()] if program.is_file() else [Path.cwd()]
        return next(filter(None, map(checked_out, places)), "")
    except (OSError, ValueError, RuntimeError):  # a deleted folder, a link to itself, a NUL in the name
        return ""


def checked_out(folder: Path) -> str:
    """Return the commit of the repository that contains a folder. Source: gitrepository-layout(5)."""
    place = next((parent / ".git" for parent in (folder, *folder.parents) if (parent / ".git").exists()), None)
    if place is None:
        return ""
    if place.is_file():
        place = (place.parent / _text(place).removeprefix("gitdir:").strip()).resolve()
    head = _text(place / "HEAD").strip()
    if not head.startswith("ref:"):
        return _commit(head)
    name = head.removeprefix("ref:").strip()
    shared = place / (_text(place / "commondir").strip() or ".")
    return _commit(_text(place / name)) or _commit(_text(shared / name)) or _packed(shared, name)


def _packed(folder: Path, name: str) -> str:
    lines = (line.split(" ") for line in _text(folder / "packed-refs").splitlines())
    return next((_commit(line[0]) for line in lines if line[1:] == [name]), "")


def _text(path: Path) -> str:
    try:
        return read_bytes(path).decode(errors="replace")
    except OSError:
        return ""


def _commit(text: str) -> str:
    match = _COMMIT.fullmatch(text.strip())
    return match[0] if match else ""
