from __future__ import annotations

import functools
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from perfhooks.cli.trace_options import MAX_UNPACKED
from perfhooks.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES: Final = """Examples:

- `perfhooks compare --run 'train.py' -- 'train.py --fused'`
- `perfhooks compare --run-at main 'train.py' -- 'train.py' --seconds 60 --fail-if-slower 2%`
- `perfhooks compare perf/base perf/new`
- `perfhooks compare base1 base2 base3 -- new1 new2 new3 --fail-if-slower 2%`
- `perfhooks compare a.pt.trace.json.gz b.pt.trace.json.gz -o difference.html`
- `perfhooks compare --save base.json perf/base`, then `perfhooks compare base.json perf/new`
"""


_BETWEEN: Final = "\0"
"""Placeholder for ``--`` between the sides, because click ends the options at the first ``--``."""
_SIDES: Final = 2
_AT: Final = "--run-at"


class CLASS(TyperCommand):
    """A command with two lists of runs, separated by ``--``. Options may come before and after the ``--``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [_BETWEEN if part == "--" else part for part in _with_revisions(args)])


def _with_revisions(args: Sequence[str]) -> list[str]:
    arguments = [part for each in args for part in (each.split("=", 1) if each.startswith(f"{_AT}=") else [each])]
    words = list[str]()
    while arguments:
        word = arguments.pop(0)
        if word == _AT and len(arguments) > 1:
            word, revision, text = "--run", arguments.pop(0), arguments.pop(0)
            words += [word, f"{revision}{_BETWEEN}{text}"]
        else:
            words.append(word)
    return words


class ComparisonForm(str, Enum):
    text = "text"
    markdown = "markdown"
    json = "json"


_TARGETS: Final = typer.Argument(
    help="Two run folders, traces, folders of traces or baselines; or several runs of both sides, separated by --.",
    show_default=False,
)
_turns_option: Final = functools.partial(typer.Option, rich_help_panel="Comparison of two commands")
_RUN: Final = _turns_option(
    "--run",
    help="Run this command and the command after --, in interleaved blocks, until the result is decided.",
    metavar="'COMMAND'",
)
_RUN_AT: Final = _turns_option(_AT, help="The same as --run, with the code of a git revision.", metavar="REV 'COMMAND'")
_STEPS: Final = _turns_option("--steps", help="End each command after this number of steps.")
_SECONDS: Final = _turns_option("--seconds", help="End each command after this many seconds of steps.")
_IN_TURNS: Final = _turns_option(
    "--in-turns", help="Run one command after the other. Use this option if memory or devices are too small for both."
)


def command(
    targets: Annotated[list[str] | None, _TARGETS] = None,
    *,
    run: Annotated[list[str] | None, _RUN] = None,
    _run_at: Annotated[tuple[str, str] | None, _RUN_AT] = None,
    steps: Annotated[int | None, _STEPS] = None,
    seconds: Annotated[float | None, _SECONDS] = None,
    in_turns: Annotated[bool, _IN_TURNS] = False,
    fail_if_slower: Annotated[
        str | None,
        typer.Option(
            "--fail-if-slower", help="Exit with 3 if B is slower by more than this, for example 2%.", metavar="SHARE"
        ),
    ] = None,
    fail_if_undecided: Annotated[
        bool, typer.Option("--fail-if-undecided", help="Exit with 4 if the comparison is undecided.")
    ] = False,
    tolerance: Annotated[
        str | None,
        typer.Option("--tolerance", help="Largest difference that counts as equal; 2% by default.", metavar="SHARE"),
    ] = None,
    stage: Annotated[
        str | None,
        typer.Option("--stage", help="Loop to compare. Default: train if both have it.", show_default=False),
    ] = None,
    shares: Annotated[
        bool,
        typer.Option("--shares", help="Compare shares of the step, for runs on different machines."),
    ] = False,
    form: Annotated[
        ComparisonForm, typer.Option("--format", "-f", help="Form of the standard output.")
    ] = ComparisonForm.text,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write an HTML report of the comparison.", show_default=False)
    ] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Save the runs as a baseline for later comparisons.", metavar="FILE"),
    ] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
) -> None:
    """Decide whether a training became slower, by how much, and why.

    With --run, both commands run in interleaved blocks, which is the safest way on a shared machine. For two recorded
    runs, the verdict compares unprofiled steps, and the reasons come from profiled steps.
    """
    from perfhooks.cli.actions import compare, turns

    limit = compare.share(fail_if_slower or tolerance, "fail-if-slower" if fail_if_slower else "tolerance")
    if run:
        if save or shares or stage or out or show_it:
            raise OptionError(
                "choose either --run or the options of recorded runs: --save, --shares, --stage, -o, --open"
            )
        sides = _commands(targets or (), run)
        outcome = turns.outcome(sides, limit, form.value, in_turns=in_turns, steps=steps, seconds=seconds)
    elif in_turns or steps is not None or seconds is not None:
        raise OptionError("--in-turns, --steps and --seconds need two commands: perfhooks compare --run 'A' -- 'B'")
    elif save is not None:
        compare.save([part for part in targets or () if part != _BETWEEN], stage, save)
        return
    else:
        if shares and (fail_if_slower or fail_if_undecided):
            raise OptionError(
                "--shares cannot be combined with --fail-if-slower or --fail-if-undecided: "
                "it does not compare the duration of a step"
            )
        comparison = compare.compared(_sides(targets or ()), stage, limit, shares=shares)
        compare.tell(comparison, form.value)
        compare.page(comparison, out, show_it=show_it)
        outcome = "undecided" if comparison.verdict is None else comparison.verdict.outcome
    if fail_if_slower and outcome == "slower":
        raise typer.Exit(3)
    if fail_if_undecided and outcome == "undecided":
        raise typer.Exit(4)


def _commands(targets: Sequence[str], runs: Sequence[str]) -> list[tuple[str | None, str]]:
    bare = [part for part in targets if part != _BETWEEN]
    arguments = [*bare, *runs] if targets[:1] == bare[:1] and bare else [*runs, *bare]
    if len(arguments) != _SIDES or list(targets).count(_BETWEEN) != 1:
        raise OptionError(
            "--run takes one command on either side of --, each between quotes: "
            f"perfhooks compare --run 'train.py' -- 'train.py --fused'; got {len(arguments)}"
        )
    parts = [part.rpartition(_BETWEEN) for part in arguments]
    return [(revision or None, text) for revision, _, text in parts]


def _sides(targets: Sequence[str]) -> list[list[str]]:
    arguments = list(targets)
    if _BETWEEN in arguments:
        place = arguments.index(_BETWEEN)
        sides = [arguments[:place], arguments[place + 1 :]]
    else:
        sides = [[part] for part in arguments]
    if len(sides) != _SIDES or not all(sides) or _BETWEEN in sides[1]:
        raise OptionError(
            "compare takes two runs, or several of each side with -- between the sides; "
            f"got {len(arguments)} without it"
            if _BETWEEN not in arguments
            else "compare takes runs on both sides of one --"
        )
    return sides
