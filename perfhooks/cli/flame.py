from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated, Final

import typer

from perfhooks.cli.trace_options import MAX_UNPACKED

EXAMPLES: Final = "Examples: `perfhooks flame trace.json.gz`, `perfhooks flame trace.json -f folded -o - | sort`"


class Measure(str, Enum):
    host = "host"
    device = "device"
    bytes = "bytes"


class Form(str, Enum):
    svg = "svg"
    folded = "folded"
    speedscope = "speedscope"


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A Kineto trace, or the folder of a run or a window. A run shows the lowest rank of its last window. "
            "Default: the last run below the current folder.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Path of the file; - is standard output.")] = None,
    by: Annotated[Measure, typer.Option("--by", help="Host time, device time, or allocated bytes.")] = Measure.host,
    form: Annotated[
        Form | None,
        typer.Option(
            "--format",
            "-f",
            help="svg draws a chart; folded writes folded stacks in nanoseconds or bytes. By default the name of --out "
            "decides (.folded, .speedscope.json), else svg.",
            show_default=False,
        ),
    ] = None,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
) -> None:
    """Draw the flame graph of a trace, or write its stacks for other tools."""
    from perfhooks.cli.actions import flame

    flame.flame(target, out, by=by.value, form=None if form is None else form.value)
