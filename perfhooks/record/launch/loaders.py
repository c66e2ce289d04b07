"""Wrappers of DataLoader iterators. The wrappers report each pass over the data set and each fetch of a batch."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from perfhooks.core.frames import hide_from_warnings
from perfhooks.core.guard import hide_frames
from perfhooks.run.installation import lines_here
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.step_detectors import Events, PassBegin
    from perfhooks.record.launch.step_signal import StepSignal


class _Pass:
    def __init__(self, events: Events, since: PassBegin) -> None:
        self.events, self.since = events, since

    @property
    def line(self) -> str:
        return self.since.line

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing():
            self.events.pass_ended(self.since, clock())


def listen(module: Any, signal: StepSignal) -> Callable[[], None]:
    """Wrap the iterators of all DataLoaders. Return a function that restores torch.

    With subclasses of the iterators, ``super(self.__class__, self)`` in other code would fail. Workers are forked after
    the wrapped constructor, so their stacks contain no function of perfhooks.
    """
    iterator, parallel = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter  # noqa: SLF001 -- no public name is as deep
    wrapped = [
        *_passes(iterator, parallel, signal.events),
        (iterator, "__next__", _fetching(iterator.__next__, signal)),
    ]
    originals = [(kind, name, vars(kind)[name]) for kind, name, _ in wrapped]
    _set_all(wrapped)
    return functools.partial(_set_all, originals)


def _set_all(functions: list[tuple[Any, str, Any]]) -> None:
    for kind, name, function in functions:
        setattr(kind, name, function)


def _passes(iterator: Any, parallel: Any, events: Events) -> list[tuple[Any, str, Any]]:
    make, reset, reset_parallel = iterator.__init__, vars(iterator)["_reset"], vars(parallel)["_reset"]

    def begin_pass(self: Any) -> None:
        began = clock()
        events.pulse.ask(began)
        since = events.begin_pass(began, lines_here())
        vars(self)["perfhooks_pass"] = _Pass(events, since)  # a reused iterator may hold an older pass

    @functools.wraps(make)
    @hide_from_warnings
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin_pass(self)
        _call(make, self, *args, **kwargs)
        if not isinstance(self, parallel):
            events.pulse.arrive(clock())

    @functools.wraps(reset)
    @hide_from_warnings
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            begin_pass(self)
        _call(reset, self, loader, first_iter)
        if not isinstance(self, parallel):
            events.pulse.arrive(clock())

    @functools.wraps(reset_parallel)
    @hide_from_warnings
    def _reset_parallel(self: Any, *args: Any, **kwargs: Any) -> None:
        _call(reset_parallel, self, *args, **kwargs)
        events.pulse.arrive(clock())

    return [(iterator, "__init__", __init__), (iterator, "_reset", _reset), (parallel, "_reset", _reset_parallel)]


def _fetching(fetch: Callable[[Any], Any], signal: StepSignal) -> Callable[[Any], Any]:
    events = signal.events

    @functools.wraps(fetch)
    @hide_from_warnings
    def __next__(self: Any) -> Any:
        events.fetches += 1
        if events.armed or events.fetches >= events.due:
            signal.on_fetch()
        # no label here: torch labels the fetch itself, and a second label would hide that a validation fetches
        pulse = events.pulse
        pulse.ask(clock())
        try:
            item = fetch(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                vars(self).pop("perfhooks_pass", None)
            hide_frames(error)
            raise
        events.batches += 1
        pulse.arrive(clock())
        return item

    return __next__


@hide_from_warnings
def _call(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    try:
        function(*args, **kwargs)
    except BaseException as error:
        hide_frames(error)
        raise
