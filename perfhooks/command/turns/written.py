"""What came of programs that took turns, in words: the verdict first, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import typer

from perfhooks import words
from perfhooks.comparing.sentences import changed, percent
from perfhooks.comparing.turns import FEWEST_PAIRS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.command.turns.alternation import Alternation
    from perfhooks.command.turns.program import Program
    from perfhooks.comparing.turns import Interval, Judgement

_LAST_LINES: Final = 10
_CLOCKS: Final = {"wall": "the wall clock", "processor": "processor time"}


def lines(made: Alternation) -> Iterator[str]:
    """All that is said, the verdict first."""
    seen = made.judgement
    if seen is None:
        yield "Not decided: no pair of programs came to its end."
    else:
        yield sentence(seen)
        yield from _doubts(made, seen)
    yield from dict.fromkeys(f"  {note}" for program in made.programs for note in program.notes)
    yield f"{_ends(made)} Output: {made.folder}"


def sentence(seen: Judgement) -> str:
    """The verdict."""
    a, b = seen.step_ms
    change = f"{words.ms(b)} instead of {words.ms(a)}, {changed(seen.decided_by.ratio)}"
    if seen.outcome == "same":
        return f"The same, within {100 * seen.tolerance:.3g}%: a step takes {change}."
    if seen.outcome == "undecided":
        return f"Not decided: a step takes {change}, which may be chance."
    is_mean = seen.decided_by is seen.mean
    told = f"{seen.outcome.capitalize()}: a step takes {change}"
    return f"{told} on average, and the typical one {changed(seen.typical.ratio)}." if is_mean else f"{told}."


def _doubts(made: Alternation, seen: Judgement) -> Iterator[str]:
    """A figure for each side, and how sure they are."""
    figures = [words.ms(step) for step in seen.step_ms]
    wide = max(map(len, figures))
    for figure, command in zip(figures, (made.plan.a, made.plan.b), strict=True):
        yield f"  {command.name}  {figure:>{wide}}  {command.label}"
    of = f"{words.count(seen.pairs, 'pair')} of processes, {seen.blocks:,} blocks of each side"
    yield f"  99% interval {_span(seen.decided_by)} ({of})"
    yield f"  by {_clock(seen)}"
    if seen.far[0] != seen.far[1]:
        yield (
            f"  left out, as they took more than three times the median: {words.count(seen.far[0], 'block')} of A, "
            f"{seen.far[1]} of B"
        )


def data(made: Alternation) -> dict[str, Any]:
    """The same for programs."""
    seen = made.judgement
    verdict: dict[str, Any] = {"outcome": "undecided", "sentence": next(lines(made))}
    if seen is not None:
        verdict |= {
            "outcome": seen.outcome,
            "clock": seen.clock,
            "tolerance": seen.tolerance,
            "typical": seen.typical._asdict(),
            "mean": seen.mean._asdict(),
            "by_other_clock": seen.other._asdict(),
            "step_ms": seen.step_ms,
            "pairs": seen.pairs,
            "blocks": seen.blocks,
            "waited": seen.waited,
            "far": seen.far,
        }
    return {
        "verdict": verdict,
        "interrupted": made.is_interrupted,
        "folder": str(made.folder),
        "programs": [
            {
                "side": program.command.name,
                "command": program.command.label,
                "exit_code": program.code,
                "ended": program.is_ended,
                "blocks": len(program.blocks),
                "output": str(program.log),
            }
            for program in made.programs
        ],
    }


def say_last_lines(programs: Sequence[Program]) -> None:
    """What programs wrote last, of which one has failed."""
    for program in programs:
        if program.code and not program.is_ended:
            for text in program.last_lines(_LAST_LINES):
                typer.echo(words.line(f"{program.command.name}: {text}"), err=True)


def _figure(seen: Interval) -> str:
    return f"{percent(seen.ratio)} ({_span(seen)})"


def _span(seen: Interval) -> str:
    return f"{percent(seen.low)} to {percent(seen.high)}"


def _clock(seen: Judgement) -> str:
    """Which clock tells, and what the other one says."""
    waited = [each for each in seen.waited if each is not None]
    shares = " and ".join("an unknown share" if each is None else words.share(each) for each in seen.waited)
    other = "processor" if seen.clock == "wall" else "wall"
    why = f": the steps waited for a processor {shares} of their time" if waited else ""
    return f"{_CLOCKS[seen.clock]}{why}; by {_CLOCKS[other]} {_figure(seen.other)}"


def _ends(made: Alternation) -> str:
    ended = sum(program.is_ended for program in made.programs)
    codes = [program.code for program in made.programs if not program.is_ended]
    if made.failed is not None:
        code = made.failed.code or 0
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return f"{made.failed.command.name} ended with {how}, so no more pairs were started."
    told = [f"{words.count(len(codes), 'program')} ended with exit code 0"] if codes else []
    told += [f"{words.count(ended, 'program')} {'was' if ended == 1 else 'were'} ended here"] if ended else []
    few = made.judgement is not None and made.judgement.pairs < FEWEST_PAIRS
    return f"{'; '.join(told)}.{' Fewer than three pairs are no verdict.' if few else ''}"
