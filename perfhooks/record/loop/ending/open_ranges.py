"""Ranges that are open when a recording ends, such as ``with record_function("epoch")``.

The end of a range writes into the memory of the recording that saw its beginning. torch frees that memory when the
recording ends, and the write happens if another recording goes on by then: the process crashes, or memory is changed.
So no recording begins while such a range is open.
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

_MOST_ROOTS: Final = 1000
"""Events without a parent to look at. A recording with steps has a few; others may have millions."""

_open: Final[list[weakref.ref[Any]]] = []
"""Ranges that were open when a recording ended, without updates."""
_updates: Final[set[str]] = set()
"""Updates inside which the last recording ended. They end before the next step does."""


def note(recorder: Any) -> None:
    """Note which ranges are open, as a recording has just ended in this thread.

    Args:
        recorder: torch's, with its results.
    """
    names = set(_names(recorder.kineto_results.experimental_event_tree()))
    _updates.clear()
    _updates.update(name for name in names if name.startswith(ranges.UPDATE))
    others = names - _updates
    if others:
        # a scan of all objects takes 20 ms, so it is left out if torch shows no open range
        _open.extend(weakref.ref(range_) for range_ in _ranges() if range_.name in others and _is_entered(range_))


def is_any_open(*, is_same_step: bool = False) -> bool:
    """Whether a recording that begins now might crash the process.

    Args:
        is_same_step: Whether the last recording has ended at the same end of a step.
    """
    _open[:] = [ref for ref in _open if (range_ := ref()) is not None and _is_entered(range_)]
    return bool(_open) or (is_same_step and bool(_updates))


def _names(roots: list[Any]) -> Iterator[str]:
    """Names of events without an end: torch gives them the end of what they are in."""
    for root in islice(roots, _MOST_ROOTS):
        if root.name.startswith(labels.STEP_MARK):
            event = root
            while event.children and event.children[-1].end_time_ns == root.end_time_ns:
                event = event.children[-1]
                yield event.name


def _ranges() -> list[record_function]:
    kinds = (record_function, LabelledRange)
    return [range_ for range_ in gc.get_referrers(*kinds) if type(range_) in kinds]


def _is_entered(range_: record_function) -> bool:
    """Whether a ``with`` block of a range is being executed: Python keeps the method that ends it."""
    return any(type(holder) is MethodType and holder.__name__ == "__exit__" for holder in gc.get_referrers(range_))
