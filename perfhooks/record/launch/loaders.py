"""Loaders that tell when they are asked for a batch: torch's iterator does, whatever class is made of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfhooks.core.guard import hide_frames
from perfhooks.run.installation import line_of_user
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.record.launch.step_detectors import Events, PassBegin
    from perfhooks.record.launch.step_signal import StepSignal


class _Pass:
    """A pass over a loader, kept by its iterator; ends with its last batch, or with the iterator of a loop left before.

    Args:
        heard: Is told.
        since: The counts when it began.
    """

    def __init__(self, heard: Events, since: PassBegin) -> None:
        self.heard, self.since = heard, since

    @property
    def line(self) -> str:
        """The line of the program that began it."""
        return self.since.line

    def __del__(self) -> None:
        self.heard.pass_ended(self.since, clock())


def listen(module: Any, signal: StepSignal) -> Callable[[], None]:
    """Have every iterator of every DataLoader report its passes and fetches.

    No class is made for a loader or a pass over it, and an iterator's stays what it is: code of others may ask for it,
    as ``super(self.__class__, self)`` does. A forked worker begins inside the constructor of its iterator, and with the
    frames of it: so no function of ours is on the stack there.

    Args:
        module: ``torch.utils.data.dataloader``.
        signal: Is told.

    Returns:
        What leaves torch as it was.
    """
    iterator, parallel = module._BaseDataLoaderIter, module._MultiProcessingDataLoaderIter  # noqa: SLF001 -- no public name is as deep
    ours = [*_passes(iterator, parallel, signal.heard), (iterator, "__next__", _fetching(iterator.__next__, signal))]
    theirs = [(kind, name, vars(kind)[name]) for kind, name, _ in ours]
    _put(ours)
    return functools.partial(_put, theirs)


def _put(functions: list[tuple[Any, str, Any]]) -> None:
    for kind, name, function in functions:
        setattr(kind, name, function)


def _passes(iterator: Any, parallel: Any, heard: Events) -> list[tuple[Any, str, Any]]:
    """Return the functions that begin a pass, for iterators and for those with workers."""
    make, reset, reset_parallel = iterator.__init__, vars(iterator)["_reset"], vars(parallel)["_reset"]

    def begin_pass(self: Any) -> None:
        began = clock()
        heard.waiting.ask(began)
        since = heard.begin_pass(began, line_of_user())
        vars(self)["perfhooks_pass"] = _Pass(heard, since)  # an iterator that is kept may have left one

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        begin_pass(self)
        _called(make, self, *args, **kwargs)
        if not isinstance(self, parallel):  # else it starts its workers now, which is a wait as well
            heard.waiting.arrive(clock())

    @functools.wraps(reset)
    def _reset(self: Any, loader: Any, first_iter: bool = False) -> None:
        if not first_iter:
            begin_pass(self)
        _called(reset, self, loader, first_iter)
        if not isinstance(self, parallel):
            heard.waiting.arrive(clock())

    @functools.wraps(reset_parallel)
    def _reset_parallel(self: Any, *args: Any, **kwargs: Any) -> None:
        _called(reset_parallel, self, *args, **kwargs)
        heard.waiting.arrive(clock())

    return [(iterator, "__init__", __init__), (iterator, "_reset", _reset), (parallel, "_reset", _reset_parallel)]


def _fetching(fetch: Callable[[Any], Any], signal: StepSignal) -> Callable[[Any], Any]:
    heard = signal.heard

    @functools.wraps(fetch)
    def __next__(self: Any) -> Any:
        heard.fetches += 1
        if heard.armed or heard.fetches >= heard.due:
            signal.look_at_fetch()
        # torch labels the fetch itself, so a label of ours would only hide whether it belongs to a validation
        profiler = heard.waiting
        profiler.ask(clock())
        try:
            item = fetch(self)
        except BaseException as error:
            if isinstance(error, StopIteration):
                vars(self).pop("perfhooks_pass", None)
            hide_frames(error)
            raise
        profiler.arrive(clock())
        return item

    return __next__


def _called(function: Callable[..., object], *args: Any, **kwargs: Any) -> None:
    """Call a function of torch; an exception passes without our frames."""
    try:
        function(*args, **kwargs)
    except BaseException as error:
        hide_frames(error)
        raise
