"""One problem of a run that is worth solving, with its evidence and its gain."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perfhooks.core import words

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OVERHEAD: Final = "profiler-overhead"
"""The rule about the recorder. The first screen leaves it out, because it shows both step times."""
UNNAMED: Final = "unnamed-time"
"""The rule about code outside of torch. Overhead of the recorder looks like such code."""
NOTABLE: Final = 0.01
"""Smallest gain of a finding, as a share of the step: two recordings of the same program differ by as much."""
WAITING: Final = 0.05
"""Smallest wait for data of a finding, as a share of the step: the threshold of torch_tb_profiler's first rule."""
BOUND: Final = 0.8
"""Smallest share of the step in which the device works if the device decides how long a step takes."""
HEAVY: Final = 0.05
"""Smallest time of operators of a finding, as a share of the step: a step varies by half of it anyway."""
FAR_HEAVY: Final = 0.1
"""Smallest time of kernels of a finding about their speed, as a share of the step."""
_BASIS: Final = " The gain is of an unprofiled step of "
ASKS: Final = " asks for the batches"
"""End of the evidence that names the loop over a loader."""
CLOCK: Final = ", by the run's own clock"
"""End of the evidence that the timeline has for a wait."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a rule found; every field is plain data, ready for JSON.

    There are three kinds of gain:

    * an estimate, if following the advice was measured to help under these conditions: ``about 12 ms, 9%``;
    * an upper bound, if it was not measured: ``at most 12 ms, 9%``;
    * none, if nothing is known or the finding is no advice.
    """

    rule: str
    """The name of the rule, as one word for programs."""
    title: str
    """The problem and its size, in one sentence."""
    gain_ms: float | None
    """Gain in milliseconds of an unprofiled step; None if unknown. Never more than the step takes."""
    gain_percent: float | None
    """The same as a percentage of that step."""
    estimate: str
    """How the gain was estimated."""
    evidence: tuple[str, ...]
    """Numbers, steps, operators, lines of source."""
    advice: str
    """What to do, in one paragraph."""
    code: str
    """The lines to write."""
    is_bound: bool = False
    """Whether the gain is only an upper bound."""
    doubts_others: bool = False
    """Whether it is a reason to doubt all other numbers, and no advice."""
    profiled_ms: float | None = None
    """The gain in a profiled step, from which `of_unprofiled` computes that of an unprofiled one."""
    overhead_share: float = 0.0
    """Milliseconds of `profiled_ms` for each millisecond that recording adds to the step."""
    wait_ms: float | None = None
    """The wait for data in a profiled step while no device works, if the finding is about it."""
    wait_share: float = 1.0
    """The share of the wait for data while no device works."""


def gain(finding: Mapping[str, Any]) -> str:
    """The gain of a finding in words, the same in all outputs; empty if unknown."""
    if finding.get("gain_ms") is None:
        return ""
    amount = f"{'at most' if finding.get('is_bound') else 'about'} {words.ms(finding['gain_ms'])}"
    percent = finding.get("gain_percent")
    return amount if percent is None else f"{amount}, {words.share(percent / 100)}"


def ordered(findings: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Sort findings: the largest gain first, then findings without a gain, then doubts."""
    return sorted(findings, key=rank)


def rank(finding: Mapping[str, Any]) -> tuple[bool, float]:
    """The place of a finding among others, see `ordered`."""
    return finding.get("doubts_others", False), -(finding.get("gain_ms") or 0.0)


def of_rank(window: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the findings of the first rank with details; their titles name it if the window has several ranks.

    Args:
        window: A window of the data of a report.
    """
    first: tuple[str, Mapping[str, Any]] = next(iter(window.get("details", {}).items()), ("", {}))
    rank, share = first
    name = f"Rank {rank}: " if len(window.get("ranks", ())) > 1 else ""
    return [{**row, "title": f"{name}{row['title']}"} for row in share.get("findings", {}).get("rows", ())]


def gain_of(profiled_ms: float, overhead_share: float, profiled_step_ms: float, step_ms: float) -> float:
    """The gain in an unprofiled step, without the time that recording added.

    Args:
        profiled_ms: The gain in a profiled step.
        overhead_share: See `Finding.overhead_share`.
        profiled_step_ms: What a profiled step takes.
        step_ms: What an unprofiled step takes.
    """
    added = max(profiled_step_ms - step_ms, 0.0)
    return min(max(profiled_ms - overhead_share * added, 0.0), step_ms)


def basis(profiled_step_ms: float, step_ms: float) -> str:
    """Return the sentence that names the steps of the gain, if these are not those of the evidence."""
    return f"{_BASIS}{words.ms(step_ms)}; title and evidence are of profiled steps of {words.ms(profiled_step_ms)}."


def of_unprofiled(
    findings: Iterable[Mapping[str, Any]], profiled_step_ms: float, step_ms: float, data_ms: float | None
) -> list[dict[str, Any]]:
    """Findings of a window for an unprofiled step, whose time became known later; without gains too small to name.

    Args:
        findings: As plain data.
        profiled_step_ms: What a profiled step takes.
        step_ms: What an unprofiled step takes.
        data_ms: How long that step waits for data; None if unknown.
    """
    found = []
    for row in findings:
        new, profiled_ms, wait_ms = dict(row), row.get("profiled_ms"), row.get("wait_ms")
        if profiled_ms is None:
            found.append(new)
            continue
        if wait_ms and data_ms is not None:
            exposed = min(data_ms * row["wait_share"], step_ms)
            if exposed < WAITING * step_ms:
                continue
            saved = exposed * profiled_ms / wait_ms
            clock = f"unprofiled steps wait {words.ms(data_ms)} of {words.ms(step_ms)} for data{CLOCK}"
            title = f"The step waits {words.ms(exposed)} for data, {words.share(exposed / step_ms)} of its time."
            new |= {"title": title, "evidence": [clock, *(line for line in row["evidence"] if CLOCK not in line)]}
        else:
            saved = gain_of(profiled_ms, row.get("overhead_share", 0.0), profiled_step_ms, step_ms)
            new["estimate"] = row.get("estimate", "").partition(_BASIS)[0] + basis(profiled_step_ms, step_ms)
        if saved >= NOTABLE * step_ms:
            found.append(new | {"gain_ms": saved, "gain_percent": 100 * saved / step_ms})
    return found
