"""What happens to a window when it has been recorded: it is saved once, shown to the callables and finished."""

from __future__ import annotations

import logging
import platform
import secrets
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core import words
from perfhooks.core.errors import OnError, OptionError
from perfhooks.core.guard import guard, logger
from perfhooks.record.loop.limits.run_opening import RunOpening
from perfhooks.record.loop.tasks import QUEUE, Tasks
from perfhooks.record.loop.worker import can_start
from perfhooks.record.watch.counters import Queueing
from perfhooks.report import handlers
from perfhooks.report.finishing.messages import FinishWindow, TurnPage, WriteSteps
from perfhooks.report.handlers import Handler
from perfhooks.report.handlers.permit import Permit
from perfhooks.run import layout, rare_work
from perfhooks.run.capture import Capture, Cost, Place
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

    from perfhooks.record.loop.window import Recorded
    from perfhooks.record.watch.loops import WatchedLoop
    from perfhooks.run.timeline import Aside, Rows

HandlerLike = str | Mapping[str, Any] | Handler | Callable[..., object]

DEFAULT: Final = "default"
"""In a list of handlers: everything that was recorded for, as without ``on_trace_ready``."""

_FEW_STEPS: Final = 2048
"""Rows that the training writes itself, in about a millisecond; more are left to the worker."""


class _Saved(NamedTuple):
    path: Path
    seconds: float
    bytes: int


