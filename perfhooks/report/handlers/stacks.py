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
_ENDINGS: Final = {"folded": "folded", "speedscope": "speedscope.json"}


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Python stacks with the operator as leaf: ``rank0.stacks.folded``. The Python part needs ``with_stack``."""

    format: Literal["folded", "speedscope"] = "folded"
    """``"folded"`` lines, in nanoseconds or bytes, for all flame graph tools; or ``"speedscope"`` for
    ``rank0.stacks.speedscope.json``."""

    by: tuple[Literal["host", "device", "bytes"], ...] = ("host",)
    """Measures of the stacks, one file each: ``"host"`` or ``"device"`` time, or allocated ``"bytes"``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        unknown = [measure for measure in self.by if measure not in MEASURES]
        if unknown or not self.by:
            raise OptionError(f"by must name some of {', '.join(MEASURES)}, got {self.by!r}")
        if self.format not in _ENDINGS:
            raise OptionError(f"format must be {' or '.join(map(repr, _ENDINGS))}, got {self.format!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return one file per measure."""
        for measure in self.by:
            table = capture.tables(trace).stacks(measure)
            name = ".".join(["stacks", *([] if measure == "host" else [measure]), _ENDINGS[self.format]])
            if self.format == "folded":
                yield Artifact(name, functools.partial(perfhooks.trace.stacks.write, table))
            else:
                title = f"{capture.stage} from step {capture.first}, rank {capture.rank}: {measure}"
                unit = "bytes" if measure == "bytes" else "nanoseconds"
                yield Artifact(
                    name, functools.partial(perfhooks.trace.stacks.write_speedscope, table, name=title, unit=unit)
                )
