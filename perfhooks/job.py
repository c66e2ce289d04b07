"""Who this process is: its rank among how many, on which node, in which run."""

from __future__ import annotations

import os
import platform
import sys
from dataclasses import dataclass


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

    @classmethod
    def current(cls) -> Job:
        """Ask torch.distributed where it is initialised, else the environment of torchrun or SLURM."""
        rank, world_size = _from_process_group() or _from_environment()
        return cls(
            rank=rank,
            local_rank=_number("LOCAL_RANK", "SLURM_LOCALID"),
            world_size=world_size,
            node=platform.node(),
            identity=_identity() if world_size > 1 else None,
        )


def _from_process_group() -> tuple[int, int] | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def _from_environment() -> tuple[int, int]:
    return _number("RANK", "SLURM_PROCID"), max(1, _number("WORLD_SIZE", "SLURM_NTASKS", default=1))


def _number(*names: str, default: int = 0) -> int:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), default)


def _identity() -> str | None:
    environ = os.environ
    name = environ.get("TORCHELASTIC_RUN_ID") or environ.get("SLURM_JOB_ID")
    port = environ.get("MASTER_PORT")
    words = [word for word in (name, port) if word and word != "none"]
    return "-".join(words) or None