class Handover:
    """Takes recorded windows from a profiler, and sees to it that they are finished without the training waiting.

    The queue is the run folder: a capture marked ``spooled``. A child process is told about each; what it does not get
    to, ``perfhooks report`` does.

    Args:
        wanted: What to make of each window: names, mappings, handlers of ours, which need only files; and plain
            callables, which get the window itself, at once. None, or the name ``"default"`` among others, makes
            everything that was recorded for.
        recorded: The recording options, and what else reading the trace needs to know; kept with each capture.
        stage: The loop that the windows belong to.
        background: Whether a child process does it; otherwise it is done at once.
        keep_windows: How many windows to keep; None keeps all.
        on_error: What a failure does.

    Raises:
        OptionError: Something wanted is no handler.
    """

    def __init__(
        self,
        wanted: HandlerLike | Sequence[HandlerLike] | None,
        recorded: Mapping[str, Any],
        *,
        stage: str,
        background: bool = False,
        keep_windows: int | None = None,
        on_error: OnError = "warn",
    ) -> None:
        self._wanted, self._recorded = DEFAULT if wanted is None else wanted, recorded
        self.makes_everything = wanted in (None, DEFAULT, [DEFAULT])
        """Whether nobody said what to make of a window."""
        self.recipes, self.calls = _sorted(_listed(self._wanted, recorded))
        self.places: list[Place] = []
        """The windows that were saved, in the order of their end."""
        self.listeners: list[Callable[[Capture, Place], object]] = []
        self.when_saved: list[Callable[..., object]] = []
        """Called with the folder of the run, and ``is_speaker``, when a trace is saved."""
        self.tasks = Tasks(self._heard, on_error)
        self.recorded = {name: value for name, value in recorded.items() if isinstance(value, bool | int | str)}
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
        """Seconds that the loop waited at the end of the last window."""
        self.is_loud = True
        """Whether finished windows are worth an INFO line: of several ranks that record, one says it."""
        self.is_summed_up = False
        """Whether `perfhooks run` prints a summary at the end: the log names only windows and the report."""
        self._is_leaving = False
        self.framework = ""
        self.first_step = 0
        """Whose face profiles the loop, as its messages call it; advice is given in its words."""

    @property
    def run(self) -> Run | None:
        """Where this rank writes; None before it has joined the others, and where no files are wanted."""
        if self._opening is not None:
            self._opening.wait()
            self._opening = None
        return self._run

    def open(self, run: Run | None, *, starts_worker: bool = True) -> None:
        """Be ready for windows.

        Args:
            run: Where their files go; None where no files are wanted.
            starts_worker: Whether the worker starts now, and not with the first window.
        """
        self._run = run
        self.tasks.open(self._log(run), starts_worker=starts_worker)

    def open_meanwhile(self, act: Callable[[], object]) -> None:
        """Open the run in another thread; `run` waits for it.

        Args:
            act: Calls `open`.
        """
        self._opening = RunOpening(act)

    def _log(self, run: Run | None) -> Path | None:
        """Where a worker prints; None where the training makes the files itself."""
        if run is None or not self._background:
            return None
        if not can_start():
            logger.info("there is no Python to start here (%s): the training makes the files itself", sys.executable)
            self._background = False
            return None
        return run.folder / layout.worker_log(run.rank)

    @property
    def has_files(self) -> bool:
        """Whether anything was written into the run folder that somebody may want."""
        return bool(self.places) or self._is_page_old

    def move(self, run: Run | None) -> None:
        """Go to another folder, before anything was written into this one; None goes nowhere."""
        self._run = run
        self.tasks.move(self._log(run))

    def warm_up(self) -> None:
        """A window is near: let the worker import what it needs."""
        self.tasks.warm_up()

    @property
    def is_full(self) -> bool:
        """Whether so many windows wait to be finished that no other should be recorded."""
        return self.tasks.windows_left >= QUEUE

    def place_of(self, window: Recorded) -> Place | None:
        """Where a window goes, by the steps that the schedule asked for: a rank that shortened it meets the others.

        None where no files are written.
        """
        last = window.planned.last + window.shortened if window.planned else None
        return None if self.run is None else self.run.place(self._stage, window.first, last)

    def enter(self, window: Recorded | None) -> None:
        """A window begins; None where it has ended."""
        if self.run is not None:
            place = None if window is None else self.place_of(window)
            self.run.enter_window(None if place is None else place.folder.name)

    def take(self, window: Recorded, *, write: bool = True, release: Callable[[], None] | None) -> int | None:
        """Save a window that has just been recorded, call the callables and hand it to the worker.

        Args:
            window: It has stopped and not been saved.
            write: Whether it is worth files.
            release: Frees what the recorder holds, when nobody is to ask the window any more.

        Returns:
            Size of the saved trace in bytes; None if nothing was saved.
        """
        place = self.place_of(window) if write else None
        if place is not None and not window.ready:
            self._note(window, place)
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
                self._keep(self._facts(window, place.rank, token), place, saved, freed_s)
        return None if saved is None else saved.bytes

    def _keep(self, facts: Capture, place: Place, saved: _Saved, freed_s: float) -> None:
        with guard(f"finishing {place.folder.name}", self._on_error):
            cost = replace(facts.cost, save_s=saved.seconds, free_s=freed_s, trace_bytes=saved.bytes)
            self.waited_s = cost.stop_s + cost.save_s + cost.free_s
            elsewhere = None if saved.path.parent == place.folder else str(saved.path)
            place.save(replace(facts, cost=cost, spool=elsewhere))
            for listen in self.when_saved:
                listen(place.run, is_speaker=self.is_loud)
            self._hand_over(place, explains=facts.explains)

    def _save(self, window: Recorded, place: Place, token: str) -> _Saved | None:
        with guard(f"saving the trace of {place.folder.name}", self._on_error):
            spool, name = Run.of(place).spool(place), layout.saved_trace(place.rank, token)
            spool.make()
            with spool.lent() as lent:
                seconds = _timed(lambda: window.save(lent / name))
                return _Saved(spool.path / name, seconds, plain_size(lent / name))
        return None

    def _note(self, window: Recorded, place: Place) -> None:
        """A window of which there is nothing but what went wrong."""
        logger.warning("%s has no trace: %s", place.folder.name, "; ".join(window.notes))
        with guard(f"noting what became of {place.folder.name}", self._on_error):
            place.save(replace(self._facts(window, place.rank), state="done"))

    def _facts(self, window: Recorded, rank: int, token: str = "") -> Capture:
        asked, installation = window.request.asked if window.request else None, Installation.current()
        more = {} if asked is None else dict(asked.options)
        recipes = _sorted(_listed(self._wanted, {**self._recorded, **more}))[0] if more else self.recipes
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
            request="" if asked is None else asked.name or asked.by,
            notes=tuple(window.notes),
            cost=Cost(stop_s=window.stop_s),
            options={**self.recorded, **more},
            versions=versions(),
            installation=installation,
            circumstances=Circumstances.current(
                queued=self._queueing.since_last(),
                loader=window.loader,
                making=window.making,
                unseen_workers=window.unseen_workers,
                looked=window.looked,
                framework=self.framework,
                is_launched=self.is_summed_up,
            ),
            compilation=Compilation.current(installation, window.began),
            began=began_s(),
            time=window.ended or time.time(),
            own_work=own_work_s(window.began, window.ended or time.time()),
        )

    def _hand_over(self, place: Place, *, explains: bool) -> None:
        if not explains:
            self.places.append(place)
        self._is_page_old = False
        if self._background:
            self.tasks.tell(FinishWindow(str(place.folder), place.rank, self._permit))
        else:
            self._finished(place, _finisher().finish(place, self._permit))

    @property
    def _permit(self) -> Permit:
        """What this process says itself: of a file, nobody knows who wrote it."""
        return Permit(handlers=self.recipes, remote=None if self.run is None else self.run.remote)

    def keep_time(self, loop: WatchedLoop) -> None:
        """Append the steps of a loop that have ended to the run's timeline; where that failed once, they are lost."""
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
        """Write steps; many of them are left to the worker, as text takes its time."""
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
        self.tasks.tell(WriteSteps(str(raw), str(timeline)))

    def _write_rare(self, stage: str, rare: Sequence[Aside]) -> None:
        if self.run is not None and rare:
            self._is_page_old = True
            rare_work.append(self.run.folder / layout.rare(self.run.rank), stage, rare)

    def drop_steps(self, loop: WatchedLoop) -> None:
        """Write no more steps of a loop."""
        with loop.timeline.taking:
            self._has_lost_steps = True

    def end_run(self) -> None:
        """No steps for now: let the page show those since the last window."""
        if not self.places or not self._is_page_old:
            return
        self._is_page_old, place = False, self.places[-1]
        if not self._background:
            _finisher().turn_page(place, self._permit)
        else:
            self.tasks.tell(TurnPage(str(place.folder), place.rank, self._permit))

    def _heard(self, place: Place) -> None:
        """The worker has finished a window."""
        if self._keep_windows is None or place.capture_file.exists():  # not deleted since
            self._finished(place, place.load())

    def _finished(self, place: Place, capture: Capture) -> None:
        for note in capture.notes:
            logger.warning("%s: %s", place.folder.name, note)
        if capture.explains:  # nobody is told of steps that were recorded only to tell lines of
            return
        page = place.folder.parent / layout.PAGE
        is_in_summary = self.is_summed_up and self._is_leaving
        level = logging.INFO if self.is_loud and not is_in_summary else logging.DEBUG
        logger.log(
            level,
            "%s -> %s",
            (not self.is_summed_up and capture.line) or f"{words.steps(capture.first, capture.end)} recorded",
            shown(page if page.exists() else place.folder),
        )
        for listen in self.listeners:
            with guard(f"telling {getattr(listen, '__qualname__', listen)!r} about {place.folder}", self._on_error):
                listen(capture, place)

    def leave(self, timeout: float) -> bool:
        """End with the process: wait for the files for a while, then let the worker go on alone.

        Args:
            timeout: Maximum wait, in seconds.

        Returns:
            Whether the files are complete.
        """
        self._is_leaving = True
        is_complete = self.tasks.leave(timeout, is_loud=self.is_loud)
        if not is_complete and not self.is_summed_up and self.places:
            logger.info("report is still being written: %s", shown(self.places[-1].run / layout.PAGE))
        return is_complete

    def abandon(self) -> None:
        """This process is a forked child: the worker and its windows are its parent's."""
        self.tasks.abandon()
        self._opening = self._run = None


