from __future__ import annotations

import logging
import platform
import secrets
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core import words
from perfhooks.core.clocks import time
from perfhooks.core.errors import OnError, OptionError
from perfhooks.core.guard import guard, logger
from perfhooks.record.loop.limits.run_opening import RunOpening
from perfhooks.record.loop.tasks import QUEUE, Tasks
from perfhooks.record.loop.worker import can_start
from perfhooks.record.watch.counters import Queueing
from perfhooks.report import handlers
from perfhooks.report.finishing.messages import FinishWindow, UpdateReport, WriteSteps
from perfhooks.report.handlers import Handler
from perfhooks.report.handlers.permit import Permit
from perfhooks.run import layout, rare_work
from perfhooks.run.capture import EXPLAINS, Capture, Cost, Place
from perfhooks.run.circumstances import Circumstances
from perfhooks.run.compilation import Compilation
from perfhooks.run.folder import Run
from perfhooks.run.installation import Installation
from perfhooks.run.liveness import began_s, boot
from perfhooks.run.manifest import versions
from perfhooks.run.publishing import publish, shown
from perfhooks.run.steps import FEWEST_FIRST
from perfhooks.run.timeline import own_work_s
from perfhooks.trace.reading.packing import plain_size

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.record.loop.like_torch.results import RecordedWindow
    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.timeline import Aside, Rows

HandlerLike = str | Mapping[str, Any] | Handler | Callable[..., object]

DEFAULT: Final = "default"
"""Handler name for all handlers whose files the recording options allow."""

_AUTOMATIC: Final = ("", "slow", EXPLAINS)
"""Origins of windows that no person and no program requested, see `perfhooks.run.capture.Capture.request`."""
_FEW_STEPS: Final = 2048
"""Maximum number of step times that the training writes, in about 1 ms. If there are more, the worker process writes
them.
"""


class _Saved(NamedTuple):
    path: Path
    seconds: float
    bytes: int


