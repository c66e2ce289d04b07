"""Tables of any trace, for people on a terminal and for programs behind a pipe."""

from __future__ import annotations

import contextlib
import difflib
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from perfhooks.command.output import working
from perfhooks.errors import OptionError, PerfhooksError, TraceError
from perfhooks.run.capture import Capture, Place
from perfhooks.run.folder import Run

if TYPE_CHECKING:
    from collections.abc import Sequence

    import polars as pl

    from perfhooks.trace import Trace

TABLES: Final = (
    *("steps", "operators", "kernels", "collectives", "copies", "syncs"),
    *("modules", "memory", "stacks", "checks"),
)
"""What can be shown."""

OVERVIEW: Final = ("steps", "operators", "kernels", "checks")
"""What is shown if nothing is asked for."""

GROUPS: Final = {
    "operators": ("shapes", "stack", "module", "step"),
    "kernels": ("operator",),
    "stacks": ("host", "device", "bytes"),
}
"""What a table can be split by; a table of stacks has just one measure."""

_OF_ALL_WINDOWS: Final = ("steps", "checks")
_TRACES: Final = ("*.pt.trace.json", "*.pt.trace.json.gz")
_NAMES: Final = ("pt.trace.json.gz", "pt.trace.json")

Form = Literal["table", "csv", "json"]


@dataclass(frozen=True)
class Source:
    """One trace to show."""

    path: Path | str
    window: str = ""
    """Which of several it is."""
    capture: Capture | None = None
    """The facts of its window, if it is one of ours."""

    @property
    def rank(self) -> int:
        """The rank that recorded it, as far as its folder knows."""
        return 0 if self.capture is None else self.capture.rank


def find(target: str) -> list[Source]:
    """Find the traces that a user means, windows and ranks in order.

    Args:
        target: a trace or a URL of one, the folder of a run or of a window, a folder that holds runs (the latest is
            taken), or any folder with traces as torch names them.

    Raises:
        TraceError: there is none.
        PerfhooksError: the run folder was written by a newer perfhooks.
    """
    path = Path(target)
    if "://" in target or path.is_file():
        return [Source(target)]
    if not path.exists():
        raise TraceError(f"{target} does not exist")
    places = Run.existing(path).places() if (path / "run.json").exists() else _places(path)
    if not places and (path / "latest" / "run.json").exists():
        places = Run.existing(path / "latest").places()
    found = [source for place in places if (source := _source(place)) is not None]
    if not places:
        found = [Source(each, each.name) for pattern in _TRACES for each in sorted(path.glob(pattern))]
    if not found:
        missing = "its windows kept no trace" if places else "no run, no window, and no *.pt.trace.json"
        raise TraceError(f"{target} has no trace to show: {missing}")
    return found


def _places(window: Path) -> list[Place]:
    """The ranks of one window."""
    return [place for place in Run(window.parent).places() if place.folder.name == window.name]


def _source(place: Place) -> Source | None:
    capture = None
    with contextlib.suppress(PerfhooksError):
        capture = place.load()
    for path in (*map(place.artifact, _NAMES), *([place.saved(capture)] if capture else [])):
        if path.exists():
            return Source(path, place.folder.name, capture or Capture(rank=place.rank))
    return None


def compute(trace: Trace, name: str, by: Sequence[str] = (), capture: Capture | None = None) -> pl.DataFrame:
    """One table of one trace.

    Args:
        trace: any trace.
        name: one of `TABLES`.
        by: what to split it by, of `GROUPS`.
        capture: the facts of its window, if it is one of ours.

    Raises:
        OptionError: there is no such table, or it cannot be split so.
    """
    check(name, by)
    from perfhooks.handlers.tables import step_rows
    from perfhooks.trace import (
        checks,
        collectives,
        copies,
        kernels,
        memory,
        modules,
        operators,
        steps,
        synchronisations,
    )

    if name == "steps":
        return steps.table(trace) if capture is None else step_rows(capture, trace)
    if name == "operators":
        return operators.table(trace, by)
    if name == "kernels":
        return kernels.by_launch(trace) if by else kernels.table(trace)
    if name == "stacks":
        return _stacks(trace, by[0] if by else "host")
    plain = {"copies": copies.table, "syncs": synchronisations.table, "modules": modules.table}
    plain |= {"collectives": collectives.table, "memory": memory.alive_at_peak, "checks": checks.table}
    return plain[name](trace)


def _stacks(trace: Trace, by: str) -> pl.DataFrame:
    import polars as pl

    from perfhooks.trace import stacks

    folded = stacks.folded(trace, by)  # type: ignore[arg-type]  # checked against GROUPS
    values = pl.Series("bytes" if by == "bytes" else "self_ms", list(folded.values()), dtype=pl.Int64)
    scaled = values if by == "bytes" else values * 1e-6
    return pl.DataFrame([scaled, pl.Series("stack", list(folded), dtype=pl.String)])


