"""Why a step was slow: what was seen in it, and how much of its excess that explains."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from functools import lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Final, NamedTuple

from perfhooks.core import frames
from perfhooks.record.watch import evaluations
from perfhooks.record.watch.looks import Doing, Look
from perfhooks.record.watch.sampling import common
from perfhooks.record.watch.usual import MANY, UsualSteps, beyond
from perfhooks.run.live.slow_causes import (
    ALLOCATOR,
    CHECKPOINT,
    CLOCK,
    COMPILATION,
    DATA,
    DEVICE,
    DISK,
    EVALUATION,
    GARBAGE,
    LOCK,
    MEMORY,
    OWN,
    PROCESSOR,
    RANKS,
    SEEN_BY,
    UNKNOWN,
)
from perfhooks.trace.names.origins import PREFERENCE, Origin

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

    from perfhooks.record.watch.counters import Counters
    from perfhooks.record.watch.sampling import Frame, Stack
    from perfhooks.run.installation import Installation

_ENOUGH: Final = 0.5
"""What explains less than this share of the excess is not the cause: two may add up, but one of them is larger."""
_ALMOST_ALL: Final = 0.8
"""Of what was seen, so much must be one cause for it to count as that of the time before the first look."""
_LEAST_SEEN: Final = 0.25
"""And so much of the excess must have been seen."""
_WAITING: Final = 0.25
"""A thread that computes less than this share of the time waits for somebody."""
_THROTTLED: Final = 0.8
"""A clock below this share of its best is throttled: boost clocks of one device differ by a tenth."""
_FAULT_NS: Final = 500_000
"""What the system takes at most for a page: it clears one of 2 MB in that time."""

_SAVING: Final = re.compile(r"^_*(?:save|checkpoint|dump|write)(?:_|$)|save_checkpoint|(?:^|_)saving")
_LOCKS: Final = re.compile(r"^\s*(?:async )?with\b|\b(?:acquire|wait|wait_for|join|get|put|result)\(")
_FLUSHES: Final = re.compile(r"\b(?:fsync|fdatasync|flush|sync)\(")
_SYNCHRONIZES: Final = re.compile(r"\.(?:item|tolist|numpy|cpu|cuda|to|nonzero|unique|synchronize|wait)\(")


class StepFacts(NamedTuple):
    """All that is known of one slow step."""

    wall_ns: int
    median_ns: float
    wait_ns: int
    """For data; -1 where nobody measured."""
    garbage_ns: int
    garbage_at: Frame | None
    looks: Sequence[Look]
    """What was seen, from the time on at which the step was longer than most."""
    counters: Counters
    """What was counted meanwhile."""
    is_distributed: bool
    """Whether the process belongs to others."""
    clock_share: float | None
    """The device's clock over the fastest one seen."""
    aside_ns: int = 0
    """How long somebody evaluated, as was said by whoever did."""
    waited_ns: int | None = None
    """For a processor, in the whole step."""
    has_device: bool = False
    """Whether the program uses one."""
    before_ns: float = 0.0
    """How long it had been longer than usual when it was first looked at, if the system counted then what looks saw."""
    after: Stack = ()
    """Where the training was when the step had ended."""

    @property
    def excess_ns(self) -> float:
        """What it took more than others."""
        return self.wall_ns - self.median_ns

    @property
    def looked_ns(self) -> int:
        """How long it was looked at."""
        return spent(self.looks)


class Explanation(NamedTuple):
    """The cause of a slow step."""

    cause: str
    explained_ns: float | None
    """None where that cannot be told."""
    frame: Frame | None
    """The line of code; None where nobody saw one."""


def _total(inside: Sequence[tuple[Look, Frame]]) -> int:
    return sum(look.spent_ns for look, _ in inside)


def spent(looks: Sequence[Look]) -> int:
    """How long it was so, in nanoseconds."""
    return sum(look.spent_ns for look in looks)


