"""The facts of a run in ``run.json``: command, time, machine and options."""

from __future__ import annotations

import contextlib
import os
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from perfhooks.core.version import __version__
from perfhooks.run import revision
from perfhooks.run.layout import MANIFEST
from perfhooks.run.publishing import publish_json
from perfhooks.run.reading import check_format, read_json

if TYPE_CHECKING:
    from perfhooks.core.job import Job

FORMAT: Final = 1
"""1: the first."""

_MOST_RANKS: Final = 1_000_000
"""Ten times the processes of the largest jobs: a number beyond it is a mistake, or an attack on memory."""

_DECISIVE: Final = (
    *("OMP_", "MKL_", "KMP_", "OPENBLAS_", "GOMP_"),
    *("CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_TF32", "HIP_", "HSA_", "ROCR_", "MIOPEN_", "ZE_", "ASCEND_"),
    *("NCCL_", "RCCL_", "GLOO_", "UCX_", "PYTORCH_", "TORCH_", "TORCHINDUCTOR_", "TRITON_"),
)
"""Prefixes of stored environment variables. Others may hold secrets."""
_MODEL: Final = "model name"

_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST_RANKS)]


class StepsBy(msgspec.Struct, frozen=True, kw_only=True):
    """The step detector of a training without an integration."""

    what: str = ""
    """``loader``, ``optimizer``, ``batches``, ``backward``, ``call`` or ``process``; see
    `perfhooks.record.launch.step_detectors`."""
    fetches: float | None = None
    """Mean number of batches per step; known at the end of the process."""
    updates: float | None = None
    """Steps of optimizers in a step, the mean."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts of a run; where a run says nothing of something, the field is empty."""

    format: int = FORMAT
    started: str = ""
    """When, in ISO 8601."""
    host: str = ""
    """The machine of the rank that began it."""
    pid: int = 0
    """The process of that rank."""
    world_size: _Count | None = None
    """Number of processes in the job."""
    command: tuple[str, ...] = ()
    """How the training was started."""
    revision: str = ""
    """The commit that was checked out where the program is; empty where that is no repository."""
    versions: dict[str, str] = {}
    """Versions of Python, torch and related packages."""
    machine: str = ""
    """Model and number of CPUs."""
    environment: dict[str, str] = {}
    """The variables that decide how fast a training is."""
    remote: str | None = None
    """The URL at which the run was to be kept. Nothing is sent there because it stands here."""
    windows: tuple[str, ...] = ()
    """The finished windows of any rank, by name, in the order in which the first rank finished each."""
    schedule: dict[str, Any] | None = None
    """Which steps were to be recorded."""
    handlers: tuple[dict[str, Any], ...] = ()
    """Handlers of each window."""
    options: dict[str, Any] = {}
    """Options of the recorder."""
    ranks: str | tuple[_Count, ...] | None = None
    """Which ranks were to record, as `perfhooks.core.options.describe_ranks` says it."""
    steps_by: StepsBy | None = None
    """How ``perfhooks run`` told steps; None where the training or its framework says what a step is."""
    keep_windows: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """How many windows of a stage a rank was to keep."""

    @classmethod
    def of(cls, job: Job, *, remote: str | None = None, **facts: Any) -> Manifest:
        """Return the manifest of a run that begins now."""
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
        """Read the manifest of a run folder; an empty one if it is missing.

        Raises:
            PerfhooksError: It is broken, or of another format.
        """
        path = run / MANIFEST
        try:
            manifest = read_json(path, cls, "the facts of a run")
        except FileNotFoundError:
            return cls()
        check_format(path, manifest.format, FORMAT)
        return manifest

    def write(self, run: Path) -> None:
        """Write it into a run folder."""
        publish_json(run / MANIFEST, self)


def versions() -> dict[str, str]:
    """The versions that a reader of the files may need to know."""
    versions = {"perfhooks": __version__, "python": sys.version.split()[0]}
    for name in ("torch", "lightning", "pytorch_lightning", "mmengine"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions


def environment() -> dict[str, str]:
    """The variables of this process that decide how fast a training is: threads, devices, communication, allocators."""
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(_DECISIVE)}


def machine() -> str:
    """Return the model and number of CPUs: ``16 x Intel(R) Xeon(R) Platinum 8480+``."""
    model = ""
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as file:
        lines = (line.partition(":") for line in file)
        model = next((value.strip() for name, _, value in lines if name.strip() == _MODEL), "")
    # platform.processor() starts a process on Linux
    return f"{os.cpu_count()} x {model or (sys.platform != 'linux' and platform.processor()) or platform.machine()}"
