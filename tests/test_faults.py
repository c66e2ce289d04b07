"""What can go wrong around a training, each with a real process: what is kept, what is said, how the process ends."""

from __future__ import annotations

import csv
import gzip
import json
import os
import signal
import textwrap
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner
from warm import Process

from perfhooks.cli.app import app
from perfhooks.record.loop import wall_clock
from perfhooks.report.finishing.leftovers import finish_all

pytestmark = pytest.mark.process

HEAD = """
import contextlib, os, resource, shutil, signal, sys, threading, time
from functools import partial
from unittest.mock import patch
import torch, perfhooks
torch.set_num_threads(1)
x = torch.ones(8, 8)
HERE = os.getcwd()
sys.path.remove(HERE)  # with the user's stray modules
sys.path.insert(0, os.path.join(HERE, "lib"))

def ready():
    '''Handshake: say so, and wait until the test has done what it does.'''
    print("ready", flush=True)
    sys.stdin.readline()

def train(run, event=int, at=(), steps=10, **options):
    '''Ten steps, of which 4 to 6 are recorded, with an event in one of them, and a mark in both streams afterwards.'''
    global step
    # the files that the tests look at: the page takes the most time of all
    usual = dict(schedule="wait=2 warmup=2 active=3 repeat=1", out="runs", on_trace_ready=["trace", "steps"])
    try:
        with perfhooks.Profiler(run=run, **usual | options) as prof:
            for step in range(steps):
                x @ x
                if step in (at if isinstance(at, range) else [at]):
                    event()
                prof.step()
        prof.wait(200)
    finally:
        print("trained", run, flush=True)
        print("--", run, file=sys.stderr, flush=True)

def kill(number):
    os.kill(os.getpid(), number)
"""
WINDOW = "train-000004-000006"
TIMEOUT = 300


class Training:
    """A training in a process of its own, in a folder of its own."""

    def __init__(self, channel, folder, script, *words, **options):
        self.folder = folder
        file = folder / "train.py"
        file.write_text(HEAD + textwrap.dedent(script))
        self.process = Process(channel, file, *words, is_whole=True, **options)

    def until_ready(self):
        for line in self.process.stdout:
            if line == "ready\n":
                return self
        pytest.fail(f"not ready: {self.process.stderr.read()}")

    def end(self, number=None):
        """Send it a signal or let it go on, and wait for its end."""
        if number is not None:
            self.process.send_signal(number)
        self.out, self.err = self.process.communicate("\n", timeout=TIMEOUT)
        self.code = self.process.returncode
        return self

    def said(self, run=None):
        """Its log lines, all or those of one run, without those about the speed of this machine."""
        text = self.err
        if run is not None:
            text = text.partition(f"-- {run}\n")[0].rpartition("-- ")[2].partition("\n")[2] or text.partition("-- ")[0]
        return [line for line in text.splitlines() if " perfhooks: " in line]

    def warnings(self, run=None):
        return [line for line in self.said(run) if line.startswith(("WARNING", "ERROR"))]

    def facts(self, run="r", window=WINDOW):
        """The facts of the window, when the worker, which may outlive the training, has finished it."""
        path = self.folder / "runs" / run / window / "rank0.capture.json"
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            facts = json.loads(path.read_text())
            if facts["state"] == "done":
                return facts
            time.sleep(0.05)
        pytest.fail(f"{path} is not finished")

    def steps(self, run="r", window=WINDOW):
        with (self.folder / "runs" / run / window / "rank0.steps.csv").open() as file:
            return [int(row["step"]) for row in csv.DictReader(file)]

    def marks(self, run="r", window=WINDOW):
        with gzip.open(self.folder / "runs" / run / window / "rank0.pt.trace.json.gz", "rt") as file:
            events = json.load(file)["traceEvents"]
        return sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep"))


@pytest.fixture
def train(channel, tmp_path):
    started = []

    def start(script, *words, **options):
        started.append(Training(channel, tmp_path, script, *words, **options))
        return started[-1]

    yield start
    for training in started:
        training.process.close()


