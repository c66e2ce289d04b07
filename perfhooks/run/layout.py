"""File names of a run folder, and the only conversion of names into paths."""

from __future__ import annotations

import functools
import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# of the folder that holds runs

LATEST: Final = "latest"

# of a run

MANIFEST: Final = "run.json"
PAGE: Final = "report.html"
PAGE_DATA: Final = "report.json"
FINDINGS: Final = "findings.json"
TRIED: Final = "tried.json"
TUNED: Final = "tuned.json"
TUNED_PATCH: Final = "tuned.patch"
PAGE_LOCK: Final = ".page.lock"
PAGE_CACHE: Final = ".page.cache.json"
MANIFEST_LOCK: Final = ".run.lock"

REQUESTS: Final = "requests"

REQUESTS_LOCK: Final = ".requests.lock"

# of a window, after its rank

CAPTURE: Final = "capture.json"
SHARE: Final = "page.json"
TRACES: Final = ("pt.trace.json.gz", "pt.trace.json")
STEPS: Final = "steps.csv"
LABELS: Final = "labels.csv"
COLLECTIVES: Final = "collectives.csv"
MERGED: Final = "merged.pt.trace.json.gz"

_RANK: Final = "(?P<rank>0|[1-9][0-9]{0,5})"
_SPOOL: Final = re.compile(rf"\.rank{_RANK}\.(?P<token>\w+)\.spool\.json", re.ASCII)
_RAW_STEPS: Final = re.compile(rf"\.rank{_RANK}\.steps\.[0-9]+\.raw")
_WINDOW: Final = re.compile(r"(?P<stage>.+?)-(?P<first>[0-9]{6,18})(?:-(?P<last>[0-9]{6,18}))?")
_LONGEST: Final = 255
"""Maximum bytes of a name on Linux, macOS and Windows."""
MOST_RANKS: Final = 1_000_000
"""Maximum number of ranks, ten times the largest jobs. The limit bounds the memory for untrusted files."""


def below(folder: Path, name: str) -> Path:
    """Return the path of a plain name in ``folder``. Raise PerfhooksError if the name could lead out of the folder."""
    if (
        name in ("", ".", "..")
        or any(mark in name for mark in "/\\\0")
        or len(name.encode("utf-8", "surrogatepass")) > _LONGEST
    ):
        raise PerfhooksError(f"{name[:_LONGEST]!r} cannot be the name of a file in {folder}")
    return folder / name


# the names of a run's files


class OfRank:
    """The name of a file of a rank. ``name`` has ``*`` in place of the rank."""

    def __init__(self, name: str) -> None:
        self._name = name

    @functools.cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile(re.escape(self._name).replace(r"\*", _RANK))

    def __call__(self, rank: int) -> str:
        return self._name.replace("*", str(rank))

    def ranks(self, names: Iterable[str]) -> dict[int, str]:
        return dict(sorted((int(match["rank"]), match[0]) for match in map(self._pattern.fullmatch, names) if match))


timeline: Final = OfRank("rank*.timeline.csv")
startup: Final = OfRank("rank*.startup.csv")
status: Final = OfRank("rank*.status.json")
processor: Final = OfRank("rank*.processor.csv")
rare: Final = OfRank("rank*.rare.csv")
slow_steps: Final = OfRank("rank*.slow.csv")
slow_stacks: Final = OfRank("rank*.slow.folded")
OF_RUN: Final = (timeline, startup, status, processor, rare, slow_steps, slow_stacks)
worker_log: Final = OfRank("rank*.worker.log")
lock: Final = OfRank(".rank*.lock")
mark: Final = OfRank(".rank*.recording")
owner: Final = OfRank(".rank*.process")
owner_lock: Final = OfRank(".rank*.process.lock")


def raw_steps(rank: int, first: int) -> str:
    """Return the file of steps that are not in the timeline yet."""
    return f".rank{rank}.steps.{first:012d}.raw"


def window(stage: str, first: int, last: int | None) -> str:
    """Return for example ``train-000012-000014``, or ``train-000012`` without a planned last step."""
    return f"{stage}-{first:06d}" if last is None else f"{stage}-{first:06d}-{last:06d}"


# the names of a window's files


def artifact(rank: int, name: str) -> str:
    return f"rank{rank}.{name}"


capture: Final = OfRank(f"rank*.{CAPTURE}")
share: Final = OfRank(f"rank*.{SHARE}")
traces: Final = tuple(OfRank(f"rank*.{name}") for name in TRACES)


def saved_trace(rank: int, token: str) -> str:
    return f".rank{rank}.{token}.spool.json"


# parsers


class PlannedSteps(NamedTuple):
    stage: str
    first: int
    last: int | None


def steps_of(folder: str) -> PlannedSteps | None:
    match = _WINDOW.fullmatch(folder)
    return match and PlannedSteps(match["stage"], int(match["first"]), int(match["last"]) if match["last"] else None)


def ranks_of_run(names: Iterable[str]) -> set[int]:
    listed = list(names)
    return {rank for kind in (timeline, worker_log, mark) for rank in kind.ranks(listed)}


def ranks_of_window(names: Iterable[str]) -> set[int]:
    listed = list(names)
    return {*capture.ranks(listed), *(saved[0] for saved in map(saved_trace_of, listed) if saved)}


def rank_of_raw_steps(name: str) -> int | None:
    match = _RAW_STEPS.fullmatch(name)
    return match and int(match["rank"])


def saved_trace_of(name: str) -> tuple[int, str] | None:
    match = _SPOOL.fullmatch(name)
    return match and (int(match["rank"]), match["token"])


class Listing(NamedTuple):
    """The names in a run folder, read once because a run may have 10,000 windows."""

    windows: tuple[str, ...]
    """Names of the window folders, without symbolic links."""
    files: tuple[str, ...]

    @classmethod
    def of(cls, run: Path) -> Listing:
        windows: list[str] = []
        files: list[str] = []
        with os.scandir(run) as entries:
            for entry in entries:
                is_window = entry.is_dir(follow_symlinks=False) and entry.name != REQUESTS
                (windows if is_window else files).append(entry.name)
        return cls(tuple(windows), tuple(files))
