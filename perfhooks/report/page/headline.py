from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core import labels, words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges, step_kinds
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MOST, MS
from perfhooks.trace.tables import device_time, idle, operators, step_columns

if TYPE_CHECKING:
    from typing import Any

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.window import Tables

_ACTIVITIES: Final = {labels.VALIDATION: "it validates", labels.CHECKPOINT: "it saves a checkpoint"}
_COARSE: Final = ("forward", "validation")
"""Parts that can take a whole inference step. If one does, the headline names its largest operators."""
_TORCHS_OWN: Final = labels.STEP_MARK.rstrip("#")
_WITHOUT_NAME: Final = {*labels.AUTOMATIC.values(), *labels.PARTS}
_WHILE: Final = (
    *("while the host waits for it", "while the step waits for data", "while memory is allocated", "while compiling"),
    *("while graphs are captured", "while kernels are loaded", "while convolution algorithms are tried"),
    *("while garbage is collected", "while the host waits for other ranks", "while the step validates"),
    *("while a checkpoint is saved", "while operators run on the host", "while code between operators runs"),
    *(
        "in calls of the runtime",
        "while nothing was recorded",
        "in calls that launch",
        "while the launch queue is full",
    ),
    *("before launched work starts", "while launched work waits for another stream", "although work was launched"),
    *("inside graphs", "before work whose launch was not recorded"),
)
"""Texts about the causes of device idle time, in the order of `device_time.CAUSES`."""
_HOST_KINDS: Final = ("op", "annotation")
_WORTH_NAMING: Final = 0.05
_BEHIND: Final = 1.05
"""Minimum ratio of device work to host time for a headline with both times."""
_HALF: Final = 0.5
"""Above this busy fraction of the device, operators on the host mostly wait for the device."""
_FROM_START_TO_STOP: Final = "from start to stop, without steps"
_WHOLE: Final = "the whole recording"


def described(capture: Capture, trace: Trace) -> Capture:
    """Add the headline and the mean step times to the facts of a window."""
    steps = capture.tables(trace).steps
    usual = summary(steps.filter(pl.Series(step_kinds.usual(steps), dtype=pl.Boolean)))
    headline = of_window(capture, trace)
    return replace(
        capture, headline=headline, summary=summary(steps), usual=usual, usual_steps=step_kinds.described(steps)
    )


def of_window(capture: Capture, trace: Trace) -> str:
    tables = capture.tables(trace)
    unmarked = ""
    if capture.is_part:
        unmarked = f"a part of step {capture.first}"
    elif capture.is_without_steps or not tables.steps["step"].count():
        unmarked = _FROM_START_TO_STOP if capture.is_without_steps else _WHOLE
    extent = None if tables.steps["step"].count() else _extent(tables)
    why_idle = ", ".join(filter(None, (_only_copies(tables), _idle(tables, is_whole=extent is None))))
    return headline(tables.steps, _of_the_step(tables), why_idle, unmarked=unmarked, extent=extent)


class WorkExtent(NamedTuple):
    busy: float
    before_ms: float
    after_ms: float

    def __str__(self) -> str:
        idle = [(self.before_ms, "before"), (self.after_ms, "after")]
        outside = " and ".join(f"{words.ms(idle_ms)} {place}" for idle_ms, place in idle if idle_ms > 0)
        return f"device busy {words.share(self.busy)} between its first and last work, idle {outside}"


def _extent(tables: Tables) -> WorkExtent | None:
    if not tables.trace.is_device_traced or not tables.is_device_known:
        return None
    intervals, marks = idle.of_steps(tables.trace, tables.usual), tables.marks
    before, between, after = summed(intervals.place, intervals.length, len(device_time.PLACES)).tolist()
    wall = int((marks.end - marks.start)[tables.usual].sum())
    span = wall - before - after
    if before + after < _WORTH_NAMING * wall or span <= 0:
        return None
    return WorkExtent(1 - between / span, before * MS, after * MS)


