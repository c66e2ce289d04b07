"""Files for requests to a running job, and for answers of the job.

The client writes ``ID.call.json`` into the folder ``requests``. Each rank answers with its current step in
``ID/rank0.here.json``. The client writes later steps into ``ID.window.json``, so that all ranks profile the same steps
without communication. Each rank answers with ``ID/rank0.json``. The client deletes the files at the end.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import secrets
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeVar

import msgspec

from perfhooks.core.clocks import time
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
"""Maximum files to read per poll. They take 2 ms on a host under load."""
_MAX_SIZE: Final = 1 << 20
"""Maximum bytes of a request. A request with 10^5 ranks has 600 kB."""

State = Literal["accepted", "late", "recorded", "refused", "ended"]
"""``late``: the rank profiles later steps, because the requested steps are over. ``recorded``: the window is saved.
``refused``: the answer has the reason. ``ended``: the loop ended before the window.
"""


class WindowRequest(msgspec.Struct, frozen=True, kw_only=True):
    stage: _Text
    first: Step
    """First step to record, after the warm-up."""
    steps: _Steps
    ranks: tuple[_Count, ...] | None = None
    """Ranks that record the window; None means all ranks that profile."""
    options: dict[str, bool] = {}

    def __post_init__(self) -> None:
        if not set(self.options) <= set(RECORDING):
            raise ValueError(f"options of a request are {', '.join(RECORDING)}, got {list(self.options)[:9]}")


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    stage: _Text
    step: Step
    median_ms: float | None = None
    """Median step time in ms; None after too few steps."""
    is_running: bool = True
    """Whether the loop makes steps. False between two epochs, for example during validation."""


class RankPosition(msgspec.Struct, frozen=True, kw_only=True):
    rank: _Count
    process: Process
    poll: Annotated[float, msgspec.Meta(ge=0, le=3600)]
    loops: tuple[Loop, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    rank: _Count
    state: State
    window: _Text = ""
    first: Step | None = None
    last: Step | None = None
    why: _Text = ""
    """Reason if the request is refused or changed."""


def new_id() -> str:
    """Return a name for a new request. Names sort by time."""
    return f"{time.time_ns():016x}{secrets.token_hex(3)}"


def files(run: Path) -> set[str]:
    try:
        with os.scandir(run / layout.REQUESTS) as entries:
            return {entry.name for entry in itertools.islice(entries, _MOST_FILES) if entry.name.endswith(_ENDINGS)}
    except OSError:
        return set()


def requested(file_names: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Yield name, request and kind of each request, sorted."""
    matches = map(_NAME.fullmatch, sorted(file_names))
    return ((match[0], match["id"], match["kind"]) for match in matches if match)


def names(run: Path) -> list[tuple[str, str, str]]:
    return list(requested(files(run)))


def changed_ns(run: Path, file: str = "") -> int:
    """Return the modification time of the folder or a file in it, by the clock of its disk; 0 if missing."""
    try:
        return (run / layout.REQUESTS / file).lstat().st_mtime_ns
    except OSError:
        return 0


def call(run: Path, name: str) -> None:
    """Ask all ranks for their current step."""
    folder = OwnFolder(run, layout.REQUESTS)
    folder.make_for_owner()
    folder.publish_json(f"{name}.call.json", {})


def ask(run: Path, name: str, window: WindowRequest) -> None:
    OwnFolder(run, layout.REQUESTS).publish_json(f"{name}.window.json", window)


def read_window(run: Path, file: str) -> WindowRequest | None:
    with contextlib.suppress(FileNotFoundError):
        return read_json(layout.below(run / layout.REQUESTS, file), WindowRequest, "a request", _MAX_SIZE)
    return None


def open_windows(run: Path, stage: str) -> list[WindowRequest]:
    windows = []
    for file, _, kind in names(run):
        with contextlib.suppress(PerfhooksError):
            window = read_window(run, file) if kind == "window" else None
            if window is not None and window.stage == stage:
                windows.append(window)
    return windows


def is_open(run: Path, name: str) -> bool:
    return any((run / layout.REQUESTS / f"{name}.{kind}.json").exists() for kind in ("call", "window"))


def write_position(run: Path, name: str, position: RankPosition) -> None:
    _write_answer(run, name, f"rank{position.rank}.here.json", position)


def write_answer(run: Path, name: str, answer: Answer) -> None:
    _write_answer(run, name, f"rank{answer.rank}.json", answer)


def _write_answer(run: Path, name: str, file: str, content: object) -> None:
    if is_open(run, name):
        folder = OwnFolder(run, layout.REQUESTS, name)
        folder.make()
        folder.publish_json(file, content)
        if not is_open(run, name):  # the client has withdrawn the request and deleted its answers
            withdraw(run, name)


def positions(run: Path, name: str) -> dict[int, RankPosition]:
    return {
        position.rank: position for position in _read_answers(run, name, r"rank[0-9]{1,6}\.here\.json", RankPosition)
    }


def answers(run: Path, name: str) -> dict[int, Answer]:
    return {answer.rank: answer for answer in _read_answers(run, name, r"rank[0-9]{1,6}\.json", Answer)}


def _read_answers(run: Path, name: str, pattern: str, kind: type[_T]) -> Iterator[_T]:
    folder = run / layout.REQUESTS / name
    for file in sorted(file for file in _files(folder) if re.fullmatch(pattern, file)):
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            yield read_json(folder / file, kind, "an answer", _MAX_SIZE)


def _files(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 -- names
    except OSError:
        return []


def withdraw(run: Path, name: str) -> None:
    requests_folder, answers_folder = OwnFolder(run, layout.REQUESTS), OwnFolder(run, layout.REQUESTS, name)
    with contextlib.suppress(OSError):
        for kind in ("call", "window"):
            requests_folder.remove(f"{name}.{kind}.json")
        for file in _files(answers_folder.path):
            answers_folder.remove(file)
        answers_folder.delete()
