from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import msgspec
from msgspec import Meta

from perfhooks.report.page.data import TriedAdvice, TriedMost

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION: Final = 1
Interval = Annotated[list[float], Meta(min_length=2, max_length=2)]


class TunedChange(msgspec.Struct, kw_only=True):
    name: str
    rules: list[str]
    status: Annotated[
        str,
        Meta(
            pattern="^(kept|faster|rejected|failed|unsuitable|would try|proposed|not measured)$",
            description="kept: it is part of the final set. faster: another change excludes it. rejected: not "
            "decided faster, or results differ. failed: the trial failed. unsuitable: the training has no such call, "
            "or has the change. would try: it needs --allow-numerics. proposed: see proposal. not measured: the time "
            "limit was reached.",
        ),
    ]
    reason: str | None = None
    outcome: Annotated[str | None, Meta(description="Verdict about the step time.")] = None
    ratio: Annotated[float | None, Meta(description="Step time with the change, divided by the original.")] = None
    interval: Annotated[Interval | None, Meta(description="99% interval of the ratio.")] = None
    gain_ms: Annotated[float | None, Meta(description="Saved time of a step, in ms.")] = None
    memory_bytes: Annotated[
        int | None, Meta(description="Memory of all processes with the change minus that without it.")
    ] = None
    loss_difference: Annotated[
        float | None, Meta(description="Largest difference of the first losses; null if they cannot be compared.")
    ] = None
    lines: Annotated[list[str], Meta(description="Affected lines, as file:line.")] = []


class TunedFile(msgspec.Struct, kw_only=True):
    """Result of perfhooks tune."""

    version: Annotated[int, Meta(ge=1, le=1)] = VERSION
    perfhooks: str
    run: Annotated[str, Meta(description="Name of the run folder with the recording.")]
    command: list[str]
    new_command: Annotated[list[str], Meta(description="Command with the proposed options.")]
    is_interrupted: bool
    changes: list[TunedChange]
    final: Annotated[TunedChange | None, Meta(description="All kept changes together.")]
    patch: Annotated[str | None, Meta(description="Unified diff of the kept changes.")]
    proposal: Annotated[str | None, Meta(description="Diff that keeps values on the device; not measured.")] = None
    by_hand: Annotated[list[str], Meta(description="Lines that the patch and the proposal cannot change.")]


def tuned_advice(change: TunedChange) -> Iterator[TriedAdvice]:
    if change.outcome != "faster" or change.interval is None or change.ratio is None or change.gain_ms is None:
        return
    step_ms, (low, high) = change.gain_ms / (1 - change.ratio), change.interval
    least, most = (
        {"times": 1 / ratio, "saved_ms": step_ms * (1 - ratio), "saved_percent": 100 * (1 - ratio)}
        for ratio in (high, low)
    )
    device = "the whole training"
    for rule in change.rules:
        yield TriedAdvice(rule=rule, variant=change.name, operators=0, device=device, most=TriedMost(**most), **least)
