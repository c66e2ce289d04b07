"""Automatic labels for the parts of a step, active only while a window records.

Wrappers replace functions of torch that begin a part. torch's global module hooks are not used: ``torch.compile`` would
warn at every call of a compiled module, and compile the model again when the hooks are removed. ``torch.autograd.grad``
is not replaced, because torch.compile guards the function.
"""

from __future__ import annotations

import _thread
import functools
import json
import sys
from dataclasses import dataclass, field
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch
from torch.autograd.profiler import record_function
from torch.compiler import is_compiling, is_dynamo_compiling
from torch.nn import Module

from perfhooks.core import labels
from perfhooks.core.frames import hide_from_warnings
from perfhooks.core.guard import hide_frames, logger
from perfhooks.core.handlers import is_of_handler
from perfhooks.record.loop import next_recorder
from perfhooks.record.loop.like_torch.accepted import metadata_json
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.record.loop.loaders.workers import LoadersRead
from perfhooks.record.loop.module_order import ModuleOrder
from perfhooks.run.circumstances import processor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from torch.profiler import profile

    from perfhooks.run.circumstances import Loader

_MAX_CHANGES: Final = 900 if sys.version_info >= (3, 13) else sys.maxsize
"""Maximum assignments to attributes of ``torch.nn.Module``, two or more per window. From Python 3.13 on, attribute
lookups of a class stay slow after 1000 changes (``MAX_VERSIONS_PER_CLASS`` in CPython's ``typeobject.c``). Later
windows have no forward label.
"""

_COMPILED: Final = "OptimizedModule"
"""Name of torch.compile's module class, whose import takes a second."""

_function_modes: Callable[[], list[Any]] = vars(torch.overrides)["_get_current_function_mode_stack"]

_call_module: Callable[..., Any] = Module.__call__
"""Original function that calls a module; a global, because torch.compile guards the cells of a closure."""


@dataclass
class _LabelState:
    thread: int = 0
    """Identifier of the thread whose calls are labelled; 0 while labelling is off."""
    open: list[LabelledRange] = field(default_factory=list)
    is_restored: bool = False
    part_without_gradients: str = labels.VALIDATION
    last_part: str = labels.FORWARD
    is_wrapped: bool = False
    """Whether another library patched ``Module.__call__`` after perfhooks, see `_find_original`."""
    notices_reads: bool = False
    changes: int = 0
    order: ModuleOrder = field(default_factory=ModuleOrder)
    loaders: LoadersRead = field(default_factory=LoadersRead)
    has_gradients: bool = True
    """Whether the training uses gradients. If so, a loader that is read without gradients belongs to a validation."""
    patches: list[_Patch] = field(default_factory=list)
    on_call: Callable[[Module], object] | None = None
    on_read: Callable[[Any], object] = id  # not bool, which calls a user's ``__len__``


_state: Final = _LabelState()
_Label: TypeAlias = "LabelledRange | None"


class _Patch(NamedTuple):
    owner: Any
    name: str
    original: Any
    replacement: Any

    def apply(self) -> None:
        setattr(self.owner, self.name, self.replacement)
        _state.changes += self.owner is Module

    def undo(self) -> None:
        if vars(self.owner).get(self.name) is self.replacement:
            setattr(self.owner, self.name, self.original)
            _state.changes += self.owner is Module
        elif self.owner is Module:
            _state.is_wrapped = True


def start(
    stage: str, on_call: Callable[[Module], object] | None = None, on_read: Callable[[Any], object] | None = None
) -> None:
    """Label the parts that the current thread begins from now on.

    In stages other than ``train``, calls without gradients are labelled as the forward pass. ``on_read`` is called once
    per step with each loader iterator.
    """
    _state.thread, _state.on_call = get_ident(), on_call
    _state.on_read = on_read or id
    _state.loaders.begin_step()
    if _state.patches:
        return
    _state.last_part, _state.order, _state.loaders = labels.FORWARD, ModuleOrder(), LoadersRead()
    _state.notices_reads = False
    _state.has_gradients = stage == "train"
    _state.part_without_gradients = labels.VALIDATION if _state.has_gradients else labels.FORWARD
    if _state.changes < _MAX_CHANGES and _find_original():
        _state.patches.append(_Patch(Module, "__call__", _call_module, _labelled_call))
    _state.patches += [
        _Patch(owner, name, vars(owner)[name], _labelling(part, vars(owner)[name]))
        for owner, name, part in _functions()
    ]
    reader = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
    if reader is not None:
        _state.patches.append(_Patch(reader, "__next__", reader.__next__, _noting_reads(reader.__next__)))
    _state.patches.append(_Patch(record_function, "__init__", record_function.__init__, _escaping(record_function)))
    for patch in _state.patches:
        patch.apply()


