"""Output files of a verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfhooks.core.errors import PerfhooksError
from perfhooks.run.publishing import publish

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file, whole or not at all.

    Raises:
        PerfhooksError: It cannot be written.
    """
    if path.is_dir():
        raise PerfhooksError(f"{path} cannot be written: it is a folder")
    try:
        with publish(path) as file:
            file.write(content)
    except OSError as error:
        raise PerfhooksError(f"{path} cannot be written: {error.strerror}") from error
