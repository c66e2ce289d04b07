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
    """Labels for the parts of a step: calls of methods are parts, and hooks can begin and end other parts.

        Parts(profiler, {"compute_loss": "forward", "engine.backward": "backward"})  # of trainer, and trainer.engine

    Args:
        profiler: Profiler of the stage.
        methods: Part of each method; a name such as ``model.loss`` is relative to the loop object of `Stage.begin`.
        more: Function that gets this object and the loop object, and can `wrap` further methods.
        waits: Whether the time from the end of a step to the first of these methods is the wait for data.
        modules: Function that returns the module whose submodules are labelled.
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
        self.labels = OpenLabels(self._region)
        self.is_on = False
        self._pulse = profiler.pulse
        self._since: dict[str, int] = {}
        self._paths = methods
        self._more = more
        self._waits = waits
        self._modules = modules
        self._names: ModuleNames | None = None

    def _region(self, name: str) -> AbstractContextManager[Any]:
        """Return a label. `Profiler.region` would time a validation again, which the adapter already times."""
        return LabelledRange(name) if self._pulse.is_recording else nullcontext()

    def put(self, loop: Any, *, waiting: bool) -> None:
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
        self.is_on = False
        self.labels.close()
        self.methods.unwrap()
        names, self._names = self._names, None
        if names is not None:
            names.remove()

    def wrap(self, owner: Any, name: str, part: str) -> None:
        """Label calls of a method until the window closes, if the owner has the method."""
        self.methods.wrap_in(owner, name, partial(self.part, part))

    def wait(self) -> None:
        """If ``waits`` is set, label the time until the next part as the wait for data."""
        if self._waits:
            self.begin(labels.DATA)

    def begin(self, part: str) -> None:
        """Begin a part that ends in another hook. If the part is open, do nothing."""
        if part in RARE:
            self._since.setdefault(part, clock())
        if self.is_on and not self.labels.has(part):
            self.labels.begin(part)

    def end(self, part: str) -> None:
        since = self._since.pop(part, None)
        if since is not None:
            self._pulse.set_aside(since, clock(), part)
        if self.is_on:
            self.labels.end(part)

    def part(self, name: str) -> AbstractContextManager[Any]:
        if self._waits:
            self.end(labels.DATA)
        hidden = not self.is_on or (self.labels.has(labels.VALIDATION) and name != labels.CHECKPOINT)
        return nullcontext() if hidden else self._region(name)

    @contextmanager
    def validation(self) -> Iterator[None]:
        """Label a validation that interrupts the loop.

        If the validation interrupts a wait for data, the wait continues afterwards.
        """
        is_waiting = self.labels.has(labels.DATA)
        self.end(labels.DATA)
        self.begin(labels.VALIDATION)
        try:
            yield
        finally:
            self.end(labels.VALIDATION)
        if is_waiting:
            self.wait()
