"""One of a trainer's loops: training, validation, test or prediction, each with steps and windows of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from perfhooks.guard import guard
from perfhooks_lightning.names import ModuleNames
from perfhooks_lightning.regions import Regions

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from perfhooks import Profiler

TRAIN: Final = "train"
VALIDATE: Final = "validate"
TEST: Final = "test"
PREDICT: Final = "predict"
STAGES: Final = (TRAIN, VALIDATE, TEST, PREDICT)


class Loop:
    """A profiler in a loop of a trainer, with labels in the trace while a window is open.

    Args:
        profiler: Of this loop.
        own: How Lightning names what our callback does.
        module_names: Whether to label the forward pass of every module.
    """

    def __init__(self, profiler: Profiler, *, own: str, module_names: bool) -> None:
        self.profiler = profiler
        self.trainer_steps: dict[int, int] = {}
        """The trainer's global step at the beginning of each step of an open window: where loggers put what it says."""
        self._own = own
        self._names_wanted = module_names
        self._regions: Regions | None = None
        self._names: ModuleNames | None = None

    def begin(self, trainer: Trainer, *, step: int | None, out: str, run: str) -> None:
        """The loop's next step begins, after others or as its first."""
        self.profiler.start(step, out=out, run=run)
        if self.profiler.in_window:
            self._go_on(trainer)

    def step(self, trainer: Trainer) -> None:
        """A step ended and the next one begins."""
        self.profiler.step()
        if self.profiler.in_window or self._regions is not None:
            self._go_on(trainer)

    def end(self, trainer: Trainer, cause: str | None = None) -> None:
        """The loop ended, for now or for good, or something cut it short; what is being recorded is kept."""
        self._unlabel(trainer)
        self.profiler.pause(cause)

    def enter(self, part: str) -> None:
        """A part of the step begins that Lightning does not name, if it has not begun already."""
        if self._regions is not None and not self._regions.has(part):
            self._regions.begin(part)

    def leave(self, part: str) -> None:
        """It ends."""
        if self._regions is not None:
            self._regions.end(part)

    def _go_on(self, trainer: Trainer) -> None:
        """What is due at the beginning of a step in a window, or after one."""
        if not self.profiler.in_window:
            self._unlabel(trainer)
            return
        self.trainer_steps[self.profiler.step_num] = trainer.global_step
        if self._regions is None:
            self._label(trainer)

    def _label(self, trainer: Trainer) -> None:
        with guard("labelling the parts of a step"):
            self._regions = Regions.before(trainer, self.profiler.region, self._own)
            if self._names_wanted:
                self._names = ModuleNames(trainer.lightning_module, self.profiler.region)

    def _unlabel(self, trainer: Trainer) -> None:
        regions, self._regions = self._regions, None
        names, self._names = self._names, None
        with guard("taking the labels away"):
            if regions is not None:
                regions.leave(trainer)
            if names is not None:
                names.remove()
