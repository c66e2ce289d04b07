"""The machine had more to do than this training: what it took by the clock is more than it needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import words
from perfhooks.run.circumstances import BUSY

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

RULE: Final = "busy-machine"
"""Its finding comes before all others."""


def busy_machine(seen: Evidence) -> Iterator[Finding]:
    """The thread that steps waited for a processor for 5% of its time or more.

    Source: `perfhooks.run.circumstances.BUSY`; Linux's own count, see `perfhooks.watching.counters`.

    Measured: there is no gain to measure.
    """
    found = seen.capture.circumstances
    if not seen.is_busy:
        return
    yield from seen.finding(
        "busy-machine",
        None,
        title=f"The training waited for a processor for {words.share(found.queued or 0.0)} of its time.",
        estimate="No gain: it says that the times of all other findings are too long.",
        evidence=[
            f"from {words.share(BUSY)} on it is said; with nothing else to do it is below 1%",
            *([] if found.cores is None else [f"processors: {found.cores}, processes of this job: {found.ranks}"]),
        ],
        advice=(
            "Other programs, or threads and workers of this job, wanted more processors than there are. Believe what "
            "counts (calls, shapes, types, launches) and the order of parts, not milliseconds. Record again when the "
            "machine is quiet; if what it has to do is this job's own, give it fewer threads or fewer workers."
        ),
        code="torch.set_num_threads(4)   # fewer than there are processors, with the loader's workers",
    )
