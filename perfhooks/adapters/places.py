"""Where a framework's runs go, unless the user says it."""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

_names: Final = itertools.count()
"""Tells runs apart that one process begins within a second."""


def folder_in(log_dir: str | os.PathLike[str]) -> str:
    """The folder for runs in a framework's own log folder, which may be a URL."""
    return os.path.join(log_dir, "perf")  # noqa: PTH118 -- a path would break a URL


def new_run_name() -> str:
    """A name for a run; a framework that can say one thing to all ranks has to hand it from the first to the others."""
    count = next(_names)
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{f'-{count}' if count else ''}"
