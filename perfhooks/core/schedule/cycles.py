"""Schedules of cycles: pure arithmetic, the same answers as ``torch.profiler.schedule`` and more.

A cycle is ``wait`` idle steps, ``warmup`` steps with the recorder on and its results thrown away, ``active`` recorded
steps. A window is the warm-up and the active steps of one cycle.
"""

from __future__ import annotations

import difflib
import itertools
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from perfhooks.core.errors import ScheduleError
from perfhooks.core.schedule.drawing import drawing
from perfhooks.core.schedule.phases import Phase, Planned, check_step
from perfhooks.core.schedule.settled import WhenSettled
from perfhooks.core.schedule.unplanned import ON_REQUEST, WHEN_SETTLED, CallableSchedule, OnRequest


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Which steps are profiled, in the terms of ``torch.profiler.schedule``.

        Schedule(wait=10, warmup=2, active=3, repeat=1)  # steps 12-14 are recorded, once
        Schedule(wait=997, warmup=1, active=2)  # the last 2 of every 1,000 steps, for ever
        Schedule.parse("wait=10 warmup=2 active=3")  # the same fields as text, for a config or a command line

    The fields are integers: what ``operator.index`` takes, NumPy's among them. ``True`` and ``False`` are refused,
    because ``repeat=True`` reads as "for ever" and would mean once; only ``skip_first_wait`` takes them. Steps count
    from 0.

    Raises:
        ScheduleError: A field is no integer or too small.
    """

    wait: int
    """Idle steps at the beginning of each cycle; 0 or more."""

    warmup: int
    """Steps before the active ones with the recorder on and its results thrown away; 0 or more."""

    active: int
    """Recorded steps of each cycle; 1 or more."""

    repeat: int = 0
    """Number of cycles; 0 goes on for as long as the training does."""

    skip_first: int = 0
    """Idle steps before the first cycle; 0 or more."""

    skip_first_wait: int = 0
    """Whether the first cycle has no ``wait`` steps; any integer but 0 means yes and is kept as 1."""

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 0), ("skip_first", 0)):
            _keep(self, name, _integer(name, getattr(self, name), least))
        skip = self.skip_first_wait
        _keep(self, "skip_first_wait", int(skip if isinstance(skip, bool) else _integer("skip_first_wait", skip) != 0))

    @classmethod
    def of(cls, value: Any) -> Schedule | OnRequest | CallableSchedule | None:
        """Takes a schedule in any of the forms that a user may give it.

        Args:
            value: None, a schedule, a mapping of its fields, a string for ``parse``, ``"on request"``,
                ``"when settled"`` or a callable ``step -> ProfilerAction``. What ``torch.profiler.schedule`` returned
                is read back into a ``Schedule``, as an idle step then costs a comparison and no call.

        Raises:
            ScheduleError: It is none of these, or describes a schedule that cannot be.
        """
        if value is None or isinstance(value, Schedule | OnRequest | CallableSchedule):
            return value
        if isinstance(value, str) and value.strip() in _WORDS:
            return _WORDS[value.strip()]()
        if isinstance(value, str):
            return cls.parse(value)
        if isinstance(value, Mapping):
            return cls._from_fields(value)
        if callable(value) and not isinstance(value, type):
            known = _torch_arguments(value)
            return CallableSchedule(value) if known is None else cls(**known)
        raise ScheduleError(
            "schedule must be None, a Schedule, a mapping, a string like 'wait=1 warmup=1 active=3' "
            f"or a callable step -> ProfilerAction, got {value!r}"
        )

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Reads a schedule from words such as ``"wait=1 warmup=1 active=3 repeat=2"``.

        Args:
            text: ``field=integer`` for each field, in any order, separated by spaces or commas, or by nothing: the
                command line of mmengine takes spaces away.

        Raises:
            ScheduleError: A word is no ``field=integer``, a field is unknown, missing, given twice or too small.
        """
        given: dict[str, int] = {}
        tight = re.sub(r"\s*=\s*", "=", text).replace(",", " ")
        for word in re.sub(rf"(?<=\d)(?=(?:{'|'.join(_FIELDS)})=)", " ", tight).split():
            name, equals, number = word.partition("=")
            _check_name(name)
            if not equals:
                raise ScheduleError(f"schedule {text!r}: {name} needs a value, as in {name}=1")
            if name in given:
                raise ScheduleError(f"schedule {text!r}: {name} must be given once, got it again as {word!r}")
            try:
                given[name] = int(number)
            except ValueError:
                raise ScheduleError(f"schedule {text!r}: {name} must be an integer, got {number!r}") from None
        return cls._from_fields(given)

    @classmethod
    def _from_fields(cls, given: Mapping[Any, Any]) -> Schedule:
        for name in given:
            _check_name(name)
        missing = [name for name in ("wait", "warmup", "active") if name not in given]
        if missing:
            raise ScheduleError(f"a schedule needs wait, warmup and active; missing: {', '.join(missing)}")
        return cls(**given)

    def to_dict(self) -> dict[str, int]:
        """All six fields by name; ``Schedule.of`` takes it back."""
        return asdict(self)

    @property
    def total_steps(self) -> int | None:
        """Number of steps from step 0 to the end of the last window, that end included; None if there is no last."""
        if not self.repeat:
            return None
        return self._window(self.repeat - 1).last + 1

    def phase(self, step: int) -> Phase:
        """What the recorder does during a step, as ``torch.profiler.schedule`` says it.

        Args:
            step: A step, 0 or more.

        Raises:
            ScheduleError: The step is negative.
        """
        place = self._place(step)
        if place is None or place >= self._length:
            return Phase.WAIT
        return Phase.WARMUP if place < self.warmup else Phase.ACTIVE

    def opens(self, step: int) -> bool:
        """Whether a step is the first of a window, warm-up included."""
        return self._place(step) == 0

    def ends(self, step: int) -> bool:
        """Whether a step is the last of a window: torch's RECORD_AND_SAVE."""
        return self._place(step) == self._length - 1

    def next_change(self, step: int) -> int | None:
        """The next step, after this one, that begins a phase or a window.

        Where two windows touch (``wait=0 warmup=0``) the phase stays the same and the window changes; that counts.

        Returns:
            A step greater than ``step``, or None when all that follows is idle.
        """
        place = self._place(step)
        if place is None or place >= self._length:
            window = self.next_window(step + 1)
            return None if window is None else window.first
        return step - place + (self.warmup if place < self.warmup else self._length)

    def next_window(self, step: int) -> Planned | None:
        """The first window whose first step, warm-up included, is ``step`` or a later one; None if there is none."""
        check_step(step)
        index = max(0, -(-(step - self._origin) // self._cycle))
        return self._window(index) if self._has(index) else None

    def windows(self, start: int = 0) -> Iterator[Planned]:
        """The windows whose first step is ``start`` or a later one, in order, for ever when ``repeat`` is 0."""
        begin = self.next_window(start)
        if begin is None:
            return
        for index in itertools.count((begin.first - self._origin) // self._cycle):
            if not self._has(index):
                return
            yield self._window(index)

    def __str__(self) -> str:
        """The fields in the form that ``parse`` reads, then a drawing of the first steps."""
        return f"{self._words()}\n{drawing(self.windows(), repeat=self.repeat, total=self.total_steps)}"

    def _repr_html_(self) -> str:
        """The drawing, for notebooks."""
        return f'<pre style="line-height: 1.3">{self}</pre>'  # numbers and words alone, nothing to escape

    def _words(self) -> str:
        """The fields, less those that have their default value."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return " ".join(f"{field.name}={value}" for field, value in values if value != field.default)

    @property
    def _cycle(self) -> int:
        return self.wait + self.warmup + self.active

    @property
    def _length(self) -> int:
        """Number of steps in a window."""
        return self.warmup + self.active

    @property
    def _origin(self) -> int:
        """The first step of the first window."""
        return self.skip_first + (0 if self.skip_first_wait else self.wait)

    def _has(self, index: int) -> bool:
        return not self.repeat or index < self.repeat

    def _window(self, index: int) -> Planned:
        first = self._origin + index * self._cycle
        return Planned(first, first + self.warmup, first + self._length - 1)

    def _place(self, step: int) -> int | None:
        """The distance of a step from the first step of the window before it; None outside all cycles."""
        check_step(step)
        index, place = divmod(step - self._origin, self._cycle)
        return place if index >= 0 and self._has(index) else None


_FIELDS: Final = tuple(field.name for field in fields(Schedule))
_WORDS: Final = {ON_REQUEST: OnRequest, WHEN_SETTLED: WhenSettled}


def _keep(schedule: Schedule, name: str, value: int) -> None:
    """Sets a field of a frozen dataclass while it is being made."""
    object.__setattr__(schedule, name, value)


def _integer(name: str, value: Any, least: int | None = None) -> int:
    rule = "an integer" if least is None else f"an integer >= {least}"
    try:
        number = operator.index(value)
    except TypeError:
        raise ScheduleError(f"{name} must be {rule}, got {value!r}") from None
    if isinstance(value, bool) or (least is not None and number < least):
        raise ScheduleError(f"{name} must be {rule}, got {value!r}")
    return number


def _check_name(name: Any) -> None:
    if name in _FIELDS:
        return
    close = difflib.get_close_matches(str(name), _FIELDS, n=1)
    advice = f"did you mean {close[0]}?" if close else f"the fields are {', '.join(_FIELDS)}"
    raise ScheduleError(f"a schedule has no field {name!r}; {advice}")


def _torch_arguments(function: Callable[[int], Any]) -> dict[str, int] | None:
    """The arguments of the ``torch.profiler.schedule`` call that made a callable; None for any other callable.

    The callable of torch is a closure over its arguments and nothing else: six, or five before torch 2.6. A closure
    of somebody else's over the same names may do anything with them, hence the look at where it comes from.
    """
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    if getattr(function, "__module__", None) != "torch.profiler.profiler" or code is None or not cells:
        return None
    if set(code.co_freevars) | {"skip_first_wait"} != set(_FIELDS):
        return None
    arguments = dict(zip(code.co_freevars, (cell.cell_contents for cell in cells), strict=True))
    if not all(isinstance(value, int) for value in arguments.values()):
        return None
    return {name: int(value) for name, value in arguments.items()}
