from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.cli.actions import mirror
from perfhooks.cli.targets import last_run, run_in
from perfhooks.core.errors import PerfhooksError, TraceError
from perfhooks.core.labels import FOREIGN
from perfhooks.run import loose
from perfhooks.run.capture import Capture, Place
from perfhooks.run.finished import FinishedWindow, in_order
from perfhooks.run.folder import Run, places_of
from perfhooks.run.layout import MANIFEST, TRACES
from perfhooks.run.reading import is_plain
from perfhooks.run.remote import is_url

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Source:
    path: Path | str
    window: str = ""
    capture: Capture | None = None
    """Facts of the window; None for a single trace."""

    @property
    def communication(self) -> str | None:
        return None if self.capture is None else self.capture.options.get("communication")

    @property
    def explains(self) -> bool:
        return self.capture is not None and self.capture.explains

    def has(self, option: str) -> bool:
        return self.capture is not None and self.capture.options.get(option) is True

    @property
    def rank(self) -> int:
        return 0 if self.capture is None else self.capture.rank


def find(target: str | None) -> list[Source]:
    """Return traces, sorted by window and rank.

    A target is a trace, its URL, the folder of a run, of a window or of runs (the latest run counts), or any folder
    with traces. Raises a TraceError without traces.
    """
    path = last_run() if target is None else Path(target)
    if target is not None and is_url(target):
        return [Source(target)]
    if not path.exists():
        newest = ""
        with contextlib.suppress(PerfhooksError):
            newest = f"; the newest run is {last_run()}"
        raise TraceError(f"{path} does not exist{newest}")
    if not path.is_dir():
        return [Source(path)]
    run = run_in(path)
    places = places_of(path) if run is None else Run.existing(run).places()
    sources = [source for place in places if (source := _source(place)) is not None]
    if not places:
        sources = _loose(path)
    if not sources:
        missing = "its windows have no trace" if places else f"it is no run and no window, and {loose.lacking(path)}"
        raise TraceError(f"{path} has no trace to show: {missing}")
    return sources


def run_of(target: str | None) -> Path | None:
    path = last_run() if target is None else Path(target)
    if not path.is_dir():
        return None
    run = run_in(path) or (path.parent if (path.parent / MANIFEST).exists() else None)
    return None if run is None else Run.existing(run).folder


def last_window(sources: Sequence[Source], *, need: str | None = None) -> list[Source]:
    """Return the traces of the window that ended last, the lowest rank first.

    If the window was recorded without the option ``need``, for example ``"with_stack"``, return the second window of
    the loop, which records one step with stacks and shapes.
    """
    explaining = [source for source in sources if source.explains]
    last = _ended_last([source for source in sources if not source.explains] or sources)
    if need is None or not explaining or any(source.has(need) for source in last):
        return last
    stage = last[0].capture and last[0].capture.stage
    return _ended_last([each for each in explaining if each.capture and each.capture.stage == stage] or last)


def _ended_last(sources: Sequence[Source]) -> list[Source]:
    windows: dict[str, dict[Place, Capture]] = {}
    for source in sources:
        place = Place(Path(source.window), source.rank)
        windows.setdefault(source.window, {})[place] = source.capture or Capture()
    last = in_order(FinishedWindow(Path(name), captures) for name, captures in windows.items())[-1]
    return [source for source in sources if source.window == last.folder.name]


def _loose(folder: Path) -> list[Source]:
    windows = loose.windows(loose.traces(folder))
    sources = []
    for turn, together in enumerate(windows):
        name = together[0].name if together[0].rank is None else f"{turn + 1} of {len(windows)}"
        for source in together:
            capture = None if source.rank is None else Capture(rank=source.rank, stage=FOREIGN, last=0)
            sources.append(Source(source.path, name, capture))
    return sources


def _source(place: Place) -> Source | None:
    capture = None
    with contextlib.suppress(PerfhooksError):
        capture = place.load()
    path: Path | str | None = place.trace() or next(filter(None, map(mirror.url_of, map(place.artifact, TRACES))), None)
    if path is None and capture is not None and is_plain(place.saved(capture)):
        path = place.saved(capture)
    return (
        None
        if path is None
        else Source(path, place.folder.name, capture or Capture(rank=place.rank, stage=FOREIGN, last=0))
    )
