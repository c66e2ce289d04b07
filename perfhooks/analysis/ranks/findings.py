"""Findings about stragglers."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perfhooks.analysis.findings.finding import Finding, ordered
from perfhooks.analysis.ranks import frontier, missing
from perfhooks.analysis.ranks.missing import MAX_SHOWN
from perfhooks.analysis.ranks.steps import PARTS
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_AMOUNT: Final = re.compile(r"(?<![\w.])\d[\d.,]*(?:\s?(?:ns|us|ms|s|min|h|kB|MB|GB|%))?(?!\w)")

_WORDS: Final = {
    "data": "waits longer for its data",
    "compute": "computes longer",
    "communication": "communicates longer",
    "other": "spends longer on its host",
    "": "takes longer for its own work",
}
_CONSEQUENCE: Final = {
    "own": "the other ranks wait {} ms in a step for it.",
    "compute": "{} ms more than the others in a step. No collective shows which rank waits.",
}
_ADVICE: Final = {
    "data": frontier.ADVICE["data"],
    "compute": (
        "Check this rank's device and the amount of its work: clocks and temperature, another process on the device, "
        "longer sequences or larger batches than other ranks."
    ),
    "communication": (
        "Check this rank's connection to the other ranks: its link, the switch between the nodes, the placement of its "
        "group."
    ),
    "other": (
        "Check what only this rank does: logging, checkpoints and evaluation on rank 0 only, garbage collection, CPU "
        "contention. Compare the host threads of its trace with those of another rank."
    ),
    "": frontier.OTHERWISE,
}


@dataclass(frozen=True, kw_only=True)
class RunFinding(Finding):
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    part: str = ""
    windows: tuple[str, ...] = ()


def findings(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the stragglers of `gather`, as a finding for each part of the step, largest gain first.

    All steps of the run are the best evidence, see `leads.leads`. In windows, ranks are compared by their own work,
    because a rank that waits in a collective is not slow. A rank is named if it is a straggler in most windows that it
    recorded. The finding names the part with the largest excess over the other ranks.
    """
    window_counts: Counter[int] = Counter()
    slow: dict[int, list[dict[str, Any]]] = {}
    for rows in (rows for window in data["windows"] for rows in _group_by_role(window)):
        window_counts.update(row["rank"] for row in rows)
        slow_rows = [row for row in rows if row.get("is_straggler")]
        for row in slow_rows:
            basis = f"{row['by']}_ms"
            limit = max((other[basis] or 0.0 for other in rows if other not in slow_rows), default=0.0)
            slow.setdefault(row["rank"], []).append(row | {"gain_ms": max(row[basis] - limit, 0.0)})
    named = [rows for rank, rows in slow.items() if 2 * len(rows) > window_counts[rank]]
    results = [
        _build_finding(part, of_part)
        for part in _WORDS
        if (of_part := [rows for rows in named if _find_part(rows) == part])
    ]
    stragglers = frontier.findings(data.get("frontier", ()))
    straggler_ranks = {finding["rank"] for finding in stragglers}
    results = stragglers + [result for result in results if not straggler_ranks.issuperset(result["ranks"])]
    return sorted(results, key=lambda finding: -finding["gain_ms"])


