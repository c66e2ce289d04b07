from __future__ import annotations

import sys
from enum import Enum
from typing import Annotated, Final

import typer

from perfhooks.cli.trace_options import COMMUNICATION, MAX_UNPACKED
from perfhooks.core.errors import OptionError

EXAMPLES: Final = """Examples:

- `perfhooks show trace.json.gz`
- `perfhooks show perf/latest --table steps`
- `perfhooks show trace.json.gz -t operators --by shapes --limit 50`
- `perfhooks show trace.json.gz -t labels`
- `perfhooks show trace.json.gz --sort cuda_time_total`
- `perfhooks show trace.json.gz -t kernels --csv > kernels.csv`
- `perfhooks show trace.json.gz -t steps --json | jq '.[].wall_ms'`
- `perfhooks show perf/latest --format json | jq '.findings[].title'`
"""

_TABLE_HELP: Final = (
    "steps, operators, kernels, collectives, copies, syncs, modules, memory, stacks; labels: your labels, "
    "largest first; functions: Python functions, if stacks were recorded; workers: time of loader workers, if "
    "stacks were recorded; plan: number of loader workers that keep up with the training; categories: time of "
    "each kind of work; counters: power, clocks and other samples in each step; idle: causes of idle time; gaps: "
    "longest idle times; compiled: graphs of torch.compile; findings: problems and their fixes; checks: doubts about "
    "the trace; startup: time before the first step; slow: slow steps and their causes. Repeat it for several. "
    "Default: an overview."
)


def _tables() -> list[str]:
    from perfhooks.cli.actions.show import TABLES

    return list(TABLES)


class Written(str, Enum):
    table = "table"
    csv = "csv"
    json = "json"
    markdown = "markdown"


_TARGET: Final = typer.Argument(
    help="A Kineto trace (.json, .json.gz, a URL), or the folder of a run, of a window or of traces. "
    "Default: the last run below the current folder.",
)
_TABLE: Final = typer.Option("--table", "-t", help=_TABLE_HELP, autocompletion=_tables)
_BY: Final = typer.Option(
    "--by",
    help="Split operators by shapes, stack, line, module, step; kernels by operator; idle by step; counters by "
    "kernel. Measure stacks in device time or bytes (device, bytes) instead of host time.",
)
_SORT: Final = typer.Option(
    "--sort",
    help="Sort by a column, the largest first, or by a key of torch's tables: cpu_time_total, cuda_time, "
    "self_cpu_memory_usage, count and so on. Without --table it sorts operators.",
)
_CSV: Final = typer.Option(
    "--csv", help="CSV with all columns. Without this option, a pipe gets CSV without empty columns."
)
_JSON: Final = typer.Option(
    "--json",
    help="JSON: without --table the findings, as in findings.json; otherwise the rows of the table, or an "
    "object with the rows of several tables.",
)
_FORMAT: Final = typer.Option("--format", "-f", help="Output format; markdown is a summary of the run.")
_LIMIT: Final = typer.Option(
    "--limit",
    "-n",
    help="Maximum rows; 0 shows all. Default: as many as fit the screen; all in CSV and JSON.",
)


def command(
    target: Annotated[str | None, _TARGET] = None,
    *,
    table: Annotated[list[str] | None, _TABLE] = None,
    by: Annotated[list[str] | None, _BY] = None,
    sort: Annotated[str | None, _SORT] = None,
    csv: Annotated[bool, _CSV] = False,
    json: Annotated[bool, _JSON] = False,
    written: Annotated[Written | None, _FORMAT] = None,
    communication: Annotated[str | None, COMMUNICATION] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
    limit: Annotated[int | None, _LIMIT] = None,
) -> None:
    """Show where the time went in a trace: tables on a terminal, CSV in a pipe.

    The command reads any trace of torch.profiler. Times are in milliseconds.
    """
    from perfhooks.cli.actions import show

    if written is Written.markdown:
        if table or by or sort or csv or json or limit is not None:
            raise OptionError("--format markdown is a summary of the run; use --csv or --json for a table")
        typer.echo(show.markdown(target, communication), nl=False)
        return
    is_csv, is_json = csv or written is Written.csv, json or written is Written.json
    form_name = show.form(csv=is_csv, json=is_json)
    if is_json and not (table or sort):
        if by or limit is not None:
            raise OptionError("--by and --limit need --table: without a table, JSON contains the findings")
        sys.stdout.buffer.write(show.findings_json(target, communication))
        return
    show.show(
        target,
        table or (),
        by or (),
        form="table" if written is Written.table else form_name,
        limit=limit,
        communication=communication,
        sort=sort,
        all_columns=is_csv,
    )
