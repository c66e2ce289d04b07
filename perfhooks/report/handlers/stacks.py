"""Stacks, the input of flame graph tools."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import perfhooks.trace
from perfhooks.core.errors import OptionError
from perfhooks.report.handlers.artifact import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace

MEASURES: Final = ("host", "device", "bytes")
"""What stacks can be summed by."""
_ENDINGS: Final = {"folded": "folded", "speedscope": "speedscope.json"}


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Python stacks with the operator as leaf: ``rank0.stacks.folded``; ``with_stack`` records the Python part."""

    format: Literal["folded", "speedscope"] = "folded"
    """Folded lines, in nanoseconds or bytes, which every flame graph tool reads, or
    ``rank0.stacks.speedscope.json`` for speedscope."""

    by: tuple[Literal["host", "device", "bytes"], ...] = ("host",)
    """What is summed: ``"host"`` or ``"device"`` time, or ``"bytes"`` allocated; one file each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        unknown = [measure for measure in self.by if measure not in MEASURES]
        if unknown or not self.by:
            raise OptionError(f"by must name some of {', '.join(MEASURES)}, got {self.by!r}")
        if self.format not in _ENDINGS:
            raise OptionError(f"format must be {' or '.join(map(repr, _ENDINGS))}, got {self.format!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """One file per measure."""
        for measure in self.by:
            found = capture.tables(trace).stacks(measure)
            name = ".".join(["stacks", *([] if measure == "host" else [measure]), _ENDINGS[self.format]])
            if self.format == "folded":
                yield Artifact(name, functools.partial(perfhooks.trace.stacks.write, found))
            else:
                title = f"{capture.stage} from step {capture.first}, rank {capture.rank}: {measure}"
                unit = "bytes" if measure == "bytes" else "nanoseconds"
                yield Artifact(
                    name, functools.partial(perfhooks.trace.stacks.write_speedscope, found, name=title, unit=unit)
                )
