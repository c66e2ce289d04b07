from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import typer

from perfhooks.cli.actions import run
from perfhooks.core.options import Option, RecordingOptions, all_options

if TYPE_CHECKING:
    from collections.abc import Iterator

EXAMPLES: Final = """Examples:

- `perfhooks run train.py --lr 0.1`
- `perfhooks run -m package.train`
- `perfhooks run --schedule "skip_first=50 warmup=2 active=3" --with-stack -- torchrun --nproc-per-node 8 train.py`

Options of perfhooks come first. The first other word begins the command with its own options.
"""

_SCHEDULE: Final = (
    "Steps to record, as for `perfhooks schedule`. Default: one window when step times have settled, or after 20 s."
)
_HANDLER: Final = "Name of a handler for each window; repeat it for several. All handlers by default."
_PATIENCE: Final = (
    "Maximum wait for steps, in seconds, from the first model call or backward pass on. If no batch is fetched and no "
    "optimizer steps in this time, the report is written at once, not at the end of the program. Default: 60."
)
_USUAL: Final = {"with_stack", "record_shapes", "profile_memory", "with_flops", "out", "run", "ranks", "max_trace_mb"}
"""Options that ``--help`` shows; ``--help-all`` shows all."""


def command(
    words: list[str], schedule: str | None, handler: list[str] | None, patience: float | None, **options: Any
) -> None:
    """Profile an unmodified training: run the command, record a few steps, and write a run folder with a report.

    A step ends when the loop requests a batch after an optimizer step. In Lightning, mmengine and transformers, the
    integration of the framework records. Exit code, output and signals are those of the command.
    """
    values = {**options, "schedule": schedule, "handler": handler, "patience": patience}
    run.start(run.Parsed(words, {name: value for name, value in values.items() if value is not None}))


def _say_all(context: typer.Context, is_wanted: bool | None) -> None:
    if is_wanted:
        for parameter in context.command.params:
            vars(parameter)["hidden"] = False
        typer.echo(context.get_help())
        raise typer.Exit


def _parameters() -> Iterator[inspect.Parameter]:
    words, recorded = typer.Argument(metavar="COMMAND...", show_default=False), get_type_hints(RecordingOptions)
    yield _parameter("words", list[str], words, inspect.Parameter.empty)
    yield _parameter("schedule", str | None, typer.Option("--schedule", help=_SCHEDULE, show_default=False), None)
    yield _parameter("handler", list[str] | None, typer.Option("--handler", help=_HANDLER, show_default=False), None)
    yield _parameter("patience", float | None, typer.Option("--patience", help=_PATIENCE, show_default=False), None)
    every = typer.Option(
        "--help-all", callback=_say_all, is_eager=True, help="Show all options and exit.", show_default=False
    )
    yield _parameter("help_all", bool | None, every, None)
    for option in all_options():
        kind = run.kind_of(option)
        if kind is not None:
            name = f"--{option.name.replace('_', '-')}"
            flag = f"{name}/--no-{name[2:]}" if option.default is True else name
            help_option = typer.Option(
                flag,
                help=_help(option),
                show_default=False,
                hidden=option.name not in _USUAL,
                rich_help_panel="What to record" if option.name in recorded else None,
            )
            yield _parameter(option.name, kind | None, help_option, None)


def _parameter(name: str, kind: Any, help_option: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, help_option]
    )


def _help(option: Option) -> str:
    meaning = option.meaning.replace("``", "`")
    return meaning if option.default in (None, False, True) else f"{meaning} Default: {option.default}."


command.__signature__ = inspect.Signature(list(_parameters()))  # type: ignore[attr-defined]  # typer asks for it
command.__annotations__ = {each.name: each.annotation for each in _parameters()}
