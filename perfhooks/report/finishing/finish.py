"""The one path from a spooled capture to its artifacts: the same code inline, in the worker and afterwards."""

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
from perfhooks.run.folder import Run
from perfhooks.run.layout import PAGE, lock, processor
from perfhooks.run.liveness import boot
from perfhooks.run.locking import locked
from perfhooks.run.reading import check_plain
from perfhooks.run.timeline import in_timeline
from perfhooks.trace.limits import peaks

if TYPE_CHECKING:
    import polars as pl

    from perfhooks.core.statistics import Values
    from perfhooks.report.handlers import Handler
    from perfhooks.run.capture import Capture, Cost, Place
    from perfhooks.trace import Trace

_LOCK_TIMEOUT_S: Final = 600
NOTHING_SAID: Final = Permit()


def finish(place: Place, permit: Permit = NOTHING_SAID, *, write_report: bool = True) -> Capture:
    """Turn a spooled capture into its artifacts; a finished one stays as it is.

    A handler that fails leaves a note in the capture and the other handlers alone; one that could not write its file
    leaves the capture spooled, to be finished again when there is room.

    Args:
        place: Where the window's files are.
        permit: What the user has said, that is not believed of a file.
        write_report: Whether to write the report of the run as well, if it is this rank's turn.

    Returns:
        The facts of the finished window.

    Raises:
        PerfhooksError: There is no such capture, or its trace cannot be read.
        OSError: A file could not be written.
        TimeoutError: Another process has been finishing this rank's windows for ten minutes.
    """
    run = Run.of(place)
    try:
        with locked(run.folder / lock(place.rank), _LOCK_TIMEOUT_S):
            capture = place.load()
            unfinished = capture.state == "spooled"
            if unfinished:
                capture = _finish(place, capture, run, permit)
            elif capture.spool is None:
                place.forget(place.saved(capture))  # whoever finished it may have been killed before that
    except TimeoutError as error:
        raise TimeoutError(f"rank {place.rank} of {run.folder} is being finished by another process") from error
    run.upload(place, capture, permit.remote)
    if unfinished and write_report and report.is_due(place):
        write_page(run, permit)
    return capture


def turn_page(place: Place, permit: Permit = NOTHING_SAID) -> None:
    """Write the report of a run with the steps since its last window, if it is this rank's turn.

    Args:
        place: The window that this rank has finished last.
        permit: What the user has said, that is not believed of a file.
    """
    with guard("measuring the cost of recording"):
        measure_again(place)
    if report.is_due(place):
        write_page(Run.of(place), permit)


def write_page(run: Run, permit: Permit = NOTHING_SAID) -> None:
    """Write the report of a run; windows are whole without it.

    Args:
        run: The run.
        permit: What the user has said, that is not believed of a file.
    """
    try:
        report.write(run.folder, remote=permit.remote)
    except Exception as error:  # the page can be made again at any time
        logger.warning("%s/%s is not up to date: %s: %s", run.folder, PAGE, type(error).__name__, error)
        logger.debug("the page failed", exc_info=True)


def measure_again(place: Place) -> None:
    """Measure the cost of recording by all steps until now: when the window ended, few unprofiled steps were known.

    Args:
        place: The window that this rank has finished last.
    """
    run = Run.of(place)
    with locked(run.folder / lock(place.rank), _LOCK_TIMEOUT_S):
        capture = place.load()
        cost = _cost(capture, capture.cost.events, run, place.rank)
        if capture.state == "done" and cost.idle_step_ms and cost != capture.cost:
            place.save(replace(capture, cost=cost))


def _finish(place: Place, capture: Capture, run: Run, permit: Permit) -> Capture:
    from perfhooks.report.page.headline import of_window, summary  # polars, which a training need not load

    saved = place.saved(capture)
    check_plain(saved)
    trace = perfhooks.trace.read(saved, communication=capture.options.get("communication"))
    if capture.installation is not None:
        capture = replace(capture, owners=capture.installation.owners(trace))
    capture = replace(capture, cost=_cost(capture, len(trace), run, place.rank))
    if trace.is_device_traced and (capture.node, capture.boot) == (platform.node(), boot()):
        limit = power.limit_of(peaks.device(trace)[0])
        capture = replace(capture, circumstances=replace(capture.circumstances, power=limit))
    artifacts: list[str] = []
    notes = [*capture.notes, *_doubts(capture.tables(trace).checks)]
    unwritten: OSError | None = None
    for wanted in capture.handlers:
        try:
            artifacts += _artifacts(place, capture, trace, handlers.rebuild(wanted, permit))
        except OSError as error:
            unwritten = error
        except Exception as error:  # one handler must not cost the others their files
            notes.append(f"handler {wanted.get('type')!r} failed: {type(error).__name__}: {error}")
            logger.debug("handler %r failed", wanted.get("type"), exc_info=True)
    if unwritten is not None:
        raise unwritten
    table = capture.tables(trace).steps
    done = replace(
        capture,
        state="done",
        artifacts=tuple(artifacts),
        notes=tuple(notes),
        headline=of_window(capture, trace),
        summary=summary(table),
    )
    newer = place.load().token != capture.token
    try:
        if not newer:
            run.note_window(place)  # first: whoever is killed once the window is done is not asked to finish it again
    finally:
        if not newer:
            place.save(done)
        place.forget(saved)
        place.forget_saved_traces(capture.time)
    if newer:  # another process has recorded the same window since, and its worker waits for us to be done
        logger.warning("%s was recorded again before it was finished: the later one is kept", place.folder.name)
        return capture
    run.forget_old_windows(done, permit.remote)
    return done


def _cost(capture: Capture, events: int | None, run: Run, rank: int) -> Cost:
    """What recording cost, as far as the run's own clocks tell by now; rules take it off what they promise."""
    stage = in_timeline(capture.stage)
    of_loop = steps.read_last(run.timeline(rank)).get(stage, steps.NONE)
    idle, waits = of_loop.typical(), steps.read_waits(run.folder / processor(rank), stage)
    idle_ms, recorded_ms = _median(idle.all_ms, least=5), _median(of_loop.recorded().wall_ms, least=3)
    return replace(
        capture.cost,
        idle_step_ms=idle_ms,
        idle_data_ms=None if idle_ms is None or idle.waiting is None else idle_ms * idle.waiting,
        idle_thread_ms=None if idle_ms is None or waits is None else idle_ms * waits.computed,
        recorded_step_ms=recorded_ms,
        events=events,
    )


def _doubts(checks: pl.DataFrame) -> list[str]:
    """What makes the trace itself doubtful; what is only worth knowing is on the page."""
    rows = checks.iter_rows(named=True)
    return [row["text"] for row in rows if row["severity"] in ("error", "warning")]


def _median(values: Values, least: int) -> float | None:
    """The median, which says nothing of very few steps."""
    return float(np.median(values)) if len(values) >= least else None


def _artifacts(place: Place, capture: Capture, trace: Trace, handler: Handler) -> list[str]:
    names = []
    for name, write in handler.artifacts(capture, trace):
        names.append(place.artifact(name).name)
        with place.own.publish(names[-1]) as file:
            write(file)
    return names
