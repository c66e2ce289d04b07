"""Ranges that are open when a recording ends, for example ``with record_function("epoch")``.

The end of a range writes into the recording in which the range began, although torch has freed that memory. If another
recording is running when the range ends, the process crashes or memory is corrupted. Therefore no recording starts
while a range is open.
"""

from __future__ import annotations

import gc
import weakref
from itertools import islice
from types import MethodType
from typing import TYPE_CHECKING, Any, Final

from torch.autograd.profiler import record_function

from perfhooks.core import labels
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.trace.names import ranges

if TYPE_CHECKING:
    from collections.abc import Iterator


_open: Final[list[weakref.ref[Any]]] = []
_updates: Final[set[str]] = set()
"""Names of ranges around optimizer updates, which always end within the next step."""


def store_open_ranges(recorder: Any) -> None:
    names = set(_names(recorder.kineto_results.experimental_event_tree()))
    _updates.clear()
    _updates.update(name for name in names if name.startswith(ranges.UPDATE))
    names -= _updates
    if names:
        _open.extend(weakref.ref(range_) for range_ in _ranges() if range_.name in names and _is_entered(range_))


def is_any_open(*, is_same_step: bool = False) -> bool:
    """Return whether the start of a recording could crash the process.

    Args:
        is_same_step: Whether the last recording ended in the current step.
    """
    _open[:] = [ref for ref in _open if (range_ := ref()) is not None and _is_entered(range_)]
    return bool(_open) or (is_same_step and bool(_updates))


def _names(roots: list[Any]) -> Iterator[str]:
    # A recording with step marks has few root events; without steps it may have millions.
    for root in islice(roots, 1000):
        if root.name.startswith(labels.STEP_MARK):
            event = root
            while event.children and event.children[-1].end_time_ns == root.end_time_ns:
                event = event.children[-1]
                yield event.name


def _ranges() -> list[record_function]:
    kinds = (record_function, LabelledRange)
    return [range_ for range_ in gc.get_referrers(*kinds) if type(range_) in kinds]


def _is_entered(range_: record_function) -> bool:
    return any(type(holder) is MethodType and holder.__name__ == "__exit__" for holder in gc.get_referrers(range_))
