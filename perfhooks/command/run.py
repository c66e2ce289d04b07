"""``perfhooks run``: any training, not one line of it changed."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import tempfile
from typing import TYPE_CHECKING, Annotated, Any, Final, get_type_hints

import msgspec
import typer

from perfhooks.errors import CommandError, OptionError
from perfhooks.guard import write_error
from perfhooks.options import Option, RecordingOptions, described

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

EXAMPLES: Final = """Examples:

- `perfhooks run train.py --lr 0.1`
- `perfhooks run -m package.train`
- `perfhooks run --schedule "skip_first=50 warmup=2 active=3" --with-stack -- torchrun --nproc-per-node 8 train.py`

Options of perfhooks come first; everything from the first other word on is the command and its own options.
"""

_SCHEDULE: Final = (
    "Which steps to record, in the words of `perfhooks schedule`; one window, once the pace has settled or after 20 s."
)
_HANDLER: Final = "What to make of each window, by its name, once for each; everything that was recorded for."
_PATIENCE: Final = (
    "Seconds from the first call of a model or backward pass on in which a fetch or an update is expected: the page of "
    "a program that makes neither, with what it did first, is then made while it goes on, not at its end. Default: 60."
)
_USUAL: Final = {"with_stack", "record_shapes", "profile_memory", "with_flops", "out", "run", "ranks", "max_trace_mb"}
"""What ``--help`` shows of the options that faces have too; ``--help-all`` shows them all."""
_TYPES: Final = {bool: bool, int: int, float: float, str: str}
_LISTS: Final = ("activities", "ranks")
"""Options that are lists: words between commas on the command line, or JSON where words do not say all."""


def command(
    words: list[str], schedule: str | None, handler: list[str] | None, patience: float | None, **options: Any
) -> None:
    """Profile a training without a change to it: the command runs as if it stood alone, and leaves a run folder.

    A step ends when a DataLoader is asked for a batch and an optimizer has stepped. Inside Lightning, mmengine and
    transformers their own face is used. Exit code, output and signals are those of the command.
    """
    from perfhooks.launching import command_line, detached, exit_summary

    given = {name: _read(name, value) for name, value in options.items() if value is not None}
    wanted = command_line.command(words)
    seconds = command_line.PATIENCE_S if patience is None else patience
    asked = command_line.request(schedule, handler or (), given, seconds)
    reason = exit_summary.known_before(wanted)
    if reason is not None:
        write_error(f"perfhooks: nothing may be recorded: {reason}\n")
    notes = _folder_for_notes()
    is_watched = bool(notes) and detached.is_possible()
    asked = msgspec.structs.replace(asked, notes=notes, command=os.getpid(), is_watched=is_watched)
    if is_watched:
        detached.start(os.getpid(), notes, wanted)
    try:
        os.execve(wanted[0], wanted, command_line.environment(asked, os.environ))  # noqa: S606 -- it is what the user asked for
    except OSError as error:
        code = 127 if isinstance(error, FileNotFoundError) else 126  # the interpreter of a script is not found, either
        raise CommandError(f"{wanted[0]} cannot be run: {error.strerror}", code) from error


def _folder_for_notes() -> str:
    """Make the folder in which processes of the command leave notes; empty if the disk is full."""
    try:
        return tempfile.mkdtemp(prefix="perfhooks-run-")
    except OSError:  # that costs a part of the exit summary, and not the recording
        return ""


def separated(arguments: Sequence[str]) -> list[str]:
    """Arguments in which ``-m`` begins the command, as it does for Python: our own options end there.

    Args:
        arguments: Of the whole command line, after its name.
    """
    words = list(arguments)
    if words[:1] == ["run"] and "-m" in words:
        place = words.index("-m")
        ours = itertools.pairwise(words[:place])
        if "--" not in words[:place] and all(_is_option(before) or _is_option(word) for before, word in ours):
            words.insert(place, "--")
    return words


def _is_option(word: str) -> bool:
    return word.startswith("--")


def _read(name: str, value: Any) -> Any:
    if name not in _LISTS:
        return value
    if name == "activities" and value.lstrip().startswith("["):
        return written_out(value)
    parts = [part.strip() for part in value.split(",") if part.strip()]
    if name == "ranks":
        return value if value in ("all", "first-of-node") else numbers(parts, value)
    return parts


def written_out(value: str) -> list[Any]:
    """Activities as a JSON list, in which each may be a mapping."""
    try:
        activities: list[Any] = json.loads(value)
    except ValueError as error:
        raise OptionError(
            f"activities must be words such as cpu,cuda or a JSON list, got {value!r} ({error})"
        ) from None
    return activities


def numbers(parts: Sequence[str], value: str) -> list[int]:
    """Ranks as people write them, such as ``4-7``, in order; ``value`` is what they wrote in all."""
    try:
        return sorted({number for part in parts for number in _span(part)})
    except ValueError:
        raise OptionError(f"ranks must be 'all', 'first-of-node' or numbers such as 0,4-7, got {value!r}") from None


def _span(part: str) -> range:
    first, dash, last = part.partition("-")
    return range(int(first), int(last if dash else first) + 1)


def _say_all(context: typer.Context, wanted: bool | None) -> None:
    if wanted:
        for parameter in context.command.params:
            vars(parameter)["hidden"] = False
        typer.echo(context.get_help())
        raise typer.Exit


def _parameters() -> Iterator[inspect.Parameter]:
    """The options of `perfhooks.Options` that can be said in words, and our own, as typer takes them."""
    words, recorded = typer.Argument(metavar="COMMAND...", show_default=False), get_type_hints(RecordingOptions)
    yield _parameter("words", list[str], words, inspect.Parameter.empty)
    yield _parameter("schedule", str | None, typer.Option("--schedule", help=_SCHEDULE, show_default=False), None)
    yield _parameter("handler", list[str] | None, typer.Option("--handler", help=_HANDLER, show_default=False), None)
    yield _parameter("patience", float | None, typer.Option("--patience", help=_PATIENCE, show_default=False), None)
    every = typer.Option(
        "--help-all", callback=_say_all, is_eager=True, help="Show all options and exit.", show_default=False
    )
    yield _parameter("help_all", bool | None, every, None)
    for option in described():
        kind = _kind(option)
        if kind is not None:
            name = f"--{option.name.replace('_', '-')}"
            both = f"{name}/--no-{name[2:]}" if option.default is True else name
            said = typer.Option(
                both,
                help=_help(option),
                show_default=False,
                hidden=option.name not in _USUAL,
                rich_help_panel="What to record" if option.name in recorded else None,
            )
            yield _parameter(option.name, kind | None, said, None)


def _parameter(name: str, kind: Any, said: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, said])


def _kind(option: Option) -> Any:
    """What an option is in words; None for objects that only Python can make."""
    if option.name in _LISTS:
        return str
    kinds = [option.type, *getattr(option.type, "__args__", ())]
    literal = isinstance(option.default, str)
    return next((_TYPES[kind] for kind in kinds if kind in _TYPES), str if literal else None)


def _help(option: Option) -> str:
    meaning = option.meaning.replace("``", "`")
    return meaning if option.default in (None, False, True) else f"{meaning} Default: {option.default}."


command.__signature__ = inspect.Signature(list(_parameters()))  # type: ignore[attr-defined]  # typer asks for it
command.__annotations__ = {each.name: each.annotation for each in _parameters()}
