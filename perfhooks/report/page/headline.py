"""Where the step time goes: in one line, and in one number a column."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.analysis.findings.finding import BOUND
from perfhooks.core import labels, words
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges, step_kinds
from perfhooks.trace.nesting import device
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.tables import device_time, idle, operators, step_columns

if TYPE_CHECKING:
    from typing import Any

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace
    from perfhooks.trace.window import Tables

_PHRASES: Final = {
    "data_ms": "waiting for data",
    "transfer_ms": "transfer",
    "forward_ms": "forward",
    "backward_ms": "backward",
    "optimizer_ms": "optimizer",
    "validation_ms": "validation",
    "checkpoint_ms": "checkpointing",
    "communication_ms": "communication",
}
_DOES: Final = {labels.VALIDATION: "it validates", labels.CHECKPOINT: "it saves a checkpoint"}
_NAMED: Final = 3
_NEARLY_ALL: Final = 0.8
"""A part of the step that says nothing by itself, as "forward" does of an inference: what is largest in it is named."""
_DULL: Final = ("forward", "validation")
_TORCHS_OWN: Final = labels.STEP_MARK.rstrip("#")
_WITHOUT_NAME: Final = {*labels.AUTOMATIC.values(), *labels.PARTS}
_WHILE: Final = (
    *("while the host waits for it", "while the step waits for data", "while memory is asked for", "while compiling"),
    *("while graphs are captured", "while kernels are loaded", "while convolutions are tried out"),
    *("while garbage is collected", "while the host waits for other ranks", "while the step validates"),
    *("while a checkpoint is saved", "while operators run on the host", "while code between operators runs"),
    *("in calls of the runtime", "while nothing was recorded", "in calls that launch", "behind a full queue"),
    *("before launched work starts", "while launched work waits for other work", "though work was launched"),
    *("inside graphs", "before work whose launch was not recorded"),
)
"""What is said of each of `device_time.CAUSES`."""
_HOST_KINDS: Final = ("op", "annotation")
_WORTH_NAMING: Final = 0.05
_BEHIND: Final = 1.05
"""Times what a step takes on the host: where a device works for longer on what each step launched, the host runs ahead
of it, and the steps are shorter than the training's (an RTX 3060: 2.4 ms on the host, 170 ms on the device)."""
_LONGEST: Final = 60
"""Letters of a name: a server's labels hold all that is in a batch."""
_HALF: Final = 0.5
"""Smallest share of the step in which the device works if the operators of the host are mostly waiting for it."""
_FROM_START_TO_STOP: Final = "from start to stop, without steps"
_WHOLE: Final = "the whole recording"


def of_window(capture: Capture, trace: Trace) -> str:
    """The line of a window: see `headline`; what is said beside it adds `perfhooks.run.capture.Capture.line`.

    Args:
        capture: The facts of the window.
        trace: What was recorded in it.
    """
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
    """Where the device worked in a recording without steps."""

    busy: float
    """Share of the time between its first and its last work in which it worked."""
    before_ms: float
    after_ms: float

    def __str__(self) -> str:
        idle = [(self.before_ms, "before"), (self.after_ms, "after")]
        spent = " and ".join(f"{words.ms(each)} {place}" for each, place in idle if each > 0)
        return f"device busy {words.share(self.busy)} between its first and last work, idle {spent}"


def _extent(tables: Tables) -> WorkExtent | None:
    """Return where the device worked; None if it is unknown, or if what lies before and after is not worth naming."""
    if not tables.trace.is_device_traced or not tables.is_device_known:
        return None
    found, marks = idle.of_steps(tables.trace, tables.usual), tables.marks
    before, between, after = summed(found.place, found.length, len(device_time.PLACES)).tolist()
    wall = int((marks.end - marks.start)[tables.usual].sum())
    span = wall - before - after
    if before + after < _WORTH_NAMING * wall or span <= 0:
        return None
    return WorkExtent(1 - between / span, before * MS, after * MS)


def _only_copies(tables: Tables) -> str:
    """Say so if the device copied and ran no kernel."""
    is_known = tables.trace.is_device_traced and tables.is_device_known
    return "only copies" if is_known and not len(tables.trace.rows(Kind.KERNEL)) else ""


def _of_the_step(tables: Tables) -> pl.DataFrame:
    """The operators and labels by step on the step's own thread: those of other threads are no share of it."""
    return operators.on_step_threads(tables.trace)


