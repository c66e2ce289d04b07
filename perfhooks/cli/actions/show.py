from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
import polars as pl
import typer

from perfhooks import trace
from perfhooks.analysis import findings, ranks
from perfhooks.analysis.findings import data, frameworks
from perfhooks.analysis.findings.finding import add_source_lines, additional_findings, estimate, ordered
from perfhooks.analysis.findings.loader_plan import COLUMNS
from perfhooks.analysis.ranks.findings import merge_findings
from perfhooks.analysis.ranks.missing import spans
from perfhooks.cli.actions import mirror, output
from perfhooks.cli.actions.sources import Source, find, last_window, run_of
from perfhooks.cli.targets import run_in
from perfhooks.core import words
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.progress import show_spinner
from perfhooks.core.schedule.settled import FEWEST_STEPS
from perfhooks.report.finishing.adoption import adopted
from perfhooks.report.handlers import collectives
from perfhooks.report.page import compiled_rows, findings_file, slow_rows, startup_rows
from perfhooks.report.page import markdown as in_markdown
from perfhooks.report.page.run_data import from_trace, gather, stored_findings
from perfhooks.report.page.run_summary import read_summary
from perfhooks.report.page.terminal_tables import NOTHING, draw
from perfhooks.run import loose, remote
from perfhooks.run.capture import Capture
from perfhooks.run.loader import workers
from perfhooks.trace.kinds import DEVICE_WORK, Kind
from perfhooks.trace.names import sort_keys, stages
from perfhooks.trace.window import Tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfhooks.trace import Trace

TABLES: Final = (
    *("labels", "steps", "operators", "kernels", "categories", "collectives", "copies", "syncs"),
    *("counters", "idle", "gaps", "functions", "modules", "memory", "stacks"),
    *("workers", "plan", "compiled", "findings", "checks", "startup", "slow"),
)

OVERVIEW: Final = ("labels", "steps", "operators", "kernels", "checks", "findings")
"""Tables printed without ``-t``. The table ``labels`` is printed only on a terminal."""
_SORTED: Final = ("operators",)
"""Tables that ``--sort`` prints without ``-t``."""

GROUPS: Final = {
    "operators": ("shapes", "stack", "line", "module", "step"),
    "kernels": ("operator",),
    "idle": ("step",),
    "counters": ("kernel",),
    "stacks": ("host", "device", "bytes"),
}

_FINDINGS: Final = {
    "rule": str,
    "title": str,
    "gain_ms": float,
    "gain_percent": float,
    "is_bound": bool,
    "is_percent_of_run": bool,
    **dict.fromkeys(("advice", "code", "evidence", "estimate", "where"), str),
}
_ATTRIBUTES: Final = {"syncs": "synchronisations", "memory": "alive_at_peak"}
_SPLIT: Final = {"kernels": "kernels_by_launch", "counters": "counters_by_kernel"}
_OF_ALL_WINDOWS: Final = ("steps", "checks")
_OF_STACKS: Final = ("functions", "modules", "stacks")
"""Tables that need stacks. The second window of a loop has stacks if the last window has none."""
_NEEDED_OPTIONS: Final = {"shapes": "record_shapes", **dict.fromkeys(("stack", "line", "module"), "with_stack")}
"""Option of the recorder that a value of ``--by`` needs."""
_OF_RUN: Final = ("startup", "slow")

Form = Literal["table", "csv", "json"]


def compute(trace: Trace, name: str, by: Sequence[str] = (), capture: Capture | None = None) -> pl.DataFrame:
    check(name, by)
    by_name = Tables(trace) if capture is None else capture.tables(trace)
    if name == "operators":
        return by_name.operators(by)
    if name == "idle":
        return by_name.idle(by)
    if name in ("findings", "plan"):
        return _told(_findings(trace, capture)) if name == "findings" else _plan(trace, capture or Capture())
    if name in (*_OF_RUN, "compiled", "workers"):
        return _of_process(name, capture or Capture())
    if name == "stacks":
        return _stacks(by_name, by[0] if by else "host")
    attribute = _SPLIT[name] if by else _ATTRIBUTES.get(name, name)
    table: pl.DataFrame = getattr(by_name, attribute)
    return table


def _findings(trace: Trace, capture: Capture | None) -> list[dict[str, Any]]:
    trace_findings = findings.find(capture or Capture(stage=stages.shown(trace), last=0), trace)
    return [msgspec.to_builtins(item) for item in trace_findings]


