"""Traces that others recorded become a run while somebody looks at them, so that all commands for runs take them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import perfhooks.trace
from perfhooks import handlers, labels
from perfhooks.errors import PerfhooksError
from perfhooks.report.headline import headline, summary
from perfhooks.run import layout, loose
from perfhooks.run.capture import Capture, Place
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import OwnFolder
from perfhooks.trace.names import stages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from perfhooks.run.loose import Loose
    from perfhooks.trace import Trace

_MADE: Final = ("steps", "collectives", "page")
"""What is made of each trace: all that ranks are compared by, and the page."""


@dataclass(frozen=True)
class Adopted:
    """A run made of loose traces."""

    folder: Path
    problems: tuple[str, ...]
    """Traces that could not be read, and why."""


@contextlib.contextmanager
def adopted(
    folder: Path, *, communication: str | None = None, tell: Callable[[int, int], object] | None = None
) -> Iterator[Adopted]:
    """A run folder made of the traces of a folder, which is gone afterwards; the traces stay where they are.

    Args:
        folder: any folder with traces, see `loose.traces`.
        communication: kernels that communicate, see `perfhooks.trace.read`.
        tell: is told how many traces are done, and of how many.

    Raises:
        PerfhooksError: there is no trace in it that can be read.
    """
    groups = loose.windows(loose.traces(folder))
    if not groups:
        raise PerfhooksError(f"{folder} has no trace: {loose.lacking(folder)}")
    with tempfile.TemporaryDirectory(prefix="perfhooks-") as scratch:
        run = Path(scratch)
        Manifest().write(run)
        windows: dict[int, Path] = {}
        digits = len(str(len(groups) - 1)) if len(groups) > 1 else 0
        problems: list[str] = []
        every = [(turn, each) for turn, group in enumerate(groups) for each in group]
        for done, (turn, each) in enumerate(every):
            if tell is not None:
                tell(done, len(every))
            try:
                trace = perfhooks.trace.read(each.path, communication=communication)
            except PerfhooksError as error:
                problems.append(str(error))
                continue
            capture = _capture(each, trace)
            windows[turn] = windows.get(turn) or _window(run, f"{turn:0{digits}}" if digits else "", capture)
            _add(Place(windows[turn], capture.rank), capture, trace, each.path)
        if not windows:
            raise PerfhooksError("; ".join(problems))
        yield Adopted(run, tuple(problems))


def _capture(each: Loose, trace: Trace) -> Capture:
    """The facts of a trace; a last step of any number says that no step was cut short."""
    rank = each.rank if each.rank is not None else trace.rank or 0
    stage = stages.shown(trace)
    table = Capture(rank=rank, stage=stage, last=0).tables(trace).steps
    numbers: Sequence[int] = table["step"].drop_nulls().to_list()
    first, last = min(numbers, default=0), max(numbers, default=0)
    told: dict[str, Any] = {"headline": headline(table), "summary": summary(table)}
    return Capture(rank=rank, stage=stage, first=first, last=last, reached=last, **told)


def _window(run: Path, turn: str, capture: Capture) -> Path:
    """A folder of its own, even where two windows have the same steps; the names are in the order of the traces."""
    folder = OwnFolder(run, layout.window(f"{labels.FOREIGN}{turn}", capture.first, capture.last))
    folder.make()
    return folder.path


def _add(place: Place, capture: Capture, trace: Trace, path: Path) -> None:
    for name in _MADE:
        for artifact in handlers.build({"type": name}).artifacts(capture, trace):
            with place.own.publish(place.artifact(artifact.name).name) as file:
                artifact.write(file)
    link = place.artifact(layout.TRACES[not path.name.endswith(".gz")])
    try:
        link.symlink_to(path.absolute())
    except OSError:  # Windows, without the right to make links
        shutil.copyfile(path, link)
    place.save(capture)
