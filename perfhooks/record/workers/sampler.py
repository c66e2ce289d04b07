"""The process that samples the loader workers of a training from outside.

The training passes the open memory of each worker (``/proc/PID/mem``), which Linux allows to an ancestor::

    training ── socket: a worker to sample, and its memory ─────────► this process ── reads ──► worker 0
             ── socket: the window ends ────────────────────────────►                 ── reads ──► worker 1
             ◄─ pipe: a line of JSON ────────────────────────────────

The frames of a worker contain the function and the index of the batch. The time between two samples is attributed to
the second sample. The interval is random, because a fixed interval would miss parts of periodic work.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypedDict

from perfhooks.core.clocks import time
from perfhooks.core.frames import COLLATES, FETCHES_BATCH, HANDS_OVER, WORKER_LOOP
from perfhooks.record.workers.interpreter import MAX_FRAMES, Interpreter, ProcessMemory, measured_layout

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perfhooks.record.workers.interpreter import WorkerFrame
    from perfhooks.record.workers.layout import Layout

OTHER: Final = "(other)"
_LOOP: Final = "_worker_loop"
_FEED: Final = "_feed"
"""Name of the function in ``multiprocessing/queues.py`` that sends batches to the training."""
_MEMORY_AT: Final = 16
"""Index of the only sample with a memory measurement, which takes a millisecond."""


class Order(TypedDict):
    pid: int
    iterator: int
    worker: int
    workers: int
    """Number of workers, which process the batches in rotation."""
    batch: int
    """Index of the batch number among the variables of the worker's loop; -1 if there is none."""


class _Counters:
    def __init__(self, pid: int, thread: int) -> None:
        folder = Path(f"/proc/{pid}/task/{thread}")
        self._state = (folder / "stat").open("rb", buffering=0)
        self._times = None
        with contextlib.suppress(OSError):
            self._times = (folder / "schedstat").open("rb", buffering=0)

    def close(self) -> None:
        for file in filter(None, (self._state, self._times)):
            file.close()

    def state(self) -> str:
        """Return the state of the thread: R runs or waits for a CPU, S sleeps, D waits for a disk."""
        return os.pread(self._state.fileno(), 512, 0).rpartition(b")")[2].split()[0].decode()

    def times(self) -> tuple[int, int] | None:
        if self._times is None:
            return None
        computed, queued, _ = os.pread(self._times.fileno(), 64, 0).split()
        return int(computed), int(queued)

    def computed(self) -> int:
        return (self.times() or (0, 0))[0]


