"""The flame graph of any trace, in each form that there is."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Literal

from perfhooks.handlers import Flame, Stacks
from perfhooks.run.capture import Capture
from perfhooks.trace import read

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.handlers import Handler


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
    handler: Handler = Flame(by=by) if form == "svg" else Stacks(by=(by,), format=form)
    found = list(handler.artifacts(Capture(stage=path.name), read(path)))
    content = io.BytesIO()
    for artifact in found:
        artifact.write(content)
    return content.getvalue()
