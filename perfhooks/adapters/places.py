from __future__ import annotations

import itertools
import os
from typing import Final

from perfhooks.core.clocks import time

_names: Final = itertools.count()
"""Counter that distinguishes runs of one process that start within the same second."""


def folder_in(log_dir: str | os.PathLike[str]) -> str:
    """Return the folder of runs inside a framework's log folder, which may be a URL."""
    return os.path.join(log_dir, "perf")  # noqa: PTH118 -- a path would break a URL


def new_run_name() -> str:
    """Return a new name for a run. An integration must broadcast the name from rank 0 to the other ranks."""
    count = next(_names)
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}{f'-{count}' if count else ''}"
