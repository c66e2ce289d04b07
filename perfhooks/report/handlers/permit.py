"""Permissions for handlers and uploads. Files of a run folder are not trusted."""

from __future__ import annotations

from typing import Any

import msgspec


class Permit(msgspec.Struct, frozen=True, kw_only=True):
    """Handlers and uploads that the user permits. Only options set a permission, never a file."""

    handlers: tuple[dict[str, Any], ...] = ()
    """Handlers that may run with exactly these options."""
    kinds: tuple[str, ...] = ()
    """Handlers that may run with any options."""
    remote: str | None = None
