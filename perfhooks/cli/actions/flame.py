from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import typer

from perfhooks.cli.actions.output import write
from perfhooks.cli.actions.sources import find, last_window
from perfhooks.core.progress import show_spinner
from perfhooks.report.handlers import Flame, Stacks
from perfhooks.run.capture import Capture
from perfhooks.trace import read

if TYPE_CHECKING:
    from perfhooks.report.handlers import Handler

Measure = Literal["host", "device", "bytes"]
Form = Literal["svg", "folded", "speedscope"]

_ENDINGS: Final[dict[Form, str]] = {"svg": "flame.svg", "folded": "stacks.folded", "speedscope": "speedscope.json"}
_NAMED: Final[dict[Form, str]] = {"folded": ".folded", "speedscope": ".speedscope.json"}


def flame(target: str | None, out: Path | None, *, by: Measure, form: Form | None) -> None:
    named: Form | None = next((ending for ending in _NAMED if out and out.name.endswith(_NAMED[ending])), None)
    form_name: Form = form or named or "svg"
    source = last_window(find(target), need="with_stack")[0]
    trace = Path(source.path)
    with show_spinner(f"reading {trace}"):
        content = drawn(trace, by=by, form=form_name)
    if str(out) == "-":
        sys.stdout.buffer.write(content)
        return
    path = trace.with_name(f"{trace.name.split('.json')[0]}.{_ENDINGS[form_name]}") if out is None else out
    write(path, content)
    typer.echo(path)


def drawn(path: Path, *, by: Measure, form: Form) -> bytes:
    """Return the flame graph, or the stacks, as bytes; empty if the trace has no slices."""
    handler: Handler = Flame(by=by) if form == "svg" else Stacks(by=(by,), format=form)
    artifacts = list(handler.artifacts(Capture(stage=path.name), read(path)))
    content = io.BytesIO()
    for artifact in artifacts:
        artifact.write(content)
    return content.getvalue()
