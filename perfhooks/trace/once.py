"""What several tables need of a trace is computed once, and kept as long as the trace lives."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trace.model import Trace

P = ParamSpec("P")
T = TypeVar("T")


def cached_per_trace(make: Callable[Concatenate[Trace, P], T]) -> Callable[Concatenate[Trace, P], T]:
    """Have a function of a trace, and of what else can be a key, computed once for each; nobody may change its answer.

    What is kept lies on the trace itself and goes with it.
    """

    @functools.wraps(make)
    def known(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (make, args, tuple(kwargs.items()))
        if key not in trace.known:
            trace.known[key] = make(trace, *args, **kwargs)
        found: T = trace.known[key]
        return found

    return known
