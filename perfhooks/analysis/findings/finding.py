from __future__ import annotations

import math
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from perfhooks.analysis.findings import texts
from perfhooks.analysis.findings.texts import EvidenceLine, FindingText, Value
from perfhooks.core import words
from perfhooks.core.errors import OptionError
from perfhooks.trace.nesting.intervals import NOTABLE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from typing_extensions import Self

OVERHEAD: Final = "profiler-overhead"
UNNAMED: Final = "unnamed-time"
HEAVY: Final = 0.05
"""Minimum share of the step, or of the run, for a finding. Source: the lower threshold of torch_tb_profiler's rule on
waits for data.
"""
MAJOR: Final = 0.1
"""Minimum share of the step, or of the run, for a finding with an uncertain fix. Source: the threshold of
torch_tb_profiler's rule on communication.
"""
DOMINANT: Final = 0.2
"""Minimum share of the step for many small costs that one fix reduces."""
MANY: Final = 20
"""Minimum repetitions of a collective or operator in a step. DDP needs one collective per 25 MiB of gradients."""
_LOCATIONS: Final = (
    re.compile(r"(?P<function>[\w<>.]+) \((?P<file>.+\.pyw?):(?P<line>\d+)\)(?P<called>)"),
    re.compile(
        r"(?:\S+::\S+ in )?(?P<file>.+?\.pyw?)(?:\((?P<line>\d+)\))?: (?P<function>[\w<>.]+)"
        r"(?:, in (?:(?:<built-in \w+ |.+: )(?P<called>\w+))?.*)?"
    ),
)
"""For example ``load (my train.py:20)`` or ``my train.py: main, in json.py(9): dump``."""
_BY_SHAPES: Final = ("float64-products", "kernels-below-limit")
"""Rules that need shapes or types, so only a window with shapes has their findings."""
_REQUESTS: Final = ("record-shapes", "record-stacks")
_TIMED: Final = ("source", "holder")
_LOOP: Final = "loop"
WAITING: Final = "waiting-for-data"


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem of a run, ready for JSON.

    The gain is an estimate (``about 12 ms, 9%``) if the gain of the fix was measured under these conditions, else an
    upper bound (``at most 12 ms, 9%``) or None.
    """

    rule: str
    title: str
    gain_ms: float | None
    """Gain in ms of an unprofiled step."""
    gain_percent: float | None
    estimate: str
    evidence: tuple[EvidenceLine, ...]
    advice: str
    code: str
    is_bound: bool = False
    is_percent_of_run: bool = False
    doubts_others: bool = False
    """Whether the finding makes the numbers of all other findings doubtful."""
    profiled_ms: float | None = None
    overhead_share: float = 0.0
    wait_ms: float | None = None
    """Wait for data in ms of a profiled step, while no device works."""
    wait_share: float = 1.0
    rest_ms: float | None = None
    """Time of a profiled step minus its wait for data, in ms; None if the fix also shortens this wait."""
    affected_ms: float | None = None
    """Time that the fix affects, in ms of a profiled step."""
    most_ms: float | None = None
    """Time that the fix affects, in ms of an unprofiled step: the upper end of the gain."""
    basis: str = ""
    values: dict[str, Value] = field(default_factory=dict)
    version: str = ""
    """Name of the alternative title; empty for the main title."""

    @classmethod
    def of_text(cls, text: FindingText, **facts: Any) -> Self:
        texts_of_rule = {"title": text.title, "estimate": text.estimate, "advice": text.fix, "code": text.code}
        return cls(**{"rule": text.rule, "values": text.values, "version": text.version, **texts_of_rule, **facts})

    def scaled(self, ratio: float) -> Self:
        return replace(self, **scaled_title(self.rule, self.version, self.values, ratio))

    @property
    def lines(self) -> tuple[str, ...]:
        return tuple(map(str, self.evidence))

    def check(self) -> None:
        """Raise OptionError if a field of a plugin's finding has a wrong type or is not finite."""
        try:
            msgspec.convert(msgspec.to_builtins(self), type(self))
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise OptionError(f"a field of a finding is wrong: {error}") from error
        numbers = {name: value for name, value in vars(self).items() if isinstance(value, float)}
        if wrong := [name for name, value in numbers.items() if not math.isfinite(value)]:
            raise OptionError(f"{wrong[0]} of a finding must be a finite number, got {numbers[wrong[0]]}")


