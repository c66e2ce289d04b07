"""The one path from a spooled capture to its artifacts: the same code inline, in the worker and afterwards."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

import perfhooks.trace
from perfhooks import handlers
from perfhooks.guard import logger
from perfhooks.handlers.tables import step_rows
from perfhooks.report.headline import headline, summary
from perfhooks.run import Capture, Place, publish, replace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.trace import Trace

_LOCK_TIMEOUT_S = 600


def finish(place: Place) -> Capture:
    """Turn a spooled capture into its artifacts; a finished one stays as it is.

    A handler that fails leaves a note in the capture and the other handlers alone.

    Args:
        place: Where the window's files are.

    Returns:
        The facts of the finished window.

    Raises:
        PerfhooksError: There is no such capture, its trace cannot be read, or another process has been finishing this
            rank's windows for ten minutes.
    """
    lock = place.folder.parent / f".rank{place.rank}.lock"
    try:
        with FileLock(lock, timeout=_LOCK_TIMEOUT_S):
            capture = place.load()
            return capture if capture.state == "done" else _finish(place, capture)
    except Timeout as error:
        raise TimeoutError(f"{lock} has been held for {_LOCK_TIMEOUT_S} s") from error


def _finish(place: Place, capture: Capture) -> Capture:
    began = time.perf_counter()
    trace = perfhooks.trace.read(place.spool)
    artifacts: list[str] = []
    notes = [*capture.notes, *(str(doubt) for doubt in trace.doubts)]
    for wanted in capture.handlers:
        try:
            artifacts += _artifacts(place, capture, trace, wanted)
        except Exception as error:  # noqa: BLE001 -- one handler must not cost the others their files
            notes.append(f"handler {wanted['type']!r} failed: {type(error).__name__}: {error}")
            logger.warning("%s in %s", notes[-1], place.folder)
            logger.debug("handler %r failed", wanted["type"], exc_info=True)
    table = step_rows(capture, trace)
    done = replace(
        capture,
        state="done",
        artifacts=tuple(artifacts),
        notes=tuple(notes),
        headline=headline(table),
        summary=summary(table),
    )
    place.save(done)
    with contextlib.suppress(FileNotFoundError):
        place.spool.unlink()
    logger.debug("finished %s in %.2f s", place.folder, time.perf_counter() - began)
    return done


def _artifacts(place: Place, capture: Capture, trace: Trace, wanted: Mapping[str, object]) -> list[str]:
    names = []
    for name, write in handlers.build(wanted).artifacts(capture, trace):
        path = place.artifact(name)
        with publish(path) as file:
            write(file)
        names.append(path.name)
    return names
