"""One process of a training job. `perfhooks.run.job` detects the facts."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Job:
    rank: int = 0
    """Number in the whole job."""
    local_rank: int = 0
    """Number on its node."""
    world_size: int = 1
    node: str = ""
    """Name of the host."""
    identity: str | None = None
    """Job id from the launcher, equal on all ranks; None without a launcher."""
    is_restart: bool = False
    """Whether the launcher restarted the processes of this node."""

    @property
    def first(self) -> Job:
        """The known facts of rank 0."""
        return replace(self, rank=0, local_rank=0)
