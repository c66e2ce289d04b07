"""The trace itself, for Perfetto, TensorBoard and HTA."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.core.errors import OptionError
from perfhooks.report.handlers.artifact import Artifact
from perfhooks.run.layout import TRACES
from perfhooks.trace.writing import repair

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class ChromeTrace:
    """The JSON of torch's recorder: ``rank0.pt.trace.json.gz``.

    Viewers drop slices that overlap only partly, so labels start after the function that opens them, and overlapping
    work of a stream has separate lanes. `perfhooks.trace.read` restores the recorded times.
    """

    compress: bool = True
    """Whether to write ``.json.gz``, which every viewer opens, instead of ``.json``, which is about fifteen times as
    large.
    """

    def __post_init__(self) -> None:
        if not isinstance(self.compress, bool):
            raise OptionError(f"compress must be true or false, got {self.compress!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:  # noqa: ARG002 -- the form of a handler
        """Return one file with the whole trace."""
        name = TRACES[not self.compress]
        yield Artifact(name, functools.partial(repair.write, trace, Path(trace.path), compress=self.compress))
