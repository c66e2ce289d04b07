"""A comparison as text: for a terminal, and as markdown for a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.analysis.comparison import comparison, sentences
from perfhooks.core import words
from perfhooks.report.comparison.opening import opening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.comparison.comparison import Comparison
    from perfhooks.analysis.comparison.reason import Contribution

MOST_LINES: Final = 60
"""Lines of markdown: nobody reads more in a pull request."""

_NOTES: Final = 12
_FOLD: Final = ("", "<details><summary>Notes and tables</summary>", "", "", "</details>")
_NAME: Final = 60
_TABLES: Final = (("parts", 8), ("operators", 8), ("modules", 6), ("kernels", 6))


def text(made: Comparison) -> str:
    """A comparison as lines for a terminal: what must be read, the largest reasons, then the notes."""
    first = opening(made)
    lines = [*first.differing, ""] if first.differing else []
    lines += [first.sentence]
    wide = max((len(each.value) for each in first.figures), default=0)
    lines += [f"  {each.side}  {each.value:>{wide}}  {each.what}" for each in first.figures]
    lines += [f"  {each}" for each in first.doubts]
    if made.recorded:
        lines += ["", made.recorded]
        lines += [f"  {place}. {each}" for place, each in enumerate(made.told, 1)] or [f"  {_nothing(made)}"]
        lines += [f"  {each}" for each in _besides(made)]
    if first.notes:
        lines += ["", "Notes:", *(f"  {each}" for each in first.notes)]
    return "\n".join(map(words.line, lines))


def markdown(made: Comparison) -> str:
    """A comparison for a pull request, in at most `MOST_LINES` lines: what may be read later is folded."""
    say, first = words.markdown, opening(made)
    lines = [f"### {say(_cut(made.a.label))} → {say(_cut(made.b.label))}", ""]
    lines += [line for each in first.differing for line in (say(each), "")]
    lines += [f"**{say(first.sentence)}**", ""]
    lines += [f"- {each.side}: {say(each.value)}, {say(_cut(each.what))}" for each in first.figures]
    lines += [f"- {say(each)}" for each in first.doubts]
    if made.recorded:
        lines += ["", say(made.recorded), ""]
        lines += [f"{place}. {say(each)}" for place, each in enumerate(made.told, 1)] or [
            f"{_nothing(made).capitalize()}."
        ]
    folded = list(_folded(made, first.notes, MOST_LINES - len(lines) - len(_FOLD) - 1))
    opened, closed = _FOLD[:-2], _FOLD[-2:]
    return "\n".join([*lines, *opened, *folded, *closed] if folded else lines)


def _folded(made: Comparison, notes: Sequence[str], most: int) -> Iterator[str]:
    """Notes and tables, in no more lines than there is room for; a table is there as a whole, or not at all."""
    besides = [f"- {words.markdown(each)}" for each in _besides(made)]
    told = [f"- {words.markdown(each)}" for each in notes]
    if len(told) > _NOTES:
        told = [*told[: _NOTES - 1], f"- {words.count(len(told) - _NOTES + 1, 'note')} more, see --format text"]
    lines = [*besides, *told][: max(most, 0)]
    yield from lines
    left = most - len(lines)
    for name, rows in _TABLES:
        table = list(_table(name, made.views.get(name, ()), rows, shares=made.shares))
        if len(table) <= left:
            left -= len(table)
            yield from table


def _nothing(made: Comparison) -> str:
    return "no difference" if made.is_decided else "nothing beyond the noise"


def _besides(made: Comparison) -> Iterator[str]:
    """Yield the differences of memory and findings, and the ranks. Equal sides have no new findings."""
    for each in comparison.memory(made):
        if each["a"] != each["b"]:
            yield f"peak memory of {each['device']}: {words.size(each['a'])} -> {words.size(each['b'])}"
    found = comparison.findings(made) if made.is_decided else {"came": [], "went": []}
    for word, titles in (("new finding", found["came"]), ("finding gone", found["went"])):
        yield from (f"{word}: {title}" for title in titles[:3])
    ranks = comparison.ranks(made)
    for name, told in ranks.items():
        yield (
            f"{name.upper()}: {told['count']} ranks, median step {words.ms(told['median_ms'])}, "
            f"slowest rank {told['slowest']} with {words.ms(told['slowest_ms'])}"
        )


def _table(name: str, rows: Sequence[Contribution], most: int, *, shares: bool) -> Iterator[str]:
    shown = [each for each in rows[:most] if each.difference]
    if not shown:
        return
    say = words.share if shares else sentences.nanoseconds
    yield from ("", f"| {name} | A | B | difference | calls |", "|---|---:|---:|---:|---:|")
    for each in shown:
        sign = "+" if each.difference >= 0 else "-"
        calls = f"{each.count_a:.4g} → {each.count_b:.4g}" if each.count_a or each.count_b else ""
        title = words.markdown(_cut(sentences.subject(each)))
        yield f"| {title} | {say(each.a)} | {say(each.b)} | {sign}{say(abs(each.difference))} | {calls} |"


def _cut(words: str) -> str:
    return words if len(words) <= _NAME else f"{words[: _NAME - 2]} …"
