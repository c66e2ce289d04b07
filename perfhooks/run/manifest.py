from __future__ import annotations

import os
import platform
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from perfhooks.core.clocks import time
from perfhooks.core.version import __version__
from perfhooks.run import revision
from perfhooks.run.circumstances import cpu_model
from perfhooks.run.layout import MANIFEST, MOST_RANKS
from perfhooks.run.publishing import publish_json
from perfhooks.run.reading import check_format, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from perfhooks.core.job import Job

FORMAT: Final = 1


_DECISIVE: Final = (
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOMP_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "HIP_", "HSA_", "ROCR_", "MIOPEN_", "ZE_", "ASCEND_"),
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_"),
)
"""Prefixes of the environment variables that are stored. Other variables may contain secrets."""

_Count = Annotated[int, msgspec.Meta(ge=0, lt=MOST_RANKS)]


class StepsBy(msgspec.Struct, frozen=True, kw_only=True):
    """The step detector of a training without an integration."""

    what: str = ""
    """Event that ends a step, see `perfhooks.record.launch.step_detectors`."""
    fetches: float | None = None
    """Mean number of batches per step, at the end of the training."""
    updates: float | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    format: int = FORMAT
    started: str = ""
    """Start of the run in ISO 8601."""
    host: str = ""
    pid: int = 0
    world_size: _Count | None = None
    command: tuple[str, ...] = ()
    revision: str = ""
    """Commit of the program's repository."""
    versions: dict[str, str] = {}
    machine: str = ""
    environment: dict[str, str] = {}
    remote: str | None = None
    """URL of the copy of the run. It may be forged, so perfhooks never uploads files to it."""
    windows: tuple[str, ...] = ()
    """Names of the finished windows. A window is finished when one rank has its files."""
    schedule: dict[str, Any] | None = None
    handlers: tuple[dict[str, Any], ...] = ()
    options: dict[str, Any] = {}
    ranks: str | tuple[_Count, ...] | None = None
    """Profiled ranks, see `perfhooks.core.options.describe_ranks`."""
    steps_by: StepsBy | None = None
    """Step detector of `perfhooks run`; None if the training or its framework reports the steps."""
    keep_windows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Maximum windows per rank and stage."""

    @classmethod
    def of(cls, job: Job, *, remote: str | None = None, **facts: Any) -> Manifest:
        return cls(
            started=time.strftime("%Y-%m-%dT%H:%M:%S%z"),
            host=job.node,
            pid=os.getpid(),
            world_size=job.world_size,
            command=tuple(sys.argv),
            revision=revision.of_program(),
            versions=versions(),
            machine=machine(),
            environment=environment(),
            remote=remote,
            **facts,
        )

    @classmethod
    def read(cls, run: Path) -> Manifest:
        """Return an empty manifest if ``run.json`` is missing. Raise PerfhooksError if the file is broken."""
        path = run / MANIFEST
        try:
            manifest = read_json(path, cls, "a description of a run")
        except FileNotFoundError:
            return cls()
        check_format(path, manifest.format, FORMAT)
        return manifest

    def write(self, run: Path) -> None:
        publish_json(run / MANIFEST, self)


def versions() -> dict[str, str]:
    versions = {"perfhooks": __version__, "python": sys.version.split()[0]}
    for name in ("torch", "lightning", "pytorch_lightning", "mmengine"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions


def environment() -> dict[str, str]:
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_DECISIVE)}


def machine() -> str:
    """Return for example ``16 x Intel(R) Xeon(R) Platinum 8480+``."""
    # platform.processor() starts a process on Linux
    model = cpu_model() or (sys.platform != "linux" and platform.processor()) or platform.machine()
    return f"{os.cpu_count()} x {model}"
