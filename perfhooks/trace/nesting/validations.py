"""Separation of validation from training, because fetches and copies occur in both."""

from __future__ import annotations

from itertools import islice
from typing import Final

from perfhooks.core import labels

_CALLS: Final = (labels.FORWARD, labels.VALIDATION)
LOSS: Final = "loss"
"""Marks a loss operator in the argument ``parts`` of `classify`."""
WRITTEN: Final = -1
"""Marks a label of the user in the argument ``groups`` of `classify`, which does not correct such labels."""


def classify(parts: list[str], groups: list[int]) -> list[str]:
    """Return the corrected part (training or validation) of each slice of one thread, sorted by start.

    * A model call in evaluation mode without gradients is a validation if no backward pass follows, and if the call
      uses a batch of a loader or computes a loss. Other model calls (a teacher, a rollout) belong to the forward pass.
    * A fetch or a copy belongs to the following model call. The last fetch of a validation returns no batch: if two
      fetches follow the last model call of a validation, the first fetch belongs to the validation.
    """
    corrected = _demote_inference_calls(parts, groups)
    following: str | None = None
    has_fetch = False
    for index in range(len(corrected) - 1, -1, -1):
        part = corrected[index]
        if part in _CALLS:
            following, has_fetch = part, False
        elif part in (labels.DATA, labels.TRANSFER) and groups[index] != WRITTEN:
            is_last_fetch = part == labels.DATA and has_fetch and _previous_call(corrected, index) == labels.VALIDATION
            if is_last_fetch or following == labels.VALIDATION:
                corrected[index] = labels.VALIDATION
        has_fetch |= part == labels.DATA
    return corrected


def _previous_call(parts: list[str], position: int) -> str | None:
    earlier = (parts[index] for index in range(position - 1, -1, -1))
    return next((part for part in earlier if part in (*_CALLS, labels.DATA)), None)


def _demote_inference_calls(parts: list[str], groups: list[int]) -> list[str]:
    corrected = list(parts)
    has_fetch = fetched_since = False
    previous: str | None = None
    for index, part in enumerate(parts):
        if part == LOSS:
            continue
        if part == labels.DATA:
            has_fetch = fetched_since = True
        elif part == labels.OPTIMIZER:
            has_fetch, previous = False, part
        elif part == labels.VALIDATION and groups[index] != WRITTEN:
            continues = previous == labels.VALIDATION and fetched_since
            has_source = has_fetch or _has_loss(parts, index)
            following = _next_event(parts, index) if has_fetch else _next_event(parts, index, labels.FORWARD)
            validates = continues or (has_source and following != labels.BACKWARD)
            corrected[index] = part if validates else labels.FORWARD
        if part in (*_CALLS, labels.BACKWARD):
            previous, fetched_since = corrected[index], False
    return corrected


def _has_loss(parts: list[str], index: int) -> bool:
    return next((part for part in islice(parts, index + 1, None) if part != labels.TRANSFER), None) == LOSS


def _next_event(parts: list[str], position: int, *more: str) -> str | None:
    ends = (labels.DATA, labels.BACKWARD, labels.OPTIMIZER, *more)
    later = (parts[index] for index in range(position + 1, len(parts)))
    return next((part for part in later if part in ends), None)
