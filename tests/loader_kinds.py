"""Loaders of many kinds, each of which feeds a small training: what they give is printed, one line for each kind.

Run as a script, with the file for the results, then the names of kinds or none for all of them.
"""

# ruff: noqa: BLE001, N818, NPY002, PTH208 -- these are programs of others

from __future__ import annotations

import asyncio
import collections
import contextlib
import hashlib
import json
import multiprocessing
import os
import pathlib
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    ConcatDataset,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
    WeightedRandomSampler,
    get_worker_info,
    random_split,
)

LENGTH = 24


class Rows(Dataset):
    """Rows of a fixed tensor, each of which takes a moment."""

    def __init__(self, length=LENGTH, seconds=0.001):
        self.rows = torch.arange(length * 4, dtype=torch.float64).reshape(length, 4).sin()
        self.seconds = seconds

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.rows[index]


class Augmented(Rows):
    def __getitem__(self, index):
        return super().__getitem__(index) + torch.rand(4) + random.random() + np.random.rand()


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, LENGTH, step):
            time.sleep(0.001)
            yield torch.full((4,), float(number), dtype=torch.float64)


class Failing(Rows):
    def __getitem__(self, index):
        if index == LENGTH // 2:
            raise ValueError(f"row {index} is broken")
        return super().__getitem__(index)


class Dying(Rows):
    def __getitem__(self, index):
        if index == 0 and get_worker_info() is not None:  # no batch can come before the end of the worker is seen
            os._exit(3)
        return super().__getitem__(index)


class Timeout(Exception):
    pass


def _ring(*_):
    raise Timeout


class Alarmed(Rows):
    """Each row is limited by an alarm that comes, whatever the worker does at that moment."""

    def __getitem__(self, index):
        signal.signal(signal.SIGALRM, _ring)
        came = 0.0
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.004)
            end = time.monotonic() + 10
            while time.monotonic() < end:
                sum(range(50))
        except Timeout:
            came = 1.0
        return self.rows[index] + came


class Interrupted(Rows):
    """A timer of the worker's own runs all the time."""

    def __getitem__(self, index):
        counts = []
        signal.signal(signal.SIGPROF, lambda *_: counts.append(1))
        signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
        try:
            while not counts:
                sum(range(100))
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        return self.rows[index]


class Recursive(Rows):
    """A row is read at the deepest level that Python's limit allows; the level is part of the row."""

    def __getitem__(self, index):
        return super().__getitem__(index) + _deepest(0)


def _deepest(level):
    try:
        return _deepest(level + 1)
    except RecursionError:
        return level


class Threaded(Rows):
    def __getitem__(self, index):
        with ThreadPoolExecutor(2) as pool:
            return sum(pool.map(lambda factor: factor * self.rows[index], (1, 2, 3)))


class WithChild(Rows):
    def __getitem__(self, index):
        if index % 12 == 0:
            subprocess.run(["true"], check=True)
            child = os.fork()
            if child == 0:
                os._exit(5)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        return super().__getitem__(index)


class Asynchronous(Rows):
    def __getitem__(self, index):
        async def read():
            await asyncio.sleep(0.001)
            return self.rows[index]

        async def both():
            return sum(await asyncio.gather(read(), read()))

        return asyncio.run(both())


class Nested(Rows):
    """A loader within a worker, and modules, gradients and optimizers."""

    def __getitem__(self, index):
        model = torch.nn.Linear(4, 1).double()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(0.5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for row in DataLoader(self.rows[index : index + 2], batch_size=1):
            model(row).sum().backward()
            optimizer.step()
        return self.rows[index] + model.weight.detach()[0]


class Probing(Rows):
    """What a worker can see of its process, as numbers."""

    def __getitem__(self, index):
        seen = json.dumps(observed())
        number = int(hashlib.sha256(seen.encode()).hexdigest()[:12], 16)
        if "PROBE" in os.environ and get_worker_info() is not None:
            pathlib.Path(os.environ["PROBE"]).write_text(seen)
        return self.rows[index] + number


def observed():
    """What this process can see of itself, apart from times, addresses and modules."""
    frame, frames = sys._getframe(), []
    while frame is not None:
        frames.append(f"{pathlib.Path(frame.f_code.co_filename).name}: {frame.f_code.co_name}")
        frame = frame.f_back
    handlers = {}
    for number in signal.valid_signals():
        with contextlib.suppress(ValueError):
            handlers[int(number)] = str(getattr(signal.getsignal(number), "__name__", signal.getsignal(number)))
    status = pathlib.Path("/proc/self/status").read_text().splitlines()
    base = torch.utils.data.dataloader
    functions = (
        *(base.DataLoader.__iter__, base._BaseDataLoaderIter.__next__, base._BaseDataLoaderIter.__init__),
        *(torch.nn.Module.__call__, torch.save, torch.autograd.backward, torch.utils.data._DatasetKind.create_fetcher),
    )
    return {
        "frames": frames,
        "limit": sys.getrecursionlimit(),
        "handlers": handlers,
        # 32 and 33 are those of the C library, which handles them once there is a second thread
        "signals": [
            int(line.split()[1], 16) & ~(0b11 << 31)
            for line in status
            if line.startswith(("SigBlk", "SigIgn", "SigCgt"))
        ],
        "tracer": [line for line in status if line.startswith("TracerPid")],
        "timers": [signal.getitimer(kind) for kind in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)],
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "traced": [str(sys.gettrace()), str(sys.getprofile()), str(threading.gettrace())],
        "torch": [getattr(function, "__module__", "") + "." + function.__code__.co_filename for function in functions],
        "switch": sys.getswitchinterval(),
    }


