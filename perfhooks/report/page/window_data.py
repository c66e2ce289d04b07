"""The summary of one window of one rank, some tens of kilobytes of JSON."""

from __future__ import annotations

import logging
from collections import defaultdict
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl

from perfhooks.analysis import findings
from perfhooks.analysis import flames as tree
from perfhooks.analysis.findings import data, frameworks
from perfhooks.core import json_values, labels
from perfhooks.core.labels import STEP_MARK
from perfhooks.report.page import compiled_rows, device_rows, limit_sentences, operator_rows, roofline
from perfhooks.report.page.data import WINDOW_FORMAT
from perfhooks.report.page.headline import is_device_missing, other_kinds, summary
from perfhooks.run.loader import workers
from perfhooks.trace.kinds import Kind, classify
from perfhooks.trace.limits import rates
from perfhooks.trace.names import part_names, step_kinds
from perfhooks.trace.nesting import intervals, parts
from perfhooks.trace.tables import counters, memory, modules

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

_ROWS: Final = 80
_RATES: Final = tuple(rates.COLUMNS)
"""Columns of rates and limits. Only the tables of operators and kernels contain them, to keep the report small."""
_ON_DEVICE: Final = ("kernel", "copy", "set", "device_annotation")

_log = logging.getLogger("perfhooks")


def reduce(capture: Capture, trace: Trace) -> dict[str, Any]:
    """Reduce a window to `perfhooks.report.page.data.WindowData`. Errors of omitted parts are in ``problems``."""
    parts: dict[str, Any] = {
        "format": WINDOW_FORMAT,
        "rank": capture.rank,
        "stage": capture.stage,
        "events": len(trace),
    }
    problems = []
    for name, reduce_part in _PARTS.items():
        try:
            parts |= {name: value} if (value := reduce_part(capture, trace)) else {}
        except Exception as error:  # noqa: BLE001 -- the report is useful without one part
            problems.append(f"{name}: {type(error).__name__}: {error}")
            _log.debug("The report has no %s.", name, exc_info=True)
    return parts | ({"problems": problems} if problems else {})


def _subject(capture: Capture, trace: Trace) -> dict[str, Any]:
    devices = trace.metadata.get("deviceProperties")
    has_frames = any(classify(category) == Kind.PYTHON for category in trace.categories)
    names = [device.get("name") for device in devices if isinstance(device, dict)] if isinstance(devices, list) else []
    return json_values.facts(
        {
            "model": modules.model(trace, capture.tables(trace).modules),
            "device": next((json_values.text(str(name)) for name in names if name), None),
            "device_traced": trace.is_device_traced,
            "world_size": _world_size(trace.metadata.get("distributedInfo")),
            "python_frames": has_frames,
            "stacks_by": None if has_frames else frameworks.stacks(capture.circumstances),
        }
    )


def _world_size(job: object) -> int | None:
    size = job.get("world_size") if isinstance(job, dict) else None
    return size if type(size) is int and 0 < size < 2**31 else None


def _steps(capture: Capture, trace: Trace) -> dict[str, Any]:
    table = capture.tables(trace).steps
    is_usual = step_kinds.usual(table)
    usual = table.filter(pl.Series(is_usual, dtype=pl.Boolean))
    return {
        "rows": json_values.columns(table.drop("rank", "stage"), 3 * _ROWS),
        "count": table.height,
        "median_ms": json_values.number(table["wall_ms"].median()),
        "kinds": step_kinds.kinds(table)[: 3 * _ROWS],
        "is_usual": is_usual.tolist()[: 3 * _ROWS],
        "usual_steps": step_kinds.described(table),
        "usual": {name: json_values.number(value) for name, value in summary(usual).items()},
        "others": other_kinds(table),
        "headline": capture.headline,
        **({"without_steps": True} if capture.is_without_steps else {}),
        **({"is_part": True} if capture.is_part else {}),
        **({"no_device_data": True} if is_device_missing(trace) else {}),
    }


def _largest_functions(capture: Capture, trace: Trace) -> dict[str, str]:
    """Return functions that take at least half of a part, except ``forward`` and callers of backward or optimizer."""
    window = findings.Evidence(capture, trace)
    by_part = parts.of_thread(trace, window.thread)
    other = intervals.subtract(window.windows, intervals.joined(*by_part.values()))
    updates = intervals.joined(by_part[labels.BACKWARD], by_part[labels.OPTIMIZER])
    loops = {name for name, _ in window.own_time_in(updates)}
    results = {}
    for part, moments in ((labels.FORWARD, by_part[labels.FORWARD]), (labels.OTHER, other)):
        totals: defaultdict[str, float] = defaultdict(float)
        for function, ms in window.own_time_in(moments):
            totals[function] += ms
        name, own_ms = max(totals.items(), key=itemgetter(1), default=("", 0.0))
        location = findings.location_of(name) or findings.SourceLocation()
        if name not in loops and own_ms >= window.per_step(moments) / 2 and location.function not in (None, "forward"):
            results[part] = str(location)
    return results


