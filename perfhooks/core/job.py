from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Job:
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    node: str = ""
    identity: str | None = None
    """Text that is equal on all ranks of a job; None without a launcher."""
    is_restart: bool = False

    @property
    def first(self) -> Job:
        return replace(self, rank=0, local_rank=0)
