"""Wrappers of module calls, backward passes and ``torch.save``, for programs without a loader or optimizer.

At its import, torch.compile takes the current ``torch.nn.Module.__call__`` for torch's own, so the wrapper is removed
meanwhile. On a CPU, the wrapper of backward passes stays installed, because the times of backward passes show late
ranks.
"""

from __future__ import annotations

import functools
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._C import DisableTorchFunction
from torch.compiler import is_compiling
from torch.nn import Module

from perfhooks.core.frames import hide_from_warnings
from perfhooks.core.guard import hide_frames
from perfhooks.run.installation import line_of_user, lines_here
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable

_RUN_BACKWARD: Final = "_engine_run_backward"
"""Function that ``torch.autograd.backward`` and ``grad`` call. A patch of ``grad`` itself would make torch.compile
recompile.
"""
_MAX_CALLS: Final = 1000

# globals, because torch.compile would guard the cells of a closure
_call: Callable[..., Any] = Module.__call__
_backward: Callable[..., Any] = vars(torch.autograd)[_RUN_BACKWARD]
_on_call: Callable[[], bool] = bool
_save: Callable[..., Any] = torch.save
_on_backward: Callable[[int], object] = bool
_on_save: Callable[[int, int, str], object] = slice
_main = threading.main_thread().ident
_remaining = _MAX_CALLS


def listen(
    on_call: Callable[[], bool], on_backward: Callable[[int], object], on_save: Callable[[int, int, str], object]
) -> None:
    """Report calls, backward passes and saves. ``on_call`` returns True to unsubscribe from calls.

    ``on_backward`` gets the start of the backward pass in ns, or 0 if a device may still work on the pass.
    """
    global _on_call, _on_backward, _on_save
    _on_call, _on_backward, _on_save = on_call, on_backward, on_save
    resume()
    for owner in (torch, torch.serialization):  # replace both names, because pickle looks up the function in its module
        _replace(owner, "save", _save, _wrapped_save)
    _replace(torch.autograd, _RUN_BACKWARD, _backward, _wrapped_backward)


def resume() -> None:
    if _remaining:
        _replace(Module, "__call__", _call, _wrapped_call)


def pause() -> None:
    _replace(Module, "__call__", _wrapped_call, _call)


def ignore_calls() -> None:
    global _remaining  # noqa: PLW0603 -- see above
    _remaining = 0
    pause()


def ignore_backward() -> None:
    _replace(torch.autograd, _RUN_BACKWARD, _wrapped_backward, _backward)


def leave() -> None:
    ignore_calls()
    ignore_backward()
    for owner in (torch, torch.serialization):
        _replace(owner, "save", _wrapped_save, _save)


def exclude_from_compile() -> None:
    """Exclude the callbacks from torch.compile, which would compile them at graph breaks."""
    global _on_call, _on_backward
    disable: Any = torch.compiler.disable
    sys.modules["torch._dynamo.decorators"].skip(_wrapped_backward)
    _on_call, _on_backward = disable(_on_call), disable(_on_backward)


def would_start_device() -> bool:
    """Return whether a recorder would initialize the device. Forked children cannot use an initialized device."""
    version: Any = torch.version
    nodes = (("cuda", "/dev/nvidiactl"), ("cuda", "/dev/dxg"), ("hip", "/dev/kfd"), ("xpu", "/dev/dri"))
    is_there = any(getattr(version, kind, None) and Path(node).exists() for kind, node in nodes)
    return is_there and not is_device_used()


def is_device_used() -> bool:
    return bool(torch.cuda.is_initialized() or torch.xpu.is_initialized())


def _replace(owner: Any, name: str, current: Any, replacement: Any) -> None:
    if vars(owner).get(name) is current:
        setattr(owner, name, replacement)


@hide_from_warnings
def _wrapped_call(self: Module, /, *args: Any, **kwargs: Any) -> Any:  # torch's recorder of stacks reads "self"
    # check this first: torch.compile guards each value read before it
    if is_compiling() or not _remaining or threading.get_ident() != _main:
        return _call(self, *args, **kwargs)
    is_in_place = (
        vars(Module).get("__call__") is _wrapped_call
    )  # otherwise another patch calls this wrapper, for example that of make_fx
    _count_call()
    try:
        return (
            Module.__call__(self, *args, **kwargs) if is_in_place and not _remaining else _call(self, *args, **kwargs)
        )
    except BaseException as error:
        hide_frames(error)
        raise


def _count_call() -> None:
    # keep the wrapper until unsubscribed: from Python 3.13 on, a class that changes often becomes slow
    global _remaining  # noqa: PLW0603 -- see above
    _remaining = 0 if _on_call() else _remaining - 1
    if not _remaining:
        pause()


@functools.wraps(_backward)
@hide_from_warnings
def _wrapped_backward(outputs: Any, *options: Any, **named: Any) -> Any:
    began = clock()
    try:
        result = _backward(outputs, *options, **named)
    except BaseException as error:
        hide_frames(error)
        raise
    if not is_compiling() and threading.get_ident() == _main:
        _, _, keeps_graph, *_ = options
        if not keeps_graph or named["accumulate_grad"]:
            # a device may still be working on the pass and its collectives
            with DisableTorchFunction():  # hide this access from the user's function modes and tensor subclasses
                is_over = outputs and getattr(outputs[0], "is_cpu", False)
            _on_backward(began if is_over else 0)
    return result


@functools.wraps(_save)
@hide_from_warnings
def _wrapped_save(*args: Any, **kwargs: Any) -> Any:
    began = clock()
    result = _save(*args, **kwargs)
    if threading.get_ident() == _main:
        _on_save(began, clock(), line_of_user(lines_here()))
    return result
