"""The hook: mmengine's hook points as start, step and stop of a profiler for each loop."""

from __future__ import annotations

from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal

from mmengine.hooks import Hook
from mmengine.registry import HOOKS
from typing_extensions import Unpack

from perfhooks import OptionError, Options
from perfhooks import adapters as adapting
from perfhooks.adapters import SCHEDULE, Face, Stage, guard, with_options
from perfhooks_mmengine import builtin, logs
from perfhooks_mmengine.loops import STAGES, Loops, built
from perfhooks_mmengine.regions import parts_of
from perfhooks_mmengine.updates import Updates

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from perfhooks import Capture
    from perfhooks.adapters import HandlerLike, Place, ScheduleLike

_STEPS: Final = "perfhooks"
"""Where a checkpoint keeps the step of each loop, if the iteration does not say it."""


@with_options(without=("stage",), keep_results=False)
class ProfilerHook(Face, Hook):  # type: ignore[misc]  # mmengine ships no types
    """Profiles the iterations of a Runner on a schedule, in place of mmengine's hook of this name.

        custom_hooks = [  # in a config file
            dict(type="perfhooks_mmengine.ProfilerHook", schedule="wait=200 warmup=2 active=3 repeat=2")
        ]

    Files go to ``perf`` in ``runner.log_dir`` unless ``out`` is given. A training step is an iteration, from the wait
    for its batch to the end of its hooks, numbered by ``runner.iter``.

    Args:
        schedule: Which iterations to record: a mapping, a string like ``"wait=200 warmup=2 active=3 repeat=2"``, or
            what else :class:`perfhooks.Profiler` takes; or a mapping of loops (``train``, ``val``, ``test``) to
            schedules, where a loop that is not named is not profiled. None records one small window of the training,
            and None for a loop one of that loop; but with any of mmengine's own arguments below, or its own handlers,
            it stands for what it is in mmengine: the whole first epoch.
        on_trace_ready: What to make of each window, as for :class:`perfhooks.Profiler`; also mmengine's own
            ``"log_trace"`` and ``"tb_trace"`` with their options. ``"default"`` stands for what is made without it.
        step_unit: ``"batch"`` or ``"optimizer"``, one update of the optimizer, however many batches it accumulates.
        by_epoch: mmengine's own argument: True profiles the first epoch, False the first ``profile_times`` iterations;
            with a schedule, as much of it as falls into them. Without both, a schedule is good for all iterations.
        profile_times: mmengine's own argument, see ``by_epoch``.
        activity_with_cpu: mmengine's own argument: record the host. Without both, whatever torch supports is recorded.
        activity_with_cuda: mmengine's own argument: record the device, whatever kind it is.
        log_results: Give the steps of a window to the runner's visualizer, their mean to its next log line, and what
            perfhooks logs to its log.
        json_trace_path: mmengine's own argument: write the last window's trace to this file, too.
        **options: See :class:`perfhooks.Options`; all but ``stage``.

    ``run`` is ``runner.timestamp`` unless given; ``keep_results`` is True where mmengine's own arguments speak.

    Raises:
        OptionError: An argument has a value that it cannot have; ``profile_times`` is compared with the length of the
            training before it begins.
        TypeError: No option has this name.
    """

    priority = "VERY_LOW"
    in_place = False
    """Whether it stands under the name of mmengine's own hook: without arguments it then profiles the first epoch."""

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
        theirs = schedule is None and (
            builtin.is_own(on_trace_ready)
            or any(one is not None for one in (json_trace_path, activity_with_cpu, activity_with_cuda))
        )
        self._beginning = builtin.Beginning.of(by_epoch, profile_times, by_default=theirs or self.in_place)
        self._on_error = options.get("on_error", "warn")
        chosen = builtin.activities(activity_with_cpu, activity_with_cuda)
        if chosen is not None:
            if "activities" in options:
                raise OptionError("activities must not be given beside activity_with_cpu and activity_with_cuda")
            options["activities"] = chosen
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
        """The profiler of the training, or else of a loop that is profiled."""
        self._closed = False
        self._last_iter: int | None = None
        self._loaded: dict[str, int] = {}
        self._runner: Any = None
        self._running = False
        self._loops = Loops(self._around)
        self._log = logs.RunnerLog(is_wanted=log_results)
        self._line = logs.LogLine()

    # -- what mmengine calls -----------------------------------------------------------------------------------------

    def before_run(self, runner: Any) -> None:
        """Watch the loops that are about to run: mmengine calls no hook when one of them fails."""
        self._runner = runner
        if self._beginning is not None and "train" in self._stages and built(runner, "train") is not None:
            self._beginning.check(runner)
        with guard("watching mmengine's loops", self._on_error):
            self._loops.put(runner)

    def before_train(self, runner: Any) -> None:
        """Start, now that the model has its weights and a resumed training its iteration."""
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
        """The batch is here."""
        if self._updates is None and not self._closed:
            self._train.data_arrived()

    def after_train_iter(
        self,
        runner: Any,
        batch_idx: int,
        data_batch: Any = None,
        outputs: Any = None,
    ) -> None:
        """Step: what follows, the wait for the next batch first, belongs to the next iteration."""
        if self._closed:
            return
        if self._updates is None or self._updates.end_iteration():
            self._train.step()
        if self._last_iter is not None and runner.iter >= self._last_iter:
            self._close()

    def after_train_epoch(self, runner: Any) -> None:
        """The end of what ``by_epoch`` asks for."""
        if self._beginning is not None and self._beginning.by_epoch and not self._closed:
            self._close()

    def before_val(self, runner: Any) -> None:
        """A validation begins, inside the training or on its own."""
        self._start("validate", runner)

    def before_test(self, runner: Any) -> None:
        """A test begins."""
        self._start("test", runner)

    def before_val_iter(self, *_: Any, **__: Any) -> None:
        """The batch is here."""
        self._evaluation.data_arrived()

    def after_val_iter(self, *_: Any, **__: Any) -> None:
        """A step of the validation, or of the test, has ended."""
        self._evaluation.step()

    before_test_iter = before_val_iter
    after_test_iter = after_val_iter

    def before_save_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the steps that the iteration does not say."""
        with guard("keeping the steps in the checkpoint", self._on_error):
            steps = self._stages.counts()
            if self._updates is None:
                steps.pop("train", None)
            elif "train" in steps and self._updates.before_end(checkpoint):
                steps["train"] += 1
            if steps:
                checkpoint[_STEPS] = steps

    def after_load_checkpoint(self, runner: Any, checkpoint: dict[str, Any]) -> None:
        """Find the steps that a resumed training goes on from."""
        with guard("reading the steps from the checkpoint", self._on_error):
            self._loaded = adapting.read_counts(checkpoint.get(_STEPS))

    # -- how it is done ----------------------------------------------------------------------------------------------

    def _start(self, name: str, runner: Any) -> None:
        self._evaluation = self._stages[name]
        self._begin(self._evaluation, runner)

    def _begin(self, stage: Stage, runner: Any, step: int | None = None) -> None:
        stage.begin(runner, step=step, out=adapting.folder_in(runner.log_dir), run=runner.timestamp)

    def _close(self) -> None:
        """End what ``by_epoch`` and ``profile_times`` ask for; a window of a schedule may be cut short."""
        self._closed = True
        self._train.stop()

    def _export_chrome_trace(self, runner: Any) -> None:
        """What subclasses of mmengine's hook call to end the profile."""
        self._close()

    @contextmanager
    def _around(self, name: str, outermost: bool) -> Iterator[None]:
        """A loop runs: what ends it ends its profile, and with the outermost one all of them."""
        if outermost:
            self._running = True
            self._log.join(self._runner)
        is_inside = name == "validate" and not outermost
        cause = None
        try:
            with self._train.parts.validation() if is_inside else nullcontext():
                yield
        except BaseException as error:
            cause = adapting.cause_of(error)
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
        """A window has its files, perhaps only after the run."""
        logs.show(self._runner, capture, place, self._line)
        if not self._running:
            self._line.leave()
        self._leave_log()

    def _leave_log(self) -> None:
        # the page of the run may be turned later: nothing is said of that
        if not self._running and not any(profiler.windows_left for profiler in self.profilers.values()):
            self._log.leave()


class InPlaceHook(ProfilerHook):
    """Ours under the name of mmengine's: what a config does not say is as mmengine has it."""

    in_place = True


def replace_builtin() -> None:
    """Let ``type="ProfilerHook"`` mean our hook instead of mmengine's own, for configs that cannot be edited."""
    HOOKS.register_module(name="ProfilerHook", module=InPlaceHook, force=True)
