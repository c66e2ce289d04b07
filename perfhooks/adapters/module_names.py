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
    """Labels the forward pass of each submodule of ``root``, for example ``[module] encoder.layer1``.

    torch.compile ignores hooks that are added after compilation. Code compiled with hooks is compiled again after
    `remove`. The label of a module with two names has the first name.
    """

    def __init__(self, root: torch.nn.Module, region: Callable[[str], AbstractContextManager[Any]]) -> None:
        self._labels = OpenLabels(region)
        self._hooks = []
        for name, module in root.named_modules():
            if name and "_orig_mod" not in name.split("."):
                self._hooks.append(module.register_forward_pre_hook(partial(self._enter, f"[module] {name}")))
                # always_call: close the label also after an exception
                self._hooks.append(module.register_forward_hook(self._leave, always_call=True))

    def _enter(self, label: str, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._labels.begin(label, key=_MODULE)

    def _leave(self, *_: Any) -> None:
        if not torch.compiler.is_compiling():
            self._labels.end(_MODULE)

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._labels.close()
