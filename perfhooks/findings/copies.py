"""Copies to the device that hold everything up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.findings.evidence import most, ms
from perfhooks.trace import intervals
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

STAGED_BYTES: Final = 64 * 1024
"""A pageable copy to the device of up to 64 KB returns before it is done (CUDA's "API synchronization behavior"), so it
holds nothing up."""

# ROCm does not tell pinned memory from pageable, but calls it by hipMemcpyWithStream, which waits
_UNPINNED: Final = r"\bHtoD\b.*\((?:Pageable|Host) -> "
_WAITING: Final = r"^(?:cuda|hip)Memcpy(?:WithStream)?$"


def blocking_copies(seen: Evidence) -> Iterator[Finding]:
    """Copies of more than 64 KB from memory that is not pinned take 1% of the step or more, while no kernel runs.

    Source: `STAGED_BYTES` and `evidence.NOTABLE`. Where the recorder does not tell pinned memory from pageable (ROCm),
    copies whose call waits for them.
    """
    rows = _unpinned(seen)
    trace = seen.trace
    kernels = trace.rows(Kind.KERNEL)
    alone = intervals.subtract(
        intervals.union(trace.start[rows], trace.end[rows]), intervals.union(trace.start[kernels], trace.end[kernels])
    )
    gain = min(seen.per_step(alone), seen.mean("exposed_copy_ms"))
    if not seen.is_worth(gain):
        return
    yield from seen.finding(
        "blocking-copies",
        gain,
        title=f"Copies from memory that is not pinned hold the device up for {ms(gain)} in a {seen.unit}.",
        estimate=(
            "The time of these copies in which no kernel ran: gone if each is made ahead, on a stream of its own; "
            "pinning alone makes them faster and spares the host the wait."
        ),
        evidence=_evidence(seen, rows),
        advice=(
            "Have the loader put batches into pinned memory and copy them without waiting; the device then fetches "
            "them at full speed while the host goes on. To hide the copy altogether, copy the next batch on a second "
            "stream while this one trains. Tensors that never change belong on the device once, before the loop."
        ),
        code='DataLoader(..., pin_memory=True)\nbatch = batch.to("cuda", non_blocking=True)',
    )


def _unpinned(seen: Evidence) -> Ints:
    """The copies to the device from memory that is not pinned, large enough to hold the host up; slices."""
    trace = seen.trace
    rows = seen.work_named(_UNPINNED, Kind.COPY)
    pageable = seen.work_named(r"\bHtoD\b.*\(Pageable -> ", Kind.COPY)
    waiting = seen.named(_WAITING, Kind.RUNTIME)
    rows = rows[[row in pageable or call in waiting for row, call in zip(rows, seen.launch_of(rows), strict=True)]]
    size = trace.argument("nbytes")[rows]
    found: Ints = rows[(size > STAGED_BYTES) | (size < 0)]
    return found


def _evidence(seen: Evidence, rows: Ints) -> list[str]:
    trace = seen.trace
    size, span = trace.argument("nbytes")[rows], (trace.end - trace.start)[rows]
    evidence = [f"{seen.often(rows)} such copies in a {seen.unit}, {ms(seen.device_ms(rows))} together"]
    if (size >= 0).all() and span.sum():
        volume, speed = size.sum() / seen.count / 1e6, size.sum() / span.sum()
        evidence.append(f"{volume:.3g} MB in a {seen.unit} at {speed:.3g} GB/s")
    calls = seen.launch_of(rows)
    lines = zip(seen.where(calls[calls >= 0]), seen.lengths(rows[calls >= 0]), strict=True)
    return evidence + most([(line, time) for line, time in lines if line])
