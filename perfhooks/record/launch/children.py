"""Processes that a program starts for parts of its work, for example workers of loaders and pools."""

from __future__ import annotations

import re
import sys
from typing import Final

from perfhooks.core import frames, process
from perfhooks.record.watch.sampling import outwards

_POOL: Final = re.compile(r"(?:^|\.)(?:pool|futures\.process|process_executor)$")
"""Names of the modules whose function a worker of a pool runs: multiprocessing, concurrent.futures and loky."""
_FORK_SERVER: Final = "from multiprocessing.forkserver import main"
TRAINS_IN_POOL: Final = (
    "a worker of a process pool trains, and perfhooks does not record workers of pools; train in the main process or "
    "in a process of torch.multiprocessing.spawn, or use perfhooks.Profiler in the worker"
)


def is_helper_process() -> bool:
    """Return whether this process is a worker of a loader or pool, or a tool of torch or multiprocessing."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_tool = getattr(spec, "name", "").startswith("torch.") or _is_fork_server()
    return is_tool or is_loader_worker() or is_pool_worker()


def is_pool_worker() -> bool:
    return _POOL.search(process.target_module()) is not None


def is_loader_worker() -> bool:
    data = sys.modules.get("torch.utils.data")
    info = getattr(data, "get_worker_info", None)
    return info is not None and info() is not None


def is_forked_by_loader() -> bool:
    """Return whether a loader forks this process. Call the function during the fork."""
    codes = (frame.f_code for frame in outwards(sys._getframe()))
    return any(code.co_name == "__init__" and code.co_filename.endswith(frames.ITERATORS) for code in codes)


def _is_fork_server() -> bool:
    return not process.is_child() and any(word.startswith(_FORK_SERVER) for word in sys.orig_argv)
