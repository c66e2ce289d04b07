"""Loaders that tell when they are asked for a batch: torch's iterator does, whatever class is made of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from perfhooks.guard import hide_frames
from perfhooks.run.installation import line_of_user
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from perfhooks.launching.step_signal import StepSignal
    from perfhooks.launching.ways import Heard, PassBegin


class _Pass:
    """A pass over a loader, kept by its iterator; ends with its last batch, or with the iterator of a loop left before.

    Args:
        heard: Is told.
        since: The counts when it began.
    """

    def __init__(self, heard: Heard, since: PassBegin) -> None:
        self.heard, self.since = heard, since

    @property
    def line(self) -> str:
        """The line of the program that began it."""
        return self.since.line

    def __del__(self) -> None:
        self.heard.pass_ended(self.since, clock())


def listen(module: Any, signal: StepSignal) -> None:
    """Have every iterator of every DataLoader tell of its fetches.

    No class is made for a loader or a pass over it, and an iterator's stays what it is: code of others may ask for it,
    as ``super(self.__class__, self)`` does.

    Args:
        module: ``torch.utils.data.dataloader``.
        signal: Is told.
    """
    loader, iterator = module.DataLoader, module._BaseDataLoaderIter  # noqa: SLF001 -- no public name is as deep
    begin, fetch = loader.__iter__, iterator.__next__
    heard = signal.heard

    @functools.wraps(begin)
    def __iter__(self: Any) -> Any:
        waiting, began = heard.waiting, clock()
        since = heard.begin_pass(began, line_of_user())
        waiting.ask(began)
        try:
            made = begin(self)
        except BaseException as error:
            hide_frames(error)
            raise
        waiting.arrive(clock())  # to start its workers is a wait as well
        if isinstance(made, iterator):
            made.perfhooks_pass = _Pass(heard, since)  # an iterator that is kept may have left one
        return made

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

    loader.__iter__, iterator.__next__ = __iter__, __next__
