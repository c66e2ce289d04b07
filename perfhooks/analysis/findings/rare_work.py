"""Validations and checkpoints, judged over the whole run: a window shows a few steps, and chance decides which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.analysis.findings import faces
from perfhooks.analysis.findings.evidence import most
from perfhooks.analysis.findings.finding import Finding
from perfhooks.core import labels, words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.run.rare_work import RareWork
    from perfhooks.run.steps import Steps

VALIDATING: Final = 0.1
"""Smallest share of the run for a finding about validation: it is useful work."""
SAVING: Final = 0.05
"""Smallest share of the run for a finding about checkpoints."""
LESS_OFTEN: Final = 0.5
"""The share that is saved if the work is done half as often."""
_FEWEST: Final = 2
"""Fewest steps with the work: only work that is repeated between steps can be done less often."""


class Rare(NamedTuple):
    """All work of one part in a run."""

    rows: list[RareWork]
    steps: int
    """Steps of the run."""
    run_ms: float
    """Time of these steps and of the work."""
    framework: str = ""
    """Whose words the advice uses."""

    @property
    def ms(self) -> float:
        """Time of the work."""
        return sum(row.ms for row in self.rows)

    @property
    def share(self) -> float:
        """The same as a share of the run."""
        return self.ms / self.run_ms

    @property
    def evidence(self) -> tuple[str, ...]:
        """How often it was done, and the lines of the training that called it, those with most time first."""
        name, mean = self.rows[0].part, words.ms(self.ms / len(self.rows))
        counted = f"{words.count(len(self.rows), name)} of {mean} on average in {self.steps:,} steps"
        lines = most([(row.line, row.ms) for row in self.rows if row.line])
        return f"{counted}: {words.ms(self.ms)} of {words.ms(self.run_ms)}", *lines

    def code_for(self, advised: str) -> str:
        """The lines to write, see `perfhooks.analysis.findings.faces.code_for`."""
        return faces.code_for(advised, self.framework)

    def finding(self, rule: str, *, title: str, advice: str, code: str) -> Iterator[Finding]:
        """A finding whose gain is that of an average step, if the work is done half as often."""
        yield Finding(
            rule=rule,
            title=title,
            gain_ms=LESS_OFTEN * self.ms / self.steps,
            gain_percent=100 * LESS_OFTEN * self.share,
            estimate="Half of its time, if it is done half as often, in an average step of the run.",
            evidence=self.evidence,
            advice=advice,
            code=code,
        )


def of_run(rows: Sequence[RareWork], steps: Steps, framework: str = "") -> list[Finding]:
    """Return the findings about validations and checkpoints of a training.

    Args:
        rows: The rare work of its loop.
        steps: The steps of its loop.
        framework: Whose words the advice uses, see `perfhooks.analysis.findings.faces`.
    """
    found: list[Finding] = []
    for rule, part in RUN_RULES:
        work = _of_part([row for row in rows if row.part == part], steps, framework)
        found += rule(work) if work is not None else ()
    return found


def _of_part(rows: list[RareWork], steps: Steps, framework: str) -> Rare | None:
    """The work of one part; None if the run is too short to judge it."""
    if len({row.step for row in rows}) < _FEWEST or len(steps.numbers) <= _FEWEST:
        return None
    count, last = int(np.ptp(steps.numbers)) + 1, int(steps.numbers.max())
    unended = sum(row.ms for row in rows if row.step > last)
    run_ms = float(steps.wall_ms.sum()) + unended
    if len(steps.numbers) < count:  # the timeline of a long run is a sample
        others = steps.wall_ms[~np.isin(steps.numbers, [row.step for row in rows])]
        if not len(others):
            return None
        run_ms = count * float(others.mean()) + sum(row.ms for row in rows)
    return Rare(rows, count, run_ms, framework)


def validation_in_steps(work: Rare) -> Iterator[Finding]:
    """Validation takes 10% of the run or more.

    Source: `VALIDATING`, `LESS_OFTEN`; the time of each validation of the run, in ``rank0.rare.csv``. Integrations know
    when their framework validates. ``perfhooks run`` takes each pass over a DataLoader without an update or a backward
    pass for a validation. Elsewhere it is what the label ``validation`` holds.

    Measured: it needs no measurement: what is done half as often takes half of its time.
    """
    if work.share < VALIDATING:
        return
    yield from work.finding(
        "validation-in-steps",
        title=f"Validation takes {words.share(work.share)} of the run.",
        advice=(
            "Validate less often or on fewer batches. Disable gradients in it, and use larger batches: without a "
            "backward pass there is memory for them."
        ),
        code=work.code_for("less validation"),
    )


def checkpoint_in_steps(work: Rare) -> Iterator[Finding]:
    """Saving checkpoints takes 5% of the run or more.

    Source: `SAVING`, `LESS_OFTEN`; the time of each checkpoint of the run, in ``rank0.rare.csv``. Under ``perfhooks
    run`` that is ``torch.save`` on the main thread, elsewhere what the label ``checkpoint`` holds.

    Measured: it needs no measurement to save half as often. A thread that writes saved no time on two cores.
    """
    if work.share < SAVING:
        return
    yield from work.finding(
        "checkpoint-in-steps",
        title=f"Saving checkpoints takes {words.share(work.share)} of the run.",
        advice=(
            "Save less often, and keep optimizer state out of files that are only for inference. With a free CPU, copy "
            "the state and let a thread or another process write it."
        ),
        code=work.code_for("saved aside"),
    )


RUN_RULES: Final = ((validation_in_steps, labels.VALIDATION), (checkpoint_in_steps, labels.CHECKPOINT))
"""Each rule about a whole run, and the part of a step that it is about."""
