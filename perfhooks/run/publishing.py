"""Files that have their name only when they are whole, and what they may be called."""

from __future__ import annotations

import contextlib
import re
import secrets
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def publish(path: Path) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is whole, and vanishes when writing it fails."""
    draft = draft_of(path)
    try:
        with draft.open("xb") as file:
            yield file
        draft.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def draft_of(path: Path) -> Path:
    """A name nobody else takes: nodes that share a folder may have equal host names and process numbers."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}.tmp")


def publish_json(path: Path, data: object) -> None:
    """Write ``data`` as indented JSON under its final name, whole or not at all."""
    with publish(path) as file:
        file.write(msgspec.json.format(encoded(data), indent=1))


def encoded(data: object) -> bytes:
    """Data as JSON. Half a character, as Python makes of a path that is not UTF-8, is written as what it stands for."""
    try:
        return msgspec.json.encode(data, order="sorted")
    except UnicodeEncodeError:
        return msgspec.json.encode(_writable(msgspec.to_builtins(data)), order="sorted")


def _writable(data: Any) -> Any:
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode()
    if isinstance(data, dict):
        return {_writable(key): _writable(value) for key, value in data.items()}
    return [_writable(value) for value in data] if isinstance(data, list | tuple) else data


def is_whole_json(path: Path) -> bool:
    """Whether a file that should be a JSON object ends like one: Kineto says nothing of a disk that is full."""
    try:
        with path.open("rb") as file:
            file.seek(max(path.stat().st_size - 100, 0))
            return file.read().rstrip().endswith(b"}")
    except OSError:
        return False


def is_newer(path: Path, other: Path) -> bool:
    """Whether one file is there, and was written after the other or with it."""
    try:
        return path.stat().st_mtime_ns >= other.stat().st_mtime_ns
    except FileNotFoundError:
        return False


def shown(path: Path) -> Path:
    """A path as a person would type it: relative to the working directory if it is in there."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


_LONGEST: Final = 120
"""Characters of a name made of a text: with steps, rank and draft it stays below the 255 bytes of file systems."""


def file_name(text: str) -> str:
    """``text`` as the name of a file or folder anywhere: letters, digits, dot, dash and underscore."""
    name = re.sub(r"[^\w.-]+", "-", text).encode("utf-8", "replace")[:_LONGEST].decode("utf-8", "ignore")
    return name.strip(".-") or "run"
