"""What the workers of a loader do: counted always, and looked at while a window with stacks is open."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import browser
import polars as pl
import pytest
import torch
from planted_loader import STAGES, Planted
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter as Iterator

import perfhooks
from perfhooks.loading import begin, looks
from perfhooks.loading.lending import LoaderWorkers
from perfhooks.loading.slots import Counts, Slots, StackLook
from perfhooks.run.capture import Capture, Place

if TYPE_CHECKING:
    from collections.abc import Generator

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="workers are seen on Linux")

_TORCHS = Iterator.__init__


@pytest.fixture
def workers() -> Generator[LoaderWorkers, None, None]:
    """Those of loaders that begin from here on."""
    seen = LoaderWorkers()
    seen.borrow()
    yield seen
    seen.give_back()


@pytest.fixture(autouse=True)
def _nothing_stays() -> Generator[None, None, None]:
    yield
    gc.collect()
    assert Iterator.__init__ is _TORCHS


@pytest.mark.parametrize("context", ["fork", "forkserver"])  # a spawned one is given no more than the latter
def test_each_stage_has_its_share_of_the_time(workers: LoaderWorkers, context: str) -> None:
    """Sleeping, C, numpy, Python and a lock are within five points of what their own clocks say, however begun."""
    workers.open(looks=True)
    multiprocessing.set_forkserver_preload(["torch"])  # once for both
    # enough of them that looks, of which other tests hold some up, tell within a point or two
    iterator = iter(DataLoader(Planted(192), batch_size=4, num_workers=2, multiprocessing_context=context))
    batches = torch.cat(list(iterator))
    makings, looked = workers.close({id(iterator)})

    seen: Counter[str] = Counter()
    for place in looks.places(looked):
        seen[place.function] += place.total
    truth = dict(zip(STAGES, batches[:, :-1].sum(0).tolist(), strict=True))
    known = sum(seen[stage] for stage in STAGES)
    for stage in STAGES:
        assert seen[stage] / known == pytest.approx(truth[stage] / sum(truth.values()), abs=0.05), stage
    assert batches[:, -1].tolist() == list(range(192))
    assert sum(making.batches for making in makings) == 48
    made = sum(making.making_s for making in makings)
    assert sum(truth.values()) <= made <= sum(making.wall_s for making in makings)


def test_a_late_look_stands_for_the_call_in_c_that_held_it_up() -> None:
    """Its weight is how often the timer was due, and each nanosecond is in one part."""
    stack = "torch/utils/data/_utils/worker.py(1): _worker_loop;torch/utils/data/_utils/fetch.py(2): fetch;a.py(3): f"
    on_time = StackLook(stack, ticks=1, late=20_000, processor=looks.PERIOD, queued=0)
    late = StackLook(stack, ticks=16, late=31_000_000, processor=22_000_000, queued=3_000_000)
    (place,) = looks.places([looks.Looked.of(0, [on_time, late])])
    assert place.parts == {"python": looks.PERIOD, "c": 22_000_000, "queued": 3_000_000, "waits": 15_000_000}
    assert (place.total, str(place)) == (17 * looks.PERIOD, "f (a.py:3)")


@pytest.mark.parametrize(
    ("late", "processor", "read", "part"),
    [(8, 2, 64, "disk"), (8, 2, 0, "waits"), (0, 2, 64, "waits"), (8, 30, 64, "waits")],
)
def test_a_wait_that_nothing_interrupts_while_blocks_come_is_one_for_a_disk(
    late: int, processor: int, read: int, part: looks.Part
) -> None:
    """A sleep is interrupted at once, a network gives no blocks, and a decoder computes while it comes late."""
    look = StackLook("fetch.py(2): fetch;a.py(3): f", 16, late * 1_000_000, processor * 1_000_000, 0, read)
    (place,) = looks.places([looks.Looked.of(0, [look])])
    assert place.parts[part] == 16 * looks.PERIOD - processor * 1_000_000


def test_of_a_function_the_line_that_took_most_is_told() -> None:
    """With all that it called: what two stacks have in common is more than what the third one has."""
    below = (("3): f", 9), ("4): f;/lib/python3.12/json/decoder.py(2): decode", 6), ("4): f", 6))
    found = [StackLook(f"fetch.py(2): fetch;a.py({each}", ticks, 0, 0, 0, 0) for each, ticks in below]
    assert [str(place) for place in looks.places([looks.Looked.of(0, found)])] == ["f (a.py:4)"]


def test_shares_of_functions_sum_to_the_time_of_the_workers() -> None:
    """Seconds of it: a share is of a hundred, and nothing is divided by nothing where nobody looked."""
    stacks = ("fetch.py(2): fetch;a.py(3): f", "fetch.py(2): fetch;b.py(4): g")
    found = looks.rows([looks.Looked.of(0, [StackLook(each, 16, 0, 0, 0, 0) for each in stacks])])
    assert sum(found["percent"]) == pytest.approx(100)
    assert looks.rows([])["percent"] == []


def test_the_memory_of_a_loaders_workers_is_given_back_with_its_file() -> None:
    """A loader has another one in each epoch, and a process may have a thousand files."""
    slots = Slots(2)
    file = slots._file
    os.fstat(file)
    slots.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_the_time_between_looks_follows_from_what_a_look_costs() -> None:
    """So that looks take a hundredth of a worker, what a signal costs besides included, and never less than 10 ms."""
    seen = begin._Looks(Slots(1), 0)
    try:
        for cost, least, most in ((1_000_000, 100, 250), (1000, 10, 10)):
            for _ in range(256):
                seen._count(cost)
            assert least <= seen._every / 1e6 <= most
    finally:
        seen.end()
        seen._queue._file.close()
        signal.signal(seen.signal, signal.SIG_DFL)


def test_a_timer_that_the_kernel_refuses_is_none() -> None:
    """As where a process has as many signals that wait as it may: its workers are then not looked at."""
    with pytest.raises(OSError, match="no timer"):
        begin._Timer(signal.NSIG)


class _Alarmed(Planted):
    """Samples that say whether the worker's own alarm came."""

    def __getitem__(self, index: int) -> torch.Tensor:
        ended = time.monotonic() + 20
        while not _alarms and time.monotonic() < ended:
            time.sleep(0.001)
        return torch.tensor([len(_alarms) > 0, signal.getitimer(signal.ITIMER_REAL)[1] > 0])


