"""Loader workers: sampled from outside, and as they are without perfhooks."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import browser
import polars as pl
import pytest
import torch
from planted_loader import STAGES, Planted
from torch.utils.data import DataLoader

import perfhooks
from perfhooks.record.loop.loaders import workers as loader_workers
from perfhooks.record.loop.loaders.workers import LoaderWorkers
from perfhooks.record.workers.interpreter import Interpreter, ProcessMemory, measured_layout
from perfhooks.record.workers.sampler import SampledWorker
from perfhooks.run.capture import Capture, Place
from perfhooks.run.loader.workers import PARTS, LoaderWorker, Part, places, rows

if TYPE_CHECKING:
    import threading
    from collections.abc import Generator

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="workers are sampled on Linux"),
]


@pytest.fixture(scope="module", autouse=True)
def patience() -> Generator[None, None, None]:
    """The sampler may answer late, as it competes with all other processes of a busy machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loader_workers, "_ANSWER_TIMEOUT_S", 60.0)
        yield


NOTING = """
from perfhooks.record.workers import sampler
count, gaps = sampler.SampledWorker._count, open({file!r}, "w", buffering=1)
def noting(worker, part, elapsed, *others):
    print(elapsed, file=gaps)
    count(worker, part, elapsed, *others)
sampler.SampledWorker._count = noting
"""


