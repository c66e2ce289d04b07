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

_LARGE: Final = 1000


def sentences(capture: Capture, trace: Trace) -> list[str]:
    """Return for example ``bmm at 50.8 to 66.5 TFLOP/s (24 to 32%).`` Most sentences need recorded shapes."""
    tables = capture.tables(trace)
    if capture.explains and not trace.is_device_traced:
        return []
    lines = [*_operator_speeds(tables.operators(("shapes",)), trace)]
    lines += [] if capture.explains else _device_use(tables, trace)
    return [*lines, *(_power_limit(capture, trace) if lines else ())]


def _power_limit(capture: Capture, trace: Trace) -> Iterator[str]:
    limit = capture.circumstances.power
    if limit is not None and limit.is_lowered and peaks.is_of_datasheet(trace):
        yield f"The power of the device is limited to {limit}: it cannot hold the peaks of its datasheet."


def _operator_speeds(table: pl.DataFrame, trace: Trace) -> Iterator[str]:
    time = "self_device_ms" if trace.is_device_traced else "exclusive_cpu_ms"
    total = float(device.own_times(trace).sum()) * MS if trace.is_device_traced else float(table[time].sum())
    rated = table.filter(pl.col("kind") == "op").filter(
        (pl.col(time) > 0) & (pl.col("tflops_per_s").is_not_null() | pl.col("gb_per_s").is_not_null())
    )
    of_names = rated.group_by("name", maintain_order=True).agg(pl.col(time).sum().alias("time"))
    named = of_names.sort("time", descending=True).filter(pl.col("time") >= 0.05 * total).head(4)
    phrases = []
    for name, operator_ms in named.iter_rows():
        rows = rated.filter((pl.col("name") == name) & (pl.col(time) >= 0.1 * operator_ms))
        if rows.height:
            phrases.append(f"{name.removeprefix(operators.NAMESPACE)} at {_speed(rows)}")
    if phrases:
        yield f"{', '.join(phrases)}."


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


def _device_use(tables: Tables, trace: Trace) -> Iterator[str]:
    usual = tables.steps.filter(pl.Series(step_kinds.usual(tables.steps), dtype=pl.Boolean))
    yield from _mfu(usual, trace)
    activity = counters.activity(tables.counters, usual["step"])
    if activity:
        shares = ", ".join(f"{name} {words.share(share / 100)}" for name, share in activity.items())
        yield f"Activity counters of the device over the same steps: {shares}."


def _mfu(usual: pl.DataFrame, trace: Trace) -> Iterator[str]:
    mfu, hfu, known = (usual[name].mean() for name in ("mfu_percent", "hfu_percent", "known_percent"))
    limits = peaks.of_trace(trace)
    if peaks.is_partial(trace):
        yield "The device is a part of a GPU with unknown limits: perfhooks doctor --peaks measures them."
    if not isinstance(mfu, float) or not isinstance(hfu, float) or limits is None:
        return
    recomputed = f", HFU {hfu:.3g}% with recomputation for gradients" if hfu > mfu else ""
    part = f"; known for {words.share(known / 100)} of the kernel time" if isinstance(known, float) else ""
    yield (
        f"MFU {mfu:.3g}%{recomputed}: at the dense peaks of {peaks.device(trace)[0]} ({limits.source}), matrix "
        "products, convolutions and attention would take this percentage of the step time (causal attention counts "
        f"as full attention{part})."
    )
