"""Names of modules in the model, such as ``layer1.0.conv2``.

The recorder writes only class and number: ``Conv2d_3``.
"""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn import Module

_MAX_MODULES: Final = 20_000
"""Maximum number of stored modules. Some loops create modules in every step."""
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?:\.|$)")
_PARALLEL: Final = ("DistributedDataParallel", "DataParallel")


class ModuleOrder:
    """The modules that were called in a window, in the order of their first calls.

    The recorder numbers the modules of each class in this order (``PythonIDVisitor`` in torch's ``collection.cpp``).
    Calls on other threads or in compiled code are not stored. If a trace has more modules of a class than stored names,
    readers ignore the names of the class.
    """

    def __init__(self) -> None:
        self.seen: dict[int, weakref.ref[Module]] = {}
        self._outermost: dict[int, weakref.ref[Module]] = {}

    def add(self, module: Module, *, is_outermost: bool) -> None:
        if len(self.seen) <= _MAX_MODULES:
            self.seen[id(module)] = weakref.ref(module)
            if is_outermost:
                self._outermost[id(module)] = self.seen[id(module)]

    def names(self) -> dict[str, list[str | None]]:
        if len(self.seen) > _MAX_MODULES:
            return {}
        called = dict(self._called())
        by_class: dict[str, list[str | None]] = {}
        classes: dict[str, type] = {}
        doubtful = set()
        for identity, reference in self.seen.items():
            module = reference()
            if module is None:
                return {}
            name = type(module).__name__
            doubtful |= {name} if classes.setdefault(name, type(module)) is not type(module) else set()
            by_class.setdefault(name, []).append(called.get(identity))
        return {name: names for name, names in by_class.items() if name not in doubtful and any(names)}

    def _called(self) -> Iterator[tuple[int, str]]:
        roots = self._roots()
        named = [[(id(module), name) for name, module in root.named_modules() if name] for root in roots]
        several = sum(map(bool, named)) > 1
        for root, names in zip(roots, named, strict=True):
            kind = type(root).__name__
            for identity, name in names:
                short = _WRAPPERS.sub("", name.removeprefix("module.") if kind in _PARALLEL else name)
                if short and not (kind in _PARALLEL and short == "module"):
                    yield identity, f"{kind}.{short}" if several else short

    def _roots(self) -> list[Module]:
        modules = [module for reference in self._outermost.values() if (module := reference()) is not None]
        inner = {id(part) for module in modules for name, part in module.named_modules() if name}
        return [module for module in modules if id(module) not in inner]
