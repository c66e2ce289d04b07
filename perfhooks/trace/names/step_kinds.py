"""Steps that differ in kind: those that validate or save a checkpoint are apart from those that only train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core import labels
from perfhooks.core.statistics import OUTLIER, is_near

if TYPE_CHECKING:
    import polars as pl

    from perfhooks.trace.nesting.intervals import Flags

KINDS: Final = (labels.VALIDATION, labels.CHECKPOINT)
"""The parts that make a step one of another kind."""
_COLUMNS: Final = tuple(f"{kind}_ms" for kind in KINDS)


def kinds(table: pl.DataFrame) -> list[str]:
    """Return the kind of each step of a step table: ``validation``, ``checkpoint``, or nothing for all other steps.

    A part that all steps have makes no kind, however much of a step it is.

    Args:
        table: The result of `perfhooks.trace.tables.steps.table`.
    """
    parts = {kind: table[column].fill_null(0).to_list() for kind, column in zip(KINDS, _COLUMNS, strict=True)}
    rare = {kind: spent for kind, spent in parts.items() if any(spent) and not all(spent)}
    largest = [
        max(((spent[step], kind) for kind, spent in rare.items()), default=(0, "")) for step in range(table.height)
    ]
    return [kind if spent > 0 else "" for spent, kind in largest]


def most_common(names: list[str]) -> str:
    """Return the kind that most steps have."""
    return max(("", *KINDS), key=names.count)


def usual(table: pl.DataFrame) -> Flags:
    """Return which steps are of the most common kind, without outliers.

    The first step of a program is one if it is far from the median of the others: it imports, and compiles.
    """
    names = kinds(table)
    common = most_common(names)
    found: Flags = np.array([kind == common for kind in names], np.bool_)
    wall, others = table["wall_ms"].to_numpy(), found & (table["step"].fill_null(-1) != 0).to_numpy()
    if others.any() and wall[found][0] > OUTLIER * np.median(wall[others]):
        found = others
    found[found] = is_near(wall[found])
    return found
