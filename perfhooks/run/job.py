from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Final, NamedTuple

from perfhooks.core.job import Job
from perfhooks.run.liveness import began

_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1", "0.0.0.0")  # noqa: S104 -- compared with, never bound
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def current_job() -> Job:
    """Return the job from torch.distributed, else from the environment of torchrun or SLURM.

    ``identity`` is equal on all ranks and after an elastic restart, and different for the next job. The identity
    consists of torchrun's run id, and SLURM's job and step. On one node, ``identity`` also contains the launching
    process. A job on several nodes without these ids has only its rendezvous endpoint. The next job may use the same
    rendezvous endpoint, so pass ``--rdzv-id`` or ``run=``.
    """
    own = _from_process_group() or _from_torchrun() or _from_slurm() or _Place(0, 1)
    return Job(
        rank=own.rank,
        local_rank=_local_rank(own),
        world_size=own.world_size,
        node=platform.node(),
        identity=_identity(own.world_size) if own.world_size > 1 else None,
        is_restart=bool(_number("TORCHELASTIC_RESTART_COUNT", "SLURM_RESTART_COUNT")),
    )


def has_process_group() -> bool:
    return _from_process_group() is not None


class _Place(NamedTuple):
    rank: int
    world_size: int


def _from_process_group() -> _Place | None:
    distributed = getattr(sys.modules.get("torch"), "distributed", None)
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return _Place(distributed.get_rank(), distributed.get_world_size())


def _from_torchrun() -> _Place | None:
    return _place(_number("RANK"), _number("WORLD_SIZE"))


def _from_slurm() -> _Place | None:
    """Return the job of ``srun``. Without ``srun`` a process is alone, even inside a SLURM job."""
    if "SLURM_STEP_ID" not in os.environ:
        return None
    return _place(_number("SLURM_PROCID"), _number("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))


def _place(rank: int | None, world_size: int | None) -> _Place | None:
    return None if rank is None or not world_size else _Place(rank, world_size)


def _local_rank(own: _Place) -> int:
    number = _number("LOCAL_RANK", "SLURM_LOCALID")
    if number is not None:
        return number
    return own.rank if _on_one_node(own.world_size) else 0


def _number(*names: str) -> int | None:
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal()), None)


def _identity(world_size: int) -> str:
    launch = _launch() if _on_one_node(world_size) else None
    words = [word for word in (_run_id(unique=launch is None), _job_step(), launch) if word]
    if not words:
        words = [os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "")]
    return "-".join(filter(None, words)) or "job"


def _on_one_node(world_size: int) -> bool:
    local = _number("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE")
    if local is not None:
        return local == world_size
    return os.environ.get("MASTER_ADDR", "localhost") in _LOOPBACK and _number("SLURM_STEP_NUM_NODES") in (None, 1)


def _run_id(*, unique: bool) -> str | None:
    name = os.environ.get("TORCHELASTIC_RUN_ID", "")
    drawn = _UUID.fullmatch(name) is not None
    return None if name in ("", "none") or (drawn and not unique) else name


def _job_step() -> str | None:
    job = os.environ.get("SLURM_JOB_ID")
    step = os.environ.get("SLURM_STEP_ID")
    return job and f"slurm-{job}.{step}" if step else job and f"slurm-{job}"


def _launch() -> str | None:
    return _of_torchrun() or (None if "SLURM_STEP_ID" in os.environ else _of_parent())


def _of_torchrun() -> str | None:
    """Return ``id_ab12cd`` of torchrun's ``id_ab12cd/attempt_0/3/error.json``, which stays the same after restarts."""
    file = Path(os.environ.get("TORCHELASTIC_ERROR_FILE", ""))
    if len(file.parts) < 4 or not file.parts[-3].startswith("attempt_"):  # noqa: PLR2004 -- the parts above
        return None
    name = file.parts[-4].removeprefix(os.environ.get("TORCHELASTIC_RUN_ID", "") + "_")
    return f"torchrun-{name}"


def _of_parent() -> str:
    parent = os.getppid()
    port = os.environ.get("MASTER_PORT", "")
    return "-".join(filter(None, ("job", str(parent), began(parent), port)))
