"""Measure a training's loader without the training, with different settings in interleaved blocks.

A signal stops the workers of all settings except the current one::

    1 worker    ─►▐██████▌                  ▐██████▌                    ▌ stopped by a signal
    2 workers             ─►▐██████▌ ▐██████▌                           ─► prefetched batches, not counted: a worker
    4 workers                       ▐         ...                          that slept made progress meanwhile
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import statistics as medians
import threading
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
import psutil
import torch
from torch.utils.data import DataLoader, IterableDataset

from perfhooks.analysis.comparison.difference import compare_paired
from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of
from perfhooks.core.statistics import LEAST_STEPS
from perfhooks.core.thread_time import CountedThread
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.trials.loader_results import TOLERANCE, LoaderResult, LoaderSetting, LoaderTrial

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.comparison.difference import Outcome

BLOCK_S: Final = 0.25
"""Minimum length of a block. Most batches take a tenth of it."""
_GAIN: Final = 1.1
"""Minimum gain of a doubling before the next doubling."""
_FIRST: Final = (1, 2, 4)
_MOST: Final = 64


class _WorkerClocks(NamedTuple):
    wall_s: float
    processor_s: float
    queued_s: float


class _Runner:
    """An endless iteration with one setting. Its workers are stopped between blocks."""

    def __init__(self, loader: Any, setting: LoaderSetting, own: LoaderSetting) -> None:
        self.setting, self.is_own = setting, setting == own
        self.problem = ""
        self.blocks: list[_WorkerClocks] = []
        self.made: list[int] = []
        self.memory: int | None = None
        self.again_s: float | None = None
        self._loader = self._with_setting(loader)
        self._in_pass = 0
        self._is_short = False
        self._pids: list[int] = []
        self._batches: Any = None
        began = time.monotonic()
        try:
            with warnings.catch_warnings():  # torch warns about more workers than CPUs, which is tried on purpose
                warnings.simplefilter("ignore")
                self._batches = DataLoader.__iter__(self._loader)
            self._pids = [worker.pid for worker in getattr(self._batches, "_workers", ())]
            self._consume()
            self.first_s = time.monotonic() - began
            self.memory = max(map(_unique_memory, self._pids), default=None)
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def _with_setting(self, loader: Any) -> Any:
        changed = copy.copy(loader)
        workers = self.setting.workers
        # bypasses DataLoader.__setattr__, which raises for these attributes after construction
        vars(changed).update(
            num_workers=workers,
            prefetch_factor=self.setting.ahead,
            pin_memory=self.setting.pinned,
            persistent_workers=workers > 0,
            timeout=changed.timeout if workers else 0,
            _iterator=None,
        )
        return changed

    def _signal(self, number: int) -> None:
        for pid in self._pids:
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    def _consume(self) -> bool:
        self._in_pass += 1
        try:
            next(self._batches)
        except StopIteration:
            # at the start of a pass no batch is prefetched
            self._is_short = self._in_pass <= 4 * max(self.setting.workers, 1)
            self._batches, self._in_pass = DataLoader.__iter__(self._loader), 1
            try:
                next(self._batches)
            except StopIteration:
                raise OptionError("the loader is empty: it returns no batch") from None
            return True
        return False

    def turn(self, until: float) -> None:
        """Measure one block. ``until`` is monotonic time."""
        parallel = max(self.setting.workers, 1)
        self._signal(signal.SIGCONT)
        try:
            batches, clocks = 0, _WorkerClocks(0.0, 0.0, 0.0)
            begin = self._skip(parallel)
            since_begin = 0
            while time.monotonic() < until or not batches:
                if self._consume() and not self._is_short:
                    begin, since_begin = self._skip(parallel), 0
                    continue
                since_begin += 1
                if since_begin % parallel == 0:
                    now = self._clocks()
                    clocks = _WorkerClocks(
                        *(old + end - start for old, end, start in zip(clocks, now, begin, strict=True))
                    )
                    batches, begin, since_begin = batches + parallel, now, 0
                    if clocks.wall_s >= BLOCK_S and batches >= 2 * parallel:
                        break
        finally:
            self._signal(signal.SIGSTOP)
        self.blocks.append(clocks)
        self.made.append(batches)

    def _skip(self, count: int) -> _WorkerClocks:
        for _ in range(0 if self._is_short else count):
            if self._consume():
                break
        return self._clocks()

    def _clocks(self) -> _WorkerClocks:
        if self._pids:
            computed, queued = map(sum, zip(*map(_scheduler_times, self._pids), strict=True))
        else:
            thread = CountedThread(threading.get_ident(), threading.get_native_id())
            computed, queued = time.process_time_ns(), thread.waited_ns() or 0
        return _WorkerClocks(time.monotonic(), computed * 1e-9, queued * 1e-9)

    def begin_again(self) -> None:
        self._signal(signal.SIGCONT)
        try:
            start_s = time.monotonic()
            self._batches, self._in_pass = DataLoader.__iter__(self._loader), 1
            next(self._batches, None)
            self.again_s = time.monotonic() - start_s
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        # garbage collection may run inside a worker of the next setting, and raises there
        getattr(self._batches, "_shutdown_workers", bool)()
        self._batches = vars(self._loader)["_iterator"] = None

    @property
    def rates(self) -> list[float]:
        return [batches / block.wall_s for batches, block in zip(self.made, self.blocks, strict=True)]

    def result(self, other: _Runner | None) -> LoaderResult:
        wall_s, cpu_s, queued_s = (
            (sum(column) for column in zip(*self.blocks, strict=True)) if self.blocks else (0, 0, 0)
        )
        return LoaderResult(
            setting=self.setting,
            is_own=self.is_own,
            problem=self.problem,
            batches=sum(self.made),
            seconds=wall_s,
            processor_s=cpu_s if self._is_counted else None,
            queued_s=queued_s if self._is_counted else None,
            memory_bytes=self.memory,
            first_s=self.first_s,
            again_s=self.again_s,
            rates=tuple(self.rates),
            verdict=None if other is None else compare_rates(self.rates, other.rates),
        )

    @property
    def _is_counted(self) -> bool:
        return any(block.processor_s for block in self.blocks)


def compare_rates(rates: Sequence[float], others: Sequence[float]) -> Outcome:
    count = min(len(rates), len(others))
    if count < LEAST_STEPS:
        return "undecided"
    # the last blocks were interleaved, even if one setting started earlier
    times = [[1 / rate for rate in series[-count:]] for series in (others, rates)]
    return compare_paired(*times, tolerance=TOLERANCE).outcome


def try_loader(loader: Any, *, seconds: float = 60.0) -> LoaderTrial:
    """Measure a DataLoader with different numbers of workers, without a training, in interleaved blocks.

    The number of workers is doubled while a doubling gains 10% and memory is sufficient. Then follow no workers, more
    prefetched batches and (for a device) pinned memory. The state of torch's random numbers is restored.

    Args:
        loader: A ``torch.utils.data.DataLoader``; it is not changed.
        seconds: Approximate time limit. The trial ends earlier if all comparisons are decided.

    Returns:
        The measurements. Its text is a table with conclusions.

    Raises:
        OptionError: The loader is not a DataLoader, or ``seconds`` is not positive.
    """
    if not isinstance(loader, DataLoader):
        raise OptionError(f"loader must be a torch.utils.data.DataLoader, got {type(loader).__name__}")
    if not 0 < seconds < float("inf"):
        raise OptionError(f"seconds must be a number above 0, got {seconds:g}")
    facts = Loader(num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor, pin_memory=loader.pin_memory)
    with torch.random.fork_rng(devices=[]):
        return _Trial(loader, facts, seconds).run()


class _RecordedFailure(contextlib.AbstractContextManager[None]):
    def __init__(self, failed: list[LoaderResult], setting: LoaderSetting, *, is_own: bool) -> None:
        self._failed, self._setting, self._is_own = failed, setting, is_own

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed.append(LoaderResult(setting=self._setting, is_own=self._is_own, problem=_problem_of(error)))
        return True


class _Trial:
    def __init__(self, loader: Any, facts: Loader, seconds: float) -> None:
        self._loader = loader
        workers = facts.num_workers or 0
        self._own = LoaderSetting(workers, facts.prefetch_factor if workers else None, bool(facts.pin_memory))
        self._ahead = facts.prefetch_factor or 2
        self._until = time.monotonic() + seconds
        self._runners: dict[LoaderSetting, _Runner] = {}
        self._baselines: dict[LoaderSetting, LoaderSetting] = {}
        self._failed: list[LoaderResult] = []
        self._here = Circumstances.current()

    def _setting(self, workers: int, ahead: int | None = None, *, pinned: bool | None = None) -> LoaderSetting:
        is_pinned = self._own.pinned if pinned is None else pinned
        return LoaderSetting(workers, (ahead or self._ahead) if workers else None, is_pinned)

    def run(self) -> LoaderTrial:
        is_interrupted = False
        try:
            self._try_workers()
            self._try_variants()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            for runner in self._runners.values():
                runner.close()
        loaders = sorted((*self._results(), *self._failed), key=lambda result: result.setting.workers)
        trial = LoaderTrial(
            name=_describe(self._loader),
            tried=tuple(loaders),
            cores=self._here.cores,
            ranks=self._here.ranks,
            keeps_workers=bool(self._loader.persistent_workers),
            is_endless=_is_endless(self._loader.dataset),
            is_interrupted=is_interrupted,
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
        # last: workers that are forked later would share any file that this setting opens in this process
        without_workers = self._start(self._setting(0), None)
        one_worker = self._setting(1)
        if without_workers is not None and one_worker in self._runners:
            self._baselines[one_worker] = without_workers
        self._run_rounds()
        while not self._is_over and not self._is_decided:
            self._run_rounds()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

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
            self._runners[setting] = _Runner(self._loader, setting, self._own)
        if setting not in self._runners:
            return None
        if baseline is not None:
            self._baselines[setting] = baseline
        return setting

    def _failing(self, setting: LoaderSetting) -> _RecordedFailure:
        return _RecordedFailure(self._failed, setting, is_own=setting == self._own)

    def _run_rounds(self) -> None:
        """Measure forwards and backwards: at least one round, even after the time limit."""
        for number in range(2):
            for setting in [*self._runners][:: -1 if number % 2 else 1]:
                failures = len(self._failed)
                with self._failing(setting):
                    self._runners[setting].turn(self._until)
                if len(self._failed) > failures:
                    self._runners.pop(setting).close()
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


def _problem_of(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    is_of_worker = "Original Traceback" in str(error)
    return lines[-1].strip() if is_of_worker else cause_of(error)


def _unique_memory(pid: int) -> int:
    """Return the unique set size in bytes; 0 if unknown."""
    with contextlib.suppress(psutil.Error, AttributeError):
        return int(psutil.Process(pid).memory_full_info().uss)
    return 0


def _scheduler_times(pid: int) -> tuple[int, int]:
    """Return CPU time and run-queue wait of all threads, in ns, from ``schedstat``; 0 if unknown."""
    cpu_ns = queued_ns = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            numbers = (thread / "schedstat").read_text(encoding="ascii").split()
            cpu_ns, queued_ns = cpu_ns + int(numbers[0]), queued_ns + int(numbers[1])
    return cpu_ns, queued_ns
