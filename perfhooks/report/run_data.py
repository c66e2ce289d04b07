"""The data of a whole run: what its windows and ranks left behind, merged into what one page shows."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

import perfhooks.ranks
import perfhooks.trace
from perfhooks.errors import PerfhooksError
from perfhooks.ranks.known import Known
from perfhooks.report import json_values, slow_rows, startup_rows, window_data
from perfhooks.report.data import FORMAT, read_share, read_tried
from perfhooks.run import layout
from perfhooks.run.capture import Capture, Place
from perfhooks.run.folder import Run, places_of
from perfhooks.run.layout import SHARE
from perfhooks.run.listing import Listing
from perfhooks.run.timeline import sample

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from perfhooks.run.manifest import Manifest

_BUDGET: Final = 5 << 19
"""So many bytes of windows' data go into a page, and what ranks say together; what else does not fit is there as a row
of numbers."""
_BUDGET_RANKS: Final = 5 << 17
"""So many of these at most are what ranks say together."""
_WINDOWS: Final = 256
"""Windows on a page at most, the latest ones: more are no choice that a person makes from a list."""
_RANK_WINDOWS: Final = 16_384
"""Windows of single ranks on a page at most: 16 windows of 1,024 ranks."""
_MISSING: Final = 60
_UNSHOWN: Final = ("steps", "own", "worst")
"""Of what `perfhooks.ranks.gather` says of a window: more than the page shows."""
_LINES: Final = 40
"""Of what came before the first step: what takes less is seconds in all."""
_SAMPLES: Final = 400
"""Points of the clock of all steps, for each stage."""
_TIMELINE: Final = {
    "stage": pl.String,
    "step": pl.Int64,
    "phase": pl.String,
    "wall_ms": pl.Float64,
    "data_ms": pl.Float64,
}
"""The columns of the clock of all steps."""
_COST: Final = ("stop_s", "save_s", "free_s", "trace_bytes", "idle_step_ms", "recorded_step_ms")

_log = logging.getLogger("perfhooks")


@dataclass(frozen=True)
class _Finished:
    """One rank's window, as far as it was read."""

    place: Place
    capture: Capture

    @property
    def part(self) -> Path:
        return self.place.artifact(SHARE)


def gather(folder: Path) -> dict[str, Any]:
    """Merge what a run's windows and ranks left behind.

    Args:
        folder: A run folder.

    Returns:
        Plain data in the form of `perfhooks.report.data.RunData`: ``run`` (who, when, where), the latest ``windows`` in
        the order of their end, each with its ``ranks`` (facts and means of every rank) and ``details`` (what
        `window_data.reduce` made, by rank, as far as there is room: of each window the lowest and the slowest rank
        first, late windows before early ones), ``timeline``, and ``slow`` where steps were, see `slow_rows`; of several
        ranks also ``ranks_together``, see `_together`, and ``findings``, those about the run and not about one window
        of one rank.

    Raises:
        PerfhooksError: It is no run folder.
    """
    run = Run.existing(folder)
    manifest, seen = run.manifest(), Listing.of(folder)
    latest, count = _latest(run, seen, manifest), len(seen.windows)
    finished = list(_read(place for places in latest.values() for place in places))
    windows: dict[str, list[_Finished]] = {}
    for each in sorted(finished, key=lambda each: each.capture.time):
        windows.setdefault(each.place.folder.name, []).append(each)
    of_ranks = _of_ranks(run, list(latest), seen)
    shown = _chosen(windows, _BUDGET - len(msgspec.json.encode(of_ranks)))
    lowest = min((each.place.rank for each in finished), default=0)
    timeline = _timeline(run.timeline(lowest))
    return {
        "format": FORMAT,
        "title": folder.resolve().name,
        "run": _run_facts(manifest),
        "windows": [_window(name, ranks, shown) for name, ranks in windows.items()],
        "lost": [f"{place.folder.name} of rank {place.rank}" for place in run.died_recording(seen)],
        "timeline": _thinned(timeline),
        **({} if count == len(latest) else {"windows_count": count}),
        **json_values.facts({"slow": slow_rows.gather(run.folder, _count(timeline), seen)}),
        **json_values.facts({"tried": _tried(run.folder / layout.TRIED)}),
        **json_values.facts({"startup": _startup(run.folder, lowest)}),
        **of_ranks,
    }