def gain(finding: Mapping[str, Any]) -> str:
    if finding.get("gain_ms") is None:
        return ""
    amount = f"{'at most' if finding.get('is_bound') else 'about'} {words.ms(finding['gain_ms'])}"
    percent = finding.get("gain_percent")
    whole = words.OF_RUN if finding.get("is_percent_of_run") else ""
    return amount if percent is None else f"{amount}, {words.share(percent / 100)}{whole}"


def estimate(finding: Mapping[str, Any]) -> str:
    return " ".join(filter(None, [finding["estimate"], finding.get("basis", "")]))


def ordered(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return sorted(findings, key=sort_key)


def sort_key(finding: Mapping[str, Any]) -> tuple[bool, float]:
    return finding.get("doubts_others", False), -(finding.get("gain_ms") or 0.0)


def first_rank_findings(window: Mapping[str, Any]) -> list[dict[str, Any]]:
    first: tuple[str, Mapping[str, Any]] = next(iter(window.get("details", {}).items()), ("", {}))
    rank, summary = first
    name = f"Rank {rank}: " if len(window.get("ranks", ())) > 1 else ""
    return [{**row, "title": f"{name}{row['title']}"} for row in summary.get("findings", {}).get("rows", ())]


def unprofiled_ratio(
    profiled_ms: float, overhead_share: float, profiled_step_ms: float, step_ms: float, *, is_bound: bool
) -> float:
    if not profiled_ms or not profiled_step_ms:
        return 1.0
    added, slower = max(profiled_step_ms - step_ms, 0.0), max(step_ms / profiled_step_ms, 1.0)
    ratio = min(max(profiled_ms * slower - overhead_share * added, 0.0), step_ms) / profiled_ms
    # the overhead is an estimate: a bound also allows for an equal overhead of all parts of the step
    return max(ratio, step_ms / profiled_step_ms) if is_bound else ratio


def rest_ratio(rest_ms: float | None, step_ms: float, data_ms: float | None) -> float:
    """Return the unprofiled step time divided by the profiled one, both minus waits for data; infinite if unknown.

    The ratio limits the gains of findings that do not shorten waits for data.
    """
    return max(step_ms - (data_ms or 0.0), 0.0) / rest_ms if rest_ms else math.inf


def scaled_title(rule: str, version: str, values: Mapping[str, Value], ratio: float) -> dict[str, Any]:
    """Return the title and values of a finding, with times multiplied by ``ratio``; empty for a plugin's rule."""
    if not (texts.FOLDER / f"{rule}.toml").exists():
        return {}
    numbers = {
        name: value.value * ratio if value.unit == "ms" and isinstance(value.value, (int, float)) else value.value
        for name, value in values.items()
    }
    text = FindingText(rule, numbers, [version])
    return {"title": text.title, "values": text.values}


def basis(profiled_step_ms: float, step_ms: float) -> str:
    return str(texts.shared("basis", unprofiled_ms=step_ms, profiled_ms=profiled_step_ms))


def _without_request(row: Mapping[str, Any]) -> dict[str, Any]:
    usual = FindingText(UNNAMED, {})
    texts_of_row = {"advice": usual.fix, "code": usual.code} if row["rule"] == UNNAMED else {}
    evidence = [line for line in row["evidence"] if line["phrase"] not in _REQUESTS]
    return {**row, **texts_of_row, "evidence": evidence}


def scale_to_unprofiled(
    findings: Iterable[Mapping[str, Any]], profiled_step_ms: float, step_ms: float, data_ms: float | None
) -> list[dict[str, Any]]:
    """Convert titles and gains to unprofiled steps. Drop findings that gain less than 1% of the step (`NOTABLE`)."""
    rows = []
    for row in findings:
        new, profiled_ms, wait_ms = dict(row), row.get("profiled_ms"), row.get("wait_ms")
        if profiled_ms is None:
            rows.append(new)
            continue
        if wait_ms:
            unprofiled_ms = wait_ms * step_ms / profiled_step_ms if data_ms is None else data_ms * row["wait_share"]
            exposed = min(unprofiled_ms, step_ms)
            if exposed < HEAVY * step_ms:
                continue
            saved, most_ms = exposed * profiled_ms / wait_ms, exposed
            text = FindingText(WAITING, {"unit": "step", "wait_ms": exposed, "share": exposed / step_ms})
            new |= msgspec.to_builtins({"title": text.title, "values": text.values})
            if data_ms is None:
                new["basis"] = basis(profiled_step_ms, step_ms)
            else:
                clock = text("clock", data_ms=data_ms, step_ms=step_ms)
                lines = [line for line in row["evidence"] if line["phrase"] != clock.phrase]
                new["evidence"] = msgspec.to_builtins([clock, *lines])
        else:
            overhead_share = row.get("overhead_share", 0.0)
            is_bound = row.get("is_bound", False)
            ratio = unprofiled_ratio(profiled_ms, overhead_share, profiled_step_ms, step_ms, is_bound=is_bound)
            ratio = min(ratio, rest_ratio(row.get("rest_ms"), step_ms, data_ms))
            saved, most_ms = profiled_ms * ratio, min((row.get("affected_ms") or 0.0) * ratio, step_ms)
            if row.get("most_ms"):
                values = msgspec.convert(row["values"], dict[str, Value])
                title = scaled_title(row["rule"], row.get("version", ""), values, most_ms / row["most_ms"])
                new |= msgspec.to_builtins(title)
            new["basis"] = basis(profiled_step_ms, step_ms)
        if saved >= NOTABLE * step_ms:
            rows.append(new | {"gain_ms": saved, "gain_percent": 100 * saved / step_ms, "most_ms": most_ms})
    return rows


class SourceLocation(NamedTuple):
    function: str | None = None
    file: str | None = None
    line: int | None = None
    called: str | None = None

    def __str__(self) -> str:
        """Return for example ``dump in main, train.py``."""
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        location = ", ".join(filter(None, [self.function, place]))
        return f"{self.called} in {location}" if self.called and self.line is None else location


def source_location(evidence: Iterable[Mapping[str, Any]]) -> SourceLocation:
    """Return the first location, or the line that requests the batches if the first one has no line."""
    lines = list(evidence)
    first = next(filter(None, map(_location, lines)), SourceLocation())
    requests = (_location(line) for line in lines if line["phrase"] == _LOOP)
    return first if first.line is not None else next(filter(None, requests), first)


def _location(line: Mapping[str, Any]) -> SourceLocation | None:
    names = (value["value"] for value in line.get("values", {}).values() if value["unit"] == "name")
    return next(filter(None, map(location_of, names)), None)


def location_of(name: str) -> SourceLocation | None:
    match = next(filter(None, (pattern.fullmatch(name) for pattern in _LOCATIONS)), None)
    if match is None:
        return None
    function, line = match["function"], int(match["line"]) if match["line"] else None
    return SourceLocation(None if function == "<module>" else function, match["file"], line, match["called"])


def add_source_lines(
    findings: Iterable[Mapping[str, Any]], explaining: Iterable[Mapping[str, Any]], steps: str
) -> list[dict[str, Any]]:
    """Add source lines, but no times, from ``explaining``: findings of a window with stacks."""
    by_rule = {str(row["rule"]): row for row in explaining}
    results = []
    for row in findings:
        explanation, new = by_rule.get(str(row["rule"])), _without_request(row)
        loop_lines = [line for line in new["evidence"] if line["phrase"] == _LOOP]
        evidence = [line for line in new["evidence"] if line["phrase"] != _LOOP]
        if explanation is not None and not any(map(_location, evidence)):
            named = [line for line in explanation["evidence"] if line["phrase"] != _LOOP and _location(line)]
            new["evidence"] = [*evidence, *(_seen(line, steps) for line in named), *loop_lines]
        results.append(new)
    return results


def additional_findings(
    findings: Iterable[Mapping[str, Any]], explaining: Iterable[Mapping[str, Any]], steps: str
) -> list[dict[str, Any]]:
    """Return the findings by shapes from ``explaining`` that ``findings`` lacks."""
    rules = {row["rule"] for row in findings}
    seen_in = msgspec.to_builtins(texts.shared("seen-in", steps=steps))
    rows = [row for row in explaining if row["rule"] in _BY_SHAPES and row["rule"] not in rules]
    return [{**row, "evidence": [*row["evidence"], seen_in]} for row in rows]


def _seen(line: Mapping[str, Any], steps: str) -> dict[str, Any]:
    name = line["values"]["name"]["value"] if line["phrase"] in _TIMED else msgspec.convert(line, EvidenceLine)
    seen: dict[str, Any] = msgspec.to_builtins(texts.shared("seen", line=name, steps=steps))
    return seen