class Explainer:
    """Finds the cause of slow steps of one process.

    Args:
        installation: Tells whose a file is.
    """

    def __init__(self, installation: Installation) -> None:
        self._installation = installation
        self.usual = UsualSteps()
        self._functions: dict[CodeType, Counter[str]] = {}
        """Nanoseconds of each cause that slow steps had so far in each function."""

    def explain(self, seen: StepFacts) -> Explanation:
        """The cause: of the function that holds the excess, else the first that explains enough of it."""
        inside, measured = self._in_function(seen), max(seen.garbage_ns, seen.wait_ns)
        if inside and measured < _ALMOST_ALL * seen.excess_ns and (found := self._of_function(seen, inside)):
            return found
        looks = {cause: [look for look in seen.looks if self._is(look, cause)] for cause in _TOLD_BY_LOOKS}
        looks[EVALUATION] = evaluations.found(seen.looks, self.usual)
        looks[RANKS] += [] if looks[RANKS] else self._waiting_in_backward(seen)
        looks[DEVICE] = looks[DEVICE] if seen.has_device else []
        explained = {cause: self._explained(seen, cause, some) for cause, some in looks.items()}
        enough = _ENOUGH * seen.excess_ns
        looks[OWN] = self._own_code(seen, enough)
        counted = {
            GARBAGE: seen.garbage_ns,
            EVALUATION: max(explained[EVALUATION], seen.aside_ns),
            DATA: max(explained[DATA], seen.wait_ns),
            MEMORY: max(explained[MEMORY], self._paging(seen)),
            OWN: spent(looks[OWN]),
            PROCESSOR: self._queued(seen),
        }
        told = _largest(explained | counted, enough)
        if told is not None:
            frame = self._frame(seen, told, looks.get(told) or seen.looks)
            return Explanation(told, min(float((explained | counted)[told]), seen.excess_ns), frame)
        if seen.before_ns and seen.looked_ns >= _LEAST_SEEN * seen.excess_ns:
            # the first look came late, and all that was seen then is one thing
            enough = max(_ALMOST_ALL, enough / (seen.looked_ns + seen.before_ns)) * seen.looked_ns
            explained |= {MEMORY: counted[MEMORY], OWN: spent(self._own_code(seen, enough))}
            told = _largest(explained, enough)
            if told is not None:
                return Explanation(told, min(float(explained[told]), seen.looked_ns), None)
        cause = UNKNOWN
        if seen.counters.retries:
            cause = ALLOCATOR
        elif seen.clock_share is not None and seen.clock_share < _THROTTLED:
            cause = CLOCK
        return Explanation(cause, None, self._frame(seen, cause, seen.looks))

    def _in_function(self, seen: StepFacts) -> list[tuple[Look, Frame]]:
        """Return the looks in the innermost function that holds most of the excess, if usual steps are never in it.

        Functions that a model calls are a part of its call.
        None if the training is still there after the step, because it has gone on to another loop.
        """
        if len(self.usual.looks) < MANY:
            return []
        known = {frame.code for stack in (seen.after, *(look.stack for look in self.usual.looks)) for frame in stack}
        inside: dict[CodeType, list[tuple[Look, Frame]]] = {}
        for look in seen.looks:
            outside = takewhile(lambda frame: frame.name != frames.CALLS_MODULE, self.usual.own(look.stack))
            for code, frame in {frame.code: frame for frame in outside}.items():
                if code not in known and self._origin(frame) is Origin.USER:
                    inside.setdefault(code, []).append((look, frame))
        enough = max((_total(looks) for looks in inside.values()), default=0) * _ALMOST_ALL
        held = [looks for looks in inside.values() if _total(looks) >= enough]
        most = max(held, key=lambda looks: looks[0][0].stack.index(looks[0][1]), default=[])
        return most if _total(most) >= _ENOUGH * seen.excess_ns else []

    def _of_function(self, seen: StepFacts, inside: Sequence[tuple[Look, Frame]]) -> Explanation | None:
        """Name what a function does by all slow steps in which it was seen, so that its name does not depend on one.

        None if it mostly waits for something unknown.
        """
        lines: Counter[Frame] = Counter()
        for look, frame in inside:
            lines[frame] += look.spent_ns if look.is_exact else 0
        line, looks = lines.most_common(1)[0][0], [look for look, _ in inside]
        totals = self._functions.setdefault(line.code, Counter())
        for cause in _TOLD_BY_LOOKS:
            is_so = evaluations.found(looks, self.usual) if cause == EVALUATION else None
            totals[cause] += spent([look for look in looks if self._is(look, cause)] if is_so is None else is_so)
        totals[DEVICE] *= seen.has_device
        totals[MEMORY] += min(int(self._paging(seen)), spent(looks))
        totals[OWN] += spent([look for look in looks if look.doing in (Doing.COMPUTING, Doing.QUEUEING)])
        totals[UNKNOWN] += spent(looks)
        cause = next(cause for cause in SEEN_BY if totals[cause] >= _ENOUGH * totals[UNKNOWN])
        return None if cause == UNKNOWN else Explanation(cause, min(float(spent(looks)), seen.excess_ns), line)

    def _is(self, look: Look, cause: str) -> bool:
        """Whether a look saw a cause."""
        test = _BY_LOOK.get(cause)
        if test is not None:
            return bool(look.stack) and test(look)
        if cause == EVALUATION:
            return evaluations.is_sure(look, self.usual)
        return any(cause in _by_frame(frame.file, frame.name) for frame in self.usual.own(look.stack))

    def _explained(self, seen: StepFacts, cause: str, looks: Sequence[Look]) -> float:
        """How long something was seen, less what of it is seen in usual steps; of what nobody saw, nothing is said."""
        if not looks:
            return 0.0
        usual = self.usual.share(lambda look: self._is(look, cause))
        return beyond(spent(looks) / seen.looked_ns, usual) * seen.looked_ns

    def _own_code(self, seen: StepFacts, enough: float) -> list[Look]:
        """Where it computed what usual steps do not compute, or else Python ran for longer than in those."""
        computing = [look for look in seen.looks if look.doing in (Doing.COMPUTING, Doing.QUEUEING)]
        new = self.usual.unseen(computing, seen.after)
        if spent(new) >= enough:
            return new
        held = [look for look in computing if self._holds(look)]
        explained = beyond(spent(held) / (seen.looked_ns or 1), self.usual.share(self._holds)) * seen.looked_ns
        return held if explained >= enough else []

    def _holds(self, look: Look) -> bool:
        """Whether the interpreter was held by code that is not torch's."""
        return look.is_held and bool(look.stack) and not frames.is_torch(look.stack[-1].file)

    def _paging(self, seen: StepFacts) -> float:
        """How long the system gave it pages; time in which it wanted a processor counts in proportion."""
        cpu, system, faults = seen.counters.cpu_ns, seen.counters.system_ns, seen.counters.faults
        if not cpu or system is None or faults is None or faults * _FAULT_NS < system:
            return 0.0
        share = beyond(min(system / cpu, 1.0), self.usual.system)
        return share * (cpu + (seen.counters.waited_ns or 0))

    def _queued(self, seen: StepFacts) -> float:
        """How much longer it took than it would have, had it done the same and waited for a processor as usual."""
        usual, new = self.usual.waiting, self.usual.unseen(seen.looks, seen.after)
        if seen.waited_ns is None or usual is None or spent(new) >= _ENOUGH * seen.looked_ns:
            return 0.0
        return beyond(min(seen.waited_ns / seen.wall_ns, 1.0), usual) * seen.wall_ns

    @staticmethod
    def _waiting_in_backward(seen: StepFacts) -> list[Look]:
        """A backward pass that does not compute waits for the gradients of others."""
        cpu = seen.counters.cpu_ns
        if not seen.is_distributed or cpu is None or cpu > _WAITING * seen.looked_ns:
            return []
        return [look for look in seen.looks if look.stack and frames.BACKWARD.search(look.stack[-1].file)]

    def _frame(self, seen: StepFacts, cause: str, looks: Sequence[Look]) -> Frame | None:
        """The line to look at: where most time was spent, in the function in which most was.

        None where nobody looked for half of what is to be explained, and where any line would be innocent.
        """
        if cause == GARBAGE:
            return seen.garbage_at
        if cause == PROCESSOR or spent(looks) < _ENOUGH * seen.excess_ns:
            return None
        depth = self._depth(looks) if cause == EVALUATION else 0
        functions: Counter[object] = Counter()
        lines: Counter[Frame] = Counter()
        for look in looks:
            frame = look.stack[depth - 1] if 0 < depth <= len(look.stack) else self._named(look.stack)
            if frame is not None:
                functions[frame.code] += look.spent_ns
                lines[frame] += look.spent_ns if look.is_exact else 0
        code = max(functions, key=functions.__getitem__, default=None)
        if functions[code] < _ENOUGH * spent(looks):
            return None
        return max((frame for frame in lines if frame.code is code), key=lines.__getitem__)

    def _depth(self, looks: Sequence[Look]) -> int:
        """How deep the function lies that all looks saw and that calls the model: the loop, or what it called."""
        first = looks[0].stack if looks else ()
        calls = (place for place, frame in enumerate(first) if frame.name == frames.CALLS_MODULE)
        shared = min([next(calls, len(first)), *(common(first, look.stack) for look in looks)])
        mine = (Origin.USER, Origin.INSTALLED)
        return max((place for place in range(1, shared + 1) if self._origin(first[place - 1]) in mine), default=0)

    def _named(self, stack: Stack) -> Frame | None:
        """The innermost line of the user's, or else of a package, below what the loop is always in, or else in that."""
        own = self.usual.own(stack)
        always = stack[: len(stack) - len(own)]
        of_somebody, of_others = PREFERENCE[:2], PREFERENCE[2:]
        for part, wanted in ((own, of_somebody), (always, of_somebody), (stack, of_others)):
            for origins in wanted:
                for frame in reversed(part):
                    if self._origin(frame) in origins:
                        return frame
        return None

    def _origin(self, frame: Frame) -> Origin:
        return self._installation.origin_of(frame.file)