# --- faults that a training survives, in one process ---

SURVIVED = """
ALL, FILES = resource.RLIM_INFINITY, resource.RLIMIT_FSIZE
OTHER = dict(activities=[torch.profiler.ProfilerActivity.CPU])
run = partial(train, background=False)

signal.signal(signal.SIGHUP, signal.SIG_IGN)
run("ignored-SIGHUP", partial(kill, signal.SIGHUP), 5)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

def check(*numbers, default=signal.SIG_DFL):
    assert [signal.getsignal(each) for each in numbers] == [default] * len(numbers)
for at in (1, 8):
    run(f"signals-at-{at}", partial(check, signal.SIGTERM, signal.SIGHUP), at)
run("Ctrl-C", partial(check, signal.SIGINT, default=signal.default_int_handler), 5)
check(signal.SIGINT, default=signal.default_int_handler)

run("full-disk", lambda: resource.setrlimit(FILES, (4096, ALL)), 6)
resource.setrlimit(FILES, (ALL, ALL))
def delete(folder):
    while os.path.exists(folder):  # perfhooks may create or rename a file meanwhile
        shutil.rmtree(folder, ignore_errors=True)

run("deleted", lambda: delete("runs/deleted"), 2)
run("unwritable", lambda: (delete("runs/unwritable"), open("runs/unwritable", "w").close()), 5, watch=False)
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
run("no-directory", out=os.path.join(HERE, "runs"))
os.chdir(HERE)

def use_another():
    with torch.profiler.profile(**OTHER):
        pass
run("another-profiler", use_another, 5)
with torch.profiler.profile(**OTHER) as outer:
    run("running-profiler")
assert len(outer.events())

# faked: Kineto says so after a buffer overflow on a GPU only
init = torch.profiler.profile.__init__
def with_device(self, **options):
    init(self, **options)
    self.use_device = "cuda"
    self.prepare_trace = lambda: (setattr(self, "use_device", None), type(self).prepare_trace(self),
                                  setattr(self, "use_device", "cuda"))
    self.action_map = {key: [self.prepare_trace if getattr(a, "__name__", "") == "prepare_trace" else a
                             for a in actions] for key, actions in self.action_map.items()}
if hasattr(torch.autograd, "_is_kineto_stopped"):
    with patch.object(torch.profiler.profile, "__init__", with_device), \\
            patch.object(torch.autograd, "_is_kineto_stopped", lambda: step == 4):
        run("device")

# faked, as a test may not set it; the recorder goes by the clock, so that steps would take an hour
from perfhooks.record.loop import wall_clock, window
ahead_s, set_s = wall_clock.system_ahead_s, [0]
moved = lambda: ahead_s() + set_s[0]
with patch.object(wall_clock, "system_ahead_s", moved), patch.object(window, "system_ahead_s", moved):
    run("clock", lambda: set_s.__setitem__(0, 3600), 3, schedule="wait=1 warmup=1 active=2 repeat=2")

def batches():
    data = torch.utils.data.TensorDataset(torch.ones(20, 8))
    yield from torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
run("loader", partial(next, batches()), range(10), schedule="wait=0 warmup=0 active=3 repeat=3")

prof = perfhooks.Profiler(schedule="wait=2 warmup=2 active=3", out="runs", run="stopped", background=False)
prof.stop()
prof.start(); prof.start(); prof.stop(); prof.stop()
for _ in range(10):
    with prof.region("forward"):
        prof.step()
print("-- stopped", file=sys.stderr, flush=True)

worker = threading.Thread(target=run, args=("thread",))
worker.start()
worker.join()
prof = perfhooks.Profiler(schedule="wait=2 warmup=2 active=3", on_trace_ready="steps", out="runs", run="end")
prof.start()
for _ in range(6):
    x @ x
    prof.step()
"""


