from __future__ import annotations

import contextlib
import signal
import statistics as medians
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import msgspec
import torch
from torch.utils.data import DataLoader, IterableDataset

from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.trials.loader_results import LoaderResult, LoaderSetting, LoaderTrial
from perfhooks.trials.loader_runner import LoaderRunner, compare_rates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_GAIN: Final = 1.1
"""Minimum speedup of one doubling of the workers for the next doubling."""
_FIRST: Final = (1, 2, 4)
_MOST: Final = 64


def try_loader(loader: Any, *, seconds: float = 60.0) -> LoaderTrial:
    """Measure a DataLoader with different numbers of workers, without a training, in interleaved blocks.

    The number of workers is doubled while a doubling gains 10% and memory is sufficient. Further settings are no
    workers, more prefetched batches and (for a device) pinned memory. The state of torch's random numbers is restored.

    Args:
        loader: A ``torch.utils.data.DataLoader``, which is not changed.
        seconds: Approximate time limit. The trial ends earlier if all comparisons are decided.

    Returns:
        The results. ``str(results)`` is a table with conclusions.

    Raises:
        OptionError: The loader is not a DataLoader, or ``seconds`` is not positive.
    """
    if not isinstance(loader, DataLoader):
        raise OptionError(f"loader must be a torch.utils.data.DataLoader, got {type(loader).__name__}")
    if not 0 < seconds < float("inf"):
        raise OptionError(f"seconds must be a number above 0, got {seconds:g}")
    return measure_loader(loader, seconds)


def measure_loader(
    loader: Any,
    seconds: float,
    *,
    publish: Callable[[LoaderTrial], object] = lambda _: None,
    is_stopped: Callable[[], bool] = lambda: False,
) -> LoaderTrial:
    """Measure the loader. ``publish`` gets the results of each round, and ``is_stopped`` ends the trial early."""
    facts = Loader(num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor, pin_memory=loader.pin_memory)
    with torch.random.fork_rng(devices=[]):
        return _Trial(loader, facts, seconds, publish, is_stopped).run()


class _Signals:
    """Signal handlers while loaders are measured.

    If a worker dies, torch's SIGCHLD handler raises an error at any line of the main thread. perfhooks' handler raises
    this error only if the main thread waits for a batch of the dead worker. Ctrl-C raises one KeyboardInterrupt, and
    only while ``is_interruptible``.
    """

    def __init__(self) -> None:
        self.is_interruptible = self.is_interrupted = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD)}
            if self._before[signal.SIGINT] not in (signal.SIG_IGN, None):
                signal.signal(signal.SIGINT, self._interrupt)

    def _interrupt(self, *_: object) -> None:
        self.is_interrupted = True
        if self.is_interruptible:
            self.is_interruptible = False
            raise KeyboardInterrupt

    def replace_handler_of_torch(self) -> None:
        """Replace the SIGCHLD handler that torch installs for its first worker, until the end of the trial."""
        if self._before and (handler := signal.getsignal(signal.SIGCHLD)) != LoaderRunner.check_awaited:
            self._before[signal.SIGCHLD] = handler
            signal.signal(signal.SIGCHLD, LoaderRunner.check_awaited)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            if handler is not None:
                signal.signal(number, handler)


class _RecordedFailure(contextlib.AbstractContextManager[None]):
    def __init__(self, failed: list[LoaderResult], setting: LoaderSetting, *, is_own: bool) -> None:
        self._failed, self._setting, self._is_own = failed, setting, is_own

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed.append(LoaderResult(setting=self._setting, is_own=self._is_own, problem=cause_of(error)))
        return True


