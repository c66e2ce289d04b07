from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from perfhooks.analysis.findings import compiled
from perfhooks.core import json_values

if TYPE_CHECKING:
    from perfhooks.analysis.findings import Evidence
    from perfhooks.run.compilation import Compilation

_SCHEMA: Final = {
    "function": pl.String,
    "graphs": pl.Int64,
    "recorded": pl.Int64,
    "operators": pl.Int64,
    **dict.fromkeys(("seconds", "tracing_s", "backend_s", "inductor_s"), pl.Float64),
    "reason": pl.String,
    "failed": pl.String,
}
_BREAKS: Final = {"line": pl.String, "within": pl.String, "reason": pl.String, "count": pl.Int64}


def functions(compilation: Compilation) -> pl.DataFrame:
    """Return the compiled functions, the longest compilation first. torch keeps the last 64 compilations.

    ``recorded`` is the number of graphs that were compiled in the window. ``seconds`` is the sum of the other time
    columns. ``reason`` is the last failed guard. A function with ``failed`` runs uncompiled.
    """
    rows = [
        {
            "function": graph.function or graph.id,
            "graphs": int(not graph.failed),
            "recorded": int(graph.is_recorded and not graph.failed),
            "operators": graph.operators,
            "seconds": graph.seconds,
            "tracing_s": graph.seconds - graph.backend_s,
            "backend_s": graph.backend_s - graph.inductor_s,
            "inductor_s": graph.inductor_s,
            "reason": graph.reason or None,
            "failed": graph.failed or None,
        }
        for graph in compilation.graphs
    ]
    last = (pl.col(name).drop_nulls().last() for name in ("operators", "reason", "failed"))
    sums = (pl.col(name).sum() for name in ("graphs", "recorded", "seconds", "tracing_s", "backend_s", "inductor_s"))
    table = pl.DataFrame(rows, schema=_SCHEMA).group_by("function", maintain_order=True).agg(*sums, *last)
    return table.select(*_SCHEMA).sort("seconds", descending=True, maintain_order=True)


def breaks(compilation: Compilation) -> pl.DataFrame:
    rows = [{name: getattr(graph_break, name) or None for name in _BREAKS} for graph_break in compilation.breaks]
    return pl.DataFrame(rows, schema=_BREAKS)


def of_window(seen: Evidence) -> dict[str, Any]:
    """Return compiled functions and graph breaks, with host and device time of compiled code per step."""
    compilation = seen.capture.compilation
    inside_ms = compiled.inside_ms(seen)
    if not compilation and not inside_ms:
        return {}
    has_device = seen.trace.is_device_traced
    return {
        "functions": json_values.columns(functions(compilation)),
        "breaks": json_values.columns(breaks(compilation)),
        "inside_ms": inside_ms,
        "step_ms": seen.mean("wall_ms"),
        "device_ms": seen.device_ms(seen.launched_by(compiled.inside(seen))) if has_device else None,
        "busy_ms": seen.mean("busy_ms") if has_device else None,
    }
