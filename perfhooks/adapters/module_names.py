"""The names of modules in the trace, while a window is open."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import torch

from perfhooks.adapters.open_labels import OpenLabels

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_MODULE: Final = "module"


class ModuleNames:
    """Labels the forward pass of every module with its name, ``[module] encoder.layer1``.

    Compiled code stays as it is: torch.compile neither calls hooks that came after it nor keeps those that it finds,
    which do nothing there. Code that is first compiled while they are in place is compiled once more without them.

    Args:
        root: The module whose descendants are labelled; one that is used twice has the first of its names.
        region: Opens a label in the trace.
    """

    def __init__(self, root: torch.nn.Module, region: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._labels = OpenLabels(region)
        self._hooks = []
        for name, module in root.named_modules():
            if name and "_orig_mod" not in name.split("."):
                self._hooks.append(module.register_forward_pre_hook(partial(self._enter, f"[module] {name}")))
                # called after an exception, too
                self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, label: str, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._labels.begin(label, key=_MODULE)

    def _leave(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._labels.end(_MODULE)

    def remove(self) -> None:
        """Take all hooks away."""
        for hook in self._hooks:
            hook.remove()
        self._labels.close()
