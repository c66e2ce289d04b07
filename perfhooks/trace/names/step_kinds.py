"""Steps that differ in kind: those that validate or save a checkpoint are apart from those that only train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks import labels

if TYPE_CHECKING:
    import polars as pl

    from perfhooks.trace.nesting.intervals import Flags

KINDS: Final = (labels.VALIDATION, labels.CHECKPOINT)
"""The parts that make a step one of another kind."""
_COLUMNS: Final = tuple(f"{kind}_ms" for kind in KINDS)
OTHERWISE: Final = 0.05
"""Of its time: a step that spends so much in one of these parts is of that kind."""


def kinds(table: pl.DataFrame) -> list[str]:
    """The kind of each step of a step table: ``validation``, ``checkpoint``, or nothing for all other steps.

    Args:
        table: what `perfhooks.trace.tables.steps.table` makes.
    """
    found = []
    for wall, *parts in zip(*(table[column].to_list() for column in ("wall_ms", *_COLUMNS)), strict=True):
        spent, kind = max((part or 0.0, kind) for part, kind in zip(parts, KINDS, strict=True))
        found.append(kind if spent > 0 and spent >= OTHERWISE * wall else "")
    return found


def usual(table: pl.DataFrame) -> Flags:
    """Which steps are of no other kind; all of them where none is."""
    found: Flags = np.array([not kind for kind in kinds(table)], np.bool_)
    return found if found.any() else ~found