def _idle(tables: Tables, *, is_whole: bool) -> str:
    """Why the device idled for most of its idle time, from 5% of the steps on; or that its work was not recorded.

    Args:
        tables: Those of the window.
        is_whole: Whether idle time before the first and after the last work counts. If not, the share is of the time
            between them.
    """
    if not tables.trace.is_device_traced:
        return "the work of the device was not recorded" if is_device_missing(tables.trace) else ""
    if not tables.is_device_known:
        return ""
    found, marks = idle.of_steps(tables.trace, tables.usual), tables.marks
    outside = 0
    if not is_whole:
        between = found.place == device_time.PLACES.index("between")
        outside = int(found.length[~between].sum())
        found = device_time.Idle(*(each[between] for each in found))
    if not len(found.start):
        return ""
    spent = summed(found.cause, found.length, len(device_time.CAUSES))
    whole, cause = int((marks.end - marks.start)[tables.usual].sum()), int(spent.argmax())
    whole -= outside
    most, phrase = int(spent[cause]), _WHILE[cause]
    if cause in idle.DONE and (holder := idle.holder(tables.trace, found, tables.owners)):
        phrase, most = f"in {holder[0]}", holder[1]
    return f"idle {words.share(most / whole)} {phrase}" if most >= _WORTH_NAMING * whole else ""


def is_device_missing(trace: Trace) -> bool:
    """Return whether a trace has launches, but not the work that they launched."""
    return not trace.is_device_traced and bool(len(device.launch_calls(trace)))


def headline(
    table: pl.DataFrame,
    operators: pl.DataFrame | None = None,
    why_idle: str = "",
    *,
    unmarked: str = "",
    extent: WorkExtent | None = None,
) -> str:
    """Say what a step takes and what it takes it for: the largest named parts, from 5% of the time on.

    If the device decides how long a step takes, parts of the host are left out: most of their time is waiting.

    Where one part is nearly all of it, as the forward pass of an inference is, the operators and labels that take most
    time by themselves are named, on the host.

    Where a device worked for longer on what the steps launched than they took, what it worked is said beside it.

    Every number is of the same steps, and a mean: those that are of no other kind (`perfhooks.trace.names.step_kinds`).
    What steps of another kind take is said after them.

    Args:
        table: A step table.
        operators: The operators and labels by step.
        why_idle: What to say of the device's idle time.
        unmarked: The name of the one row of a recording without steps.
        extent: Where the device worked in that row, if that is not all of it.

    Returns:
        For instance ``steps 12-14: 412 ms, 61% waiting for data, device busy 22%,
        idle 60% while the step waits for data``, or ``steps 12-14: 150 ms,
        44% backward; 1.5 s if it validates (1 of 3)``. Empty if the table has no numbered steps.
    """
    steps = table["step"].drop_nulls()
    if unmarked and not table.height:
        return f"{unmarked}: no operator of torch was called"
    if not (unmarked or len(steps)) or float(table["wall_ms"].sum()) <= 0:
        return ""
    usual = known_steps(table.filter(pl.Series(step_kinds.usual(table))))
    span = unmarked or words.steps(min(steps), max(steps))
    others = [
        f"{words.ms(each['wall_ms'])} if {_DOES[each['kind']]} ({each['count']} of {table.height})"
        for each in other_kinds(table)
    ]
    largest = [] if operators is None else _largest(usual, operators)
    return "; ".join([", ".join([f"{span}: {_each(usual)}", *_shares(usual, largest, why_idle, extent)]), *others])


def other_kinds(table: pl.DataFrame) -> list[dict[str, Any]]:
    """What steps of another kind take, where there are usual ones too: ``kind``, ``count`` and mean ``wall_ms``."""
    names = step_kinds.kinds(table)
    rare = table.with_columns(pl.Series("kind", names, dtype=pl.String))
    rare = rare.filter(~pl.col("kind").is_in(["", step_kinds.most_common(names)]))
    groups = rare.group_by("kind", maintain_order=True)
    return groups.agg(pl.len().alias("count"), pl.col("wall_ms").mean()).to_dicts()


def summary(table: pl.DataFrame) -> dict[str, float]:
    """One number for each measured column of a step table: the mean over its steps.

    Args:
        table: A step table.

    Returns:
        The means, by column; ``busy_share`` is the share of the time in which a device was busy, see `busy_share`.
    """
    measured = [name for name, kind in table.schema.items() if kind.is_numeric() and name not in ("rank", "step")]
    known = [name for name in measured if table[name].null_count() < table.height]
    found = {name: float(np.mean(step_columns.known(table[name]))) for name in known}
    share = busy_share(table)
    return found if share is None else found | {"busy_share": share}


