"""Steps that do more than train: validation and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks import labels, words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import operators, step_kinds
from perfhooks.trace.names.part_names import SAVE
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

VALIDATING: Final = 0.1
"""Of the recorded steps. Validation is no waste, but when it takes more than a tenth it is worth a thought."""
SAVING: Final = 0.05
"""Of the recorded steps: the training waits for a disk."""
LESS_OFTEN: Final = 0.5
"""Half of the validation is counted as gained: it is done half as often."""

_CHECKPOINT: Final = labels.pattern(labels.CHECKPOINT)


def validation_in_steps(seen: Evidence) -> Iterator[Finding]:
    """Validation takes 10% of the recorded steps or more.

    Source: `VALIDATING`, `LESS_OFTEN`; ``validation_ms`` of the table of steps. Silent where every step has some and
    nobody labelled it: a target or a teacher network, and rollouts, are called in evaluation mode as well. Losses that
    are computed twice as often as they are passed back tell that it is one.

    Measured: it needs no measurement, on no device: what is done half as often takes half of its time.
    """
    if seen.capture.stage != "train":
        return
    seen = seen.of_every_kind
    spent = seen.mean("validation_ms")
    if seen.share(spent) < VALIDATING:
        return
    kinds = step_kinds.kinds(seen.steps)
    often = kinds.count(labels.VALIDATION) or seen.steps.filter(pl.col("validation_ms") > 0).height
    is_labelled = len(seen.named(f"^{labels.VALIDATION}$", Kind.ANNOTATION))
    if often == seen.count > 1 and not is_labelled and not _has_spare_losses(seen):
        return  # in every step, and nobody called it so: a target or a teacher network, or rollouts
    yield from seen.finding(
        "validation-in-steps",
        LESS_OFTEN * spent,
        title=f"Validation takes {words.share(seen.share(spent))} of the recorded steps.",
        estimate="Half of it, by validating half as often; over the whole run, if these steps are like the others.",
        evidence=[f"{often} of {seen.count} steps validate, {words.ms(seen.mean('validation_ms'))} a step on average"],
        advice=(
            "Validate less often, on fewer batches, or without gradients and with larger batches: without a backward "
            "pass there is room for them. If these steps were chosen to show training, let the window begin elsewhere."
        ),
        is_measured=True,
        code=seen.said("less validation"),
    )


def _has_spare_losses(seen: Evidence) -> bool:
    """Whether losses are computed from which nothing is learned, twice as many as others at least."""
    computed, passed_back = (
        seen.outermost(seen.named(pattern, Kind.OP)) for pattern in (operators.LOSSES, operators.LOSSES_BACKWARD)
    )
    return 0 < 2 * len(passed_back) <= len(computed)


def checkpoint_in_steps(seen: Evidence) -> Iterator[Finding]:
    """Saving checkpoints takes 5% of the recorded steps or more.

    Source: `SAVING`; the label ``checkpoint``, and ``torch.save`` where stacks were recorded.

    Measured: on two cores no gain could be told from noise (``examples/bad/checkpoint_in_steps.py``, at best 147 ms a
    step, took 159 with a thread that writes), so it is worth trying.
    """
    seen = seen.of_every_kind
    rows = _saves(seen)
    spent = seen.per_step(seen.spans(rows))
    gain = min(spent, seen.host_limit_ms)
    if seen.share(gain) < SAVING:
        return
    outer = intervals.of_slices(seen.trace, rows)
    lines = sorted({line for line in seen.where(rows) if line})
    yield from seen.finding(
        "checkpoint-in-steps",
        gain,
        title=f"Saving checkpoints takes {words.share(seen.share(spent))} of the recorded steps.",
        estimate="All of it, if a thread writes at no cost; over the whole run, if these steps are like the others.",
        evidence=[f"{len(outer)} checkpoints in {seen.numbers}, {words.ms(spent)} a step on average", *lines[:3]],
        advice=(
            "Copy the state to the host and let a thread or another process write it while training goes on; save less "
            "often; keep optimizer state out of files that are only for inference."
        ),
        code=seen.said("saved aside"),
        of=seen.spans(rows),
    )


def _saves(seen: Evidence) -> Ints:
    rows = intervals.distinct(seen.named(_CHECKPOINT, Kind.ANNOTATION), seen.named(SAVE, Kind.PYTHON))
    found: Ints = rows[seen.trace.thread[rows] == seen.thread]
    return found
