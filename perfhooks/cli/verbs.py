from __future__ import annotations

from typing import Annotated

import typer

from perfhooks.cli import (
    capture,
    compare,
    demo,
    doctor,
    flame,
    history,
    merge,
    report,
    run,
    schedule,
    show,
    top,
    trying,
    tune,
)
from perfhooks.core.version import __version__

app = typer.Typer(
    add_completion=True,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _say_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def perfhooks(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_say_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Profile PyTorch trainings, show their profiles, and write missing results of killed processes."""


app.command("run", epilog=run.EXAMPLES, context_settings={"allow_interspersed_args": False})(run.command)
app.command("tune", epilog=tune.EXAMPLES, context_settings={"allow_interspersed_args": False})(tune.command)
app.command("try", epilog=trying.EXAMPLES)(trying.command)
for verb in (capture, top, compare, history, report, flame, schedule, doctor, demo, show, merge):
    of_class = getattr(verb, "CLASS", None)
    app.command(verb.__name__.rpartition(".")[2], epilog=verb.EXAMPLES, cls=of_class)(verb.command)
