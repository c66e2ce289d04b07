"""Which module is which in a trace: the recorder writes ``Conv2d_3``, the model calls it ``layer1.0.conv2``."""

from __future__ import annotations

import re
import weakref
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch.nn import Module

_MOST: Final = 20_000
"""Modules, called in one window. A loop that makes new ones in every step shall not fill the memory with them."""
_WRAPPERS: Final = re.compile(r"(?:^|(?<=\.))(?:_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)(?:\.|$)")
"""Names that torch's wrappers give to what they wrap."""
_PARALLEL: Final = ("DistributedDataParallel", "DataParallel")


class ModuleOrder:
    """The modules that were called in a window, in the order of their first calls.

    The recorder numbers the modules of each class in just that order (``PythonIDVisitor`` in torch's
    ``collection.cpp``). Calls that we do not see, on other threads or in compiled code, would shift the numbers:
    whoever reads the trace finds other numbers in it then than there are names, and uses none of that class.
    """

    def __init__(self) -> None:
        self.seen: dict[int, weakref.ref[Module]] = {}
        """By identity, as the recorder knows them."""
        self._outermost: dict[int, weakref.ref[Module]] = {}

    def add(self, module: Module, *, is_outermost: bool) -> None:
        """Note the first call of a module.

        Args:
            module: Whatever is called.
            is_outermost: Whether no other module was being called.
        """
        if len(self.seen) <= _MOST:
            self.seen[id(module)] = weakref.ref(module)
            if is_outermost:
                self._outermost[id(module)] = self.seen[id(module)]

    def names(self) -> dict[str, list[str | None]]:
        """The names of the modules of each class, in the order of the recorder's numbers; None of one that has none."""
        if len(self.seen) > _MOST:
            return {}
        called = dict(self._called())
        by_class: dict[str, list[str | None]] = {}
        classes: dict[str, type] = {}
        doubtful = set()
        for place, reference in self.seen.items():
            module = reference()
            if module is None:
                return {}  # of which class it was is not known any more
            name = type(module).__name__
            # classes of one name have numbers of their own
            doubtful |= {name} if classes.setdefault(name, type(module)) is not type(module) else set()
            by_class.setdefault(name, []).append(called.get(place))
        return {name: names for name, names in by_class.items() if name not in doubtful and any(names)}

    def _called(self) -> Iterator[tuple[int, str]]:
        """What the models call their modules, by identity."""
        roots = self._roots()
        named = [[(id(module), name) for name, module in root.named_modules() if name] for root in roots]
        several = sum(map(bool, named)) > 1
        for root, names in zip(roots, named, strict=True):
            kind = type(root).__name__
            for place, name in names:
                short = _WRAPPERS.sub("", name.removeprefix("module.") if kind in _PARALLEL else name)
                if short and not (kind in _PARALLEL and short == "module"):
                    yield place, f"{kind}.{short}" if several else short

    def _roots(self) -> list[Module]:
        """The outermost modules that are in no other of them."""
        modules = [module for reference in self._outermost.values() if (module := reference()) is not None]
        inner = {id(part) for module in modules for name, part in module.named_modules() if name}
        return [module for module in modules if id(module) not in inner]