class _Trial:
    def __init__(
        self,
        loader: Any,
        facts: Loader,
        seconds: float,
        publish: Callable[[LoaderTrial], object],
        is_stopped: Callable[[], bool],
    ) -> None:
        self._loader = loader
        self._publish = publish
        self._is_stopped = is_stopped
        self._signals = _Signals()
        workers = facts.num_workers or 0
        self._own = LoaderSetting(workers, facts.prefetch_factor if workers else None, bool(facts.pin_memory))
        self._ahead = facts.prefetch_factor or 2
        self._until = time.monotonic() + seconds
        self._runners: dict[LoaderSetting, LoaderRunner] = {}
        self._baselines: dict[LoaderSetting, LoaderSetting] = {}
        self._failed: list[LoaderResult] = []
        self._here = Circumstances.current()

    def _setting(self, workers: int, ahead: int | None = None, *, pinned: bool | None = None) -> LoaderSetting:
        is_pinned = self._own.pinned if pinned is None else pinned
        return LoaderSetting(workers, (ahead or self._ahead) if workers else None, is_pinned)

    def run(self) -> LoaderTrial:
        with self._signals:
            try:
                self._measure()
            except KeyboardInterrupt:
                self._signals.is_interrupted = True
            finally:
                for runner in self._runners.values():
                    runner.close()
            trial = self._trial()
            self._publish(trial)
        return trial

    def _measure(self) -> None:
        self._signals.is_interruptible = True
        try:
            self._try_workers()
            self._try_variants()
        finally:
            self._signals.is_interruptible = False

    def _trial(self) -> LoaderTrial:
        loaders = sorted((*self._results(), *self._failed), key=lambda result: result.setting.workers)
        trial = LoaderTrial(
            name=_describe(self._loader),
            tried=tuple(loaders),
            cores=self._here.cores,
            ranks=self._here.ranks,
            keeps_workers=bool(self._loader.persistent_workers),
            is_endless=_is_endless(self._loader.dataset),
            is_interrupted=self._signals.is_interrupted or self._is_stopped(),
            problem=""
            if any(result.batches for result in loaders)
            else next((result.problem for result in loaders), ""),
        )
        return _with_planned_rates(trial)

    def _try_workers(self) -> None:
        previous = None
        for workers in sorted({*_FIRST, self._own.workers} - {0}):
            previous = self._start(self._setting(workers), previous) or previous
        self._run_rounds()
        while self._runners and not self._is_over:
            largest = max(self._runners, key=lambda setting: setting.workers)
            half = self._baselines.get(largest)
            is_gaining = half is None or self._rate(largest) >= _GAIN * self._rate(half)
            if not is_gaining or 2 * largest.workers > _MOST or not self._has_room(2 * largest.workers):
                break
            if self._start(self._setting(2 * largest.workers), largest) is None:
                break
            self._run_rounds()

    def _try_variants(self) -> None:
        best = self._best
        if best is not None and not self._is_over:
            self._runners[best].begin_again()
            self._start(self._setting(best.workers, 2 * (best.ahead or self._ahead)), best)
            if torch.cuda.is_available():
                self._start(self._setting(best.workers, best.ahead, pinned=not best.pinned), best)
        # measured last: without workers, the data set opens files in this process, and later workers would inherit them
        without_workers = self._start(self._setting(0), None)
        one_worker = self._setting(1)
        if without_workers is not None and one_worker in self._runners:
            self._baselines[one_worker] = without_workers
        self._run_rounds()
        while not self._is_over and not self._is_decided:
            self._run_rounds()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until or self._is_stopped()

    def _rate(self, setting: LoaderSetting) -> float:
        rates = self._runners[setting].rates if setting in self._runners else ()
        return medians.median(rates) if rates else 0.0

    @property
    def _best(self) -> LoaderSetting | None:
        highest_rate = max(map(self._rate, self._runners), default=0.0)
        fast = (setting for setting in self._runners if self._rate(setting) * _GAIN >= highest_rate)
        return min(fast, key=lambda setting: setting.workers, default=None)

    @property
    def _is_decided(self) -> bool:
        return all(
            compare_rates(runner.rates, self._runners[self._baselines[setting]].rates) != "undecided"
            for setting, runner in self._runners.items()
            if setting in self._baselines and self._baselines[setting] in self._runners
        )

    def _has_room(self, workers: int) -> bool:
        memory = max((runner.memory or 0 for runner in self._runners.values()), default=0)
        return workers * memory <= 0.5 * (Circumstances.current().memory_bytes or float("inf"))

    def _start(self, setting: LoaderSetting, baseline: LoaderSetting | None) -> LoaderSetting | None:
        if setting in self._runners:
            return setting
        with self._failing(setting):
            try:
                self._runners[setting] = LoaderRunner(self._loader, setting, self._own)
            finally:
                self._signals.replace_handler_of_torch()
        if setting not in self._runners:
            return None
        if baseline is not None:
            self._baselines[setting] = baseline
        return setting

    def _failing(self, setting: LoaderSetting) -> _RecordedFailure:
        return _RecordedFailure(self._failed, setting, is_own=setting == self._own)

    def _run_rounds(self) -> None:
        for number in range(2):
            for setting in [*self._runners][:: -1 if number % 2 else 1]:
                failures = len(self._failed)
                with self._failing(setting):
                    self._runners[setting].turn(lambda: self._is_over)
                if len(self._failed) > failures:
                    self._runners.pop(setting).close()
            self._publish(self._trial())
            if self._is_over:
                break

    def _results(self) -> Iterator[LoaderResult]:
        for setting, runner in self._runners.items():
            if runner.made:
                baseline = self._baselines.get(setting)
                yield runner.result(None if baseline is None else self._runners.get(baseline))


def _with_planned_rates(trial: LoaderTrial) -> LoaderTrial:
    cost, cores = trial.cost(), float(trial.cores or 1)
    if cost is None:
        return trial

    def with_rate(loader: LoaderResult) -> LoaderResult:
        if not loader.setting.workers or loader.problem:
            return loader
        return msgspec.structs.replace(loader, planned=cost.rate(loader.setting.workers, cores))

    return msgspec.structs.replace(trial, tried=tuple(map(with_rate, trial.tried)))


def _is_endless(data: Any) -> bool:
    return isinstance(data, IterableDataset) and not hasattr(data, "__len__")


def _describe(loader: Any) -> str:
    with contextlib.suppress(Exception):
        data = type(loader.dataset).__name__
        return f"{type(loader).__name__} of {len(loader.dataset):,} {data}, batch_size={loader.batch_size}"
    return f"{type(loader).__name__} of {type(loader.dataset).__name__}, batch_size={loader.batch_size}"
