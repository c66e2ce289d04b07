from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.analysis.comparison import comparison, facts, sentences
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perfhooks.analysis.comparison.comparison import Comparison
    from perfhooks.analysis.comparison.facts import Difference
    from perfhooks.analysis.comparison.side import Side

_NUMBERS: Final = re.compile(r"\d[\d.,]*")


class Figure(NamedTuple):
    side: str
    value: str
    what: str


class Opening(NamedTuple):
    differing: list[str]
    sentence: str
    figures: list[Figure]
    doubts: list[str]
    notes: list[str]


def opening(result: Comparison) -> Opening:
    differing, facts_left = _describe_differences(result.differs)
    doubts = (
        [*sentences.certainty(result.verdict), *result.doubts] if result.verdict else [*result.doubts, *result.notes]
    )
    notes = result.notes if result.verdict else ()
    shown, further = doubts[:2], doubts[2:]
    all_notes = [*facts_left, *_merge_notes(dict.fromkeys([*further, *notes]))]
    return Opening(differing, result.sentence, list(_build_figures(result)), shown, all_notes)


def data(result: Comparison) -> dict[str, Any]:
    first = opening(result)
    opening_data = first._asdict() | {"figures": [figure._asdict() for figure in first.figures]}
    return comparison.data(result) | {"opening": opening_data}


def _describe_differences(differs: Sequence[Difference]) -> tuple[list[str], list[str]]:
    commands = [fact for fact in differs if fact.name == facts.COMMAND]
    other_facts = [fact for fact in differs if fact.name != facts.COMMAND and not facts.is_late(fact)]
    lines = [sentences.commands(facts.arguments(fact)) for fact in commands]
    named_facts = other_facts[:4]
    if named_facts:
        listed = "; ".join(map(sentences.fact, named_facts))
        lines.append(f"{'Other differences' if lines else 'Differences'}: {listed}.")
    named_facts = [*commands, *named_facts]
    return lines, [f"differs: {sentences.fact(fact)}" for fact in differs if fact not in named_facts]


def _build_figures(result: Comparison) -> Iterator[Figure]:
    for letter, side, step in zip("AB", (result.a, result.b), result.step_ms, strict=True):
        if step is not None:
            yield Figure(letter, words.ms(step), f"{side.label}: {_describe_runs(side)}")
        elif side.step_ms:
            yield Figure(letter, words.ms(side.step_ms), f"{side.label}: {_describe_window(side)}")


def _describe_runs(side: Side) -> str:
    steps = words.count(sum(level.steps for level in side.levels), "step")
    return f"{words.count(len(side.levels), 'run')}, {steps} of {side.stage}"


def _describe_window(side: Side) -> str:
    return words.count(side.costs.steps, "profiled step")


def _merge_notes(notes: Iterable[str]) -> Iterator[str]:
    by_text: dict[str, list[str]] = {}
    for note in notes:
        run, colon, text = note.partition(": ")
        by_text.setdefault(_NUMBERS.sub("#", text if colon else run), []).append(note)
    for group in by_text.values():
        other_names = ", ".join(_run_names([note.partition(": ")[0] for note in group])[1:])
        yield f"{group[0]}; likewise {other_names}" if other_names else group[0]


def _run_names(heads: Sequence[str]) -> list[str]:
    words_of_heads = [head.split(" ") for head in heads]
    columns = zip(*map(reversed, words_of_heads), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    return [
        " ".join(run_words[: len(run_words) - shared]) or head
        for run_words, head in zip(words_of_heads, heads, strict=True)
    ]