def known_steps(table: pl.DataFrame) -> pl.DataFrame:
    """Return the steps whose device times are known; all of them if none is."""
    known = table.filter(pl.col("device_busy_ms").is_not_null()) if "device_busy_ms" in table.columns else table
    return known if known.height else table


def busy_share(table: pl.DataFrame) -> float | None:
    """The share of the steps' time in which a device worked, for whomever; None where none was seen."""
    if "device_busy_ms" not in table.columns or table["device_busy_ms"].null_count() == table.height:
        return None
    known = table.filter(table["device_busy_ms"].is_not_null())
    whole = float(known["wall_ms"].sum())
    return float(known["device_busy_ms"].sum()) / whole if whole else None


def _each(table: pl.DataFrame) -> str:
    """Return the mean time of a step, and the work of the device if that takes longer."""
    mean, worked = float(table["wall_ms"].to_numpy().mean()), _worked(table)
    work = f" on the host and {words.ms(worked)} on the device" if worked > _BEHIND * mean else ""
    return f"{words.ms(mean)}{work}"


def _worked(table: pl.DataFrame) -> float:
    """How long a device worked on what a step launched, on average; 0 where that is not known."""
    return float(table["busy_ms"].fill_null(0).sum()) / table.height if "busy_ms" in table.columns else 0.0


def _largest(table: pl.DataFrame, operators: pl.DataFrame) -> list[str]:
    """What takes most time by itself on the host, in steps, from 5% of them on."""
    is_in = pl.col("step").is_in(table["step"].drop_nulls().to_list()) | pl.lit(table["step"].null_count() > 0)
    named = operators.filter(is_in & pl.col("kind").is_in(_HOST_KINDS) & ~pl.col("name").is_in(_WITHOUT_NAME))
    named = named.filter(~pl.col("name").str.starts_with(_TORCHS_OWN))
    is_compiled = pl.col("name").str.contains(ranges.COMPILED)  # their names are numbers
    named = named.with_columns(pl.when(is_compiled).then(pl.lit("compiled code")).otherwise("name").alias("name"))
    wall = float(table["wall_ms"].sum())
    sums = named.group_by("name", "kind").agg(pl.col("self_cpu_ms").sum() / wall).sort("self_cpu_ms", "name")[::-1]
    outside = 1 - float(sums["self_cpu_ms"].sum())
    if outside < 0:
        return []  # of several threads at once: no part of a step
    rows = sorted([*sums.iter_rows(), ("outside of operators", "", outside)], key=lambda row: -row[2])[:2]
    where = {"annotation": " outside of its operators"}
    return [
        f"{words.share(part)} {name[:_LONGEST]}{where.get(kind, '')}"
        for name, kind, part in rows
        if part >= _WORTH_NAMING
    ]


def _shares(table: pl.DataFrame, largest: list[str], why_idle: str, extent: WorkExtent | None) -> list[str]:
    """The largest parts, what is largest where one is nearly all, how busy the device was, and why not."""
    wall = float(table["wall_ms"].sum())
    sums = {phrase: float(table[column].sum() or 0) / wall for column, phrase in _PHRASES.items()} if wall else {}
    named = sorted((share, phrase) for phrase, share in sums.items() if share >= _WORTH_NAMING)[: -_NAMED - 1 : -1]
    busy = extent.busy if extent else busy_share(table)
    if (busy or 0.0) >= BOUND or _worked(table) > _BEHIND * wall / max(table.height, 1):
        named, largest = [], []
    parts = [f"{words.share(part)} {phrase}" for part, phrase in named]
    if largest and named and named[0][0] >= _NEARLY_ALL and named[0][1] in _DULL:
        parts[0] += f" ({', '.join(largest)})"
    largest = largest if (busy or 0.0) < _HALF else []
    of_device = str(extent or "") if extent or busy is None else f"device busy {words.share(busy)}"
    return [*(parts or largest), *filter(None, (of_device, _only_communicating(table), why_idle))]


def _only_communicating(table: pl.DataFrame) -> str:
    """For which part of the steps devices did nothing but communicate, from 5% on."""
    if "device_busy_ms" in table.columns and busy_share(table) is None:
        return ""  # devices have another clock
    spent = float(table["exposed_comm_ms"].sum() or 0) if "exposed_comm_ms" in table.columns else 0.0
    share = spent / max(float(table["wall_ms"].sum()), _worked(table) * table.height)
    return f"only communicating {words.share(share)}" if share >= _WORTH_NAMING else ""
