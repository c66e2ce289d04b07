"""Bounds of numbers and sizes in valid traces."""

from __future__ import annotations

from typing import Final

MAX_NUMBER: Final = 2**62
"""Maximum of times, sizes and counters. The sum of two maxima fits 64 bits."""
MAX_DIGITS: Final = 18
MAX_ID: Final = 2**31
"""Limit of rank and device numbers, whose columns have 32 bits."""
MAX_TIME_US: Final = 4.0e15
"""Maximum time in microseconds (the year 2096). Twice this time in nanoseconds fits 64 bits."""
ROUNDING_NS: Final = 250
"""Rounding error in ns of a double with microseconds since 1970."""
MIN_RECORDS: Final = 8
"""Minimum records with a suspicious pattern that count as a defect of the recorder, not as a hand-written example."""
APART_NS: Final = 60 * 10**9
"""Minimum difference in ns of times from different clocks. No recording pauses for a minute."""

FLOOR: Final = 256_000_000
"""Limit of unpacked bytes for small archives, and for archives of unknown size."""
