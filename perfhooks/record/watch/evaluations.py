"""Which looks saw an evaluation, a rollout, a generation: modules that are used, and not trained.

No name tells it. What tells it are modules in evaluation mode, and calls of modules where no gradients are kept. Those
are some of the looks; the others saw the same function load its batches, or compute a score. So it is what they have
in common: a function that usual steps are not in, else a loop in the function that trains.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from perfhooks.core import frames
from perfhooks.record.watch import regions
from perfhooks.record.watch.sampling import common

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import CodeType

    from perfhooks.record.watch.looks import Look
    from perfhooks.record.watch.regions import Region
    from perfhooks.record.watch.sampling import Frame, Stack
    from perfhooks.record.watch.usual import UsualSteps

_SOME: Final = 0.1
"""A function evaluates if modules are called in so much of it: the rest may be scores, or the environment of a rollout,
in which a call of a small model takes a fifth of the time. Loading does not count."""


def found(looks: Sequence[Look], usual: UsualSteps) -> list[Look]:
    """The looks that saw one."""
    sure = [look for look in looks if is_sure(look, usual)]
    if not sure:
        return []
    return _in_function(looks, sure, usual) or _in_loop(looks, sure, usual) or sure


def is_sure(look: Look, usual: UsualSteps) -> bool:
    """Whether a module was called in evaluation mode, or where no gradients are kept."""
    if look.is_evaluating:
        return True
    depth = len(look.stack) - len(usual.own(look.stack))
    calls = [place for place, frame in enumerate(look.stack) if frame.name == frames.CALLS_MODULE]
    around = look.stack[max(depth - 1, 0) : calls[0]] if calls else ()
    return any(region.has(frame.line) and not region.is_loop for frame in around for region in _regions(frame))


def _regions(frame: Frame) -> tuple[Region, ...]:
    return () if _is_foreign(frame) else regions.of(frame.code)


def _in_function(looks: Sequence[Look], sure: Sequence[Look], usual: UsualSteps) -> list[Look]:
    """Those in the outermost function that all who are sure saw, and that does little else."""
    for code in _shared([usual.own(look.stack) for look in sure]):
        inside = [look for look in looks if any(frame.code is code for frame in usual.own(look.stack))]
        if _spent(sure) >= _SOME * _spent([look for look in inside if not fetches(look.stack)]):
            return inside
    return []


def _shared(stacks: Sequence[Stack]) -> list[CodeType]:
    """The functions that all of some stacks are in, less those of torch, the outermost first."""
    shared = min(common(stacks[0], stack) for stack in stacks)
    return [frame.code for frame in stacks[0][:shared] if not _is_foreign(frame)]


def _is_foreign(frame: Frame) -> bool:
    return frames.is_torch(frame.file) or frames.is_ours(frame.file)


def _in_loop(looks: Sequence[Look], sure: Sequence[Look], usual: UsualSteps) -> list[Look]:
    """Those in the smallest loop of the function that trains around who is sure, unless it is the loop that trains."""
    depth = len(usual.prefix or ())
    at = [look.stack[depth - 1] for look in sure if depth and len(look.stack) >= depth]
    if not at:
        return []
    trains = {look.stack[depth - 1].line for look in usual.looks}
    line = Counter(frame.line for frame in at).most_common(1)[0][0]
    around = [each for each in _regions(at[0]) if each.has(line) and not any(map(each.has, trains))]
    if not around:
        return []
    inner = max(around, key=lambda each: (each.is_loop, each.first))
    within = (look for look in looks if len(look.stack) >= depth and look.stack[depth - 1].code is at[0].code)
    return [look for look in within if inner.has(look.stack[depth - 1].line)]


def fetches(stack: Stack) -> bool:
    """Whether a batch is fetched."""
    return any(frames.FETCHES.search(frame.file) for frame in stack)


def _spent(looks: Sequence[Look]) -> int:
    return sum(look.spent_ns for look in looks)
