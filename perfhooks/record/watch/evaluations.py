"""Detection of evaluations, rollouts and generation: modules that run without training.

Some samples of an evaluation show modules in evaluation mode or calls without gradients. Other samples of an evaluation
show loading or scoring. Evaluations are therefore detected by a function that all samples share and usual steps never
run, or by a loop.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from perfhooks.core import frames
from perfhooks.record.watch import regions
from perfhooks.record.watch.samples import spent
from perfhooks.record.watch.sampling import common

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from perfhooks.record.watch.regions import Region
    from perfhooks.record.watch.samples import Sample
    from perfhooks.record.watch.sampling import Frame, Stack
    from perfhooks.record.watch.usual import UsualSteps


def evaluating(samples: Sequence[Sample], usual: UsualSteps) -> list[Sample]:
    sure = [sample for sample in samples if is_sure(sample, usual)]
    if not sure:
        return []
    return _in_function(samples, sure, usual) or _in_loop(samples, sure, usual) or sure


def is_sure(sample: Sample, usual: UsualSteps) -> bool:
    if sample.is_evaluating:
        return True
    depth = len(sample.stack) - len(usual.own(sample.stack))
    calls = [index for index, frame in enumerate(sample.stack) if frame.name == frames.CALLS_MODULE]
    callers = sample.stack[max(depth - 1, 0) : calls[0]] if calls else ()
    return any(region.has(frame.line) and not region.is_loop for frame in callers for region in _regions_of(frame))


def _regions_of(frame: Frame) -> tuple[Region, ...]:
    return () if _is_library(frame) else regions.of(frame.code)


def _in_function(samples: Sequence[Sample], sure: Sequence[Sample], usual: UsualSteps) -> list[Sample]:
    """Return the samples in the outermost function that all sure samples share and that does little else."""
    for code in _shared([usual.own(sample.stack) for sample in sure]):
        matching = [sample for sample in samples if any(frame.code is code for frame in usual.own(sample.stack))]
        # Calls of a small model take 20% of a rollout.
        if spent(sure) >= 0.1 * spent([sample for sample in matching if not fetches(sample.stack)]):
            return matching
    return []


def _shared(stacks: Sequence[Stack]) -> list[CodeType]:
    shared = min(common(stacks[0], stack) for stack in stacks)
    return [frame.code for frame in stacks[0][:shared] if not _is_library(frame)]


def _is_library(frame: Frame) -> bool:
    return frames.is_torch(frame.file) or frames.is_ours(frame.file)


def _in_loop(samples: Sequence[Sample], sure: Sequence[Sample], usual: UsualSteps) -> list[Sample]:
    depth = len(usual.prefix or ())
    at_loop = [sample.stack[depth - 1] for sample in sure if depth and len(sample.stack) >= depth]
    if not at_loop:
        return []
    usual_lines = {sample.stack[depth - 1].line for sample in usual.samples}
    line = Counter(frame.line for frame in at_loop).most_common(1)[0][0]
    around = [
        region for region in _regions_of(at_loop[0]) if region.has(line) and not any(map(region.has, usual_lines))
    ]
    if not around:
        return []
    innermost = max(around, key=lambda region: (region.is_loop, region.first))
    candidates = (
        sample for sample in samples if len(sample.stack) >= depth and sample.stack[depth - 1].code is at_loop[0].code
    )
    return [sample for sample in candidates if innermost.has(sample.stack[depth - 1].line)]


def fetches(stack: Stack) -> bool:
    return any(frames.FETCHES.search(frame.file) for frame in stack)
