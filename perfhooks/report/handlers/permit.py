"""Permissions for handlers and uploads. Files of a run folder are not trusted."""

from __future__ import annotations

from typing import Any

import msgspec


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """Handlers and uploads that the user permits by options. Files of a run cannot set permissions."""

    handlers: tuple[dict[str, Any], ...] = ()
    """Handlers with options. They may run only with exactly these options."""
    kinds: tuple[str, ...] = ()
    """Types of handlers that may run with any options."""
    remote: str | None = None
