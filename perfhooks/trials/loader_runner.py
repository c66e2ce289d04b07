"""Measure a loader with one `LoaderSetting`, in blocks.

SIGSTOP pauses the workers of all settings except the measured one::

    1 worker    ─►▐██████▌                  ▐██████▌                    ▌ paused by SIGSTOP
    2 workers             ─►▐██████▌ ▐██████▌                           ─► prefetched batches, not counted: a worker
    4 workers                       ▐         ...                          that slept made progress meanwhile
"""

from __future__ import annotations

import contextlib
import copy
import os
import signal
import threading
import time
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import psutil
from torch.utils.data import DataLoader
from torch.utils.data._utils import MP_STATUS_CHECK_INTERVAL

from perfhooks.analysis.comparison.difference import compare_paired
from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import LEAST_STEPS
from perfhooks.core.thread_time import CountedThread
from perfhooks.trials.loader_results import TOLERANCE, LoaderResult, LoaderSetting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    from perfhooks.analysis.comparison.difference import Outcome

BLOCK_S: Final = 0.25
"""Minimum length of a block in s. A usual batch takes a tenth of this time."""
_REPEAT_S: Final = 0.05
"""Time in s until a check is repeated. Finalizers take less."""


class _WorkerClocks(NamedTuple):
    wall_s: float
    processor_s: float
    queued_s: float


class _WorkerEnded(BaseException):
    """A loader worker has ended. Torch would catch an Exception and then wait for a lock of the worker."""


class LoaderRunner:
    """Iterates endlessly over a loader with one `LoaderSetting`, and pauses the loader's workers between blocks."""

    _awaited: ClassVar[LoaderRunner | None] = None

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
        self.workers: Sequence[Any] = ()
        self._batches: Any = None
        began = time.monotonic()
        try:
            with warnings.catch_warnings():  # torch warns about more workers than CPUs
                warnings.simplefilter("ignore")
                self._batches = DataLoader.__iter__(self._loader)
            self.workers = getattr(self._batches, "_workers", ())
            self._consume()
            self.first_s = time.monotonic() - began
            self.memory = max(map(_unique_memory, self._pids()), default=None)
        except BaseException:
            self.close()
            raise
        self._signal(signal.SIGSTOP)

    def _with_setting(self, loader: Any) -> Any:
        changed = copy.copy(loader)
        workers = self.setting.workers
        # DataLoader.__setattr__ raises an error for these attributes after construction
        vars(changed).update(
            num_workers=workers,
            prefetch_factor=self.setting.ahead,
            pin_memory=self.setting.pinned,
            persistent_workers=workers > 0,
            timeout=changed.timeout if workers else 0,
            _iterator=None,
        )
        return changed

    def _pids(self) -> list[int]:
        """Return the ids of running workers. The id of a reaped worker may belong to another process."""
        return [worker.pid for worker in self.workers if worker.exitcode is None]

    def _signal(self, number: int) -> None:
        for pid in self._pids():
            with contextlib.suppress(OSError):
                os.kill(pid, number)

    @classmethod
    def check_awaited(cls, _: int = 0, frame: FrameType | None = None) -> None:
        """Raise an error if a worker of the awaited batch has ended: torch could wait forever for its locks.

        Python drops an error in a finalizer. In such a ``frame``, the check is repeated later.
        """
        awaited, cls._awaited = cls._awaited, None
        has_ended = awaited is not None and any(worker.exitcode is not None for worker in awaited.workers)
        is_in_finalizer = has_ended and any(each.f_code.co_name == "__del__" for each, _ in traceback.walk_stack(frame))
        if is_in_finalizer:
            threading.Timer(_REPEAT_S, os.kill, (os.getpid(), signal.SIGCHLD)).start()
        elif has_ended:
            raise _WorkerEnded
        cls._awaited = awaited

    @contextlib.contextmanager
    def _awaiting(self) -> Iterator[None]:
        LoaderRunner._awaited = self
        try:
            LoaderRunner.check_awaited()
            yield
        except _WorkerEnded:
            ended = ", ".join(str(worker.pid) for worker in self.workers if worker.exitcode is not None)
            raise RuntimeError(f"DataLoader worker (pid(s) {ended}) exited unexpectedly") from None
        finally:
            LoaderRunner._awaited = None

    def _consume(self) -> bool:
        with self._awaiting():
            return self._consume_batch()

    def _consume_batch(self) -> bool:
        self._in_pass += 1
        try:
            next(self._batches)
        except StopIteration:
            self._is_short = self._in_pass <= 4 * max(self.setting.workers, 1)
            self._batches, self._in_pass = DataLoader.__iter__(self._loader), 1
            try:
                next(self._batches)
            except StopIteration:
                raise OptionError("the loader is empty: it returns no batch") from None
            return True
        return False

    def turn(self, is_over: Callable[[], bool]) -> None:
        """Measure one block of at least one batch. The block ends early if ``is_over()``."""
        parallel = max(self.setting.workers, 1)
        self._signal(signal.SIGCONT)
        try:
            batches, clocks = 0, _WorkerClocks(0.0, 0.0, 0.0)
            begin = self._skip(parallel)
            since_begin = 0
            while not batches or not is_over():
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
        if self.workers:
            computed, queued = map(sum, zip((0, 0), *map(_scheduler_times, self._pids()), strict=True))
        else:
            thread = CountedThread(threading.get_native_id())
            computed, queued = time.process_time_ns(), thread.waited_ns() or 0
        return _WorkerClocks(time.monotonic(), computed * 1e-9, queued * 1e-9)

    def begin_again(self) -> None:
        self._signal(signal.SIGCONT)
        try:
            start_s = time.monotonic()
            with self._awaiting():
                self._batches, self._in_pass = DataLoader.__iter__(self._loader), 1
                next(self._batches, None)
            self.again_s = time.monotonic() - start_s
        finally:
            self._signal(signal.SIGSTOP)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        # in a worker that is forked later, the garbage collector would call this method, which raises an error
        shutdown = threading.Thread(target=getattr(self._batches, "_shutdown_workers", bool), daemon=True)
        shutdown.start()
        shutdown.join(MP_STATUS_CHECK_INTERVAL * max(len(self.workers), 1))  # torch waits as long for its workers
        if shutdown.is_alive():  # a worker hangs, or has died while it held a lock of torch
            self._signal(signal.SIGKILL)
            for worker in self.workers:
                worker.join(MP_STATUS_CHECK_INTERVAL)
        self._batches = vars(self._loader)["_iterator"] = None

    @property
    def rates(self) -> list[float]:
        return [batches / block.wall_s for batches, block in zip(self.made, self.blocks, strict=True)]

    def result(self, other: LoaderRunner | None) -> LoaderResult:
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
    times = [[1 / rate for rate in series[-count:]] for series in (others, rates)]
    return compare_paired(*times, tolerance=TOLERANCE).outcome


def _unique_memory(pid: int) -> int:
    with contextlib.suppress(psutil.Error, AttributeError):
        return int(psutil.Process(pid).memory_full_info().uss)
    return 0


def _scheduler_times(pid: int) -> tuple[int, int]:
    cpu_ns = queued_ns = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            numbers = (thread / "schedstat").read_text(encoding="ascii").split()
            cpu_ns, queued_ns = cpu_ns + int(numbers[0]), queued_ns + int(numbers[1])
    return cpu_ns, queued_ns
