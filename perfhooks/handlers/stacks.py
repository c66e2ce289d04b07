"""Folded stacks, the input of every flame graph tool."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from perfhooks.errors import OptionError
from perfhooks.handlers.artifact import Artifact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.run import Capture
    from perfhooks.trace import Trace

_MEASURES: Final = ("host", "device", "bytes")


@dataclass(frozen=True, kw_only=True)
class Stacks:
    """Python stacks with the operator as leaf: ``rank0.stacks.folded``; ``with_stack`` records the Python part."""

    by: tuple[Literal["host", "device", "bytes"], ...] = ("host",)
    """What is summed: ``"host"`` or ``"device"`` time, or ``"bytes"`` allocated; one file each."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", (self.by,) if isinstance(self.by, str) else tuple(self.by))
        unknown = [measure for measure in self.by if measure not in _MEASURES]
        if unknown or not self.by:
            raise OptionError(f"by must name some of {', '.join(_MEASURES)}, got {self.by!r}")

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:  # noqa: ARG002 -- the form of a handler
        """One file per measure."""
        from perfhooks.trace import stacks

        for measure in self.by:
            name = "stacks.folded" if measure == "host" else f"stacks.{measure}.folded"
            yield Artifact(name, functools.partial(stacks.write, stacks.folded(trace, by=measure)))
