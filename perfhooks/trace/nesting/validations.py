"""What belongs to a validation, and what to training: fetches and copies do not say so by themselves."""

from __future__ import annotations

from itertools import islice
from typing import Final

from perfhooks.core import labels

_CALLS: Final = (labels.FORWARD, labels.VALIDATION)
LOSS: Final = "loss"
"""What a loss is called among the marks; it is no part of a step."""
WRITTEN: Final = -1
"""The group of marks that somebody wrote, which stay what they are."""


def told(parts: list[str], groups: list[int]) -> list[str]:
    """Say again what the marks of one thread are, given the order in which they begin.

    * A call in evaluation mode without gradients is a validation if it belongs to a batch of a loader, or a loss is
      computed from it, and no backward pass follows. Any other call is a part of the forward pass: a teacher, a
      reference model, a target network, a rollout, a sample.
    * A fetch or a copy belongs to the call that follows. The last fetch of a validation, which finds no batch, has no
      such call: it is the first of several fetches after it.

    Args:
        parts: what each mark seems to be.
        groups: where it came from; negative for what somebody wrote.
    """
    meant = _teachers(parts, groups)
    following: str | None = None
    fetched = False
    for place in range(len(meant) - 1, -1, -1):
        part = meant[place]
        if part in _CALLS:
            following, fetched = part, False
        elif part in (labels.DATA, labels.TRANSFER) and groups[place] != WRITTEN:
            ended = part == labels.DATA and fetched and _before(meant, place) == labels.VALIDATION
            if ended or following == labels.VALIDATION:
                meant[place] = labels.VALIDATION
        fetched |= part == labels.DATA
    return meant


def _before(parts: list[str], place: int) -> str | None:
    """The call before a mark, if no fetch lies between."""
    earlier = (parts[index] for index in range(place - 1, -1, -1))
    return next((part for part in earlier if part in (*_CALLS, labels.DATA)), None)


def _teachers(parts: list[str], groups: list[int]) -> list[str]:
    """Return the marks, with calls that validate nothing as part of the forward pass."""
    meant = list(parts)
    fetched = fetched_since = False
    before: str | None = None
    for place, part in enumerate(parts):
        if part == LOSS:
            continue
        if part == labels.DATA:
            fetched = fetched_since = True
        elif part == labels.OPTIMIZER:
            fetched, before = False, part
        elif part == labels.VALIDATION and groups[place] != WRITTEN:
            runs = before == labels.VALIDATION and fetched_since
            has_source = fetched or _has_loss(parts, place)
            following = _next(parts, place) if fetched else _next(parts, place, labels.FORWARD)
            validates = runs or (has_source and following != labels.BACKWARD)
            meant[place] = part if validates else labels.FORWARD
        if part in (*_CALLS, labels.BACKWARD):
            before, fetched_since = meant[place], False
    return meant


def _has_loss(parts: list[str], place: int) -> bool:
    """Return whether a loss is the next mark, other than a transfer."""
    return next((part for part in islice(parts, place + 1, None) if part != labels.TRANSFER), None) == LOSS


def _next(parts: list[str], place: int, *more: str) -> str | None:
    """The first fetch, backward pass, update, or one of some more parts after a mark."""
    ends = (labels.DATA, labels.BACKWARD, labels.OPTIMIZER, *more)
    later = (parts[index] for index in range(place + 1, len(parts)))
    return next((part for part in later if part in ends), None)
