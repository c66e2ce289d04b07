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


def lines(result: ComparisonResult) -> Iterator[str]:
    judgement = result.judgement
    if judgement is None:
        yield "Undecided: no pair of programs was completed."
    else:
        yield f"Undecided: {result.shortage}." if result.shortage else sentences.verdict(judgement.verdict)
        yield from _doubts(result, judgement)
    yield from dict.fromkeys(f"  {note}" for program in result.programs for note in program.notes)
    yield _ends(result) if result.folder is None else f"{_ends(result)} Output: {result.folder}"


def _doubts(result: ComparisonResult, judgement: Judgement) -> Iterator[str]:
    verdict = judgement.verdict
    figures = [words.ms(step) for step in (verdict.decisive.a, verdict.decisive.b)]
    wide = max(map(len, figures))
    for figure, command in zip(figures, (result.plan.a, result.plan.b), strict=True):
        yield f"  {command.name}  {figure:>{wide}}  {command.label}"
    yield from (f"  {value}" for value in sentences.certainty(verdict))
    if verdict.typical.outcome != verdict.outcome in ("slower", "faster"):
        yield f"  the typical (median) step: {format_change(verdict.typical.ratio)}"
    yield f"  {_clock(judgement)}"
    if judgement.far[0] != judgement.far[1] and not verdict.is_far_counted:
        turns = f"{words.count(judgement.far[0], 'block')} of A, {judgement.far[1]} of B"
        yield f"  excluded, because they took more than three times the median: {turns}"


def data(result: ComparisonResult) -> dict[str, Any]:
    judgement = result.judgement
    verdict: dict[str, Any] = {"outcome": "undecided", "sentence": next(lines(result))}
    if judgement is not None:
        details = {"by_other_clock": ratio_data(judgement.other), "blocks": judgement.blocks, "far": judgement.far}
        verdict |= answers(judgement.verdict) | details
    return {
        "verdict": verdict,
        "interrupted": bool(result.interrupted),
        "folder": None if result.folder is None else words.printable(result.folder),
        "programs": [
            {
                "side": program.command.name,
                "command": words.printable(program.command.label),
                "exit_code": program.code,
                "ended": program.is_ended,
                "blocks": program.blocks,
                "output": None if result.folder is None else words.printable(result.folder / program.log),
            }
            for program in result.programs
        ],
    }


def last_lines(program: ProgramResult) -> Iterator[str]:
    for text in program.last_lines:
        yield words.line(f"{program.command.name}: {text}")


def _clock(judgement: Judgement) -> str:
    shares = [judgement.verdict.waited_a, judgement.verdict.waited_b]
    phrases = " and ".join("an unknown share" if value is None else words.share(value) for value in shares)
    why = [] if shares == [None, None] else [f"steps of A and B waited for a CPU {phrases} of their time"]
    other = "CPU time" if judgement.verdict.clock == "wall" else "elapsed time"
    if sentences.is_wide(judgement.other):
        return "; ".join([*why, f"the difference in {other} is unknown: the steps are too uneven"])
    return "; ".join(
        [*why, f"the difference in {other} is {percent(judgement.other.ratio)} ({sentences.interval(judgement.other)})"]
    )


def _ends(result: ComparisonResult) -> str:
    ended = sum(program.is_ended for program in result.programs)
    codes = [program.code for program in result.programs if not program.is_ended]
    if result.failed is not None:
        code = result.failed.code or 0
        how = f"exit code {code}" if code > 0 else f"signal {-code}"
        return f"{result.failed.command.name} ended with {how}, so no more pairs were started."
    phrases = [f"{words.count(len(codes), 'program')} ended with exit code 0"] if codes else []
    phrases += [f"perfhooks ended {words.count(ended, 'program')}"] if ended else []
    return f"{'; '.join(phrases)}."
