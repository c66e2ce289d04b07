"""The parts of a step: public methods of a framework's objects, wrapped while a window is open, and its hooks."""

from __future__ import annotations

from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from perfhooks.adapters.module_names import ModuleNames
from perfhooks.adapters.open_labels import OpenLabels
from perfhooks.adapters.wrapped_methods import WrappedMethods
from perfhooks.core import labels
from perfhooks.record.loop.like_torch.labelled_range import LabelledRange
from perfhooks.run.rare_work import PARTS as RARE
from perfhooks.run.timeline import clock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from perfhooks.record.loop.profiler import Profiler


class Parts:
    """Labels for `Stage`: a call of a method is a part of the step, and hooks may begin and end others.

        Parts(profiler, {"compute_loss": "forward", "engine.backward": "backward"})  # of trainer, and trainer.engine

    A validation inside the step is one part, whatever it does but save a checkpoint.

    Args:
        profiler: Of the stage.
        methods: What to wrap and which part it is, by names like ``model.loss``, from what the stage began with.
        more: Called with these parts and what the stage began with, to `wrap` what no such name leads to.
        waits: Whether the stage waits for data wherever no method of these runs, from the end of one step on.
        modules: Finds the module whose descendants' names are to be shown; None shows none.
    """

    def __init__(
        self,
        profiler: Profiler,
        methods: Mapping[str, str],
        *,
        more: Callable[[Parts, Any], object] | None = None,
        waits: bool = False,
        modules: Callable[[Any], torch.nn.Module] | None = None,
    ) -> None:
        self.methods = WrappedMethods()
        """What is wrapped until the window closes."""
        self.labels = OpenLabels(self._region)
        """What is open in the trace."""
        self.is_on = False
        """Whether a window is open."""
        self._pulse = profiler.pulse
        self._since: dict[str, int] = {}
        self._paths = methods
        self._more = more
        self._waits = waits
        self._modules = modules
        self._names: ModuleNames | None = None

    def _region(self, name: str) -> AbstractContextManager[Any]:
        """A label of the window; `Profiler.region` would time a validation a second time."""
        return LabelledRange(name) if self._pulse.is_recording else nullcontext()

    def put(self, loop: Any, *, waiting: bool) -> None:
        """A window has opened."""
        self.is_on = True
        for path, part in self._paths.items():
            owner, _, name = path.rpartition(".")
            self.wrap(attrgetter(owner)(loop) if owner else loop, name, part)
        if self._more is not None:
            self._more(self, loop)
        if self._modules is not None:
            self._names = ModuleNames(self._modules(loop), self._region)
        if waiting:
            self.wait()

    def take_off(self, _loop: Any, /) -> None:
        """The window has closed."""
        self.is_on = False
        self.labels.close()
        self.methods.unwrap()
        names, self._names = self._names, None
        if names is not None:
            names.remove()

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Label a method's calls as a part, if the owner has such a method, until the window closes."""
        self.methods.wrap_in(owner, name, partial(self.part, part))

    def wait(self) -> None:
        """A step has ended: what follows is the wait for data, if that cannot be seen otherwise."""
        if self._waits:
            self.begin(labels.DATA)

    def begin(self, part: str) -> None:
        """A part begins in one hook and ends in another; the first of several beginnings counts."""
        if part in RARE:
            self._since.setdefault(part, clock())
        if self.is_on and not self.labels.has(part):
            self.labels.begin(part)

    def end(self, part: str) -> None:
        """It ends, if it has begun."""
        since = self._since.pop(part, None)
        if since is not None:
            self._pulse.set_aside(since, clock(), part)
        if self.is_on:
            self.labels.end(part)

    def part(self, name: str) -> AbstractContextManager[Any]:
        """Label what is done inside the context."""
        if self._waits:
            self.end(labels.DATA)
        hidden = not self.is_on or (self.labels.has(labels.VALIDATION) and name != labels.CHECKPOINT)
        return nullcontext() if hidden else self._region(name)

    @contextmanager
    def validation(self) -> Iterator[None]:
        """A validation that interrupts the loop, and a wait for data that goes on after it."""
        waited = self.labels.has(labels.DATA)
        self.end(labels.DATA)
        self.begin(labels.VALIDATION)
        try:
            yield
        finally:
            self.end(labels.VALIDATION)
        if waited:
            self.wait()
