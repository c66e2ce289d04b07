from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


class Artifact(NamedTuple):
    """A file to write: ``name`` without the rank (``steps.csv``), and a function that writes to a binary file."""

    name: str
    write: Callable[[IO[bytes]], object]


@runtime_checkable
class Handler(Protocol):
    """The protocol of a handler: a frozen dataclass with one method."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterable[Artifact]:
        """Return the files of a window."""
        ...
