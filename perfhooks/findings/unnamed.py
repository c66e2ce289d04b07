"""A large part of the step that nobody can name: no page may say that nothing is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import words
from perfhooks.findings.evidence import most
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding

ACCOUNTED: Final = 0.8
"""Of the step's time. Below it, that no rule found anything says little: none of them looks at what has no name."""

_LABELS: Final = """\
for batch in prof.steps(loader):
    with prof.region("forward"):
        loss = model(batch)"""


def unnamed_time(seen: Evidence) -> Iterator[Finding]:
    """A fifth of a training step or more is part of nothing that has a name, while no device works.

    Source: `ACCOUNTED`; ``other_ms`` of the table of steps, less operators and the moments in which a device worked. It
    promises no gain: it says that nothing can be said. An inference has no parts that could have names.

    Measured: there is no gain to measure.
    """
    if seen.accounted >= ACCOUNTED or not seen.step_ms or not seen.mean("backward_ms"):
        return
    spent = seen.per_step(seen.unnamed)
    yield from seen.finding(
        "unnamed-time",
        None,
        title=f"{words.share(1 - seen.accounted)} of the {seen.unit}, {words.ms(spent)}, is part of nothing that has "
        "a name.",
        estimate="No gain: what is wrong with this part of the step, if anything, cannot be told yet.",
        evidence=[
            f"{words.ms(spent)} in no operator of torch and in no part of the step",
            *most([*seen.own_time_in(seen.unnamed, seen.thread).items()]),
        ],
        advice=_advice(seen),
        code=_LABELS if seen.trace.rows(Kind.PYTHON).size else f"{_LABELS}\n# and: Profiler(..., with_stack=True)",
    )


def _advice(seen: Evidence) -> str:
    text = (
        "Give the parts of the step names: forward, backward, optimizer, data, transfer, validation and checkpoint "
        "become columns of the table of steps, and any other label is shown in the trace."
    )
    if not seen.trace.rows(Kind.PYTHON).size:
        text += " Record with with_stack=True: then modules and the lines of your own code are named."
    return text
