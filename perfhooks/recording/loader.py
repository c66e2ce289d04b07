"""A loader that tells a profiler when its steps end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from perfhooks import labels
from perfhooks.errors import OptionError
from perfhooks.recording.window import region
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from perfhooks.recording.profiler import Profiler

T = TypeVar("T")


class Steps(Generic[T]):
    """An iterable that steps a profiler after each item, and labels the wait for the next.

    It never ends a window: a ``break`` and an exception look alike from in here. A step that was broken off ends when
    the next iteration begins.
    """

    def __init__(self, profiler: Profiler, loader: Iterable[T]) -> None:
        if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
            raise OptionError(f"steps() needs something to iterate over, got {loader!r}")
        self._profiler = profiler
        self._loader = loader
        self._broken_off = False

    def __len__(self) -> int:
        return len(self._loader)  # type: ignore[arg-type]  # a loader without a length says so itself

    def __iter__(self) -> Iterator[T]:
        profiler = self._profiler
        if self._broken_off:
            # the loop was left in the middle of a step, and goes on with another
            self._broken_off = False
            profiler.step()
        arrived, step = profiler._data_arrived, profiler.step  # noqa: SLF001 -- the other half of the profiler
        with profiler.region(labels.DATA):
            items = iter(self._loader)
        end: Any = object()
        while True:
            if profiler._recording:  # noqa: SLF001 -- as above
                with region(labels.DATA):
                    item = next(items, end)
            else:
                item = next(items, end)
            if item is end:
                return
            arrived(clock())
            try:
                yield item
            except GeneratorExit:
                self._broken_off = True
                raise
            step()
