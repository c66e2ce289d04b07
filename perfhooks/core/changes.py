"""Changes of a training for ``perfhooks tune``."""

from __future__ import annotations

from typing import Any

import msgspec


class TrainingChange(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    rules: tuple[str, ...] = ()
    is_numeric: bool = False
    needs_device: bool = False
    group: str = ""
    calls: tuple[str, ...] = ()
    arguments: dict[str, Any] = {}
    needs: str = ""
    setting: str = ""
    """Statement to insert after the imports."""
    model: str = ""
    """Statement to insert after the construction of the model."""

    @property
    def is_proposed(self) -> bool:
        return not (self.arguments or self.setting or self.model)


class Site(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    change: str
    lines: tuple[tuple[str, int], ...] = ()
    callees: tuple[str, ...] = ()
    before: dict[str, Any] = {}
    is_same: bool = False
    problem: str = ""
