"""Where the step time goes: in one line, and in one number a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    import polars as pl

_PHRASES: Final = {
    "data_ms": "waiting for data",
    "transfer_ms": "transfer",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
    "validation_ms": "validation",
    "checkpoint_ms": "checkpointing",
}
_NAMED = 3
_WORTH_NAMING = 0.05


def headline(table: pl.DataFrame) -> str:
    """Say what a step takes and what it takes it for: the largest named parts, from 5% of the time on.

    Args:
        table: A step table.

    Returns:
        For instance ``steps 12-14: 412 ms each, 61% waiting for data, device busy 22%``; the step time is the median,
        the shares are of all the steps' time. Empty if the table has no numbered steps.
    """
    steps = table["step"].drop_nulls()
    wall = float(table["wall_ms"].sum())
    if not len(steps) or wall <= 0:
        return ""
    sums = {phrase: float(table[column].sum() or 0) / wall for column, phrase in _PHRASES.items()}
    named = sorted((share, phrase) for phrase, share in sums.items() if share >= _WORTH_NAMING)[: -_NAMED - 1 : -1]
    parts = [f"{share:.0%} {phrase}" for share, phrase in named]
    if "busy_ms" in table.columns and table["busy_ms"].null_count() < table.height:
        parts.append(f"device busy {float(table['busy_ms'].sum()) / wall:.0%}")
    first, last = min(steps), max(steps)
    span = f"step {first}" if first == last else f"steps {first}-{last}"
    each = "" if first == last else " each"
    return ", ".join([f"{span}: {_milliseconds(float(np.median(table['wall_ms'])))}{each}", *parts])


def summary(table: pl.DataFrame) -> dict[str, float]:
    """One number for each measured column of a step table: the mean over its steps.

    Args:
        table: A step table.

    Returns:
        The means, by column; ``busy_share`` is the share of the steps' time in which a device was busy.
    """
    measured = [name for name, kind in table.schema.items() if kind.is_numeric() and name not in ("rank", "step")]
    known = [name for name in measured if table[name].null_count() < table.height]
    found = {name: float(np.mean(table[name].drop_nulls().to_numpy())) for name in known}
    if "busy_ms" in found and found["wall_ms"] > 0:
        found["busy_share"] = found["busy_ms"] / found["wall_ms"]
    return found


def _milliseconds(value: float) -> str:
    return f"{value:.0f} ms" if value >= 10 else f"{value:.2g} ms"  # noqa: PLR2004 -- two digits are enough
