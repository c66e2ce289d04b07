from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.core import labels, words
from perfhooks.core.statistics import OUTLIER, is_near

if TYPE_CHECKING:
    import polars as pl

    from perfhooks.trace.nesting.intervals import Flags

KINDS: Final = (labels.VALIDATION, labels.CHECKPOINT)
_COLUMNS: Final = tuple(f"{kind}_ms" for kind in KINDS)


def kinds(table: pl.DataFrame) -> list[str]:
    """Return the kind of each step: ``validation``, ``checkpoint``, or an empty text.

    A validation or checkpoint that all steps contain does not count.
    """
    columns = zip(KINDS, map(table.get_column, _COLUMNS), strict=True)
    parts = {kind: [part_ms or 0 for part_ms in column.to_list()] for kind, column in columns}
    rare = {kind: part_ms for kind, part_ms in parts.items() if any(part_ms) and not all(part_ms)}
    largest = [
        max(((part_ms[step], kind) for kind, part_ms in rare.items()), default=(0, "")) for step in range(table.height)
    ]
    return [kind if part_ms > 0 else "" for part_ms, kind in largest]


def most_common(names: list[str]) -> str:
    return max(("", *KINDS), key=names.count)


def usual(table: pl.DataFrame) -> Flags:
    """Return which steps count in mean values: steps of the most common kind, without outliers.

    Steps with unknown device times are excluded if the device times of other steps are known, so that all means use the
    same steps.
    """
    names = kinds(table)
    common = most_common(names)
    is_usual: Flags = np.array([kind == common for kind in names], np.bool_)
    wall, is_later = table["wall_ms"].to_numpy(), is_usual & (table["step"].fill_null(-1) != 0).to_numpy()
    if is_later.any() and wall[is_usual][0] > OUTLIER * np.median(wall[is_later]):
        is_usual = is_later
    is_usual[is_usual] = is_near(wall[is_usual])
    has_device_times: Flags = is_usual & _has_device_times(table)
    return has_device_times if has_device_times.any() else is_usual


def described(table: pl.DataFrame) -> str:
    """Return the numbers of the `usual` steps, for example ``steps 10-14 without 12``; empty without numbers."""
    recorded = table["step"].drop_nulls().to_list()
    if len(recorded) < table.height or not recorded:
        return ""
    return words.steps_of_mean([*itertools.compress(recorded, usual(table))], recorded)


def _has_device_times(table: pl.DataFrame) -> Flags:
    busy = table.get_column("device_busy_ms", default=None)
    return np.zeros(table.height, np.bool_) if busy is None else ~np.isnan(busy.to_numpy())
