"""Add source lines from a window with stacks to the findings of a window without stacks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from perfhooks.analysis.findings.finding import ASKS
from perfhooks.analysis.findings.unnamed import AND, RECORD

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

LINE: Final = re.compile(r"\S+\.py(?:\(\d+\)|:\d+\)|(?=: ))")
"""A source line in evidence; only the file if the line is unknown."""
_TIME: Final = re.compile(r": -?[\d.,e+]+ (us|ms|s|min|h)( .*)?$")
_STACK_REQUESTS: Final = ("advice", RECORD), ("code", AND)
"""Fields with a request for stacks, and the text at which the request begins."""
_BY_SHAPES: Final = ("kernels-below-limit",)
"""Rules that need shapes. They use device times, which stacks do not change."""
_SHAPE_REQUEST: Final = "record with "


def first_source_line(evidence: Iterable[str]) -> str:
    """Return the first source line in evidence as ``train.py:20``, otherwise the first file; empty without both."""
    matches = LINE.findall("\n".join(evidence))
    line = next((match for match in matches if match.endswith(")")), matches[0] if matches else "")
    return line.strip("()").replace("(", ":")


def add_source_lines(
    findings: Iterable[Mapping[str, Any]], explaining: Iterable[Mapping[str, Any]], steps: str
) -> list[dict[str, Any]]:
    """Return findings with the source lines that a window with stacks has for the same rules.

    Times of the window with stacks are left out, because stacks lengthen them.

    Args:
        findings: Findings as plain data.
        explaining: Findings of the window with stacks.
        steps: Steps of that window, as text.

    Returns:
        The findings with more evidence and without requests to record more; then findings that need shapes.
    """
    by_rule = {str(row["rule"]): row for row in explaining}
    results = []
    for row in findings:
        explanation = by_rule.get(str(row["rule"]))
        evidence = [line for line in row["evidence"] if not line.startswith(_SHAPE_REQUEST)]
        more: dict[str, Any] = {name: row[name].partition(mark)[0] for name, mark in _STACK_REQUESTS}
        loop_lines = [line for line in evidence if line.endswith(ASKS)]
        if explanation is not None and not any(LINE.search(line) for line in evidence if line not in loop_lines):
            named = [
                _TIME.sub("", line) for line in explanation["evidence"] if LINE.search(line) and line not in loop_lines
            ]
            evidence = [line for line in evidence if line not in loop_lines]
            evidence += [*(f"{line} (seen in {steps})" for line in named), *loop_lines]
        results.append({**row, **more, "evidence": evidence})
    rules = {row["rule"] for row in results}
    additional = [by_rule[rule] for rule in _BY_SHAPES if rule in by_rule and rule not in rules]
    return results + [{**row, "evidence": [*row["evidence"], f"seen in {steps}"]} for row in additional]
