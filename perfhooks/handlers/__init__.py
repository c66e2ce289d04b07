"""What one finished window becomes: each handler turns a capture and its trace into files."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from perfhooks.run import Capture
    from perfhooks.trace import Trace


class Artifact(NamedTuple):
    """A file to be: ``name`` without the rank (``steps.csv``), and what writes it into an open binary file."""

    name: str
    write: Callable[[IO[bytes]], object]


class Handler(Protocol):
    """What a handler is: a small frozen dataclass with this one method, needing only files."""

    def artifacts(self, capture: Capture, trace: Trace) -> Iterable[Artifact]:
        """The files this window becomes; each is written under a temporary name and renamed when whole."""
        ...
