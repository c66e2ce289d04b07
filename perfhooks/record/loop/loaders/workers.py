"""The training's side of sampling loader workers: it orders samples from a process of ours, and reads the sums.

A worker and its loader stay as they are. The training opens the memory of a worker for reading and passes the open file
on, because Linux may allow that to an ancestor only. See `perfhooks.record.workers.sampler`.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import msgspec

from perfhooks.core.guard import guard, logger
from perfhooks.record.loop import worker
from perfhooks.run.circumstances import Loader
from perfhooks.run.loader.looks import WorkerSamples
from perfhooks.run.loader.making import WorkerCounts

if TYPE_CHECKING:
    from collections.abc import Collection

Counted: TypeAlias = "tuple[tuple[WorkerCounts, ...], tuple[WorkerSamples, ...]]"
"""What workers did, and where they were."""

_BOOTSTRAP: Final = """\
import sys
sys.path.append(sys.argv[1])
from perfhooks.record.workers.sampler import serve
serve(int(sys.argv[2]), 1)
"""
_WAIT_S: Final = 0.25
"""Maximum wait for the sums of a window. They take a millisecond; saving the trace, which comes first, takes longer."""


class _Sums(msgspec.Struct):
    """Of one worker."""

    iterator: int
    making: WorkerCounts
    looked: WorkerSamples


class LoadersRead:
    """The loaders that were read in the steps of a window, with the number of steps in which each was.

    A validation is in few steps, however many batches it reads; so what is in most of them feeds the training.
    """

    def __init__(self) -> None:
        self.of_step: set[int] = set()
        """The iterators that were read in the step that goes on."""
        self._steps: dict[Loader, int] = {}
        self._iterators: dict[Loader, set[int]] = {}

    def begin_step(self) -> None:
        """Another step begins."""
        self.of_step.clear()

    def add(self, iterator: Any) -> None:
        """One is read, for the first time in this step."""
        self.of_step.add(id(iterator))
        loader = Loader.of(iterator)
        self._steps[loader] = self._steps.get(loader, 0) + 1
        self._iterators.setdefault(loader, set()).add(id(iterator))

    @property
    def most(self) -> Loader | None:
        """The settings of that which was read in most steps, of several the first one; None where none was read."""
        return max(self._steps, key=self._steps.__getitem__, default=None)

    @property
    def iterators(self) -> set[int]:
        """The numbers of the iterators that had them."""
        most = self.most
        return set() if most is None else self._iterators[most]


class LoaderWorkers:
    """The workers of this process's loaders, as one profiler samples them."""

    def __init__(self) -> None:
        self.is_wanted = False
        """Whether workers are sampled in the windows to come."""
        self._sampler: subprocess.Popen[bytes] | None = None
        self._orders: socket.socket | None = None
        self._seen: set[int] = set()
        """Iterators whose workers are sampled in the open window."""
        self._is_asked = False
        self._of: Collection[int] = ()

    def prepare(self) -> None:
        """A window begins: start the sampler if there are worker processes."""
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
        """Sample the workers of an iterator until the window ends.

        Args:
            iterator: One of torch's, or one that keeps its processes as torch does.
        """
        processes = getattr(iterator, "_workers", None)
        if not self.is_wanted or not processes or id(iterator) in self._seen:
            return
        self._seen.add(id(iterator))
        with guard("sampling loader workers"):
            self._start()
            if self._orders is not None:
                for number, process in enumerate(processes):
                    _order(self._orders, process.pid, iterator=id(iterator), worker=number, workers=len(processes))

    def end(self, iterators: Collection[int]) -> None:
        """The window ends: ask for the sums.

        Args:
            iterators: Numbers of the iterators that feed the steps.
        """
        self._of, self._is_asked = iterators, False
        if self._seen and self._orders is not None:
            with contextlib.suppress(OSError):
                self._orders.send(b"{}", worker.NO_SIGNAL)
                self._is_asked = True
        self._seen.clear()

    def sums(self) -> Counted:
        """Return what the workers of those iterators did in the window that ended last."""
        if not self._is_asked:
            return (), ()
        self._is_asked = False
        found: list[_Sums] = []
        with guard("reading the sums of loader workers"):
            found = msgspec.json.decode(self._answer(), type=list[_Sums])
        found = sorted((each for each in found if each.iterator in self._of), key=lambda each: each.making.worker)
        return tuple(each.making for each in found), tuple(each.looked for each in found)

    def _answer(self) -> bytes:
        """Return the sampler's answer. One that comes too late is no answer: another sampler is started next time."""
        answers = None if self._sampler is None else self._sampler.stdout
        if answers is None:
            return b"[]"
        text, end = bytearray(), time.monotonic() + _WAIT_S
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
        """Let the sampler end."""
        self._seen.clear()
        self._is_asked = False
        sampler, self._sampler = self._sampler, None
        orders, self._orders = self._orders, None
        if orders is not None:
            orders.close()
        if sampler is not None and sampler.stdout is not None:
            sampler.stdout.close()
        worker.reap()

    def abandon(self) -> None:
        """This process is a forked child: the sampler is its parent's."""
        self.is_wanted = False
        self.close()


def _place_of_batch() -> int:
    """Return the place of the batch's number among the variables of torch's loop; -1 if there is none of its name."""
    loop = getattr(sys.modules.get("torch.utils.data._utils.worker"), "_worker_loop", None)
    names = getattr(getattr(loop, "__code__", None), "co_varnames", ())
    return names.index("idx") if "idx" in names else -1


def _order(orders: socket.socket, pid: int, **order: int) -> None:
    try:
        memory = Path(f"/proc/{pid}/mem").open("rb", buffering=0)  # noqa: SIM115 -- closed below
    except OSError as error:  # it has ended, or the system allows nobody to read it
        logger.debug("the loader worker %d cannot be sampled (%s)", pid, error)
        return
    try:
        message = json.dumps({"pid": pid, "batch": _place_of_batch(), **order}).encode()
        socket.send_fds(orders, [message], [memory.fileno()], worker.NO_SIGNAL)
    except OSError as error:  # the sampler has ended, or has too much to read
        logger.debug("the loader worker %d is not sampled (%s)", pid, error)
    finally:
        memory.close()
