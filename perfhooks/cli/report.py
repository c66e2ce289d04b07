from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perfhooks.cli.trace_options import COMMUNICATION, MAX_UNPACKED
from perfhooks.core.errors import PerfhooksError

EXAMPLES: Final = """Examples:

- `perfhooks report perf/latest --open`
- `perfhooks report trace.json.gz -o page.html`
- `perfhooks report s3://bucket/runs/r -o page.html`
- `perfhooks report traces --on local`
"""


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A run folder, for example perf/latest, a Kineto trace, a folder of traces, or a URL of these. "
            "Default: the last run below the current folder.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Path of the report of traces; - is standard output."),
    ] = None,
    communication: Annotated[str | None, COMMUNICATION] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
    on: Annotated[
        str | None,
        typer.Option(
            "--on",
            metavar="ENGINE",
            help="Engine that reads the traces of a folder: local or local:8 (processes), dask://scheduler:8786, "
            "ray://head:10001. By default this process reads them one after the other.",
            show_default=False,
        ),
    ] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    handler: Annotated[
        list[str] | None,
        typer.Option(
            "--handler",
            help="Handler of your own that may run for each window, for example mine.handlers:Table. Handlers "
            "that only the files of a run request do not run without this option. Repeat the option for several.",
            show_default=False,
        ),
    ] = None,
    upload: Annotated[
        str | None,
        typer.Option(
            "--upload", help="URL to which the finished run is copied. By default nothing is sent.", show_default=False
        ),
    ] = None,
) -> None:
    """Write the missing files of a run whose process was killed, and update its report.

    Finished files stay unchanged. The report of a trace is written next to the trace. The report of a folder of traces
    contains all ranks. Ranks come from distributedInfo in the traces, else from their names.
    """
    from perfhooks.cli.actions import report

    try:
        page, is_complete = report.of(
            target, out, communication=communication, handlers=handler or (), upload=upload, on=on
        )
    except OSError as error:
        raise PerfhooksError(f"{error.filename or target}: {error.strerror or error}") from error
    if page is not None:
        typer.echo(page)
        if show_it:
            typer.launch(page.absolute().as_uri())
    if not is_complete:
        raise typer.Exit(1)
