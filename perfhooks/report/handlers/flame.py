from __future__ import annotations

from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Literal

from perfhooks.core.errors import OptionError
from perfhooks.report.handlers.artifact import Artifact
from perfhooks.report.handlers.stacks import MEASURES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Flame:
    """A flame graph for any browser: ``rank0.flame.svg``. The graph has Python lines if ``with_stack`` was set."""

    by: Literal["host", "device", "bytes"] = "host"
    """Measure of the widths: ``"host"`` or ``"device"`` time, or allocated ``"bytes"``."""
    share: float = 0.001
    """Frames below this fraction of the total are merged into ``(other)``."""

    def __post_init__(self) -> None:
        if self.by not in MEASURES:
            raise OptionError(f"by must be one of {', '.join(MEASURES)}, got {self.by!r}")
        if not isinstance(self.share, float | int) or not 0 <= self.share < 1:
            raise OptionError(f"share must be a number from 0 to below 1, got {self.share!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file, or none if the graph is empty."""
        from perfhooks.analysis import flames
        from perfhooks.report.page import svg

        tree = flames.tree(
            capture.tables(trace).calls(self.by),
            share=self.share,
            nodes=5000,
            leaves="kernel" if self.by == "device" else "",
            owners=capture.owners,
        )
        if not tree["value"][0]:
            return
        last = capture.end
        title = f"{capture.stage}, steps {capture.first} to {last}, rank {capture.rank}: {svg.MEASURES[self.by]}"

        def write(file: IO[bytes]) -> None:
            file.write(svg.flame(tree, title=title, unit="bytes" if self.by == "bytes" else "nanoseconds").encode())

        yield Artifact("flame.svg" if self.by == "host" else f"flame.{self.by}.svg", write)
