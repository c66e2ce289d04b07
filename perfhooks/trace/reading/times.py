"""Conversion of microseconds to whole nanoseconds. Each result comes with a mask of the valid times."""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.trace.bounds import MAX_TIME_US

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perfhooks.trace.model import Flags, Floats, Ints

_DECIMAL_LIMIT: Final = Decimal(MAX_TIME_US)


def lengths(micros: Floats) -> tuple[Ints, Flags]:
    """Return lengths in ns, and which of them are valid. Lengths are small enough for a double, unlike time stamps."""
    good = np.abs(micros) < MAX_TIME_US
    return np.rint(np.where(good, micros, 0.0) * 1000).astype(np.int64), good


def nanoseconds(values: Sequence[float] | Floats) -> tuple[Ints, Flags]:
    """Return microseconds as ns, and which of them are valid times.

    A double represents time stamps in microseconds to half a nanosecond, but not the same times in nanoseconds.
    """
    micros = np.asarray(values, np.float64)
    good = np.abs(micros) < MAX_TIME_US
    micros = np.where(good, micros, 0.0)
    integers = np.floor(micros)
    return integers.astype(np.int64) * 1000 + np.rint((micros - integers) * 1000).astype(np.int64), good


def exact_nanoseconds(values: Iterable[float | Decimal]) -> tuple[Ints, Flags]:
    """Convert microseconds exactly, but slowly."""
    nanos = list(map(_exact, values))
    good = np.array([value is not None for value in nanos], np.bool_)
    return np.array([value or 0 for value in nanos], np.int64), good


def _exact(micros: float | Decimal) -> int | None:
    try:
        return round(Decimal(micros) * 1000) if -_DECIMAL_LIMIT < micros < _DECIMAL_LIMIT else None
    except ArithmeticError:  # Decimal("NaN") cannot be compared
        return None
