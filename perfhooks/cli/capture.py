from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perfhooks.cli.actions.run import numbers
from perfhooks.cli.targets import last_run
from perfhooks.core.errors import OptionError
from perfhooks.core.options import check_request
from perfhooks.run.layout import PAGE

EXAMPLES: Final = """Examples:

- `perfhooks capture perf/latest`
- `perfhooks capture perf/latest --steps 5 --ranks 0,17 --with-stack --memory --open`
"""


def command(
    target: Annotated[
        Path | None,
        typer.Argument(
            help="Run folder of the job, for example perf/latest. Default: the last run below the current folder.",
            show_default=False,
            readable=False,
        ),
    ] = None,
    *,
    steps: Annotated[int, typer.Option("--steps", help="Number of steps to record.")] = 3,
    ranks: Annotated[
        str | None,
        typer.Option(
            "--ranks", help="Ranks to record, for example 0,4-7; all recording ranks by default.", show_default=False
        ),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", help="Name of the loop; the current loop by default.", show_default=False),
    ] = None,
    with_stack: Annotated[bool, typer.Option("--with-stack", help="Also record Python stacks.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Also record memory allocations.")] = False,
    shapes: Annotated[bool, typer.Option("--shapes", help="Also record the shapes of inputs.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="Maximum wait for the window, in seconds.")] = 600.0,
    show_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Let a running job record some steps now, independent of its schedule. All ranks record the same steps.

    The steps are far enough ahead that every rank reads the request in time. The job does not wait, and its ranks do
    not communicate. Exits with 1 if no rank recorded.
    """
    from perfhooks.cli.actions import capture

    options = {"with_stack": with_stack, "profile_memory": memory, "record_shapes": shapes}
    check_request(steps, options)
    if not timeout > 0:
        raise OptionError(f"--timeout must be a number of seconds above 0, got {timeout}")
    run = (last_run() if target is None else target).absolute()
    is_recorded = capture.asked(
        run,
        timeout,
        steps=steps,
        ranks=None if ranks is None else tuple(numbers([part.strip() for part in ranks.split(",")], ranks)),
        stage=stage,
        options={name: True for name, is_wanted in options.items() if is_wanted},
    )
    if not is_recorded:
        raise typer.Exit(1)
    page = run / PAGE
    if page.exists():
        typer.echo(page)
        if show_it:
            typer.launch(page.as_uri())
