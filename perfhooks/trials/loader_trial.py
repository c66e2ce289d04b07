"""A training's loader driven without the training: with no workers, one, two, four and so on, in turns.

All settings live side by side, and all but one are stopped: their workers go on in the middle of what they were doing::

    1 worker    ─►▐██████▌                  ▐██████▌                    ▌ stopped by a signal
    2 workers             ─►▐██████▌ ▐██████▌                           ─► batches on the way, not counted: what slept
    4 workers                       ▐         ...                          meanwhile has gone on
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

from perfhooks.analysis.comparison import verdict
from perfhooks.core.errors import OptionError
from perfhooks.core.guard import cause_of
from perfhooks.core.statistics import LEAST_STEPS
from perfhooks.core.thread_time import CountedThread
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.trials.loader_results import LoaderSetting, LoaderTrial, TriedLoader

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.comparison.verdict import Outcome

SECONDS: Final = 60.0
"""How long it may take, if nobody says otherwise: five settings of a loader of 100 ms are decided in half of it."""
BLOCK_S: Final = 0.25
"""A turn lasts so long or longer: a batch is made in some ten times less, mostly."""
TOLERANCE: Final = 0.05
"""A difference that is none: two trainings of one program differ by as much."""
_GAIN: Final = 1.1
"""Twice the workers are tried where the last doubling gave this or more."""
_FIRST: Final = (1, 2, 4)
_FEW: Final = 2
"""Rounds of turns, one there and one back, after which it is looked how things stand."""
_LONG: Final = 4
"""Batches for each worker that a pass has if its beginning is left out, in which the workers have none on the way."""
_MOST: Final = 64
"""Workers of a trial."""
_FREE: Final = 0.5
"""Of the memory that is free, workers that live side by side may take this."""


class _WorkerClocks(NamedTuple):
    wall_s: float
    processor_s: float
    queued_s: float


class _Runner:
    """The loader with one setting, iterated without end; its workers rest between its turns."""

    def __init__(self, loader: Any, setting: LoaderSetting, own: LoaderSetting) -> None:
        self.setting, self.is_own = setting, setting == own
        self.problem = ""
        self.blocks: list[_WorkerClocks] = []
        self.made: list[int] = []
        self.memory: int | None = None
        self.again_s: float | None = None
        self._loader = self._changed(loader)
        self._in_pass = 0
        self._is_short = False
        """Whether a pass is over before much of it counts: passes are then counted whole, with their beginnings."""
        self._pids: list[int] = []
        self._batches: Any = None
        began = time.monotonic()
        try:
            with warnings.catch_warnings():  # that these are more workers than processors is what is tried
                warnings.simplefilter("ignore")
                self._batches = DataLoader.__iter__(self._loader)
            self._pids = [worker.pid for worker in getattr(self._batches, "_workers", ())]
            self._next()
            self.first_s = time.monotonic() - began
            self.memory = max(map(_own_memory, self._pids), default=None)
        except BaseException:
            self.close()
            raise
        self._tell(signal.SIGSTOP)

    def _changed(self, loader: Any) -> Any:
        changed = copy.copy(loader)
        workers = self.setting.workers
        # past the check of torch, which keeps its users from changing what its parts have read already
        vars(changed).update(
            num_workers=workers,
            prefetch_factor=self.setting.ahead,
            pin_memory=self.setting.pinned,
            persistent_workers=workers > 0,
            timeout=changed.timeout if workers else 0,
            _iterator=None,
        )
        return changed

    def _tell(self, number: int) -> None:
        for pid in self._pids:
            with contextlib.suppress(OSError):  # one that has ended is missed by the loader itself
                os.kill(pid, number)

    def _next(self) -> bool:
        """Take a batch; whether it is the first of another pass."""
        self._in_pass += 1
        try:
            next(self._batches)
        except StopIteration:
            self._is_short = self._in_pass <= _LONG * max(self.setting.workers, 1)
            self._batches, self._in_pass = DataLoader.__iter__(self._loader), 1
            try:
                next(self._batches)
            except StopIteration:
                raise OptionError("the loader gives no batch at all") from None
            return True
        return False

    def turn(self, until: float) -> None:
        """Make batches for a while, and count them.

        Args:
            until: The time at which all is over, in seconds of the monotonic clock.
        """
        at_once = max(self.setting.workers, 1)
        self._tell(signal.SIGCONT)
        try:
            made, spent = 0, _WorkerClocks(0.0, 0.0, 0.0)
            before = self._skip(at_once)
            since = 0
            while time.monotonic() < until or not made:
                if self._next() and not self._is_short:
                    before, since = self._skip(at_once), 0
                    continue
                since += 1
                if since % at_once == 0:  # so many begin together, and are there together
                    now = self._clocks()
                    spent = _WorkerClocks(
                        *(old + end - begin for old, end, begin in zip(spent, now, before, strict=True))
                    )
                    made, before, since = made + at_once, now, 0
                    if spent.wall_s >= BLOCK_S and made >= 2 * at_once:
                        break
        finally:
            self._tell(signal.SIGSTOP)
        self.blocks.append(spent)
        self.made.append(made)

    def _skip(self, count: int) -> _WorkerClocks:
        """Leave the batches that are on the way."""
        for _ in range(0 if self._is_short else count):
            if self._next():
                break
        return self._clocks()

    def _clocks(self) -> _WorkerClocks:
        if self._pids:
            computed, queued = map(sum, zip(*map(_scheduled, self._pids), strict=True))
        else:
            thread = CountedThread(threading.get_ident(), threading.get_native_id())
            computed, queued = time.process_time_ns(), thread.waited_ns() or 0
        return _WorkerClocks(time.monotonic(), computed * 1e-9, queued * 1e-9)

    def begin_again(self) -> None:
        """Begin another pass, with the same workers."""
        self._tell(signal.SIGCONT)
        try:
            began = time.monotonic()
            self._batches = DataLoader.__iter__(self._loader)
            next(self._batches, None)
            self.again_s = time.monotonic() - began
        finally:
            self._tell(signal.SIGSTOP)

    def close(self) -> None:
        """End its workers."""
        self._tell(signal.SIGCONT)
        # now, and not when it is collected: that may be in a worker of the next one, which is told that it has no right
        getattr(self._batches, "_shutdown_workers", bool)()
        self._batches = vars(self._loader)["_iterator"] = None  # what it keeps for another pass

    @property
    def rates(self) -> list[float]:
        """Batches a second of each turn."""
        return [made / block.wall_s for made, block in zip(self.made, self.blocks, strict=True)]

    def told(self, other: _Runner | None) -> TriedLoader:
        """What came of it, beside another one."""
        wall, processor, queued = (sum(each) for each in zip(*self.blocks, strict=True)) if self.blocks else (0, 0, 0)
        return TriedLoader(
            setting=self.setting,
            is_own=self.is_own,
            problem=self.problem,
            batches=sum(self.made),
            seconds=wall,
            processor_s=processor if self._is_counted else None,
            queued_s=queued if self._is_counted else None,
            memory_bytes=self.memory,
            first_s=self.first_s,
            again_s=self.again_s,
            rates=tuple(self.rates),
            verdict=None if other is None else beside(self.rates, other.rates),
        )

    @property
    def _is_counted(self) -> bool:
        return any(block.processor_s for block in self.blocks)


def beside(rates: Sequence[float], others: Sequence[float]) -> Outcome:
    """Whether a loader is faster with one setting than with another, both taken in turns."""
    count = min(len(rates), len(others))
    if count < LEAST_STEPS:
        return "undecided"
    # the last ones were taken side by side, whichever began first
    times = [[1 / rate for rate in each[-count:]] for each in (others, rates)]
    return verdict.in_turn(*times, tolerance=TOLERANCE).outcome


def try_loader(loader: Any, *, seconds: float = SECONDS) -> LoaderTrial:
    """Try a DataLoader with no, one, two, four and more workers, without a training, in turns.

    More are tried as long as twice the workers give a tenth more, and there is memory for them. Then it is tried
    without workers, with more batches made ahead, and into pinned memory where there is a device for it. What its
    workers take from the order of random numbers is given back.

    Args:
        loader: A ``torch.utils.data.DataLoader``; it is not changed.
        seconds: How long it may take, roughly. It ends earlier where everything is decided.

    Returns:
        What was measured; as text, a table and what follows from it.

    Raises:
        OptionError: It is no DataLoader, or there are no seconds.
    """
    if not isinstance(loader, DataLoader):
        raise OptionError(f"loader must be a torch.utils.data.DataLoader, got {type(loader).__name__}")
    if not 0 < seconds < float("inf"):
        raise OptionError(f"seconds must be a number above 0, got {seconds:g}")
    told = Loader(num_workers=loader.num_workers, prefetch_factor=loader.prefetch_factor, pin_memory=loader.pin_memory)
    with torch.random.fork_rng(devices=[]):
        return _Trial(loader, told, seconds).run()


class _Failing(contextlib.AbstractContextManager[None]):
    """Writes down what goes wrong with a setting, whatever a dataset raises: that is what is to be told."""

    def __init__(self, failed: list[TriedLoader], setting: LoaderSetting, *, is_own: bool) -> None:
        self._failed, self._setting, self._is_own = failed, setting, is_own

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        self._failed.append(TriedLoader(setting=self._setting, is_own=self._is_own, problem=_one_line(error)))
        return True


class _Trial:
    """One loader."""

    def __init__(self, loader: Any, told: Loader, seconds: float) -> None:
        self._loader = loader
        workers = told.num_workers or 0
        self._own = LoaderSetting(workers, told.prefetch_factor if workers else None, bool(told.pin_memory))
        self._ahead = told.prefetch_factor or 2
        self._until = time.monotonic() + seconds
        self._runners: dict[LoaderSetting, _Runner] = {}
        self._of: dict[LoaderSetting, LoaderSetting] = {}
        """What each is held against."""
        self._failed: list[TriedLoader] = []
        self._here = Circumstances.current()

    def _setting(self, workers: int, ahead: int | None = None, *, pinned: bool | None = None) -> LoaderSetting:
        is_pinned = self._own.pinned if pinned is None else pinned
        return LoaderSetting(workers, (ahead or self._ahead) if workers else None, is_pinned)

    def run(self) -> LoaderTrial:
        """Try it."""
        is_interrupted = False
        try:
            self._try_workers()
            self._try_others()
        except KeyboardInterrupt:
            is_interrupted = True
        finally:
            for runner in self._runners.values():
                runner.close()
        tried = sorted((*self._told(), *self._failed), key=lambda each: msgspec.structs.astuple(each.setting)[0])
        trial = LoaderTrial(
            name=_named(self._loader),
            tried=tuple(tried),
            cores=self._here.cores,
            ranks=self._here.ranks,
            keeps_workers=bool(self._loader.persistent_workers),
            is_endless=_is_endless(self._loader.dataset),
            is_interrupted=is_interrupted,
            problem="" if any(each.batches for each in tried) else next((each.problem for each in tried), ""),
        )
        return _with_plan(trial)

    def _try_workers(self) -> None:
        before = None
        for workers in sorted({*_FIRST, self._own.workers} - {0}):
            before = self._begin(self._setting(workers), before) or before
        self._take_turns(_FEW)
        while self._runners and not self._is_over:
            most = max(self._runners, key=lambda each: each.workers)
            half = self._of.get(most)
            is_worth = half is None or self._rate(most) >= _GAIN * self._rate(half)
            if not is_worth or 2 * most.workers > _MOST or not self._has_room(2 * most.workers):
                break
            if self._begin(self._setting(2 * most.workers), most) is None:
                break
            self._take_turns(_FEW)

    def _try_others(self) -> None:
        best = self._best
        if best is not None:
            self._begin(self._setting(best.workers, 2 * (best.ahead or self._ahead)), best)
            if torch.cuda.is_available():
                self._begin(self._setting(best.workers, best.ahead, pinned=not best.pinned), best)
        # last, as a file that it opens in this process would be shared by all workers that are forked after that
        alone = self._begin(self._setting(0), None)
        one = self._setting(1)
        if alone is not None and one in self._runners:
            self._of[one] = alone
        self._take_turns(_FEW)
        while not self._is_over and not self._is_decided:
            self._take_turns(_FEW)
        if best in self._runners:
            self._runners[best].begin_again()

    @property
    def _is_over(self) -> bool:
        return time.monotonic() >= self._until

    def _rate(self, setting: LoaderSetting) -> float:
        rates = self._runners[setting].rates if setting in self._runners else ()
        return medians.median(rates) if rates else 0.0

    @property
    def _best(self) -> LoaderSetting | None:
        """That of the fewest workers that are as good as any, as far as can be seen."""
        most = max(map(self._rate, self._runners), default=0.0)
        good = (each for each in self._runners if self._rate(each) * _GAIN >= most)
        return min(good, key=lambda each: each.workers, default=None)

    @property
    def _is_decided(self) -> bool:
        return all(
            beside(runner.rates, self._runners[self._of[setting]].rates) != "undecided"
            for setting, runner in self._runners.items()
            if setting in self._of and self._of[setting] in self._runners
        )

    def _has_room(self, workers: int) -> bool:
        memory = max((runner.memory or 0 for runner in self._runners.values()), default=0)
        return workers * memory <= _FREE * (Circumstances.current().memory_bytes or float("inf"))

    def _begin(self, setting: LoaderSetting, beside_it: LoaderSetting | None) -> LoaderSetting | None:
        """Have it run with a setting; None where it cannot, which is written down."""
        if setting in self._runners:
            return setting
        with self._failing(setting):
            self._runners[setting] = _Runner(self._loader, setting, self._own)
        if setting not in self._runners:
            return None
        if beside_it is not None:
            self._of[setting] = beside_it
        return setting

    def _failing(self, setting: LoaderSetting) -> _Failing:
        return _Failing(self._failed, setting, is_own=setting == self._own)

    def _take_turns(self, rounds: int) -> None:
        """Have each of them take turns, there and back, until the time is over; once whatever time it is."""
        for number in range(rounds):
            for setting in [*self._runners][:: -1 if number % 2 else 1]:
                before = len(self._failed)
                with self._failing(setting):
                    self._runners[setting].turn(self._until)
                if len(self._failed) > before:
                    self._runners.pop(setting).close()
            if self._is_over:
                break

    def _told(self) -> Iterator[TriedLoader]:
        for setting, runner in self._runners.items():
            if runner.made:
                other = self._of.get(setting)
                yield runner.told(None if other is None else self._runners.get(other))


def _with_plan(trial: LoaderTrial) -> LoaderTrial:
    """The same with what the plan says beside what was measured."""
    cost, cores = trial.cost(), float(trial.cores or 1)
    if cost is None:
        return trial

    def planned(each: TriedLoader) -> TriedLoader:
        if not each.setting.workers or each.problem:
            return each
        return msgspec.structs.replace(each, planned=cost.rate(each.setting.workers, cores))

    return msgspec.structs.replace(trial, tried=tuple(map(planned, trial.tried)))


def _is_endless(data: Any) -> bool:
    """Whether nobody knows where it ends."""
    return isinstance(data, IterableDataset) and not hasattr(data, "__len__")


def _named(loader: Any) -> str:
    """A loader for people: ``DataLoader of 50,000 ImageFolder, batch_size=64``."""
    with contextlib.suppress(Exception):
        data = type(loader.dataset).__name__
        return f"{type(loader).__name__} of {len(loader.dataset):,} {data}, batch_size={loader.batch_size}"
    return f"{type(loader).__name__} of {type(loader.dataset).__name__}, batch_size={loader.batch_size}"


def _one_line(error: BaseException) -> str:
    """What went wrong; of what a worker raised, the last line of its traceback."""
    lines = [line for line in str(error).splitlines() if line.strip()]
    is_of_worker = "Original Traceback" in str(error)
    return lines[-1].strip() if is_of_worker else cause_of(error)


def _own_memory(pid: int) -> int:
    """What a process has for itself, in bytes; 0 where the system does not tell."""
    with contextlib.suppress(psutil.Error, AttributeError):
        return int(psutil.Process(pid).memory_full_info().uss)
    return 0


def _scheduled(pid: int) -> tuple[int, int]:
    """What all threads of a process computed, and waited for a processor, in nanoseconds; 0 where nobody tells.

    Source: ``schedstat``, see https://docs.kernel.org/scheduler/sched-stats.html.
    """
    computed = queued = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            numbers = (thread / "schedstat").read_text(encoding="ascii").split()
            computed, queued = computed + int(numbers[0]), queued + int(numbers[1])
    return computed, queued