class Frozen(DataLoader):
    """Settings that cannot be changed."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.__dict__["_done"] = True

    def __setattr__(self, name, value):
        if self.__dict__.get("_done") and not name.startswith("_"):
            raise AttributeError(f"frozen: {name}")
        super().__setattr__(name, value)


class Checked(DataLoader):
    """Settings that are checked when they are set."""

    def __setattr__(self, name, value):
        if name == "worker_init_fn" and value is not None and type(value) is not type(_no_signals):
            raise TypeError("worker_init_fn has to be a function")
        super().__setattr__(name, value)


class Transformed(DataLoader):
    def __iter__(self):
        for batch in super().__iter__():
            yield batch * 2


class InThread(DataLoader):
    """Batches are fetched ahead by a thread."""

    def __iter__(self):
        batches, done = collections.deque(), threading.Event()
        source = super().__iter__()

        def fetch():
            for batch in source:
                batches.append(batch)
            done.set()

        thread = threading.Thread(target=fetch, daemon=True)
        thread.start()
        while not done.is_set() or batches:  # in this order: the last batch comes before the end
            if batches:
                yield batches.popleft()
            else:
                time.sleep(0.001)
        thread.join()


class Backwards(Sampler):
    def __len__(self):
        return LENGTH

    def __iter__(self):
        return iter(range(LENGTH - 1, -1, -1))


class Growing(Sampler):
    """A batch sampler whose batches grow."""

    def __iter__(self):
        start, size = 0, 1
        while start < LENGTH:
            yield list(range(start, min(start + size, LENGTH)))
            start, size = start + size, size + 1


def _no_signals(_):
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)


def _all_signals_blocked(_):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())


def _seeded(worker):
    torch.manual_seed(worker)
    random.seed(worker)
    np.random.seed(worker)


def _closed(_):
    """Close what a worker does not need, as daemons do."""
    first = 1 + max(int(name) for name in os.listdir("/proc/self/fd"))
    os.closerange(first, first + 100)


def _undumpable(_):
    """Nobody may read the memory of this process."""
    import ctypes

    ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)


def _stacked(samples):
    return torch.stack(samples) + 1


def _named(samples):
    return {"x": torch.stack(samples), "name": [str(float(sample[0])) for sample in samples]}


class _Collate:
    def __call__(self, samples):
        return torch.stack(samples).flip(0)


def _left(loader):
    """Leave the first pass in the middle, and read another one."""
    for number, batch in enumerate(loader):
        yield batch
        if number == 2:
            break
    yield from loader


def _both(first, second):
    for one, other in zip(first, second, strict=True):
        yield one + other


def _passes(loader, count=3):
    for _ in range(count):
        yield from loader


def _held(loader):
    """The iterator is kept while another one is read."""
    iterator = iter(loader)
    yield next(iterator)
    yield from loader
    yield from iterator


def _hugging():
    import datasets

    rows = datasets.Dataset.from_dict({"x": [[float(number)] * 4 for number in range(LENGTH)]})
    return DataLoader(rows.with_format("torch"), batch_size=4, num_workers=1)


def _stateful():
    from torchdata.stateful_dataloader import StatefulDataLoader

    loader = StatefulDataLoader(Rows(), batch_size=4, num_workers=2)
    for number, batch in enumerate(loader):
        yield batch
        if number == 2:
            state = loader.state_dict()
            break
    again = StatefulDataLoader(Rows(), batch_size=4, num_workers=2)
    again.load_state_dict(state)
    yield from again


def _loader(dataset=None, /, kind=DataLoader, **settings):
    return kind(Rows() if dataset is None else dataset, **{"batch_size": 4, "num_workers": 2, **settings})


def _at(context, dataset=None, **settings):
    multiprocessing.set_forkserver_preload(["torch"])
    return _loader(dataset, multiprocessing_context=context, **settings)


KINDS: dict[str, Any] = {
    "no workers": lambda: _loader(num_workers=0),
    "one worker": lambda: _loader(num_workers=1),
    "two workers": _loader,
    "more workers than batches": lambda: _loader(batch_size=12, num_workers=4),
    "persistent": lambda: _passes(_loader(persistent_workers=True)),
    "epochs": lambda: _passes(_loader(num_workers=1)),
    "prefetch": lambda: _loader(prefetch_factor=5),
    "timeout": lambda: _loader(timeout=300),
    "out of order": lambda: _loader(in_order=True),
    "fork": lambda: _at("fork"),
    "forkserver": lambda: _at("forkserver", num_workers=1),
    "spawn": lambda: _at("spawn", num_workers=1),
    "pinned": lambda: _loader(pin_memory=True),
    "shuffled": lambda: _loader(shuffle=True, generator=torch.Generator().manual_seed(3)),
    "drop last": lambda: _loader(Rows(22), drop_last=True),
    "no batches": lambda: _loader(batch_size=None),
    "sampler": lambda: _loader(sampler=Backwards()),
    "weighted": lambda: _loader(sampler=WeightedRandomSampler([1.0, 2.0] * (LENGTH // 2), LENGTH)),
    "replacement": lambda: _loader(sampler=RandomSampler(Rows(), replacement=True, num_samples=20)),
    "batch sampler": lambda: DataLoader(Rows(), batch_sampler=Growing(), num_workers=2),
    "batches of batches": lambda: DataLoader(
        Rows(), batch_sampler=BatchSampler(SequentialSampler(Rows()), 5, drop_last=False), num_workers=1
    ),
    "collate": lambda: _loader(collate_fn=_stacked),
    "collate object": lambda: _loader(collate_fn=_Collate()),
    "dictionaries": lambda: (batch["x"] for batch in _loader(collate_fn=_named)),
    "init function": lambda: _loader(worker_init_fn=_seeded),
    "signals reset": lambda: _loader(worker_init_fn=_no_signals),
    "signals blocked": lambda: _loader(worker_init_fn=_all_signals_blocked),
    "files closed": lambda: _loader(worker_init_fn=_closed),
    "memory unreadable": lambda: _loader(worker_init_fn=_undumpable),
    "random": lambda: _loader(Augmented()),
    "stream": lambda: _loader(Stream()),
    "stream, one sample": lambda: _loader(Stream(), batch_size=None, num_workers=1),
    "tensors": lambda: (batch[0] for batch in _loader(TensorDataset(Rows().rows))),
    "concatenated": lambda: _loader(ConcatDataset([Rows(8), Subset(Rows(), range(3, 9))])),
    "split": lambda: _loader(random_split(Rows(), [20, 4], torch.Generator().manual_seed(1))[0]),
    "list": lambda: _loader([torch.ones(4, dtype=torch.float64)] * 12),
    "raises": lambda: _loader(Failing()),
    "raises without workers": lambda: _loader(Failing(), num_workers=0),
    "dies": lambda: _loader(Dying()),
    "alarm": lambda: _loader(Alarmed(12), num_workers=1),
    "timer": lambda: _loader(Interrupted(), num_workers=1),
    "recursive": lambda: _loader(Recursive(), num_workers=1),
    "recursive, forkserver": lambda: _at("forkserver", Recursive(), num_workers=1),
    "threads": lambda: _loader(Threaded()),
    "child processes": lambda: _loader(WithChild(), num_workers=1),
    "asyncio": lambda: _loader(Asynchronous(), num_workers=1),
    "nested": lambda: _loader(Nested(), num_workers=1),
    "probe": lambda: _loader(Probing(4), num_workers=1),
    "frozen": lambda: _loader(kind=Frozen),
    "checked": lambda: _loader(kind=Checked, worker_init_fn=_seeded),
    "subclass": lambda: _loader(kind=Transformed),
    "fetched in a thread": lambda: _loader(kind=InThread),
    "left in the middle": lambda: _left(_loader()),
    "left, persistent": lambda: _left(_loader(persistent_workers=True)),
    "two at once": lambda: _both(_loader(), _loader(Augmented(), num_workers=1)),
    "iterator kept": lambda: _held(_loader(num_workers=1)),
    "hugging face": _hugging,
    "stateful": _stateful,
}


def result(kind):
    """The batches, losses and weights of a training that a loader feeds, and how it ended."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = torch.nn.Linear(4, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    batches, losses, end = hashlib.sha256(), [], ""
    count = 0
    try:
        for batch in KINDS[kind]():
            batches.update(batch.numpy().tobytes())
            loss = model(batch).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            count += 1
    except ImportError as error:
        return {"kind": kind, "missing": str(error.name)}
    except Exception as error:
        lines = [line for line in str(error).splitlines() if "Error" in line]
        end = f"{type(error).__name__}: {lines[-1] if lines else ''}"
    state = [torch.rand(1).item(), random.random(), np.random.rand(), *model.weight[0].tolist()]
    return {"kind": kind, "count": count, "batches": batches.hexdigest(), "losses": losses, "state": state, "end": end}


if __name__ == "__main__":
    torch.set_num_threads(1)
    with pathlib.Path(sys.argv[1]).open("w") as file:
        for name in sys.argv[2:] or KINDS:
            print(json.dumps(result(name)), file=file, flush=True)
    sys.exit(7)