@pytest.fixture
def gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the sampler notes the time before each sample, which counts for what the sample shows."""
    path, line = tmp_path / "gaps", "from perfhooks.record.workers.sampler import serve\n"
    code = loader_workers._BOOTSTRAP.replace(line, NOTING.format(file=str(path)) + line)
    monkeypatch.setattr(loader_workers, "_BOOTSTRAP", code)
    return path


@pytest.fixture
def workers(gaps: Path) -> Generator[LoaderWorkers, None, None]:
    """A sampler that has started, and answers."""
    sampled = LoaderWorkers()
    sampled.is_wanted = True
    sampled._start()
    assert sampled._orders is not None
    sampled._orders.send(b"{}")
    assert json.loads(sampled._answer()) == []
    yield sampled
    sampled.close()


@pytest.mark.parametrize(("context", "count"), [("fork", 192), ("forkserver", 96)])
def test_stages_of_workers_have_their_measured_shares(
    workers: LoaderWorkers, gaps: Path, context: str, count: int
) -> None:
    """The sampled shares differ from those of their own clocks by at most five standard errors and one point."""
    multiprocessing.set_forkserver_preload(["torch"])
    iterator = iter(DataLoader(Planted(count), batch_size=4, num_workers=2, multiprocessing_context=context))
    workers.watch(iterator)
    batches = torch.cat(list(iterator))
    workers.end({id(iterator)})
    results = workers.results()

    seen: Counter[str] = Counter()
    for place in places(results):
        seen[place.function] += place.total
    truth = dict(zip(STAGES, batches[:, :-1].sum(0).tolist(), strict=True))
    known, samples = sum(seen[stage] for stage in STAGES), sum(worker.samples for worker in results)
    assert samples > 1.5 * count
    weights = [int(line) for line in gaps.read_text().splitlines()]
    assert len(weights) == samples
    for stage in STAGES:
        share = truth[stage] / sum(truth.values())
        # a sampler that got no CPU for a while has few samples of great weight
        error = math.sqrt(share * (1 - share) * sum(weight**2 for weight in weights)) / sum(weights)
        assert seen[stage] / known == pytest.approx(share, abs=5 * error + 0.01), stage
    assert batches[:, -1].tolist() == list(range(count))
    whole_s = sum(truth.values())
    missed_s = max(whole_s - sum(worker.wall_s - worker.idle_s for worker in results), 0.0)
    # the first and the last one are seen in part, and a sampler that comes late misses some; each sleeps for 80 ms
    assert count // 4 - 8 - missed_s / 0.08 <= sum(worker.batches for worker in results) <= count // 4
    busy_s = sum(worker.busy_s for worker in results)
    assert busy_s == pytest.approx(whole_s - missed_s, rel=0.05 + 10 / count)


def worker_with(stacks: dict[str, dict[Part, int]]) -> LoaderWorker:
    counts = dict.fromkeys(("worker", "pid", "batches"), 1)
    seconds = dict.fromkeys(("wall_s", "busy_s", "cpu_s", "squares", "longest_s", "idle_s", "transfer_s"), 1.0)
    return LoaderWorker(**counts, **seconds, memory_bytes=None, samples=2, stacks=stacks)


def test_place_names_the_line_with_most_time() -> None:
    below = (("3): f", 9), ("4): f;/lib/python3.12/json/decoder.py(2): decode", 6), ("4): f", 6))
    stacks: dict[str, dict[Part, int]] = {f"fetch.py(2): fetch;a.py({end}": {"waits": ns} for end, ns in below}
    assert [str(place) for place in places([worker_with(stacks)])] == ["f (a.py:4)"]


def test_shares_of_functions_sum_to_100() -> None:
    stacks = ("fetch.py(2): fetch;a.py(3): f", "fetch.py(2): fetch;b.py(4): g")
    found = rows([worker_with({stack: {"waits": 16} for stack in stacks})])
    assert sum(found["percent"]) == pytest.approx(100)
    assert rows([])["percent"] == []


def _waits(level: int, gate: threading.Lock) -> Any:
    if level:
        return _waits(level - 1, gate)
    return [gate.acquire() for _ in range(1)]


def test_stack_of_another_process_is_read() -> None:
    """A forked process waits below a recursion and a comprehension."""
    layout, name = measured_layout(), _waits.__name__
    gate = multiprocessing.get_context("fork").Lock()
    gate.acquire()
    child = multiprocessing.get_context("fork").Process(target=_waits, args=(7, gate), daemon=True)
    child.start()
    try:
        with Path(f"/proc/{child.pid}/mem").open("rb", buffering=0) as memory:
            process = Interpreter(layout, child.pid or 0, ProcessMemory(memory.fileno()))
            names: list[str] = []
            deadline = time.monotonic() + 60
            while names.count(name) < 8 and time.monotonic() < deadline:
                with contextlib.suppress(OSError):
                    names = [frame.code.function for thread in process.threads() for frame in process.stack(thread)]
            assert names.count(name) == 8
    finally:
        child.kill()
        child.join()


def test_process_without_python_has_no_stack() -> None:
    layout = measured_layout()
    with subprocess.Popen(["sleep", "60"]) as child:
        try:
            with (
                Path(f"/proc/{child.pid}/mem").open("rb", buffering=0) as memory,
                pytest.raises((LookupError, OSError)),
            ):
                Interpreter(layout, child.pid, ProcessMemory(memory.fileno()))
        finally:
            child.kill()


def test_sampler_ends_with_the_training(workers: LoaderWorkers) -> None:
    sampler = workers._sampler
    assert sampler is not None
    workers.close()
    assert sampler.wait(60) == 0


KINDS = (
    *("probe", "signals reset", "frozen", "checked", "recursive", "alarm", "timer", "memory unreadable", "nested"),
    *("raises", "dies", "persistent", "left in the middle"),
)


@pytest.mark.nightly
def test_loaders_are_as_without_perfhooks(tmp_path: Path) -> None:
    """Batches, losses, random numbers, exceptions, the exit code, and what a worker sees of its process.

    Both programs are Python processes of their own, because a worker may look at all that its process has done.
    """
    script = Path(__file__).with_name("loader_kinds.py")
    options = ("--schedule", "wait=1 warmup=1 active=3", "--with-stack", "--record-shapes")
    results = []
    for before in ((), ("-m", "perfhooks", "run", *options)):
        file = tmp_path / f"{len(results)}.jsonl"
        done = subprocess.run(
            [sys.executable, *before, script, file, *KINDS],
            cwd=tmp_path, capture_output=True, text=True, timeout=400, check=False,
        )  # fmt: skip
        assert done.returncode == 7, done.stderr
        results.append({json.loads(line)["kind"]: line for line in file.read_text().splitlines()})
    plain, run = results
    assert set(plain) == set(KINDS)
    assert {kind for kind in KINDS if run.get(kind) != plain[kind]} == set()


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
    assert profiler.wait(300)
    (folder,) = (path.parent for path in out.glob("2*/*/rank0.workers.csv"))
    return folder


def test_window_with_stacks_has_the_time_of_the_workers(looked_at: Path) -> None:
    """In its files and its finding; the parts are the whole."""
    table = pl.read_csv(looked_at / "rank0.workers.csv")
    parts = table.select(pl.sum_horizontal(f"{part}_ms" for part in PARTS)).to_series()
    assert (parts - table["total_ms"]).abs().max() < 1e-5
    samples = sum(worker.samples for worker in Place(looked_at).load().circumstances.workers)
    # a stage takes a quarter of the time or so: this many are missed by chance
    missed = len(STAGES) * 0.75**samples
    assert len(set(STAGES) - set(table["function"])) <= 1 + missed
    stacks = [line.rpartition(" ") for line in (looked_at / "rank0.workers.folded").read_text().splitlines()]
    assert sum(int(value) for *_, value in stacks) == pytest.approx(table["total_ms"].sum() * 1e6, abs=100)
    capture: Capture = Place(looked_at).load()
    assert capture.circumstances.workers[0].batches > 0
    page = (looked_at / "rank0.page.json").read_text()
    is_found = "of the workers' time" in page
    assert ("planted_loader.py:" in page) == is_found
    assert is_found == (samples >= 20)


@pytest.mark.browser
@pytest.mark.skipif(browser.find() is None, reason="no Chromium here; Debian has it as chromium")
def test_report_draws_worker_time_and_the_plan(looked_at: Path) -> None:
    """A table and a flame graph of the same time, and a row for each number of workers, with that there is marked."""
    table = pl.read_csv(looked_at / "rank0.workers.csv")
    with browser.Browser() as chromium:
        chromium.open(looked_at.parent / "report.html")
        rows = "[...document.querySelectorAll('#{} tbody tr')].map(row => row.cells[0].textContent)"
        assert set(chromium.run(rows.format("workers"))) >= set(table["function"].head(3))
        windows = json.loads((looked_at.parent / "report.json").read_text())["windows"]
        (plan,) = (window["details"]["0"].get("plan") for window in windows if window["name"] == looked_at.name)
        # there is none if a busy machine has left too few samples
        assert chromium.run(rows.format("plan"))[:2] == (["1", "2"] if plan else [])
        leads = chromium.run("[...document.querySelectorAll('#plan .lead')].map(each => each.textContent)")
        assert leads == ([plan["summary"]] if plan else [])
        chromium.run("document.querySelector('#flame button[data-key=workers]').click()")
        drawn = chromium.run("[...document.querySelectorAll('#flame .frame')].map(each => each.textContent)")
        assert any("planted_loader.py" in text for text in drawn), drawn
        assert chromium.complaints == []


def test_workers_of_the_first_loader_are_sampled(launch: Any, tmp_path: Path) -> None:
    """They begin before the first step does, and so before there is a profiler."""
    script = tmp_path / "train.py"
    script.write_text(
        "import sys, time, torch\n"
        "workers = sys.modules['perfhooks.record.loop.loaders.workers']\n"
        "workers._ANSWER_TIMEOUT_S, start = 60.0, workers.LoaderWorkers._start\n"
        "def start_and_wait(sampled):  # on a busy machine, the window may be over before the sampler has started\n"
        "    is_new = sampled._orders is None\n"
        "    start(sampled)\n"
        "    if is_new:\n"
        "        sampled._orders.send(b'{}')\n"
        "        assert sampled._answer() == b'[]\\n'\n"
        "workers.LoaderWorkers._start = start_and_wait\n"
        "class Slow(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 360\n"
        "    def __getitem__(self, index):\n"
        "        time.sleep(0.02)\n"
        "        return torch.ones(4)\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
        "for batch in torch.utils.data.DataLoader(Slow(), batch_size=2, num_workers=1):\n"
        "    model(batch).sum().backward()\n"
        "    optimizer.step()\n"
    )
    # the window is longer than a pause of a training, in which the worker is idle
    done = launch("--schedule", "wait=10 warmup=2 active=150 repeat=1", "--with-stack", script)
    assert done.returncode == 0, done.stderr
    (table,) = (tmp_path / "perf").glob("2*/*/rank0.workers.csv")
    first = pl.read_csv(table).row(0, named=True)
    assert (first["function"], first["line"]) == ("__getitem__", 14)
    assert first["waits_ms"] + first["queued_ms"] > 0.8 * first["total_ms"]  # on a busy machine it also wakes late


@pytest.mark.parametrize(
    ("numbers", "batches"), [([44, 46, 48], 2), ([44, 0, 46, 48], 2), ([44, 0, 44], 0), ([44, 0, 2, 4], 3)], ids=str
)
def test_lower_number_is_a_new_pass_only_if_confirmed(numbers: list[int], batches: int) -> None:
    """Of two workers. The memory of another process may be read while it changes."""
    worker = object.__new__(SampledWorker)
    worker._order = {"batch": 0, "workers": 2}
    worker._batch, worker._is_lower, worker._batch_ns, worker._squares = None, False, 0, 0.0
    worker._batches = worker._busy = worker._longest = worker._queued = 0
    answers = iter(numbers)
    worker._interpreter = SimpleNamespace(integer=lambda *_: next(answers))
    for _ in numbers:
        worker._count("", 1, 0, [None])
    assert worker._batches == batches
