from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from perfhooks.trace.model import Trace

P = ParamSpec("P")
T = TypeVar("T")


def cached_per_trace(make: Callable[Concatenate[Trace, P], T]) -> Callable[Concatenate[Trace, P], T]:
    """Cache the result of a function for each trace and each set of other arguments, which must be hashable.

    Callers must not change the result. The cache is stored in the trace and is freed with it.
    """

    @functools.wraps(make)
    def cached(trace: Trace, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (make, args, tuple(kwargs.items()))
        if key not in trace.cache:
            trace.cache[key] = make(trace, *args, **kwargs)
        result: T = trace.cache[key]
        return result

    return cached
