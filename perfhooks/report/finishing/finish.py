from __future__ import annotations

import platform
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

import perfhooks.trace
from perfhooks.core.guard import guard, logger
from perfhooks.report import handlers
from perfhooks.report import page as report
from perfhooks.report.finishing import power
from perfhooks.report.handlers.permit import Permit
from perfhooks.run import steps
from perfhooks.run.finished import FinishedRun
from perfhooks.run.folder import Run
from perfhooks.run.layout import PAGE, lock, processor
from perfhooks.run.liveness import boot
from perfhooks.run.locking import locked
from perfhooks.run.publishing import SILENT_S
from perfhooks.run.reading import check_plain
from perfhooks.run.timeline import in_timeline
from perfhooks.trace.limits import peaks

if TYPE_CHECKING:
    import polars as pl

    from perfhooks.core.statistics import Values
    from perfhooks.report.handlers import Handler
    from perfhooks.run.capture import Capture, Cost, Place
    from perfhooks.trace import Trace

NO_PERMIT: Final = Permit()


def finish(place: Place, permit: Permit = NO_PERMIT, *, write_report: bool = True) -> Capture:
    """Write the files of a saved window. A finished window stays unchanged.

    If a handler fails, the window gets a note. If a file cannot be written (OSError), the state stays ``spooled`` for a
    retry. Raises TimeoutError if another process held the lock for ten minutes.
    """
    run = Run.of(place)
    try:
        with locked(run.folder / lock(place.rank), SILENT_S):
            capture = place.load()
            unfinished = capture.state == "spooled"
            if unfinished:
                capture = _finish(place, capture, run, permit)
            elif capture.spool is None:
                place.forget(place.saved(capture))
    except TimeoutError as error:
        raise TimeoutError(
            f"another process is writing the files of rank {place.rank} in {run.folder}; try again later"
        ) from error
    run.upload(place, capture, permit.remote)
    if unfinished and write_report and report.is_due(place):
        write_page(run, permit)
    return capture


def update_report(place: Place, permit: Permit = NO_PERMIT) -> None:
    """Write the report again, with the last steps, if this rank is responsible for the report."""
    measure_again(place)
    if report.is_due(place):
        write_page(Run.of(place), permit)


def write_page(run: Run, permit: Permit = NO_PERMIT) -> None:
    """Write the report. Failures are only logged, because the windows are complete without the report."""
    try:
        report.write(run.folder, remote=permit.remote)
    except Exception as error:
        logger.warning("%s/%s could not be updated: %s: %s", run.folder, PAGE, type(error).__name__, error)
        logger.debug("The report could not be written.", exc_info=True)


def measure_again(place: Place) -> None:
    with guard("computing the profiler overhead"):
        run = Run.of(place)
        finished = FinishedRun(run.folder, brief=True)
        windows = filter(None, map(finished.last, finished.stages))
        for other in dict.fromkeys([place, *(item for window in windows for item in window.captures)]):
            if other.rank == place.rank:
                _measure_again(other, run)


def _measure_again(place: Place, run: Run) -> None:
    with locked(run.folder / lock(place.rank), SILENT_S):
        capture = place.load()
        cost = _cost(capture, capture.cost.events, run, place.rank)
        if capture.state == "done" and cost.idle_step_ms and cost != capture.cost:
            place.save(replace(capture, cost=cost))


def _finish(place: Place, capture: Capture, run: Run, permit: Permit) -> Capture:
    from perfhooks.report.page.headline import described  # imports polars, which a training does not need

    saved = place.saved(capture)
    check_plain(saved)
    trace = perfhooks.trace.read(saved, communication=capture.options.get("communication"))
    if capture.installation is not None:
        capture = replace(capture, owners=capture.installation.owners(trace))
    capture = replace(capture, cost=_cost(capture, len(trace), run, place.rank))
    if trace.is_device_traced and (capture.node, capture.boot) == (platform.node(), boot()):
        limit = power.limit_of(peaks.device(trace)[0])
        capture = replace(capture, circumstances=replace(capture.circumstances, power=limit))
    with guard(f"describing {place.folder.name}"):
        capture = described(capture, trace)
    artifacts: list[str] = []
    notes = [*capture.notes, *_problems(capture.tables(trace).checks)]
    write_error: OSError | None = None
    for recipe in capture.handlers:
        try:
            artifacts += _artifacts(place, capture, trace, handlers.rebuild(recipe, permit))
        except OSError as error:
            write_error = error
        except Exception as error:
            notes.append(f"handler {recipe.get('type')!r} failed: {type(error).__name__}: {error}")
            logger.debug("handler %r failed", recipe.get("type"), exc_info=True)
    if write_error is not None:
        raise write_error
    done = replace(capture, state="done", artifacts=tuple(artifacts), notes=tuple(notes))
    newer = place.load().token != capture.token
    try:
        if not newer:
            # do this before saving: if the process is killed in between, the window is finished again
            run.note_window(place)
    finally:
        if not newer:
            place.save(done)
        place.forget(saved)
        place.forget_saved_traces(capture.time)
    if newer:
        logger.warning(
            "%s was recorded a second time before its files were made. The later recording is kept.", place.folder.name
        )
        return capture
    run.forget_old_windows(done, permit.remote)
    return done


def _cost(capture: Capture, events: int | None, run: Run, rank: int) -> Cost:
    stage = in_timeline(capture.stage)
    of_loop = steps.read_last(run.timeline(rank)).get(stage, steps.NONE)
    idle, waits = of_loop.typical(), steps.read_waits(run.folder / processor(rank), stage)
    idle = of_loop.beside(capture.first, capture.end) or idle
    idle_ms = _median(idle.all_ms, least=5) and idle.median_ms
    recorded_ms = _median(of_loop.recorded().wall_ms, least=3)
    return replace(
        capture.cost,
        idle_step_ms=idle_ms,
        idle_data_ms=None if idle_ms is None or idle.waiting is None else idle_ms * idle.waiting,
        idle_thread_ms=None if idle_ms is None or waits is None else idle_ms * waits.computed,
        recorded_step_ms=recorded_ms,
        others=None if waits is None else waits.others,
        events=events,
    )


def _problems(checks: pl.DataFrame) -> list[str]:
    rows = checks.iter_rows(named=True)
    return [row["text"] for row in rows if row["severity"] in ("error", "warning")]


def _median(values: Values, least: int) -> float | None:
    return float(np.median(values)) if len(values) >= least else None


def _artifacts(place: Place, capture: Capture, trace: Trace, handler: Handler) -> list[str]:
    names = []
    for name, write in handler.artifacts(capture, trace):
        names.append(place.artifact(name).name)
        with place.own.publish(names[-1]) as file:
            write(file)
    return names
