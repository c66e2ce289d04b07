from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from perfhooks.analysis.findings import frameworks
from perfhooks.analysis.findings.evidence import top_lines
from perfhooks.analysis.findings.finding import HEAVY, MAJOR, Finding
from perfhooks.analysis.findings.texts import FindingText
from perfhooks.core import labels
from perfhooks.core.statistics import is_near
from perfhooks.run.live.slow_causes import (
    BLOCKING,
    CHECKPOINT,
    COMPILATION,
    CONTENTION,
    DEVICE,
    EVALUATION,
    GARBAGE,
    OWN,
    UNKNOWN,
)
from perfhooks.run.live.slow_steps import LINE_NUMBER
from perfhooks.run.rare_work import RareWork
from perfhooks.trace.names import stages
from perfhooks.trace.nesting import intervals

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from perfhooks.run.live.slow_steps import SlowStep
    from perfhooks.run.steps import Steps


_MIN_STEPS: Final = 2
"""Minimum steps with a validation or checkpoint. A single validation or checkpoint may belong to program start or end.
"""


class Rare(NamedTuple):
    rows: list[RareWork]
    steps: int
    run_ms: float
    framework: str = ""

    @property
    def ms(self) -> float:
        return sum(row.ms for row in self.rows)

    @property
    def share(self) -> float:
        return self.ms / self.run_ms

    def _lines(self) -> list[tuple[str, float]]:
        """Return the time of each function, named by the line with most of this time."""
        by_function: dict[str, dict[str, float]] = {}
        for row in self.rows:
            if row.line:
                lines = by_function.setdefault(re.sub(LINE_NUMBER, "", row.line), {})
                lines[row.line] = lines.get(row.line, 0.0) + row.ms
        return [(max(lines, key=lines.__getitem__), sum(lines.values())) for lines in by_function.values()]

    def finding(self, rule: str, *, is_bound: bool = False, period: int | None = None) -> Iterator[Finding]:
        saving, lines = 1.0 if is_bound else 0.5, self._lines()
        values = {"share": self.share, "period": period, "mean_ms": self.ms / len(self.rows)}
        versions = [] if period is None else ["periodic"] if lines else ["periodic", "unknown-lines"]
        if sum(row.ms for row in self.rows if row.part == COMPILATION) > self.ms / 2:
            versions.append("compilation")
        text = FindingText(rule, values, versions, frameworks.package(self.framework))
        count = text(
            "count",
            count=len(self.rows),
            mean_ms=self.ms / len(self.rows),
            steps=self.steps,
            total_ms=self.ms,
            run_ms=self.run_ms,
        )
        yield Finding.of_text(
            text,
            gain_ms=saving * self.ms / self.steps,
            gain_percent=100 * saving * self.share,
            most_ms=self.ms / self.steps,
            is_bound=is_bound,
            is_percent_of_run=True,
            evidence=(count, *top_lines(lines)),
        )


_SLOW: Final = "slow"
_MIN_GAPS: Final = 5
"""Minimum distances of slow steps for a period. By chance, five random distances are rarely equal."""
_FIXABLE: Final = (GARBAGE, COMPILATION, CHECKPOINT, EVALUATION, DEVICE, BLOCKING, OWN)
"""Causes of slow steps that no other rule reports for steps outside of the windows."""


def of_run(rows: Sequence[RareWork], steps: Steps, framework: str = "", slow: Iterable[SlowStep] = ()) -> list[Finding]:
    results: list[Finding] = []
    for rule, part in RUN_RULES:
        if part == _SLOW:
            work = _slow_work(slow, steps, {row.step for row in rows}, framework)
        else:
            work = _work_of_part([row for row in rows if row.part == part], steps, framework)
        results += rule(work) if work is not None else ()
    return results


def _slow_work(slow: Iterable[SlowStep], steps: Steps, rare_steps: set[int], framework: str) -> Rare | None:
    rows = {row.step: row for row in slow if row.step not in rare_steps}
    fixable = {step: row for step, row in rows.items() if row.cause in _FIXABLE}
    contended = {step for step, row in rows.items() if row.cause == CONTENTION}
    of_other_rules = {step for step, row in rows.items() if row.cause not in (*_FIXABLE, CONTENTION, UNKNOWN)}
    unknown = {step: row for step, row in rows.items() if row.cause == UNKNOWN}
    excess_ms, unknown_ms = _excess(fixable), _excess(unknown)
    if sum(unknown_ms.values()) < sum(excess_ms.values()):
        excess_ms |= unknown_ms
    long = _find_long_steps(steps, rare_steps | of_other_rules, contended)
    excess_ms |= {} if long is None else long.excess_ms
    work = [
        RareWork(stages.TRAIN, step, fixable[step].cause, ms, fixable[step].line)
        if step in fixable
        else RareWork(stages.TRAIN, step, UNKNOWN, ms, "")
        for step, ms in excess_ms.items()
    ]
    if long is None:
        return _work_of_part(work, steps, framework)
    typical = steps.typical()  # the recorder can make a step long, so only unprofiled steps show a period
    numbers = set(typical.numbers.tolist())
    return Rare([row for row in work if row.step in numbers], len(numbers), float(typical.all_ms.sum()), framework)


