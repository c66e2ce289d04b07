"""``perfhooks compare``: did it get slower, by how much, and through what."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperCommand

from perfhooks.command.trace_options import MAX_UNPACKED
from perfhooks.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

EXAMPLES: Final = """Examples:

- `perfhooks compare perf/base perf/new`
- `perfhooks compare base1 base2 base3 -- new1 new2 new3 --fail-if-slower 2%`
- `perfhooks compare a.pt.trace.json.gz b.pt.trace.json.gz -o difference.html`
- `perfhooks compare --save base.json perf/base`, then `perfhooks compare base.json perf/new`
"""
"""What ``--help`` ends with."""

SLOWER: Final = 3
"""The exit code where the verdict is what ``--fail-if-slower`` asks about."""
UNDECIDED: Final = 4
"""That of ``--fail-if-undecided``."""

_BETWEEN: Final = "\0"
"""Stands for ``--`` between the sides: click takes the first for the end of the options."""


class CLASS(TyperCommand):
    """A command whose ``--`` stands between two lists, with options on either side of it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the command line."""
        return super().parse_args(ctx, [_BETWEEN if each == "--" else each for each in args])


class ComparisonForm(str, Enum):
    """How a comparison is written."""

    text = "text"
    markdown = "markdown"
    json = "json"


def command(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="Two run folders, traces or baselines; or several runs of each side with -- between the sides.",
            show_default=False,
        ),
    ],
    *,
    fail_if_slower: Annotated[
        str | None,
        typer.Option("--fail-if-slower", help="Exit with 3 if B is slower by more than this, as 2%.", metavar="SHARE"),
    ] = None,
    fail_if_undecided: Annotated[
        bool,
        typer.Option("--fail-if-undecided", help="Exit with 4 if nobody can say whether one is slower."),
    ] = False,
    tolerance: Annotated[
        str | None, typer.Option("--tolerance", help="What difference is none; 2% if not given.", metavar="SHARE")
    ] = None,
    stage: Annotated[
        str | None, typer.Option("--stage", help="Which loop to compare; train if both have it.", show_default=False)
    ] = None,
    shares: Annotated[
        bool, typer.Option("--shares", help="Compare shares of the step: for runs on different machines.")
    ] = False,
    form: Annotated[
        ComparisonForm, typer.Option("--format", "-f", help="What goes to standard output.")
    ] = ComparisonForm.text,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Write a page with everything side by side.", show_default=False)
    ] = None,
    show_it: Annotated[bool, typer.Option("--open", help="Open that page in a browser.")] = False,
    save: Annotated[
        Path | None,
        typer.Option("--save", help="Keep the given runs as a baseline, to be compared with later.", metavar="FILE"),
    ] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
) -> None:
    """Say whether a training became slower, by how much, and through what.

    The verdict is about the steps that nobody recorded; the reasons come from the recorded windows.
    """
    from perfhooks.command.actions import compare

    limit = compare.share(fail_if_slower or tolerance, "fail-if-slower" if fail_if_slower else "tolerance")
    if save is not None:
        compare.save([Path(each) for each in targets if each != _BETWEEN], stage, save)
        return
    if shares and (fail_if_slower or fail_if_undecided):
        raise OptionError("choose one of --shares and --fail-if-...: shares of a step say nothing of its length")
    made = compare.compared(_sides(targets), stage, limit, shares=shares)
    compare.tell(made, form.value)
    compare.page(made, out, show_it=show_it)
    outcome = "undecided" if made.verdict is None else made.verdict.outcome
    if fail_if_slower and outcome == "slower":
        raise typer.Exit(SLOWER)
    if fail_if_undecided and outcome == "undecided":
        raise typer.Exit(UNDECIDED)


def _sides(targets: Sequence[str]) -> list[list[Path]]:
    """The paths of both sides."""
    given = list(targets)
    if _BETWEEN in given:
        place = given.index(_BETWEEN)
        sides = [given[:place], given[place + 1 :]]
    else:
        sides = [[each] for each in given]
    if len(sides) != 2 or not all(sides) or _BETWEEN in sides[1]:  # noqa: PLR2004 -- A and B
        raise OptionError(
            f"compare takes two runs, or several of each side with -- between the sides; got {len(given)} without it"
            if _BETWEEN not in given
            else "compare takes runs on both sides of one --"
        )
    return [[Path(each) for each in side] for side in sides]
