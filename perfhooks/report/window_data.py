"""One window of one rank as data: what the page needs of a trace, as plain JSON of some tens of kilobytes."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from perfhooks import findings
from perfhooks.handlers.tables import step_rows
from perfhooks.report import json_values as plain
from perfhooks.report import tree
from perfhooks.report.headline import headline, summary
from perfhooks.trace import checks, collectives, copies, kernels, memory, modules, operators, stacks, synchronisations

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

FORMAT: Final = 1
"""Of a window's page data. 1: the first."""

_ROWS: Final = 80
_STEPS: Final = 240
_SAMPLES: Final = 360
"""Points of memory over time, for each device."""
_ON_DEVICE: Final = ("kernel", "copy", "set", "device_annotation")

_log = logging.getLogger("perfhooks")


def reduce(capture: Capture, trace: Trace) -> dict[str, Any]:
    """Reduce one window of one rank to what the page shows of it.

    A part that fails is left out and named under ``problems``; it costs no other part.

    Args:
        capture: The facts of the window.
        trace: Its trace.

    Returns:
        Plain data; tables are columns, as `plain.columns` makes them. What the trace does not show is absent.
    """
    made: dict[str, Any] = {"format": FORMAT, "rank": capture.rank, "stage": capture.stage, "events": len(trace)}
    problems = []
    for name, part in _PARTS.items():
        try:
            made |= {name: value} if (value := part(capture, trace)) else {}
        except Exception as error:  # noqa: BLE001 -- the page is worth having without any one part
            problems.append(f"{name}: {type(error).__name__}: {error}")
            _log.debug("the page lacks %s", name, exc_info=True)
    return made | ({"problems": problems} if problems else {})


def _subject(_: Capture, trace: Trace) -> dict[str, Any]:
    """What was profiled, as far as the trace knows."""
    devices = trace.metadata.get("deviceProperties")
    names = [each.get("name") for each in devices if isinstance(each, dict)] if isinstance(devices, list) else []
    tops = modules.table(trace).filter(pl.col("depth") == 0)
    calls = tops.sort("forward_ms", descending=True)["name"].to_list()
    job = trace.metadata.get("distributedInfo")
    return plain.facts(
        {
            "model": calls[0].rpartition("_")[0] or calls[0] if calls else None,
            "device": next((plain.text(str(name)) for name in names if name), None),
            "device_traced": trace.is_device_traced,
            "world_size": job.get("world_size") if isinstance(job, dict) else None,
            "python_frames": any(name.endswith("python_function") for name in trace.categories),
        }
    )


def _steps(capture: Capture, trace: Trace) -> dict[str, Any]:
    table = step_rows(capture, trace)
    return {
        "rows": plain.columns(table.drop("rank", "stage"), _STEPS),
        "count": table.height,
        "mean": {name: plain.number(value) for name, value in summary(table).items()},
        "median_ms": plain.number(table["wall_ms"].median()),
        "spread_ms": [plain.number(table["wall_ms"].min()), plain.number(table["wall_ms"].max())],
        "headline": headline(table),
    }


def _operators(_: Capture, trace: Trace) -> dict[str, plain.Columns]:
    groups: dict[str, tuple[str, ...]] = {"name": ()}
    groups |= {"shapes": ("shapes",)} if "dims" in trace.arguments else {}
    groups |= {"step": ("step",)}
    return {name: _costliest(operators.table(trace, by)) for name, by in groups.items()}


