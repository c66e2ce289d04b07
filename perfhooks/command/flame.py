"""``perfhooks flame``: the flame graph of any trace, in each form that there is."""

from __future__ import annotations

import io
import sys
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from perfhooks.command.limits import MAX_UNPACKED
from perfhooks.command.output import write
from perfhooks.command.targets import find, last_window

if TYPE_CHECKING:
    from perfhooks.handlers import Handler

EXAMPLES: Final = "Examples: `perfhooks flame trace.json.gz`, `perfhooks flame trace.json -f folded -o - | sort`"
"""What ``--help`` ends with."""


class Measure(str, Enum):
    """What the widths of a flame graph are."""

    host = "host"
    device = "device"
    bytes = "bytes"


class Form(str, Enum):
    """What a flame graph is written as."""

    svg = "svg"
    folded = "folded"
    speedscope = "speedscope"


def command(
    target: Annotated[
        str | None,
        typer.Argument(
            help="A Kineto trace, or the folder of a run or of a window: then its last window's lowest rank; the last "
            "run below here if not given.",
            show_default=False,
        ),
    ] = None,
    *,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file; - is standard output.")] = None,
    by: Annotated[Measure, typer.Option("--by", help="Host time, device time, or bytes allocated.")] = Measure.host,
    form: Annotated[Form, typer.Option("--format", "-f", help="A picture, folded stacks, or speedscope.")] = Form.svg,
    _max_unpacked_mb: Annotated[float | None, MAX_UNPACKED] = None,
) -> None:
    """Draw the flame graph of a trace, or write what other tools draw it from."""
    from perfhooks.progress import working

    source = last_window(find(target))[0]
    trace = Path(source.path)
    with working(f"reading {trace}"):
        content = drawn(trace, by=by.value, form=form.value)
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return
    ending = {"svg": "flame.svg", "folded": "stacks.folded", "speedscope": "speedscope.json"}[form.value]
    path = trace.with_name(f"{trace.name.split('.json')[0]}.{ending}") if out is None else out
    write(path, content)
    typer.echo(path)


def drawn(path: Path, *, by: Literal["host", "device", "bytes"], form: Literal["svg", "folded", "speedscope"]) -> bytes:
    """Make the flame graph of a trace.

    Args:
        path: A Kineto trace.
        by: What its widths are.
        form: A picture, folded stacks, or a speedscope profile.

    Returns:
        The content of the file; empty where there is nothing to draw.

    Raises:
        TraceError: It is no trace.
    """
    from perfhooks.handlers import Flame, Stacks
    from perfhooks.run.capture import Capture
    from perfhooks.trace import read

    handler: Handler = Flame(by=by) if form == "svg" else Stacks(by=(by,), format=form)
    found = list(handler.artifacts(Capture(stage=path.name), read(path)))
    content = io.BytesIO()
    for artifact in found:
        artifact.write(content)
    return content.getvalue()
