"""A large part of the step is code outside of torch: batches that are made by hand, environments, logging."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.analysis.findings import faces
from perfhooks.analysis.findings.evidence import most
from perfhooks.analysis.findings.finding import UNNAMED
from perfhooks.core import words
from perfhooks.run.capture import LARGE
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.analysis.findings.evidence import Evidence
    from perfhooks.analysis.findings.finding import Finding

ACCOUNTED: Final = 0.8
"""Smallest share of the step that has names. If less has names, the absence of other findings says little."""

_DATASET: Final = """\
class Batches(torch.utils.data.IterableDataset):   # or a Dataset
    def __iter__(self):
        yield from make_batches()
loader = DataLoader(Batches(), batch_size=None, num_workers=...)"""
_ADVICE: Final = (
    "If this code prepares data, move it into a Dataset, and let the workers of a DataLoader run it while the training "
    "computes. Else do it less often, or in a thread."
)
RECORD: Final = " Record with "
_THEN: Final = ": then modules and the lines of your own code are named."
AND: Final = "\n# and: "
"""What follows these two is no advice any more where another window has stacks."""


def unnamed_time(window: Evidence) -> Iterator[Finding]:
    """A fifth of a training step or more is code outside of torch, while no device works.

    Source: `ACCOUNTED`; ``other_ms`` of the table of steps, less operators and the moments in which a device worked. An
    inference has no parts that could have names. If recording made a step half as long again, this time may be that of
    the recorder. If the training waited for CPUs, the step with the smallest share counts: a wait hits single steps.

    Measured: never; how much of it can be saved depends on that code.
    """
    is_recorder = window.step_ms >= LARGE * window.unprofiled_ms and not window.capture.explains
    if _unnamed_share(window) <= 1 - ACCOUNTED or not window.mean("backward_ms") or is_recorder:
        return
    spent, has_stacks = window.per_step(window.unnamed), bool(window.trace.rows(Kind.PYTHON).size)
    yield from window.finding(
        UNNAMED,
        min(spent, window.host_limit_ms),
        title=(
            f"Code outside of torch takes {words.ms(spent)} of a {window.unit}, {words.share(1 - window.named_share)}."
        ),
        estimate="All of this time.",
        evidence=[
            f"{words.ms(spent)} in no operator of torch and in no part of the step",
            *most(window.own_time_in(window.unnamed)),
        ],
        advice=_ADVICE if has_stacks else f"{_ADVICE}{RECORD}{window.option('with_stack')}{_THEN}",
        code=_DATASET if has_stacks else f"{_DATASET}{AND}{faces.stacks(window.circumstances)}",
        of=window.unnamed,
    )


def _unnamed_share(window: Evidence) -> float:
    """The share of the step that is code outside of torch."""
    if not window.is_busy:
        return 1 - window.named_share
    span = intervals.within(window.windows, window.marks.start, window.marks.end)
    spent = intervals.within(window.unnamed, window.marks.start, window.marks.end)
    shares = spent[span > 0] / span[span > 0]
    return float(shares.min(initial=1.0)) if len(shares) else 0.0
