"""Schedules whose windows nobody can know in advance: somebody's callable, windows on request, none at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import ScheduleError
from perfhooks.core.schedule.phases import Phase, check_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.core.schedule.phases import Planned

ON_REQUEST: Final = "on request"
"""In place of a schedule: no windows but those that somebody asks for while the training runs."""
WHEN_SETTLED: Final = "when settled"
"""Likewise: one window, see `perfhooks.core.schedule.settled`."""

_ACTIONS: Final[dict[Any, tuple[Phase, bool]]] = {
    "NONE": (Phase.WAIT, False),
    "WARMUP": (Phase.WARMUP, False),
    "RECORD": (Phase.ACTIVE, False),
    "RECORD_AND_SAVE": (Phase.ACTIVE, True),
}


class CallableSchedule:
    """A schedule of which nothing is known but what a callable ``step -> ProfilerAction`` answers.

    The callable is asked once for each step, in order, as torch asks it, when the steps are asked for in order; the
    answers for the last two steps are remembered. A training that is resumed inside asks for one step more, the one
    before.

    Args:
        function: Takes a step, 0 or more; returns a ``torch.profiler.ProfilerAction`` or anything with such a name.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self._answers: dict[int, tuple[Phase, bool]] = {}

    def phase(self, step: int) -> Phase:
        """What the recorder does during a step.

        Raises:
            ScheduleError: The step is negative, or the answer is none of NONE, WARMUP, RECORD, RECORD_AND_SAVE.
        """
        return self._answer(step)[0]

    def opens(self, step: int) -> bool:
        """Whether a step is the first of a window: it does not continue what the step before did."""
        if step <= 0:
            return self.phase(step) is not Phase.WAIT
        # the earlier step first, so that the callable sees its steps in order
        before, ended = self._answer(step - 1)
        phase = self.phase(step)
        if phase is Phase.WAIT:
            return False
        return ended or before is Phase.WAIT or (before is Phase.ACTIVE and phase is Phase.WARMUP)

    def ends(self, step: int) -> bool:
        """Whether a step is the last of a window: RECORD_AND_SAVE."""
        return self._answer(step)[1]

    def next_change(self, step: int) -> int:
        """The step after this one: any step may change something."""
        check_step(step)
        return step + 1

    def next_window(self, step: int) -> Planned | None:
        """None: the windows ahead are not known; ask ``opens`` step by step."""
        check_step(step)
        return None

    def __repr__(self) -> str:
        return f"CallableSchedule({self.function!r})"

    def _answer(self, step: int) -> tuple[Phase, bool]:
        """The phase of a step and whether it is the last of its window."""
        known = self._answers.get(step)
        if known is not None:
            return known
        check_step(step)
        action = self.function(step)
        answer = _ACTIONS.get(getattr(action, "name", None))
        if answer is None:
            raise ScheduleError(
                f"a schedule must answer with one of ProfilerAction.{', '.join(map(str, _ACTIONS))}; "
                f"{self.function!r} answered {action!r} for step {step}"
            )
        self._answers = {key: value for key, value in self._answers.items() if key == step - 1}
        self._answers[step] = answer
        return answer


class OnRequest:
    """No windows but those that somebody asks for while the training runs."""

    def phase(self, step: int) -> Phase:
        """WAIT, always."""
        check_step(step)
        return Phase.WAIT

    def opens(self, step: int) -> bool:
        """Whether a step is the first of a window: none is."""
        return False

    def ends(self, step: int) -> bool:
        """Whether a step is the last of a window: none is."""
        return False

    def next_change(self, step: int) -> int | None:
        """None: nothing changes by itself."""
        return None

    def next_window(self, step: int) -> Planned | None:
        """None: there are no windows."""
        return None

    def __str__(self) -> str:
        """As a user writes it, and what it means."""
        return f"{ON_REQUEST}\nno step is recorded before somebody asks, as by `perfhooks capture RUN`"


class FromStartToStop:
    """No schedule: one window from ``start()`` to ``stop()``, as torch records without one.

    Args:
        begin: The step that is current at the start.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def phase(self, step: int) -> Phase:
        """ACTIVE, from the start on."""
        return Phase.ACTIVE if step >= self.begin else Phase.WAIT

    def opens(self, step: int) -> bool:
        """Whether a step is the one that was current at the start."""
        return step == self.begin

    def ends(self, step: int) -> bool:
        """False: only ``stop()`` ends the window."""
        return False

    def next_change(self, step: int) -> int | None:
        """The start, then nothing."""
        return self.begin if step < self.begin else None

    def next_window(self, step: int) -> Planned | None:
        """None: its last step is not known."""
        return None
