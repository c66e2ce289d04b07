"""The roofline of a window, as in Williams, Waterman and Patterson (2009)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from perfhooks.core import json_values
from perfhooks.trace.limits import peaks, rates
from perfhooks.trace.limits.datasheets import TYPES

if TYPE_CHECKING:
    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

_SHOWN: Final = ("flops_per_byte", "tflops_per_s", "limit_percent")


def of_window(capture: Capture, trace: Trace) -> dict[str, Any]:
    """Return the points and roofs; empty if shapes or the peaks of the device are unknown.

    ``ms`` is self time on the device, or on the host if no device was traced. ``roofs`` are the peaks of each data
    type, in 10^12 operations per second.
    """
    limits = peaks.of_trace(trace)
    if limits is None or "dims" not in trace.arguments or (capture.explains and not trace.is_device_traced):
        return {}
    time = "self_device_ms" if trace.is_device_traced else "exclusive_cpu_ms"
    table = capture.tables(trace).operators(("shapes",))
    is_rated = pl.all_horizontal(pl.col(time) > 0, *(pl.col(name).is_not_null() for name in _SHOWN))
    points = table.filter(pl.col("kind") == "op").filter(is_rated).sort(time, descending=True).head(60)
    calls = rates.calls(trace)
    types = [TYPES[number] for number in np.unique(calls.type[(calls.time > 0) & (calls.type >= 0)]).tolist()]
    roofs = {name: limits.tflops[name] for name in types if name in limits.tflops}
    if not points.height or not roofs:
        return {}
    shown = points.select("name", "input_shapes", pl.col(time).alias("ms"), *_SHOWN)
    return {
        "points": json_values.columns(shown.with_columns(pl.col("ms", *_SHOWN).round_sig_figs(4))),
        "roofs": roofs,
        "gb_per_s": limits.gb_per_s,
        "device": peaks.device(trace)[0],
        "source": limits.source,
    }
