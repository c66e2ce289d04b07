"""Small traces as text, and their tables as text: the blocks of tests/data/golden/tables.

    # What the case shows
    100..200 step 3
    10us..20us op aten::mm {"tid": 7}
    20us..22us launch 5
    30us..40us kernel 5 gemm {"stream": 9}
    > steps
    step | 3
    wall | 100

Lines before `>` are events: begin and end in nanoseconds, the kind, the correlation of device work and calls, the name,
and everything else as JSON. Each `> table groups` is followed by the table, which `--update` writes. In it, times are
nanoseconds, and columns without values are absent.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import polars as pl

from perfhooks import testing
from perfhooks.cli.actions import show
from perfhooks.trace import read
from perfhooks.trace.nesting import device
from perfhooks.trace.tables import device_time, memory, modules, operators, steps

FOLDER = Path(__file__).parent / "data" / "golden"
UNITS = {"ms": 1_000_000, "us": 1_000, "": 1}
LINE = re.compile(r"(?:(-?\d+)(us|ms|)(?:\.\.(-?\d+)(us|ms|))? )?(\w+) ?(.*?)(?: ?(\{.*\}))?")
SLICES = {"op": "cpu_op", "label": "user_annotation", "frame": "python_function"}
WORK = {"kernel": "kernel", "copy": "gpu_memcpy", "memset": "gpu_memset"}
NAMES = {"kernel": "gemm", "copy": "Memcpy HtoD (Pageable -> Device)", "memset": "Memset (Device)"}


def event(line):
    """Return the event of a line. Kinds that are not named here are categories."""
    begin, unit, end, end_unit, kind, name, more = LINE.fullmatch(line).groups()
    args = json.loads(more or "{}")
    times = [int(time) * UNITS[of] for time, of in ((begin, unit), (end, end_unit)) if time is not None]
    number, _, rest = name.partition(" ")
    match kind:
        case "event":
            made = args
        case "step":
            made = testing.step_mark(int(number), *times, **args)
        case "module":
            made = testing.python_frame(f"nn.Module: {name}", *times, Python_module_id=0, **args)
        case "made" | "node":
            made = {"ph": "s" if kind == "made" else "f", "id": int(number), "cat": "fwdbwd", "name": "fwdbwd"}
            made |= {"bp": "e", "pid": testing.PID, "tid": testing.PID, "ts": times[0] / 1000} | args
        case "counter":
            made = {"ph": "C", "name": name, "pid": args.pop("pid"), "ts": times[0] / 1000, "args": args}
        case "memory":
            options = {key: args.pop(key) for key in ("allocated", "device", "tid") if key in args}
            made = testing.memory(*times, int(number), **options)
            made["args"] |= args
        case "launch":
            made = testing.launch(int(number), *times, **({"name": rest} if rest else {}), **args)
        case _ if kind in WORK:
            annotation = {key: args.pop(key) for key in ("name",) if key in args}
            work = {"name": rest or NAMES[kind], "category": WORK[kind]}
            made = testing.kernel(int(number), *times, **work, **args)
            made["args"] |= annotation
        case _:
            args |= {"External id": args.pop("external")} if "external" in args else {}
            made = testing.slice_event(SLICES.get(kind, kind), name, *times, **args)
    return made


def trace_of(lines, folder):
    """Write the events of some lines as a trace and read it; the line `trace` has what is beside the events."""
    metadata = [json.loads(line.removeprefix("trace ")) for line in lines if line.startswith("trace ")]
    events = [event(line) for line in lines if not line.startswith("trace ")]
    return read(testing.write_trace(folder / "t.json", events, **(metadata[0] if metadata else {})))


def _value(value, is_time):
    if value is None:
        return "-"
    if isinstance(value, float):
        if not is_time:
            return f"{value:.5g}"
        nanoseconds = round(value * 1e6, 1)
        unit = next(unit for unit, size in UNITS.items() if size == 1 or (nanoseconds and nanoseconds % size == 0))
        return f"{nanoseconds / UNITS[unit]:.12g}{unit}"
    return str(value)


def text_of(table):
    """Return a table as text: its columns as lines if there are few rows, as columns otherwise."""
    columns = {
        name.removesuffix("_ms"): [_value(value, name.endswith("_ms")) for value in table[name].to_list()]
        for name in table.columns
        if table[name].null_count() < table.height
    }
    if not columns:
        return "(no rows)"
    lines = [[name, *values] for name, values in columns.items()]
    rows = lines if table.height < 4 else list(zip(*lines, strict=True))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        " | ".join(value.ljust(width) for value, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def _causes(trace):
    found = device_time.idle(trace)
    named = {"step": found.step, "cause": np.array(device_time.CAUSES)[found.cause]}
    named |= {"place": np.array(device_time.PLACES)[found.place], "idle_ms": found.length * 1e-6}
    return pl.DataFrame(named).group_by("step", "cause", "place", maintain_order=True).sum()


OUTPUTS = {
    "steps": steps.table,
    "causes": _causes,
    "work": lambda trace: pl.DataFrame(
        device_time.work(trace) * 1e-6, [f"{name}_ms" for name in (*device.CLASSES, "other")]
    ),
    "memory_peak": memory.peak,
    "memory_over_time": memory.over_time,
    "flops": lambda trace: operators.table(trace, all_flops=True).select("name", "flops"),
    "stack": lambda trace: operators.table(trace, ("stack", "module"), stack_depth=1),
    "model": lambda trace: pl.DataFrame({"model": modules.model(trace, modules.table(trace))}),
}
"""What is not a table of `perfhooks show`, or not as it is."""


def output(trace, name, *by):
    return text_of(OUTPUTS[name](trace) if name in OUTPUTS else show.compute(trace, name, by))


def updated(text, folder):
    """Return the text of a file of cases with the tables of its events."""
    blocks = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        title = [line for line in lines if line.startswith("# ")]
        wanted = [line for line in lines if line.startswith("> ")]
        given = lines[len(title) : lines.index(wanted[0])]
        trace = trace_of(given, folder)
        tables = [f"{each}\n{output(trace, *each[2:].split())}" for each in wanted]
        blocks.append("\n".join([*title, *given, *tables]))
    return "\n\n".join(blocks) + "\n"


OF_TWINS = (
    *("steps", "causes", "labels", "operators", "kernels", "kernels operator", "categories", "collectives", "copies"),
    *("syncs", "idle", "gaps", "functions", "modules", "memory", "memory_peak", "stacks", "stacks device", "checks"),
)
"""The tables of each twin."""
