"""The trial of the most expensive recorded operators: each runs as recorded and in every suitable variant."""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.trials import bench, inputs
from perfhooks.trials.bench import SHORTEST_S, CallTiming, VariantResult
from perfhooks.trials.child import ChildProcess, DeadError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run.circumstances import Circumstances
    from perfhooks.trials.bench import TrialOptions
    from perfhooks.trials.cut import Group, OperatorSelection

COMPARABLE: Final = (0.5, 2.0)
"""Range of a call's time in the trial divided by the recorded time, for which results apply to the training."""


class Saving(NamedTuple):
    """Estimated reduction of the step time in ms, as a range."""

    least: float
    most: float

    @property
    def is_sure(self) -> bool:
        return self.least == self.most

    @classmethod
    def sum(cls, savings: Iterable[Saving]) -> Saving:
        ranges = [*savings]
        return cls(sum(saving.least for saving in ranges), sum(saving.most for saving in ranges))


@dataclass(kw_only=True)
class OperatorResult:
    group: Group
    alone_ms: float | None = None
    """Time of a call in ms, outside of the training; None if the call failed."""
    problem: str = ""
    tried: list[VariantResult] = field(default_factory=list)

    @property
    def beside_recorded(self) -> float | None:
        """Time in this trial divided by the time in the training."""
        return None if self.alone_ms is None or not self.group.call_ms else self.alone_ms / self.group.call_ms

    @property
    def is_comparable(self) -> bool:
        ratio = self.beside_recorded
        return ratio is not None and COMPARABLE[0] <= ratio <= COMPARABLE[1]

    def saving(self, result: VariantResult) -> Saving | None:
        """Return the estimated reduction of the step time; None if the reduction is unknown.

        The estimate is a range if the comparison is undecided, or if `beside_recorded` is not in the range
        `COMPARABLE`.
        """
        if result.timing is None or result.is_wrong or not self.beside_recorded:
            return None
        difference = 0.0 if result.timing.outcome == "same" else self.group.step_ms * (1 - result.timing.ratio)
        if result.timing.outcome == "undecided":
            return Saving(0.0, max(difference, 0.0))
        common_share = 1.0 if self.is_comparable else min(self.beside_recorded, 1 / self.beside_recorded)
        return Saving(*sorted((common_share * difference, difference)))


@dataclass(kw_only=True)
class Trial:
    cut: OperatorSelection
    step_ms: float
    device: str
    rows: list[OperatorResult] = field(default_factory=list)
    is_interrupted: bool = False
    is_out_of_time: bool = False

    def saved(self) -> dict[str, list[Saving]]:
        """Return the savings per operator of each correct variant, the variant with the largest sum first."""
        saved: dict[str, list[Saving]] = {}
        for row in self.rows:
            for result in row.tried:
                if (saving := row.saving(result)) is not None and saving.most > 0:
                    saved.setdefault(result.variant, []).append(saving)
        return dict(sorted(saved.items(), key=lambda entry: Saving.sum(entry[1]), reverse=True))


def run(
    cut: OperatorSelection,
    step_ms: float,
    options: TrialOptions,
    circumstances: Circumstances,
    tell: Callable[[int, int, str], None] = lambda *_: None,
    *,
    ends: float | None = None,
) -> Trial:
    """Measure the operators. Ctrl-C ends the trial early, and the measurements until then are returned."""
    start = time.monotonic()
    trial = Trial(cut=cut, step_ms=step_ms, device=str(options.device))
    signatures = tuple(group.signature for group in cut.groups)
    answering = functools.partial(bench.open_bench, signatures, options, circumstances)
    forks = options.device.type == "cpu" and sys.platform == "linux"
    if forks:
        inputs.import_shape_functions()
    with contextlib.closing(ChildProcess(answering, forks=forks)) as child:
        requests = _Requests(child, start + options.seconds if ends is None else ends, options.limit, tell)
        try:
            for index in range(len(signatures)):
                if len(trial.rows) >= options.limit:
                    break
                if requests.left < SHORTEST_S:
                    trial.is_out_of_time = True
                    break
                requests.measure(index, trial)
        except KeyboardInterrupt:
            trial.is_interrupted = True
    return trial


class _Requests:
    def __init__(self, child: ChildProcess, ends: float, limit: int, tell: Callable[[int, int, str], None]) -> None:
        self._child = child
        self._ends = ends
        self._limit = limit
        self._tell = tell

    @property
    def left(self) -> float:
        return self._ends - time.monotonic()

    def measure(self, index: int, trial: Trial) -> None:
        name = trial.cut.groups[index].signature.name
        seconds = self.left / (self._limit - len(trial.rows))
        self._tell(len(trial.rows) + 1, self._limit, name)
        try:
            alone = self._ask(seconds, "alone", index)
        except DeadError as dead:
            alone = CallTiming(problem=str(dead))
        if alone is None:
            return
        row = OperatorResult(group=trial.cut.groups[index], alone_ms=alone.ms, problem=alone.problem)
        trial.rows.append(row)
        for variant_index, variant in enumerate(alone.variants):
            self._tell(len(trial.rows), self._limit, f"{name} {variant}")
            try:
                result = self._ask(seconds / len(alone.variants), "tried", index, variant_index)
            except DeadError as dead:
                result = VariantResult(variant=variant, problem=str(dead))
            row.tried += [result] if result else []

    def _ask(self, seconds: float, *question: Any) -> Any:
        return self._child.ask(min(max(self.left / 2, seconds), max(self.left, SHORTEST_S)), *question, seconds)