def _find_original() -> bool:
    """Store the function that our replacement calls. Return False if this function may call the replacement.

    ``make_fx`` and ``torch.fx`` patch module calls and later restore the previous attribute. If a window ends between
    patch and restoration, ``make_fx`` restores the replacement of perfhooks.
    """
    global _call_module  # noqa: PLW0603 -- see its docstring
    current = Module.__call__
    if current is not _labelled_call:
        is_safe = current is vars(Module)["_wrapped_call_impl"] or current.__module__.startswith("perfhooks.")
        if _state.is_wrapped and not is_safe:
            return False
        _call_module = current
    _state.is_wrapped = False
    return True


def stop() -> None:
    while _state.patches:
        _state.patches.pop().undo()
    end_labels()
    _state.thread, _state.is_restored, _state.on_call, _state.on_read = 0, False, None, id


def end_labels() -> None:
    """End all labels with the step. torch would warn about an optimizer in a longer label."""
    while _state.open and get_ident() == _state.thread:
        _exit(_state.open.pop())


def loader() -> Loader | None:
    return _state.loaders.most


def notices_reads() -> bool:
    """Whether torch's recorder with stacks disturbs the program.

    It reads gradients through function modes, and warns about computed weights.
    """
    return _state.notices_reads


def iterators() -> set[int]:
    return _state.loaders.iterators


def describe(window: profile) -> None:
    """Write names of modules and CUDA graph regions into the trace.

    Cuspy, torch's second recorder, writes the regions without this function.
    """
    order, _state.order = _state.order, ModuleOrder()
    sources: dict[str, Callable[[], Any]] = {labels.PROCESSOR: lambda: processor(torch.get_num_threads())}
    sources |= {labels.MODULE_NAMES: order.names} if window.with_stack else {}
    if not next_recorder.is_used(window):
        sources |= {labels.GRAPH_REGIONS: _graph_regions} if _annotations() else {}
    for key, source in sources.items():
        try:
            # without stacks, calls are not recorded, and starting a thread would let other threads take the GIL
            if value := _call_unrecorded(source) if window.with_stack else source():
                window.add_metadata_json(key, metadata_json(json.dumps(value)))
        except Exception as error:  # an error in the model's code must not end the training
            if is_of_handler(error):
                raise
            logger.debug("%s could not be written into the trace", key, exc_info=True)


def _annotations() -> Any:
    return getattr(sys.modules.get("torch.cuda.graph_annotations"), "get_kernel_annotations", dict)()


def _graph_regions() -> list[tuple[str, str, list[int]]]:
    nodes: dict[tuple[str, str], list[int]] = {}
    for number, entries in _annotations().copy().items():
        for entry in entries if isinstance(entries, list) else [entries]:
            if isinstance(entry, dict) and entry.get("name"):
                key = (str(entry["name"]), str(entry.get("autograd_phase", "")))
                nodes.setdefault(key, []).append(number)
    return [(*names, numbers) for names, numbers in nodes.items()]


def _call_unrecorded(function: Callable[[], Any]) -> Any:
    results: list[Any] = []
    errors: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def call() -> None:
        try:
            results.append(function())
        except BaseException as error:  # noqa: BLE001 -- raised in the calling thread
            errors.append(error)
        finally:
            done.release()

    _thread.start_new_thread(call, ())
    done.acquire()
    if errors:
        raise errors[0]
    return results[0]


def _functions() -> Iterator[tuple[Any, str, str]]:
    yield torch.autograd, "backward", labels.BACKWARD
    yield torch, "save", labels.CHECKPOINT
    saving = sys.modules.get("torch.distributed.checkpoint")
    for name in ("save", "async_save"):
        if hasattr(saving, name):
            yield saving, name, labels.CHECKPOINT
    if torch.distributed.is_available() and _state.changes < _MAX_CHANGES:
        yield torch.distributed.Work, "wait", labels.COMMUNICATION