def _operators(capture: Capture, trace: Trace) -> dict[str, json_values.Columns]:
    groups: dict[str, tuple[str, ...]] = {"name": ()}
    groups |= {"shapes": ("shapes",)} if "dims" in trace.arguments else {}
    groups |= {"step": ("step",)}
    tables = {name: _costliest(capture.tables(trace).operators(by)) for name, by in groups.items()}
    return {
        name: json_values.columns(table.drop(*_RATES) if name == "step" else _round_rates(table))
        for name, table in tables.items()
    }


def _round_rates(table: pl.DataFrame) -> pl.DataFrame:
    numbers = pl.col("tflops_per_s", "gb_per_s", "limit_percent").round_sig_figs(3)
    return table.with_columns(numbers).drop("flops_per_byte")


def _costliest(table: pl.DataFrame) -> pl.DataFrame:
    rows = _on_host(table)
    return _with_readable_names(pl.concat([rows.head(_ROWS), _by_device(rows)]).unique(maintain_order=True))


def _on_host(table: pl.DataFrame) -> pl.DataFrame:
    return table.filter(~pl.col("kind").is_in(_ON_DEVICE) & ~pl.col("name").str.starts_with(STEP_MARK[:-1]))


def _with_readable_names(table: pl.DataFrame) -> pl.DataFrame:
    names = [name and part_names.readable(name) for name in table["name"]]
    return table.with_columns(pl.Series("name", names, dtype=pl.String))


