"""What a handler gives: files to be."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run.capture import Capture
    from perfhooks.trace import Trace


class Artifact(NamedTuple):
    """A file to be: ``name`` without the rank (``steps.csv``), and what writes it into an open binary file."""

    name: str
    write: Callable[[IO[bytes]], object]


@runtime_checkable
class Handler(Protocol):
    """What a handler is: a frozen dataclass with this one method."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterable[Artifact]:
        """The files this window becomes; each gets its final name when it is whole."""
        ...
