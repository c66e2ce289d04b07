from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.analysis.findings import texts
from perfhooks.analysis.findings.finding import Finding, basis, ordered
from perfhooks.analysis.findings.texts import EvidenceLine, FindingText
from perfhooks.analysis.ranks import missing
from perfhooks.analysis.ranks.missing import MAX_SHOWN
from perfhooks.analysis.ranks.steps import PARTS
from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


STRAGGLER: Final = "straggler"


@dataclass(frozen=True, kw_only=True)
class RunFinding(Finding):
    rank: int | None = None
    ranks: tuple[int, ...] = ()
    part: str = ""
    windows: tuple[str, ...] = ()


def findings(data: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a finding for each part of the step with stragglers, largest gain first.

    Stragglers in the timelines of unprofiled steps (`leads.leads`) have priority. In windows, ranks are compared by
    their own work, because a rank that waits in a collective is not slow. A rank is named if it is a straggler in most
    windows that it recorded. The finding names the part in which this rank exceeds the other ranks most.
    """
    window_counts: Counter[int] = Counter()
    slow: dict[int, list[dict[str, Any]]] = {}
    for rows in (rows for window in data["windows"] for rows in _group_by_role(window)):
        window_counts.update(row["rank"] for row in rows)
        slow_rows = [row for row in rows if row.get("is_straggler")]
        for row in slow_rows:
            own = f"{row['by']}_ms"
            limit = max((other[own] or 0.0 for other in rows if other not in slow_rows), default=0.0)
            slow.setdefault(row["rank"], []).append(row | {"gain_ms": max(row[own] - limit, 0.0)})
    named = [rows for rank, rows in slow.items() if 2 * len(rows) > window_counts[rank]]
    results = [
        _build_finding(part, of_part)
        for part in (*PARTS, "")
        if (of_part := [rows for rows in named if _find_part(rows) == part])
    ]
    stragglers = [_build_unprofiled(group, lead) for group in data.get("frontier", ()) for lead in group["leads"] or ()]
    straggler_ranks = {finding["rank"] for finding in stragglers}
    results = stragglers + [result for result in results if not straggler_ranks.issuperset(result["ranks"])]
    return sorted(results, key=lambda finding: -finding["gain_ms"])


def merge_findings(
    of_ranks: Mapping[int, Sequence[Mapping[str, Any]]], of_run: Iterable[Mapping[str, Any]] = ()
) -> list[Mapping[str, Any]]:
    """Merge the findings of several ranks. Findings that differ only in numbers appear once.

    ``rank`` is the rank with the largest gain, and None for findings of the whole run. ``ranks`` are all ranks with the
    finding.
    """
    by_title: dict[tuple[str, str, int], list[tuple[int, Mapping[str, Any]]]] = {}
    for rank, rows in of_ranks.items():
        counts: Counter[tuple[str, str]] = Counter()
        for row in rows:
            key = row["rule"], _wording(row)
            by_title.setdefault((*key, counts[key]), []).append((rank, row))
            counts[key] += 1
    joined = [_join(rows) for rows in by_title.values()]
    return ordered([*({"rank": None, "ranks": (), **row} for row in of_run), *joined])


def _join(rows: list[tuple[int, Mapping[str, Any]]]) -> dict[str, Any]:
    rank, row = max(rows, key=lambda pair: pair[1].get("gain_ms") or 0.0)
    ranks = sorted(number for number, _ in rows)
    evidence = [*row["evidence"]]
    if len(ranks) > 1:
        gains = sorted(gain for _, other_row in rows if (gain := other_row.get("gain_ms")) is not None)
        names = [words.hundredths(gain) for gain in gains]
        phrase = "shared" if not gains else "shared-gain" if names[0] == names[-1] else "shared-gains"
        least, most = (gains[0], gains[-1]) if gains else (None, None)
        text = FindingText(STRAGGLER, {"rank": rank, "ranks": missing.name_ranks(ranks)})
        evidence.append(msgspec.to_builtins(text(phrase, least_ms=least, gain_ms=most)))
    return {**row, "rank": rank, "ranks": ranks, "evidence": evidence}


def _wording(row: Mapping[str, Any]) -> str:
    names = (str(value["value"]) for value in row.get("values", {}).values() if value["unit"] == "name")
    return " ".join([row.get("version", ""), *names])


def _group_by_role(window: Mapping[str, Any]) -> Iterable[list[dict[str, Any]]]:
    table = {"unprofiled_ms": window["unprofiled_ms"], **window["ranks"]}
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
    profiled_ms = _mean(worst, "wall_ms")
    known = [row for row in worst if row["unprofiled_ms"] is not None]
    step_ms = _mean(known, "unprofiled_ms") if known else profiled_ms
    ratio = step_ms / profiled_ms if profiled_ms else 1.0
    excess, gain = _mean(worst, "excess_ms") * ratio, min(_mean(worst, "gain_ms"), _mean(worst, "excess_ms")) * ratio
    suffix = f" (and {len(ranks) - 1} more)" if len(ranks) > 1 else ""
    nodes = [rows[0].get("node") for rows in by_rank]
    usual = FindingText(STRAGGLER, {})
    consequence = usual("wait" if worst[0]["by"] == "own" else "excess", excess_ms=excess)
    values = {"subject": f"Rank {ranks[0]}{_format_node(nodes[:1])}{suffix}", "consequence": consequence}
    evidence = [_describe_window(usual, row) for row in worst[:8]]
    evidence += [usual("ranks", ranks=f"{_list_ranks(ranks)}{_format_node(nodes)}")] if suffix else []
    windows = tuple(row["window"] for row in worst)
    text = FindingText(STRAGGLER, values, [part])
    facts = {"basis": basis(profiled_ms, step_ms)} if known else {}
    return _to_row(text, gain, step_ms, ranks, part, evidence=evidence, windows=windows, **facts)


def _build_unprofiled(group: Mapping[str, Any], lead: Mapping[str, Any]) -> dict[str, Any]:
    part = lead["part"]
    known = part if part in texts.of_rule(STRAGGLER).versions else ""
    text = FindingText(STRAGGLER, {**group, **lead, "lead": lead["text"]}, [known, "unprofiled"])
    return _to_row(text, lead["cost_ms"], group["step_ms"], [lead["rank"]], part, evidence=[text("late")])


def _to_row(
    text: FindingText, gain_ms: float, step_ms: float, ranks: Sequence[int], part: str, **facts: Any
) -> dict[str, Any]:
    percent = round(100 * gain_ms / step_ms, 2) if step_ms else None
    facts |= {"gain_ms": round(gain_ms, 6), "gain_percent": percent}
    finding = RunFinding.of_text(text, rank=ranks[0], ranks=tuple(ranks), part=part, **facts)
    row: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(finding))
    return row


def _format_node(nodes: Sequence[str | None]) -> str:
    (node, *other_nodes) = {*nodes}
    return f" on {node}" if node and not other_nodes else ""


def _describe_window(text: FindingText, row: Mapping[str, Any]) -> EvidenceLine:
    parts = [
        text("part", part=part, time_ms=row[f"{part}_ms"], excess_ms=row[f"{part}_excess_ms"])
        for part in PARTS
        if row.get(f"{part}_ms") is not None and row.get(f"{part}_excess_ms") is not None
    ]
    is_last = 2 * (row.get("last") or 0) > (row.get("large") or 0)
    return text("window-last" if is_last else "window", **{**row, "parts": parts})


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float:
    return float(sum(row[name] for row in rows) / len(rows))


def _list_ranks(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:MAX_SHOWN])) + (" ..." if len(ranks) > MAX_SHOWN else "")
