"""Imports of our own code under ``perfhooks run``, independent of the program's changes to ``sys.path``.

A program may have its own ``psutil``, as ray has, so modules of perfhooks use a private ``__import__``. Dependencies of
perfhooks do not stay in ``sys.modules``. Some extension modules must not be loaded twice, so the program gets the
module of perfhooks if it imports the same file.
"""

from __future__ import annotations

import builtins
import os
import sys
from _frozen_importlib_external import PathFinder
from _thread import RLock, get_ident
from collections import ChainMap

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

DEPENDENCIES = {
    *("msgspec", "polars", "_polars_runtime_32", "plotly", "narwhals", "rich", "typer"),
    *("fsspec", "filelock", "psutil"),
}
"""Modules that perfhooks needs, and for which the program may have its own versions."""
_WITH_TORCH = {"numpy", "typing_extensions"}
"""Further dependencies, which the program has already imported with torch."""
_CANDIDATES = DEPENDENCIES | _WITH_TORCH | (sys.stdlib_module_names - {*sys.builtin_module_names})


class OwnImports:
    """Imports dependencies of perfhooks instead of the program's modules of equal names.

    Args:
        path: Folders of the dependencies.
        find: Function that finds the modules of the program.
    """

    def __init__(self, path: Sequence[str], find: Callable[..., ModuleSpec | None]) -> None:
        self._path, self._find = path, find
        self._modules: dict[str, ModuleType] = {}
        self._shared_names: set[str] = set()
        """Names of modules that the program uses too."""
        self._tops: set[str] = set()
        self._shared: set[str] = set()
        self._shadowed: set[str] = set()
        self._theirs: dict[str, ModuleType] = {}
        """Modules of the program that are replaced in ``sys.modules`` during an import."""
        self._new: set[str] = set()
        self._lock, self._depth, self._thread = RLock(), 0, 0
        self._builtins = {**vars(builtins), "__import__": self._import}
        self._builtins_of_loaded = {**vars(builtins), "__import__": self._import_in_loaded}
        self._sys = _Sys(self._modules, self._new)

    def _import(self, name: str, scope: Any = None, local: Any = None, names: Any = (), level: int = 0) -> Any:
        full_name = name if not level else _absolute(name, scope, level)
        top = full_name.partition(".")[0]
        if top not in _CANDIDATES or not self._is_own(top):
            return __import__(name, scope, local, names, level)
        if names == []:  # PyImport_Import, which polars calls from Rust, takes the module from sys.modules
            module = self._modules.get(full_name) or self._load(full_name, names)
            sys.modules.setdefault(full_name, self._modules.get(full_name, module))
            return module
        module = self._modules.get(full_name)
        if module is not None and not self._depth:
            if not names:
                return self._modules[top]
            if all(hasattr(module, attribute) for attribute in names):
                return module
        return self._load(full_name, names)

    def _import_in_loaded(self, name: str, *args: Any, **kwargs: Any) -> Any:
        return self._sys if name == "sys" else self._import(name, *args, **kwargs)

    def _is_own(self, top: str) -> bool:
        if top not in self._tops and top not in self._shared:
            spec, theirs = PathFinder.find_spec(top, self._path), sys.modules.get(top)
            has_theirs = theirs is not None or top not in DEPENDENCIES
            their_spec = self._find(top, None, None) if theirs is None else getattr(theirs, "__spec__", None)
            if spec is None or (has_theirs and _is_same(their_spec, spec)):
                self._shared.add(top)
                return False
            self._tops.add(top)
            if theirs is not None:
                self._shadowed.add(top)
                if self._depth:
                    self._set_aside({top})
        return top in self._tops

    def _load(self, full_name: str, names: Any) -> Any:
        with self._lock:
            if not self._depth:
                self._thread = get_ident()
                self._set_aside(self._shadowed)
                sys.modules.update(self._modules)
            self._depth += 1
            try:
                return __import__(full_name, None, None, names, 0)
            finally:
                self._depth -= 1
                if not self._depth:
                    self._thread = 0
                    self._put_back()

    def _set_aside(self, tops: set[str]) -> None:
        for name in [name for name in list(sys.modules) if name.partition(".")[0] in tops] if tops else ():
            self._theirs[name] = sys.modules.pop(name)

    def _put_back(self) -> None:
        self._modules.update((name, sys.modules[name]) for name in self._new if name in sys.modules)
        self._new.clear()
        for name in self._modules.keys() - self._shared_names:
            sys.modules.pop(name, None)
        sys.modules.update(self._theirs)
        self._theirs.clear()

    def find_spec(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        top = name.partition(".")[0]
        is_loading = self._depth and self._thread == get_ident() and top in self._tops
        if is_loading or top == "perfhooks" or top.startswith("perfhooks_"):
            spec = PathFinder.find_spec(name, self._path if path is None else path, target)
            if spec is not None:
                self._set_builtins(spec.loader, self._builtins_of_loaded if is_loading else self._builtins)
                if is_loading:
                    self._new.add(name)
            return spec
        return self._share(name, path, target) if name in self._modules else None

    def _share(self, name: str, path: Any, target: Any) -> ModuleSpec | None:
        spec, ours = self._find(name, path, target), self._modules[name]
        if spec is not None and _is_same(ours.__spec__, spec):
            self._shared_names.add(name)
            loader: Any = _ExistingLoader(ours)
            spec.loader = loader
        else:
            self._shadowed.add(name.partition(".")[0])
        return spec

    @staticmethod
    def _set_builtins(loader: Any, names: dict[str, Any]) -> None:
        execute = getattr(loader, "exec_module", None)
        if execute is None:
            return

        def exec_module(module: Any) -> None:
            del loader.exec_module
            vars(module)["__builtins__"] = names
            execute(module)

        loader.exec_module = exec_module


class _Modules(ChainMap[str, "ModuleType"]):
    def __init__(self, own: dict[str, ModuleType], new: set[str]) -> None:
        super().__init__(own, sys.modules)
        self._new = new

    def __setitem__(self, name: str, module: ModuleType) -> None:
        sys.modules[name] = module
        self._new.add(name)


class _Sys:
    def __init__(self, own: dict[str, ModuleType], new: set[str]) -> None:
        self.modules = _Modules(own, new)

    def __getattr__(self, name: str) -> Any:
        return getattr(sys, name)


class _ExistingLoader:
    def __init__(self, module: ModuleType) -> None:
        self._module, self._spec = module, module.__spec__

    def create_module(self, _: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


def _absolute(name: str, scope: dict[str, Any], level: int) -> str:
    package = scope.get("__package__") or scope["__name__"]
    base = package.rsplit(".", level - 1)[0]
    return f"{base}.{name}" if name else base


def _is_same(first: ModuleSpec | None, second: ModuleSpec) -> bool:
    ours: str | None = getattr(first, "origin", None)
    theirs = second.origin
    if ours == theirs or ours is None or theirs is None or ours in ("built-in", "frozen"):
        return True
    return bool(os.path.realpath(ours) == os.path.realpath(theirs))
