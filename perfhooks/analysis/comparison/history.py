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
    run: str
    started: str
    """Start of the run in ISO 8601; empty if unknown."""
    revision: str
    step_ms: float
    steps: int
    waited: float | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    place: int
    """Index in ``points`` of the first run after the change."""
    before_ms: float
    after_ms: float


@dataclass(frozen=True)
class Series:
    command: str
    machine: str
    stage: str
    ranks: int
    points: list[Point]

    @property
    def changes(self) -> list[Change]:
        steps = [point.step_ms for point in self.points]
        indices = change_points([math.log(step) for step in steps])
        edges = [0, *indices, len(steps)]
        levels = [float(np.median(steps[first:last])) for first, last in itertools.pairwise(edges)]
        return [
            Change(place=index, before_ms=before, after_ms=after)
            for index, (before, after) in zip(indices, itertools.pairwise(levels), strict=True)
        ]


def read(folder: Path) -> tuple[list[Series], list[str]]:
    """Return the histories of all runs in a folder, and messages about skipped runs."""
    if not folder.is_dir():
        raise PerfhooksError(f"There is no folder {folder}. Pass the folder that contains the runs, for example perf.")
    histories: dict[tuple[str, str, str, int], list[tuple[float, Point]]] = {}
    skipped: list[str] = []
    for path in runs_in(folder):
        try:
            for key, when, point in _read_points(path, skipped):
                histories.setdefault(key, []).append((when, point))
        except PerfhooksError as error:
            skipped.append(str(error))
    if not histories:
        raise PerfhooksError(f"{folder} has no run with {LEAST_STEPS} unprofiled steps")
    series_list = [
        Series(*key, [point for _, point in sorted(points, key=_sort_key)]) for key, points in histories.items()
    ]
    return sorted(series_list, key=lambda series: -len(series.points)), skipped


def runs_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if (path / MANIFEST).exists() and not path.is_symlink()]


def _sort_key(item: tuple[float, Point]) -> tuple[float, str]:
    return item[0], item[1].run


def _read_points(path: Path, skipped: list[str]) -> Iterable[tuple[tuple[str, str, str, int], float, Point]]:
    run = FinishedRun(path)
    manifest, status = run.manifest, Status.read(run.folder, run.rank)
    command = facts.normalize_command(facts.command(manifest.command))
    for stage in run.stages:
        wall = run.steps_of(stage).unrecorded().wall_ms
        if len(wall) < LEAST_STEPS:
            skipped.append(
                f"{path.name} has {words.count(len(wall), 'unprofiled step')} of {stage}; {LEAST_STEPS} are needed"
            )
            continue
        point = Point(
            run=path.name,
            started=manifest.started,
            revision=manifest.revision,
            step_ms=float(np.median(wall)),
            steps=len(wall),
            waited=None if status is None else status.waited,
        )
        yield (command, manifest.machine, stage, manifest.world_size or 1), start_time(manifest, path), point


def start_time(manifest: Manifest, path: Path) -> float:
    """Return the start of a run in seconds; if unknown, the modification time of its manifest."""
    with contextlib.suppress(ValueError):
        return datetime.strptime(manifest.started, "%Y-%m-%dT%H:%M:%S%z").timestamp()
    return (path / MANIFEST).stat().st_mtime


def text(histories: Iterable[Series], skipped: Iterable[str]) -> str:
    lines: list[str] = []
    for series in histories:
        lines += [heading(series), *_format_lines(series), ""]
    lines += [f"skipped: {message}" for message in skipped]
    return "\n".join(map(words.line, lines)).rstrip()


def heading(series: Series) -> str:
    where = f" on {series.machine}" if series.machine else ""
    stage = "" if series.stage == "train" else f", {series.stage}"
    ranks = f", {words.count(series.ranks, 'rank')}" if series.ranks > 1 else ""
    return f"{series.command or 'unknown command'}{stage}{ranks}, {words.count(len(series.points), 'run')}{where}"


def _format_lines(series: Series) -> Iterable[str]:
    longest = max(point.step_ms for point in series.points)
    changes = {change.place: change for change in series.changes}
    width = max(len(point.run) for point in series.points)
    for index, point in enumerate(series.points):
        if index in changes:
            yield f"  {change_sentence(series, changes[index])}"
        bar = "#" * max(round(24 * point.step_ms / longest), 1)
        row = f"{when(point):16}  {point.revision[:9]:9}  {point.run:{width}}  {words.ms(point.step_ms):>8}  {bar}"
        yield f"  {row}{doubt(point) and f'  {doubt(point)}'}"


def when(point: Point) -> str:
    """Return the start of a run to the minute, in the time zone of the host of the run."""
    return point.started[:16].replace("T", " ")


def doubt(point: Point) -> str:
    is_busy = point.waited is not None and point.waited >= BUSY
    return f"(CPU contention, waited {words.share(point.waited or 0.0)})" if is_busy else ""


def change_sentence(series: Series, change: Change) -> str:
    ratio = change.after_ms / change.before_ms
    around = " and ".join(
        f"{point.run} ({point.revision[:9]})" if point.revision else point.run
        for point in series.points[change.place - 1 : change.place + 1]
    )
    word = "Slower" if ratio > 1 else "Faster"
    levels = f"{words.ms(change.before_ms)} before, {words.ms(change.after_ms)} after"
    return f"{word}, {sentences.format_change(ratio)}: {levels}; between {around}."


def data(histories: Iterable[Series], skipped: Iterable[str]) -> dict[str, Any]:
    return {"histories": [_to_plain(series) for series in histories], "left": list(skipped)}


def _to_plain(series: Series) -> dict[str, Any]:
    changes = [{**asdict(change), "sentence": change_sentence(series, change)} for change in series.changes]
    points = [
        {**asdict(point), "when": when(point), "step": words.ms(point.step_ms), "doubt": doubt(point)}
        for point in series.points
    ]
    keys = {"command": series.command, "machine": series.machine, "stage": series.stage, "ranks": series.ranks}
    return {"heading": heading(series), **keys, "points": points, "changes": changes}