def _largest(explained: Mapping[str, float], enough: float) -> str | None:
    """The first cause that explains enough; memory is one of its own where it is most of what a line computes."""
    told = next((cause for cause in SEEN_BY if explained.get(cause, 0.0) >= enough), None)
    return MEMORY if told == OWN and explained[MEMORY] >= _ENOUGH * explained[OWN] else told


def _compiles(file: str, name: str) -> bool:
    # the first call of torch.compile imports the compiler, for seconds
    return bool(frames.COMPILES.search(file)) or (name == "compile" and file.endswith(frames.TORCH))


def _saves(file: str, name: str) -> bool:
    if frames.SAVES.search(file):
        return "save" in name or "write" in name
    return not frames.is_torch(file) and bool(_SAVING.search(name))


@lru_cache(4096)
def _by_frame(file: str, name: str) -> frozenset[str]:
    """The causes that a function on the stack tells."""
    told = {
        COMPILATION: _compiles(file, name),
        CHECKPOINT: _saves(file, name),
        DATA: frames.FETCHES.search(file),
        RANKS: frames.COLLECTIVE.search(file),
    }
    return frozenset(cause for cause, is_told in told.items() if is_told)


def _locks(look: Look) -> bool:
    frame = look.stack[-1]
    return look.doing is Doing.LOCK and bool(frames.WAITS.search(frame.file) or _LOCKS.search(_text(frame)))


def _moves_files(look: Look) -> bool:
    # a thread whose disk has answered waits for a processor where others compute, and the system tells that alone
    return look.doing is Doing.FILE or (not look.is_held and bool(_FLUSHES.search(_text(look.stack[-1]))))


def _text(frame: Frame) -> str:
    return linecache.getline(frame.file, frame.line)


_BY_LOOK: Final[dict[str, Callable[[Look], bool]]] = {
    DISK: _moves_files,
    LOCK: _locks,
    MEMORY: lambda look: look.doing is Doing.PAGE,
    DEVICE: lambda look: not look.is_held and bool(_SYNCHRONIZES.search(_text(look.stack[-1]))),
}
_TOLD_BY_LOOKS: Final = (COMPILATION, CHECKPOINT, EVALUATION, DATA, RANKS, *_BY_LOOK)
