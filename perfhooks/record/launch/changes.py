"""Apply the changes of ``perfhooks tune``, or only report the affected lines."""

from __future__ import annotations

import functools
import inspect
import random
import sys
import threading
import weakref
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.compiler import is_compiling
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.data import IterableDataset

from perfhooks.core.changes import Site
from perfhooks.core.guard import cause_of, guard
from perfhooks.run.installation import lines_of_user
from perfhooks.run.job import current_job
from perfhooks.run.live import change_notes
from perfhooks.run.steps import MOST_FIRST

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.core.changes import TrainingChange
    from perfhooks.record.launch.command_line import Request

_NOTED_CALLS: Final = 20
_CPU_LOSSES: Final = 100
"""Number of first losses to compare on a CPU. Rounding of fused Adam changes the losses within 50 steps."""


def listen(request: Request) -> None:
    with guard("applying changes"):
        _AppliedChanges(request).listen()


class _AppliedChanges:
    def __init__(self, request: Request) -> None:
        self._folder = request.notes
        self._changes = request.changes or ()
        self._is_applied = request.is_applied
        self._constructors = weakref.WeakKeyDictionary[torch.nn.Module, tuple[tuple[str, int], ...]]()
        self._main = threading.get_ident()
        self._losses = 0

    def listen(self) -> None:
        _seed()
        for change in self._changes:
            try:
                if change.needs_device and not torch.cuda.is_available():
                    self._note(Site(change=change.name, problem="torch finds no device"))
                    continue
                for owner, name in (found for path in change.calls for found in _functions(path)):
                    self._wrap(owner, name, change)
                if change.setting and self._is_applied:
                    _run(change.setting)
            except (AttributeError, TypeError, ValueError) as error:
                self._note(Site(change=change.name, problem=cause_of(error)))
        if any(change.model for change in self._changes):
            if not self._is_applied:
                self._wrap_constructor()
            self._hook = register_module_forward_pre_hook(self._before_first_call)
        self._backward = torch.autograd.backward
        vars(torch.autograd)["backward"] = self._listen_to_loss

    def _note(self, site: Site) -> None:
        if current_job().rank == 0:
            change_notes.leave_site(self._folder, site)

    def _wrap(self, owner: Any, name: str, change: TrainingChange) -> None:
        function = getattr(owner, name)
        parameters: Any = {}
        if inspect.isfunction(function):
            signature = inspect.signature(function)
            parameters = signature.parameters
            if not set(change.arguments) <= set(parameters):
                return
        remaining, is_inherited = _NOTED_CALLS, name not in vars(owner)

        @functools.wraps(function)
        def changed(*args: Any, **kwargs: Any) -> Any:
            nonlocal remaining
            if is_compiling() and is_inherited:  # torch 2.4 does not compile methods in C without an instance
                return getattr(super(owner, args[0]), name)(*args[1:], **kwargs)
            if is_compiling() or threading.get_ident() != self._main:
                return function(*args, **kwargs)
            bound = signature.bind(*args, **kwargs) if parameters else None
            values = bound.arguments if bound is not None else kwargs
            before = {key: values.get(key, getattr(parameters.get(key), "default", None)) for key in change.arguments}
            problem = _obstacle(change, args, values)
            if remaining and problem is not None:
                remaining -= 1
                self._note(
                    Site(
                        change=change.name,
                        lines=tuple(lines_of_user(1)),
                        callees=tuple({owner.__name__, type(args[0]).__name__, name}),
                        before={key: value for key, value in before.items() if isinstance(value, (int, float, str))},
                        is_same=before == change.arguments != {},
                        problem=problem,
                    )
                )
            if problem == "" and self._is_applied:
                values.update(change.arguments)
            return function(*args, **kwargs) if bound is None else function(*bound.args, **bound.kwargs)

        setattr(owner, name, changed)

    def _wrap_constructor(self) -> None:
        construct = torch.nn.Module.__init__

        @functools.wraps(construct)
        def construct_and_note(module: Any, *args: Any, **kwargs: Any) -> None:
            construct(module, *args, **kwargs)
            frame = sys._getframe(1)
            while frame.f_back is not None and _is_constructor(frame, module):
                frame = frame.f_back
            self._constructors[module] = tuple(lines_of_user(4, frame))

        owner: Any = torch.nn.Module
        owner.__init__ = construct_and_note

    def _before_first_call(self, module: torch.nn.Module, _: Any) -> None:
        trains = torch.is_grad_enabled() and module.training
        if threading.get_ident() != self._main or not trains or not any(p.requires_grad for p in module.parameters()):
            return
        self._hook.remove()
        lines, device = self._constructors.get(module, ()), next(module.parameters()).device.type
        for change in self._changes:
            if change.model:
                is_compiled = "compile" in change.model and hasattr(module, "_orig_mod")
                site = Site(change=change.name, lines=lines, before={"device": device}, is_same=is_compiled)
                if self._is_applied and not is_compiled:
                    _run(change.model.format(model="model", device=device), model=module)
                self._note(site)

    def _listen_to_loss(self, tensors: Any, *args: Any, **kwargs: Any) -> Any:
        result = self._backward(tensors, *args, **kwargs)
        if not is_compiling() and threading.get_ident() == self._main:
            if not self._losses:
                self._note_settings()
            self._losses += 1
            loss = tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors))
            if loss.numel() == 1 and current_job().rank == 0:
                change_notes.leave_loss(self._folder, float(loss.detach()))
            if self._losses == (_CPU_LOSSES if loss.is_cpu else MOST_FIRST):
                vars(torch.autograd)["backward"] = self._backward
        return result

    def _note_settings(self) -> None:
        file = getattr(sys.modules["__main__"], "__file__", None) or ""
        for change in self._changes:
            if change.setting:
                target, _, value = change.setting.partition(" = ")
                is_same = bool(value) and _run(f"value = {target}").get("value") == (value == "True")
                is_same |= not value and torch.get_float32_matmul_precision() != "highest"
                self._note(Site(change=change.name, lines=((file, 0),), is_same=is_same and not self._is_applied))


