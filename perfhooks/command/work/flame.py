"""The flame graph of any trace, drawn."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from perfhooks.command.work.output import write
from perfhooks.command.work.sources import find, last_window
from perfhooks.handlers import Flame, Stacks
from perfhooks.progress import working
from perfhooks.run.capture import Capture
from perfhooks.trace import read

if TYPE_CHECKING:
    from perfhooks.handlers import Handler

Measure = Literal["host", "device", "bytes"]
Form = Literal["svg", "folded", "speedscope"]


def flame(target: str | None, out: Path | None, *, by: Measure, form: Form) -> None:
    """Write the flame graph of the last window's lowest rank."""
    source = last_window(find(target))[0]
    trace = Path(source.path)
    with working(f"reading {trace}"):
        content = drawn(trace, by=by, form=form)
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return
    ending = {"svg": "flame.svg", "folded": "stacks.folded", "speedscope": "speedscope.json"}[form]
    path = trace.with_name(f"{trace.name.split('.json')[0]}.{ending}") if out is None else out
    write(path, content)
    typer.echo(path)


def drawn(path: Path, *, by: Measure, form: Form) -> bytes:
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
    handler: Handler = Flame(by=by) if form == "svg" else Stacks(by=(by,), format=form)
    found = list(handler.artifacts(Capture(stage=path.name), read(path)))
    content = io.BytesIO()
    for artifact in found:
        artifact.write(content)
    return content.getvalue()
