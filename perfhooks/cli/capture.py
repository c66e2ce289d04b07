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
            help="The folder of the job's run, such as perf/latest; the last run below this folder by default.",
            show_default=False,
        ),
    ] = None,
    *,
    steps: Annotated[int, typer.Option("--steps", help="How many steps to record.")] = 3,
    ranks: Annotated[
        str | None,
        typer.Option("--ranks", help="Ranks, such as 0,4-7; all recording ranks by default.", show_default=False),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", help="Loop; the current loop by default.", show_default=False),
    ] = None,
    with_stack: Annotated[bool, typer.Option("--with-stack", help="Record Python stacks as well.")] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Record allocations as well.")] = False,
    shapes: Annotated[bool, typer.Option("--shapes", help="Record the shapes of inputs as well.")] = False,
    timeout: Annotated[float, typer.Option("--timeout", help="How long to wait, in seconds.")] = 600.0,
    show_it: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Ask a running job to record its next steps: the same ones on all ranks, whatever its schedule says.

    The steps are chosen so far ahead that every rank hears of them in time; the job does not wait, and its ranks need
    not talk to each other. Exits with 1 if no rank recorded.
    """
    from perfhooks.cli.actions import capture

    options = {"with_stack": with_stack, "profile_memory": memory, "record_shapes": shapes}
    check_request(steps, options)
    if not timeout > 0:
        raise OptionError(f"--timeout must be a number of seconds > 0, got {timeout}")
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
