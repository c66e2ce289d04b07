"""Everything that perfhooks makes of a trace, one use after the other, for those who look for what breaks it."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import itertools
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.analysis.ranks import merge
from perfhooks.cli.actions import flame, output, show
from perfhooks.core import json_values
from perfhooks.core.errors import PerfhooksError, TraceError
from perfhooks.report import handlers
from perfhooks.report.page import terminal_tables, window_data
from perfhooks.run.capture import Capture, Place
from perfhooks.trace import read
from perfhooks.trace import window as tables
from perfhooks.trace.tables import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import polars as pl

    from perfhooks.trace import Trace

OF_A_TRACE = [name for name in show.TABLES if name != "startup"]
"""The tables of `perfhooks show` that are made of a trace; what came before it is in a file of the run."""
_WIDTH = 120
_TRIED = 5
_TRIED_BYTES = 1 << 20
"""So many groups of calls get inputs, and so many bytes of them."""
_NO_INPUTS = (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError)
"""What `perfhooks try` takes for an operator's own words on inputs that it does not want."""


class WrongError(Exception):
    """Something was made that should not be."""


class Examination:
    """One trace, read once, and what is made of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._trace: Trace | None = None

    @property
    def trace(self) -> Trace:
        """The trace."""
        if self._trace is None:
            self._trace = read(self.path)
        return self._trace

    def read(self) -> str:
        """Read it, or be told in one line why not."""
        try:
            doubts = self.trace.doubts
        except TraceError as error:
            return self._line(error)
        return f"{len(self.trace)} slices" + "".join(f", {doubt.name}" for doubt in doubts)

    def table(self, name: str, by: tuple[str, ...] = ()) -> str:
        """One table, as CSV, as JSON, and on a terminal."""
        made = show.compute(self.trace, name, by)
        for text in itertools.chain(output.csv(made), output.json(made)):
            text.encode("utf-8", "replace")
        return f"{made.height} rows"

    def drawn(self, name: str) -> str:
        """One table on a terminal."""
        made = show.compute(self.trace, name)
        drawn(made, name)
        return f"{made.height} rows"

    def page(self) -> str:
        """The window's share of the page."""
        reduced = window_data.reduce(Capture(stage="train"), self.trace)
        if "problems" in reduced:
            raise WrongError(f"the page has problems: {reduced['problems']}")
        return f"{len(reduced)} parts"

    def handler(self, name: str) -> str:
        """The files that a handler makes."""
        size = 0
        for artifact in handlers.build(name).artifacts(Capture(stage="train"), self.trace):
            with tempfile.TemporaryFile() as file:
                artifact.write(file)
                size += file.tell()
        return f"{size >> 10} KiB"

    def flame(self, by: str, form: str) -> str:
        """What `perfhooks flame` writes."""
        return f"{len(flame.drawn(self.path, by=by, form=form)) >> 10} KiB"  # type: ignore[arg-type]

    def merged(self) -> str:
        """Merge it with itself."""
        with tempfile.TemporaryDirectory(dir=self.path.parent) as name:
            window = Path(name, "train-000000-000001")
            window.mkdir()
            with self.path.open("rb") as file:
                packed = file.read(2) == b"\x1f\x8b"
            for rank in range(2):
                ending = ".gz" if packed else ""
                Place(window, rank).save(Capture(rank=rank))
                (window / f"rank{rank}.pt.trace.json{ending}").symlink_to(self.path.absolute())
            try:
                merged = merge.merge(window, Path(name, "merged.json.gz"), follow_links=True)
                return f"{len(merged.problems)} problems, {merged.path.stat().st_size >> 10} KiB"
            except PerfhooksError as error:
                return self._line(error)

    def others(self) -> str:
        """What the tables of `perfhooks show` leave out."""
        levels = memory.thinned(memory.over_time(self.trace))
        json_values.columns(memory.peak(self.trace))
        return f"{levels.height} levels"

    def tried(self) -> str:
        """What `perfhooks try` makes of it before anything is run: recorded calls in groups, and as inputs.

        A machine without torch has no such command.
        """
        import torch

        from perfhooks.trials import cut, inputs, recorded, schemas

        try:
            offered = cut.select_calls(recorded.load_calls(tables.Tables(read(self.path, strides=True))))
        except PerfhooksError as error:
            return self._line(error)
        built = 0
        for group in offered.groups[:_TRIED]:
            with contextlib.suppress(schemas.UnmatchedError, *_NO_INPUTS):
                inputs.check_memory(group.signature, _TRIED_BYTES)
                inputs.build(group.signature, torch.device("cpu"))
                built += 1
        return f"{len(offered.groups)} groups, {len(offered.left)} left, {built} built"

    @staticmethod
    def _line(error: PerfhooksError) -> str:
        if "\n" in str(error) or len(str(error)) > 1000:
            raise WrongError(f"an error of several lines: {error}") from error
        return f"refused: {str(error)[-90:]}"

    def uses(self) -> Iterator[tuple[str, Callable[[], str]]]:
        """All of them, by name; what needs a trace only if there is one, so the first must be made before the third."""
        yield "read", self.read
        yield "merge", self.merged
        if self._trace is None:
            return
        for name in OF_A_TRACE:
            yield name, lambda name=name: self.table(name)
        for name, groups in show.GROUPS.items():
            for by in groups:
                yield f"{name} by {by}", lambda name=name, by=by: self.table(name, (by,))
        for name in OF_A_TRACE:
            yield f"{name} drawn", lambda name=name: self.drawn(name)
        yield "others", self.others
        yield "page", self.page
        for name in handlers.NAMES:
            yield f"handler {name}", lambda name=name: self.handler(name)
        yield "flame", lambda: self.flame("host", "svg")
        yield "flame as speedscope", lambda: self.flame("device", "speedscope")
        if importlib.util.find_spec("torch") is not None:
            yield "try", self.tried


def drawn(table: pl.DataFrame, name: str) -> None:
    """Draw a table on a terminal, whose cursor nothing may move."""
    from rich.console import Console

    screen = io.StringIO()
    terminal_tables.draw({name: table}, console=Console(file=screen, width=_WIDTH, color_system=None, highlight=False))
    odd = {letter for letter in screen.getvalue() if letter != "\n" and not letter.isprintable()}
    if odd & {*map(chr, (*range(32), *range(127, 160)))}:
        raise WrongError(f"control characters reach the terminal: {odd}")


def warm_up() -> None:
    """Import everything that is imported late."""
    from perfhooks import testing

    with tempfile.TemporaryDirectory() as folder:
        events = [testing.step_mark(0, 0, 9), testing.op("a", 1, 2), testing.launch(1, 1, 2), testing.kernel(1, 2, 3)]
        for _, use in Examination(testing.write_trace(Path(folder, "t.json"), events)).uses():
            use()
