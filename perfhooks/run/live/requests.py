"""The files by which a running job is asked for a window, and answers.

Whoever asks puts two files into the folder ``requests`` of the run, one after the other. ``ID.call.json`` asks where
everybody is; each rank answers with ``ID/rank0.here.json``. ``ID.window.json`` then names steps that lie ahead of
all of them, so that all record the same ones without a word to each other; each rank answers with ``ID/rank0.json``. A
file has its name only when it is whole. Whoever asked takes the files away again.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
import time
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec

from perfhooks.core.errors import PerfhooksError
from perfhooks.core.options import MOST_STEPS, RECORDING
from perfhooks.run import layout
from perfhooks.run.capture import Step
from perfhooks.run.liveness import Process
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import read_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_T = TypeVar("_T")

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]
_Steps = Annotated[int, msgspec.Meta(ge=1, le=MOST_STEPS)]
_Text = Annotated[str, msgspec.Meta(max_length=400)]

_NAME: Final = re.compile(r"(?P<id>[0-9a-z]{8,40})\.(?P<kind>call|window)\.json")
_ENDINGS: Final = (".call.json", ".window.json")
_MOST_FILES: Final = 2500
"""In the folder, whatever they are called, that a look goes through: 2 ms on a busy machine."""
_LARGEST: Final = 1 << 20
"""Bytes of a request or an answer: one that names 10^5 ranks has 600 kB."""

State = Literal["accepted", "late", "recorded", "refused", "ended"]
"""``accepted``: it will record the steps that were named; ``late``: it records others, since those were over;
``recorded``: the window is saved; ``refused``: it records none, and says why; ``ended``: its loop ended before."""


class WindowRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Steps to be recorded."""

    stage: _Text
    """Of which loop."""
    first: Step
    """The first step to be recorded; its warm-up is before it."""
    steps: _Steps
    """How many."""
    ranks: tuple[_Count, ...] | None = None
    """By which ranks; None is all that record."""
    options: dict[str, bool] = {}
    """What is recorded on top of what the training's own options say, of `perfhooks.core.options.RECORDING`."""

    def __post_init__(self) -> None:
        if not set(self.options) <= set(RECORDING):
            raise ValueError(f"a request takes {', '.join(RECORDING)}, got {list(self.options)[:9]}")


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """Where one loop of a rank is."""

    stage: _Text
    step: Step
    """The step that goes on."""
    median_ms: float | None = None
    """What a step took lately; None where too few have ended."""
    is_running: bool = True
    """Whether it steps; otherwise it is between two passes, as validation is while training goes on."""


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank answers to a call."""

    rank: _Count
    process: Process
    poll: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    """Seconds between two of its looks at the folder."""
    loops: tuple[Loop, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a rank makes of the window that it was asked for."""

    rank: _Count
    state: State
    window: _Text = ""
    """The name of the window's folder."""
    first: Step | None = None
    """The first step that is recorded."""
    last: Step | None = None
    why: _Text = ""
    """Why not, or why not as asked."""


def new_id() -> str:
    """The name of a request; later ones sort behind earlier ones."""
    return f"{time.time_ns():016x}{secrets.token_hex(3)}"


def files(run: Path) -> set[str]:
    """The names in the folder that end as those of requests."""
    try:
        with os.scandir(run / layout.REQUESTS) as entries:
            return {entry.name for entry in itertools.islice(entries, _MOST_FILES) if entry.name.endswith(_ENDINGS)}
    except OSError:
        return set()


def requested(found: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Those of some names that are requests, with the request and the kind of each, in the order of the requests."""
    matches = map(_NAME.fullmatch, sorted(found))
    return ((match[0], match["id"], match["kind"]) for match in matches if match)


def names(run: Path) -> list[tuple[str, str, str]]:
    """All requests that lie in the folder."""
    return list(requested(files(run)))


def changed_ns(run: Path, file: str = "") -> int:
    """When the folder, or a file in it, was changed last, by the clock of its disk; 0 where it is not there."""
    try:
        return (run / layout.REQUESTS / file).lstat().st_mtime_ns
    except OSError:
        return 0


def call(run: Path, name: str) -> None:
    """Ask all ranks where they are.

    Raises:
        OSError: The folder cannot be written to.
    """
    folder = OwnFolder(run, layout.REQUESTS)
    folder.make_for_owner()
    folder.publish_json(f"{name}.call.json", {})


def ask(run: Path, name: str, window: WindowRequest) -> None:
    """Ask for a window."""
    OwnFolder(run, layout.REQUESTS).publish_json(f"{name}.window.json", window)


def read_window(run: Path, file: str) -> WindowRequest | None:
    """What was asked for; None where it is gone.

    Raises:
        PerfhooksError: It is no request, or asks for more than a request may.
    """
    with contextlib.suppress(FileNotFoundError):
        return read_json(layout.below(run / layout.REQUESTS, file), WindowRequest, "a request", _LARGEST)
    return None


def outstanding(run: Path, stage: str) -> list[WindowRequest]:
    """The windows of a loop that were asked for, by whomever."""
    found = []
    for file, _, kind in names(run):
        with contextlib.suppress(PerfhooksError):
            window = read_window(run, file) if kind == "window" else None
            if window is not None and window.stage == stage:
                found.append(window)
    return found


def is_asked(run: Path, name: str) -> bool:
    """Whether a request still stands: nobody makes files for one that was taken back."""
    return any((run / layout.REQUESTS / f"{name}.{kind}.json").exists() for kind in ("call", "window"))


def say_here(run: Path, name: str, here: Here) -> None:
    """Answer a call."""
    _say(run, name, f"rank{here.rank}.here.json", here)


def say(run: Path, name: str, answer: Answer) -> None:
    """Answer a request for a window; a later answer takes the place of an earlier one."""
    _say(run, name, f"rank{answer.rank}.json", answer)


def _say(run: Path, name: str, file: str, said: object) -> None:
    if is_asked(run, name):
        folder = OwnFolder(run, layout.REQUESTS, name)
        folder.make()
        folder.publish_json(file, said)
        if not is_asked(run, name):  # meanwhile it was taken back, with the answers that there were
            take_back(run, name)


def heard_here(run: Path, name: str) -> dict[int, Here]:
    """Who answered a call."""
    return {here.rank: here for here in _heard(run, name, r"rank[0-9]{1,6}\.here\.json", Here)}


def heard(run: Path, name: str) -> dict[int, Answer]:
    """Who answered a request for a window."""
    return {answer.rank: answer for answer in _heard(run, name, r"rank[0-9]{1,6}\.json", Answer)}


def _heard(run: Path, name: str, pattern: str, kind: type[_T]) -> Iterator[_T]:
    folder = run / layout.REQUESTS / name
    for file in sorted(file for file in _files(folder) if re.fullmatch(pattern, file)):
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            yield read_json(folder / file, kind, "an answer", _LARGEST)


def _files(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- names
    except OSError:
        return []


def take_back(run: Path, name: str) -> None:
    """Take a request and its answers away."""
    asked, answered = OwnFolder(run, layout.REQUESTS), OwnFolder(run, layout.REQUESTS, name)
    with contextlib.suppress(OSError):
        for kind in ("call", "window"):
            asked.remove(f"{name}.{kind}.json")
        for file in _files(answered.path):
            answered.remove(file)
        answered.delete()
