"""File names of a run folder, and the only conversion of names into paths."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

# --- of the folder that holds runs ---

LATEST: Final = "latest"
"""A link to the run that was begun last."""

# --- of a run ---

MANIFEST: Final = "run.json"
"""Facts of the run, see `perfhooks.run.manifest.Manifest`."""
PAGE: Final = "report.html"
"""The page of the run."""
PAGE_DATA: Final = "report.json"
"""The data that the page was made from."""
TRIED: Final = "tried.json"
"""Gains that `perfhooks try` measured."""
PAGE_LOCK: Final = ".page.lock"
"""Held by whoever makes the page."""
PAGE_CACHE: Final = ".page.cache.json"
"""Summaries of earlier windows for the next report."""
MANIFEST_LOCK: Final = ".run.lock"
"""Held by whoever adds to the manifest."""

REQUESTS: Final = "requests"
"""Folder of requests and answers, see `perfhooks.run.live.requests`."""

REQUESTS_LOCK: Final = ".requests.lock"
"""Lock for choosing the steps of a request."""

# --- of a window, after its rank ---

CAPTURE: Final = "capture.json"
"""The facts of the window."""
SHARE: Final = "page.json"
"""A window's share of the page's data."""
TRACES: Final = ("pt.trace.json.gz", "pt.trace.json")
"""The trace, as `ChromeTrace` packs it or not."""
STEPS: Final = "steps.csv"
"""The table of steps."""
LABELS: Final = "labels.csv"
"""The table of labels."""
COLLECTIVES: Final = "collectives.csv"
"""The table of collectives."""
MERGED: Final = "merged.pt.trace.json.gz"
"""The traces of all ranks of a window side by side; it has no rank."""

_RANK: Final = "(?P<rank>0|[1-9][0-9]{0,5})"
_SPOOL: Final = re.compile(rf"\.rank{_RANK}\.(?P<token>\w+)\.spool\.json", re.ASCII)
_RAW_STEPS: Final = re.compile(rf"\.rank{_RANK}\.steps\.[0-9]+\.raw")
_WINDOW: Final = re.compile(r"(?P<stage>.+?)-(?P<first>[0-9]{6,18})(?:-(?P<last>[0-9]{6,18}))?")
_LONGEST: Final = 255
"""Bytes of the longest name that Linux, macOS and Windows take."""


def below(folder: Path, name: str) -> Path:
    """The path of a name that a file or a user gave: one plain name, so that it lies in ``folder`` and not elsewhere.

    Raises:
        PerfhooksError: It is no plain name.
    """
    if (
        name in ("", ".", "..")
        or any(mark in name for mark in "/\\\0")
        or len(name.encode("utf-8", "surrogatepass")) > _LONGEST
    ):
        raise PerfhooksError(f"{name[:_LONGEST]!r} cannot be the name of a file in {folder}")
    return folder / name


# --- the names of a run's files ---


class OfRank:
    """The name of a file of a rank, and the rank of a name.

    Args:
        name: The name, with ``*`` for the rank.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._pattern = re.compile(re.escape(name).replace(r"\*", _RANK))

    def __call__(self, rank: int) -> str:
        """The name of a rank's."""
        return self._name.replace("*", str(rank))

    def ranks(self, names: Iterable[str]) -> dict[int, str]:
        """Which of some names are such, by rank, the lowest first."""
        return dict(sorted((int(match["rank"]), match[0]) for match in map(self._pattern.fullmatch, names) if match))


