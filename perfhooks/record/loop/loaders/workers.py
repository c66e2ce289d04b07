"""Sampling of loader workers: messages to a sampler process, and results of that process.

The training passes the open memory of each worker to the sampler, see `perfhooks.record.workers.sampler`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.clocks import time
from perfhooks.core.guard import guard, logger
from perfhooks.record.loop import worker
from perfhooks.run.circumstances import Loader
from perfhooks.run.loader.workers import LoaderWorker

if TYPE_CHECKING:
    from collections.abc import Collection

_ANSWER_TIMEOUT_S: Final = 0.25
"""Maximum wait of the training for the samples of the loader's workers."""
_BOOTSTRAP: Final = """\
import sys
sys.path.append(sys.argv[1])
from perfhooks.record.workers.sampler import serve
serve(int(sys.argv[2]), 1)
"""


class LoadersRead:
    """Counts the steps in which each loader is read.

    The loader with most steps feeds the training; other loaders feed validations.
    """

    def __init__(self) -> None:
        self.of_step: set[int] = set()
        self._steps: dict[Loader, int] = {}
        self._iterators: dict[Loader, set[int]] = {}

    def begin_step(self) -> None:
        self.of_step.clear()

    def add(self, iterator: Any) -> None:
        self.of_step.add(id(iterator))
        loader = Loader.of(iterator)
        self._steps[loader] = self._steps.get(loader, 0) + 1
        self._iterators.setdefault(loader, set()).add(id(iterator))

    @property
    def most(self) -> Loader | None:
        return max(self._steps, key=self._steps.__getitem__, default=None)

    @property
    def iterators(self) -> set[int]:
        most = self.most
        return set() if most is None else self._iterators[most]


class LoaderWorkers:
    def __init__(self) -> None:
        self.is_wanted = False
        self._sampler: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._sampled: set[int] = set()
        self._is_pending = False
        self._fed_by: Collection[int] = ()

    def prepare(self) -> None:
        processes = sys.modules.get("multiprocessing.process")
        if self.is_wanted and getattr(processes, "_children", None):
            with guard("starting the sampler of loader workers"):
                self._start()

    def _start(self) -> None:
        if self._orders is not None or sys.platform != "linux" or not worker.can_start():
            return
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            arguments = ["-I", "-S", "-c", _BOOTSTRAP, worker.HERE, str(theirs.fileno())]
            self._sampler = worker.spawn(arguments, theirs, out=subprocess.PIPE, error=subprocess.DEVNULL)
        ours.setblocking(False)
        self._orders = ours

    def watch(self, iterator: Any) -> None:
        """Sample the workers of an iterator with the attribute ``_workers``, also of another library than torch."""
        processes = getattr(iterator, "_workers", None)
        if not self.is_wanted or not processes or id(iterator) in self._sampled:
            return
        self._sampled.add(id(iterator))
        with guard("sampling loader workers"):
            self._start()
            if self._orders is not None:
                for number, process in enumerate(processes):
                    _order(self._orders, process.pid, iterator=id(iterator), worker=number, workers=len(processes))

    def end(self, iterators: Collection[int]) -> None:
        self._fed_by, self._is_pending = iterators, False
        if self._sampled and self._orders is not None:
            with contextlib.suppress(OSError):
                self._orders.send(b"{}", worker.NO_SIGNAL)
                self._is_pending = True
        self._sampled.clear()

    def results(self) -> tuple[LoaderWorker, ...]:
        """Return the counts and samples of the workers that fed the training; empty without workers."""
        if not self._is_pending:
            return ()
        self._is_pending = False
        results: list[tuple[int, LoaderWorker]] = []
        with guard("reading the samples of loader workers"):
            results = msgspec.json.decode(self._answer(), type=list[tuple[int, LoaderWorker]])
        of_training = (worker for iterator, worker in results if iterator in self._fed_by)
        return tuple(sorted(of_training, key=lambda worker: worker.worker))

    def _answer(self) -> bytes:
        """After a timeout the answer is empty, and the next window starts a sampler."""
        answers = None if self._sampler is None else self._sampler.stdout
        if answers is None:
            return b"[]"
        text, end = bytearray(), time.monotonic() + _ANSWER_TIMEOUT_S
        while not text.endswith(b"\n"):
            chunk = b""
            if select.select([answers], [], [], max(end - time.monotonic(), 0.0))[0]:
                chunk = os.read(answers.fileno(), 1 << 20)
            if not chunk:
                self.close()
                return b"[]"
            text += chunk
        return bytes(text)

    def close(self) -> None:
        self._sampled.clear()
        self._is_pending = False
        sampler, self._sampler = self._sampler, None
        orders, self._orders = self._orders, None
        if orders is not None:
            orders.close()
        if sampler is not None and sampler.stdout is not None:
            sampler.stdout.close()
        worker.reap()

    def abandon(self) -> None:
        self.is_wanted = False
        self.close()


def _index_of_batch() -> int:
    loop = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_loop", None)
    names = getattr(getattr(loop, "__code__", None), "co_varnames", ())
    return names.index("idx") if "idx" in names else -1


def _order(orders: socket.socket, pid: int, **order: int) -> None:
    try:
        memory = Path(f"/proc/{pid}/mem").open("rb", buffering=0)  # noqa: SIM115 -- closed below
    except OSError as error:
        logger.debug("the loader worker %d cannot be sampled (%s)", pid, error)
        return
    try:
        message = json.dumps({"pid": pid, "batch": _index_of_batch(), **order}).encode()
        socket.send_fds(orders, [message], [memory.fileno()], worker.NO_SIGNAL)
    except OSError as error:
        logger.debug("the loader worker %d is not sampled (%s)", pid, error)
    finally:
        memory.close()