_alarms: list[int] = []


def _alarm(_worker: int) -> None:
    signal.signal(signal.SIGALRM, lambda number, _: _alarms.append(number))
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)


def test_a_workers_own_alarm_and_init_function_are_left_alone(workers: LoaderWorkers) -> None:
    """The timer of the looks has a signal of its own."""
    workers.open(looks=True)
    loader = DataLoader(_Alarmed(4), num_workers=1, worker_init_fn=_alarm)
    iterator = iter(loader)
    assert torch.cat(list(iterator)).all()
    assert loader.worker_init_fn is _alarm
    assert workers.close({id(iterator)})[1]


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class _Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(40))


def test_without_a_window_batches_are_counted_and_nobody_looks(workers: LoaderWorkers) -> None:
    """Workers that live on are counted anew each time, those of other iterators not at all, and no file stays open."""
    before = _open_files()
    loader = DataLoader(_Endless(), batch_size=4, num_workers=1, persistent_workers=True)
    for number in range(2):
        assert torch.cat(list(loader)).tolist() == list(range(40))
        iterator = loader._iterator
        makings, looked = workers.close({id(iterator)})
        assert (makings[0].batches, looked) == (11, ())  # the end is asked for as well
        assert workers.close({number}) == ((), ())
    del iterator, loader
    gc.collect()
    deadline = time.monotonic() + 30
    while _open_files() > before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert _open_files() <= before


