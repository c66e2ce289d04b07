"""Functions that stand in for public methods of somebody else's objects, and leave nothing when they are taken back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable

_NONE: Final = object()


class _StandIn(NamedTuple):
    owner: Any
    name: str
    function: Callable[..., Any]
    before: Any
    """What the instance itself had under the name."""


class StandIns:
    """Some stand-ins that are put and taken back together."""

    def __init__(self) -> None:
        self._put: dict[tuple[int, str], _StandIn] = {}

    def put(self, owner: Any, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """Let ``make(method)`` stand in for a method of one object, if it has such a method and not yet a stand-in."""
        method, key = getattr(owner, name, None), (id(owner), name)
        if method is None or key in self._put:
            return
        stand_in = _StandIn(owner, name, make(method), vars(owner).get(name, _NONE))
        setattr(owner, name, stand_in.function)
        self._put[key] = stand_in

    def take_back(self) -> None:
        """Put the methods back; one that somebody has covered since stays, as theirs leads to ours."""
        for key, (owner, name, function, before) in reversed(list(self._put.items())):
            if vars(owner).get(name) is not function:
                continue
            if before is _NONE:
                delattr(owner, name)
            else:
                setattr(owner, name, before)
            del self._put[key]
