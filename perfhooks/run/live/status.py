"""Where a rank is, as it says itself every few seconds: what others may look at while it runs."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Annotated

import msgspec

from perfhooks.core.errors import PerfhooksError
from perfhooks.run import layout
from perfhooks.run.live.requests import Loop
from perfhooks.run.liveness import Process
from perfhooks.run.reading import read_json

if TYPE_CHECKING:
    from pathlib import Path


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Of one rank."""

    process: Process
    time: float
    """When it said so, in seconds since 1970 by its own clock."""
    loop: Loop
    """The loop that steps."""
    waited: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """What share of its time the thread that trains has waited for a processor; None where the system does not tell."""

    @classmethod
    def read(cls, run: Path, rank: int) -> Status | None:
        """That of a rank; None where it says nothing."""
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            return read_json(run / layout.status(rank), cls, "the status of a rank")
        return None
