"""Labels that nobody has to write: the parts of a step, named while a window records, and only then.

What begins a part gets a stand-in: ``torch.nn.Module.__call__``, ``torch.autograd.backward``, ``torch.save``,
``torch.distributed.checkpoint`` and the ``wait`` of a collective. torch labels optimizers and loaders itself.

Not by torch's global module hooks: with them ``torch.compile`` warns at every call of a compiled module, compiles the
hooks, and compiles the model again when they are gone. And ``torch.autograd.grad`` is left alone, as torch.compile
guards it: a stand-in would make it compile again. The trace tells its time nearly as well.
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
from perfhooks.core.guard import hide_frames, logger
from perfhooks.record.loop import next_recorder
from perfhooks.record.loop.like_torch.accepted import metadata_json
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.record.loop.loaders.workers import LoadersRead
from perfhooks.record.loop.module_order import ModuleOrder
from perfhooks.run.circumstances import processor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from perfhooks.record.loop.window import Window
    from perfhooks.run.circumstances import Loader

_MOST_CHANGES: Final = 900 if sys.version_info >= (3, 13) else sys.maxsize
"""How often ``torch.nn.Module`` may be changed, twice a window or more. From Python 3.13 on a class that was changed a
thousand times is looked up slowly for the rest of the process (``MAX_VERSIONS_PER_CLASS`` in CPython's
``typeobject.c``). Windows after that have the forward pass that the trace shows by itself."""

_COMPILED: Final = "OptimizedModule"
"""The class of what ``torch.compile`` makes of a module; importing it would take a second."""

_function_modes: Callable[[], list[Any]] = vars(torch.overrides)["_get_current_function_mode_stack"]

_call_module: Callable[..., Any] = Module.__call__
"""What a call of a module was before; a global, as torch.compile would guard the cells of a closure."""


@dataclass
class _Here:
    """What goes on in the one thread whose steps are recorded; there is one recorder in a process."""

    thread: int = 0
    """The thread; 0 while nothing is labelled."""
    inside: bool = False
    """Whether one of our labels is open: what begins inside of it is part of it."""
    aside: bool = False
    """Whether the stand-in of module calls is out of the way until the open label ends."""
    without_gradients: str = labels.VALIDATION
    """What calls in evaluation mode without gradients are."""
    last: str = labels.FORWARD
    """The part of the last module call."""
    is_wrapped: bool = False
    """Whether another patch of module calls was found in our place. It may call our stand-in, and may put it back."""
    has_function_mode: bool = False
    """Whether a TorchFunctionMode of the program was active inside a label, since labels were put."""
    changes: int = 0
    """How often ``torch.nn.Module`` was changed."""
    order: ModuleOrder = field(default_factory=ModuleOrder)
    """The modules that were called since the labels were put."""
    loaders: LoadersRead = field(default_factory=LoadersRead)
    """What was read since the labels were put."""
    has_gradients: bool = True
    """Whether the steps are a training's: what is read without gradients is then a validation."""
    placed: list[_StandIn] = field(default_factory=list)
    heard: Callable[[Module], object] | None = None
    """Is told of outermost calls, before they are labelled."""
    read: Callable[[Any], object] = id  # not bool, which calls a user's ``__len__``
    """Is called with each loader's iterator that is read."""


_here: Final = _Here()
_Label: TypeAlias = "AbstractContextManager[Any] | None"


class _StandIn(NamedTuple):
    """Something that stands in the place of an attribute."""

    owner: Any
    name: str
    original: Any
    made: Any

    def put(self) -> None:
        setattr(self.owner, self.name, self.made)
        _here.changes += self.owner is Module

    def take_back(self) -> None:
        """Put the original back, unless somebody has put something else there since."""
        if vars(self.owner).get(self.name) is self.made:
            setattr(self.owner, self.name, self.original)
            _here.changes += self.owner is Module
        elif self.owner is Module:
            _here.is_wrapped = True


def put(
    stage: str, heard: Callable[[Module], object] | None = None, read: Callable[[Any], object] | None = None
) -> None:
    """Label what the current thread does from now on; what is labelled already stays so.

    Args:
        stage: That of the loop; in others than ``train``, calls without gradients are its forward pass.
        heard: Is told of each outermost call of a module.
        read: Is called with each iterator of a loader, once a step, before it is read.
    """
    _here.thread, _here.inside, _here.heard = get_ident(), False, heard  # whatever was left open by a fault
    _here.read = read or id
    _here.loaders.begin_step()
    if _here.placed:
        return
    _here.last, _here.order, _here.loaders = labels.FORWARD, ModuleOrder(), LoadersRead()
    _here.has_function_mode = False
    _here.has_gradients = stage == "train"
    _here.without_gradients = labels.VALIDATION if _here.has_gradients else labels.FORWARD
    if _here.changes < _MOST_CHANGES and _find_original():
        _here.placed.append(_StandIn(Module, "__call__", _call_module, _labelled_call))
    _here.placed += [
        _StandIn(owner, name, vars(owner)[name], _inside(part, vars(owner)[name])) for owner, name, part in _functions()
    ]
    reader = getattr(sys.modules.get("torch.utils.data.dataloader"), "_BaseDataLoaderIter", None)
    if reader is not None:
        _here.placed.append(_StandIn(reader, "__next__", reader.__next__, _noting(reader.__next__)))
    _here.placed.append(_StandIn(record_function, "__init__", record_function.__init__, _escaping(record_function)))
    for stand_in in _here.placed:
        stand_in.put()