@pytest.fixture(scope="module")
def survived(channel, tmp_path_factory):
    """Most faults, one after the other, each with a profiler and a run of its own."""
    done = Training(channel, tmp_path_factory.mktemp("survived"), SURVIVED).end()
    done.process.close()
    assert done.code == 0, done.err
    return done


@pytest.mark.parametrize(
    "run", ["ignored-SIGHUP", "signals-at-1", "signals-at-8", "Ctrl-C", "no-directory", "thread", "loader"]
)
def test_harmless_event_changes_no_window(survived, run):
    """SIGHUP is ignored under `nohup`. The program has all signals for itself between windows, and always Ctrl-C."""
    assert survived.warnings(run) == []
    for first in (0, 3, 6) if run == "loader" else (4,):
        window = f"train-{first:06d}-{first + 2:06d}"
        assert survived.facts(run, window)["partial"] is None
        assert survived.steps(run, window) == [first, first + 1, first + 2]


def test_full_disk_during_saving_leaves_no_half_file(survived):
    """Kineto says nothing then; we do."""
    (line,) = survived.warnings("full-disk")
    assert "saving the trace" in line
    assert "is the disk full?" in line
    assert list((survived.folder / "runs/full-disk" / WINDOW).iterdir()) == []


def test_folder_deleted_during_the_run_is_created_again(survived):
    assert survived.marks("deleted") == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]


def test_folder_that_becomes_unwritable_is_one_line(survived):
    assert len(survived.warnings("unwritable")) == 2, "one for the timeline, one for the trace"
    assert (survived.folder / "runs/unwritable").read_bytes() == b""


def test_another_profiler_during_the_window_is_noted(survived):
    facts = survived.facts("another-profiler")
    assert "another profiler ran during the window and took its events" in facts["notes"]
    assert facts["artifacts"] == []
    assert len(survived.warnings("another-profiler")) == 1


def test_running_profiler_of_the_program_is_not_changed(survived):
    assert len([line for line in survived.warnings("running-profiler") if "another profiler is recording" in line]) == 1


def test_a_device_that_stops_collecting_is_noted(survived):
    if "stopped early" not in survived.err:
        pytest.skip("this torch does not report it")
    assert any("stopped collecting from the device" in note for note in survived.facts("device")["notes"])


def test_clock_set_during_a_window_marks_that_window(survived):
    (line,) = survived.warnings("clock")
    assert "train-000002-000003 has no trace: the clock of this machine was changed by +3600.000 s" in line
    assert survived.facts("clock", "train-000002-000003")["artifacts"] == []
    assert survived.steps("clock", "train-000006-000007") == [6, 7]


def test_use_after_stop_does_nothing(survived):
    (line,) = survived.warnings("stopped")
    assert "no window has been recorded" in line
    assert not list(survived.folder.glob("runs/stopped/train*"))


def test_an_interpreter_that_exits_with_the_profiler_open(survived):
    """Plain torch dies of SIGSEGV there."""
    assert survived.facts("end")["partial"] == "the interpreter exited"
    assert len([line for line in survived.warnings() if "the interpreter exited" in line]) == 1


@pytest.mark.parametrize(
    ("moved_s", "recorded_s", "is_doubtful"),
    [(0.0008, 0.001, False), (0.002, 0.001, True), (0.9, 100.0, False), (-1.5, 100.0, True), (1.5, 100.0, True)],
)
def test_clock_that_drifts_marks_no_window(monkeypatch, moved_s, recorded_s, is_doubtful):
    """Up to 1% of what was recorded, and a millisecond for the readings; beyond that it was set, forward or back."""
    monkeypatch.setattr(wall_clock, "system_ahead_s", lambda: 7.0 + moved_s)
    assert (f"{moved_s:+.3f} s" in wall_clock.describe_change(7.0, recorded_s)) == is_doubtful
    assert bool(wall_clock.describe_change(7.0, recorded_s)) == is_doubtful


# --- ends of a training ---

