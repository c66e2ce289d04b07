"""Schedules of cycles: idle, warm-up and recorded steps."""

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
    """A schedule of cycles, with the fields of ``torch.profiler.schedule``.

        Schedule(wait=10, warmup=2, active=3, repeat=1)  # steps 12-14 are recorded, once
        Schedule(wait=997, warmup=1, active=2)  # the last 2 of every 1,000 steps, without end
        Schedule.parse("wait=10 warmup=2 active=3")  # the same fields as text, for a config or a command line

    The fields are integers, including NumPy's (``operator.index``). Except in ``skip_first_wait``, Booleans are
    invalid, because ``repeat=True`` looks like "without end" but would mean 1. Steps count from 0.

    Raises:
        ScheduleError: A field is not an integer, or too small.
    """

    wait: int
    """Idle steps at the beginning of each cycle; 0 or more."""

    warmup: int
    """Steps before the active steps, in which the recorder runs and its data is discarded; 0 or more."""

    active: int
    """Recorded steps of each cycle; 1 or more."""

    repeat: int = 0
    """Number of cycles; 0 repeats until the training ends."""

    skip_first: int = 0
    """Idle steps before the first cycle; 0 or more."""

    skip_first_wait: int = 0
    """Whether the first cycle has no ``wait`` steps. Any integer except 0 means yes, and is stored as 1."""

    def __post_init__(self) -> None:
        for name, least in (("wait", 0), ("warmup", 0), ("active", 1), ("repeat", 0), ("skip_first", 0)):
            _set_field(self, name, _integer(name, getattr(self, name), least))
        skip = self.skip_first_wait
        _set_field(
            self, "skip_first_wait", int(skip if isinstance(skip, bool) else _integer("skip_first_wait", skip) != 0)
        )

    @classmethod
    def of(cls, value: Any) -> Schedule | OnRequest | CallableSchedule | None:
        """Convert any form of a schedule.

        Args:
            value: None, a schedule, a mapping of its fields, a string for ``parse``, ``"on request"``, ``"when
                settled"`` or a function ``step -> ProfilerAction``. The result of ``torch.profiler.schedule`` is
                converted to a ``Schedule``, whose idle steps cost no call.

        Raises:
            ScheduleError: The value has another type, or describes an invalid schedule.
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
            arguments = _torch_arguments(value)
            return CallableSchedule(value) if arguments is None else cls(**arguments)
        raise ScheduleError(
            "schedule must be None, a Schedule, a mapping, a string like 'wait=1 warmup=1 active=3' "
            f"or a callable step -> ProfilerAction, got {value!r}"
        )

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse a schedule such as ``"wait=1 warmup=1 active=3 repeat=2"``.

        Args:
            text: ``field=integer`` for each field, in any order. Separators are spaces, commas or nothing, because the
                command line of mmengine removes spaces.

        Raises:
            ScheduleError: A word is not ``field=integer``, or a field is unknown, missing, repeated or too small.
        """
        values: dict[str, int] = {}
        tight = re.sub(r"\s*=\s*", "=", text).replace(",", " ")
        for word in re.sub(rf"(?<=\d)(?=(?:{'|'.join(_FIELDS)})=)", " ", tight).split():
            name, equals, number = word.partition("=")
            _check_name(name)
            if not equals:
                raise ScheduleError(f"schedule {text!r}: {name} needs a value, for example {name}=1")
            if name in values:
                raise ScheduleError(f"schedule {text!r}: {name} must be given once, got it again as {word!r}")
            try:
                values[name] = int(number)
            except ValueError:
                raise ScheduleError(f"schedule {text!r}: {name} must be an integer, got {number!r}") from None
        return cls._from_fields(values)

    @classmethod
    def _from_fields(cls, values: Mapping[Any, Any]) -> Schedule:
        for name in values:
            _check_name(name)
        missing = [name for name in ("wait", "warmup", "active") if name not in values]
        if missing:
            raise ScheduleError(f"a schedule needs wait, warmup and active; missing: {', '.join(missing)}")
        return cls(**values)

    def to_dict(self) -> dict[str, int]:
        """Return a mapping with all six fields. ``Schedule.of`` accepts the mapping."""
        return asdict(self)

    @property
    def total_steps(self) -> int | None:
        """Number of steps up to the end of the last window; None without a last window."""
        if not self.repeat:
            return None
        return self._window(self.repeat - 1).last + 1

    def phase(self, step: int) -> Phase:
        """Return the phase of a step, by the rules of ``torch.profiler.schedule``.

        Raises:
            ScheduleError: The step is negative.
        """
        offset = self._offset(step)
        if offset is None or offset >= self._length:
            return Phase.WAIT
        return Phase.WARMUP if offset < self.warmup else Phase.ACTIVE

    def opens(self, step: int) -> bool:
        """Return whether a step is the first of a window, including warm-up."""
        return self._offset(step) == 0

    def ends(self, step: int) -> bool:
        """Return whether a step is the last of a window (RECORD_AND_SAVE in torch)."""
        return self._offset(step) == self._length - 1

    def next_change(self, step: int) -> int | None:
        """Return the next later step that begins a phase or a window.

        Between adjacent windows (``wait=0 warmup=0``) the phase stays the same.

        Returns:
            A step greater than ``step``, or None if all later steps are idle.
        """
        offset = self._offset(step)
        if offset is None or offset >= self._length:
            window = self.next_window(step + 1)
            return None if window is None else window.first
        return step - offset + (self.warmup if offset < self.warmup else self._length)

    def next_window(self, step: int) -> Planned | None:
        """Return the first window that begins at this step or later, including warm-up; else None."""
        check_step(step)
        index = max(0, -(-(step - self._origin) // self._cycle))
        return self._window(index) if self._has(index) else None

    def windows(self, start: int = 0) -> Iterator[Planned]:
        """Yield the windows that begin at ``start`` or later, in order, without end if ``repeat`` is 0."""
        begin = self.next_window(start)
        if begin is None:
            return
        for index in itertools.count((begin.first - self._origin) // self._cycle):
            if not self._has(index):
                return
            yield self._window(index)

    def __str__(self) -> str:
        """Return the fields in the form of ``parse``, then a drawing of the first windows."""
        return f"{self._words()}\n{drawing(self.windows(), repeat=self.repeat, total=self.total_steps)}"

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.3">{self}</pre>'

    def _words(self) -> str:
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return " ".join(f"{field.name}={value}" for field, value in values if value != field.default)

    @property
    def _cycle(self) -> int:
        return self.wait + self.warmup + self.active

    @property
    def _length(self) -> int:
        return self.warmup + self.active

    @property
    def _origin(self) -> int:
        return self.skip_first + (0 if self.skip_first_wait else self.wait)

    def _has(self, index: int) -> bool:
        return not self.repeat or index < self.repeat

    def _window(self, index: int) -> Planned:
        first = self._origin + index * self._cycle
        return Planned(first, first + self.warmup, first + self._length - 1)

    def _offset(self, step: int) -> int | None:
        check_step(step)
        index, offset = divmod(step - self._origin, self._cycle)
        return offset if index >= 0 and self._has(index) else None


_FIELDS: Final = tuple(field.name for field in fields(Schedule))
_WORDS: Final = {ON_REQUEST: OnRequest, WHEN_SETTLED: WhenSettled}


def _set_field(schedule: Schedule, name: str, value: int) -> None:
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
    """Return the arguments of the ``torch.profiler.schedule`` call that returned a function; None for other functions.

    The function is a closure over six arguments, or five before torch 2.6.
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
