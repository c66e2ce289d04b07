"""What a comparison says first: what differs between the two, the verdict, two figures, and the gravest doubts."""

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

_DOUBTS: Final = 2
"""That are said above the reasons; more are not read there."""
_FACTS: Final = 4
"""That are said before the verdict; all others are in the notes."""
_NUMBERS: Final = re.compile(r"\d[\d.,]*")


class Figure(NamedTuple):
    """What a step of one side takes."""

    side: str
    """A or B."""
    value: str
    what: str
    """Whose that is, and of how many steps."""


class Opening(NamedTuple):
    """What must be read, and the notes, which may be."""

    differing: list[str]
    sentence: str
    figures: list[Figure]
    doubts: list[str]
    notes: list[str]


def opening(made: Comparison) -> Opening:
    """What is said first, and what is left for the notes.

    Args:
        made: What was compared.
    """
    differing, facts_left = _differing(made.differs)
    # where nothing could be judged, the sides say why
    doubts = [*sentences.certainty(made.verdict), *made.doubts] if made.verdict else [*made.doubts, *made.notes]
    notes = made.notes if made.verdict else ()
    left = [*facts_left, *_together(dict.fromkeys([*doubts[_DOUBTS:], *notes]))]
    return Opening(differing, made.sentence, list(_figures(made)), doubts[:_DOUBTS], left)


def data(made: Comparison) -> dict[str, Any]:
    """What `comparison.data` tells, with the opening."""
    first = opening(made)
    told = first._asdict() | {"figures": [each._asdict() for each in first.figures]}
    return comparison.data(made) | {"opening": told}


def _differing(differs: Sequence[Difference]) -> tuple[list[str], list[str]]:
    """What differs, in two lines at most, and a note for each fact that is in neither."""
    commands = [each for each in differs if each.name == facts.COMMAND]
    others = [each for each in differs if each.name != facts.COMMAND and not facts.is_late(each)]
    said = [sentences.commands(facts.arguments(each)) for each in commands]
    if others:
        besides = "; ".join(map(sentences.fact, others[:_FACTS]))
        said.append(f"What differs{' besides' if said else ''}: {besides}.")
    named = [*commands, *others[:_FACTS]]
    return said, [f"differs: {sentences.fact(each)}" for each in differs if each not in named]


def _figures(made: Comparison) -> Iterator[Figure]:
    """The steps that nobody recorded, else the recorded ones."""
    for letter, side, step in zip("AB", (made.a, made.b), made.step_ms, strict=True):
        if step is not None:
            yield Figure(letter, words.ms(step), f"{side.label}: {_measured(side)}")
        elif side.step_ms:
            yield Figure(letter, words.ms(side.step_ms), f"{side.label}: {_recorded(side)}")


def _measured(side: Side) -> str:
    steps = words.count(sum(each.steps for each in side.levels), "step")
    return f"{words.count(len(side.levels), 'run')}, {steps} of {side.stage}"


def _recorded(side: Side) -> str:
    return words.count(side.costs.steps, "recorded step")


def _together(notes: Iterable[str]) -> Iterator[str]:
    """Notes that say the same of several runs, as one."""
    alike: dict[str, list[str]] = {}
    for each in notes:
        run, colon, told = each.partition(": ")
        alike.setdefault(_NUMBERS.sub("#", told if colon else run), []).append(each)
    for same in alike.values():
        others = ", ".join(_names([each.partition(": ")[0] for each in same])[1:])
        yield f"{same[0]}; likewise {others}" if others else same[0]


def _names(heads: Sequence[str]) -> list[str]:
    """What notes begin with, without the words that all of them have there: the names of the runs."""
    told = [head.split(" ") for head in heads]
    columns = zip(*map(reversed, told), strict=False)
    shared = sum(1 for _ in itertools.takewhile(lambda column: len(set(column)) == 1, columns))
    return [" ".join(each[: len(each) - shared]) or head for each, head in zip(told, heads, strict=True)]
