"""Traces that others recorded become a run while somebody looks at them, so that all commands for runs take them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.core import labels
from perfhooks.core.errors import PerfhooksError, TraceError
from perfhooks.core.guard import cause_of
from perfhooks.report.finishing import engines
from perfhooks.report.finishing.share import NoTraceError, TraceShare, share, unpacked
from perfhooks.run import layout, loose, remote
from perfhooks.run.capture import Place
from perfhooks.run.loose import Loose
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import OwnFolder
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class Adopted:
    """A run made of loose traces."""

    folder: Path
    problems: tuple[str, ...]
    """Traces that could not be read, and why."""


@contextlib.contextmanager
def adopted(
    folder: Path | str,
    *,
    communication: str | None = None,
    on: str | None = None,
    tell: Callable[[int, int], object] | None = None,
) -> Iterator[Adopted]:
    """A run folder made of the traces of a folder, which is gone afterwards; the traces stay where they are.

    Each trace is reduced to its share by itself, so memory does not grow with their number.

    Args:
        folder: a trace, a folder with traces, see `loose.candidates`, or its URL. Files ``*.share`` are the results of
            `perfhooks.report.finishing.share.share` for a trace.
        communication: kernels that communicate, see `perfhooks.trace.read`.
        on: where traces are reduced, see `engines.each`; None is this process.
        tell: is told how many traces are done, and of how many.

    Raises:
        PerfhooksError: there is no trace in it that can be read.
    """
    # who reads elsewhere is in another folder
    wanted = loose.candidates(folder.absolute() if on is not None and isinstance(folder, Path) else folder)
    with tempfile.TemporaryDirectory(prefix="perfhooks-") as scratch:
        kept, run = Path(scratch, "shares"), Path(scratch, "run", Path(folder).absolute().name)
        kept.mkdir()
        run.mkdir(parents=True)
        found: dict[Loose, Path] = {}
        problems: dict[str, str] = {}
        reduced = engines.each(on, partial(_reduced, communication=communication), wanted)
        for done, (number, packed) in enumerate(reduced):
            path = wanted[number]
            if tell is not None:
                tell(done, len(wanted))
            problem: Exception | None = packed if isinstance(packed, Exception) else None
            if isinstance(packed, bytes):
                try:
                    trace = Loose(path, unpacked(packed, path).rank)
                    found[trace] = kept / str(number)
                    found[trace].write_bytes(packed)
                except PerfhooksError as error:
                    problem = error
            if problem is not None and not isinstance(problem, NoTraceError):
                problems[path] = str(problem) if isinstance(problem, TraceError) else f"{path}: {cause_of(problem)}"
        said = tuple(problems[path] for path in sorted(problems))
        if not found:
            raise PerfhooksError("; ".join(said) or f"{folder} has no trace: {loose.lacking(folder)}")
        Manifest().write(run)
        groups = loose.windows(sorted(found, key=lambda trace: trace.path))
        digits = len(str(len(groups) - 1)) if len(groups) > 1 else 0
        for turn, group in enumerate(groups):
            window: Path | None = None
            for trace in group:
                of_trace = unpacked(read_bytes(found[trace]), trace.path)
                window = window or _window(run, f"{turn:0{digits}}" if digits else "", of_trace)
                _add(window, of_trace, trace.path)
        yield Adopted(run, said)


def _reduced(path: str, *, communication: str | None) -> bytes:
    """A trace's share, or what somebody has made one of."""
    if not path.endswith(loose.SHARE):
        return share(path, communication=communication)
    return remote.content(path) if remote.is_url(path) else read_bytes(Path(path))


def _window(run: Path, turn: str, of_trace: TraceShare) -> Path:
    """A folder of its own, even where two windows have the same steps; the names are in the order of the traces."""
    capture = of_trace.capture
    folder = OwnFolder(run, layout.window(f"{labels.FOREIGN}{turn}", capture.first, capture.last))
    folder.make()
    return folder.path


def _add(window: Path, of_trace: TraceShare, path: str) -> None:
    place = Place(window, of_trace.capture.rank)
    for name, content in of_trace.files.items():
        with place.own.publish(place.artifact(name).name) as file:
            file.write(content)
    if not (remote.is_url(path) or path.endswith(loose.SHARE)):
        link = place.artifact(layout.TRACES[not path.endswith(".gz")])
        try:
            link.symlink_to(Path(path).absolute())
        except OSError:  # Windows, without the right to make links
            shutil.copyfile(path, link)
    place.save(of_trace.capture)