class SampledWorker:
    def __init__(self, layout: Layout, order: Order, memory: int) -> None:
        self._order, self._pid, self._file = order, order["pid"], memory
        self._counters = _Counters(self._pid, self._pid)
        self._interpreter = Interpreter(layout, self._pid, ProcessMemory(memory))
        self._clock = (~self._pid << 3) | 2  # the CPU clock of another process, as in clock_getcpuclockid(3)
        self._thread = 0
        self._feeder: _Counters | None = None
        self._texts: dict[tuple[Any, ...], tuple[str, str]] = {}
        self._stacks: dict[str, dict[str, int]] = {}
        self._batch: int | None = None
        self._is_lower = False
        self._batch_ns = 0
        self._transfer = self._transfer_before = self._cpu_began = self._cpu = 0
        self.samples = self._batches = self._busy = self._longest = self._idle = self._queued = 0
        self._squares = 0.0
        self._memory: int | None = None
        self._began = self._last = time.monotonic_ns()
        self._times = self._counters.times()
        self._begin()

    def _begin(self) -> None:
        self._cpu_began = self._cpu = time.clock_gettime_ns(self._clock)
        self._find_feeder(is_first=True)

    def close(self) -> None:
        os.close(self._file)
        self._counters.close()
        if self._feeder is not None:
            self._feeder.close()

    def sample(self) -> None:
        now, state, times = time.monotonic_ns(), self._counters.state(), self._counters.times()
        if not self._thread and not self._find_loop():
            self._last, self._times = now, times
            return
        elapsed = now - self._last
        computed = queued = 0
        if times is not None and self._times is not None:
            computed, queued = (max(new - old, 0) for new, old in zip(times, self._times, strict=True))
        self._last, self._times = now, times
        try:
            stack = self._interpreter.stack(self._thread, _LOOP)
        except OSError:
            stack = []
        text, part = self._text(stack)
        parts = self._stacks.setdefault(text, {})
        if part:
            parts[part] = parts.get(part, 0) + elapsed
        else:
            for name, value in _parts(state, elapsed, computed, queued):
                parts[name] = parts.get(name, 0) + value
        self._count(part, elapsed, queued, stack)
        self.samples += 1
        if self.samples == _MEMORY_AT:
            self._memory = _own_memory(self._pid)
        if self._feeder is not None:
            self._transfer = self._feeder.computed()
        elif self.samples & (self.samples - 1) == 0:
            self._find_feeder()
        self._cpu = time.clock_gettime_ns(self._clock)

    def _count(self, part: str, elapsed: int, queued: int, stack: Sequence[WorkerFrame]) -> None:
        if part == "idle":
            self._idle += elapsed
        elif part != "transfer":
            self._busy += elapsed
            self._batch_ns += elapsed
            self._queued += queued
        index = self._order["batch"]
        number = self._interpreter.integer(stack[-1], index) if stack and index >= 0 else None
        if number is None:
            return
        was_lower, self._is_lower = self._is_lower, self._batch is not None and number < self._batch
        # the worker changes its memory meanwhile: only two lower numbers in succession are a new pass
        if number == self._batch or (self._is_lower and not was_lower):
            return
        if self._batch is not None:
            ahead = number - self._batch if number > self._batch else number + 1
            ended = max(round(ahead / self._order["workers"]), 1)
            batch_ns = self._batch_ns // ended
            self._batches += ended
            self._squares += ended * (batch_ns * 1e-9) ** 2
            self._longest = max(self._longest, batch_ns)
        self._batch, self._batch_ns = number, 0

    def _find_loop(self) -> bool:
        for thread in self._interpreter.threads():
            with contextlib.suppress(OSError):
                stack = self._interpreter.stack(thread, _LOOP, 100_000)
                if stack and WORKER_LOOP.search(str(stack[-1])):
                    self._thread = thread
                    return True
        return False

    def _find_feeder(self, *, is_first: bool = False) -> None:
        with contextlib.suppress(OSError):
            for thread in self._interpreter.threads():
                stack = self._interpreter.stack(thread, _FEED)
                native = self._interpreter.native_id(thread)
                if native and stack and stack[-1].code.function == _FEED:
                    self._feeder = _Counters(self._pid, native)
                    self._transfer = self._feeder.computed()
                    self._transfer_before = self._transfer if is_first else 0
                    return

    def _text(self, stack: Sequence[WorkerFrame]) -> tuple[str, str]:
        if not stack or (stack[-1].code.function != _LOOP and len(stack) < MAX_FRAMES):
            return OTHER, ""
        key = tuple((frame.code.number, frame.line) for frame in stack)
        entry = self._texts.get(key)
        if entry is None:
            frames = [" ".join(str(frame).replace(";", ":").split()) for frame in reversed(stack)]
            entry = self._texts[key] = ";".join(frames), _part_of(frames)
        return entry

    def answer(self) -> tuple[int, dict[str, Any]]:
        """Return the ``id()`` of the iterator in the training, and the fields of a `LoaderWorker`."""
        transfer_ns = max(self._transfer - self._transfer_before, 0)
        stacks = sorted(self._stacks, key=lambda text: -sum(self._stacks[text].values()))
        for small in stacks[300:]:
            other = self._stacks.setdefault(OTHER, {})
            for part, value in self._stacks.pop(small).items():
                other[part] = other.get(part, 0) + value
        return self._order["iterator"], {
            "worker": self._order["worker"],
            "pid": self._pid,
            "batches": self._batches,
            "wall_s": (self._last - self._began) * 1e-9,
            "busy_s": self._busy * 1e-9,
            "cpu_s": max(self._cpu - self._cpu_began - transfer_ns, 0) * 1e-9,
            "squares": self._squares,
            "longest_s": self._longest * 1e-9,
            "idle_s": self._idle * 1e-9,
            "transfer_s": transfer_ns * 1e-9,
            "memory_bytes": self._memory,
            "queued_s": None if self._times is None else self._queued * 1e-9,
            "samples": self.samples,
            "stacks": self._stacks,
        }


