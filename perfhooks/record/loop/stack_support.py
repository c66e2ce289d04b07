"""Known defects of Python stacks in versions of Python and torch."""

from __future__ import annotations

import sys

import torch

_FIXED: tuple[int, int] = (2, 12)
"""First torch with the fix of pytorch #178551."""


def versions() -> tuple[tuple[int, int, int], tuple[int, int]]:
    major, minor = torch.__version__.split("+")[0].split(".")[:2]
    return sys.version_info[:3], (int(major), int(minor))


def danger() -> str | None:
    python, recorder = versions()
    if python < (3, 13) or recorder >= _FIXED:
        return None
    return (
        f"with torch {torch.__version__} on Python {'.'.join(map(str, python))}, a window with stacks can end the "
        "process when it starts, if other threads run Python (fixed in torch 2.12, pytorch #178551)"
    )


def lost_calls() -> str | None:
    if not (3, 12) <= versions()[0] < (3, 12, 5):
        return None
    return "CPython 3.12.0 to 3.12.4 lose calls of C functions; with_stack is better with 3.12.5"
