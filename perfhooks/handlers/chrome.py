"""The trace itself, for Perfetto, chrome://tracing, the TensorBoard profiler plugin and HTA."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perfhooks.errors import OptionError
from perfhooks.handlers.artifact import Artifact
from perfhooks.run.layout import TRACES
from perfhooks.trace.reading.packing import copy_trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class ChromeTrace:
    """The recorder's own JSON, unchanged: ``rank0.pt.trace.json.gz``."""

    compress: bool = True
    """Write ``.json.gz``, which every viewer opens, rather than ``.json``, some fifteen times as large."""

    def __post_init__(self) -> None:
        if not isinstance(self.compress, bool):
            raise OptionError(f"compress must be true or false, got {self.compress!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:  # noqa: ARG002 -- the form of a handler
        """One file with the whole trace."""
        name = TRACES[not self.compress]
        yield Artifact(name, functools.partial(copy_trace, Path(trace.path), compress=self.compress))
