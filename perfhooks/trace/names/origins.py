"""The origin of a frame, by the name of its file: the one definition of the user's code.

The recorder cuts the folders of ``sys.path`` off file names: ``lightning/pytorch/x.py`` lies where packages are
installed, ``models/net.py`` beside the user's script, and the name does not tell them apart. So the worker looks up
the first part of each name on the machine that recorded, and the capture keeps what it found (see
`perfhooks.run.installation`). Where nobody looked, as for traces that others recorded, names of the standard library
and of well-known packages are what they usually are, and everything else is the user's.
"""

from __future__ import annotations

import enum
import re
import sys
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping


class Origin(str, enum.Enum):
    """Where the code of a frame comes from."""

    USER = "user"
    INSTALLED = "installed"
    """An installed package of any environment, or a well-known library that runs from its sources elsewhere."""
    STANDARD = "standard"
    """The standard library."""
    TORCH = "torch"
    """torch, and the code that it generates."""
    PERFHOOKS = "perfhooks"
    """perfhooks and its integrations."""
    NO_SOURCE = "no source"
    """No line of Python: a function written in C, a module's name, an operator."""


Owners: TypeAlias = tuple[tuple[str, str], ...]
"""The first parts of file names (``lightning``, ``train.py``) or whole absolute names, and the `Origin` of each."""

PREFERENCE: Final = ((Origin.USER,), (Origin.INSTALLED,), (Origin.TORCH, Origin.STANDARD))
"""Whose lines are named: what `spoken` takes; never our own."""

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
"""Packages that nobody profiles as their own, for traces of which nobody looked up whose they are."""

_TORCH: Final = frozenset(("torch", "functorch", "torchgen", "triton"))
PLACE: Final = re.compile(r"(?P<file><[^>]*>[.\d]*|.+\.py\w?)\(\d+\): ")
_INSTALLED: Final = re.compile(r"/(?:site-packages|dist-packages)/(?P<rest>.+)")
_STANDARD: Final = re.compile(r"/(?:lib/)?python3(?:\.\d+)?/(?!(?:site|dist)-packages/)|\.zip/")
# what torch.compile writes may lie below a folder of sys.path, which the recorder cuts off, or in a cache of any name
_GENERATED: Final = re.compile(
    r"(?:^|/)torchinductor_|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{51}\.py$|^<eval_with_key>|(?:^|/)\.triton/"
)
_GENERATORS: Final = ("torchinductor_", "<eval_with_key>", ".triton/")
_HASHED: Final = 55  # letters in the name of a file that is called by what is in it
_OURS: Final = re.compile(r"perfhooks(?:_\w+)?$")
_OUR_FILES: Final = re.compile(r"/(?:perfhooks|integrations/perfhooks_\w+)/(?!examples/|tests/|benchmarks/)[\w/]+\.py$")


def first_part(name: str) -> str | None:
    """The first part of the file of a frame, which decides whose it is; None where it has no such part.

    Args:
        name: the name of a frame: ``lightning/pytorch/x.py(12): f`` has ``lightning``, ``train.py(3): f`` ``train.py``.
    """
    file = file_of(name)
    return None if file is None else _first_part(file)


def _first_part(file: str) -> str | None:
    return None if file.startswith(("/", "<")) or file[1:2] == ":" else file.partition("/")[0]


def file_of(name: str) -> str | None:
    """The file of a frame as the recorder names it, with slashes; None where the frame is no line of Python."""
    place = PLACE.match(name)
    return place["file"].replace("\\", "/") if place else None


def origin(name: str, owners: Mapping[str, str] | None = None) -> Origin:
    """Say whose line a frame is.

    Args:
        name: the name of a frame, as ``with_stack`` records it.
        owners: what the machine that recorded knew of first parts; None where nobody looked.
    """
    file = file_of(name)
    if file is None:
        return Origin.NO_SOURCE
    if _is_generated(file):
        return Origin.TORCH
    first = _first_part(file)
    if first is None:
        found = _of_absolute(file)
        return Origin(owners[file]) if found is Origin.USER and owners and file in owners else found
    return _of_first(first, owners or {})


def _is_generated(file: str) -> bool:
    """Whether torch.compile wrote it; the expression is slow for long names, and of hardly any it need be asked."""
    may_be = len(file.rpartition("/")[2]) == _HASHED or any(word in file for word in _GENERATORS)
    return may_be and _GENERATED.search(file) is not None


def _of_absolute(file: str) -> Origin:
    """Of a file that does not lie below ``sys.path``, or has no name: what a cell of a notebook runs is the user's."""
    if file.startswith("<"):
        return Origin.USER if file.startswith("<ipython") else Origin.STANDARD
    installed = _INSTALLED.search(file)
    if installed:
        found = _of_first(installed["rest"].partition("/")[0], {})
        return found if found in (Origin.TORCH, Origin.PERFHOOKS) else Origin.INSTALLED
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
