from __future__ import annotations

import functools
import math
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from perfhooks.cli.turns import work_folder, written
from perfhooks.cli.turns.alternation import Alternation, Plan
from perfhooks.cli.turns.program import Command
from perfhooks.cli.turns.revision import check_out
from perfhooks.cli.turns.supervisor import ComparisonEndError, supervise
from perfhooks.cli.turns.work_folder import WorkFolder
from perfhooks.core import progress, words
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.record.launch import command_line

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Literal

    from perfhooks.cli.turns.alternation import ComparisonResult
    from perfhooks.cli.turns.supervisor import Owner


def outcome(
    sides: Sequence[tuple[str | None, str]],
    tolerance: float,
    form: Literal["text", "markdown", "json"],
    *,
    in_turns: bool,
    steps: int | None,
    seconds: float | None,
) -> str:
    """Run both sides, each with a git revision (or None) and a command."""
    for name, most in (("steps", steps), ("seconds", seconds)):
        if most is not None and not 0 < most < float("inf"):
            raise OptionError(f"{name} must be more than 0, got {most:g}")
    make = functools.partial(_commands, sides)
    try:
        result = measured(make, tolerance=tolerance, in_turns=in_turns, steps=steps, seconds=seconds)
    except ComparisonEndError as error:
        raise typer.Exit(128 + error.number) from None
    _tell(result, form)
    if result.interrupted:
        raise typer.Exit(128 + result.interrupted)
    if result.failed is not None:
        raise typer.Exit(1)
    return "undecided" if result.judgement is None else result.judgement.verdict.outcome


def measured(
    make: Callable[[WorkFolder, Owner], Sequence[Command]], *, ends: float = math.inf, label: str = "", **how: Any
) -> ComparisonResult:
    work_folder.remove_stale()
    work = functools.partial(_compare, make, ends=ends, **how)
    with progress.status_line() as status:
        say = functools.partial(typer.echo, err=True)
        return supervise(work, clean=work_folder.remove_stale, status=lambda text: status(f"{label}{text}"), say=say)


def _compare(
    make: Callable[[WorkFolder, Owner], Sequence[Command]], owner: Owner, *, ends: float, **how: Any
) -> ComparisonResult:
    folder = WorkFolder()  # created by the supervisor, which signals cannot end before it removes the folder
    owner.ends = ends
    try:
        a, b = make(folder, owner)
        made = Alternation(plan=Plan(a=a, b=b, **how), folder=folder.path, owner=owner)
        try:
            made.run()
        except PerfhooksError:
            for program in made.programs[-2:]:
                if program.code and not program.is_ended:
                    for line in written.last_lines(program.result()):
                        owner.say(line)
            raise
        result = made.result()
        is_kept = not made.interrupted and b.changes is None
        return result._replace(folder=folder.keep_output()) if is_kept else result
    finally:
        owner.end_all()
        folder.remove()


def _commands(sides: Sequence[tuple[str | None, str]], folder: WorkFolder, owner: Owner) -> list[Command]:
    return [_command(name, *side, folder, owner) for name, side in zip("AB", sides, strict=True)]


def _command(name: str, revision: str | None, text: str, work: WorkFolder, owner: Owner) -> Command:
    folder, paths = Path.cwd(), list[Path]()
    if revision is not None:
        tree, folder = check_out(revision, name, work, owner)
        # an editable package must come from the revision too
        paths = [path for path in (tree, tree / "src") if path.is_dir()]
    try:
        words_of_command = shlex.split(text)
    except ValueError as error:
        raise OptionError(f"{text!r} is no command: {error}") from error
    label = text if revision is None else f"{text}, at {revision}"
    return Command(
        name=name, label=label, words=command_line.command(words_of_command, folder), folder=folder, paths=paths
    )


def _tell(result: ComparisonResult, form: Literal["text", "markdown", "json"]) -> None:
    if result.failed is not None:
        for line in written.last_lines(result.failed):
            typer.echo(line, err=True)
    if form == "json":
        sys.stdout.flush()
        sys.stdout.buffer.write(msgspec.json.encode(written.data(result)) + b"\n")
        sys.stdout.flush()
        return
    lines = list(written.lines(result))
    if form == "markdown":
        texts = (f"`{command.label}`" for command in (result.plan.a, result.plan.b))
        typer.echo("### {} → {}\n".format(*map(words.line, texts)))
        lines = [f"**{words.markdown(lines[0])}**\n", *(f"- {words.markdown(line.strip())}" for line in lines[1:])]
    for each in lines:
        typer.echo(each if form == "markdown" else words.line(each))
