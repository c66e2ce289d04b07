"""All runs of a command, in the order in which they began: what a step took in each, and where that changed."""

from __future__ import annotations

import contextlib
import itertools
import math
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from perfhooks.analysis.comparison import facts, sentences
from perfhooks.analysis.comparison.change_points import change_points
from perfhooks.core import words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.statistics import LEAST_STEPS
from perfhooks.run.circumstances import BUSY
from perfhooks.run.finished import FinishedRun
from perfhooks.run.layout import MANIFEST
from perfhooks.run.live.status import Status

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from perfhooks.run.manifest import Manifest


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run."""

    run: str
    started: str
    """When, in ISO 8601; empty where it does not say."""
    revision: str
    step_ms: float
    """The median of the steps that count and nobody recorded."""
    steps: int
    """How many those are."""
    waited: float | None = None
    """What share of its time the thread that steps waited for a processor."""


@dataclass(frozen=True, kw_only=True)
class Change:
    """A new level."""

    place: int
    """Of its first run."""
    before_ms: float
    """The median of the runs of the level before."""
    after_ms: float


@dataclass(frozen=True)
class Series:
    """The runs of one command on one machine."""

    command: str
    machine: str
    stage: str
    points: list[Point]

    @property
    def changes(self) -> list[Change]:
        """Where the step became longer or shorter, and stayed so."""
        steps = [point.step_ms for point in self.points]
        places = change_points([math.log(step) for step in steps])
        edges = [0, *places, len(steps)]
        levels = [float(np.median(steps[first:last])) for first, last in itertools.pairwise(edges)]
        return [
            Change(place=place, before_ms=before, after_ms=after)
            for place, (before, after) in zip(places, itertools.pairwise(levels), strict=True)
        ]


def read(folder: Path) -> tuple[list[Series], list[str]]:
    """The histories of all runs in a folder, the longest first; and what was left out, and why.

    Args:
        folder: One that holds runs.

    Raises:
        PerfhooksError: It holds none that can be drawn.
    """
    if not folder.is_dir():
        raise PerfhooksError(f"There is no folder {folder}: say which folder holds the runs, such as perf.")
    histories: dict[tuple[str, str, str], list[tuple[float, Point]]] = {}
    left: list[str] = []
    for path in runs_in(folder):
        try:
            for key, when, point in _points(path, left):
                histories.setdefault(key, []).append((when, point))
        except PerfhooksError as error:
            left.append(str(error))
    if not histories:
        raise PerfhooksError(f"{folder} has no run with {LEAST_STEPS} steps that nobody recorded")
    told = [Series(*key, [point for _, point in sorted(found, key=_order)]) for key, found in histories.items()]
    return sorted(told, key=lambda series: -len(series.points)), left


def runs_in(folder: Path) -> list[Path]:
    """The runs that a folder holds."""
    return [each for each in sorted(folder.iterdir()) if (each / MANIFEST).exists() and not each.is_symlink()]


def _order(found: tuple[float, Point]) -> tuple[float, str]:
    return found[0], found[1].run


def _points(path: Path, left: list[str]) -> Iterable[tuple[tuple[str, str, str], float, Point]]:
    run = FinishedRun(path)
    manifest, status = run.manifest, Status.read(run.folder, run.rank)
    command = facts.asked(facts.command(manifest.command))
    for stage in run.stages:
        wall = run.steps_of(stage).unrecorded().wall_ms
        if len(wall) < LEAST_STEPS:
            left.append(f"{path.name} has {len(wall)} steps of {stage} that nobody recorded; {LEAST_STEPS} are needed")
            continue
        point = Point(
            run=path.name,
            started=manifest.started,
            revision=manifest.revision,
            step_ms=float(np.median(wall)),
            steps=len(wall),
            waited=None if status is None else status.waited,
        )
        yield (command, manifest.machine, stage), began(manifest, path), point


def began(manifest: Manifest, path: Path) -> float:
    """When a run began, in seconds; where it does not say, when its folder was last changed."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(manifest.started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return (path / MANIFEST).stat().st_mtime


_BAR = 24
"""Letters of the longest bar; all begin at zero."""


def text(histories: Iterable[Series], left: Iterable[str]) -> str:
    """The histories as lines for a terminal."""
    lines: list[str] = []
    for series in histories:
        lines += [heading(series), *_lines(series), ""]
    lines += [f"left out: {each}" for each in left]
    return "\n".join(map(words.line, lines)).rstrip()


def heading(series: Series) -> str:
    """What a series is of."""
    where = f" on {series.machine}" if series.machine else ""
    stage = "" if series.stage == "train" else f", {series.stage}"
    return f"{series.command or 'unknown command'}{stage}, {words.count(len(series.points), 'run')}{where}"


def _lines(series: Series) -> Iterable[str]:
    longest = max(point.step_ms for point in series.points)
    changes = {change.place: change for change in series.changes}
    wide = max(len(point.run) for point in series.points)
    for place, point in enumerate(series.points):
        if place in changes:
            yield f"  {change_sentence(series, changes[place])}"
        bar = "#" * max(round(_BAR * point.step_ms / longest), 1)
        row = f"{when(point):16}  {point.revision[:9]:9}  {point.run:{wide}}  {words.ms(point.step_ms):>8}  {bar}"
        yield f"  {row}{doubt(point) and f'  {doubt(point)}'}"


def when(point: Point) -> str:
    """When a run began, to the minute, by the clock of its machine."""
    return point.started[:16].replace("T", " ")


def doubt(point: Point) -> str:
    """Why its step may be no measure of the program."""
    is_busy = point.waited is not None and point.waited >= BUSY
    return f"(busy machine, waited {words.share(point.waited or 0.0)})" if is_busy else ""


def change_sentence(series: Series, change: Change) -> str:
    """A change, and the runs around it."""
    ratio = change.after_ms / change.before_ms
    around = " and ".join(
        f"{point.run} ({point.revision[:9]})" if point.revision else point.run
        for point in series.points[change.place - 1 : change.place + 1]
    )
    word = "Slower" if ratio > 1 else "Faster"
    levels = f"{words.ms(change.before_ms)} before, {words.ms(change.after_ms)} after"
    return f"{word}, {sentences.changed(ratio)}: {levels}; between {around}."


def data(histories: Iterable[Series], left: Iterable[str]) -> dict[str, Any]:
    """The histories as plain data: of each ``heading``, ``points`` and ``changes``."""
    return {"histories": [_plain(series) for series in histories], "left": list(left)}


def _plain(series: Series) -> dict[str, Any]:
    changes = [{**asdict(change), "sentence": change_sentence(series, change)} for change in series.changes]
    points = [
        {**asdict(point), "when": when(point), "step": words.ms(point.step_ms), "doubt": doubt(point)}
        for point in series.points
    ]
    facts_ = {"command": series.command, "machine": series.machine, "stage": series.stage}
    return {"heading": heading(series), **facts_, "points": points, "changes": changes}