def _run(statement: str, **names: Any) -> dict[str, Any]:
    values = {"torch": torch, **names}
    FunctionType(compile(statement, "<change>", "exec"), values)()
    return values


def _seed() -> None:
    random.seed(0)
    torch.manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def _functions(path: str) -> Iterator[tuple[Any, str]]:
    owner, _, name = path.rpartition(".")
    module_name, _, kind = owner.rpartition(".")
    module = functools.reduce(getattr, module_name.split(".")[1:], torch)
    kinds = list(vars(module).values()) if kind == "*" else [getattr(module, kind)]
    for owner_kind in kinds:
        if isinstance(owner_kind, type) and hasattr(owner_kind, name) and (kind != "*" or name in vars(owner_kind)):
            yield owner_kind, name


def _obstacle(change: TrainingChange, args: Any, values: Any) -> str | None:
    if change.needs and not values.get(change.needs):
        return None
    if change.is_proposed:
        return None if args[0].device.type == "cpu" else ""
    if "num_workers" in change.arguments and isinstance(values.get("dataset"), IterableDataset):
        return "the data set is an IterableDataset, and its workers may repeat samples"
    if "non_blocking" in change.arguments:  # a copy to the host would have wrong values
        target = next(
            (str(arg) for arg in (*args[1:], values.get("device")) if isinstance(arg, (str, torch.device))), ""
        )
        is_copy = target.partition(":")[0] in ("cuda", "xpu") or not (target or args[1:] or values)
        return "" if args[0].device.type == "cpu" and is_copy else None
    return ""


def _is_constructor(frame: Any, module: Any) -> bool:
    code = frame.f_code
    if code.co_name != "__init__" or not code.co_varnames:
        return False
    return frame.f_locals.get(code.co_varnames[0]) is module