def _explained(rows: list[dict[str, Any]], source: Source, sources: Sequence[Source]) -> list[dict[str, Any]]:
    other = last_window(sources, need="with_stack")[0]
    if not other.explains or other.capture is None or source.has("with_stack"):
        return rows
    lines = _findings(trace.read(other.path, communication=other.communication), other.capture)
    steps = words.steps(other.capture.first, other.capture.end)
    return [*add_source_lines(rows, lines, steps), *additional_findings(rows, lines, steps)]


def _told(rows: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    finding_rows = [
        {name: row.get(name) for name in _FINDINGS}
        | {"evidence": "; ".join(line["text"] for line in row["evidence"]), "estimate": estimate(row)}
        | {"where": str(findings.source_location(row["evidence"]))}
        for row in rows
    ]
    return pl.DataFrame(finding_rows, schema=_FINDINGS)


class _FindingsTable:
    def __init__(self, sources: Sequence[Source], run: Path | None, *, is_wanted: bool) -> None:
        self._sources = sources
        self._stored = stored_findings(run) if run is not None and is_wanted else None
        self._of_ranks: dict[int, Sequence[Mapping[str, Any]]] = {}
        self._steps: dict[int, pl.DataFrame] = {}
        self._collectives: dict[int, pl.DataFrame] = {}

    def window(self, last: str) -> str:
        shown = "" if self._stored is None else self._stored.window
        return shown if shown in {source.window for source in self._sources} else last

    def add(self, source: Source, trace: Trace) -> None:
        stored = None if self._stored is None else self._stored.of_ranks.get((source.window, source.rank))
        rows = _explained(_findings(trace, source.capture), source, self._sources) if stored is None else stored
        self._of_ranks[source.rank] = rows
        if self._stored is None and source.capture is not None:
            self._steps[source.rank] = source.capture.tables(trace).steps
            self._collectives[source.rank] = collectives.rows(source.capture, trace)

    def table(self, window: str) -> pl.DataFrame:
        """Findings as a table. Equal findings of several ranks share a row."""
        of_run: Sequence[Mapping[str, Any]] = [] if self._stored is None else self._stored.of_run
        if len(self._of_ranks) == 1:
            return _told(ordered([*of_run, *next(iter(self._of_ranks.values()))]))
        if len(self._steps) > 1:
            of_run = ranks.findings(ranks.compare(f"traces {window}", self._steps, self._collectives))
        rows = merge_findings(self._of_ranks, of_run)
        whose = pl.DataFrame(
            {"rank": [row["rank"] for row in rows], "ranks": [spans(row["ranks"]) or None for row in rows]},
            schema={"rank": pl.Int64, "ranks": pl.String},
        )
        return pl.concat([whose, _told(rows)], how="horizontal")


def _plan(trace: Trace, capture: Capture) -> pl.DataFrame:
    plan = data.LoaderUse.of(findings.Evidence(capture, trace)).shown_plan(capture)
    return pl.DataFrame(plan.rows if plan is not None else None, schema=COLUMNS)


def _of_process(name: str, capture: Capture) -> pl.DataFrame:
    if name == "workers":
        return pl.DataFrame(workers.rows(capture.circumstances.workers), schema_overrides={"line": pl.Int64})
    return compiled_rows.functions(capture.compilation) if name == "compiled" else _of_run(name, None)


def _of_run(name: str, run: Path | None) -> pl.DataFrame:
    return slow_rows.table(run) if name == "slow" else startup_rows.table(run)


def _stacks(tables: Tables, by: str) -> pl.DataFrame:
    folded = tables.stacks(by)  # type: ignore[arg-type]  # checked against GROUPS
    values = pl.Series("bytes" if by == "bytes" else "self_ms", list(folded.values()), dtype=pl.Int64)
    scaled = values if by == "bytes" else values * 1e-6
    return pl.DataFrame([scaled, pl.Series("stack", list(folded), dtype=pl.String)])


def check(name: str, by: Sequence[str] = ()) -> None:
    if name not in TABLES:
        close = difflib.get_close_matches(name, TABLES, n=1, cutoff=0.7)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise OptionError(f"table must be one of {', '.join(TABLES)}, got {name!r}{hint}")
    allowed = GROUPS.get(name, ())
    for item in by:
        if item not in allowed:
            if not allowed:
                tables_with_groups = ", ".join(GROUPS)
                raise OptionError(f"by (--by) is for the tables {tables_with_groups}, not for {name!r}, got {item!r}")
            raise OptionError(f"by must be one or more of {', '.join(allowed)} for the table {name!r}, got {item!r}")
    if name == "stacks" and len(by) > 1:
        raise OptionError(f"by must be one of {', '.join(allowed)} for the table 'stacks', got {', '.join(by)}")


def tables(
    target: str | None, names: Sequence[str], by: Sequence[str] = (), *, communication: str | None = None
) -> dict[str, pl.DataFrame]:
    """Return tables of a run, a window or a trace.

    The tables of steps and checks cover all windows. The tables of the start-up and of slow steps cover the run. Other
    tables cover the last window. If the last window lacks stacks or shapes, tables that need them come from the loop's
    second window.

    Raises:
        TraceError: A trace is missing or cannot be read.
        OptionError: A table does not exist, or cannot be grouped by a name in ``by``.
    """
    for name in names:
        check(name, by)
    run, of_windows = run_of(target), [name for name in names if name not in _OF_RUN]
    sources = find(target) if of_windows or run is None else []
    by_name: dict[str, list[pl.DataFrame]] = {name: [] for name in of_windows}
    of_last = {name: last_window(sources, need=_need(name, by))[0].window for name in of_windows}
    all_findings = _FindingsTable(sources, run, is_wanted="findings" in of_windows)
    if "findings" in of_windows:
        of_last["findings"] = all_findings.window(of_last["findings"])
    sources_of_windows = [source for source in sources if not source.explains] or sources
    for source in sources:
        here = [
            name
            for name in of_windows
            if source.window == of_last[name] or (name in _OF_ALL_WINDOWS and source in sources_of_windows)
        ]
        if not here:
            continue
        with show_spinner(f"reading {source.path}"):
            read = trace.read(source.path, communication=communication or source.communication)
            for name in here:
                if name == "findings":
                    all_findings.add(source, read)
                else:
                    by_name[name].append(
                        _told_apart(compute(read, name, by, source.capture), source, sources_of_windows)
                    )
    if "findings" in of_windows:
        source = next(source for source in sources if source.window == of_last["findings"])
        by_name["findings"] = [_told_apart(all_findings.table(source.window), source, sources_of_windows)]
    return {name: _joined(by_name[name]) if name in by_name else _of_run(name, run) for name in names}


def _need(name: str, by: Sequence[str]) -> str | None:
    if name in _OF_STACKS and "device" not in by:
        return "with_stack"
    return next((_NEEDED_OPTIONS[item] for item in by if item in _NEEDED_OPTIONS), None)


def _joined(frames: list[pl.DataFrame]) -> pl.DataFrame:
    return pl.concat(frames, how="diagonal_relaxed")


def _told_apart(table: pl.DataFrame, source: Source, sources_of_windows: Sequence[Source]) -> pl.DataFrame:
    first = []
    if source.explains or len({item.window for item in sources_of_windows}) > 1:
        first.append(pl.lit(source.window).alias("window"))
    if len({item.rank for item in sources_of_windows}) > 1 and "rank" not in table.columns:
        first.append(pl.lit(source.rank, pl.Int64).alias("rank"))
    return table.select(*first, pl.all())


def markdown(target: str | None, communication: str | None = None) -> str:
    """Return a summary in at most 2,000 tokens."""
    path = _local(target)
    if path.exists() and not path.is_dir():
        return in_markdown.of_trace(path, communication)
    if not _is_loose(path):
        return in_markdown.of_run(run_in(path) or path)
    with adopted(path, communication=communication) as run:
        return in_markdown.of_run(run.folder, [trace.path for trace in loose.traces(path)])


def findings_json(target: str | None, communication: str | None = None) -> bytes:
    """Return the content of ``findings.json`` for a run, a window, a trace or a folder of traces."""
    path = _local(target)
    if path.exists() and not path.is_dir():
        return findings_file.to_json(findings_file.from_data(from_trace(path, communication=communication)))
    run = run_of(str(path))
    if run is None and _is_loose(path):
        with adopted(path, communication=communication) as loose_run:
            return findings_file.to_json(findings_file.from_data(gather(loose_run.folder)))
    if run is None:
        raise PerfhooksError(f"{path} is no run, no trace and no folder of traces")
    window = path.name if path.resolve().parent == run.resolve() else None
    return findings_file.to_json(findings_file.from_data(gather(run), window))


def _local(target: str | None) -> Path:
    return mirror.here(target, traces=target is not None and remote.is_url(target) and mirror.holds_traces(target))


def _is_loose(path: Path) -> bool:
    return run_in(path) is None and bool(loose.traces(path))


def form(*, csv: bool, json: bool) -> Form:
    if csv and json:
        raise OptionError("use either --csv or --json")
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
    all_columns: bool = True,
) -> None:
    """Write tables to standard output. Without names, an overview is written, or as CSV the table of steps.

    ``limit``: maximum rows of a table; 0 for all. None shows 10 or 20 rows on the screen, and all in CSV and JSON.
    ``sort``: see `perfhooks.trace.names.sort_keys`. Without ``all_columns``, CSV lacks empty columns.
    """
    selected = tuple(dict.fromkeys(names)) or (_SORTED if sort else ("steps",) if form == "csv" else OVERVIEW)
    if form == "csv" and len(selected) > 1:
        raise OptionError(f"CSV contains one table; choose one of {', '.join(selected)}, or use JSON for several")
    if limit is not None and limit < 0:
        raise OptionError(f"limit must be an integer >= 0, got {limit}")
    target = mirror.named(target)
    by_name = tables(target, selected, by, communication=communication)
    _warn_of_few_steps(target, [name for name in selected if name in _OF_STACKS and _need(name, by)])
    if form == "table" and "labels" in by_name and not names and not by_name["labels"]["own"].any():
        del by_name["labels"]
    if form == "table" and not sort and "operators" in by_name:
        by_name["operators"] = _by_device(by_name["operators"])
    if sort:
        by_name = {name: _sorted(name, table, sort) for name, table in by_name.items()}
    if form == "table":
        if not names and (summary := _summary(target)):
            sys.stdout.write(f"{summary}\n\n")
        draw(by_name, limit, nothing=NOTHING | _unrecorded(target, by_name))
        return
    shown = {name: table.head(limit) if limit else table for name, table in by_name.items()}
    if form == "csv" and not all_columns:
        shown = {name: _without_empty_columns(table) for name, table in shown.items()}
    sys.stdout.flush()
    for text in _written(shown, form, alone=bool(names)):
        sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.flush()