def _find_original() -> bool:
    """Find what our stand-in of module calls must call. Return whether that cannot lead back to the stand-in.

    ``make_fx`` and ``torch.fx`` patch module calls for a while, and put back what was there before. A window may end
    meanwhile.
    """
    global _call_module  # noqa: PLW0603 -- see there
    current = Module.__call__
    if current is not _labelled_call:
        is_known = current is vars(Module)["_wrapped_call_impl"] or current.__module__.startswith("perfhooks.")
        if _here.is_wrapped and not is_known:
            return False
        _call_module = current
    _here.is_wrapped = False
    return True


def take_back() -> None:
    """Leave everything as it was."""
    while _here.placed:
        _here.placed.pop().take_back()
    _here.thread, _here.inside, _here.aside, _here.heard, _here.read = 0, False, False, None, id


def loader() -> Loader | None:
    """The settings of the DataLoader that fed the steps, since labels were put last."""
    return _here.loaders.most


def has_function_mode() -> bool:
    """Whether the program used a TorchFunctionMode of its own, since labels were put last.

    torch's recorder with stacks reads the gradients of weights through such a mode.
    """
    return _here.has_function_mode


def iterators() -> set[int]:
    """Its iterators, by their numbers."""
    return _here.loaders.iterators


def describe(window: Window) -> None:
    """Write into a trace, while its recorder takes that, its processor, and what the model calls its modules.

    And what whoever recorded CUDA graphs calls parts of them; torch writes that only where it is given to an export,
    and then event by event in Python. Its next recorder writes it itself.

    Args:
        window: What records; names of modules are of use only with stacks.
    """
    order, _here.order = _here.order, ModuleOrder()
    ways: dict[str, Callable[[], Any]] = {labels.PROCESSOR: _processor}
    ways |= {labels.MODULE_NAMES: order.names} if window.with_stack else {}
    if not next_recorder.is_used(window):
        ways |= {labels.GRAPH_REGIONS: _graph_regions} if _annotations() else {}
    for key, names in ways.items():
        try:
            if given := _unrecorded(names):
                window.add_metadata_json(key, metadata_json(json.dumps(given)))
        except Exception:  # whatever a model answers, the training goes on
            logger.debug("%s could not be told", key, exc_info=True)


def _processor() -> str:
    return processor(torch.get_num_threads())


def _annotations() -> Any:
    """What torch knows of the nodes of CUDA graphs that live, by their numbers; older ones know nothing."""
    return getattr(sys.modules.get("torch.cuda.graph_annotations"), "get_kernel_annotations", dict)()


def _graph_regions() -> list[tuple[str, str, list[int]]]:
    nodes: dict[tuple[str, str], list[int]] = {}
    for number, said in _annotations().copy().items():  # its own copy is fast
        for each in said if isinstance(said, list) else [said]:
            if isinstance(each, dict) and each.get("name"):
                nodes.setdefault((str(each["name"]), str(each.get("autograd_phase", ""))), []).append(number)
    return [(*called, numbers) for called, numbers in nodes.items()]


def _unrecorded(function: Callable[[], Any]) -> Any:
    """What a function gives, called where the recorder, which is on, does not write down all that it calls."""
    given: list[Any] = []
    failed: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def call() -> None:
        try:
            given.append(function())
        except BaseException as error:  # noqa: BLE001 -- raised where it was asked for
            failed.append(error)
        finally:
            done.release()

    _thread.start_new_thread(call, ())
    done.acquire()
    if failed:
        raise failed[0]
    return given[0]


def _functions() -> Iterator[tuple[Any, str, str]]:
    """The functions that are parts of a step: where they are, and which part they are."""
    yield torch.autograd, "backward", labels.BACKWARD
    yield torch, "save", labels.CHECKPOINT
    # not imported here: whoever saves with it has done so
    saving = sys.modules.get("torch.distributed.checkpoint")
    for name in ("save", "async_save"):
        if hasattr(saving, name):
            yield saving, name, labels.CHECKPOINT
    if torch.distributed.is_available() and _here.changes < _MOST_CHANGES:
        yield torch.distributed.Work, "wait", labels.COMMUNICATION


