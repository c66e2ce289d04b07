"""What to do about ranks that the others wait for."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from perfhooks.analysis.findings.finding import Finding, ordered
from perfhooks.analysis.ranks import frontier, missing
from perfhooks.analysis.ranks.steps import PARTS
from perfhooks.core.statistics import are_slow

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

_SHOWN: Final = 8
_AMOUNT: Final = re.compile(r"(?<![\w.])\d[\d.,]*(?:\s?(?:ns|us|ms|s|min|h|kB|MB|GB|%))?(?!\w)")

_WORDS: Final = {
    "data": "waits longer for its data",
    "compute": "computes longer",
    "communication": "communicates longer",
    "other": "spends longer on its host",
    "": "takes longer for its own work",
}
_ADVICE: Final = {
    "data": frontier.ADVICE["data"],
    "compute": (
        "Look at this rank's device and its share of the work: clocks and temperature, another process on the device, "
        "longer sequences or larger batches than the others have."
    ),
    "communication": (
        "Look at this rank's way to the others: its link, the switch between its node and theirs, the placement of its "
        "group."
    ),
    "other": (
        "Look at what this rank does beside the others: logging, checkpoints and evaluation on rank 0 only, garbage "
        "collection, a busy CPU; compare the host threads of its trace with another rank's."
    ),
    "": frontier.OTHERWISE,
}


@dataclass(frozen=True, kw_only=True)
class RunFinding(Finding):
    """A finding about a whole run; the fields here are known if it is about ranks."""

    rank: int | None = None
    """The slowest."""
    ranks: tuple[int, ...] = ()
    """All that are slow in this."""
    part: str = ""
    """In what: a key of `_WORDS`, empty if unknown."""
    windows: tuple[str, ...] = ()
    """The windows in which the slowest is slow."""


def findings(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Name the ranks that the others wait for, and the part of the step that keeps them; nothing where none stands out.

    A rank that waits in a collective is not slow, so ranks are judged by their own work: all of the step less the
    waiting. A rank is named if it is slow (`perfhooks.core.statistics.Behind`) in most of the windows it recorded; the
    part is the one that exceeds the others' by most. Whom all steps of the run name, by
    `perfhooks.analysis.ranks.leads.leads`, is not named again by a window.

    Args:
        data: what `gather` gives.

    Returns:
        One for each part in which ranks are slow, what gains most first: the fields of a finding of the page, and
        ``rank`` (the slowest), ``ranks``, ``part`` and ``windows``.
    """
    seen: Counter[int] = Counter()
    slow: dict[int, list[dict[str, Any]]] = {}
    for rows in (rows for window in data["windows"] for rows in _by_role(window)):
        seen.update(row["rank"] for row in rows)
        found = _slow(rows)
        rest = max((row["own_ms"] for row in rows if row not in found and row["own_ms"] is not None), default=0.0)
        for row in found:
            slow.setdefault(row["rank"], []).append(row | {"gain_ms": max(row["own_ms"] - rest, 0.0)})
    named = [rows for rank, rows in slow.items() if 2 * len(rows) > seen[rank]]
    found = [_finding(part, mine) for part in _WORDS if (mine := [rows for rows in named if _part(rows) == part])]
    led = frontier.findings(data.get("frontier", ()))
    known = {finding["rank"] for finding in led}
    # all steps say more of a rank than those of its windows
    found = led + [each for each in found if not known.issuperset(each["ranks"])]
    return sorted(found, key=lambda finding: -finding["gain_ms"])