def test_workers_that_end_within_a_window_are_told(workers: LoaderWorkers) -> None:
    """An epoch that is shorter than the window takes its workers along; what they did stays until the window ends."""
    workers.open(looks=True)
    names = set()
    for _ in range(2):
        iterator = iter(DataLoader(Planted(4), batch_size=2, num_workers=1))
        names.add(id(iterator))
        list(iterator)
        del iterator
        gc.collect()
    makings, looked = workers.close(names)
    assert [making.batches for making in makings] == [2, 2]
    assert len(looked) == 2
    assert not workers.has_missed


def test_workers_that_began_before_the_profiler_are_said_to_be_unseen(tmp_path: Path) -> None:
    """On the page and in show, with how to see them; those that it saw, or that there are not, are not."""
    for name, count, is_early in (("early", 2, True), ("seen", 1, False), ("alone", 0, True)):
        loader, model = DataLoader(Planted(24), batch_size=2, num_workers=count), torch.nn.Linear(6, 1).double()
        iterator = iter(loader) if is_early else None
        schedule = "wait=1 warmup=0 active=2 repeat=1"
        with perfhooks.Profiler(schedule=schedule, with_stack=True, out=tmp_path / name) as profiler:
            for batch in profiler.steps(iterator or loader):
                model(batch).sum().backward()
        assert profiler.wait(60)
        (page,) = tmp_path.glob(f"{name}/2*/*/rank0.page.json")
        share = json.loads(page.read_text())
        said = share.get("unseen_workers", "")
        assert ("2 workers" in said) == (name == "early")
        assert bool(said) == (name == "early")
        assert said in (tmp_path / name / "latest" / "report.html").read_text()
        assert name != "early" or "plan" not in share
    shown = subprocess.run(
        [sys.executable, "-m", "perfhooks", "show", "early/latest", "-t", "workers", "-t", "plan", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    assert json.loads(shown.stdout) == {"workers": [], "plan": []}


def test_what_looks_have_no_room_for_is_left_out_and_touches_no_other_worker() -> None:
    slots = Slots(2)
    slots.window = 7
    other = Counts(version=2, pid=9, batches=4, memory=5)
    slots.write(1, other)
    log, stacks = slots.log(0, 7), 0
    while (number := log.define(f"{stacks:09}" * 5000)) is not None:
        stacks += 1
        assert log.add(number, 1, 0, 0, 0, 0)
    assert stacks > 10
    looks = stacks
    while log.add(0, 1, 0, 0, 0, 0):
        looks += 1
    assert log.define("short") is None
    assert len(slots.looks(0, 7)) == looks
    assert slots.counts(1)[1:] == other[1:]
    slots.close()


def test_a_stack_that_is_too_long_is_kept_as_far_as_64_kib() -> None:
    """Its length says nothing, and looks would have no room beside a few of them."""
    slots = Slots(1)
    slots.window = 7
    log = slots.log(0, 7)
    number = log.define("x" * 100_000)
    assert number is not None
    log.add(number, 1, 0, 0, 0, 0)
    (look,) = slots.looks(0, 7)
    assert look.stack == "x" * 65_536
    slots.close()


def test_whoever_looks_at_no_workers_has_missed_none() -> None:
    seen = LoaderWorkers()
    assert seen.close({1}) == ((), ())
    assert not seen.has_missed
    seen.borrow()
    seen.close({1})
    assert seen.has_missed
    seen.give_back()


def test_torch_is_as_it_was_when_no_profiler_is_left(tmp_path: Path) -> None:
    """One that was stopped gives iterators back, one that is garbage does, and the last of several does."""
    first, second = (perfhooks.Profiler(schedule="wait=9 warmup=0 active=1", out=tmp_path / str(n)) for n in range(2))
    first.start()
    second.start()
    assert Iterator.__init__ is not _TORCHS
    first.stop()
    assert Iterator.__init__ is not _TORCHS
    second.stop()
    assert Iterator.__init__ is _TORCHS
    with perfhooks.Profiler(schedule="wait=9 warmup=0 active=1", out=tmp_path / "off", workers=False):
        assert Iterator.__init__ is _TORCHS
    alone = LoaderWorkers()
    alone.borrow()
    assert Iterator.__init__ is not _TORCHS
    del alone
    gc.collect()
    assert Iterator.__init__ is _TORCHS


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a window with stacks in which the steps wait for one worker."""
    out = tmp_path_factory.mktemp("looked_at")
    model = torch.nn.Linear(6, 1).double()
    # looks are rare on a busy machine
    loader = DataLoader(Planted(120), batch_size=2, num_workers=1)
    with perfhooks.Profiler(schedule="wait=1 warmup=0 active=40 repeat=1", with_stack=True, out=out) as profiler:
        for batch in profiler.steps(loader):
            model(batch).sum().backward()
    assert profiler.wait(60)
    (folder,) = (path.parent for path in out.glob("2*/*/rank0.workers.csv"))
    return folder


def test_a_window_with_stacks_says_where_the_workers_time_went(looked_at: Path) -> None:
    """In its files and its finding; the parts are the whole."""
    table = pl.read_csv(looked_at / "rank0.workers.csv")
    parts = table.select(pl.sum_horizontal(f"{part}_ms" for part in looks.PARTS)).to_series()
    assert (parts - table["total_ms"]).abs().max() < 1e-5
    samples = sum(each.looks for each in Place(looked_at).load().circumstances.looked)
    # a stage takes a quarter of the time or so: this many are missed by chance
    missed = len(STAGES) * 0.75**samples
    assert len(set(STAGES) - set(table["function"])) <= 1 + missed
    stacks = [line.rpartition(" ") for line in (looked_at / "rank0.workers.folded").read_text().splitlines()]
    assert sum(int(value) for *_, value in stacks) == pytest.approx(table["total_ms"].sum() * 1e6, abs=100)
    capture: Capture = Place(looked_at).load()
    assert capture.circumstances.making[0].batches > 0
    page = (looked_at / "rank0.page.json").read_text()
    is_found = "of the workers' time" in page
    assert ("planted_loader.py:" in page) == is_found
    assert is_found == (samples >= 20)


@pytest.mark.skipif(browser.find() is None, reason="no Chromium here; Debian has it as chromium")
def test_the_page_draws_what_the_workers_did_and_how_many_would_keep_up(looked_at: Path) -> None:
    """A table and a flame graph of the same time, and a row for each number of workers, with that there is marked."""
    table = pl.read_csv(looked_at / "rank0.workers.csv")
    with browser.Browser() as chromium:
        chromium.open(looked_at.parent / "report.html")
        rows = "[...document.querySelectorAll('#{} tbody tr')].map(row => row.cells[0].textContent)"
        assert set(chromium.run(rows.format("workers"))) >= set(table["function"].head(3))
        assert chromium.run(rows.format("plan"))[:2] == ["1", "2"]
        (said,) = chromium.run("[...document.querySelectorAll('#plan .lead')].map(each => each.textContent)")
        assert said == json.loads((looked_at / "rank0.page.json").read_text())["plan"]["said"]
        chromium.run("document.querySelector('#flame button[data-key=workers]').click()")
        drawn = chromium.run("[...document.querySelectorAll('#flame .frame')].map(each => each.textContent)")
        assert any("planted_loader.py" in text for text in drawn), drawn
        assert chromium.complaints == []


def test_under_perfhooks_run_the_workers_of_the_first_loader_are_seen(launch: Any, tmp_path: Path) -> None:
    """They begin before the first step does, and so before there is a profiler."""
    script = tmp_path / "train.py"
    script.write_text(
        "import time, torch\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 160\n"
        "    def __getitem__(self, index):\n"
        "        time.sleep(0.01)\n"
        "        return torch.ones(4)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=1):\n"
        "    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
    )
    done = launch("--schedule", "wait=10 warmup=2 active=20 repeat=1", "--with-stack", script)
    assert done.returncode == 0, done.stderr
    (table,) = (tmp_path / "perf").glob("2*/*/rank0.workers.csv")
    first = pl.read_csv(table).row(0, named=True)
    assert (first["function"], first["line"]) == ("__getitem__", 5)
    assert first["waits_ms"] + first["queued_ms"] > 0.8 * first["total_ms"]  # on a busy machine it also wakes late