ERRORS = """
def fail(error):
    raise error
for run, at, error in ("wait", 1, ValueError()), ("warmup", 2, ValueError()), ("code-0", 5, SystemExit(0)):
    with contextlib.suppress(type(error)):
        train(run, lambda: fail(error), at)
with contextlib.suppress(KeyboardInterrupt):
    train("Ctrl-C", lambda: kill(signal.SIGINT), 5)
train("active", lambda: fail(ValueError("bad batch")), 5)
"""


def test_exception(train):
    """The traceback and exit code are the training's own; a window in its active steps is kept."""
    done = train(ERRORS).end()
    assert done.code == 1
    assert "\nValueError: bad batch\n" in done.err.rpartition("-- active\n")[2]
    for run in ("wait", "warmup"):
        assert len(done.warnings(run)) == 1
        assert not (done.folder / "runs" / run / WINDOW).exists()
    partial = {"active": "ValueError: bad batch", "code-0": "SystemExit: 0", "Ctrl-C": "KeyboardInterrupt"}
    for run, why in partial.items():
        assert done.facts(run)["partial"] == why
        assert done.steps(run) == [4]
        assert done.marks(run) == ["ProfilerStep#4", "ProfilerStep#5"]
        assert len(done.warnings(run)) == 1


def test_sigterm(train):
    done = train("train('r', ready, 5)").until_ready().end(signal.SIGTERM)
    assert done.code == -signal.SIGTERM
    assert done.facts()["partial"] == "SIGTERM"
    assert done.steps() == [4]
    assert len(done.warnings()) == 1


TERMINAL = """
import fcntl, termios
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.ioctl(fd, termios.TIOCSCTTY, 0)
for number in range(3):
    os.dup2(fd, number)
os.close(fd)
train("r", lambda: (print("ready", flush=True), time.sleep(300)), 5)
"""


def test_closed_terminal_keeps_the_window(train):
    """The system sends SIGHUP when the terminal of a session is closed, and the log has no place to go."""
    ours, theirs = os.openpty()
    training = train(TERMINAL, os.ttyname(theirs), is_leader=True)
    output = b""
    while b"ready" not in output:
        output += os.read(ours, 1024)
    os.close(theirs)
    os.close(ours)
    done = training.end()
    assert done.code == -signal.SIGHUP
    assert done.facts()["partial"] == "SIGHUP"
    assert done.steps() == [4]


def test_sigterm_handler_of_the_user_runs(train):
    """Theirs runs, and ours is not in its way; what they make of it decides what is kept."""
    own = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), sys.exit(3)))\n"
    done = train(own + "train('r', ready, 5)").until_ready().end(signal.SIGTERM)
    assert done.code == 3
    assert "mine" in done.out
    assert done.facts()["partial"] == "SystemExit: 3"


DURING_STOP = """
from perfhooks.record.loop.window import Window
def signalling(*numbers):
    def save(self, path, real=Window.save):
        for number in numbers:
            kill(number)
        return real(self, path)
    return patch.object(Window, "save", save)
"""


def test_sigterm_during_stop_waits_until_the_window_is_saved(train):
    """The naive handler crashes there."""
    done = train(DURING_STOP + "with signalling(signal.SIGTERM): train('r')").end()
    assert done.code == -signal.SIGTERM
    assert done.facts()["partial"] is None
    assert done.steps() == [4, 5, 6]
    assert "trained" not in done.out