def _finisher() -> Any:
    """Import the module that finishes windows, which is the worker's work in all other trainings."""
    from perfhooks.report.finishing import finish

    return finish


def _timed(act: Callable[[], object]) -> float:
    began = time.perf_counter()
    act()
    return time.perf_counter() - began


def _listed(wanted: HandlerLike | Sequence[HandlerLike], recorded: Mapping[str, Any]) -> list[HandlerLike]:
    listed = list(wanted) if isinstance(wanted, Sequence) and not isinstance(wanted, str) else [wanted]
    default = handlers.by_default(recorded)
    return [one for given in listed for one in (default if isinstance(given, str) and given == DEFAULT else [given])]


def _sorted(wanted: Sequence[HandlerLike]) -> tuple[tuple[dict[str, Any], ...], tuple[Callable[..., object], ...]]:
    """What is wanted, as recipes of handlers that need only files, and as callables that need the window."""
    recipes, calls = [], []
    for one in wanted:
        if isinstance(one, str | Mapping):
            recipes.append(handlers.recipe(one))
        elif isinstance(one, Handler) and not isinstance(one, type):
            recipes.append(handlers.spec(one))
        elif callable(one) and not isinstance(one, type):
            calls.append(one)
        else:
            raise OptionError(
                "on_trace_ready must be a handler's name, a mapping with its type, a handler or a callable, "
                f"or a list of these; got {one!r}"
            )
    return tuple(recipes), tuple(calls)
