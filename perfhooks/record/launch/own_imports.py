"""Imports of our own code under ``perfhooks run``: from our installation, whatever the program does to ``sys.path``.

A program may have a ``psutil`` of its own, as ray has: beside the script, in PYTHONPATH, or in a folder that it adds to
``sys.path`` later. Our modules get the installed one, and the program gets its own. Therefore our modules have an
``__import__`` of their own, and its modules do not stay in ``sys.modules``. If the program imports the same file, it
gets the same module, because some extension modules must not be loaded twice. Modules of Python and requirements of
torch are shared from the start if the program would find the same file.
"""

from __future__ import annotations

import builtins
import os
import sys
from _frozen_importlib_external import PathFinder
from _thread import RLock, get_ident
from collections import ChainMap

TYPE_CHECKING = False  # typing takes milliseconds to import, and type checkers know the name
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

DEPENDENCIES = {
    *("msgspec", "polars", "_polars_runtime_32", "plotly", "narwhals", "rich", "typer"),
    *("fsspec", "filelock", "psutil"),
}
"""Modules of our requirements. A program may put its own before them at any time."""
_WITH_TORCH = {"numpy", "typing_extensions"}
"""Requirements of torch as well: the program has them from the start."""
_CANDIDATES = DEPENDENCIES | _WITH_TORCH | (sys.stdlib_module_names - {*sys.builtin_module_names})


