from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from perfhooks.core.frames import hide_from_warnings
from perfhooks.core.guard import hide_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_NONE: Final = object()


class _Wrapped(NamedTuple):
    owner: Any
    name: str
    wrapper: Callable[..., Any]
    before: Any


class WrappedMethods:
    """Methods that are wrapped and unwrapped together. A copy contains no wrapped methods."""

    def __init__(self) -> None:
        self._wrapped: dict[tuple[int, str], _Wrapped] = {}

    def wrap(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Replace a method of one object by ``make(method)``, if the method exists and is not wrapped."""
        method, key = getattr(owner, name, None), (id(owner), name)
        if method is None or key in self._wrapped:
            return
        wrapped = _Wrapped(owner, name, make(method), vars(owner).get(name, _NONE))
        setattr(owner, name, wrapped.wrapper)
        self._wrapped[key] = wrapped

    def wrap_in(self, owner: Any, name: str, around: Callable[[], AbstractContextManager[Any]]) -> None:
        """Run a method of one object inside a new context for each call."""

        def make(method: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(method)
            @hide_from_warnings
            def inside(*args: Any, **kwargs: Any) -> Any:
                try:
                    with around():
                        return method(*args, **kwargs)
                except BaseException as error:
                    hide_frames(error)
                    raise

            return inside

        self.wrap(owner, name, make)

    def unwrap(self) -> None:
        """Restore the methods.

        A method that other code has wrapped again stays wrapped, because the outer wrapper calls the inner one.
        """
        for key, (owner, name, wrapper, before) in reversed(list(self._wrapped.items())):
            if vars(owner).get(name) is not wrapper:
                continue
            if before is _NONE:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
            del self._wrapped[key]

    def __reduce__(self) -> tuple[type[WrappedMethods], tuple[()]]:
        return type(self), ()
