"""The roofline of a window: how fast its operators were for what they move, under what the device can do at most.

The model is that of Williams, Waterman and Patterson (2009): an operator that does few operations for each byte can be
no faster than memory brings the bytes, any other no faster than the device computes in its type.
"""

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

_POINTS: Final = 60
_SHOWN: Final = ("flops_per_byte", "tflops_per_s", "limit_percent")


def of_window(capture: Capture, trace: Trace) -> dict[str, Any]:
    """Say where each operator and shape lies; nothing where shapes or the peaks of the device are not known.

    ``points`` are the operators that took most time, of those whose operations and bytes are both known, with their own
    time in ``ms``: of the device, or of the host where none was traced. ``roofs`` are the peaks of the types that were
    computed in, in 10^12 operations a second, ``gb_per_s`` is that of memory.

    Args:
        capture: The facts of the window.
        trace: What was recorded in it.
    """
    limits = peaks.of_trace(trace)
    if limits is None or "dims" not in trace.arguments or (capture.explains and not trace.is_device_traced):
        return {}
    time = "self_device_ms" if trace.is_device_traced else "exclusive_cpu_ms"
    table = capture.tables(trace).operators(("shapes",))
    known = pl.all_horizontal(pl.col(time) > 0, *(pl.col(name).is_not_null() for name in _SHOWN))
    points = table.filter(pl.col("kind") == "op").filter(known).sort(time, descending=True).head(_POINTS)
    calls = rates.calls(trace)
    used = [TYPES[each] for each in np.unique(calls.type[(calls.time > 0) & (calls.type >= 0)]).tolist()]
    roofs = {name: limits.tflops[name] for name in used if name in limits.tflops}
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
