"""Known defects of Python stacks in versions of Python and torch."""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import TYPE_CHECKING, Final

import torch

from perfhooks.core.errors import PerfhooksError

if TYPE_CHECKING:
    from collections.abc import Iterator

_FIXED: tuple[int, int] = (2, 12)
"""First torch version with the fix of pytorch #178551."""
_NO_STACK: Final = "replay stack is empty"
"""Text of torch's error for a function return whose call was not recorded."""


class LostStacksError(PerfhooksError):
    """Old versions of torch lose stacks that begin inside a call from C (pytorch issue 101632)."""


def versions() -> tuple[tuple[int, int, int], tuple[int, int]]:
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return sys.version_info[:3], (int(major), int(minor))


def danger() -> str | None:
    python, recorder = versions()
    if python < (3, 13) or recorder >= _FIXED:
        return None
    return (
        f"with torch {torch.__version__} on Python {'.'.join(map(str, python))}, the start of a window with stacks "
        "can crash the process if other threads run Python (fixed in torch 2.12, pytorch #178551)"
    )


def lost_calls() -> str | None:
    if not (3, 12) <= versions()[0] < (3, 12, 5):
        return None
    return "CPython 3.12.0 to 3.12.4 lose calls of C functions; with_stack is better with 3.12.5"


@contextlib.contextmanager
def no_collection() -> Iterator[None]:
    """Disable the garbage collector.

    When a recording with stacks starts, torch reads frames of all threads, and crashes if another thread runs.
    Callbacks of the collector, which are Python functions, let other threads run.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def check_lost(error: RuntimeError) -> None:
    """Raise LostStacksError if torch failed at the stacks of a window."""
    if _NO_STACK in str(error):
        raise LostStacksError(
            f"torch {torch.__version__} cannot process the Python stacks of this window, and has lost the window; "
            "later windows are recorded without stacks"
        ) from error
