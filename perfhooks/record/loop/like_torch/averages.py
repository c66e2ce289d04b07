"""Corrected self times and stack groups in torch's operator table of recordings with Python stacks.

Since torch 2.12 Python frames are children of labels and operators, so torch subtracts them from self times. torch's
own stacks need ``_ExperimentalConfig(verbose=True)``, which made a loop of small operators 14 times as slow.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from perfhooks.core.labels import ESCAPE, unescaped

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


def unescape_names(events: Iterable[Any]) -> None:
    for event in events:
        if ESCAPE in event.name:
            event.name = unescaped(event.name)


def give_stacks(events: Iterable[Any]) -> None:
    for event in events:
        event.stack = event.stack or [*_frames_around(event)]


@contextlib.contextmanager
def without_frames(events: Iterable[Any]) -> Iterator[None]:
    children = [(event, event.cpu_children) for event in events if any(map(_is_frame, event.cpu_children))]
    for event, inner in reversed(children):
        event.cpu_children = [*_but_frames(inner)]
    try:
        yield
    finally:
        for event, inner in children:
            event.cpu_children = inner


def _is_frame(event: Any) -> bool:
    return bool(getattr(event, "is_python_function", False))


def _but_frames(events: Iterable[Any]) -> Iterator[Any]:
    stack = [*events][::-1]
    while stack:
        event = stack.pop()
        if _is_frame(event):
            stack += event.cpu_children[::-1]
        else:
            yield event


def _frames_around(event: Any) -> Iterator[str]:
    while (event := event.cpu_parent) is not None:
        if _is_frame(event):
            yield event.name
