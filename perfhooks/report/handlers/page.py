from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

import msgspec

from perfhooks.report.handlers.artifact import Artifact
from perfhooks.run.layout import SHARE
from perfhooks.run.publishing import encoded

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class PageData:
    """The summary of a window for the report, ``rank0.page.json``, and its costs, ``rank0.costs.json``.

    Reports and comparisons read the two files instead of the trace.
    """

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return two files of some tens of kilobytes."""
        from perfhooks.analysis.comparison import costs, saved
        from perfhooks.report.page import window_data
        from perfhooks.report.page.data import WindowData

        summary = msgspec.convert(window_data.reduce(capture, trace), WindowData)

        def write(file: IO[bytes]) -> None:
            file.write(encoded(summary))

        yield Artifact(SHARE, write)
        stored_costs = saved.encode(costs.measure(capture.tables(trace)))
        yield Artifact(saved.NAME, lambda file: file.write(stored_costs))