def _summary(target: str | None) -> str:
    run = run_of(target)
    by_name = None if run is None else read_summary(run)
    return "" if by_name is None else "\n".join(filter(None, [by_name.line, by_name.warning]))


def _without_empty_columns(table: pl.DataFrame) -> pl.DataFrame:
    filled = [column.name for column in table if column.null_count() < table.height]
    return table.select(filled) if table.height else table


def _unrecorded(target: str | None, by_name: Mapping[str, pl.DataFrame]) -> dict[str, str]:
    empty = [name for name in (*_OF_STACKS, "workers", "plan") if name in by_name and not by_name[name].height]
    if not empty:
        return {}
    circumstances = (last_window(find(target), need="with_stack")[0].capture or Capture()).circumstances
    reasons = dict.fromkeys(
        _OF_STACKS, f"none: no stacks were recorded; {frameworks.stacks(circumstances)} records them"
    )
    missed = data.missing_samples_text(circumstances)
    return reasons | (dict.fromkeys(("workers", "plan"), missed) if missed else {})


def _warn_of_few_steps(target: str | None, names: Sequence[str]) -> None:
    capture = last_window(find(target), need="with_stack")[0].capture if names else None
    if capture is None or not capture.options.get("with_stack") or capture.end - capture.first + 1 >= FEWEST_STEPS:
        return
    shown = words.steps(capture.first, capture.end)
    basis = f"a part of {shown} only ({capture.partial})" if capture.is_part else f"{shown} only"
    option = frameworks.stacks(capture.circumstances)
    text = f"{', '.join(names)} from {basis}: times of few steps vary; {option} records more steps"
    typer.echo(words.line(f"perfhooks: {text}"), err=True)


def _by_device(table: pl.DataFrame) -> pl.DataFrame:
    if not (table["self_device_ms"].fill_null(0) > 0).any():
        return table
    shown = table.filter(~pl.col("kind").is_in([kind.name.lower() for kind in (*DEVICE_WORK, Kind.DEVICE_ANNOTATION)]))
    return _sorted("operators", shown, "self_device_ms") if shown.height else table


def _sorted(name: str, table: pl.DataFrame, sort: str) -> pl.DataFrame:
    column = sort_keys.check(name, sort, table.columns).partition(" / ")[0]
    return sort_keys.ordered(name, table, sort).select(*dict.fromkeys((table.columns[0], column, *table.columns)))


def _written(by_name: dict[str, pl.DataFrame], form: Form, *, alone: bool) -> Iterator[str]:
    if form == "csv":
        (table,) = by_name.values()
        yield from output.csv(table)
        return
    yield from output.json(*by_name.values()) if alone and len(by_name) == 1 else output.json_object(by_name)
    yield "\n"
