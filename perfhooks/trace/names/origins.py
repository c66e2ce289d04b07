"""Origin of a stack frame: the user, an installed package, Python, torch or perfhooks.

The recorder removes the folders of ``sys.path`` from file names, so file names do not separate installed files from
files of the user. perfhooks records the origin of each file (`perfhooks.run.installation`). In other traces, the origin
comes from well-known package names.
"""

from __future__ import annotations

import enum
import re
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

from perfhooks.core.frames import AS_IMPORTLIB

if TYPE_CHECKING:
    from collections.abc import Mapping


class Origin(str, enum.Enum):
    USER = "user"
    INSTALLED = "installed"
    """An installed package, or a well-known library in a source checkout."""
    STANDARD = "standard"
    TORCH = "torch"
    PERFHOOKS = "perfhooks"
    NO_SOURCE = "no source"


Owners: TypeAlias = tuple[tuple[str, str], ...]
"""Pairs of file name and `Origin`. The file name is absolute, or only its first part (``lightning``, ``train.py``)."""

PREFERENCE: Final = ((Origin.USER,), (Origin.INSTALLED,), (Origin.TORCH, Origin.STANDARD))
"""Origins of the frames that `describe_frames` receives, one tuple for each argument."""

KNOWN: Final = frozenset(
    (
        *("torchvision", "torchaudio", "torchtext", "torchmetrics", "torchdata", "torchao", "ignite"),
        *("lightning", "pytorch_lightning", "lightning_fabric", "lightning_utilities", "jsonargparse"),
        *("mmengine", "mmcv", "mmdet", "mmpretrain", "mmseg", "transformers", "accelerate", "datasets", "peft", "trl"),
        *("tokenizers", "safetensors", "evaluate", "diffusers", "deepspeed", "megatron", "transformer_engine"),
        *("timm", "apex", "xformers", "flash_attn", "vllm", "sglang", "einops", "composer", "torchrec", "fbgemm_gpu"),
        *("numpy", "scipy", "pandas", "polars", "pyarrow", "sklearn", "PIL", "cv2", "albumentations", "skimage"),
        *("tqdm", "rich", "tensorboard", "tensorboardX", "wandb", "mlflow", "hydra", "omegaconf", "yaml", "requests"),
        *("fsspec", "huggingface_hub", "filelock", "typing_extensions", "six.py", "decorator.py", "packaging", "click"),
        *("IPython", "ipykernel", "tornado", "zmq", "nest_asyncio.py", "debugpy", "_pytest", "pytest", "pluggy"),
    )
)
"""Well-known packages, for traces that perfhooks did not record."""

_TORCH: Final = frozenset(("torch", "functorch", "torchgen", "triton"))
LOCATION: Final = re.compile(r"(?P<file><[^>]*>[.\d]*|.+\.py\w?)\(\d+\): ")
_INSTALLED: Final = re.compile(r"/(?:site-packages|dist-packages)/(?P<rest>.+)")
_STANDARD: Final = re.compile(r"/(?:lib/)?python3(?:\.\d+)?/(?!(?:site|dist)-packages/)|\.zip/")
# files of torch.compile may be below a folder of sys.path, or in a cache of any name
_GENERATED: Final = re.compile(
    r"(?:^|/)torchinductor_|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{51}\.py$|^<eval_with_key>|(?:^|/)\.triton/"
)
_GENERATORS: Final = ("torchinductor_", "<eval_with_key>", ".triton/")
_HASHED: Final = 55
"""Length of a file name that consists of a hash and its extension."""
_OURS: Final = re.compile(r"perfhooks(?:_\w+)?$")
_OUR_FILES: Final = re.compile(r"/(?:perfhooks|integrations/perfhooks_\w+)/(?!examples/|tests/|benchmarks/)[\w/]+\.py$")


def first_part(name: str) -> str | None:
    """Return the first part of the file of a frame: ``lightning``, ``train.py``. Absolute names have no such part."""
    file = file_of(name)
    return None if file is None else _first_part(file)


def _first_part(file: str) -> str | None:
    return None if file.startswith(("/", "<")) or file[1:2] == ":" else file.partition("/")[0]


def file_of(name: str) -> str | None:
    location = LOCATION.match(name)
    return location["file"].replace("\\", "/") if location else None


def origin(name: str, owners: Mapping[str, str] | None = None) -> Origin:
    file = file_of(name)
    if file is None:
        return Origin.NO_SOURCE
    if _is_generated(file):
        return Origin.TORCH
    first = _first_part(file)
    if first is None:
        result = _of_absolute(file)
        return Origin(owners[file]) if result is Origin.USER and owners and file in owners else result
    return _of_first(first, owners or {})


def _is_generated(file: str) -> bool:
    may_be = len(file.rpartition("/")[2]) == _HASHED or any(word in file for word in _GENERATORS)
    return may_be and _GENERATED.search(file) is not None


def _of_absolute(file: str) -> Origin:
    file = file.removeprefix(AS_IMPORTLIB)
    if file.startswith("<"):  # code without a file; cells of a notebook are user code
        return Origin.USER if file.startswith("<ipython") else Origin.STANDARD
    installed = _INSTALLED.search(file)
    if installed:
        package = _of_first(installed["rest"].partition("/")[0], {})
        return package if package in (Origin.TORCH, Origin.PERFHOOKS) else Origin.INSTALLED
    if _OUR_FILES.search(file):
        return Origin.PERFHOOKS
    return Origin.STANDARD if _STANDARD.search(file) else Origin.USER


def _of_first(first: str, owners: Mapping[str, str]) -> Origin:
    if first in _TORCH:
        return Origin.TORCH
    if _OURS.match(first):
        return Origin.PERFHOOKS
    if first in owners:
        return Origin(owners[first])
    if first.removesuffix(".py") in sys.stdlib_module_names:
        return Origin.STANDARD
    return Origin.INSTALLED if first in KNOWN else Origin.USER
