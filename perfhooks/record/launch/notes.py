"""Notes between the processes of a command: recorded runs, or the reason why nothing was recorded.

A process writes its own files only, and reads the files of all processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import tempfile
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core import process
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

_NAME: Final = re.compile(r"(\d+)-(\d+)-[0-9a-f]+\.json")


class Note(NamedTuple):
    pid: int
    parent: int
    run: str = ""
    is_speaker: bool = True
    why: str = ""
    """Reason to print if no process of the command recorded a window."""
    guess: str = ""
    """Assumed reason, printed only if the command did not fail."""


_own: dict[str, Note] = {}
"""Notes of this process, in memory, because the folder may be on another host or a full disk."""


def leave(folder: str, **facts: Any) -> None:
    note = Note(os.getpid(), process.parent(), **facts)
    if note.run:
        _own[note.run] = note
    name = f"{note.pid}-{note.parent}-{_key(note.run)}.json"
    if folder and Path(folder).is_dir():
        with contextlib.suppress(OSError):  # a full disk must not cost the recording; see `takes_files`
            Path(folder, name).write_text(json.dumps(facts), encoding="utf-8")


def own() -> list[Note]:
    return [note for note in _own.values() if note.pid == os.getpid()]


def read(folder: str) -> list[Note]:
    notes = []
    for path in sorted(Path(folder).glob("*.json")) if folder else ():
        name, content = _NAME.fullmatch(path.name), _facts(path)
        if name is not None:
            fields = {field: content[field] for field in ("run", "why", "guess") if isinstance(content.get(field), str)}
            is_speaker = content.get("is_speaker") is not False
            notes.append(Note(int(name[1]), int(name[2]), is_speaker=is_speaker, **fields))
    return notes


def runs(notes: Iterable[Note]) -> list[str]:
    return list(dict.fromkeys(note.run for note in notes if note.run and note.is_speaker))


def claim(folder: str, run: str) -> bool:
    return mark(folder, f"{_key(run)}.printed")


def mark(folder: str, name: str) -> bool:
    try:
        os.close(os.open(Path(folder, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    except OSError:  # without the folder no other process can report the run
        return True
    return True


def delete(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def takes_files(folder: str) -> bool:
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"{}")
    except OSError:
        return False
    return True


def _key(run: str) -> str:
    return f"{zlib.crc32(run.encode(errors='replace')):x}"


def _facts(path: Path) -> dict[str, Any]:
    try:
        facts = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}
