from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from perfhooks.core import labels
from perfhooks.core.errors import OptionError
from perfhooks.core.frames import hide_from_warnings
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from perfhooks.record.loop.step_clock import StepClock

T = TypeVar("T")


class Stepped(Protocol):
    def ensure_started(self) -> None:
        """Start the profiler if it was never started."""

    def step(self) -> None:
        """Report the end of a step."""

    def region(self, name: str) -> AbstractContextManager[Any]:
        """Label a part of the step."""


class SteppingLoader(Generic[T]):
    """Reports a step after each item, and labels the wait for the next item.

    A window continues after the end of an iteration, for example in the next epoch.
    """

    def __init__(self, profiler: Stepped, pulse: StepClock, loader: Iterable[T]) -> None:
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise OptionError(f"steps() needs an iterable, got {loader!r}")
        self._profiler = profiler
        self._pulse = pulse
        self._loader = loader
        self._broken_off = False

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length raises the error itself

    @hide_from_warnings
    def __iter__(self) -> Iterator[T]:
        profiler, pulse = self._profiler, self._pulse
        profiler.ensure_started()
        if self._broken_off:
            self._broken_off = False
            profiler.step()
        arrived, step = pulse.arrive, profiler.step
        pulse.ask(clock())
        with profiler.region(labels.DATA):
            iterator = iter(self._loader)
        fetch = iterator.__next__
        while True:
            # no variable holds the batch: the loop alone decides how long it lives
            try:
                if pulse.is_recording:
                    yield _labelled(iterator, arrived)
                else:
                    yield (fetch(), arrived(clock()))[0]
            except StopIteration:
                return
            except GeneratorExit:
                self._broken_off = True
                raise
            step()


@hide_from_warnings
def _labelled(iterator: Iterator[T], arrived: Callable[[int], object]) -> T:
    with LabelledRange(labels.DATA):
        item = next(iterator)  # not a saved method: the class's `__next__` is replaced while a window records
    arrived(clock())
    return item