def from_trace(path: Path, *, communication: str | None = None) -> dict[str, Any]:
    """The same of one trace file, wherever it came from.

    Args:
        path: A Kineto trace, packed or not.
        communication: Kernels that communicate, see `perfhooks.trace.read`.

    Returns:
        What `gather` gives, of one window.

    Raises:
        TraceError: It is no trace.
    """
    trace = perfhooks.trace.read(path, communication=communication)
    # last, whatever it is, says that no step was cut short
    details = window_data.reduce(Capture(rank=trace.rank or 0, stage="trace", last=0), trace)
    numbers = [step for step in details.get("steps", {}).get("rows", {}).get("step", []) if step is not None]
    first, last = min(numbers, default=0), max(numbers, default=0)
    capture = Capture(rank=trace.rank or 0, stage="trace", first=first, last=last, reached=last)
    mean = details.get("steps", {}).get("mean", {})
    shown = {"ranks": [_rank(capture, mean)], "details": {str(capture.rank): details}}
    return {
        "format": FORMAT,
        "title": path.name,
        "run": {},
        "windows": [_facts(path.name, capture) | ({} if numbers else {"first": None, "last": None}) | shown],
        "lost": [],
        "timeline": {},
    }


def _read(places: Iterable[Place]) -> Iterator[_Finished]:
    for place in places:
        try:
            capture = place.load()
        except PerfhooksError as error:
            _log.debug("%s is not on the page: %s", place.folder, error)
            continue
        if capture.state == "done":
            yield _Finished(place, capture)


def _chosen(windows: dict[str, list[_Finished]], room: int) -> dict[Place, dict[str, Any]]:
    """The parts that go into the page: in each round one rank of each window, late windows first, until it is full."""
    queues = [_by_interest(ranks) for ranks in reversed(windows.values())]
    found: dict[Place, dict[str, Any]] = {}
    left = room
    for turn in range(max(map(len, queues), default=0)):
        for each in [queue[turn] for queue in queues if turn < len(queue)]:
            try:
                size = each.part.stat().st_size
                if size <= left:
                    found[each.place] = msgspec.to_builtins(read_share(each.part))
                    left -= size
            except FileNotFoundError:
                continue  # none was asked for
            except (OSError, ValueError, PerfhooksError) as error:
                _log.warning("it is not on the page: %s", error)
    return found


def _by_interest(ranks: list[_Finished]) -> list[_Finished]:
    """The lowest rank, the slowest, then all others."""
    ordered = sorted(ranks, key=lambda each: each.place.rank)
    slowest = max(ordered, key=lambda each: each.capture.summary.get("wall_ms", 0.0))
    first = [ordered[0], *([slowest] if slowest is not ordered[0] else [])]
    return first + [each for each in ordered if each not in first]


def _window(name: str, finished: list[_Finished], shown: dict[Place, dict[str, Any]]) -> dict[str, Any]:
    ordered = sorted(finished, key=lambda each: each.place.rank)
    details = {str(each.place.rank): shown[each.place] for each in ordered if each.place in shown}
    ranks = [_rank(each.capture, each.capture.summary, brief=each.place not in shown) for each in ordered]
    return _facts(name, ordered[0].capture) | {"ranks": ranks, "details": details}


def _facts(name: str, capture: Capture) -> dict[str, Any]:
    """What all ranks of a window have in common."""
    last = capture.reached if capture.last is None else capture.last
    return {"name": name, "stage": capture.stage, "first": capture.first, "last": last, "time": capture.time}


def _rank(capture: Capture, mean: dict[str, float], *, brief: bool = False) -> dict[str, Any]:
    """What one rank says of a window: its facts, and the means of its step table; ranks can be thousands."""
    cost = {} if brief else {name: getattr(capture.cost, name) for name in _COST}
    return {
        "rank": capture.rank,
        "mean": {name: json_values.number(value) for name, value in mean.items()},
        **json_values.facts(
            {
                "headline": capture.headline,
                "partial": capture.partial,
                "notes": [json_values.text(note, 1000) for note in capture.notes],
                "cost": json_values.facts(cost),
                "options": {} if brief else capture.options,
                "versions": {} if brief else capture.versions,
            }
        ),
    }


def _run_facts(manifest: Manifest) -> dict[str, Any]:
    wanted = ("started", "host", "world_size", "command", "versions", "schedule", "options", "steps_by")
    return json_values.facts(msgspec.to_builtins({name: getattr(manifest, name) for name in wanted}))


