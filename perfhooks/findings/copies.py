"""Copies to the device that hold everything up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.findings.evidence import most, ms
from perfhooks.trace import intervals
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Tables
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

STAGED_BYTES: Final = 64 * 1024
"""A pageable copy to the device of up to 64 KB returns before it is done (CUDA's "API synchronization behavior"), so it
holds nothing up."""

# ROCm does not tell pinned memory from pageable, but calls it by hipMemcpyWithStream, which waits
_UNPINNED: Final = r"\bHtoD\b.*\((?:Pageable|Host) -> "
_WAITING: Final = r"^(?:cuda|hip)Memcpy(?:WithStream)?$"


def blocking_copies(tables: Tables) -> Iterator[Finding]:
    """Copies of more than 64 KB from memory that is not pinned take 1% of the step or more, while no kernel runs.

    Source: `STAGED_BYTES` and `tables.NOTABLE`. Where the recorder does not tell pinned memory from pageable (ROCm),
    copies whose call waits for them.
    """
    rows = _unpinned(tables)
    trace = tables.trace
    kernels = trace.rows(Kind.KERNEL)
    alone = intervals.subtract(
        intervals.union(trace.start[rows], trace.end[rows]), intervals.union(trace.start[kernels], trace.end[kernels])
    )
    gain = min(tables.per_step(alone), tables.mean("exposed_copy_ms"))
    if not tables.is_worth(gain):
        return
    yield tables.finding(
        "blocking-copies",
        gain,
        title=f"Copies from memory that is not pinned hold the device up for {ms(gain)} in a {tables.unit}.",
        estimate=(
            "The time of these copies in which no kernel ran: gone if each is made ahead, on a stream of its own; "
            "pinning alone makes them faster and spares the host the wait."
        ),
        evidence=_evidence(tables, rows),
        advice=(
            "Have the loader put batches into pinned memory and copy them without waiting; the device then fetches "
            "them "
            "at full speed while the host goes on. To hide the copy altogether, copy the next batch on a second stream "
            "while this one trains. Tensors that never change belong on the device once, before the loop."
        ),
        code='DataLoader(..., pin_memory=True)\nbatch = batch.to("cuda", non_blocking=True)',
    )


def _unpinned(tables: Tables) -> Ints:
    """The copies to the device from memory that is not pinned, large enough to hold the host up; slices."""
    trace = tables.trace
    rows = tables.work_named(_UNPINNED, Kind.COPY)
    pageable = tables.work_named(r"\bHtoD\b.*\(Pageable -> ", Kind.COPY)
    waiting = tables.named(_WAITING, Kind.RUNTIME)
    rows = rows[[row in pageable or call in waiting for row, call in zip(rows, tables.launch_of(rows), strict=True)]]
    size = trace.argument("nbytes")[rows]
    found: Ints = rows[(size > STAGED_BYTES) | (size < 0)]
    return found


def _evidence(tables: Tables, rows: Ints) -> list[str]:
    trace = tables.trace
    size, span = trace.argument("nbytes")[rows], (trace.end - trace.start)[rows]
    evidence = [f"{tables.often(rows)} such copies in a {tables.unit}, {ms(tables.device_ms(rows))} together"]
    if (size >= 0).all() and span.sum():
        volume, speed = size.sum() / tables.count / 1e6, size.sum() / span.sum()
        evidence.append(f"{volume:.3g} MB in a {tables.unit} at {speed:.3g} GB/s")
    calls = tables.launch_of(rows)
    lines = zip(tables.where(calls[calls >= 0]), tables.lengths(rows[calls >= 0]), strict=True)
    return evidence + most([(line, time) for line, time in lines if line])
