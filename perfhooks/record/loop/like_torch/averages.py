"""torch's operator table where Python stacks were recorded: the frames out of the self times, and into the groups.

Since torch 2.12 Python frames are children of labels and operators, so they would be subtracted from their self times
although the table does not show them. Stacks are made of those frames, too: torch has its own only with
``_ExperimentalConfig(verbose=True)``, with which a loop of small operators took 14 times as long.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from perfhooks.core.labels import ESCAPE, unescaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def unescape_names(events: Iterable[Any]) -> None:
    """Give events the names that their program wrote: labels are escaped while they are recorded."""
    for event in events:
        if ESCAPE in event.name:
            event.name = unescaped(event.name)


def give_stacks(events: Iterable[Any]) -> None:
    """Give each event without a stack the Python functions that it lies in, the innermost first, as in torch."""
    for event in events:
        event.stack = event.stack or [*_frames_around(event)]


@contextlib.contextmanager
def without_frames(events: Iterable[Any]) -> Iterator[None]:
    """Let no Python function count as what an event called: in its place there is what it called itself."""
    children = [(event, event.cpu_children) for event in events if any(map(_is_frame, event.cpu_children))]
    for event, inner in reversed(children):
        event.cpu_children = [*_but_frames(inner)]
    try:
        yield
    finally:
        for event, inner in children:
            event.cpu_children = inner


def _is_frame(event: Any) -> bool:
    """Whether an event of torch's is a Python function; before torch 2.12 none is."""
    return bool(getattr(event, "is_python_function", False))


def _but_frames(events: Iterable[Any]) -> Iterator[Any]:
    """Events, and in the place of Python functions what they called."""
    waiting = [*events][::-1]
    while waiting:
        event = waiting.pop()
        if _is_frame(event):
            waiting += event.cpu_children[::-1]
        else:
            yield event


def _frames_around(event: Any) -> Iterator[str]:
    while (event := event.cpu_parent) is not None:
        if _is_frame(event):
            yield event.name
