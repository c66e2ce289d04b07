"""What perfhooks raises; everything else that reaches a user is a bug.

::

    PerfhooksError
    ├── OptionError (ValueError)      a wrong argument, found at construction
    │   ├── ScheduleError             a schedule that cannot be
    │   └── CommandError              a command that cannot be run
    ├── NothingRecordedError          a result was asked for before a window was recorded
    └── TraceError                    a file that is no trace, or a broken one
"""

from __future__ import annotations

from typing import Literal

OnError = Literal["warn", "raise"]
"""What becomes of a failure on our side: a line in the log, or an exception, as tests want it."""


class PerfhooksError(Exception):
    """Base of all errors raised by perfhooks."""

    exit_code = 2
    """What the command line ends with."""


class OptionError(PerfhooksError, ValueError):
    """A wrong argument: says which, the rule and the value."""


class CommandError(OptionError):
    """A command that `perfhooks run` cannot become.

    Args:
        said: What is wrong.
        code: The exit code that a shell has then: 127 for what is not found, 126 for what cannot be executed.
    """

    def __init__(self, said: str, code: int) -> None:
        super().__init__(said)
        self.exit_code = code

    def __reduce__(self) -> tuple[type[CommandError], tuple[str, int]]:
        return type(self), (str(self), self.exit_code)


class ScheduleError(OptionError):
    """A schedule that cannot be: says the field, the rule and the value."""


class NothingRecordedError(PerfhooksError):
    """A result was asked for, but no window has been recorded: says why."""


class TraceError(PerfhooksError):
    """A file that is no Kineto trace, or a broken one: says what and where."""
