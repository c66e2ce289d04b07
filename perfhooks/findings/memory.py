"""The allocator asks the device for memory again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.findings.evidence import ms
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

OFTEN: Final = 1.0
"""Calls in a step, on average: once warm, torch's allocator makes none."""

_CALLS: Final = (
    r"^(?:cuda|hip)(?:Malloc|Free)$|^cuMem(?:Create|Map|Unmap|Release)$|^hipMem(?:Create|Map|Unmap|Release)$"
)


def allocator_churn(seen: Evidence) -> Iterator[Finding]:
    """Steps call ``cudaMalloc`` or ``cudaFree`` once each or more, for 1% of their time or more.

    Source: `OFTEN`, `evidence.NOTABLE`. Only where there are marks of steps: a recording without them may be the start
    of a program, where such calls belong.
    """
    if not seen.are_numbered:
        return
    rows = seen.named(_CALLS, Kind.RUNTIME)
    spent = seen.per_step(seen.spans(rows))
    gain = min(spent, seen.host_limit_ms)
    if len(rows) < OFTEN * seen.count or not seen.is_worth(gain):
        return
    yield from seen.finding(
        "allocator-churn",
        gain,
        title=f"Every {seen.unit} asks the device for memory anew, for {ms(spent)}.",
        estimate="The time of these calls, no more than the device idles.",
        evidence=[
            f"{seen.often(rows)} calls in a {seen.unit}",
            *seen.by_name(rows),
            *seen.by_line(rows),
        ],
        advice=(
            "Once warm, torch's allocator serves every step from what it holds. It goes back to the device if memory "
            "is nearly full or fragmented by changing shapes, or if the loop calls torch.cuda.empty_cache(), which "
            "only makes the next step slower. Let segments grow, keep shapes alike, or use a little less memory."
        ),
        code="PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   # in the environment; no empty_cache() in the loop",
        of=seen.spans(rows),
    )
