"""A large part of the step that nobody can name: no page may say that nothing is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import words
from perfhooks.findings import faces
from perfhooks.findings.evidence import most
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

ACCOUNTED: Final = 0.8
"""Of the step's time. Below it, that no rule found anything says little: none of them looks at what has no name."""

_LABELS: Final = """\
with torch.profiler.record_function("forward"):
    loss = model(batch)"""
_ADVICE: Final = (
    "Give the parts of the step names: forward, backward, optimizer, data, transfer, validation and checkpoint "
    "become columns of the table of steps, and any other label is shown in the trace."
)
RECORD: Final = " Record with "
_THEN: Final = ": then modules and the lines of your own code are named."
AND: Final = "\n# and: "
"""What follows these two is no advice any more where another window has stacks."""


def unnamed_time(seen: Evidence) -> Iterator[Finding]:
    """A fifth of a training step or more is part of nothing that has a name, while no device works.

    Source: `ACCOUNTED`; ``other_ms`` of the table of steps, less operators and the moments in which a device worked. It
    promises no gain: it says that nothing can be said. An inference has no parts that could have names, and where
    recording made a step half as long again, what has no name may be the recorder. What the thread waited for a
    processor may all lie there: of a window of three steps, one such wait is a part.

    Measured: there is no gain to measure.
    """
    accounted = seen.accounted + (seen.told.queued or 0.0) * seen.is_busy
    if accounted >= ACCOUNTED or not seen.step_ms or not seen.mean("backward_ms") or seen.capture.cost.is_large:
        return
    spent, has_stacks = seen.per_step(seen.unnamed), bool(seen.trace.rows(Kind.PYTHON).size)
    yield from seen.finding(
        "unnamed-time",
        None,
        title=f"{words.share(1 - seen.accounted)} of the {seen.unit}, {words.ms(spent)}, is part of nothing that has "
        "a name.",
        estimate="No gain: what is wrong with this part of the step, if anything, cannot be told yet.",
        evidence=[
            f"{words.ms(spent)} in no operator of torch and in no part of the step",
            *most(seen.own_time_in(seen.unnamed)),
        ],
        advice=_ADVICE if has_stacks else f"{_ADVICE}{RECORD}{seen.option('with_stack')}{_THEN}",
        code=_LABELS if has_stacks else f"{_LABELS}{AND}{faces.stacks(seen.told)}",
    )