class OwnImports:
    """The modules that are loaded for our code.

    Args:
        path: The folders of our installation.
        find: Finds what the program would find.
    """

    def __init__(self, path: Sequence[str], find: Callable[..., ModuleSpec | None]) -> None:
        self._path, self._find = path, find
        self._modules: dict[str, ModuleType] = {}
        """The modules that were loaded for our code, by name."""
        self._handed: set[str] = set()
        """The names of modules that the program uses as well."""
        self._tops: set[str] = set()
        """Top-level names of these modules."""
        self._shared: set[str] = set()
        """Top-level names under which the program has the module of our installation."""
        self._taken: set[str] = set()
        """Top-level names under which the program has another module."""
        self._theirs: dict[str, ModuleType] = {}
        """Modules of the program, while ours are in their place."""
        self._new: set[str] = set()
        self._lock, self._depth, self._thread = RLock(), 0, 0
        self._builtins = {**vars(builtins), "__import__": self._import}
        """The builtins of our modules."""
        self._builtins_of_loaded = {**vars(builtins), "__import__": self._import_of_loaded}
        """The builtins of modules that are loaded for ours."""
        self._sys = _Sys(self._modules, self._new)

    # -- what our modules import -------------------------------------------------------------------------------------

    def _import(self, name: str, scope: Any = None, local: Any = None, wanted: Any = (), level: int = 0) -> Any:
        """Stand in for ``__import__`` in our modules."""
        whole = name if not level else _absolute(name, scope, level)
        top = whole.partition(".")[0]
        if top not in _CANDIDATES or not self._is_own(top):
            return __import__(name, scope, local, wanted, level)
        if wanted == []:  # PyImport_Import asks so, for polars in Rust, and takes the module from sys.modules then
            module = self._modules.get(whole) or self._load(whole, wanted)
            sys.modules.setdefault(whole, self._modules.get(whole, module))
            return module
        module = self._modules.get(whole)
        if module is not None and not self._depth:
            if not wanted:
                return self._modules[top]
            if all(hasattr(module, each) for each in wanted):
                return module
        return self._load(whole, wanted)

    def _import_of_loaded(self, name: str, *more: Any, **named: Any) -> Any:
        """Stand in for ``__import__`` in the modules that are loaded for ours: some look themselves up."""
        return self._sys if name == "sys" else self._import(name, *more, **named)

    def _is_own(self, top: str) -> bool:
        """Return whether our code has a module of its own under a name."""
        if top not in self._tops and top not in self._shared:
            spec, theirs = PathFinder.find_spec(top, self._path), sys.modules.get(top)
            has_theirs = theirs is not None or top not in DEPENDENCIES
            found = self._find(top, None, None) if theirs is None else getattr(theirs, "__spec__", None)
            if spec is None or (has_theirs and _is_same(found, spec)):
                self._shared.add(top)
                return False
            self._tops.add(top)
            if theirs is not None:
                self._taken.add(top)
                if self._depth:
                    self._set_aside({top})
        return top in self._tops

    def _load(self, whole: str, wanted: Any) -> Any:
        with self._lock:
            if not self._depth:
                self._thread = get_ident()
                self._set_aside(self._taken)
                sys.modules.update(self._modules)
            self._depth += 1
            try:
                return __import__(whole, None, None, wanted, 0)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._thread = 0
                    self._put_back()

    def _set_aside(self, tops: set[str]) -> None:
        """Take the modules of the program with these names out of the way."""
        for name in [name for name in sys.modules if name.partition(".")[0] in tops] if tops else ():
            self._theirs[name] = sys.modules.pop(name)

    def _put_back(self) -> None:
        """Leave the program the modules that it had, and no others."""
        self._modules.update((name, sys.modules[name]) for name in self._new if name in sys.modules)
        self._new.clear()
        for name in self._modules.keys() - self._handed:
            sys.modules.pop(name, None)
        sys.modules.update(self._theirs)
        self._theirs.clear()

    # -- what is found -----------------------------------------------------------------------------------------------

    def find_spec(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """Find a module of perfhooks, or a module that was loaded for it."""
        top = name.partition(".")[0]
        is_loading = self._depth and self._thread == get_ident() and top in self._tops
        if is_loading or top == "perfhooks" or top.startswith("perfhooks_"):
            spec = PathFinder.find_spec(name, self._path if path is None else path, target)
            if spec is not None:
                self._equip(spec.loader, self._builtins_of_loaded if is_loading else self._builtins)
                if is_loading:
                    self._new.add(name)
            return spec
        return self._hand_over(name, path, target) if name in self._modules else None

    def _hand_over(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        """Give the program our module, if it would find the same file."""
        spec, ours = self._find(name, path, target), self._modules[name]
        if spec is not None and _is_same(ours.__spec__, spec):
            self._handed.add(name)
            loader: Any = _Handover(ours)
            spec.loader = loader
        else:
            self._taken.add(name.partition(".")[0])
        return spec

    @staticmethod
    def _equip(loader: Any, names: dict[str, Any]) -> None:
        """Have a loader give its module some builtins."""
        plain = getattr(loader, "exec_module", None)
        if plain is None:
            return

        def exec_module(module: Any) -> None:
            del loader.exec_module
            vars(module)["__builtins__"] = names
            plain(module)

        loader.exec_module = exec_module


class _Modules(ChainMap[str, "ModuleType"]):
    """``sys.modules`` of a module that is not in it."""

    def __init__(self, own: dict[str, ModuleType], new: set[str]) -> None:
        super().__init__(own, sys.modules)
        self._new = new

    def __setitem__(self, name: str, module: ModuleType) -> None:
        sys.modules[name] = module
        self._new.add(name)


class _Sys:
    """Stands for ``sys`` in a module that is not in ``sys.modules``, for example in psutil."""

    def __init__(self, own: dict[str, ModuleType], new: set[str]) -> None:
        self.modules = _Modules(own, new)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class _Handover:
    """Loads a module that is there."""

    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _absolute(name: str, scope: dict[str, Any], level: int) -> str:
    """Resolve a relative import."""
    package = scope.get("__package__") or scope["__name__"]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


def _is_same(first: ModuleSpec | None, second: ModuleSpec) -> bool:
    """Return whether two modules are one file; those without a file are Python's own."""
    ours: str | None = getattr(first, "origin", None)
    theirs = second.origin
    if ours == theirs or ours is None or theirs is None or ours in ("built-in", "frozen"):
        return True
    return bool(os.path.realpath(ours) == os.path.realpath(theirs))
