"""The facts of one process of a training job; `perfhooks.run.job` finds them out."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Job:
    """The facts of one process of a training job."""

    rank: int = 0
    """Number of this process in the whole job."""
    local_rank: int = 0
    """Number of this process on its node."""
    world_size: int = 1
    """Number of processes in the job."""
    node: str = ""
    """Name of the machine."""
    identity: str | None = None
    """What the launcher calls this job, the same on all its ranks; None where there is no launcher."""
    is_restart: bool = False
    """Whether the launcher says that it had to start the processes of this node again."""

    @property
    def first(self) -> Job:
        """The facts of rank 0, as far as they are known here."""
        return replace(self, rank=0, local_rank=0)
