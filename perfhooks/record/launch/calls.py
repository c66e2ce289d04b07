"""What a program without a loader and without an optimizer does: it calls modules, and passes gradients back.

Both get a stand-in when torch has been imported. That of module calls is gone once recording has begun, as
`perfhooks.record.loop.labelling` tells of the calls that follow; that of backward passes once an optimizer has stepped,
where a device works on them: elsewhere their begin and end are kept, as ranks meet in them.

torch.compile takes what it finds as ``torch.nn.Module.__call__``, while it is imported, for torch's own: so nothing of
ours is there meanwhile.
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

from perfhooks.core.guard import hide_frames
from perfhooks.run.installation import line_of_user
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable

_RUNS: Final = "_engine_run_backward"
"""What ``torch.autograd.backward`` and ``grad`` both call; torch.compile guards the second."""
_MOST_CALLS: Final = 1000
"""Of modules, after which nobody is going to want to hear of one."""

# globals, as torch.compile would guard the cells of a closure
_call: Callable[..., Any] = Module.__call__
_backward: Callable[..., Any] = vars(torch.autograd)[_RUNS]
_told_call: Callable[[], bool] = bool
_save: Callable[..., Any] = torch.save
_told_backward: Callable[[int], object] = bool
_told_save: Callable[[int, int, str], object] = slice
_main = threading.main_thread().ident
_left = _MOST_CALLS


def listen(
    told_call: Callable[[], bool], told_backward: Callable[[int], object], told_save: Callable[[int, int, str], object]
) -> None:
    """Hear of what the main thread calls.

    Args:
        told_call: Is told that a module is about to be called; whether it wants to hear of no more.
        told_backward: Is called after each backward pass, with the time at which it began; 0 where a device still works
            on it, so that its end is not known.
        told_save: Is called after each ``torch.save``: when it began and ended, and the line that called it.
    """
    global _told_call, _told_backward, _told_save
    _told_call, _told_backward, _told_save = told_call, told_backward, told_save
    go_on()
    for owner in (torch, torch.serialization):  # both, as pickle looks the function up by its module
        _replace(owner, "save", _save, _heard_save)
    _replace(torch.autograd, _RUNS, _backward, _heard_backward)


def go_on() -> None:
    """Hear of the next call of a module, unless nobody wants to."""
    if _left:
        _replace(Module, "__call__", _call, _heard_call)


def pause() -> None:
    """Leave module calls as they were."""
    _replace(Module, "__call__", _heard_call, _call)


def hear_no_calls() -> None:
    """Leave module calls as they were, for good."""
    global _left  # noqa: PLW0603 -- see above
    _left = 0
    pause()


def hear_no_backward() -> None:
    """Leave backward passes as they were."""
    _replace(torch.autograd, _RUNS, _heard_backward, _backward)


def leave() -> None:
    """Leave torch as it was, for good."""
    hear_no_calls()
    hear_no_backward()
    for owner in (torch, torch.serialization):
        _replace(owner, "save", _heard_save, _save)


def keep_from_compiling() -> None:
    """torch.compile has been imported: where a graph breaks, it would compile what is called here."""
    global _told_call, _told_backward
    disable: Any = torch.compiler.disable
    sys.modules["torch._dynamo.decorators"].skip(_heard_backward)
    _told_call, _told_backward = disable(_told_call), disable(_told_backward)


def would_wake_a_device() -> bool:
    """Whether a recorder that begins now would be the first to use the device of this machine.

    After that a process that the program forks could not use it any more.
    """
    version: Any = torch.version
    nodes = (("cuda", "/dev/nvidiactl"), ("cuda", "/dev/dxg"), ("hip", "/dev/kfd"), ("xpu", "/dev/dri"))
    is_there = any(getattr(version, kind, None) and Path(node).exists() for kind, node in nodes)
    return is_there and not has_woken_one()


def has_woken_one() -> bool:
    """Whether the program has begun to use a device."""
    return bool(torch.cuda.is_initialized() or torch.xpu.is_initialized())


def _replace(owner: Any, name: str, there: Any, other: Any) -> None:
    """Put something in the place of something else, unless that is not there any more."""
    if vars(owner).get(name) is there:
        setattr(owner, name, other)


def _heard_call(module: Module, /, *args: Any, **kwargs: Any) -> Any:
    """The stand-in of ``torch.nn.Module.__call__``."""
    # first of all: torch.compile guards what it reads
    if is_compiling() or not _left or threading.get_ident() != _main:
        return _call(module, *args, **kwargs)
    is_in_place = vars(Module).get("__call__") is _heard_call  # else a patch calls us, such as that of make_fx
    _hear_call()
    try:
        # without more to hear it is labelled from here on
        return Module.__call__(module, *args, **kwargs) if is_in_place and not _left else _call(module, *args, **kwargs)
    except BaseException as error:
        hide_frames(error)
        raise


def _hear_call() -> None:
    # in its place until nobody wants to hear more: on some Pythons a class that is changed often becomes slow
    global _left  # noqa: PLW0603 -- see above
    _left = 0 if _told_call() else _left - 1
    if not _left:
        pause()


@functools.wraps(_backward)
def _heard_backward(outputs: Any, *given: Any, **named: Any) -> Any:
    """The stand-in of what runs a backward pass, by `torch.autograd.backward` or `torch.autograd.grad`."""
    began = clock()
    try:
        result = _backward(outputs, *given, **named)
    except BaseException as error:
        hide_frames(error)
        raise
    if not is_compiling() and threading.get_ident() == _main:
        _, _, keeps_graph, *_ = given
        # gradients that have a graph of their own are a part of what is going to be learned from: another pass follows
        if not keeps_graph or named["accumulate_grad"]:
            # a device may still work on it, and on the collectives in it
            with DisableTorchFunction():  # modes and subclasses of the user do not see the question
                is_over = outputs and getattr(outputs[0], "is_cpu", False)
            _told_backward(began if is_over else 0)
    return result


@functools.wraps(_save)
def _heard_save(*args: Any, **kwargs: Any) -> Any:
    """The stand-in of ``torch.save``."""
    began = clock()
    result = _save(*args, **kwargs)
    if threading.get_ident() == _main:
        _told_save(began, clock(), line_of_user())
    return result
