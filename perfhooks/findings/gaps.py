"""The device has nothing to do for long at once, and the host does something that has no name of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.findings.host import PAUSE_NS, explained
from perfhooks.findings.start import spent_in
from perfhooks.trace.nesting import intervals
from perfhooks.trace.tables import gaps
from perfhooks.words import ms

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

PAUSES: Final = 0.1
"""Of the step. What a device is idle for beyond `host.PAUSE_NS` at once is no slow launching; from a tenth of the step
on it is worth a look at what the host does then."""
_SHOWN: Final = 4


def device_pauses(seen: Evidence) -> Iterator[Finding]:
    """The device idles for 10% of the step or more in pauses of 5 ms or longer that nothing else explains.

    Source: `PAUSES`, `host.PAUSE_NS`. Of the ten longest gaps between works of the devices, the parts in which the host
    did not wait for data or the device, validate, save, sit in a long call, or do what is done once (`start`).

    Measured: never, for the advice depends on what the host does; it is worth trying.
    """
    if not seen.trace.is_device_traced:
        return
    long = gaps.longest(seen.trace)
    long = long[long[:, 1] - long[:, 0] > PAUSE_NS]
    known = intervals.joined(explained(seen), *spent_in(seen).values())
    pauses = intervals.subtract(seen.clipped(intervals.union(long[:, 0], long[:, 1])), known)
    spent = seen.per_step(pauses)
    if seen.share(spent) < PAUSES:
        return
    left = intervals.within(pauses, long[:, 0], long[:, 1]) > 0
    rows = seen.tables.gaps.filter(pl.col("gap_ms") > PAUSE_NS / 1e6).filter(pl.Series(left))
    shown = [
        f"{ms(each['gap_ms'])}" + (f" in step {each['step']}" if each["step"] is not None else "") + f": {_did(each)}"
        for each in rows.head(_SHOWN).iter_rows(named=True)
    ]
    yield from seen.finding(
        "device-pauses",
        min(spent, seen.host_limit_ms),
        title=f"The device has nothing to do for {ms(spent)} of a {seen.unit}, in pauses of more than 5 ms at once.",
        estimate="Worth trying: as much as the host can do at another time, or on another thread, is gained.",
        evidence=["the longest, with what the host did for most of them:", *shown],
        advice=(
            "Between two works of the device the host does something long that gives it none: preprocessing, logging, "
            "reading or writing files, collecting garbage. Move it to a loader's worker or a thread, do it less often, "
            "or do it while the device works on what was launched before."
        ),
        code="executor.submit(log, values)   # concurrent.futures.ThreadPoolExecutor(1), made before the loop",
        of=pauses,
        is_wait=True,
    )


def _did(row: dict[str, str | None]) -> str:
    return row["line"] or row["call"] or row["operator"] or row["label"] or "nothing that was recorded"
