"""One window's share of the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING

from perfhooks.handlers.artifact import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class PageData:
    """What the page of the run shows of this window, ``rank0.page.json``: the page is made without the trace."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file of some tens of kilobytes."""
        import msgspec

        from perfhooks.report import PART
        from perfhooks.report import window_data as window

        reduced = window.reduce(capture, trace)

        def write(file: IO[bytes]) -> None:
            file.write(msgspec.json.encode(reduced))

        yield Artifact(PART, write)
