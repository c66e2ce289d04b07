from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from perfhooks.core.errors import ScheduleError
from perfhooks.core.schedule.phases import Phase, check_step

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.core.schedule.phases import Planned

ON_REQUEST: Final = "on request"
WHEN_SETTLED: Final = "when settled"

_ACTIONS: Final[dict[Any, tuple[Phase, bool]]] = {
    "NONE": (Phase.WAIT, False),
    "WARMUP": (Phase.WARMUP, False),
    "RECORD": (Phase.ACTIVE, False),
    "RECORD_AND_SAVE": (Phase.ACTIVE, True),
}


class CallableSchedule:
    """A schedule defined by a function ``step -> ProfilerAction``.

    As in torch, the function is called once per step and in order. For a resumed training the function is also called
    for the previous step.
    """

    def __init__(self, function: Callable[[int], Any]) -> None:
        self.function = function
        self._answers: dict[int, tuple[Phase, bool]] = {}

    def phase(self, step: int) -> Phase:
        """Return the phase. Raise a ScheduleError for a negative step or an unknown result."""
        return self._answer(step)[0]

    def opens(self, step: int) -> bool:
        if step <= 0:
            return self.phase(step) is not Phase.WAIT
        # the earlier step first, so that the function gets steps in order
        before, ended = self._answer(step - 1)
        phase = self.phase(step)
        if phase is Phase.WAIT:
            return False
        return ended or before is Phase.WAIT or (before is Phase.ACTIVE and phase is Phase.WARMUP)

    def ends(self, step: int) -> bool:
        return self._answer(step)[1]

    def next_change(self, step: int) -> int:
        check_step(step)
        return step + 1

    def next_window(self, step: int) -> Planned | None:
        check_step(step)
        return None

    def __repr__(self) -> str:
        return f"CallableSchedule({self.function!r})"

    def _answer(self, step: int) -> tuple[Phase, bool]:
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
    def phase(self, step: int) -> Phase:
        check_step(step)
        return Phase.WAIT

    def opens(self, step: int) -> bool:
        return False

    def ends(self, step: int) -> bool:
        return False

    def next_change(self, step: int) -> int | None:
        return None

    def next_window(self, step: int) -> Planned | None:
        return None

    def __str__(self) -> str:
        return f"{ON_REQUEST}\nno step is recorded without a request, for example by `perfhooks capture RUN`"


class FromStartToStop:
    """One window from ``start()`` to ``stop()``, as in torch without a schedule."""

    def __init__(self, begin: int) -> None:
        self.begin = begin

    def phase(self, step: int) -> Phase:
        return Phase.ACTIVE if step >= self.begin else Phase.WAIT

    def opens(self, step: int) -> bool:
        return step == self.begin

    def ends(self, step: int) -> bool:
        return False

    def next_change(self, step: int) -> int | None:
        return self.begin if step < self.begin else None

    def next_window(self, step: int) -> Planned | None:
        return None