class Handover:
    """Saves recorded windows and queues them for the worker process.

    The run folder is the queue: windows in state ``spooled``. ``perfhooks report`` finishes windows that the worker has
    not finished.
    """

    def __init__(
        self,
        entries: HandlerLike | Sequence[HandlerLike] | None,
        options: Mapping[str, Any],
        *,
        stage: str,
        background: bool = False,
        keep_windows: int | None = None,
        on_error: OnError = "warn",
    ) -> None:
        self._entries, self._all_options = DEFAULT if entries is None else entries, options
        self.makes_everything = entries in (None, DEFAULT, [DEFAULT])
        self.recipes, self.calls = _split(_with_defaults(self._entries, options))
        self.places: list[Place] = []
        self.listeners: list[Callable[[Capture, Place], object]] = []
        self.when_saved: list[Callable[..., object]] = []
        self.tasks = Tasks(self._on_finished, on_error)
        self.options = {name: value for name, value in options.items() if isinstance(value, bool | int | str)}
        self._stage = stage
        self._background = background
        self._keep_windows = keep_windows
        self._on_error = on_error
        self._run: Run | None = None
        self._opening: RunOpening | None = None
        self._queueing = Queueing()
        self._is_page_old = False
        self._has_lost_steps = False
        self.waited_s = 0.0
        self.is_loud = True
        self.is_summed_up = False
        """Whether `perfhooks run` prints a summary. If so, the log names only windows and the report."""
        self._is_leaving = False
        self.framework = ""
        self.first_step = 0

    @property
    def run(self) -> Run | None:
        if self._opening is not None:
            self._opening.wait()
            self._opening = None
        return self._run

    def open(self, run: Run | None, *, starts_worker: bool = True) -> None:
        self._run = run
        self.tasks.open(self._worker_log(run), starts_worker=starts_worker)

    def open_meanwhile(self, act: Callable[[], object]) -> None:
        self._opening = RunOpening(act)

    def _worker_log(self, run: Run | None) -> Path | None:
        if run is None or not self._background:
            return None
        if not can_start():
            logger.info(
                "no worker process starts, because %r is no Python interpreter: the training makes the files itself",
                sys.executable,
            )
            self._background = False
            return None
        return run.folder / layout.worker_log(run.rank)

    @property
    def has_files(self) -> bool:
        return bool(self.places) or self._is_page_old

    def move(self, run: Run | None) -> None:
        """Move an empty run to another folder; write no files for None."""
        self._run = run
        self.tasks.move(self._worker_log(run))

    @property
    def is_full(self) -> bool:
        return self.tasks.windows_left >= QUEUE

    def find_place(self, window: RecordedWindow) -> Place | None:
        """Return the folder of a window.

        The folder name contains the scheduled steps, because a single rank may shorten its window.
        """
        last = window.planned.last + window.shortened if window.planned else None
        return None if self.run is None else self.run.place(self._stage, window.first, last)

    def report_open(self, window: RecordedWindow | None) -> None:
        if self.run is not None:
            place = None if window is None else self.find_place(window)
            self.run.enter_window(None if place is None else place.folder.name)

    def save(self, window: RecordedWindow, *, write: bool = True, release: Callable[[], None] | None) -> int | None:
        """Save a window and queue it for the worker. Return the trace size in bytes; None if nothing was saved."""
        place = self.find_place(window) if write else None
        if place is not None and not window.ready:
            self._save_failure(window, place)
            return None
        token = secrets.token_hex(4)
        saved = None if place is None else self._save(window, place, token)
        try:
            for call in self.calls:
                with guard(f"handler {getattr(call, '__qualname__', call)!r}", self._on_error):
                    call(window)
        finally:  # a callable may end the training
            freed_s = _timed(release) if release is not None else 0.0
            if place is not None and saved is not None:
                self._enqueue(self._make_capture(window, place.rank, token), place, saved, freed_s)
        return None if saved is None else saved.bytes

    def _enqueue(self, facts: Capture, place: Place, saved: _Saved, freed_s: float) -> None:
        with guard(f"finishing {place.folder.name}", self._on_error):
            cost = replace(facts.cost, save_s=saved.seconds, free_s=freed_s, trace_bytes=saved.bytes)
            self.waited_s = cost.stop_s + cost.save_s + cost.free_s
            spool_path = None if saved.path.parent == place.folder else str(saved.path)
            place.save(replace(facts, cost=cost, spool=spool_path))
            for listen in self.when_saved:
                listen(place.run, is_speaker=self.is_loud)
            self._submit(place, facts.request)

    def _save(self, window: RecordedWindow, place: Place, token: str) -> _Saved | None:
        with guard(f"saving the trace of {place.folder.name}", self._on_error):
            spool, name = Run.of(place).spool(place), layout.saved_trace(place.rank, token)
            spool.make()
            with spool.lent() as folder:
                seconds = _timed(lambda: window.save(folder / name))
                return _Saved(spool.path / name, seconds, plain_size(folder / name))
        return None

    def _save_failure(self, window: RecordedWindow, place: Place) -> None:
        logger.warning("%s has no trace: %s", place.folder.name, "; ".join(window.notes))
        with guard(f"saving the failure of {place.folder.name}", self._on_error):
            place.save(replace(self._make_capture(window, place.rank), state="done"))

    def _make_capture(self, window: RecordedWindow, rank: int, token: str = "") -> Capture:
        request, installation = window.request.asked if window.request else None, Installation.current()
        more = {} if request is None else dict(request.options)
        recipes = _split(_with_defaults(self._entries, {**self._all_options, **more}))[0] if more else self.recipes
        return Capture(
            rank=rank,
            node=platform.node(),
            boot=boot(),
            stage=self._stage,
            first=window.first,
            last=window.planned.last if window.planned else None,
            reached=window.reached,
            starting_steps=max(self.first_step + FEWEST_FIRST - window.first, 0),
            partial=window.partial,
            state="spooled",
            token=token,
            handlers=recipes,
            keep_windows=self._keep_windows,
            request="" if request is None else request.name or request.by,
            notes=tuple(window.notes),
            cost=Cost(stop_s=window.stop_s),
            options={**self.options, **more},
            versions=versions(),
            installation=installation,
            circumstances=Circumstances.current(
                queued=self._queueing.since_last(),
                loader=window.loader,
                workers=window.loader_workers,
                unseen_workers=window.unseen_workers,
                framework=self.framework,
                is_launched=self.is_summed_up,
            ),
            compilation=Compilation.current(installation, window.began),
            began=began_s(),
            time=window.ended or time.time(),
            own_work=own_work_s(window.began, window.ended or time.time()),
        )

    def _submit(self, place: Place, request: str) -> None:
        if request != EXPLAINS:
            self.places.append(place)
        self._is_page_old = False
        if self._background:
            task = FinishWindow(str(place.folder), place.rank, self._permit)
            self.tasks.send(task, is_requested=request not in _AUTOMATIC)
        else:
            self._finished(place, _finisher().finish(place, self._permit))

    @property
    def _permit(self) -> Permit:
        """The handlers and storage that the worker may use, and not those that files of the run name."""
        return Permit(handlers=self.recipes, remote=None if self.run is None else self.run.remote)

    def write_timeline(self, loop: WatchedLoop) -> None:
        """Write the steps so far. After a failure no further steps are written."""
        with loop.timeline.taking:
            rare, rows = loop.timeline.take_rare(), loop.timeline.rows()
            if not self._has_lost_steps:
                self._has_lost_steps = True
                with guard("writing the timeline", self._on_error):
                    self._is_page_old |= loop.wrote_steps
                    self._write_steps(rows)
                    self._write_rare(loop.stage, rare)
                    loop.wrote_steps = self._has_lost_steps = False

    def _write_steps(self, rows: Rows) -> None:
        run = self.run
        if run is None or not len(rows.numbers):
            return
        self._is_page_old = True
        timeline = run.timeline(run.rank)
        if self.tasks.worker is None or (len(rows.numbers) <= _FEW_STEPS and not self.tasks.has_steps_left):
            rows.append_to(timeline)
            return
        raw = run.raw_steps(run.rank, int(rows.numbers[0]))
        with publish(raw) as file:
            rows.save(file)
        self.tasks.send(WriteSteps(str(raw), str(timeline)))

    def _write_rare(self, stage: str, rare: Sequence[Aside]) -> None:
        if self.run is not None and rare:
            self._is_page_old = True
            rare_work.append(self.run.folder / layout.rare(self.run.rank), stage, rare)

    def drop_steps(self, loop: WatchedLoop) -> None:
        with loop.timeline.taking:
            self._has_lost_steps = True

    def update_report(self) -> None:
        if not self.places or not self._is_page_old:
            return
        self._is_page_old, place = False, self.places[-1]
        if not self._background:
            _finisher().update_report(place, self._permit)
        else:
            self.tasks.send(UpdateReport(str(place.folder), place.rank, self._permit))

    def _on_finished(self, place: Place) -> None:
        if self._keep_windows is None or place.capture_file.exists():
            self._finished(place, place.load())

    def _finished(self, place: Place, capture: Capture) -> None:
        for note in capture.notes:
            logger.log(logging.DEBUG if capture.explains else logging.WARNING, "%s: %s", place.folder.name, note)
        if capture.explains:
            return
        page = place.folder.parent / layout.PAGE
        is_in_summary = self.is_summed_up and self._is_leaving
        level = logging.INFO if self.is_loud and not is_in_summary else logging.DEBUG
        logger.log(
            level,
            "%s%s -> %s",
            "" if capture.stage == "train" else f"{capture.stage}: ",
            (not self.is_summed_up and capture.line)
            or f"{'a part of ' * capture.is_part}{words.steps(capture.first, capture.end)} recorded",
            shown(page if page.exists() else place.folder),
        )
        for listen in self.listeners:
            with guard(f"calling {getattr(listen, '__qualname__', listen)!r} for {place.folder}", self._on_error):
                listen(capture, place)

    def leave(self, timeout: float) -> bool:
        """Return whether all files are complete. The worker writes missing files after the end of the training."""
        self._is_leaving = True
        is_complete = self.tasks.leave(timeout, is_loud=self.is_loud)
        if not is_complete and not self.is_summed_up and self.places:
            logger.info("report is still being written: %s", shown(self.places[-1].run / layout.PAGE))
        return is_complete

    def abandon(self) -> None:
        self.tasks.abandon()
        self._opening = self._run = None


def _finisher() -> Any:
    from perfhooks.report.finishing import finish

    return finish


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _with_defaults(entries: HandlerLike | Sequence[HandlerLike], options: Mapping[str, Any]) -> list[HandlerLike]:
    entries = list(entries) if isinstance(entries, Sequence) and not isinstance(entries, str) else [entries]
    defaults = handlers.by_default(options)
    lists = [defaults if isinstance(entry, str) and entry == DEFAULT else [entry] for entry in entries]
    return [handler for handlers_ in lists for handler in handlers_]


def _split(entries: Sequence[HandlerLike]) -> tuple[tuple[dict[str, Any], ...], tuple[Callable[..., object], ...]]:
    recipes, calls = [], []
    for handler in entries:
        if isinstance(handler, str | Mapping):
            recipes.append(handlers.recipe(handler))
        elif isinstance(handler, Handler) and not isinstance(handler, type):
            recipes.append(handlers.spec(handler))
        elif callable(handler) and not isinstance(handler, type):
            calls.append(handler)
        else:
            raise OptionError(
                "on_trace_ready must be a handler's name, a mapping with its type, a handler or a callable, "
                f"or a list of these; got {handler!r}"
            )
    return tuple(recipes), tuple(calls)