def together(
    of_ranks: Mapping[int, Sequence[Mapping[str, Any]]], of_run: Iterable[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """Join the findings of several ranks: findings that differ only in amounts appear once.

    Args:
        of_ranks: The findings of each rank.
        of_run: Findings about all ranks together, for example `findings`.

    Returns:
        All of them, ordered. ``rank`` is the rank that a finding is about, or the one with the largest gain, and None
        if it is about the run. ``ranks`` are all ranks that have it.
    """
    alike: dict[tuple[str, str, int], list[tuple[int, Mapping[str, Any]]]] = {}
    for rank, rows in of_ranks.items():
        seen: Counter[tuple[str, str]] = Counter()
        for row in rows:
            key = row["rule"], _AMOUNT.sub("", row["title"])
            alike.setdefault((*key, seen[key]), []).append((rank, row))
            seen[key] += 1
    joined = [_joined(rows) for rows in alike.values()]
    return ordered([*({"rank": None, "ranks": (), **row} for row in of_run), *joined])


def _joined(rows: list[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the finding of the rank with the largest gain, with the gains of the other ranks as evidence."""
    rank, row = max(rows, key=lambda pair: pair[1].get("gain_ms") or 0.0)
    ranks = sorted(number for number, _ in rows)
    evidence = tuple(row["evidence"])
    if len(ranks) > 1:
        gains = sorted({_short(other["gain_ms"]) for _, other in rows if other.get("gain_ms") is not None}, key=float)
        span = f": {' to '.join(dict.fromkeys((gains[0], gains[-1])))} ms of a step" if gains else ""
        evidence += (f"the numbers are those of rank {rank}; {missing.named(ranks)} have this finding{span}",)
    return {**row, "rank": rank, "ranks": ranks, "evidence": evidence}


def _by_role(window: Mapping[str, Any]) -> Iterable[list[dict[str, Any]]]:
    """The ranks of a window that are compared with each other."""
    table = window["ranks"]
    found: dict[int | None, list[dict[str, Any]]] = {}
    for values in zip(*table.values(), strict=True):
        row = dict(zip(table, values, strict=True), window=window["name"])
        found.setdefault(row.get("role"), []).append(row)
    return found.values()


def _slow(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    columns = {name: [row.get(name) for row in rows] for name in ("excess_ms", "slow_percent", "certain")}
    excess, slow_percent = (np.array(columns[name], np.float64) for name in ("excess_ms", "slow_percent"))
    certain = np.array([each is not False for each in columns["certain"]], np.bool_)
    is_slow = are_slow(excess, slow_percent, certain)
    return [row for row, slow in zip(rows, is_slow, strict=True) if slow]


def _part(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the part in which a rank takes most time beyond the others; nothing if no part is known to be longer."""
    excess = {part: sum(row.get(f"{part}_excess_ms") or 0.0 for row in rows) for part in PARTS}
    part = max(PARTS, key=lambda part: excess[part])
    return part if excess[part] > 0 else ""


def _finding(part: str, named: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """One finding about all ranks that are slow in one part; the slowest speaks for them."""
    named.sort(key=lambda rows: -_mean(rows, "excess_ms"))
    worst = named[0]
    ranks = [rows[0]["rank"] for rows in named]
    excess, wall = _mean(worst, "excess_ms"), _mean(worst, "wall_ms")
    gain = min(_mean(worst, "gain_ms"), excess)
    more = f" (and {len(ranks) - 1} more)" if len(ranks) > 1 else ""
    nodes = [rows[0].get("node") for rows in named]
    who = f"Rank {ranks[0]}{_on(nodes[:1])}{more}"
    return {
        "rule": "straggler",
        "title": f"{who} {_WORDS[part]}: the other ranks wait {_short(excess)} ms in a step for it.",
        "gain_ms": round(gain, 6),
        "gain_percent": round(100 * gain / wall, 2) if wall else None,
        "estimate": (
            "The rank's own work, less that of the slowest rank that is not slow: the others end no sooner than that. "
            "All of it where no other rank is named; else as much as that once those are no slower either."
        ),
        "evidence": tuple(map(_evidence, worst[:_SHOWN]))
        + ((f"slow in this are ranks {_listed(ranks)}{_on(nodes)}",) if more else ()),
        "advice": _ADVICE[part],
        "code": "",
        "rank": ranks[0],
        "ranks": ranks,
        "part": part,
        "windows": [row["window"] for row in worst],
    }


def _on(nodes: Sequence[str | None]) -> str:
    """Where ranks are, if that is one of several nodes."""
    (node, *others) = {*nodes}
    return f" on {node}" if node and not others else ""


def _evidence(row: Mapping[str, Any]) -> str:
    parts = ", ".join(
        f"{part} {_short(row[f'{part}_ms'])} ms ({_short(row[f'{part}_excess_ms'], '+')})"
        for part in PARTS
        if row.get(f"{part}_ms") is not None and row.get(f"{part}_excess_ms") is not None
    )
    return (
        f"{row['window']}: {_short(row['own_ms'])} ms of its own in a step of {_short(row['wall_ms'])} ms, "
        f"{_short(row['excess_ms'])} ms more than the others, in {row['slow_percent']:.0f}% of the steps: {parts}"
    )


def _short(milliseconds: float, sign: str = "") -> str:
    """Three digits or more, none of them finer than a hundredth: what is left of a difference of equals is 0."""
    value = round(milliseconds, 2) + 0.0
    return f"{value:{sign}.0f}" if abs(value) >= 100 else f"{value:{sign}.3g}"  # noqa: PLR2004 -- no exponents


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:_SHOWN])) + (" ..." if len(ranks) > _SHOWN else "")
