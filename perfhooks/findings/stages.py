"""Steps that do more than train: validation and checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from perfhooks import labels
from perfhooks.findings.evidence import ms
from perfhooks.trace import intervals
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Tables
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

VALIDATING: Final = 0.1
"""Of the recorded steps. Validation is no waste, but when it takes more than a tenth it is worth a thought."""
SAVING: Final = 0.05
"""Of the recorded steps: the training waits for a disk."""
LESS_OFTEN: Final = 0.5
"""Half of the validation is counted as gained: it is done half as often."""

_VALIDATION: Final = rf"^{labels.VALIDATION}$"
_CHECKPOINT: Final = rf"^{labels.CHECKPOINT}$"
_SAVE: Final = r"(?:^|/)torch/serialization\.py\(\d+\): save$"


def validation(tables: Tables) -> Iterator[Finding]:
    """Validation takes 10% of the recorded steps or more.

    Source: `VALIDATING`, `LESS_OFTEN`; ``validation_ms`` of the table of steps.
    """
    if tables.capture.stage != "train":
        return
    spent = tables.mean("validation_ms")
    if tables.share(spent) < VALIDATING:
        return
    hit = tables.steps.filter(pl.col("validation_ms") > 0)
    yield tables.finding(
        "validation-in-steps",
        LESS_OFTEN * spent,
        title=f"Validation takes {tables.share(spent):.0%} of the recorded steps.",
        estimate="Half of it, by validating half as often; over the whole run, if these steps are like the others.",
        evidence=[
            f"{hit.height} of {tables.count} steps validate, {ms(tables.mean('validation_ms'))} a step on average"
        ],
        advice=(
            "Validate less often, on fewer batches, or without gradients and with larger batches: without a backward "
            "pass there is room for them. If these steps were chosen to show training, let the window begin elsewhere."
        ),
        code="with torch.inference_mode():\n    validate(model, validation_loader)   # every 1000 steps, not every 100",
    )


def checkpointing(tables: Tables) -> Iterator[Finding]:
    """Saving checkpoints takes 5% of the recorded steps or more.

    Source: `SAVING`; the label ``checkpoint``, and ``torch.save`` where stacks were recorded.
    """
    rows = _saves(tables)
    spent = tables.per_step(tables.spans(rows))
    gain = min(spent, tables.host_limit_ms)
    if tables.share(gain) < SAVING:
        return
    outer = intervals.union(tables.trace.start[rows], tables.trace.end[rows])
    lines = sorted({line for line in tables.where(rows) if line})
    yield tables.finding(
        "checkpoint-in-steps",
        gain,
        title=f"Saving checkpoints takes {tables.share(spent):.0%} of the recorded steps.",
        estimate="All of it, if a thread writes; over the whole run, if these steps are like the others.",
        evidence=[f"{len(outer)} checkpoints in {tables.numbers}, {ms(spent)} a step on average", *lines[:3]],
        advice=(
            "Copy the state to the host and let a thread or another process write it while training goes on; save less "
            "often; keep optimizer state out of files that are only for inference."
        ),
        code=(
            "from torch.distributed.checkpoint.state_dict_saver import async_save\n"
            "future = async_save(state, checkpoint_id=path)   # future.result() before the next one"
        ),
    )


def _saves(tables: Tables) -> Ints:
    rows = np.union1d(tables.named(_CHECKPOINT, Kind.ANNOTATION), tables.named(_SAVE, Kind.PYTHON))
    found: Ints = rows[tables.trace.thread[rows] == tables.thread]
    return found
