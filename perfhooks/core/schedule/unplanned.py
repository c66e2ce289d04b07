"""Schedules without windows that are known in advance: a function, windows on request, or none."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import ScheduleError
from perfhooks.core.schedule.phases import Phase, check_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.core.schedule.phases import Planned

ON_REQUEST: Final = "on request"
"""Schedule with windows only on request of the user."""
WHEN_SETTLED: Final = "when settled"
"""Schedule of `perfhooks.core.schedule.settled`."""

_ACTIONS: Final[dict[Any, tuple[Phase, bool]]] = {
    "NONE": (Phase.WAIT, False),
    "WARMUP": (Phase.WARMUP, False),
    "RECORD": (Phase.ACTIVE, False),
    "RECORD_AND_SAVE": (Phase.ACTIVE, True),
}


class CallableSchedule:
    """A schedule defined by a function ``step -> ProfilerAction``.

    The function is called once per step and in order, as in torch, if the steps are requested in order. The results of
    the last two steps are cached. For a resumed training the function is also called for the previous step.

    Args:
        function: Function of a step, 0 or more. It returns a ``torch.profiler.ProfilerAction`` or an object with such a
            name.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self._answers: dict[int, tuple[Phase, bool]] = {}

    def phase(self, step: int) -> Phase:
        """Return the phase of a step.

        Raises:
            ScheduleError: The step is negative, or the result is not NONE, WARMUP, RECORD or RECORD_AND_SAVE.
        """
        return self._answer(step)[0]

    def opens(self, step: int) -> bool:
        """Return whether a step is the first of a window."""
        if step <= 0:
            return self.phase(step) is not Phase.WAIT
        # the earlier step first, so that the function gets steps in order
        before, ended = self._answer(step - 1)
        phase = self.phase(step)
        if phase is Phase.WAIT:
            return False
        return ended or before is Phase.WAIT or (before is Phase.ACTIVE and phase is Phase.WARMUP)

    def ends(self, step: int) -> bool:
        """Return whether a step is the last of a window (RECORD_AND_SAVE)."""
        return self._answer(step)[1]

    def next_change(self, step: int) -> int:
        """Return the next step, because any step may change the phase."""
        check_step(step)
        return step + 1

    def next_window(self, step: int) -> Planned | None:
        """Return None, because later windows are unknown. Use ``opens`` for each step."""
        check_step(step)
        return None

    def __repr__(self) -> str:
        return f"CallableSchedule({self.function!r})"

    def _answer(self, step: int) -> tuple[Phase, bool]:
        """Return the phase of a step, and whether it is the last of its window."""
        cached = self._answers.get(step)
        if cached is not None:
            return cached
        check_step(step)
        action = self.function(step)
        answer = _ACTIONS.get(getattr(action, "name", None))
        if answer is None:
            raise ScheduleError(
                f"a schedule must return one of ProfilerAction.{', '.join(map(str, _ACTIONS))}; "
                f"{self.function!r} returned {action!r} for step {step}"
            )
        self._answers = {key: value for key, value in self._answers.items() if key == step - 1}
        self._answers[step] = answer
        return answer


class OnRequest:
    """A schedule with windows only on request."""

    def phase(self, step: int) -> Phase:
        """Return WAIT."""
        check_step(step)
        return Phase.WAIT

    def opens(self, step: int) -> bool:
        """Return False."""
        return False

    def ends(self, step: int) -> bool:
        """Return False."""
        return False

    def next_change(self, step: int) -> int | None:
        """Return None."""
        return None

    def next_window(self, step: int) -> Planned | None:
        """Return None."""
        return None

    def __str__(self) -> str:
        """Return the schedule's name and its meaning."""
        return f"{ON_REQUEST}\nno step is recorded without a request, for example by `perfhooks capture RUN`"


class FromStartToStop:
    """One window from ``start()`` to ``stop()``, as in torch without a schedule.

    Args:
        begin: Current step at the start.
    """

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def phase(self, step: int) -> Phase:
        """Return ACTIVE from the start on."""
        return Phase.ACTIVE if step >= self.begin else Phase.WAIT

    def opens(self, step: int) -> bool:
        """Return whether the window started at this step."""
        return step == self.begin

    def ends(self, step: int) -> bool:
        """Return False: only ``stop()`` ends the window."""
        return False

    def next_change(self, step: int) -> int | None:
        """Return the first step if it is later, else None."""
        return self.begin if step < self.begin else None

    def next_window(self, step: int) -> Planned | None:
        """Return None, because the last step is unknown."""
        return None
