"""What recorders of some releases got wrong, put right before anything is computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.kinds import DEVICE_WORK, Kind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.trace.model import Column, Ints

_ALIASED_SHARE: Final = 0.9


def forget_aliased_external_ids(kind: Column, arguments: dict[str, tuple[Ints, Column]]) -> None:
    """Drop the external ids of device work and its launches where they are their own correlations.

    So it was until about torch 2.0; taken for what they claim to be, they hit unrelated operators.
    """
    empty = np.empty(0, np.int64)
    rows, values = arguments.get("external", (empty, empty))
    correlation = np.full(len(kind), -1, np.int64)
    known, numbers = arguments.get("correlation", (empty, empty))
    correlation[known] = numbers
    launches = (kind[rows] == Kind.RUNTIME) & (correlation[rows] > 0)
    if launches.any() and (values == correlation[rows])[launches].mean() >= _ALIASED_SHARE:
        kept = ~np.isin(kind[rows], (Kind.RUNTIME, *DEVICE_WORK))
        arguments["external"] = (rows[kept], values[kept])


def rejoin_python_frames(kind: Column, thread: Column, threads: Sequence[tuple[object, ...]]) -> Column:
    """Bring the Python frames of the main thread back to it; some releases put them on process 0, thread 0."""
    frames = kind == Kind.PYTHON
    calls = np.isin(kind, (Kind.OP, Kind.ANNOTATION))
    homeless = [number for number in np.unique(thread[frames]) if threads[number][1:] == (0, 0)]
    if not homeless or not calls.any() or (thread[calls] == homeless[0]).any():
        return thread
    home = np.bincount(thread[calls]).argmax()
    if (thread[frames] == home).any():
        return thread
    return np.where(frames & (thread == homeless[0]), home, thread).astype(thread.dtype)