def check(name: str, by: Sequence[str] = ()) -> None:
    """Refuse a table that there is not.

    Raises:
        OptionError: there is no such table, or it cannot be split so.
    """
    if name not in TABLES:
        close = difflib.get_close_matches(name, TABLES, n=1, cutoff=0.7)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"table must be one of {', '.join(TABLES)}, got {name!r}{hint}")
    allowed = GROUPS.get(name, ())
    for each in by:
        if each not in allowed:
            rule = f"must be of {', '.join(allowed)}" if allowed else "is of no use"
            raise OptionError(f"by {rule} for the table {name!r}, got {each!r}")
    if name == "stacks" and len(by) > 1:
        raise OptionError(f"stacks are by one of {', '.join(allowed)}, got {', '.join(by)}")


def tables(target: str, names: Sequence[str], by: Sequence[str] = ()) -> dict[str, pl.DataFrame]:
    """The tables that a user asks for, over everything that is meant.

    Steps and checks are those of all windows, the other tables those of the last one; all ranks are in all of them. A
    column ``window`` tells windows apart, and ``rank`` ranks, where there are several.

    Args:
        target: see `find`.
        names: of `TABLES`.
        by: what to split them by.

    Raises:
        TraceError: there is no trace, or one cannot be read.
        OptionError: there is no such table, or it cannot be split so.
    """
    for name in names:
        check(name, by)
    from perfhooks import trace

    sources = find(target)
    last = max(sources, key=lambda source: source.capture.time if source.capture else 0.0).window
    wanted = [source for source in sources if source.window == last or set(names) & set(_OF_ALL_WINDOWS)]
    found: dict[str, list[pl.DataFrame]] = {name: [] for name in names}
    for source in wanted:
        with working(f"reading {source.path}"):
            read = trace.read(source.path)
            for name in names:
                if source.window == last or name in _OF_ALL_WINDOWS:
                    found[name].append(_told_apart(compute(read, name, by, source.capture), source, sources))
    return {name: _joined(frames) for name, frames in found.items()}


def _joined(frames: list[pl.DataFrame]) -> pl.DataFrame:
    import polars as pl

    return pl.concat(frames, how="diagonal_relaxed")


def _told_apart(table: pl.DataFrame, source: Source, others: Sequence[Source]) -> pl.DataFrame:
    import polars as pl

    first = []
    if len({each.window for each in others}) > 1:
        first.append(pl.lit(source.window).alias("window"))
    if len({each.rank for each in others}) > 1 and "rank" not in table.columns:
        first.append(pl.lit(source.rank, pl.Int64).alias("rank"))
    return table.select(*first, pl.all())


def form(*, csv: bool, json: bool) -> Form:
    """How to write, by what was asked for, else a table on a terminal and CSV in a pipe.

    Raises:
        OptionError: both were asked for.
    """
    if csv and json:
        raise OptionError("choose one of --csv and --json")
    return "csv" if csv else "json" if json else "table" if sys.stdout.isatty() else "csv"


def show(target: str, names: Sequence[str], by: Sequence[str] = (), *, form: Form, limit: int | None = None) -> None:
    """Write tables to standard output.

    Args:
        target: see `find`.
        names: of `TABLES`; none are an overview (as CSV, the table of steps).
        by: what to split them by.
        form: how to write them.
        limit: how many rows of each; None is what fits a screen, and all in CSV and JSON; 0 is all.

    Raises:
        TraceError: there is no trace, or one cannot be read.
        OptionError: what is asked for cannot be.
    """
    chosen = tuple(dict.fromkeys(names)) or (OVERVIEW[:1] if form == "csv" else OVERVIEW)
    if form == "csv" and len(chosen) > 1:
        raise OptionError(f"CSV holds one table, choose one of {', '.join(chosen)}; JSON holds several")
    if limit is not None and limit < 0:
        raise OptionError(f"limit must be an integer >= 0, got {limit}")
    found = tables(target, chosen, by)
    if form == "table":
        from perfhooks.report.terminal_tables import draw

        draw(found, limit)
        return
    shown = {name: table.head(limit) if limit else table for name, table in found.items()}
    write = _csv if form == "csv" else _json
    sys.stdout.flush()
    sys.stdout.buffer.write(write(shown, alone=bool(names)).encode("utf-8", "replace"))
    sys.stdout.flush()


def _csv(found: dict[str, pl.DataFrame], *, alone: bool) -> str:  # noqa: ARG001 - the form of a writer
    (table,) = found.values()
    return table.write_csv(float_precision=6)


def _json(found: dict[str, pl.DataFrame], *, alone: bool) -> str:
    """A list of rows for the one table that was asked for, else an object of such lists."""
    texts = {name: table.write_json() for name, table in found.items()}
    if alone and len(texts) == 1:
        return f"{next(iter(texts.values()))}\n"
    return "{" + ",\n ".join(f'"{name}": {text}' for name, text in texts.items()) + "}\n"