def test_ctrl_c_during_stop_waits_until_the_window_is_saved(train):
    """It waits until the window is saved; whoever presses it twice does not want to wait."""
    twice = """
    with contextlib.suppress(KeyboardInterrupt), signalling(signal.SIGINT, signal.SIGINT):
        train('twice')
    with signalling(signal.SIGINT):
        train('once')
    """
    done = train(DURING_STOP + textwrap.dedent(twice)).end()
    assert done.code in (130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.err
    assert done.facts("once")["partial"] is None
    assert done.steps("once") == [4, 5, 6]
    assert not (done.folder / "runs/twice" / WINDOW / "rank0.steps.csv").exists()


KILLING = """
from perfhooks.record.loop.worker import Worker
def killing(times, *others):
    left = iter(range(times))
    def kill_worker(self, message, send=Worker.send):
        if hasattr(message, "folder") and next(left, None) is not None:
            for pid in (self.pid, *others):
                os.kill(pid, signal.SIGKILL)
            self._process.wait()
        send(self, message)
    return patch.object(Worker, "send", kill_worker)
"""


def lost(folder):
    """What a later look at the run says."""
    return [outcome.problem for outcome in finish_all(folder / "runs/r") if outcome.problem]


@pytest.mark.parametrize("act", ["os._exit(9)", "kill(signal.SIGKILL)"])
def test_a_killed_training_loses_only_the_window_being_recorded(train, act):
    done = train(f"train('r', lambda: {act}, 11, steps=20, schedule='wait=1 warmup=1 active=2 repeat=3')").end()
    assert done.code in (9, -signal.SIGKILL)
    assert lost(done.folder) == ["the process ended during the recording: this window is lost"]
    assert done.steps(window="train-000002-000003") == [2, 3]
    assert done.steps(window="train-000006-000007") == [6, 7]


def test_report_finishes_unfinished_windows_once(train):
    """The worker is killed with the training, as when a whole node dies."""
    done = train(KILLING + "with killing(1, os.getpid()): train('r')").end()
    first = CliRunner().invoke(app, ["report", str(done.folder / "runs/r")])
    assert "train-000004-000006 rank 0: finished now" in first.output
    assert done.steps() == [4, 5, 6]
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("rank0.*")}
    second = CliRunner().invoke(app, ["report", str(done.folder / "runs/r")])
    assert (first.exit_code, second.exit_code) == (0, 0)
    assert "finished now" not in second.output
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("rank0.*")} == before


# --- the worker ---

HANDLERS = """
from dataclasses import dataclass
import resource, time

@dataclass(frozen=True)
class Raises:
    def artifacts(self, capture, trace):
        raise RuntimeError("no luck")

@dataclass(frozen=True)
class Hangs:
    def artifacts(self, capture, trace):
        time.sleep(600)

@dataclass(frozen=True)
class Full:
    def artifacts(self, capture, trace):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        return []
"""


def handlers(folder):
    (folder / "lib").mkdir()
    (folder / "lib/mine.py").write_text(HANDLERS)


WORKERS = """
for run, times in ("killed", 1), ("always-killed", 99):
    with killing(times):
        train(run)
train("raises", on_trace_ready=["mine:Raises", "steps"])
train("full", on_trace_ready=["mine:Full", "operators", "trace"])
ready()
"""


@pytest.fixture(scope="module")
def workers(channel, tmp_path_factory):
    """What a worker survives, one after the other, beside a stray module; a signal after all windows is the end."""
    folder = tmp_path_factory.mktemp("workers")
    handlers(folder)
    (folder / "polars.py").write_text("raise RuntimeError('stray')\n")
    done = Training(channel, folder, KILLING + WORKERS).until_ready().end(signal.SIGTERM)
    done.process.close()
    assert done.code == -signal.SIGTERM, done.err
    logs = {path.parent.name: path.read_text() for path in folder.rglob("rank0.worker.log")}
    assert [run for run, text in logs.items() if "Traceback" in text] == ["full"]
    return done


def test_a_killed_worker_is_started_again(workers):
    assert workers.warnings("killed") == []
    assert workers.err.partition("-- killed\n")[0].count("was started again") == 1
    assert workers.steps("killed") == [4, 5, 6]


def test_a_worker_killed_every_time_leaves_the_rest_to_report(workers):
    (line,) = workers.warnings("always-killed")
    assert "perfhooks report" in line
    assert [outcome.finished_now for outcome in finish_all(workers.folder / "runs/always-killed")] == [True]
    assert workers.steps("always-killed") == [4, 5, 6]