def _by_device(table: pl.DataFrame) -> pl.DataFrame:
    return (
        table.drop_nulls("self_device_ms").sort("self_device_ms", descending=True, maintain_order=True).head(_ROWS // 2)
    )


def _behind_operators(capture: Capture, trace: Trace) -> json_values.Columns:
    tables = capture.tables(trace)
    rows = _on_host(tables.operators())
    shown = pl.concat([rows.head(_ROWS // 2), _by_device(rows)]).unique("name", maintain_order=True)
    return operator_rows.behind(tables, shown["name"].to_list(), has_shapes="dims" in trace.arguments)


def _labels(capture: Capture, trace: Trace) -> json_values.Columns:
    table = capture.tables(trace).labels
    return json_values.columns(_with_readable_names(table), _ROWS) if table["own"].any() else {}


def _functions(capture: Capture, trace: Trace) -> dict[str, Any]:
    table = capture.tables(trace).functions
    if not table.height:
        return {}
    costly = pl.concat(
        [table.head(_ROWS), table.sort("total_ms", descending=True, maintain_order=True).head(_ROWS // 2)]
    )
    return {"rows": json_values.columns(costly.unique(maintain_order=True)), "count": table.height}


def _workers(capture: Capture, trace: Trace) -> json_values.Columns:
    del trace
    sampled = capture.circumstances.workers
    return json_values.columns(pl.DataFrame(workers.rows(sampled)), _ROWS // 2) if sampled else {}


def _loader_use(capture: Capture, trace: Trace) -> dict[str, Any]:
    use = data.LoaderUse.of(findings.Evidence(capture, trace))
    return msgspec.to_builtins(use) if use.fetch_ms or use.data_ms else {}


def _kernels(capture: Capture, trace: Trace) -> dict[str, Any]:
    table = capture.tables(trace).kernels
    if not table.height:
        return {}
    shares = (
        table.group_by("class")
        .agg(pl.col("total_ms", "count").sum())
        .sort("total_ms", descending=True, maintain_order=True)
    )
    rows = json_values.columns(_round_rates(table.head(_ROWS)))
    return {"rows": rows, "count": table.height, "classes": json_values.columns(shares)}


def _modules(capture: Capture, trace: Trace) -> dict[str, Any]:
    table = capture.tables(trace).modules
    if not table.height:
        return {}
    cost = pl.sum_horizontal(pl.col("^(forward|backward)(_device)?_ms$"))
    least = table.select(cost.top_k(min(3 * _ROWS, table.height)).min()).item()
    return {
        "rows": json_values.columns(table.filter(cost >= least).drop("path", *_RATES), 4 * _ROWS),
        "count": table.height,
    }


def _memory(capture: Capture, trace: Trace) -> dict[str, Any]:
    if not len(trace.instants.time):
        return {}
    levels = memory.thinned(capture.tables(trace).memory, 360)
    return {
        "over_time": {
            str(device): json_values.columns(rows.drop("device"))
            for (device,), rows in levels.group_by("device", maintain_order=True)
        },
        "peak": json_values.columns(capture.tables(trace).memory_peak),
        "alive": json_values.columns(capture.tables(trace).alive_at_peak, _ROWS),
    }


def _counters(capture: Capture, trace: Trace) -> dict[str, Any]:
    chart = counters.over_time(trace, capture.tables(trace).counting, 200)
    if not chart.lanes:
        return {}
    lanes = [
        {
            "counter": json_values.text(lane.counter),
            "device": lane.device,
            "mean": [*map(json_values.number, lane.mean)],
        }
        for lane in chart.lanes[:12]
    ]
    times = {name: [*map(json_values.number, getattr(chart, name))] for name in ("begin_ms", "end_ms")}
    return {"parts": {"step": chart.step, **times}, "lanes": lanes, "count": len(chart.lanes)}


def _collectives(capture: Capture, trace: Trace) -> json_values.Columns:
    return _grouped(
        capture.tables(trace).collectives,
        ("operation", "backend", "group_description", "group_size", "dtype"),
        (
            *_COUNTED,
            _sum_known(pl.col("exposed_ms")),
            _sum_known(pl.col("bytes")),
            pl.col("bytes").median().alias("median_bytes"),
            pl.col("bus_gb_per_s").median(),
        ),
        _ROWS,
    )


def _copies(capture: Capture, trace: Trace) -> json_values.Columns:
    rate = (pl.col("bytes").sum() / pl.col("duration_ms").sum() / 1e6).alias("gb_per_s")
    keys = ("kind", "source", "target", "blocking", "operator")
    sums = (*_COUNTED, _sum_known(pl.col("bytes")), rate, _sum_known(pl.col("host_ms")))
    return _grouped(capture.tables(trace).copies, keys, sums)


def _synchronisations(capture: Capture, trace: Trace) -> json_values.Columns:
    sums = (_COUNTED[0], _sum_known(pl.col("host_ms")), _sum_known(pl.col("bytes")))
    return _grouped(capture.tables(trace).synchronisations, ("call", "operator", "line"), sums, by="host_ms")


_COUNTED: Final = (pl.len().alias("count"), pl.col("duration_ms").sum().alias("total_ms"))


def _grouped(
    table: pl.DataFrame, keys: Sequence[str], sums: Sequence[pl.Expr], limit: int = _ROWS // 2, by: str = "total_ms"
) -> json_values.Columns:
    groups = table.group_by(*keys, maintain_order=True).agg(*sums)
    return json_values.columns(groups.sort(by, descending=True, nulls_last=True, maintain_order=True), limit)


def _sum_known(column: pl.Expr) -> pl.Expr:
    return pl.when(column.count() > 0).then(column.sum())


def _findings(capture: Capture, trace: Trace) -> dict[str, Any]:
    evidence = findings.Evidence(capture, trace)
    rows = msgspec.json.decode(msgspec.json.encode(findings.run_rules(evidence)))
    accounted, step_ms = json_values.number(evidence.named_share), json_values.number(evidence.step_ms)
    return {"rows": rows, "accounted": accounted, "step_ms": step_ms}


_PARTS: Final[dict[str, Callable[[Capture, Trace], Any]]] = {
    "subject": _subject,
    "steps": _steps,
    "findings": _findings,
    "compiled": lambda capture, trace: compiled_rows.of_window(findings.Evidence(capture, trace)),
    "labels": _labels,
    "operators": _operators,
    "behind_operators": _behind_operators,
    "limits": limit_sentences.sentences,
    "roofline": roofline.of_window,
    "kernels": _kernels,
    "categories": lambda capture, trace: json_values.columns(capture.tables(trace).categories),
    "flames": tree.flames,
    "functions": _functions,
    "largest_functions": _largest_functions,
    "workers": _workers,
    "unseen_workers": lambda capture, _: data.missing_samples_text(capture.circumstances),
    "loader_use": _loader_use,
    "modules": _modules,
    "memory": _memory,
    "counters": _counters,
    "collectives": _collectives,
    "copies": _copies,
    "synchronisations": _synchronisations,
    "device": lambda capture, trace: device_rows.of_window(capture.tables(trace)),
    "gaps": lambda capture, trace: json_values.columns(_with_readable_names(capture.tables(trace).gaps)),
    "checks": lambda capture, trace: {"rows": json_values.columns(capture.tables(trace).checks, _ROWS)},
}