def _inside(part: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The stand-in of a function that is a part of the step."""
    begin, end = _uncompiled(_begin), _uncompiled(_end)

    @functools.wraps(function)
    def labelled(*args: Any, **kwargs: Any) -> Any:
        if is_compiling() or _here.inside or get_ident() != _here.thread:
            return function(*args, **kwargs)
        label = begin(part)
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            hide_frames(error)
            raise
        finally:
            end(label)

    return _uncompiled(labelled, recursive=False)


def _escaping(range_: type[record_function]) -> Callable[..., None]:
    """Return the initialiser of a range that takes names in any letters, see `perfhooks.core.labels.escaped`."""
    begin = range_.__init__

    def escaping(self: record_function, name: str, args: str | None = None) -> None:
        begin(self, labels.escaped(name) if isinstance(name, str) else name, args)

    return escaping


def _noting(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """The stand-in of a loader's ``__next__``: torch labels the wait itself, but no settings are in the trace."""

    @functools.wraps(fetch)
    def noted(self: Any) -> Any:
        is_known = id(self) in _here.loaders.of_step or get_ident() != _here.thread
        if not is_known and (torch.is_grad_enabled() or not _here.has_gradients):
            _here.loaders.add(self)
            _here.read(self)
        try:
            return fetch(self)
        except BaseException as error:
            hide_frames(error)
            raise

    return noted


def _uncompiled(function: Callable[..., Any], *, recursive: bool = True) -> Callable[..., Any]:
    """Keep torch.compile, where it may be in use, from compiling a function of ours that a graph break exposes to it.

    Args:
        function: Ours.
        recursive: Whether that holds for all that it calls.
    """
    if "torch._dynamo" not in sys.modules:  # asking would import it, which takes a second
        return function
    disabled: Callable[..., Any] = torch.compiler.disable(function, recursive=recursive)
    return disabled


def _labelled_call(module: Module, /, *args: Any, **kwargs: Any) -> Any:
    """The stand-in of ``torch.nn.Module.__call__``."""
    if is_dynamo_compiling():  # first of all: torch.compile guards what it reads
        return _call_module(module, *args, **kwargs)
    # Most calls are inner ones, and with stacks every function that is called here is an event more in the trace: on
    # other threads too there is nothing else to do, and _is_compiled is written out.
    is_known = _here.inside and id(module) in _here.order.seen
    if is_known and module._compiled_call_impl is None and type(module).__name__ != _COMPILED:
        return _call_module(module, *args, **kwargs)
    if is_compiling() or get_ident() != _here.thread:
        return _call_module(module, *args, **kwargs)
    if id(module) not in _here.order.seen:
        _here.order.add(module, is_outermost=not _here.inside)
    if _here.inside:
        if _is_compiled(module):
            _step_aside()
        return _call_module(module, *args, **kwargs)
    label = _begin_call(module)
    try:
        return _call_module(module, *args, **kwargs)
    except BaseException as error:
        hide_frames(error)  # of the calls inside as well
        raise
    finally:
        _end(label)


def _is_compiled(module: Module) -> bool:
    """Whether torch.compile made it, or compiled it in place."""
    in_place = module._compiled_call_impl
    return in_place is not None or type(module).__name__ == _COMPILED


def _step_aside() -> None:
    """Let torch.compile see no stand-in: where a graph breaks, it would try to compile that."""
    if not _here.aside and vars(Module).get("__call__") is _labelled_call and _here.changes < _MOST_CHANGES:
        _here.aside = True
        _here.placed[0].take_back()


def _begin_call(module: Module) -> _Label:
    try:
        part = _here.last = _part_of(module)
        if _is_compiled(module):
            _step_aside()
    except Exception:  # the training goes on, whatever a module answers
        logger.debug("a module could not be asked what it does", exc_info=True)
        part = labels.FORWARD
    if _here.heard is not None:
        _here.heard(module)
    return _begin(part)


def _part_of(module: Module) -> str:
    """What a call is; of a loss or a metric, which has no mode of its own, what the call before it was."""
    if torch.is_grad_enabled():
        return labels.FORWARD
    if not module.training:
        return _here.without_gradients
    return _here.last if next(module.parameters(), None) is None else labels.FORWARD


def _begin(part: str) -> _Label:
    """Open a label; None if that fails."""
    _here.inside = True
    try:
        if not _here.has_function_mode:
            _here.has_function_mode = any(not type(mode).__module__.startswith("torch.") for mode in _function_modes())
        label: AbstractContextManager[Any] = LabelledRange(labels.AUTOMATIC[part])
        label.__enter__()
    except Exception:  # the training goes on without it
        logger.debug("%s could not be labelled", part, exc_info=True)
        return None
    return label


def _end(label: _Label) -> None:
    _here.inside = False
    if _here.aside and _here.placed:
        _here.aside = False
        if vars(Module).get("__call__") is _call_module:
            _here.placed[0].put()
    if label is not None:
        try:
            label.__exit__(None, None, None)
        except Exception:  # the training goes on
            logger.debug("a label could not be closed", exc_info=True)
