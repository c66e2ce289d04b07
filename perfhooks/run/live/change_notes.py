"""Files of a trial of ``perfhooks tune``: affected calls, first losses and the number of steps."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from perfhooks.core.changes import Site
from perfhooks.run.reading import read_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

_SITES, _LOSSES, _STEPS = "sites", "losses", "total"
_MAX_BYTES: Final = 1 << 20


class Effects(NamedTuple):
    sites: Sequence[Site] = ()
    losses: Sequence[float] = ()
    steps: int | None = None


def leave_site(folder: str, site: Site) -> None:
    _append(folder, _SITES, msgspec.to_builtins(site))


def leave_loss(folder: str, loss: float) -> None:
    _append(folder, _LOSSES, loss)


def leave_steps(folder: str, steps: int) -> None:
    _append(folder, _STEPS, steps)


def read(folder: str) -> Effects:
    sites = dict.fromkeys(msgspec.json.encode(site) for site in _values(folder, _SITES))
    steps = [int(value) for value in _values(folder, _STEPS)]
    losses = [float(value) for value in _values(folder, _LOSSES)]
    return Effects([msgspec.json.decode(site, type=Site) for site in sites], losses, max(steps, default=None))


def _append(folder: str, name: str, value: Any) -> None:
    with contextlib.suppress(OSError):
        file = os.open(f"{folder}/{os.getpid()}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            os.write(file, msgspec.json.encode(value) + b"\n")
        finally:
            os.close(file)


def _values(folder: str, name: str) -> list[Any]:
    values: list[Any] = []
    for path in sorted(Path(folder).glob(f"*.{name}")):
        with contextlib.suppress(OSError, ValueError):
            values += map(msgspec.json.decode, read_bytes(path, _MAX_BYTES).splitlines())
    return values
