"""Runs at the start of every Python under ``perfhooks run``: waits for torch, and lets the user's own file run too.

Python imports this file by its name from the folder that ``perfhooks run`` has put first in ``PYTHONPATH``. Processes
that never import torch pay for the lines below and for nothing else.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False  # typing takes milliseconds to import, and type checkers know the name
if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from typing import Any

BEGAN = time.monotonic_ns()
"""When this Python came here, by the clock that `perfhooks.launching.startup` goes by."""

WATCHED = (
    *("torch", "torch.optim.optimizer", "torch.utils.data.dataloader"),
    *("torch._dynamo", "mmengine.runner.runner", "transformers.trainer"),
)
"""The modules whose import means something: the first one that a training of torch may follow."""
EXPECTED = ("torch", "torch._dynamo")
"""Those before whose import there is something to do."""


class ImportWatcher:
    """Finds no module itself; tells `perfhooks.launching.arming` when one of those that matter has been imported."""

    def __init__(self) -> None:
        self.waiting = set(WATCHED)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Let the others find it, and listen to its end."""
        if name not in self.waiting:
            return None
        self.waiting.discard(name)
        if name in EXPECTED:
            told(f"{name} is coming", None)
        spec = None
        for finder in sys.meta_path:
            if finder is not self and (spec := finder.find_spec(name, path, target)) is not None:
                break
        loader = spec and spec.loader
        if loader is not None and hasattr(loader, "exec_module"):
            listen(loader, name)
        return spec


def listen(loader: Any, name: str) -> None:
    """Be called once the loader has executed its module."""

    def exec_module(module: Any) -> None:
        del loader.exec_module
        loader.exec_module(module)
        told(name, module)

    try:
        loader.exec_module = exec_module
    except AttributeError:
        return  # a loader that is not written in Python; nothing of torch has one


def told(name: str, module: Any) -> None:
    """Say what was imported; whatever goes wrong on our side must not reach the program."""
    try:
        from perfhooks.launching import arming
    except ImportError as error:
        if name == "torch is coming":
            sys.stderr.write(f"perfhooks run: {sys.executable} has no perfhooks, so nothing is recorded ({error})\n")
        return
    try:
        arming.imported(name, module, BEGAN)
    except Exception as error:  # noqa: BLE001 -- the program has not asked for us
        sys.stderr.write(f"perfhooks run: listening to {name} failed ({type(error).__name__}: {error})\n")


def run_the_users() -> None:
    """Import the ``sitecustomize`` that Python would have found without us, if there is one."""
    ours = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ImportError as error:
        if ours is not None:
            sys.modules["sitecustomize"] = ours
        if error.name != "sitecustomize":
            raise


here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 -- pathlib takes milliseconds to import
sys.path[:] = [entry for entry in sys.path if entry != here]
if os.environ.get("PERFHOOKS_RUN"):
    sys.meta_path.insert(0, ImportWatcher())
run_the_users()