def _only_copies(tables: Tables) -> str:
    is_known = tables.trace.is_device_traced and tables.is_device_known
    return "only copies" if is_known and not len(tables.trace.rows(Kind.KERNEL)) else ""


def _of_the_step(tables: Tables) -> pl.DataFrame:
    return operators.on_step_threads(tables.trace)


def _idle(tables: Tables, *, is_whole: bool) -> str:
    if not tables.trace.is_device_traced:
        return "the work of the device was not recorded" if is_device_missing(tables.trace) else ""
    if not tables.is_device_known:
        return ""
    intervals, marks = idle.of_steps(tables.trace, tables.usual), tables.marks
    outside = 0
    if not is_whole:
        between = intervals.place == device_time.PLACES.index("between")
        outside = int(intervals.length[~between].sum())
        intervals = device_time.Idle(*(column[between] for column in intervals))
    if not len(intervals.start):
        return ""
    by_cause = summed(intervals.cause, intervals.length, len(device_time.CAUSES))
    total, cause = int((marks.end - marks.start)[tables.usual].sum()), int(by_cause.argmax())
    total -= outside
    largest, phrase = int(by_cause[cause]), _WHILE[cause]
    if cause in idle.DONE and (holder := idle.holder(tables.trace, intervals, tables.owners)):
        phrase, largest = f"in {holder[0]}", holder[1]
    return f"idle {words.share(largest / total)} {phrase}" if largest >= _WORTH_NAMING * total else ""


def is_device_missing(trace: Trace) -> bool:
    return not trace.is_device_traced and bool(len(device.launch_calls(trace)))


def headline(
    table: pl.DataFrame,
    operators: pl.DataFrame | None = None,
    why_idle: str = "",
    *,
    unmarked: str = "",
    extent: WorkExtent | None = None,
) -> str:
    """Return the step time and its largest named parts, from 5% of the time on.

    * If the device limits the step, parts of the host are omitted, because the host mostly waits.
    * If one part of `_COARSE` is nearly the whole step, the largest operators are named.
    * If the launched device work is longer than the step, the time of the device work is added.
    * Numbers are means of the most common kind of steps (`perfhooks.trace.names.step_kinds`).
    * Steps with unknown device times are omitted, if other steps have known device times.

    For example ``steps 12-14: 412 ms, 61% waiting for data, device busy 22%``. The text is empty without numbered
    steps. ``unmarked`` is the name of the only row of a recording without steps.
    """
    steps = table["step"].drop_nulls()
    if unmarked and not table.height:
        return f"{unmarked}: no operator of torch was called"
    if not (unmarked or len(steps)) or float(table["wall_ms"].sum()) <= 0:
        return ""
    usual = table.filter(pl.Series(step_kinds.usual(table)))
    span, count = unmarked or step_kinds.described(table), words.count(table.height, "step")
    rare = [
        f"{words.ms(kind['wall_ms'])} if {_ACTIVITIES[kind['kind']]} ({kind['count']} of {count})"
        for kind in other_kinds(table)
    ]
    largest = [] if operators is None else _largest(usual, operators)
    return "; ".join([", ".join([f"{span}: {_step_time(usual)}", *_shares(usual, largest, why_idle, extent)]), *rare])


def other_kinds(table: pl.DataFrame) -> list[dict[str, Any]]:
    names = step_kinds.kinds(table)
    rare = table.with_columns(pl.Series("kind", names, dtype=pl.String))
    rare = rare.filter(~pl.col("kind").is_in(["", step_kinds.most_common(names)]))
    groups = rare.group_by("kind", maintain_order=True)
    return groups.agg(pl.len().alias("count"), pl.col("wall_ms").mean()).to_dicts()


def summary(table: pl.DataFrame) -> dict[str, float]:
    measured = [name for name, kind in table.schema.items() if kind.is_numeric() and name not in ("rank", "step")]
    names = [name for name in measured if table[name].null_count() < table.height]
    means = {name: float(np.mean(step_columns.known(table[name]))) for name in names}
    share = busy_share(table)
    return means if share is None else means | {"busy_share": share}


