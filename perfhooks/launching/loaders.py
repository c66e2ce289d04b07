"""Loaders that tell when they are asked for a batch: their iterators become a subclass of their own class."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from perfhooks.launching.step_signal import StepSignal


def listen(loader: Any, signal: StepSignal) -> None:
    """Have every iterator of every DataLoader tell of its fetches.

    Args:
        loader: The class ``DataLoader``.
        signal: Is told.
    """
    plain = loader.__iter__
    kinds: dict[type, type] = {}

    @functools.wraps(plain)
    def __iter__(self: Any) -> Any:
        waiting, began = signal.heard.waiting, clock()
        waiting.ask(began)
        iterator = plain(self)
        waiting.arrive(clock())  # to start its workers is a wait as well
        try:
            if not hasattr(type(iterator), "perfhooks_heard"):
                iterator.__class__ = kinds.setdefault(type(iterator), telling(type(iterator), signal))
            iterator.perfhooks_pass = began, signal.heard.updates
        except TypeError:
            return iterator  # somebody has made it in C or with slots: its updates still tell
        return iterator

    loader.__iter__ = __iter__


def telling(kind: type, signal: StepSignal) -> type:
    """A subclass of an iterator's class whose ``__next__`` tells that it was called."""
    plain = kind.__next__  # type: ignore[attr-defined]  # it is an iterator's
    heard = signal.heard

    def __next__(self: Any) -> Any:
        heard.fetches += 1
        if heard.armed or heard.fetches >= heard.due:
            signal.look_at_fetch()
        # torch labels the fetch itself, so a label of ours would only hide whether it belongs to a validation
        profiler = heard.waiting
        profiler.ask(clock())
        try:
            item = plain(self)
        except StopIteration:
            end(self)
            raise
        profiler.arrive(clock())
        return item

    def end(self: Any) -> None:
        began, updates = self.__dict__.pop("perfhooks_pass", (0, 0))
        heard.pass_ended(began, updates, clock())

    def __del__(self: Any) -> None:
        end(self)  # the loop was left before there were no more batches
        getattr(kind, "__del__", bool)(self)

    members = {
        "__next__": __next__,
        "__del__": __del__,
        "perfhooks_heard": True,
        "__module__": kind.__module__,
        "__doc__": kind.__doc__,
    }
    return type(kind.__name__, (kind,), members)
