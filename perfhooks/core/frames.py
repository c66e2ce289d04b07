"""Classification of stack frames by absolute paths."""

from __future__ import annotations

import functools
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from perfhooks.core.process import working_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import CodeType

    _Wrapper = TypeVar("_Wrapper", bound=Callable[..., object])

COMPILES: Final = re.compile(r"/torch/_dynamo/convert_frame\.py$|/torch/_inductor/compile_fx\.py$|/triton/compiler/")
"""Files that are on the stack only during a compilation. Other files of ``torch.compile`` are also on the stack of
optimizer steps.
"""
TORCH: Final = "/torch/__init__.py"
RECORDER: Final = ("/torch/profiler/", "/torch/autograd/profiler")
LOADER: Final = "/torch/utils/data/"
ITERATORS: Final = f"{LOADER}dataloader.py"
FETCHES: Final = re.compile(rf"{LOADER}|/perfhooks/record/loop/loader\.py$|/perfhooks/record/launch/loaders\.py$")
MODELS: Final = "/torch/nn/modules/"
CALLS_MODULE: Final = "_wrapped_call_impl"
"""Name of the torch function that each call of an ``nn.Module`` enters first."""
SWITCHES_GRADIENTS: Final = "/torch/utils/_contextlib.py"
"""File of the wrapper around functions that are decorated with ``torch.no_grad`` or ``torch.inference_mode``."""
SAVES: Final = re.compile(r"/torch/(?:serialization\.py|distributed/checkpoint/)|/safetensors/")
COLLECTIVE: Final = re.compile(r"/torch/distributed/(?!checkpoint/|optim/)")
BACKWARD: Final = re.compile(r"/torch/autograd/graph\.py$|/torch/_tensor\.py$")

FETCHES_BATCH: Final = re.compile(r"torch/utils/data/_utils/fetch\.py\(\d+\): fetch$")
"""Frame of a loader worker that makes a batch, as ``file.py(12): function``."""
WORKER_LOOP: Final = re.compile(r"torch/utils/data/_utils/worker\.py\(\d+\): _worker_loop$")
HANDS_OVER: Final = re.compile(r": (?:put|_feed|reduce_\w+)$")
"""Frames of a loader worker that sends a batch to the training."""
COLLATES: Final = re.compile(r"/collate\.py\(\d+\): |: \w*collate\w*$")

AS_IMPORTLIB: Final = "<importlib._bootstrap>"
"""Prefix of the file names of our wrappers, see `hide_from_warnings`."""
_HERE: Final = f"{Path(__file__).parents[1]}{os.sep}"


def is_torch(file: str) -> bool:
    return "/torch/" in file or "/torchinductor" in file


def is_ours(file: str) -> bool:
    return file.removeprefix(AS_IMPORTLIB).startswith(_HERE) or "/perfhooks_" in file


def hide_from_warnings(wrapper: _Wrapper) -> _Wrapper:
    """Exclude a wrapper from the ``stacklevel`` of warnings, which else names a file of perfhooks.

    ``warnings`` does not count frames of importlib (``is_internal_filename`` in CPython's ``_warnings.c``).
    """
    function: Any = wrapper
    function.__code__ = _renamed(function.__code__)
    return wrapper


@functools.cache
def _renamed(code: CodeType) -> CodeType:
    return code.replace(co_filename=f"{AS_IMPORTLIB}{code.co_filename}")


def display_path(file: str) -> str:
    """Return the path as torch's recorder shows it."""
    folders = _import_folders(working_directory(), tuple(entry for entry in sys.path if isinstance(entry, str)))
    return file.removeprefix(next(filter(file.startswith, folders), ""))


@functools.lru_cache(maxsize=8)
def _import_folders(here: str, entries: tuple[str, ...]) -> list[str]:
    return sorted((f"{Path(here, entry)}{os.sep}" for entry in entries), reverse=True)
