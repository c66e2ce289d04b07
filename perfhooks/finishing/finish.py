"""The one path from a spooled capture to its artifacts: the same code inline, in the worker and afterwards."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import statistics
import sys
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from filelock import FileLock, Timeout

import perfhooks.trace
from perfhooks import handlers, report
from perfhooks.errors import PerfhooksError
from perfhooks.guard import logger
from perfhooks.handlers.tables import step_rows
from perfhooks.report.headline import headline, summary
from perfhooks.run.capture import Capture, Place
from perfhooks.run.folder import Run
from perfhooks.run.publishing import publish
from perfhooks.run.timeline import Rows, wall_times

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.trace import Trace

_LOCK_TIMEOUT_S: Final = 600
ORPHAN_TIMEOUT_S: Final = 900
"""How long a worker whose training process is gone may go on, in seconds."""


def finish(place: Place) -> Capture:
    """Turn a spooled capture into its artifacts; a finished one stays as it is.

    A handler that fails leaves a note in the capture and the other handlers alone; one that could not write its file
    leaves the capture spooled, to be finished again when there is room.

    Args:
        place: Where the window's files are.

    Returns:
        The facts of the finished window.

    Raises:
        PerfhooksError: There is no such capture, or its trace cannot be read.
        OSError: A file could not be written.
        TimeoutError: Another process has been finishing this rank's windows for ten minutes.
    """
    run = Run.of(place)
    try:
        with FileLock(run.folder / f".rank{place.rank}.lock", timeout=_LOCK_TIMEOUT_S):
            capture = place.load()
            unfinished = capture.state == "spooled"
            if unfinished:
                capture = _finish(place, capture, run)
    except Timeout as error:
        raise TimeoutError(f"rank {place.rank} of {run.folder} is being finished by another process") from error
    run.upload(place, capture)
    if unfinished:
        _turn_page(place, run)
    return capture


def _turn_page(place: Place, run: Run) -> None:
    """Bring the page of the run up to date, if it is this rank's turn; the window is whole without it."""
    try:
        if report.is_due(place):
            report.write(run.folder)
    except Exception as error:  # noqa: BLE001 -- the page can be made again at any time
        logger.warning("%s/%s is not up to date: %s: %s", run.folder, report.PAGE, type(error).__name__, error)
        logger.debug("the page failed", exc_info=True)


def _finish(place: Place, capture: Capture, run: Run) -> Capture:
    trace = perfhooks.trace.read(place.saved(capture))
    artifacts: list[str] = []
    notes = [*capture.notes, *_doubts(trace)]
    unwritten: OSError | None = None
    for wanted in capture.handlers:
        try:
            artifacts += _artifacts(place, capture, trace, wanted)
        except OSError as error:
            unwritten = error
        except Exception as error:  # noqa: BLE001 -- one handler must not cost the others their files
            notes.append(f"handler {wanted['type']!r} failed: {type(error).__name__}: {error}")
            logger.debug("handler %r failed", wanted["type"], exc_info=True)
    if unwritten is not None:
        raise unwritten
    idle, recorded = wall_times(run.timeline(place.rank), capture.stage)
    table = step_rows(capture, trace)
    done = replace(
        capture,
        state="done",
        artifacts=tuple(artifacts),
        notes=tuple(notes),
        headline=headline(table),
        summary=summary(table),
        cost=replace(
            capture.cost,
            events=len(trace),
            idle_step_ms=_median(idle, least=5),
            recorded_step_ms=_median(recorded, least=3),
        ),
    )
    newer = place.load().token != capture.token
    if not newer:
        place.save(done)
    with contextlib.suppress(FileNotFoundError):
        place.saved(capture).unlink()
    place.forget_spools(capture.time)
    if newer:  # another process has recorded the same window since, and its worker waits for us to be done
        logger.warning("%s was recorded again before it was finished: the later one is kept", place.folder.name)
        return capture
    run.note_window(place)
    run.forget_old_windows(done)
    return done


def _doubts(trace: Trace) -> list[str]:
    """What makes the trace itself doubtful; what is only worth knowing is on the page."""
    from perfhooks.trace import checks

    rows = checks.table(trace).iter_rows(named=True)
    return [row["text"] for row in rows if row["severity"] in ("error", "warning")]


def _median(values: list[float], least: int) -> float | None:
    """The median, which says nothing of very few steps."""
    return statistics.median(values) if len(values) >= least else None


def _artifacts(place: Place, capture: Capture, trace: Trace, wanted: Mapping[str, object]) -> list[str]:
    names = []
    for name, write in handlers.build(wanted).artifacts(capture, trace):
        path = place.artifact(name)
        with publish(path) as file:
            write(file)
        names.append(path.name)
    return names


@dataclass(frozen=True)
class Outcome:
    """What became of one window that was looked at afterwards."""

    place: Place
    capture: Capture | None = None
    finished_now: bool = False
    problem: str = ""
    """Why it is not finished."""


def finish_all(folder: Path) -> Iterator[Outcome]:
    """Finish whatever a dead worker or training process left behind in a run folder; what is finished stays as it is.

    Args:
        folder: A run folder.

    Yields:
        An outcome for each window of each rank, in the order of the folders' names; then one for each rank whose
        process ended while it recorded.

    Raises:
        PerfhooksError: It is no run folder.
    """
    run = Run.existing(folder)
    for raw, timeline in run.left_steps():
        _write_steps(raw, timeline)
    run.adopt()
    for place in run.places():
        try:
            if not place.capture_file.exists() and run.is_recording(place):
                continue
            before = place.load().state
            yield Outcome(place, finish(place), finished_now=before == "spooled")
        except Exception as error:  # noqa: BLE001 -- one broken window must not hide the others
            if isinstance(error, PerfhooksError) and place not in run.places():
                continue  # its training keeps only its latest windows, and has just deleted it
            yield Outcome(place, problem=f"{type(error).__name__}: {error}")
    for place in run.died_recording():
        yield Outcome(place, problem="the process ended while it recorded: this window is lost")


def serve(first: str) -> None:
    """Finish one window per line of standard input, answer each on standard output, and end with the input.

    Args:
        first: The first line, which has been read already.
    """
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what a handler prints belongs in the log
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    threading.Thread(target=_mind, args=(os.getppid(),), daemon=True).start()
    line = first
    while line:
        message = json.loads(line)
        if "task" in message:
            _answer(answers, {"task": message["task"], **_serve(message)})
        line = sys.stdin.readline()


def _serve(message: Mapping[str, Any]) -> dict[str, object]:
    began = time.perf_counter()
    try:
        if "folder" in message:
            finish(Place(Path(message["folder"]), message["rank"]))
        else:
            _write_steps(Path(message["steps"]), Path(message["timeline"]))
    except Exception as error:  # noqa: BLE001 -- the next one must be served all the same
        logger.exception("%s", message["task"])
        return {"problem": f"{type(error).__name__}: {error}"}
    logger.info("%s: %.2f s", message["task"], time.perf_counter() - began)
    return {}


def _write_steps(raw: Path, timeline: Path) -> None:
    Rows.load(raw).append_to(timeline)
    raw.unlink()


def _mind(parent: int) -> None:
    """A handler that hangs must not leave a process behind for ever."""
    while os.getppid() == parent:
        time.sleep(1)
    time.sleep(ORPHAN_TIMEOUT_S)
    os._exit(1)


def _answer(answers: IO[bytes], answer: Mapping[str, object]) -> None:
    with contextlib.suppress(OSError):  # the training may be gone; its windows are finished all the same
        answers.write(json.dumps(answer).encode() + b"\n")
