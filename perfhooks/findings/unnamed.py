"""A large part of the step that nobody can name: no page may say that nothing is wrong with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks import words
from perfhooks.findings.evidence import most
from perfhooks.trace.kinds import Kind
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Evidence
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

ACCOUNTED: Final = 0.8
"""Of the step's time. Below it, that no rule found anything says little: none of them looks at what has no name."""

_LABELS: Final = """\
for batch in prof.steps(loader):
    with prof.region("forward"):
        loss = model(batch)"""


def unnamed_time(seen: Evidence) -> Iterator[Finding]:
    """A fifth of the step or more is part of nothing that has a name, while no device works.

    Source: `ACCOUNTED`; ``other_ms`` of the table of steps, less the moments in which a device worked. It promises no
    gain: it says that nothing can be said.

    Measured: there is no gain to measure.
    """
    if seen.accounted >= ACCOUNTED or not seen.step_ms:
        return
    spent = seen.per_step(seen.unnamed)
    ops = _outer(seen, seen.trace.rows(Kind.OP))
    in_operators = seen.per_step(intervals.intersect(seen.unnamed, seen.spans(ops)))
    yield from seen.finding(
        "unnamed-time",
        None,
        title=f"{words.share(1 - seen.accounted)} of the {seen.unit}, {words.ms(spent)}, is part of nothing that has "
        "a name.",
        estimate="No gain: what is wrong with this part of the step, if anything, cannot be told yet.",
        evidence=[
            *([f"{words.ms(in_operators)} of it in operators, most in:", *seen.by_name(ops)] if len(ops) else []),
            f"{words.ms(spent - in_operators)} of it in no operator of torch",
            *most(_lines(seen, ops)),
        ],
        advice=_advice(seen),
        code=_LABELS if seen.trace.rows(Kind.PYTHON).size else f"{_LABELS}\n# and: Profiler(..., with_stack=True)",
    )


def _outer(seen: Evidence, rows: Ints) -> Ints:
    """The outermost of some slices that begin in unnamed moments, on the thread of the steps."""
    trace = seen.trace
    rows = rows[trace.thread[rows] == seen.thread]
    start = trace.start[rows]
    return seen.outermost(rows[intervals.within(seen.unnamed, start, start + 1) > 0])


def _lines(seen: Evidence, ops: Ints) -> list[tuple[str, float]]:
    return [(line, span) for line, span in zip(seen.where(ops), seen.lengths(ops), strict=True) if line]


def _advice(seen: Evidence) -> str:
    text = (
        "Give the parts of the step names: forward, backward, optimizer, data, transfer, validation and checkpoint "
        "become columns of the table of steps, and any other label is shown in the trace."
    )
    if not seen.trace.rows(Kind.PYTHON).size:
        text += " Record with with_stack=True: then modules and the lines of your own code are named."
    return text
