"""Frames of a running program: by what part of its path a file of torch's, of Python's or of ours is known.

These are whole paths, as Python has them. A trace names files without the folders of ``sys.path``, and what it says is
told in `perfhooks.trace.names`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from perfhooks.core.process import working_directory

COMPILES: Final = re.compile(r"/torch/_dynamo/convert_frame\.py$|/torch/_inductor/compile_fx\.py$|/triton/compiler/")
"""Files of ``torch.compile`` that are only on the stack while it compiles. Others pass calls on: each ``step`` of an
optimizer goes through ``torch/_dynamo/eval_frame.py``."""
TORCH: Final = "/torch/__init__.py"
"""Where ``torch.compile`` is."""
RECORDER: Final = ("/torch/profiler/", "/torch/autograd/profiler")
LOADER: Final = "/torch/utils/data/"
ITERATORS: Final = f"{LOADER}dataloader.py"
"""Where a loader starts its workers."""
FETCHES: Final = re.compile(rf"{LOADER}|/perfhooks/record/loop/loader\.py$|/perfhooks/record/launch/loaders\.py$")
"""Those that fetch a batch, ours in between included."""
MODELS: Final = "/torch/nn/modules/"
CALLS_MODULE: Final = "_wrapped_call_impl"
"""The function there that every call of a module begins with."""
SAVES: Final = re.compile(r"/torch/(?:serialization\.py|distributed/checkpoint/)|/safetensors/")
"""Those that save and load."""
COLLECTIVE: Final = re.compile(r"/torch/distributed/(?!checkpoint/|optim/)")
WAITS: Final = re.compile(r"/(?:threading|queue)\.py$|/(?:multiprocessing|concurrent/futures)/")
"""Python's own, in which a thread waits for another one."""
BACKWARD: Final = re.compile(r"/torch/autograd/graph\.py$|/torch/_tensor\.py$")

FETCHES_BATCH: Final = re.compile(r"torch/utils/data/_utils/fetch\.py\(\d+\): fetch$")
"""The frame of a worker, as ``file.py(12): function``, inside which a batch is made."""
WORKER_LOOP: Final = re.compile(r"torch/utils/data/_utils/worker\.py\(\d+\): _worker_loop$")
"""The outermost frame of a worker."""
HANDS_OVER: Final = re.compile(r": (?:put|_feed|reduce_\w+)$")
"""Frames of a worker that hands a batch over."""
COLLATES: Final = re.compile(r"/collate\.py\(\d+\): |: \w*collate\w*$")
"""The frame, called by the one that fetches, that makes a batch of samples."""

_HERE: Final = f"{Path(__file__).parents[1]}{os.sep}"


def is_torch(file: str) -> bool:
    """Whether a file is torch's, or was written by ``torch.compile``."""
    return "/torch/" in file or "/torchinductor" in file


def is_ours(file: str) -> bool:
    """Whether a file is one of perfhooks or of its faces."""
    return file.startswith(_HERE) or "/perfhooks_" in file


def shown(file: str) -> str:
    """A file as the table names it: relative to the working directory if it is in there."""
    here = working_directory() + os.sep
    return file.removeprefix(here)