def _latest(run: Run, seen: Listing, manifest: Manifest) -> dict[Path, list[Place]]:
    """The latest windows with their ranks: a page costs the same however long a run is."""
    found: dict[Path, list[Place]] = {}
    left = _RANK_WINDOWS
    for folder in run.latest_windows(_WINDOWS, seen, manifest.windows):
        if found and left <= 0:
            break
        with contextlib.suppress(FileNotFoundError):  # an old one has just been deleted
            found[folder] = places_of(folder)
            left -= len(found[folder])
    return dict(sorted(found.items()))


def _of_ranks(run: Run, windows: list[Path], seen: Listing) -> dict[str, Any]:
    """What several ranks say together, and what to do about it; nothing of one rank of which nothing is missing."""
    try:
        known = Known.read(run.folder)
        told = perfhooks.ranks.gather(run.folder, windows, known, seen)
        known.keep(run.folder, [folder.name for folder in windows])
        named = {rank for entry in told["missing"] for rank in entry["ranks"]}
        if len(named.union(told["ranks"])) < 2:  # noqa: PLR2004 -- several
            return {}
        return {"ranks_together": _together(told), "findings": perfhooks.ranks.findings(told)}
    except Exception as error:  # noqa: BLE001 -- the page is worth having without it
        _log.debug("the page lacks what the ranks say together", exc_info=True)
        return {"ranks_together": {"problem": json_values.text(f"{type(error).__name__}: {error}")}}


def _together(told: dict[str, Any]) -> dict[str, Any]:
    """What `perfhooks.ranks.gather` told, as far as the page shows it and there is room: late windows first.

    Args:
        told: What it gave.

    Returns:
        ``world_size``, ``ranks`` (how many), ``windows`` by name, ``missing``, and ``missing_count``, that of all.
    """
    windows: dict[str, Any] = {}
    left = _BUDGET_RANKS
    for each in reversed(told["windows"]):
        shown = {name: value for name, value in each.items() if name not in _UNSHOWN}
        left -= len(msgspec.json.encode(shown))
        if windows and left < 0:
            break
        windows[each["name"]] = shown
    return {
        "world_size": told["world_size"],
        "ranks": len(told["ranks"]),
        "windows": windows,
        "missing": [entry | {"text": json_values.text(entry["text"], 1000)} for entry in told["missing"][:_MISSING]],
        "missing_count": len(told["missing"]),
    }


def _startup(run: Path, rank: int) -> json_values.Columns:
    """What the process did before its first step, what took longest first; empty where nobody looked."""
    table = startup_rows.read(run / layout.startup(rank))
    return json_values.columns(table.sort("seconds", descending=True), _LINES) if table.height else {}


def _tried(path: Path) -> list[dict[str, Any]] | None:
    """What `perfhooks try` measured; None where nobody tried anything."""
    try:
        return [msgspec.to_builtins(each) for each in read_tried(path)]
    except FileNotFoundError:
        return None
    except PerfhooksError as error:
        _log.warning("it is not on the page: %s", error)
        return None


def _timeline(path: Path) -> pl.DataFrame:
    """The clock of steps of a rank, as far as it can be read."""
    try:
        text = sample(path)
        table = pl.read_csv(text, has_header=False, schema=_TIMELINE, ignore_errors=True, truncate_ragged_lines=True)
    except (OSError, ValueError, pl.exceptions.PolarsError):
        return pl.DataFrame(schema=_TIMELINE)
    return table.filter(pl.col("step") >= 0, pl.col("wall_ms").is_finite(), pl.col("phase").is_not_null())


def _count(table: pl.DataFrame) -> int | None:
    """How many steps that are, each number once; None where none is known."""
    spans = table.group_by("stage").agg(pl.col("step").max() - pl.col("step").min() + 1)
    return sum(spans["step"].to_list()) or None


def _thinned(table: pl.DataFrame) -> dict[str, json_values.Columns]:
    """The median wall time of stretches of all steps, by stage; recorded steps apart from others."""
    table = table.filter(pl.col("step") > 0)
    found = {}
    for (stage,), rows in table.group_by("stage", maintain_order=True):
        span = rows.select(pl.col("step").max() - pl.col("step").min()).item() + 1
        width = max(-(-span // _SAMPLES), 1)
        recorded = pl.col("phase") == "active"
        thinned = (
            rows.with_columns((pl.col("step") // width * width).alias("from"), recorded.alias("recorded"))
            .group_by("from", "recorded")
            .agg(pl.col("wall_ms").median(), pl.col("data_ms").median())
            .sort("from")
        )
        found[str(stage)] = json_values.columns(thinned.rename({"from": "step"}))
    return found
