"""Who sees the workers of this process's loaders: torch's iterators are lent to profilers.

While they are, an iterator gives its workers `Begin` in the place of ``worker_init_fn``. torch has no public way for
that: a loader's own ``worker_init_fn`` may be given later, and loaders are made where nobody knows of us.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import time
import weakref
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from perfhooks.guard import guard, logger
from perfhooks.loading.begin import Begin
from perfhooks.loading.looks import Looked
from perfhooks.loading.making import Making
from perfhooks.loading.slots import Counts, Slots

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

Counted: TypeAlias = "tuple[tuple[Making, ...], tuple[Looked, ...]]"
"""What workers made, and where they were."""

_windows: Final = itertools.count(1)


class _Lent(NamedTuple):
    """An iterator whose workers are seen."""

    iterator: weakref.ref[Any]
    slots: Slots


_seen: Final[dict[int, _Lent]] = {}
_borrowers: Final[weakref.WeakSet[LoaderWorkers]] = weakref.WeakSet()
_placed: Final[list[Callable[..., Any]]] = []
"""What torch's iterators were begun by before, and our stand-in; empty while nothing is lent."""


class LoaderWorkers:
    """The workers of this process's loaders, as one profiler sees them."""

    def __init__(self) -> None:
        self.window = 0
        """The number of the one that is open; 0 while there is none in which workers look."""
        self._told: dict[tuple[int, int], tuple[int, Counts]] = {}
        """What workers had counted when it was told last, by iterator's number and worker, and when that was."""
        self._ended: list[tuple[int, Counted]] | None = None
        """Iterators that ended in the open window, and what their workers did; None while there is no window."""
        self.has_missed = False
        """Whether nobody saw the workers of the iterators that were asked for last."""

    def borrow(self) -> None:
        """See those that begin from here on; they exist on Linux alone."""
        if hasattr(os, "memfd_create"):
            _borrowers.add(self)
            weakref.finalize(self, _give_back).atexit = False
            _lend()

    def give_back(self) -> None:
        """See no more of them."""
        _borrowers.discard(self)
        _give_back()

    def open(self, *, looks: bool) -> None:
        """A window begins; with looks, workers look at their stacks from now on."""
        if self not in _borrowers:
            return
        self._ended = []
        if not looks:
            return
        self.window = next(_windows)
        for each in list(_seen.values()):
            each.slots.window = self.window
            iterator = each.iterator()
            for number, process in enumerate(getattr(iterator, "_workers", ())):
                counts = each.slots.counts(number)
                with contextlib.suppress(Exception):  # one that has ended meanwhile
                    if counts.signal and counts.pid == process.pid and process.is_alive():
                        os.kill(counts.pid, counts.signal)

    def close(self, iterators: Collection[int]) -> Counted:
        """A window ends: what the workers of some iterators did since it was told last, and where they were in it.

        Args:
            iterators: By their numbers in Python; of others nothing is told.
        """
        ended, self._ended = self._ended or [], None
        found = [counted for name, counted in ended if name in iterators]
        for name, each in list(_seen.items()):
            each.slots.window = 0
            if name in iterators:
                found.append(self._counted(name, each.slots))
        self.window = 0
        self.has_missed = self in _borrowers and not found
        makings, looks = zip(*found, strict=True) if found else ((), ())
        return tuple(itertools.chain(*makings)), tuple(itertools.chain(*looks))

    def keep(self, name: int, slots: Slots) -> None:
        """An iterator ends, and its workers have: keep what they did in a window that is open."""
        if self._ended is not None:
            self._ended.append((name, self._counted(name, slots)))

    def _counted(self, name: int, slots: Slots) -> Counted:
        makings: list[Making] = []
        looks: list[Looked] = []
        for worker in range(slots.workers):
            made = self._made(name, worker, slots.counts(worker))
            makings += [made] if made is not None else []
            found = slots.looks(worker, self.window) if self.window else []
            looks += [Looked.of(worker, found)] if found else []
        return tuple(makings), tuple(looks)

    def _made(self, name: int, worker: int, now: Counts) -> Making | None:
        if not now.pid:
            return None
        moment = time.monotonic_ns()
        since, then = self._told.get((name, worker), (now.began, Counts()))
        if then.pid != now.pid:  # another iterator of the same number
            since, then = now.began, Counts()
        self._told[name, worker] = moment, now
        return Making(
            worker=worker,
            pid=now.pid,
            batches=now.batches - then.batches,
            wall_s=(moment - since) * 1e-9,
            making_s=(now.making - then.making) * 1e-9,
            processor_s=(now.processor - then.processor) * 1e-9,
            squares=now.squares - then.squares,
            longest_s=now.longest * 1e-9,
            waited_s=(now.waited - then.waited) * 1e-9,
            handed_over_s=(now.handed_over - then.handed_over) * 1e-9,
            memory_bytes=now.memory if now.memory >= 0 else None,
            queued_s=(now.queued - then.queued) * 1e-9 if now.queued >= 0 else None,
        )


def _lend() -> None:
    """Have iterators that begin from now on seen."""
    kind = getattr(sys.modules.get("torch.utils.data.dataloader"), "_MultiProcessingDataLoaderIter", None)
    if kind is None or _placed:
        return
    begin = kind.__init__

    @functools.wraps(begin)
    def begun(self: Any, loader: Any, *args: Any, **kwargs: Any) -> None:
        slots = _slots(loader)
        if slots is None:
            begin(self, loader, *args, **kwargs)
            return
        theirs = loader.worker_init_fn
        loader.worker_init_fn = Begin(slots, theirs)
        try:
            begin(self, loader, *args, **kwargs)
        except BaseException:
            slots.close()
            raise
        finally:
            loader.worker_init_fn = theirs
        weakref.finalize(self, _forget, id(self), slots).atexit = False
        _seen[id(self)] = _Lent(weakref.ref(self), slots)

    _placed[:] = begin, begun
    kind.__init__ = begun


def _slots(loader: Any) -> Slots | None:
    """Memory for the workers of a loader; None where nobody wants to see them, or they cannot be seen."""
    if not list(_borrowers):
        return None
    try:
        slots = Slots(loader.num_workers)
        slots.window = max((each.window for each in list(_borrowers)), default=0)
    except Exception:
        logger.debug("the workers of a loader cannot be seen", exc_info=True)
        return None
    return slots


def _forget(name: int, slots: Slots) -> None:
    _seen.pop(name, None)
    with guard("counting what workers did"):
        for each in list(_borrowers):
            each.keep(name, slots)
    slots.close()


def _give_back() -> None:
    """Leave torch as it was, when nobody is left who wants to see workers."""
    # a list of those that live: the set may still have one that is garbage, of which this tells
    if list(_borrowers) or not _placed:
        return
    begin, begun = _placed
    _placed.clear()
    kind: Any = sys.modules["torch.utils.data.dataloader"]._MultiProcessingDataLoaderIter  # noqa: SLF001 -- torch has no public way
    if vars(kind).get("__init__") is begun:  # somebody may have put something else there since
        kind.__init__ = begin
