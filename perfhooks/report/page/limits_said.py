"""How far from the limit a window was, in sentences: its largest operators, and what share of the device it used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from perfhooks.core import words
from perfhooks.trace.limits import peaks
from perfhooks.trace.names import operators, step_kinds
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.window import Tables

_NAMED: Final = 4
_WORTH: Final = 0.05
"""Of the time of all work: an operator that takes less is not named."""
_SHAPE: Final = 0.1
"""Of the time of an operator: a shape that takes less is none of those between which it is said to lie."""
_LARGE: Final = 1000


def sentences(capture: Capture, trace: Trace) -> list[str]:
    """Say how fast the operators were that took most time, and what that is of the device; little without shapes.

    For instance ``_softmax at 787 GB/s (23% of its limit), bmm at 50.8 to 66.5 TFLOP/s (24 to 32%), addmm at 498 to 746
    TFLOP/s (50 to 75%).``

    Args:
        capture: The facts of the window.
        trace: What was recorded in it.
    """
    tables = capture.tables(trace)
    if capture.explains and not trace.is_device_traced:
        return []  # stacks make calls long
    said = [*_fastest(tables.operators(("shapes",)), trace), *([] if capture.explains else _used(tables, trace))]
    return [*said, *(_capped(capture, trace) if said else ())]


def _capped(capture: Capture, trace: Trace) -> Iterator[str]:
    """What was measured was measured under some limit, which the file of peaks says."""
    limit = capture.circumstances.power
    if limit is not None and limit.is_lowered and peaks.is_of_datasheet(trace):
        yield f"The power of the device is limited to {limit}: it cannot hold the peaks of its datasheet."


def _fastest(table: pl.DataFrame, trace: Trace) -> Iterator[str]:
    time = "self_device_ms" if trace.is_device_traced else "exclusive_cpu_ms"
    whole = float(device.own_times(trace).sum()) * MS if trace.is_device_traced else float(table[time].sum())
    rated = table.filter(pl.col("kind") == "op").filter(
        (pl.col(time) > 0) & (pl.col("tflops_per_s").is_not_null() | pl.col("gb_per_s").is_not_null())
    )
    of_names = rated.group_by("name", maintain_order=True).agg(pl.col(time).sum().alias("time"))
    named = of_names.sort("time", descending=True).filter(pl.col("time") >= _WORTH * whole).head(_NAMED)
    told = []
    for name, spent in named.iter_rows():
        rows = rated.filter((pl.col("name") == name) & (pl.col(time) >= _SHAPE * spent))
        if rows.height:
            told.append(f"{name.removeprefix(operators.NAMESPACE)} at {_speed(rows)}")
    if told:
        yield f"{', '.join(told)}."


def _speed(rows: pl.DataFrame) -> str:
    column, unit = ("tflops_per_s", "TFLOP/s") if rows["tflops_per_s"].null_count() == 0 else ("gb_per_s", "GB/s")
    speed = _range(
        rows[column].drop_nulls().to_list(), lambda value: f"{value:,.0f}" if value >= _LARGE else f"{value:.3g}"
    )
    share = rows["limit_percent"].drop_nulls().to_list()
    its = "its" if rows.height == 1 else "their"
    return f"{speed} {unit}" + (f" ({_range(share, '{:.0f}'.format)}% of {its} limit)" if share else "")


def _range(values: list[float], written: Callable[[float], str]) -> str:
    low, high = written(min(values)), written(max(values))
    return low if low == high else f"{low} to {high}"


def _used(tables: Tables, trace: Trace) -> Iterator[str]:
    usual = tables.steps.filter(pl.Series(step_kinds.usual(tables.steps), dtype=pl.Boolean))
    yield from _computed(usual, trace)
    sampled = counters.activity(tables.counters, usual["step"])
    if sampled:
        shares = ", ".join(f"{name} {words.share(share / 100)}" for name, share in sampled.items())
        yield f"Sampled by the device in the same steps, of their whole time: {shares}."


def _computed(usual: pl.DataFrame, trace: Trace) -> Iterator[str]:
    mfu, hfu, known = (usual[name].mean() for name in ("mfu_percent", "hfu_percent", "known_percent"))
    limits = peaks.of_trace(trace)
    if peaks.is_partial(trace):
        yield "The device is a part of one (MIG), whose limits are not known: perfhooks doctor --peaks measures them."
    if not isinstance(mfu, float) or not isinstance(hfu, float) or limits is None:
        return
    again = f", HFU {hfu:.3g}% with what is computed again for gradients" if hfu > mfu else ""
    part = f", known of {words.share(known / 100)} of the time of such kernels" if isinstance(known, float) else ""
    yield (
        f"MFU {mfu:.3g}%{again}: products, convolutions and attention (in full where causal{part}) at the dense peaks "
        f"of {peaks.device(trace)[0]} ({limits.source})."
    )
