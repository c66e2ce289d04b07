"""A loader is driven without its training, in turns, and nothing of it is left."""

import atexit
import contextlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, Dataset, IterableDataset
from typer.testing import CliRunner

from perfhooks import OptionError, try_loader
from perfhooks.cli.app import app
from perfhooks.record.launch import loader_trials
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.trials import loader_runner, loader_trial
from perfhooks.trials.loader_results import LoaderResult, LoaderSetting, LoaderTrial
from perfhooks.trials.loader_runner import LoaderRunner
from perfhooks.trials.loader_trial import measure_loader

pytestmark = pytest.mark.process

TRAINING = Path(__file__).parent / "loader_training.py"


class Sleepy(Dataset):
    """Samples that wait, as for a disk."""

    def __init__(self, seconds=0.01, count=1000):
        self.seconds, self.count = seconds, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return torch.tensor([index, os.getpid()])


class Stream(IterableDataset):
    def __iter__(self):
        return map(torch.tensor, itertools.count())


def words(process):
    """What it was started with; nothing if it has ended, which processes of earlier tests do at any time."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.cmdline()
    return []


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def children():
    live = (child for child in psutil.Process().children() if is_alive(child))
    return {child.pid for child in live if "resource_tracker" not in " ".join(words(child)[:4])}


def nothing_stays(before):
    """Whether all that was started since then ends: on a busy machine, a killed process takes a while to do so."""
    until = time.monotonic() + 60
    while children() - before and time.monotonic() < until:
        time.sleep(0.05)
    return not children() - before


def of_workers(trial):
    return {each.setting.workers: each for each in trial.tried if each.setting.ahead in {None, 2}}


def test_waiting_workers_are_measured_in_parallel_and_removed():
    """Sleeping needs no processor, so more workers than processors make more batches, as the plan says."""
    before, state = children(), torch.random.get_rng_state()
    loader = DataLoader(Sleepy(0.04), batch_size=2, shuffle=True)
    trial = try_loader(loader, seconds=8)
    found = of_workers(trial)
    assert {0, 1, 2, 4} <= found.keys()
    # other programs may delay most of the few blocks
    assert max(found[4].rates) > 2.5 * found[1].rate
    # no more than the sleep allows: a block may begin late, by less than a batch, but what was ready before is left out
    assert (found[1].batches - len(found[1].rates)) / found[1].seconds <= 12.5 * 1.02
    assert found[4].planned == pytest.approx(4 * found[1].planned, rel=0.1)
    # a worker that waits for a CPU does not wait for a disk
    assert found[1].processor_s < 0.5 * (found[1].seconds - (found[1].queued_s or 0.0))
    assert (found[0].is_own, found[1].is_own) == (True, False)
    assert (loader.num_workers, loader.prefetch_factor, loader.persistent_workers) == (0, None, False)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert nothing_stays(before)
    on_idle_machine = tuple(msgspec.structs.replace(each, queued_s=0.0) for each in trial.tried)
    assert "a disk" in str(msgspec.structs.replace(trial, tried=on_idle_machine))


@pytest.mark.parametrize(("free_mb", "has_room"), [(1600, True), (1599, False), (None, True)])
def test_parallel_workers_take_at_most_half_of_the_free_memory(monkeypatch, free_mb, has_room):
    """Eight of 100 MB, as the largest worker so far; where nobody knows what is free they are tried."""
    trial = loader_trial._Trial(DataLoader(Sleepy()), Loader(num_workers=2), 1.0, print, lambda: False)
    trial._runners = {LoaderSetting(count, 2): SimpleNamespace(memory=count * 50 << 20) for count in (1, 2)}
    here = Circumstances(memory_bytes=None if free_mb is None else free_mb << 20)
    monkeypatch.setattr(Circumstances, "current", staticmethod(lambda: here))
    assert trial._has_room(8) is has_room


def test_loader_of_one_batch_is_measured_in_this_process():
    """Its first batch would be left out otherwise, as one that is on the way, and nothing would ever be made."""
    runner = LoaderRunner(DataLoader(Sleepy(0, count=2), batch_size=2), LoaderSetting(0), LoaderSetting(0))
    thread = threading.Thread(target=runner.turn, args=(lambda: True,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert sum(runner.made) > 0


def test_an_endless_loader_is_bounded():
    began = time.monotonic()
    trial = try_loader(DataLoader(Stream(), batch_size=4), seconds=2)
    assert time.monotonic() - began < 300
    assert trial.is_endless
    assert of_workers(trial)[1].batches
    assert "no length" in str(trial)


def test_a_short_loader_is_passed_through_again_and_again():
    trial = try_loader(DataLoader(Sleepy(0.001, count=6), batch_size=2), seconds=2)
    assert all(each.batches for each in trial.tried)
    assert sum(each.batches for each in trial.tried) > 3, "a pass has three"


class Greedy(Sleepy):
    """Its last sample ends a worker with a lock of the loader, as a signal at a bad moment does."""

    def __getitem__(self, index):
        if multiprocessing.parent_process() is not None and index == len(self) - 1:
            frame = sys._getframe()
            while frame.f_code.co_name != "_worker_loop":
                frame = frame.f_back
            frame.f_locals["done_event"]._cond._lock.acquire()
            os._exit(0)
        return super().__getitem__(index)


def test_worker_that_ends_with_a_lock_of_the_loader_is_killed(monkeypatch):
    monkeypatch.setattr(loader_runner, "MP_STATUS_CHECK_INTERVAL", 0.5)  # torch would wait for each for five seconds
    before = children()
    trial = measure_loader(DataLoader(Greedy(count=20)), 60)
    assert of_workers(trial)[0].batches
    assert "exited unexpectedly" in str(trial)
    assert nothing_stays(before)


def test_worker_that_ends_during_a_finalizer_is_noticed_afterwards(monkeypatch):
    """Python drops errors of finalizers."""

    class Finalized:
        def __del__(self):
            signal.raise_signal(signal.SIGCHLD)

    monkeypatch.setattr(LoaderRunner, "_awaited", SimpleNamespace(workers=[SimpleNamespace(exitcode=1)]))
    before = signal.signal(signal.SIGCHLD, LoaderRunner.check_awaited)
    try:
        Finalized()
        with pytest.raises(loader_runner._WorkerEnded):
            time.sleep(60)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_killed_worker_costs_only_its_setting():
    """The handler of torch would raise an error at any line of the main thread."""
    before, killed, rounds = children(), [], []

    def kill(trial):
        rounds.append(trial)
        if not killed:
            killed.append(next(pid for pid in children() if pid not in before))
            worker = psutil.Process(killed[0])
            worker.kill()
            assert all_end([worker])

    handler = signal.getsignal(signal.SIGCHLD)
    trial = measure_loader(DataLoader(Sleepy()), 60, publish=kill, is_stopped=lambda: len(rounds) > 1)
    assert f"DataLoader worker (pid(s) {killed[0]}) exited unexpectedly" in str(trial)
    assert sum(bool(row.batches) for row in trial.tried) >= 2
    assert handler in (signal.getsignal(signal.SIGCHLD), signal.SIG_DFL)
    assert nothing_stays(before)


def test_ctrl_c_at_any_moment_ends_the_trial_with_its_results(monkeypatch):
    before, close = children(), LoaderRunner.close

    def interrupted(runner):
        signal.raise_signal(signal.SIGINT)
        close(runner)

    monkeypatch.setattr(LoaderRunner, "close", interrupted)
    trial = measure_loader(DataLoader(Sleepy()), 60, publish=lambda _: signal.raise_signal(signal.SIGINT))
    assert trial.is_interrupted
    assert of_workers(trial)[2].batches
    assert nothing_stays(before)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(("loader", "seconds"), [([1, 2], 1), (None, 0), (None, float("inf"))])
def test_unsuitable_loader_is_rejected(loader, seconds):
    with pytest.raises(OptionError):
        try_loader(loader or DataLoader(Sleepy()), seconds=seconds)


# --- what is said of it ---


def tried(workers, rate, *, processors=0.5, verdict="faster", own=False, ahead=2, queued=0.0):
    setting = LoaderSetting(workers, ahead if workers else None)
    return LoaderResult(
        setting=setting,
        is_own=own,
        batches=int(rate * 10),
        seconds=10.0,
        processor_s=10.0 * processors,
        queued_s=queued,
        memory_bytes=1 << 20,
        first_s=1.5,
        again_s=0.2,
        rates=(rate,) * 20,
        verdict=verdict,
    )


def test_smallest_sufficient_number_of_workers_is_named():
    rows = tried(0, 20, own=True), tried(1, 20, processors=1), tried(2, 40, processors=2), tried(4, 41, verdict="same")
    text = str(LoaderTrial(name="DataLoader", tried=rows, cores=2))
    assert text.splitlines()[1].split()[:4] == ["0", "yes", "20", "50"], "what there is not is blank"
    assert text.splitlines()[0].split().index("verdict") == 6, "a narrow terminal has room for the first columns only"
    assert "num_workers=2, prefetch_factor=2 supplies 40 batches per second, 2 times the rate of the" in text
    assert "enough for steps of 25 ms or more. More workers cannot help: 2.0 of 2 CPUs are in use." in text
    assert "The first batch of a pass takes 1.5 s, and 200 ms with existing workers" in text
    kept = LoaderTrial(name="DataLoader", tried=rows, cores=2, keeps_workers=True)
    assert "persistent_workers" not in str(kept)


@pytest.mark.parametrize(("verdict", "ahead"), [("undecided", 2), ("faster", 4)])
def test_more_prefetching_is_named_only_if_certainly_faster(verdict, ahead):
    trial = LoaderTrial(name="", tried=(tried(1, 20), tried(1, 30, ahead=4, verdict=verdict)))
    assert trial.best.setting.ahead == ahead


def test_busy_machine_is_mentioned_and_an_unknown_number_of_cpus_is_not():
    busy = str(LoaderTrial(name="", tried=(tried(1, 20, queued=5.0),), cores=2))
    assert "a single worker waited for a CPU 50% of its runnable time" in busy
    rows = tried(1, 20, processors=1), tried(2, 40, processors=2)
    assert "CPUs are in use" not in str(LoaderTrial(name="", tried=rows, cores=None))


def test_the_plan_is_about_the_step_of_the_last_run():
    trial = LoaderTrial(name="", tried=(tried(0, 20, own=True), tried(1, 20, processors=1)), cores=16)
    (plan,) = [line for line in trial.sentences(20.0, 50.0) if "last run" in line]
    assert "minus its wait for data takes 20 ms. 3 workers would keep up: the wait falls to 0%" in plan


# --- in the place of a training ---


def command_of(log, way, *options):
    return [sys.executable, "-m", "perfhooks", "try", "--loader", *options, "--", str(TRAINING), str(log), way]


def run(tmp_path, way, *options, **environment):
    log = tmp_path / "log"
    done = subprocess.run(
        command_of(log, way, *options),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=tmp_path,
        env={**os.environ, **environment},
    )
    return done, log.read_text(encoding="utf-8").split()


def in_trial(tmp_path, way="fork", *options):
    """Start a trial of a loader. Return its process, the descendants and the TMPDIR, after the first results."""
    short = tempfile.mkdtemp()  # workers send batches through sockets in it, whose paths have at most 107 letters
    atexit.register(shutil.rmtree, short, ignore_errors=True)
    process = subprocess.Popen(
        command_of(tmp_path / "log", way, "--seconds", "200", *options),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": short},
        start_new_session=True,
    )
    while not any('"rates"' in file.read_text() for file in Path(short).glob("*/trial.json")):
        assert process.poll() is None
        time.sleep(0.05)
    return process, psutil.Process(process.pid).children(recursive=True), short


def all_end(processes):
    until = time.monotonic() + 120
    while any(map(is_alive, processes)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(is_alive, processes))


def test_loader_of_a_training_is_measured_before_its_first_step(tmp_path):
    """Ctrl-C ends the trial with the measurements until then: this test makes none of them exact."""
    process, below, temporary = in_trial(tmp_path, "fork", "--csv")
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert (tmp_path / "log").read_text(encoding="utf-8").split() == ["validated"] * 2, (
        "and a validation is no training"
    )
    header, *rows = out.splitlines()
    assert header.startswith("workers,prefetch,pinned,own,batches_per_s")
    assert {row.partition(",")[0] for row in rows} >= {"1", "2"}
    assert "measured without training steps" in err
    assert [*Path(temporary).glob("perfhooks*")] == []
    assert all_end(below)


def test_training_without_a_loader_is_one_line(tmp_path):
    done, said = run(tmp_path, "no loader", "--seconds", "200")
    assert done.returncode == 1
    assert said == ["validated"] * 2
    assert done.stderr.strip().count("\n") == 0
    assert "before it iterated a torch.utils.data.DataLoader" in done.stderr


def test_raising_data_set_is_one_line(tmp_path):
    done, _ = run(tmp_path, "raises", "--seconds", "120")
    assert done.returncode == 2
    assert done.stderr.strip().startswith("perfhooks: the loader cannot be measured: ValueError: broken image")
    assert done.stderr.strip().count("\n") == 0


def test_a_training_without_a_loader_ends_with_the_time(tmp_path):
    """With all processes that it started."""
    (tmp_path / "waits.py").write_text(
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "with open('written', 'w') as file: file.write(str(child.pid))\n"
        "os.rename('written', 'child')\n"
        "time.sleep(600)\n"
    )
    # the time is over as soon as the child has been started, however long that takes
    code = (
        "import os, time, types; from perfhooks.cli import app; from perfhooks.cli.actions import loader\n"
        "late = lambda: time.monotonic() + 1e6 * os.path.exists('child')\n"
        "loader.time = types.SimpleNamespace(monotonic=late, sleep=time.sleep)\n"
        "app.main()"
    )
    line = [sys.executable, "-c", code, "try", "--loader", "--seconds", "900", "--", "waits.py", "--lr", "1"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert "waits.py --lr 1 did not iterate within 900 s (--seconds) a torch.utils.data.DataLoader" in done.stderr
    child = int((tmp_path / "child").read_text())
    with contextlib.suppress(psutil.NoSuchProcess):
        assert all_end([psutil.Process(child)])


def test_killed_training_keeps_the_results_until_then(tmp_path):
    """Its workers are stopped at this moment, and would stay so without a parent."""
    process, below, _ = in_trial(tmp_path)
    training = next(each for each in below if words(each)[1:2] == [str(TRAINING)])
    training.kill()
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "Interrupted: fewer blocks were measured than planned." in out
    assert "num_workers=" in out
    assert all_end(below)


@pytest.mark.parametrize(("number", "way"), [(signal.SIGKILL, "fork"), (signal.SIGHUP, "forkserver")])
def test_killed_command_leaves_no_process(tmp_path, number, way):
    process, below, _ = in_trial(tmp_path, way)
    process.send_signal(number)
    process.communicate(timeout=300)
    assert process.returncode == (-9 if number == signal.SIGKILL else 128 + number)
    assert (tmp_path / "log").read_text(encoding="utf-8").split() == ["validated"] * 2
    assert all_end(below)


def test_error_of_perfhooks_is_reported_as_such(tmp_path, monkeypatch, caplog):
    ends = []
    monkeypatch.setattr(loader_trials.os, "_exit", ends.append)
    monkeypatch.setattr("perfhooks.trials.loader_trial.measure_loader", lambda *_, **__: 1 / 0)
    loader_trials._end_with(
        DataLoader(Sleepy()), SimpleNamespace(trial=str(tmp_path / "trial.json"), trial_ends=time.monotonic() + 1)
    )
    said = json.loads((tmp_path / "trial.json").read_text())
    assert said["problem"] == "the measurement failed (ZeroDivisionError: division by zero)"
    assert (ends, caplog.text) == ([0], "")


def test_ranks_other_than_the_first_end_before_the_trial(tmp_path):
    done, said = run(tmp_path, "fork", "--seconds", "200", RANK="1", WORLD_SIZE="2", LOCAL_RANK="1", MASTER_PORT="1")
    assert said == ["validated"] * 2
    assert done.returncode == 1


def test_operator_options_are_rejected_with_a_loader():
    done = CliRunner().invoke(app, ["try", "--loader", "--op", "aten::mm", "--", "train.py"])
    assert "the other options are for operators" in str(done.exception)