def test_raising_handler_does_not_affect_other_handlers(workers):
    (line,) = workers.warnings("raises")
    assert "handler 'mine:Raises' failed: RuntimeError: no luck" in line
    assert workers.steps("raises") == [4, 5, 6]


def test_a_full_disk_while_the_worker_writes(workers):
    """The trace stays spooled, and is finished when there is room."""
    (line,) = workers.warnings("full")
    assert "is not finished (OSError" in line
    window = workers.folder / "runs/full" / WINDOW
    assert json.loads((window / "rank0.capture.json").read_text())["state"] == "spooled"
    assert not (window / "rank0.pt.trace.json.gz").exists()


def test_blocked_handler_delays_the_exit_by_exit_timeout_only(train, tmp_path):
    handlers(tmp_path)
    script = """
    options = dict(out="runs", run="r", exit_timeout=1, on_trace_ready=["steps", "mine:Hangs"])
    with perfhooks.Profiler(schedule="wait=0 warmup=0 active=1 repeat=1", **options) as prof:
        print(prof._course.windows.handover.tasks.worker.pid)
        prof.step()
    """
    done = train(script).end()
    os.kill(int(done.out), signal.SIGKILL)
    assert (done.code, done.warnings()) == (0, [])
    assert "INFO perfhooks: report is still being written: " in done.err
    (facts,) = done.folder.glob("runs/r/train-*/rank0.capture.json")
    assert json.loads(facts.read_text())["state"] == "spooled"


def test_ctrl_c_does_not_reach_the_worker(train):
    """The terminal sends it to the whole process group; the worker is in a group of its own."""
    training = train("train('r', ready, 8)", is_leader=True).until_ready()
    os.killpg(training.process.pid, signal.SIGINT)
    done = training.end()
    assert done.code in (130, -signal.SIGINT)
    assert done.facts()["partial"] is None
    assert done.steps() == [4, 5, 6]


# --- several processes ---


def test_two_runs_started_in_the_same_second_do_not_mix(train):
    both = [train("train(None, background=False)") for _ in range(2)]
    assert [training.end().code for training in both] == [0, 0]
    runs = [path for path in (both[0].folder / "runs").iterdir() if not path.is_symlink()]
    assert len(runs) == 2
    assert all((run / WINDOW / "rank0.steps.csv").exists() for run in runs)
    assert (both[0].folder / "runs/latest").resolve() in [run.resolve() for run in runs]


FORK = """
def used():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20

def compute(times):
    for _ in range(times):
        x + x

def in_child():
    compute(1000)
    before = used()
    compute(100_000)
    print("grew", used() - before, flush=True)
    with perfhooks.Profiler() as own:
        compute(7)
    print("saw", sum(event.count for event in own.key_averages() if event.key == "aten::add"), flush=True)
    sys.exit(3)

def fork():
    child = os.fork()
    if not child:
        in_child()
    print("code", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)

for stacks in False, True:
    train(f"stacks-{stacks}", fork, 5, steps=16, with_stack=stacks, background=False,
          schedule="wait=2 warmup=2 active=3 repeat=2")
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory of a process")
def test_a_child_forked_in_a_window_is_as_any_other(train):
    """It records nothing of its parent's window, may profile, and ends; the window goes on in the parent."""
    done = train(FORK).end()
    assert (done.code, done.warnings()) == (0, []), done.err
    lines = [line for line in done.out.splitlines() if not line.startswith("trained")]
    assert [line for line in lines if not line.startswith("grew")] == ["saw 7", "code 3"] * 2
    assert all(int(line.removeprefix("grew ")) < 12 for line in lines if line.startswith("grew"))
    assert "Toggling" not in done.err
    for run in ("stacks-False", "stacks-True"):
        for first in (4, 11):
            window = f"train-{first:06d}-{first + 2:06d}"
            assert done.facts(run, window)["partial"] is None
            assert done.steps(run, window) == [first, first + 1, first + 2]
