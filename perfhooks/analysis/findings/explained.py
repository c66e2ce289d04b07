"""Findings of a window without stacks, with the lines that a second window has for them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from perfhooks.analysis.findings.finding import ASKS
from perfhooks.analysis.findings.unnamed import AND, RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LINE: Final = re.compile(r"\S+\.py(?:\(\d+\)|:\d+\)|(?=: ))")
"""A line of source, as evidence names it; the file alone where its line is not known."""
_TIME: Final = re.compile(r": -?[\d.,e+]+ (us|ms|s|min|h)( .*)?$")
_ASKED: Final = ("advice", RECORD), ("code", AND)
"""What asks for stacks, and where that begins."""
_BY_SHAPES: Final = ("kernels-below-limit",)
"""Rules about times of a device, which stacks leave alone, that only shapes tell."""
_ASKS_FOR_SHAPES: Final = "record with "


def where(evidence: Iterable[str]) -> str:
    """Return the first line of source that evidence names as ``train.py:20``, else the first file; else nothing."""
    found = LINE.findall("\n".join(evidence))
    line = next((each for each in found if each.endswith(")")), found[0] if found else "")
    return line.strip("()").replace("(", ":")


def explained(
    found: Iterable[Mapping[str, Any]], explaining: Iterable[Mapping[str, Any]], steps: str
) -> list[dict[str, Any]]:
    """Findings with the lines of source that a window with stacks names for the same rule.

    What these took there is left out: stacks make it long.

    Args:
        found: Findings as plain data.
        explaining: Those of the window with stacks.
        steps: Which steps that has, for people.

    Returns:
        The first ones, with more evidence, and without the advice to record what there is; then what only shapes tell.
    """
    by_rule = {str(row["rule"]): row for row in explaining}
    told = []
    for row in found:
        other = by_rule.get(str(row["rule"]))
        evidence = [line for line in row["evidence"] if not line.startswith(_ASKS_FOR_SHAPES)]
        more: dict[str, Any] = {name: row[name].partition(mark)[0] for name, mark in _ASKED}
        asks = [line for line in evidence if line.endswith(ASKS)]
        if other is not None and not any(LINE.search(line) for line in evidence if line not in asks):
            named = [_TIME.sub("", line) for line in other["evidence"] if LINE.search(line) and line not in asks]
            evidence = [line for line in evidence if line not in asks]
            evidence += [*(f"{line} (seen in {steps})" for line in named), *asks]
        told.append({**row, **more, "evidence": evidence})
    known = {row["rule"] for row in told}
    alone = [by_rule[rule] for rule in _BY_SHAPES if rule in by_rule and rule not in known]
    return told + [{**row, "evidence": [*row["evidence"], f"seen in {steps}"]} for row in alone]
