from __future__ import annotations

from typing import Annotated, Final

import typer

from perfhooks.core.schedule import Schedule

EXAMPLES: Final = 'Example: `perfhooks schedule "wait=10 warmup=2 active=3 repeat=2"`'


def command(
    words: Annotated[
        list[str],
        typer.Argument(help='Fields of the schedule, for example "wait=1 warmup=1 active=3".', show_default=False),
    ],
) -> None:
    """Draw a schedule: skipped steps, warm-up steps and recorded steps."""
    typer.echo(Schedule.of(" ".join(words)))
