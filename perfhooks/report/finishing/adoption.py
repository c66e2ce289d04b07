"""Temporary run folders for traces that perfhooks did not record, so that commands for runs accept them."""

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
    folder: Path
    problems: tuple[str, ...]
    windows: tuple[tuple[Path, tuple[Loose, ...]], ...]
    """Folder and traces of each window. Each trace without a rank is a window of its own, at the end."""


@contextlib.contextmanager
def adopted(
    folder: Path | str,
    *,
    communication: str | None = None,
    on: str | None = None,
    tell: Callable[[int, int], object] | None = None,
) -> Iterator[Adopted]:
    """Create a temporary run folder from traces or ``*.share`` files, and delete it on exit.

    Traces are reduced to summaries one at a time, to save memory. ``tell`` is called with the numbers of finished and
    of all traces. Raises PerfhooksError if no trace could be read.
    """
    # the processes of Dask or Ray may have another working directory
    paths = loose.candidates(folder.absolute() if on is not None and isinstance(folder, Path) else folder)
    with tempfile.TemporaryDirectory(prefix="perfhooks-") as scratch:
        shares, run = Path(scratch, "shares"), Path(scratch, "run", Path(folder).absolute().name)
        shares.mkdir()
        run.mkdir(parents=True)
        share_of: dict[Loose, Path] = {}
        problems: dict[str, str] = {}
        results = engines.map_unordered(on, partial(_reduce, communication=communication), paths)
        for done, (number, packed) in enumerate(results):
            path = paths[number]
            if tell is not None:
                tell(done, len(paths))
            problem: Exception | None = packed if isinstance(packed, Exception) else None
            if isinstance(packed, bytes):
                try:
                    trace = Loose(path, unpacked(packed, path).rank)
                    share_of[trace] = shares / str(number)
                    share_of[trace].write_bytes(packed)
                except PerfhooksError as error:
                    problem = error
            if problem is not None and not isinstance(problem, NoTraceError):
                problems[path] = str(problem) if isinstance(problem, TraceError) else f"{path}: {cause_of(problem)}"
        messages = tuple(problems[path] for path in sorted(problems))
        if not share_of:
            raise PerfhooksError("; ".join(messages) or f"{folder} has no trace: {loose.lacking(folder)}")
        Manifest().write(run)
        groups = loose.windows(sorted(share_of, key=lambda trace: trace.path))
        digits = len(str(len(groups) - 1)) if len(groups) > 1 else 0
        windows = []
        for turn, group in enumerate(groups):
            window: Path | None = None
            for trace in group:
                of_trace = unpacked(read_bytes(share_of[trace]), trace.path)
                window = window or _create_window(run, f"{turn:0{digits}}" if digits else "", of_trace)
                _add(window, of_trace, trace.path)
            windows += [(window, tuple(group))] if window is not None else []
        yield Adopted(run, messages, tuple(windows))


def _reduce(path: str, *, communication: str | None) -> bytes:
    if not path.endswith(loose.SHARE):
        return share(path, communication=communication)
    return remote.content(path) if remote.is_url(path) else read_bytes(Path(path))


def _create_window(run: Path, turn: str, of_trace: TraceShare) -> Path:
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
        except OSError:  # on Windows, symbolic links need a permission
            shutil.copyfile(path, link)
    place.save(of_trace.capture)
