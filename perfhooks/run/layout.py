"""What the files of a run folder are called, and the one place that turns a name into a path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.errors import PerfhooksError

if TYPE_CHECKING:
    from pathlib import Path

# --- of the folder that holds runs ---

LATEST: Final = "latest"
"""A link to the run that was begun last."""

# --- of a run ---

MANIFEST: Final = "run.json"
"""Who, when, where: see `perfhooks.run.manifest.Manifest`."""
PAGE: Final = "report.html"
"""The page of the run."""
PAGE_DATA: Final = "report.json"
"""The data that the page was made from."""
TRIED: Final = "tried.json"
"""What `perfhooks try` measured of the findings' advice."""
PAGE_LOCK: Final = ".page.lock"
"""Held by whoever makes the page."""
PAGE_CACHE: Final = ".page.cache.json"
"""What was read of earlier windows for the page, so that the next page need not read it again."""
MANIFEST_LOCK: Final = ".run.lock"
"""Held by whoever adds to the manifest."""

REQUESTS: Final = "requests"
"""The folder of what a running job is asked for, and of what it answers; see `perfhooks.watching.requests`."""

REQUESTS_LOCK: Final = ".requests.lock"
"""Held while somebody chooses the steps of a request."""

# --- of a window, after its rank ---

CAPTURE: Final = "capture.json"
"""The facts of the window."""
SHARE: Final = "page.json"
"""A window's share of the page's data."""
TRACES: Final = ("pt.trace.json.gz", "pt.trace.json")
"""The trace, as `ChromeTrace` packs it or not."""
STEPS: Final = "steps.csv"
"""The table of steps."""
COLLECTIVES: Final = "collectives.csv"
"""The table of collectives."""
MERGED: Final = "merged.pt.trace.json.gz"
"""The traces of all ranks of a window side by side; it has no rank."""

_RANK_DIGITS: Final = 6
_RANK: Final = rf"rank(?P<rank>0|[1-9][0-9]{{0,{_RANK_DIGITS - 1}}})"
_OF_RUN: Final = re.compile(rf"\.?{_RANK}\.(?:timeline\.csv|worker\.log|recording)")
_OF_WINDOW: Final = re.compile(rf"\.?{_RANK}\.(?:capture|\w+\.spool)\.json", re.ASCII)
_TIMELINE: Final = re.compile(rf"{_RANK}\.timeline\.csv")
_SHARE: Final = re.compile(rf"{_RANK}\.page\.json")
_TRACE: Final = re.compile(rf"{_RANK}\.pt\.trace\.json(?:\.gz)?")
_SPOOL: Final = re.compile(rf"\.{_RANK}\.(?P<token>\w+)\.spool\.json", re.ASCII)
_MARK: Final = re.compile(rf"\.{_RANK}\.recording")
_RAW_STEPS: Final = re.compile(rf"\.{_RANK}\.steps\.[0-9]+\.npz")
_OWNER: Final = re.compile(rf"\.{_RANK}\.process")
_SLOW: Final = re.compile(rf"{_RANK}\.slow\.csv")
_STATUS: Final = re.compile(rf"{_RANK}\.status\.json")
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


def timeline(rank: int) -> str:
    """The wall times of all steps of a rank."""
    return f"rank{rank}.timeline.csv"


def startup(rank: int) -> str:
    """What a rank's process did before its first step, where `perfhooks run` looked."""
    return f"rank{rank}.startup.csv"


def status(rank: int) -> str:
    """Where a rank is, as it says itself every few seconds."""
    return f"rank{rank}.status.json"


def slow_steps(rank: int) -> str:
    """The slow steps of a rank, each with its cause."""
    return f"rank{rank}.slow.csv"


def slow_stacks(rank: int) -> str:
    """Where the training thread was during slow steps, as folded stacks in milliseconds."""
    return f"rank{rank}.slow.folded"


def worker_log(rank: int) -> str:
    """What the worker of a rank prints."""
    return f"rank{rank}.worker.log"


def lock(rank: int) -> str:
    """Held by whoever finishes windows of a rank."""
    return f".rank{rank}.lock"


def mark(rank: int) -> str:
    """There while a window of a rank is open."""
    return f".rank{rank}.recording"


def owner(rank: int) -> str:
    """Which process records as this rank."""
    return f".rank{rank}.process"


def owner_lock(rank: int) -> str:
    """Held while a process becomes that one."""
    return f".rank{rank}.process.lock"


def raw_steps(rank: int, first: int) -> str:
    """Steps as the loop left them, until they are in the timeline."""
    return f".rank{rank}.steps.{first:012d}.npz"


def window(stage: str, first: int, last: int | None) -> str:
    """The folder of a window: ``train-000012-000014``; ``train-000012`` where no last step was planned."""
    return f"{stage}-{first:06d}" if last is None else f"{stage}-{first:06d}-{last:06d}"


# --- the names of a window's files ---


def artifact(rank: int, name: str) -> str:
    """A file of a rank: ``rank0.steps.csv``."""
    return f"rank{rank}.{name}"


def saved_trace(rank: int, token: str) -> str:
    """The trace as a process saved it, until it is finished."""
    return f".rank{rank}.{token}.spool.json"


# --- and back ---


class WindowSteps(NamedTuple):
    """What the name of a window's folder says."""

    stage: str
    first: int
    last: int | None


def steps_of(folder: str) -> WindowSteps | None:
    """What the name of a window's folder says; None if it is that of no window."""
    found = _WINDOW.fullmatch(folder)
    return found and WindowSteps(found["stage"], int(found["first"]), int(found["last"]) if found["last"] else None)


def rank_of_run_file(name: str) -> int | None:
    """The rank that left a sign of having been asked to record."""
    return _rank(_OF_RUN, name)


def rank_of_window_file(name: str) -> int | None:
    """The rank that left its facts of a window, or a saved trace."""
    return _rank(_OF_WINDOW, name)


def rank_of_timeline(name: str) -> int | None:
    """The rank whose steps those are."""
    return _rank(_TIMELINE, name)


def rank_of_share(name: str) -> int | None:
    """The rank of a share of the page."""
    return _rank(_SHARE, name)


def rank_of_trace(name: str) -> int | None:
    """The rank of a finished trace."""
    return _rank(_TRACE, name)


def rank_of_mark(name: str) -> int | None:
    """The rank of a mark."""
    return _rank(_MARK, name)


def rank_of_raw_steps(name: str) -> int | None:
    """The rank of steps that are not in a timeline yet."""
    return _rank(_RAW_STEPS, name)


def rank_of_owner(name: str) -> int | None:
    """The rank as which a process records, or recorded."""
    return _rank(_OWNER, name)


def rank_of_slow_steps(name: str) -> int | None:
    """The rank that had slow steps."""
    return _rank(_SLOW, name)


def rank_of_status(name: str) -> int | None:
    """The rank that says where it is."""
    return _rank(_STATUS, name)


def saved_trace_of(name: str) -> tuple[int, str] | None:
    """The rank and the token of a saved trace."""
    found = _SPOOL.fullmatch(name)
    return found and (int(found["rank"]), found["token"])


def _rank(pattern: re.Pattern[str], name: str) -> int | None:
    found = pattern.fullmatch(name)
    return found and int(found["rank"])