timeline: Final = OfRank("rank*.timeline.csv")
"""The wall times of all steps of a rank."""
startup: Final = OfRank("rank*.startup.csv")
"""Time before the first step of a rank, sampled by `perfhooks run`."""
status: Final = OfRank("rank*.status.json")
"""State of a rank, written every few seconds."""
processor: Final = OfRank("rank*.processor.csv")
"""CPU time and run-queue wait of the steps of a rank."""
rare: Final = OfRank("rank*.rare.csv")
"""The validations and checkpoints of a rank, each with its time."""
slow_steps: Final = OfRank("rank*.slow.csv")
"""The slow steps of a rank, each with its cause."""
slow_stacks: Final = OfRank("rank*.slow.folded")
"""Folded stacks of the training thread during slow steps, in milliseconds."""
OF_RUN: Final = (timeline, startup, status, processor, rare, slow_steps, slow_stacks)
"""Files of a rank about the whole run."""
worker_log: Final = OfRank("rank*.worker.log")
"""Output of the worker of a rank."""
lock: Final = OfRank(".rank*.lock")
"""Held by whoever finishes windows of a rank."""
mark: Final = OfRank(".rank*.recording")
"""There while a window of a rank is open."""
owner: Final = OfRank(".rank*.process")
"""Which process records as this rank."""
owner_lock: Final = OfRank(".rank*.process.lock")
"""Held while a process becomes that one."""


def raw_steps(rank: int, first: int) -> str:
    """Steps as the loop left them, until they are in the timeline."""
    return f".rank{rank}.steps.{first:012d}.raw"


def window(stage: str, first: int, last: int | None) -> str:
    """The folder of a window: ``train-000012-000014``; ``train-000012`` where no last step was planned."""
    return f"{stage}-{first:06d}" if last is None else f"{stage}-{first:06d}-{last:06d}"


# --- the names of a window's files ---


def artifact(rank: int, name: str) -> str:
    """A file of a rank: ``rank0.steps.csv``."""
    return f"rank{rank}.{name}"


capture: Final = OfRank(f"rank*.{CAPTURE}")
share: Final = OfRank(f"rank*.{SHARE}")
traces: Final = tuple(OfRank(f"rank*.{name}") for name in TRACES)
"""Packed or not."""


def saved_trace(rank: int, token: str) -> str:
    """The trace as a process saved it, until it is finished."""
    return f".rank{rank}.{token}.spool.json"


# --- and back ---


class WindowSteps(NamedTuple):
    """Loop and steps in the name of a window folder."""

    stage: str
    first: int
    last: int | None


def steps_of(folder: str) -> WindowSteps | None:
    """Parse the name of a window folder; None for other names."""
    match = _WINDOW.fullmatch(folder)
    return match and WindowSteps(match["stage"], int(match["first"]), int(match["last"]) if match["last"] else None)


def ranks_of_run(names: Iterable[str]) -> set[int]:
    """Return the ranks that have left files in a run."""
    listed = list(names)
    return {rank for kind in (timeline, worker_log, mark) for rank in kind.ranks(listed)}


def ranks_of_window(names: Iterable[str]) -> set[int]:
    """The ranks that left their facts of a window, or a saved trace."""
    listed = list(names)
    return {*capture.ranks(listed), *(saved[0] for saved in map(saved_trace_of, listed) if saved)}


def rank_of_raw_steps(name: str) -> int | None:
    """The rank of steps that are not in a timeline yet."""
    match = _RAW_STEPS.fullmatch(name)
    return match and int(match["rank"])


def saved_trace_of(name: str) -> tuple[int, str] | None:
    """The rank and the token of a saved trace."""
    match = _SPOOL.fullmatch(name)
    return match and (int(match["rank"]), match["token"])


class Listing(NamedTuple):
    """The names in the folder of a run, looked at once: of 10,000 windows each look costs."""

    windows: tuple[str, ...]
    """The folders, but that of requests; links are left out, as they may lead anywhere."""
    files: tuple[str, ...]
    """All else."""

    @classmethod
    def of(cls, run: Path) -> Listing:
        """Return the layout of a run folder."""
        windows: list[str] = []
        files: list[str] = []
        with os.scandir(run) as entries:
            for entry in entries:
                is_window = entry.is_dir(follow_symlinks=False) and entry.name != REQUESTS
                (windows if is_window else files).append(entry.name)
        return cls(tuple(windows), tuple(files))
