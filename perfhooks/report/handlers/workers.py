from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

import perfhooks.trace
from perfhooks.report.handlers.artifact import Artifact
from perfhooks.run.loader.workers import folded, rows
from perfhooks.run.publishing import csv_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Functions of loader workers, longest first, ``rank0.workers.csv``, and their stacks, ``rank0.workers.folded``.

    The handler needs the option ``workers``. There are no files if no worker was sampled.
    """

    def artifacts(self, capture: Capture, trace: Trace) -> Iterator[Artifact]:
        """Return two files."""
        del trace
        workers = capture.circumstances.workers
        if workers:
            yield Artifact("workers.csv", functools.partial(_write_rows, rows(workers)))
            yield Artifact("workers.folded", functools.partial(perfhooks.trace.stacks.write, folded(workers)))


def _write_rows(columns: Mapping[str, list[Any]], file: IO[bytes]) -> None:
    cells = zip(*columns.values(), strict=True)
    texts = ([f"{value:.6f}" if isinstance(value, float) else value for value in row] for row in cells)
    file.write(csv_bytes([[*columns], *texts]))
