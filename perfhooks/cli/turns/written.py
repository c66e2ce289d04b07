"""Text of an interleaved comparison, beginning with the verdict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perfhooks.analysis.comparison import sentences
from perfhooks.analysis.comparison.comparison import answers, ratio_data
from perfhooks.analysis.comparison.sentences import format_change, percent
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.comparison.turns import Judgement
    from perfhooks.cli.turns.alternation import ComparisonResult
    from perfhooks.cli.turns.program import ProgramResult


def lines(made: ComparisonResult) -> Iterator[str]:
    """Return all lines, the verdict first."""
    seen = made.judgement
    if seen is None:
        yield "Undecided: no pair of programs came to its end."
    else:
        yield f"Undecided: {made.shortage}." if made.shortage else sentences.verdict(seen.verdict)
        yield from _doubts(made, seen)
    yield from dict.fromkeys(f"  {note}" for program in made.programs for note in program.notes)
    yield _ends(made) if made.folder is None else f"{_ends(made)} Output: {made.folder}"


def _doubts(made: ComparisonResult, seen: Judgement) -> Iterator[str]:
    """A figure for each side, and how sure they are."""
    found = seen.verdict
    figures = [words.ms(step) for step in (found.decisive.a, found.decisive.b)]
    wide = max(map(len, figures))
    for figure, command in zip(figures, (made.plan.a, made.plan.b), strict=True):
        yield f"  {command.name}  {figure:>{wide}}  {command.label}"
    yield from (f"  {each}" for each in sentences.certainty(found))
    if found.typical.outcome != found.outcome in ("slower", "faster"):
        yield f"  the typical step takes {format_change(found.typical.ratio)}"
    yield f"  {_clock(seen)}"
    if seen.far[0] != seen.far[1] and not found.is_far_counted:
        turns = f"{words.count(seen.far[0], 'turn')} of A, {seen.far[1]} of B"
        yield f"  left out, as they took more than three times the median: {turns}"


def data(made: ComparisonResult) -> dict[str, Any]:
    """Return the result as JSON data."""
    seen = made.judgement
    verdict: dict[str, Any] = {"outcome": "undecided", "sentence": next(lines(made))}
    if seen is not None:
        others = {"by_other_clock": ratio_data(seen.other), "blocks": seen.blocks, "far": seen.far}
        verdict |= answers(seen.verdict) | others
    return {
        "verdict": verdict,
        "interrupted": bool(made.interrupted),
        "folder": None if made.folder is None else words.printable(made.folder),
        "programs": [
            {
                "side": program.command.name,
                "command": words.printable(program.command.label),
                "exit_code": program.code,
                "ended": program.is_ended,
                "blocks": program.blocks,
                "output": None if made.folder is None else words.printable(made.folder / program.log),
            }
            for program in made.programs
        ],
    }


def last_lines(program: ProgramResult) -> Iterator[str]:
    """Yield the end of the output of a program."""
    for text in program.last_lines:
        yield words.line(f"{program.command.name}: {text}")


def _clock(seen: Judgement) -> str:
    """Return the reason for the clock of the verdict, and the result of the other clock."""
    shares = [seen.verdict.waited_a, seen.verdict.waited_b]
    told = " and ".join("an unknown share" if each is None else words.share(each) for each in shares)
    why = [] if shares == [None, None] else [f"the steps waited for a processor {told} of their time"]
    other = "processor time" if seen.verdict.clock == "wall" else "the wall clock"
    if sentences.is_wide(seen.other):
        return "; ".join([*why, f"by {other} it is unknown: its steps are too uneven"])
    return "; ".join([*why, f"by {other} it is {percent(seen.other.ratio)} ({sentences.interval(seen.other)})"])


def _ends(made: ComparisonResult) -> str:
    ended = sum(program.is_ended for program in made.programs)
    codes = [program.code for program in made.programs if not program.is_ended]
    if made.failed is not None:
        code = made.failed.code or 0
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return f"{made.failed.command.name} ended with {how}, so no more pairs were started."
    told = [f"{words.count(len(codes), 'program')} ended with exit code 0"] if codes else []
    told += [f"{words.count(ended, 'program')} {'was' if ended == 1 else 'were'} ended here"] if ended else []
    return f"{'; '.join(told)}."
