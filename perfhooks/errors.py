"""What perfhooks raises; everything else that reaches a user is a bug.

::

    PerfhooksError
    ├── OptionError (ValueError)      a wrong argument, found at construction
    │   └── ScheduleError             a schedule that cannot be
    ├── NothingRecordedError          a result was asked for before a window was recorded
    └── TraceError                    a file that is no trace, or a broken one
"""

from typing import Literal

OnError = Literal["warn", "raise"]
"""What becomes of a failure on our side: a line in the log, or an exception, as tests want it."""


class PerfhooksError(Exception):
    """Base of all errors raised by perfhooks."""


class OptionError(PerfhooksError, ValueError):
    """A wrong argument: says which, the rule and the value."""


class ScheduleError(OptionError):
    """A schedule that cannot be: says the field, the rule and the value."""


class NothingRecordedError(PerfhooksError):
    """A result was asked for, but no window has been recorded: says why."""


class TraceError(PerfhooksError):
    """A file that is no Kineto trace, or a broken one: says what and where."""