def _labelling(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    begin, end = _uncompiled(_begin), _uncompiled(_end)

    @functools.wraps(function)
    @hide_from_warnings
    def labelled(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or (_state.open and part != labels.BACKWARD) or get_ident() != _state.thread:
            return function(*args, **kwargs)
        label = None
        try:
            label = begin(part)
            return function(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            end(label)

    skip = getattr(sys.modules.get("torch._dynamo.decorators"), "skip", None)
    if skip is not None:  # torch.compiler.disable would add a frame, which warnings count
        skip(labelled)
    return labelled


def _escaping(range_: type[record_function]) -> Callable[..., None]:
    begin = range_.__init__

    @hide_from_warnings
    def escaping(self: record_function, name: str, args: str | None = None) -> None:
        begin(self, labels.escaped(name) if isinstance(name, str) else name, args)

    return escaping


def _noting_reads(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(fetch)
    @hide_from_warnings
    def noted(self: Any) -> Any:
        is_noted = id(self) in _state.loaders.of_step or get_ident() != _state.thread
        if not is_noted and (torch.is_grad_enabled() or not _state.has_gradients):
            _state.loaders.add(self)
            _state.on_read(self)
        try:
            return fetch(self)
        except BaseException as error:
            hide_frames(error)
            raise

    return noted


def _uncompiled(function: Callable[..., Any]) -> Callable[..., Any]:
    if "torch._dynamo" not in sys.modules:  # the check itself would import it, which takes a second
        return function
    disabled: Callable[..., Any] = torch.compiler.disable(function)
    return disabled


@hide_from_warnings
def _labelled_call(self: Module, /, *args: Any, **kwargs: Any) -> Any:
    if is_dynamo_compiling():  # must be first: torch.compile guards each value that is read
        return _call_module(self, *args, **kwargs)
    # Most calls are inner ones, and with stacks every function called here adds an event to the trace. So this path is
    # the same on other threads, and _is_compiled is inlined.
    is_noted = _state.open and id(self) in _state.order.seen
    if is_noted and self._compiled_call_impl is None and type(self).__name__ != _COMPILED:
        return _call_module(self, *args, **kwargs)
    if is_compiling() or get_ident() != _state.thread:
        return _call_module(self, *args, **kwargs)
    if id(self) not in _state.order.seen:
        _state.order.add(self, is_outermost=not _state.open)
        _state.notices_reads = _state.notices_reads or _has_computed_weights(self)
    if _state.open:
        if _is_compiled(self):
            _restore_call()
        return _call_module(self, *args, **kwargs)
    label = None
    try:
        label = _begin_call(self)
        return _call_module(self, *args, **kwargs)
    except BaseException as error:
        hide_frames(error)
        raise
    finally:
        _end(label)


def _has_function_mode() -> bool:
    return any(not type(mode).__module__.startswith("torch.") for mode in _function_modes())


def _has_computed_weights(module: Module) -> bool:
    parameters = dict(vars(module).get("_parameters") or {}).values()
    weights = (weight for weight in parameters if type(weight) is torch.Tensor and weight.requires_grad)
    return any(not (weight.is_leaf or weight.retains_grad) for weight in weights)


def _is_compiled(module: Module) -> bool:
    in_place = module._compiled_call_impl
    return in_place is not None or type(module).__name__ == _COMPILED


def _restore_call() -> None:
    """Restore the original call: torch.compile would compile the replacement at a graph break."""
    if not _state.is_restored and vars(Module).get("__call__") is _labelled_call and _state.changes < _MAX_CHANGES:
        _state.is_restored = True
        _state.patches[0].undo()


def _begin_call(module: Module) -> _Label:
    try:
        part = _state.last_part = _part_of(module)
        if _is_compiled(module):
            _restore_call()
    except Exception as error:
        if is_of_handler(error):
            raise
        logger.debug("the step part (forward or validation) of a module call could not be determined", exc_info=True)
        part = labels.FORWARD
    if _state.on_call is not None:
        _state.on_call(module)
    return _begin(part)


def _part_of(module: Module) -> str:
    if torch.is_grad_enabled():
        return labels.FORWARD
    if not module.training:
        return _state.part_without_gradients
    return _state.last_part if next(module.parameters(), None) is None else labels.FORWARD


def _begin(part: str) -> _Label:
    try:
        _state.notices_reads = _state.notices_reads or _has_function_mode()
        label = LabelledRange(labels.AUTOMATIC[part])
        label.__enter__()
    except Exception as error:
        if is_of_handler(error):
            raise
        logger.debug("%s could not be labelled", part, exc_info=True)
        return None
    _state.open.append(label)
    return label


def _end(label: _Label) -> None:
    is_open = label in _state.open
    if label is not None and is_open:
        _state.open.remove(label)
    if _state.is_restored and _state.patches and not _state.open:
        _state.is_restored = False
        if vars(Module).get("__call__") is _call_module:
            _state.patches[0].apply()
    if label is not None and is_open:
        _exit(label)


def _exit(label: LabelledRange) -> None:
    try:
        label.__exit__(None, None, None)
    except Exception as error:
        if is_of_handler(error):
            raise
        logger.debug("a label could not be closed", exc_info=True)
