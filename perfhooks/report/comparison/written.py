"""A comparison as text, and as markdown for a pull request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.analysis.comparison import comparison, sentences
from perfhooks.core import words
from perfhooks.report.comparison.opening import opening

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.comparison.comparison import Comparison
    from perfhooks.analysis.comparison.reason import Contribution


_MAX_NOTES: Final = 12
_FOLD: Final = ("", "<details><summary>Notes and tables</summary>", "", "", "</details>")
_TABLES: Final = (("parts", 8), ("operators", 8), ("modules", 6), ("kernels", 6))


def text(result: Comparison) -> str:
    first = opening(result)
    lines = [*first.differing, ""] if first.differing else []
    lines += [first.sentence]
    width = max((len(item.value) for item in first.figures), default=0)
    lines += [f"  {item.side}  {item.value:>{width}}  {item.what}" for item in first.figures]
    lines += [f"  {item}" for item in first.doubts]
    if result.recorded:
        lines += ["", result.recorded]
        lines += [f"  {number}. {item}" for number, item in enumerate(result.told, 1)] or [
            f"  {_describe_nothing(result)}"
        ]
        lines += [f"  {item}" for item in _describe_extras(result)]
    if first.notes:
        lines += ["", "Notes:", *(f"  {item}" for item in first.notes)]
    return "\n".join(map(words.line, lines))


def markdown(result: Comparison) -> str:
    escape, first = words.markdown, opening(result)
    lines = [f"### {escape(words.truncated(result.a.label, 60))} → {escape(words.truncated(result.b.label, 60))}", ""]
    lines += [line for item in first.differing for line in (escape(item), "")]
    lines += [f"**{escape(first.sentence)}**", ""]
    lines += [
        f"- {item.side}: {escape(item.value)}, {escape(words.truncated(item.what, 60))}" for item in first.figures
    ]
    lines += [f"- {escape(item)}" for item in first.doubts]
    if result.recorded:
        lines += ["", escape(result.recorded), ""]
        lines += [f"{number}. {escape(item)}" for number, item in enumerate(result.told, 1)] or [
            f"{_describe_nothing(result).capitalize()}."
        ]
    folded = list(_fold(result, first.notes, 60 - len(lines) - len(_FOLD) - 1))
    opened, closed = _FOLD[:-2], _FOLD[-2:]
    return "\n".join([*lines, *opened, *folded, *closed] if folded else lines)


def _fold(result: Comparison, notes: Sequence[str], most: int) -> Iterator[str]:
    besides = [f"- {words.markdown(note)}" for note in _describe_extras(result)]
    lines = [f"- {words.markdown(note)}" for note in notes]
    if len(lines) > _MAX_NOTES:
        lines = [
            *lines[: _MAX_NOTES - 1],
            f"- {words.count(len(lines) - _MAX_NOTES + 1, 'note')} more, see --format text",
        ]
    shown = [*besides, *lines][: max(most, 0)]
    yield from shown
    remaining = most - len(shown)
    for name, rows in _TABLES:
        table = list(_format_table(name, result.views.get(name, ()), rows, shares=result.shares))
        if len(table) <= remaining:
            remaining -= len(table)
            yield from table


def _describe_nothing(result: Comparison) -> str:
    return "no difference" if result.is_decided else "nothing beyond the noise"


def _describe_extras(result: Comparison) -> Iterator[str]:
    for peak in comparison.memory(result):
        if peak["a"] != peak["b"]:
            yield f"peak memory of {peak['device']}: {words.size(peak['a'])} -> {words.size(peak['b'])}"
    changes = comparison.findings(result) if result.is_decided else {"came": [], "went": []}
    for word, titles in (("new finding", changes["came"]), ("finding gone", changes["went"])):
        yield from (f"{word}: {title}" for title in titles[:3])
    ranks = comparison.ranks(result)
    for name, summary in ranks.items():
        yield (
            f"{name.upper()}: {words.count(summary['count'], 'rank')}, median step {words.ms(summary['median_ms'])}, "
            f"slowest rank {summary['slowest']} with {words.ms(summary['slowest_ms'])}"
        )


def _format_table(name: str, rows: Sequence[Contribution], most: int, *, shares: bool) -> Iterator[str]:
    listed = [row for row in rows[:most] if row.difference]
    if not listed:
        return
    write = words.share if shares else sentences.nanoseconds
    yield from ("", f"| {name} | A | B | difference | calls |", "|---|---:|---:|---:|---:|")
    for row in listed:
        sign = "+" if row.difference >= 0 else "-"
        calls = f"{row.count_a:.4g} → {row.count_b:.4g}" if row.count_a or row.count_b else ""
        title = words.markdown(words.truncated(sentences.subject(row), 60))
        yield f"| {title} | {write(row.a)} | {write(row.b)} | {sign}{write(abs(row.difference))} | {calls} |"
