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
    process: Process
    time: float
    """Time of the status in s since 1970, by the clock of the rank."""
    loop: Loop
    waited: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    """Run-queue wait of the training thread as a fraction of its time."""

    @classmethod
    def read(cls, run: Path, rank: int) -> Status | None:
        with contextlib.suppress(FileNotFoundError, PerfhooksError):
            return read_json(run / layout.status(rank), cls, "the status of a rank")
        return None
