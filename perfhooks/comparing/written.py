"""A comparison as text: for a terminal, and as markdown for a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import words
from perfhooks.comparing import comparison, sentences

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.comparing.comparison import Comparison
    from perfhooks.comparing.reason import Contribution
    from perfhooks.comparing.side import Side

MOST_LINES: Final = 60
"""Lines of markdown: nobody reads more in a pull request."""

_DIFFERS: Final = 8
_NOTES: Final = 6
_NAME: Final = 60
_TABLES: Final = (("parts", 8), ("operators", 8), ("modules", 6), ("kernels", 6))
_MIB: Final = 1 << 20


def text(made: Comparison) -> str:
    """A comparison as lines for a terminal: the verdict, what differs besides, and the largest reasons."""
    lines = [f"A: {_side(made.a)}", f"B: {_side(made.b)}", "", made.sentence]
    lines += [f"  differs: {each}" for each in _differs(made)]
    lines += [f"  note: {each}" for each in made.notes]
    if made.recorded:
        lines += ["", made.recorded]
        lines += [f"  {place}. {each}" for place, each in enumerate(made.told, 1)] or ["  no difference"]
        lines += [f"  {each}" for each in _besides(made)]
    return "\n".join(map(words.line, lines))


def markdown(made: Comparison) -> str:
    """A comparison for a pull request, in at most `MOST_LINES` lines."""
    say = words.markdown
    lines = [f"### {say(_cut(made.a.label))} → {say(_cut(made.b.label))}", "", f"**{say(made.sentence)}**", ""]
    lines += [f"- differs: {say(each)}" for each in _differs(made)]
    lines += [f"- note: {say(each)}" for each in made.notes[:_NOTES]]
    if made.recorded:
        lines += ["", say(made.recorded), ""]
        lines += [f"{place}. {say(each)}" for place, each in enumerate(made.told, 1)] or ["No difference."]
        lines += [f"- {say(each)}" for each in _besides(made)]
        for name, most in _TABLES:
            table = list(_table(name, made.views.get(name, ()), most, shares=made.shares))
            lines += table if len(lines) + len(table) <= MOST_LINES else []
    return "\n".join(lines[:MOST_LINES])


def _side(side: Side) -> str:
    runs = len(side.levels)
    told = f"{side.label}, {side.stage}"
    told += f", {runs} runs" if runs > 1 else ""
    return f"{told}, {words.count(side.windows, 'window')}"


def _differs(made: Comparison) -> list[str]:
    told = [f"{each.name}: {_cut(each.a) or 'none'} -> {_cut(each.b) or 'none'}" for each in made.differs]
    rest = len(told) - _DIFFERS
    return told[:_DIFFERS] + ([f"{words.count(rest, 'fact')} more, see --format json"] if rest > 0 else [])


def _besides(made: Comparison) -> Iterator[str]:
    """Memory, findings and ranks, as far as they say something."""
    for each in comparison.memory(made):
        if each["a"] != each["b"]:
            yield f"peak memory of {each['device']}: {words.size(each['a'])} -> {words.size(each['b'])}"
    found = comparison.findings(made)
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