def busy_share(table: pl.DataFrame) -> float | None:
    if "device_busy_ms" not in table.columns or table["device_busy_ms"].null_count() == table.height:
        return None
    rows = table.filter(table["device_busy_ms"].is_not_null())
    wall = float(rows["wall_ms"].sum())
    return float(rows["device_busy_ms"].sum()) / wall if wall else None


def _step_time(table: pl.DataFrame) -> str:
    mean, work_ms = float(table["wall_ms"].to_numpy().mean()), _device_work_ms(table)
    work = f" on the host and {words.ms(work_ms)} on the device" if work_ms > _BEHIND * mean else ""
    return f"{words.ms(mean)}{work}"


def _device_work_ms(table: pl.DataFrame) -> float:
    return float(table["busy_ms"].fill_null(0).sum()) / table.height if "busy_ms" in table.columns else 0.0


def _largest(table: pl.DataFrame, operators: pl.DataFrame) -> list[str]:
    is_in = pl.col("step").is_in(table["step"].drop_nulls().to_list()) | pl.lit(table["step"].null_count() > 0)
    named = operators.filter(is_in & pl.col("kind").is_in(_HOST_KINDS) & ~pl.col("name").is_in(_WITHOUT_NAME))
    named = named.filter(~pl.col("name").str.starts_with(_TORCHS_OWN))
    is_compiled = pl.col("name").str.contains(ranges.COMPILED)
    named = named.with_columns(pl.when(is_compiled).then(pl.lit("compiled code")).otherwise("name").alias("name"))
    wall = float(table["wall_ms"].sum())
    sums = named.group_by("name", "kind").agg(pl.col("self_cpu_ms").sum() / wall).sort("self_cpu_ms", "name")[::-1]
    outside = 1 - float(sums["self_cpu_ms"].sum())
    if outside < 0:
        return []  # operators of parallel threads sum to more than the step
    rows = sorted([*sums.iter_rows(), ("outside of operators", "", outside)], key=lambda row: -row[2])[:2]
    where = {"annotation": " outside of its operators"}
    return [
        f"{words.share(part)} {name[:60]}{where.get(kind, '')}" for name, kind, part in rows if part >= _WORTH_NAMING
    ]


def _shares(table: pl.DataFrame, largest: list[str], why_idle: str, extent: WorkExtent | None) -> list[str]:
    wall = float(table["wall_ms"].sum())
    shares = {part: float(table[f"{part}_ms"].sum() or 0) / wall for part in labels.PARTS} if wall else {}
    parts_by_share = ((share, labels.PHRASES[part]) for part, share in shares.items() if share >= _WORTH_NAMING)
    named = sorted(parts_by_share, reverse=True)[:3]
    busy = extent.busy if extent else busy_share(table)
    if (busy or 0.0) >= MOST or _device_work_ms(table) > _BEHIND * wall / max(table.height, 1):
        named, largest = [], []
    parts = [f"{words.share(part)} {phrase}" for part, phrase in named]
    if largest and named and named[0][0] >= MOST and named[0][1] in _COARSE:
        parts[0] += f" ({', '.join(largest)})"
    largest = largest if (busy or 0.0) < _HALF else []
    of_device = str(extent or "") if extent or busy is None else f"device busy {words.share(busy)}"
    return [*(parts or largest), *filter(None, (of_device, _only_communicating(table), why_idle))]


def _only_communicating(table: pl.DataFrame) -> str:
    if "device_busy_ms" in table.columns and busy_share(table) is None:
        return ""
    exposed_ms = float(table["exposed_comm_ms"].sum() or 0) if "exposed_comm_ms" in table.columns else 0.0
    share = exposed_ms / max(float(table["wall_ms"].sum()), _device_work_ms(table) * table.height)
    return f"only communicating {words.share(share)}" if share >= _WORTH_NAMING else ""