def _excess(rows: Mapping[int, SlowStep]) -> dict[int, float]:
    return {step: row.wall_ms - row.wall_ms / max(row.times_median, 1.0) for step, row in rows.items()}


class _LongSteps(NamedTuple):
    period: int
    phases: set[int]
    """Remainders of the step numbers, divided by the period."""
    excess_ms: dict[int, float]
    """Time above the median, by the number of the step."""


def is_periodically_long(steps: Steps, step: int) -> bool:
    """Return whether a step belongs to periodic steps that take longer than the others."""
    long = _find_long_steps(steps)
    return long is not None and step % long.period in long.phases


def _find_long_steps(
    steps: Steps, excluded: Collection[int] = (), contended: Collection[int] = ()
) -> _LongSteps | None:
    typical = steps.typical()
    work_ms = typical.all_ms - np.nan_to_num(typical.all_data_ms)
    is_candidate = ~np.isin(typical.numbers, list(excluded))
    is_clear = is_candidate & ~np.isin(typical.numbers, list(contended))
    is_far = is_candidate & ~is_near(work_ms)
    if not (is_far & is_clear).any() or len(steps.numbers) <= np.ptp(steps.numbers):
        return None
    numbers, excess_ms = typical.numbers, work_ms - np.median(work_ms)
    # half of the time is in outliers of this length or more; much shorter ones are chance
    descending = np.sort(excess_ms[is_far & is_clear])[::-1]
    usual_ms = descending[np.searchsorted(np.cumsum(descending), descending.sum() / 2)]
    is_long = excess_ms >= usual_ms / 2
    clear = numbers[is_long & is_clear]
    period = _period(clear)
    if period is None:
        return None
    phases, members = np.unique(clear % period, return_counts=True)
    phases = phases[members > 1]  # a single member of a phase is chance
    is_counted = np.isin(numbers % period, phases) & is_candidate & (is_far | is_long)
    excess = dict(zip(numbers[is_counted].tolist(), excess_ms[is_counted].tolist(), strict=True))
    return _LongSteps(period, {*phases.tolist()}, excess)


def _period(numbers: Iterable[int]) -> int | None:
    """Return the usual distance of steps. Distances may be multiples of it, because profiled steps do not count."""
    gaps = np.diff(sorted(numbers))
    if len(gaps) < _MIN_GAPS:
        return None
    period = int(np.median(gaps))
    return period if period > 1 and np.mean(gaps % period == 0) >= intervals.MOST else None


def _work_of_part(rows: list[RareWork], steps: Steps, framework: str) -> Rare | None:
    if len({row.step for row in rows}) < _MIN_STEPS or len(steps.numbers) <= _MIN_STEPS:
        return None
    count, last = int(np.ptp(steps.numbers)) + 1, int(steps.numbers.max())
    unended = sum(row.ms for row in rows if row.step > last)
    run_ms = float(steps.wall_ms.sum()) + unended
    if len(steps.numbers) < count:
        usual_ms = steps.wall_ms[~np.isin(steps.numbers, [row.step for row in rows])]
        if not len(usual_ms):
            return None
        run_ms = count * float(usual_ms.mean()) + sum(row.ms for row in rows)
    return Rare(rows, count, run_ms, framework)


def validation_in_steps(work: Rare) -> Iterator[Finding]:
    """Report validations that take at least 10% of the run (`MAJOR`).

    The validation times come from ``rank0.rare.csv``. Integrations know when their framework validates. ``perfhooks
    run`` treats each pass over a DataLoader without an update or a backward pass as a validation. Other programs mark a
    validation with the label ``validation``.
    """
    if work.share >= MAJOR:
        yield from work.finding("validation-in-steps")


def checkpoint_in_steps(work: Rare) -> Iterator[Finding]:
    """Report checkpoints that take at least 5% of the run (`HEAVY`).

    The checkpoint times come from ``rank0.rare.csv``. ``perfhooks run`` times ``torch.save`` on the main thread. Other
    programs mark a checkpoint with the label ``checkpoint``.

    Measured on two cores: writing checkpoints in a thread saved no time.
    """
    if work.share >= HEAVY:
        yield from work.finding("checkpoint-in-steps")


def slow_steps(work: Rare) -> Iterator[Finding]:
    """Report slow steps whose time above the median takes at least 10% of the run (`MAJOR`).

    The causes come from ``rank0.slow.csv``. Waits for data and for other ranks do not count.
    Slow steps with an unknown cause count if the slow steps are periodic, or if more of the time has a known cause.
    Steps that waited for a CPU count only at the period. Steps with a validation or checkpoint of ``rank0.rare.csv`` do
    not count. If the slow steps are periodic, times and percentages are those of unprofiled steps.
    """
    if work.share >= MAJOR:
        yield from work.finding("slow-steps", is_bound=True, period=_period(row.step for row in work.rows))


RUN_RULES: Final = (
    (validation_in_steps, labels.VALIDATION),
    (checkpoint_in_steps, labels.CHECKPOINT),
    (slow_steps, _SLOW),
)