def _part_of(frames: Sequence[str]) -> str:
    fetch_index = next((index for index, frame in enumerate(frames) if FETCHES_BATCH.search(frame)), None)
    if fetch_index is None:
        if not WORKER_LOOP.search(frames[0]):
            return ""
        return "transfer" if any(HANDS_OVER.search(frame) for frame in frames) else "idle"
    return "collate" if any(COLLATES.search(frame) for frame in frames[fetch_index + 1 : fetch_index + 2]) else ""


def _parts(state: str, elapsed: int, computed: int, queued: int) -> list[tuple[str, int]]:
    if state == "D":
        return [("disk", elapsed)]
    if state != "R":
        return [("waits", elapsed)]
    waited = elapsed * queued // (computed + queued) if computed + queued else 0
    return [("computes", elapsed - waited), ("queued", waited)]


def _own_memory(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError, IndexError), Path(f"/proc/{pid}/smaps_rollup").open("rb") as file:
        return sum(1024 * int(line.split()[1]) for line in file if line.startswith(b"Private_"))
    return None


class WorkerSampler:
    def __init__(self) -> None:
        self._layout: Layout | None = None
        with contextlib.suppress(LookupError):
            self._layout = measured_layout()
        self._workers: list[SampledWorker] = []
        self._ended: list[tuple[int, dict[str, Any]]] = []
        self._cost = 0.0
        self._due = 0

    def add(self, order: Order, memory: int) -> None:
        worker = None
        if self._layout is not None:
            with contextlib.suppress(OSError, LookupError, ValueError):
                worker = SampledWorker(self._layout, order, memory)
        if worker is None:
            os.close(memory)
        else:
            self._workers.append(worker)
        self._due = time.monotonic_ns()

    def wait_s(self) -> float | None:
        """Return the time until the next sample in s; None without workers."""
        return max(self._due - time.monotonic_ns(), 0) * 1e-9 if self._workers else None

    def sample(self) -> None:
        if not self._workers or time.monotonic_ns() < self._due:
            return
        began = time.thread_time_ns()
        for worker in list(self._workers):
            try:
                worker.sample()
            except (OSError, ValueError, IndexError):
                self._workers.remove(worker)
                self._end(worker)
        count = len(self._workers) or 1
        self._cost += ((time.thread_time_ns() - began) / count - self._cost) / 8
        # sampling may take 1% of the time of a worker
        period = max(10e6, self._cost / 0.01)
        self._due = time.monotonic_ns() + int(period * random.uniform(0.5, 1.5))  # noqa: S311 -- no secret

    def _end(self, worker: SampledWorker) -> None:
        if worker.samples:
            self._ended.append(worker.answer())
        worker.close()

    def end(self) -> list[tuple[int, dict[str, Any]]]:
        while self._workers:
            self._end(self._workers.pop())
        ended, self._ended = self._ended, []
        return ended


def serve(channel: int, answers: int) -> None:
    """Run orders from standard input. A message with a file is an `Order`; a message without a file ends the window."""
    sampler = WorkerSampler()
    with socket.socket(fileno=channel) as orders:
        while True:
            if select.select([orders], [], [], sampler.wait_s())[0]:
                message, files, _, _ = socket.recv_fds(orders, 1 << 12, 1)
                if not message:
                    return
                order = json.loads(message)
                if files:
                    sampler.add(order, files[0])
                else:
                    line = json.dumps(sampler.end()).encode() + b"\n"
                    while line:
                        line = line[os.write(answers, line) :]
            sampler.sample()
