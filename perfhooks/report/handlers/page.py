"""One window's share of the page."""

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
    """What is known of this window without its trace: for the page of the run, and for comparisons.

    That are ``rank0.page.json`` and ``rank0.costs.json``.
    """

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Two files of some tens of kilobytes."""
        from perfhooks.analysis.comparison import costs, saved
        from perfhooks.report.page import window_data
        from perfhooks.report.page.data import WindowData

        share = msgspec.convert(window_data.reduce(capture, trace), WindowData)

        def write(file: IO[bytes]) -> None:
            file.write(encoded(share))

        yield Artifact(SHARE, write)
        spent = saved.encode(costs.measure(capture.tables(trace)))
        yield Artifact(saved.NAME, lambda file: file.write(spent))
