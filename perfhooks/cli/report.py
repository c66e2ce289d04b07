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
            help="A run folder, such as perf/latest, any Kineto trace, or a folder of such traces, or the URL of one; "
            "the last run below this folder by default.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Path of the report of traces; - for standard output."),
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
    show_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
    handler: Annotated[
        list[str] | None,
        typer.Option(
            "--handler",
            help="A handler that the run may use, such as mine.handlers:Table: it is code, so a run folder alone "
            "cannot start it. Repeat it for several.",
            show_default=False,
        ),
    ] = None,
    upload: Annotated[
        str | None,
        typer.Option("--upload", help="A URL to copy the finished run to; else nothing is sent.", show_default=False),
    ] = None,
) -> None:
    """Finish windows that a dead worker or training has left in a run, and update its report.

    Finished files stay unchanged. The report of a trace is written beside it. A folder of traces gives one report of
    all ranks. Ranks come from distributedInfo in the traces, else from their names.
    """
    from perfhooks.cli.actions import report

    try:
        page, is_complete = report.of(
            target, out, communication=communication, handlers=handler or (), upload=upload, on=on
        )
    except OSError as error:  # a disk that is full, or cannot be written to
        raise PerfhooksError(f"{error.filename or target}: {error.strerror or error}") from error
    if page is not None:
        typer.echo(page)
        if show_it:
            typer.launch(page.absolute().as_uri())
    if not is_complete:
        raise typer.Exit(1)
