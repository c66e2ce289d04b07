"""Tables that a user asks for, of one trace or of all windows of a run."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import polars as pl

from perfhooks import findings, trace
from perfhooks.command.actions import table_text
from perfhooks.command.actions.sources import Source, find, last_window, run_of
from perfhooks.command.targets import last_run, run_in
from perfhooks.errors import OptionError
from perfhooks.progress import working
from perfhooks.report import markdown as summary
from perfhooks.report import slow_rows, startup_rows
from perfhooks.report.terminal_tables import draw
from perfhooks.run.capture import Capture
from perfhooks.trace.names import sort_keys
from perfhooks.trace.window import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.trace import Trace

TABLES: Final = (
    *("labels", "steps", "operators", "kernels", "categories", "collectives", "copies", "syncs"),
    *("gaps", "functions", "modules", "memory", "stacks", "findings", "checks", "startup", "slow"),
)
"""What can be shown."""

OVERVIEW: Final = ("labels", "steps", "operators", "kernels", "checks", "findings")
"""What is shown if nothing is asked for; on a terminal labels where somebody wrote some."""
_SORTED: Final = ("operators",)
"""What is shown if nothing but an order is asked for."""

GROUPS: Final = {
    "operators": ("shapes", "stack", "line", "module", "step"),
    "kernels": ("operator",),
    "stacks": ("host", "device", "bytes"),
}
"""What a table can be split by; a table of stacks has just one measure."""

_FINDINGS: Final = {
    "rule": str,
    "title": str,
    "gain_ms": float,
    "gain_percent": float,
    **dict.fromkeys(("advice", "code", "evidence", "estimate"), str),
}
_ATTRIBUTES: Final = {"syncs": "synchronisations", "memory": "alive_at_peak"}
"""Tables that `perfhooks.trace.window.Tables` calls otherwise."""
_OF_ALL_WINDOWS: Final = ("steps", "checks")
_OF_RUN: Final = ("startup", "slow")
"""Tables of a run, and of no window of it."""

Form = Literal["table", "csv", "json"]


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
    found = Tables(trace) if capture is None else capture.tables(trace)
    if name == "operators":
        return found.operators(by)
    if name == "findings":
        return _findings(trace, capture)
    if name in _OF_RUN:  # of a process, and not in its traces
        return _of_run(name, None)
    if name == "stacks":
        return _stacks(found, by[0] if by else "host")
    attribute = "kernels_by_launch" if name == "kernels" and by else _ATTRIBUTES.get(name, name)
    table: pl.DataFrame = getattr(found, attribute)
    return table


def _findings(trace: Trace, capture: Capture | None) -> pl.DataFrame:
    # with a last step, whatever it is, no step was cut short
    found = findings.find(capture or Capture(stage="trace", last=0), trace)
    rows = [{name: getattr(each, name) for name in _FINDINGS} for each in found]
    texts = [row | {"evidence": "; ".join(row["evidence"])} for row in rows]
    return pl.DataFrame(texts, schema=_FINDINGS)


def _of_run(name: str, run: Path | None) -> pl.DataFrame:
    """A table of a whole run; that of none has its columns."""
    return slow_rows.table(run) if name == "slow" else startup_rows.table(run)


def _stacks(found: Tables, by: str) -> pl.DataFrame:
    folded = found.stacks(by)  # type: ignore[arg-type]  # checked against GROUPS
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


def tables(
    target: str | None, names: Sequence[str], by: Sequence[str] = (), *, communication: str | None = None
) -> dict[str, pl.DataFrame]:
    """The tables that a user asks for, over everything that is meant.

    Steps and checks are those of all windows, what came before the first step and the slow steps those of the run, and
    the other tables those of the last window; all ranks are in all of them. A
    column ``window`` tells windows apart, and ``rank`` ranks, where there are several.

    Args:
        target: see `find`.
        names: of `TABLES`.
        by: what to split them by.
        communication: kernels that communicate, see `perfhooks.trace.read`; None takes what the training said.

    Raises:
        TraceError: there is no trace, or one cannot be read.
        OptionError: there is no such table, or it cannot be split so.
    """
    for name in names:
        check(name, by)
    run, of_windows = run_of(target), [name for name in names if name not in _OF_RUN]
    # a run without a window may have a table of its own; what is no run is an error, or a trace that has none
    sources = find(target) if of_windows or run is None else []
    found: dict[str, list[pl.DataFrame]] = {name: [] for name in of_windows}
    last = last_window(sources)[0].window if of_windows else None
    for source in sources if of_windows else ():
        here = [name for name in of_windows if source.window == last or name in _OF_ALL_WINDOWS]
        if not here:
            continue
        with working(f"reading {source.path}"):
            read = trace.read(source.path, communication=communication or source.communication)
            for name in here:
                found[name].append(_told_apart(compute(read, name, by, source.capture), source, sources))
    return {name: _joined(found[name]) if name in found else _of_run(name, run) for name in names}


def _joined(frames: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames, how="diagonal_relaxed")


def _told_apart(table: pl.DataFrame, source: Source, others: Sequence[Source]) -> pl.DataFrame:
    first = []
    if len({each.window for each in others}) > 1:
        first.append(pl.lit(source.window).alias("window"))
    if len({each.rank for each in others}) > 1 and "rank" not in table.columns:
        first.append(pl.lit(source.rank, pl.Int64).alias("rank"))
    return table.select(*first, pl.all())


def markdown(target: str | None, names: Sequence[str] = ()) -> str:
    """A summary of a run or a trace in at most 2,000 tokens.

    Raises:
        OptionError: Tables were asked for as well.
        TraceError: It is neither.
    """
    if names:
        raise OptionError("--format markdown is a summary of the whole; choose --csv or --json for a table")
    path = last_run() if target is None else Path(target)
    if path.is_file() or (target is not None and "://" in target):
        return summary.of_trace(path)
    return summary.of_run(run_in(path) or path)


def form(*, csv: bool, json: bool) -> Form:
    """How to write, by what was asked for, else a table on a terminal and CSV in a pipe.

    Raises:
        OptionError: both were asked for.
    """
    if csv and json:
        raise OptionError("choose one of --csv and --json")
    return "csv" if csv else "json" if json else "table" if sys.stdout.isatty() else "csv"


def show(
    target: str | None,
    names: Sequence[str],
    by: Sequence[str] = (),
    *,
    form: Form,
    limit: int | None = None,
    communication: str | None = None,
    sort: str | None = None,
) -> None:
    """Write tables to standard output.

    Args:
        target: see `find`.
        names: of `TABLES`; none are an overview (as CSV, the table of steps).
        by: what to split them by.
        form: how to write them.
        limit: how many rows of each; None is what fits a screen, and all in CSV and JSON; 0 is all.
        communication: see `tables`.
        sort: what to sort them by, see `perfhooks.trace.names.sort_keys`; None is the order of each.

    Raises:
        TraceError: there is no trace, or one cannot be read.
        OptionError: what is asked for cannot be.
    """
    chosen = tuple(dict.fromkeys(names)) or (_SORTED if sort else ("steps",) if form == "csv" else OVERVIEW)
    if form == "csv" and len(chosen) > 1:
        raise OptionError(f"CSV holds one table, choose one of {', '.join(chosen)}; JSON holds several")
    if limit is not None and limit < 0:
        raise OptionError(f"limit must be an integer >= 0, got {limit}")
    found = tables(target, chosen, by, communication=communication)
    if form == "table" and "labels" in found and not names and not found["labels"]["own"].any():
        del found["labels"]
    if sort:
        found = {name: _sorted(name, table, sort) for name, table in found.items()}
    if form == "table":
        draw(found, limit)
        return
    shown = {name: table.head(limit) if limit else table for name, table in found.items()}
    sys.stdout.flush()
    for text in _written(shown, form, alone=bool(names)):
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def _sorted(name: str, table: pl.DataFrame, sort: str) -> pl.DataFrame:
    """A table in an order, with the column of the order beside the first: a terminal may not have room for all."""
    column = sort_keys.check(name, sort, table.columns).partition(" / ")[0]
    return sort_keys.ordered(name, table, sort).select(*dict.fromkeys((table.columns[0], column, *table.columns)))


def _written(found: dict[str, pl.DataFrame], form: Form, *, alone: bool) -> Iterator[str]:
    """CSV, or a list of rows for the one table that was asked for, else an object of such lists."""
    if form == "csv":
        (table,) = found.values()
        yield from table_text.csv(table)
        return
    yield from table_text.json(*found.values()) if alone and len(found) == 1 else table_text.json_object(found)
    yield "\n"
