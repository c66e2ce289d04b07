from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from typing_extensions import Unpack

from perfhooks import OptionError, Options, adapters
from perfhooks.adapters import SCHEDULE, Adapter, Stage, guard, with_options
from perfhooks_mmengine import builtin, logs
from perfhooks_mmengine.loops import STAGES, Loops, built
from perfhooks_mmengine.regions import parts_of
from perfhooks_mmengine.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfhooks import Capture
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike

_STEPS: Final = "perfhooks"
"""Key of the step counts in a checkpoint. Counts may differ from the number of iterations."""


@with_options(without=("stage",), keep_results=False)
class ProfilerHook(Adapter, Hook):  # type: ignore[misc]  # mmengine ships no types
    """Profiles the iterations of a Runner on a schedule, in place of mmengine's own ProfilerHook.

        custom_hooks = [  # in a config file
            dict(type="perfhooks_mmengine.ProfilerHook", schedule="wait=200 warmup=2 active=3 repeat=2")
        ]

    Files go to ``perf`` in ``runner.log_dir``, unless ``out`` is set. A training step is an iteration, from the wait
    for the batch to the end of the hooks. The number of the step is ``runner.iter``.

    Args:
        schedule: Iterations to record: a mapping, a string like ``"wait=200 warmup=2 active=3 repeat=2"``, or another
            form for :class:`perfhooks.Profiler`; or a mapping of loops (``train``, ``val``, ``test``) to schedules.
            Loops without a schedule are not profiled. None records one small window, of the training or of a loop in
            the mapping. With mmengine's own arguments or handlers, None records the first epoch, as in mmengine.
        on_trace_ready: Handlers of each window, as for :class:`perfhooks.Profiler`, including mmengine's own
            ``"log_trace"`` and ``"tb_trace"`` with their options. ``"default"`` selects the default handlers.
        step_unit: ``"batch"``, or ``"optimizer"`` for an optimizer update of one or more batches.
        by_epoch: Argument of mmengine: True profiles the first epoch, False the first ``profile_times`` iterations.
            Both limit a schedule. Without ``by_epoch`` and ``profile_times``, a schedule covers all iterations.
        profile_times: Argument of mmengine, see ``by_epoch``.
        activity_with_cpu: Argument of mmengine: whether to record the host.
        activity_with_cuda: Argument of mmengine: whether to record the device, also if it is no CUDA device. If neither
            activity is set, or both are False, torch records everything.
        log_results: Whether to send the steps of a window to the runner's visualizer, their mean to its next log line,
            and messages of perfhooks to its log.
        json_trace_path: Argument of mmengine: additional file for the trace of the last window.
        **options: See :class:`perfhooks.Options`; all but ``stage``.

    The default of ``run`` is ``runner.timestamp``. With arguments of mmengine, the default of ``keep_results`` is
    True.

    Raises:
        OptionError: An argument has an invalid value, or ``profile_times`` exceeds the length of the training.
        TypeError: An option is unknown.
    """

    priority = "VERY_LOW"
    in_place = False
    """Whether the hook replaces mmengine's own hook, and profiles the first epoch by default."""

    def __init__(
        self,
        *,
        schedule: ScheduleLike | Mapping[str, ScheduleLike] = None,
        on_trace_ready: HandlerLike | Sequence[HandlerLike] | None = None,
        step_unit: Literal["batch", "optimizer"] = "batch",
        by_epoch: bool | None = None,
        profile_times: int | None = None,
        activity_with_cpu: bool | None = None,
        activity_with_cuda: bool | None = None,
        json_trace_path: str | None = None,
        log_results: bool = True,
        **options: Unpack[Options],
    ) -> None:
        self._updates = Updates() if step_unit == "optimizer" else None
        has_own_arguments = schedule is None and (
            builtin.is_own(on_trace_ready)
            or any(value is not None for value in (json_trace_path, activity_with_cpu, activity_with_cuda))
        )
        self._beginning = builtin.Beginning.of(by_epoch, profile_times, by_default=has_own_arguments or self.in_place)
        self._on_error = options.get("on_error", "warn")
        activities = builtin.activities(activity_with_cpu, activity_with_cuda)
        if activities is not None:
            if "activities" in options:
                raise OptionError("activities cannot be combined with activity_with_cpu and activity_with_cuda")
            options["activities"] = activities
        options.setdefault("keep_results", self._beginning is not None)
        super().__init__(
            schedule,
            builtin.handlers(on_trace_ready, json_trace_path, lambda: self._runner),
            options,
            framework="mmengine",
            loops={**STAGES, "validate": "validate"},
            step_unit=step_unit,
            labels=parts_of,
            listener=self._show if log_results else None,
            default=None if self._beginning else SCHEDULE,
        )
        self.profiler = self.profilers.get("train") or next(iter(self.profilers.values()))
        self._closed = False
        self._last_iter: int | None = None
        self._loaded: dict[str, int] = {}
        self._runner: Any = None
        self._running = False
        self._loops = Loops(self._around)
        self._log = logs.RunnerLog(is_wanted=log_results)
        self._line = logs.LogLine()

    def before_run(self, runner: Any) -> None:
        """Wrap the loops, because mmengine calls no hook when a loop fails."""
        self._runner = runner
        if self._beginning is not None and "train" in self._stages and built(runner, "train") is not None:
            self._beginning.check(runner)
        with guard("watching mmengine's loops", self._on_error):
            self._loops.put(runner)

    def before_train(self, runner: Any) -> None:
        """Begin after mmengine loaded the weights and the iteration of a resumed training."""
        resumed = self._loaded if runner.iter else {}
        self._stages.resume(resumed)
        if self._closed:
            return
        if self._beginning is not None:
            self._last_iter = self._beginning.last_iter(runner.iter)
        step = runner.iter
        if self._updates is not None:
            self._updates.start(runner)
            step = resumed.get("train", step)
        self._begin(self._train, runner, step)

    def before_train_iter(self, runner: Any, batch_idx: int, data_batch: Any = None) -> None:
        if self._updates is None and not self._closed:
            self._train.data_arrived()

    def after_train_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        """End a step. The wait for the next batch belongs to the next step."""
        if self._closed:
            return
        if self._updates is None or self._updates.end_iteration():
            self._train.step()
        if self._last_iter is not None and runner.iter >= self._last_iter:
            self._close()

    def after_train_epoch(self, runner: Any) -> None:
        if self._beginning is not None and self._beginning.by_epoch and not self._closed:
            self._close()

    def before_val(self, runner: Any) -> None:
        self._start("validate", runner)

    def before_test(self, runner: Any) -> None:
        self._start("test", runner)

    def before_val_iter(self, *_: Any, **__: Any) -> None:
        self._evaluation.data_arrived()

    def after_val_iter(self, *_: Any, **__: Any) -> None:
        self._evaluation.step()

    before_test_iter = before_val_iter
    after_test_iter = after_val_iter

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Add the step counts to the checkpoint if they differ from the iteration."""
        with guard("saving the steps in the checkpoint", self._on_error):
            steps = self._stages.counts()
            if self._updates is None:
                steps.pop("train", None)
            elif "train" in steps and self._updates.before_end(checkpoint):
                steps["train"] += 1
            if steps:
                checkpoint[_STEPS] = steps

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        with guard("reading the steps from the checkpoint", self._on_error):
            self._loaded = adapters.read_counts(checkpoint.get(_STEPS))

    def _start(self, name: str, runner: Any) -> None:
        self._evaluation = self._stages[name]
        self._begin(self._evaluation, runner)

    def _begin(self, stage: Stage, runner: Any, step: int | None = None) -> None:
        stage.begin(runner, step=step, out=adapters.folder_in(runner.log_dir), run=runner.timestamp)

    def _close(self) -> None:
        """Stop at the limit of ``by_epoch`` and ``profile_times``, which may cut a window short."""
        self._closed = True
        self._train.stop()

    def _export_chrome_trace(self, runner: Any) -> None:
        """Stop profiling, without an export. Subclasses of mmengine's hook call this method to stop."""
        self._close()

    @contextmanager
    def _around(self, name: str, outermost: bool) -> Iterator[None]:
        if outermost:
            self._running = True
            self._log.join(self._runner)
        is_inside = name == "validate" and not outermost
        cause = None
        try:
            with self._train.parts.validation() if is_inside else nullcontext():
                yield
        except BaseException as error:
            cause = adapters.cause_of(error)
            raise
        finally:
            self._end(name, cause, outermost=outermost)

    def _end(self, name: str, cause: str | None, *, outermost: bool) -> None:
        stage = self._stages[name]
        (stage.stop if outermost else stage.pause)(cause)
        if outermost:
            self._stages.stop()
            self._line.leave()
            self._running = False
            folders = (profiler.folder for profiler in self.profilers.values())
            self._log.stay_for(folder.name for folder in folders if folder is not None)
            self._leave_log()

    def _show(self, capture: Capture, place: Place) -> None:
        logs.show(self._runner, capture, place, self._line)
        if not self._running:
            self._line.leave()
        self._leave_log()

    def _leave_log(self) -> None:
        if not self._running and not any(profiler.windows_left for profiler in self.profilers.values()):
            self._log.leave()


class InPlaceHook(ProfilerHook):
    """`ProfilerHook` under the name of mmengine's own hook, with mmengine's defaults."""

    in_place = True


def replace_builtin() -> None:
    """Make ``type="ProfilerHook"`` select this hook, for configs that cannot be edited."""
    HOOKS.register_module(name="ProfilerHook", module=InPlaceHook, force=True)