def _costliest(table: pl.DataFrame) -> plain.Columns:
    """The rows that cost most, on the host or on devices; work of devices by itself has a table of its own."""
    ours = table.filter(~pl.col("kind").is_in(_ON_DEVICE))
    by_device = ours.sort("self_device_ms", descending=True, nulls_last=True).head(_ROWS // 2)
    return plain.columns(pl.concat([ours.head(_ROWS), by_device]).unique(maintain_order=True))


def _kernels(_: Capture, trace: Trace) -> dict[str, Any]:
    table = kernels.table(trace)
    if not table.height:
        return {}
    shares = table.group_by("class").agg(pl.col("total_ms", "count").sum()).sort("total_ms", descending=True)
    return {"rows": plain.columns(table, _ROWS), "count": table.height, "classes": plain.columns(shares)}


def _flames(_: Capture, trace: Trace) -> dict[str, Any]:
    found = {"host": tree.tree(stacks.folded(trace, "host"))}
    if trace.is_device_traced:
        found["device"] = tree.tree(stacks.folded(trace, "device"), leaves="kernel")
    return {name: flame for name, flame in found.items() if flame["value"][0]}


def _modules(_: Capture, trace: Trace) -> dict[str, Any]:
    table = modules.table(trace)
    if not table.height:
        return {}
    cost = pl.sum_horizontal(pl.col("^(forward|backward)_ms$"))
    # the tree, cut where it becomes small: what is above a costly module is costlier
    least = table.select(cost.top_k(min(3 * _ROWS, table.height)).min()).item()
    return {"rows": plain.columns(table.filter(cost >= least).drop("path"), 4 * _ROWS), "count": table.height}


def _memory(_: Capture, trace: Trace) -> dict[str, Any]:
    if not len(trace.instants.time):
        return {}
    levels = memory.thinned(memory.over_time(trace), _SAMPLES)
    return {
        "over_time": {str(device): plain.columns(rows.drop("device")) for (device,), rows in levels.group_by("device")},
        "peak": plain.columns(memory.peak(trace)),
        "alive": plain.columns(memory.alive_at_peak(trace), _ROWS),
    }


def _collectives(_: Capture, trace: Trace) -> plain.Columns:
    table = collectives.table(trace)
    keys = ("operation", "backend", "group_description", "group_size", "dtype")
    return plain.columns(
        table.group_by(*keys, maintain_order=True)
        .agg(
            pl.len().alias("count"),
            pl.col("duration_ms").sum().alias("total_ms"),
            _known(pl.col("exposed_ms")),
            _known(pl.col("bytes")),
            pl.col("bytes").median().alias("median_bytes"),
            pl.col("bus_gb_per_s").median(),
        )
        .sort("total_ms", descending=True),
        _ROWS,
    )


def _copies(_: Capture, trace: Trace) -> plain.Columns:
    keys = ("kind", "source", "target", "blocking", "operator")
    return plain.columns(
        copies.table(trace)
        .group_by(*keys, maintain_order=True)
        .agg(
            pl.len().alias("count"),
            pl.col("duration_ms").sum().alias("total_ms"),
            _known(pl.col("bytes")),
            (pl.col("bytes").sum() / pl.col("duration_ms").sum() / 1e6).alias("gb_per_s"),
        )
        .sort("total_ms", descending=True),
        _ROWS // 2,
    )


def _synchronisations(_: Capture, trace: Trace) -> plain.Columns:
    return plain.columns(
        synchronisations.table(trace)
        .group_by("call", "operator", "line", maintain_order=True)
        .agg(pl.len().alias("count"), _known(pl.col("host_ms")))
        .sort("host_ms", descending=True, nulls_last=True),
        _ROWS // 2,
    )


def _known(column: pl.Expr) -> pl.Expr:
    """The sum of what is known, null if nothing is."""
    return pl.when(column.count() > 0).then(column.sum())


def _checks(_: Capture, trace: Trace) -> dict[str, Any]:
    return {"rows": plain.columns(checks.table(trace), _ROWS)}


def _findings(capture: Capture, trace: Trace) -> dict[str, Any]:
    return {"rows": msgspec.json.decode(msgspec.json.encode(findings.find(capture, trace)))}


_PARTS: Final[dict[str, Callable[[Capture, Trace], Any]]] = {
    "subject": _subject,
    "steps": _steps,
    "findings": _findings,
    "operators": _operators,
    "kernels": _kernels,
    "flames": _flames,
    "modules": _modules,
    "memory": _memory,
    "collectives": _collectives,
    "copies": _copies,
    "synchronisations": _synchronisations,
    "checks": _checks,
}
