"""Suppress output of torch and Kineto that repeats at each recording, or does not help the user."""

from __future__ import annotations

import contextlib
import os
import warnings
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

_WARN: Final = "_warn_once"

_LEVEL: Final = "KINETO_LOG_LEVEL"
_SILENT: Final = "6"
"""Log level that hides all messages of Kineto, whose highest levels are ERROR (4) and USDT (5)."""

_warned: Final[set[str]] = set()


@contextlib.contextmanager
def suppress_start_output() -> Iterator[None]:
    """Suppress torch's warning about lost events of earlier windows, which ``python -W error`` turns into an error."""
    module = vars(torch.profiler.profiler)
    warn = module.get(_WARN)
    with _suppress_kineto():
        if warn is not None:
            module[_WARN] = lambda *_, **__: None
        try:
            yield
        finally:
            if warn is not None:
                module[_WARN] = warn


@contextlib.contextmanager
def _suppress_kineto() -> Iterator[None]:
    """Hide Kineto's log messages. Kineto reads the level once per process.

    Level 6 hides errors too, so hosts with a device keep Kineto's level.
    """
    recorded = torch.profiler.supported_activities()
    if _LEVEL in os.environ or recorded != {torch.profiler.ProfilerActivity.CPU}:
        yield
        return
    os.environ[_LEVEL] = _SILENT
    try:
        yield
    finally:
        os.environ.pop(_LEVEL, None)


@contextlib.contextmanager
def suppress_stderr() -> Iterator[None]:
    """Discard what C++ code writes to stderr. Only safe in a process with one thread."""
    try:
        stderr_copy = os.dup(2)
    except OSError:
        yield
        return
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(null, 2)
        yield
    finally:
        os.dup2(stderr_copy, 2)
        os.close(stderr_copy)
        os.close(null)


@contextlib.contextmanager
def warn_once(recorder: Any) -> Iterator[None]:
    """Show the warning about a deprecated option only for the first recorder."""
    if not recorder.with_modules or "with_modules" not in _warned:
        _warned.update(["with_modules"] if recorder.with_modules else ())
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "with_modules is deprecated", FutureWarning)
        yield