def merge_findings(
    of_ranks: Mapping[int, Sequence[Mapping[str, Any]]], of_run: Iterable[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """Merge the findings of several ranks: findings that differ only in numbers appear once.

    ``rank`` is the rank with the largest gain; None for the run. ``ranks`` are all ranks that have the finding.
    """
    by_title: dict[tuple[str, str, int], list[tuple[int, Mapping[str, Any]]]] = {}
    for rank, rows in of_ranks.items():
        counts: Counter[tuple[str, str]] = Counter()
        for row in rows:
            key = row["rule"], _AMOUNT.sub("", row["title"])
            by_title.setdefault((*key, counts[key]), []).append((rank, row))
            counts[key] += 1
    joined = [_join(rows) for rows in by_title.values()]
    return ordered([*({"rank": None, "ranks": (), **row} for row in of_run), *joined])


def _join(rows: list[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    rank, row = max(rows, key=lambda pair: pair[1].get("gain_ms") or 0.0)
    ranks = sorted(number for number, _ in rows)
    evidence = tuple(row["evidence"])
    if len(ranks) > 1:
        gains = sorted(
            {_format_ms(other_row["gain_ms"]) for _, other_row in rows if other_row.get("gain_ms") is not None},
            key=float,
        )
        span = f": {' to '.join(dict.fromkeys((gains[0], gains[-1])))} ms of a step" if gains else ""
        evidence += (f"the numbers are those of rank {rank}; {missing.name_ranks(ranks)} have this finding{span}",)
    return {**row, "rank": rank, "ranks": ranks, "evidence": evidence}


def _group_by_role(window: Mapping[str, Any]) -> Iterable[list[dict[str, Any]]]:
    table = window["ranks"]
    by_role: dict[int | None, list[dict[str, Any]]] = {}
    for values in zip(*table.values(), strict=True):
        row = dict(zip(table, values, strict=True), window=window["name"], large_bytes=window.get("large_bytes"))
        by_role.setdefault(row.get("role"), []).append(row)
    return by_role.values()


def _find_part(rows: Sequence[Mapping[str, Any]]) -> str:
    excess = {part: sum(row.get(f"{part}_excess_ms") or 0.0 for row in rows) for part in PARTS}
    part = max(PARTS, key=lambda part: excess[part])
    return part if excess[part] > 0 else ""


def _build_finding(part: str, by_rank: list[list[dict[str, Any]]]) -> dict[str, Any]:
    by_rank.sort(key=lambda rows: -_mean(rows, "excess_ms"))
    worst = by_rank[0]
    ranks = [rows[0]["rank"] for rows in by_rank]
    excess, wall = _mean(worst, "excess_ms"), _mean(worst, "wall_ms")
    gain = min(_mean(worst, "gain_ms"), excess)
    suffix = f" (and {len(ranks) - 1} more)" if len(ranks) > 1 else ""
    nodes = [rows[0].get("node") for rows in by_rank]
    subject = f"Rank {ranks[0]}{_format_node(nodes[:1])}{suffix}"
    return {
        "rule": "straggler",
        "title": f"{subject} {_WORDS[part]}: {_CONSEQUENCE[worst[0]['by']].format(_format_ms(excess))}",
        "gain_ms": round(gain, 6),
        "gain_percent": round(100 * gain / wall, 2) if wall else None,
        "estimate": (
            "The rank's own work minus that of the slowest rank that is not a straggler. If other stragglers are "
            "named, the gain requires that they are fixed too."
        ),
        "evidence": tuple(map(_describe_evidence, worst[:8]))
        + ((f"slow in this part: ranks {_list_ranks(ranks)}{_format_node(nodes)}",) if suffix else ()),
        "advice": _ADVICE[part],
        "code": "",
        "rank": ranks[0],
        "ranks": ranks,
        "part": part,
        "windows": [row["window"] for row in worst],
    }


def _format_node(nodes: Sequence[str | None]) -> str:
    (node, *other_nodes) = {*nodes}
    return f" on {node}" if node and not other_nodes else ""


def _describe_evidence(row: Mapping[str, Any]) -> str:
    parts = ", ".join(
        f"{part} {_format_ms(row[f'{part}_ms'])} ms ({_format_ms(row[f'{part}_excess_ms'], '+')})"
        for part in PARTS
        if row.get(f"{part}_ms") is not None and row.get(f"{part}_excess_ms") is not None
    )
    return (
        f"{row['window']}: {_format_ms(row['own_ms'])} ms of own work in a step of {_format_ms(row['wall_ms'])} ms, "
        f"{_format_ms(row['excess_ms'])} ms more than the others: {parts}{_describe_last(row)}"
    )


def _describe_last(row: Mapping[str, Any]) -> str:
    if 2 * (row.get("last") or 0) <= (row.get("large") or 0):
        return ""
    return f"; last in {row['last']} of {row['large']} large collectives ({words.size(row['large_bytes'])} or more)"


def _format_ms(milliseconds: float, sign: str = "") -> str:
    """Return at least three digits, rounded to hundredths, so that noise becomes 0."""
    value = round(milliseconds, 2) + 0.0
    return f"{value:{sign}.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"  # noqa: PLR2004 -- no exponents


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:MAX_SHOWN])) + (" ..." if len(ranks) > MAX_SHOWN else "")
