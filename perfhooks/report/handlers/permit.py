"""What the files of a run folder may make happen only because the user has said so: they may come from anybody."""

from __future__ import annotations

from typing import Any

import msgspec


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """What the user's own process said by its options, or the command line by its own; a file gives none of it."""

    handlers: tuple[dict[str, Any], ...] = ()
    """Handlers that may run just as they are told here, of the user's own among them."""
    kinds: tuple[str, ...] = ()
    """Types of handlers that may run with any options."""
    remote: str | None = None
    """The URL that finished files may be copied to; None copies nothing."""
