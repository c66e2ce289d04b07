"""Errors that perfhooks raises. Any other exception that reaches a user is a bug.

::

    PerfhooksError
    ├── OptionError (ValueError)      an invalid argument, raised at construction
    │   ├── ScheduleError
    │   └── CommandError
    ├── NothingRecordedError          a result was requested before a window was recorded
    └── TraceError                    a file that is not a trace, or a damaged one
"""

from __future__ import annotations

from typing import Literal

OnError = Literal["warn", "raise"]
"""Action on errors: a log line, or an exception."""


class PerfhooksError(Exception):
    """Base of all errors raised by perfhooks."""

    exit_code = 2


class OptionError(PerfhooksError, ValueError):
    """An invalid argument."""


class CommandError(OptionError):
    """A command that cannot be run. ``code`` is a shell's exit code: 127 for a missing file, 126 without permission."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.exit_code = code

    def __reduce__(self) -> tuple[type[CommandError], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class ScheduleError(OptionError):
    """An invalid schedule."""


class NothingRecordedError(PerfhooksError):
    """A result was requested, but no window is recorded."""


class TraceError(PerfhooksError):
    """A file that is not a Kineto trace, or a damaged trace."""
