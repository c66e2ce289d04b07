"""What can go wrong around a training, each with a real process: what is kept, what is said, how the process ends."""

from __future__ import annotations

import csv
import gzip
import json
import os
import pty
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from warm import Process

from perfhooks.record.loop import wall_clock
from perfhooks.report.finishing.leftovers import finish_all

pytestmark = pytest.mark.process

HEAD = """
import os, signal, sys, time
import torch, perfhooks
torch.set_num_threads(1)
x = torch.ones(8, 8)
# the files that the tests look at: the page takes the most time of all
OPTIONS = dict(schedule="wait=2 warmup=2 active=3 repeat=1", out="runs", run="r", on_trace_ready=["trace", "steps"])

def ready():
    '''Handshake: say so, and wait until the test has done what it does.'''
    print("ready", flush=True)
    sys.stdin.readline()
"""
LOOP = """
with perfhooks.Profiler(**OPTIONS) as prof:
    for step in range(10):
        x @ x
        if step == AT:
            EVENT
        prof.step()
    print("trained", flush=True)
"""
WINDOW = Path("runs/r/train-000004-000006")
TIMEOUT = 120


class Training:
    """A training in a process of its own, in a folder of its own."""

    def __init__(self, channel, folder, script, **options):
        self.folder = folder
        file = folder / "train.py"
        file.write_text(HEAD + textwrap.dedent(script))
        self.process = Process(channel, file, is_whole=True, **options)

    def until_ready(self):
        for line in self.process.stdout:
            if line == "ready\n":
                return
        pytest.fail(f"not ready: {self.process.stderr.read()}")

    def end(self):
        """Let it go on, and wait for its end."""
        self.out, self.err = self.process.communicate("\n", timeout=TIMEOUT)
        self.code = self.process.returncode
        return self

    @property
    def warnings(self):
        """Our log lines at WARNING and above."""
        return [line for line in self.err.splitlines() if line.startswith(("WARNING perfhooks", "ERROR perfhooks"))]

    def facts(self, window=WINDOW):
        """The facts of the window, when the worker, which may outlive the training, has finished it."""
        path = self.folder / window / "rank0.capture.json"
        deadline = time.monotonic() + TIMEOUT
        while time.monotonic() < deadline:
            facts = json.loads(path.read_text())
            if facts["state"] == "done":
                return facts
            time.sleep(0.05)
        pytest.fail(f"{path} is not finished")

    def steps(self, window=WINDOW):
        with (self.folder / window / "rank0.steps.csv").open() as file:
            return [int(row["step"]) for row in csv.DictReader(file)]

    def marks(self, window=WINDOW):
        with gzip.open(self.folder / window / "rank0.pt.trace.json.gz", "rt") as file:
            events = json.load(file)["traceEvents"]
        return sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep"))


@pytest.fixture
def train(channel, tmp_path):
    started = []

    def start(script, **options):
        started.append(Training(channel, tmp_path, script, **options))
        return started[-1]

    yield start
    for training in started:
        training.process.close()


def script(event, at):
    return LOOP.replace("EVENT", event).replace("AT", str(at))


PHASES = {"wait": 1, "warmup": 2, "active": 5}


@pytest.mark.parametrize("phase", PHASES)
def test_exception(train, phase):
    """The traceback and exit code are the training's own; a window in its active steps is kept."""
    done = train(script("raise ValueError('bad batch')", PHASES[phase])).end()
    assert done.code == 1
    assert done.err.rstrip().splitlines()[-1] == "ValueError: bad batch" or "ValueError: bad batch" in done.err
    if phase == "active":
        assert done.facts()["partial"] == "ValueError: bad batch"
        assert done.steps() == [4]
        assert done.marks() == ["ProfilerStep#4", "ProfilerStep#5"]
    else:
        assert not (done.folder / WINDOW).exists()
    assert len(done.warnings) == 1


def test_keyboard_interrupt(train):
    training = train(script("ready()", 5))
    training.until_ready()
    training.process.send_signal(signal.SIGINT)
    done = training.end()
    assert done.code in (130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.err
    assert done.facts()["partial"] == "KeyboardInterrupt"
    assert len(done.warnings) == 1


ENDS = pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])


@ENDS
def test_sigterm(train, number):
    training = train(script("ready()", 5))
    training.until_ready()
    training.process.send_signal(number)
    done = training.end()
    assert done.code == -number
    assert done.facts()["partial"] == number.name
    assert done.steps() == [4]
    assert len(done.warnings) == 1


def test_ignored_sighup_ends_no_window(train):
    """As under `nohup`."""
    ignored = "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
    done = train(ignored + script("os.kill(os.getpid(), signal.SIGHUP)", 5)).end()
    assert done.code == 0
    assert done.facts()["partial"] is None
    assert done.steps() == [4, 5, 6]


def test_closed_terminal_keeps_the_window(tmp_path):
    """The system sends SIGHUP when the terminal of a session is closed, and the log has no place to go."""
    (tmp_path / "train.py").write_text(HEAD + textwrap.dedent(script("ready()", 5)))
    process, terminal = pty.fork()
    if not process:
        os.chdir(tmp_path)
        os.execv(sys.executable, [sys.executable, "train.py"])
    output = b""
    while b"ready" not in output:
        output += os.read(terminal, 1024)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGHUP
    facts = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("r/*/rank0.capture.json")]
    assert [each["partial"] for each in facts] == ["SIGHUP"]


@ENDS
@pytest.mark.parametrize("at", [1, 8])
def test_sigterm_between_windows_is_left_to_the_program(train, at, number):
    training = train(script(f"assert signal.getsignal({int(number)}) is signal.SIG_DFL; ready()", at))
    training.until_ready()
    training.process.send_signal(number)
    assert training.end().code == -number


def test_sigterm_handler_of_the_user_runs(train):
    """Theirs runs, and ours is not in its way; what they make of it decides what is kept."""
    own = "signal.signal(signal.SIGTERM, lambda *_: (print('mine', flush=True), sys.exit(3)))\n"
    training = train(own + script("ready()", 5))
    training.until_ready()
    training.process.send_signal(signal.SIGTERM)
    done = training.end()
    assert done.code == 3
    assert "mine" in done.out
    assert done.facts()["partial"] == "SystemExit: 3"


def test_sigterm_during_stop_waits_until_the_window_is_saved(train):
    """It waits until the window is saved; the naive handler crashes there."""
    slow = """
    import perfhooks.record.loop.window
    real = perfhooks.record.loop.window.Window.stop_trace
    def stop_trace(self):
        real(self)
        os.kill(os.getpid(), signal.SIGTERM)
    perfhooks.record.loop.window.Window.stop_trace = stop_trace
    """
    done = train(textwrap.dedent(slow) + script("pass", 0)).end()
    assert done.code == -signal.SIGTERM
    assert done.facts()["partial"] is None
    assert done.steps() == [4, 5, 6]
    assert "trained" not in done.out


@pytest.mark.parametrize(("times", "kept"), [(1, True), (2, False)])
def test_ctrl_c_during_stop_waits_until_the_window_is_saved(train, times, kept):
    """It waits until the window is saved; whoever presses it twice does not want to wait."""
    slow = f"""
    import perfhooks.record.loop.window
    real = perfhooks.record.loop.window.Window.save
    def spool(self, path):
        for _ in range({times}):
            os.kill(os.getpid(), signal.SIGINT)
        real(self, path)
    perfhooks.record.loop.window.Window.save = spool
    """
    done = train(textwrap.dedent(slow) + script("pass", 0)).end()
    assert done.code in (130, -signal.SIGINT)
    assert "KeyboardInterrupt" in done.err
    assert "trained" not in done.out
    assert (done.folder / WINDOW / "rank0.steps.csv").exists() is kept


def test_ctrl_c_has_its_usual_effect_after_perfhooks(train):
    same = "assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    assert train(script(same, 5) + same).end().code == 0


@pytest.mark.parametrize("code", [0, 7])
def test_sys_exit(train, code):
    done = train(script(f"sys.exit({code})", 5)).end()
    assert done.code == code
    assert done.facts()["partial"] == f"SystemExit: {code}"
    assert len(done.warnings) == 1


def lost(folder):
    """What a later look at the run says."""
    return [outcome.problem for outcome in finish_all(folder / "runs/r") if outcome.problem]


@pytest.mark.parametrize("kill", ["os._exit(9)", "os.kill(os.getpid(), signal.SIGKILL)"])
def test_a_killed_training_loses_only_the_window_being_recorded(train, kill):
    twice = script(kill, 9).replace("range(10)", "range(20)")
    twice = "OPTIONS['schedule'] = 'wait=1 warmup=1 active=2 repeat=3'\n" + twice
    done = train(twice).end()
    assert done.code in (9, -signal.SIGKILL)
    assert len(lost(done.folder)) == 0 or "lost" in lost(done.folder)[0]
    assert done.steps(Path("runs/r/train-000002-000003")) == [2, 3]
    assert done.steps(Path("runs/r/train-000006-000007")) == [6, 7]


def test_training_killed_while_recording_is_reported(train):
    done = train(script("os.kill(os.getpid(), signal.SIGKILL)", 5)).end()
    assert done.code == -signal.SIGKILL
    assert lost(done.folder) == ["the process ended during the recording: this window is lost"]


def test_report_finishes_unfinished_windows_once(train):
    """The worker is killed with the training, as when a whole node dies."""
    both = """
    import perfhooks.record.loop.worker
    send = perfhooks.record.loop.worker.Worker.send
    def kill_both(self, message):
        if hasattr(message, "folder"):
            os.kill(self.pid, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        send(self, message)
    perfhooks.record.loop.worker.Worker.send = kill_both
    """
    done = train(textwrap.dedent(both) + script("pass", 0)).end()
    command = [sys.executable, "-m", "perfhooks", "report", "runs/r"]
    first = subprocess.run(command, cwd=done.folder, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert "train-000004-000006 rank 0: finished now" in first.stdout
    assert done.steps() == [4, 5, 6]
    before = {path: path.stat().st_mtime_ns for path in done.folder.rglob("rank0.*")}
    second = subprocess.run(command, cwd=done.folder, capture_output=True, text=True, timeout=TIMEOUT, check=True)
    assert "finished now" not in second.stdout
    assert {path: path.stat().st_mtime_ns for path in done.folder.rglob("rank0.*")} == before


def killing_worker(times):
    return textwrap.dedent(
        f"""
        import perfhooks.record.loop.worker
        send, left = perfhooks.record.loop.worker.Worker.send, [{times}]
        def kill(self, message):
            if hasattr(message, "folder") and left[0]:
                left[0] -= 1
                os.kill(self.pid, signal.SIGKILL)
                self._process.wait()
            send(self, message)
        perfhooks.record.loop.worker.Worker.send = kill
        """
    )


def test_a_killed_worker_is_started_again(train):
    done = train(killing_worker(1) + script("pass", 0)).end()
    assert (done.code, done.warnings) == (0, [])
    assert done.err.count("was started again") == 1
    assert done.steps() == [4, 5, 6]


def test_a_worker_killed_every_time_leaves_the_rest_to_report(train):
    done = train(killing_worker(99) + script("pass", 0)).end()
    assert done.code == 0
    assert len(done.warnings) == 1
    assert "perfhooks report" in done.warnings[0]
    assert [outcome.finished_now for outcome in finish_all(done.folder / "runs/r")] == [True]
    assert done.steps() == [4, 5, 6]


HANDLERS = """
from dataclasses import dataclass
import time

@dataclass(frozen=True)
class Raises:
    def artifacts(self, capture, trace):
        raise RuntimeError("no luck")

@dataclass(frozen=True)
class Hangs:
    def artifacts(self, capture, trace):
        time.sleep(600)
"""


def test_raising_handler_does_not_affect_other_handlers(train, tmp_path):
    (tmp_path / "mine.py").write_text(HANDLERS)
    done = train("OPTIONS['on_trace_ready'] = ['mine:Raises', 'steps']\n" + script("pass", 0)).end()
    assert done.code == 0
    assert done.steps() == [4, 5, 6]
    assert len(done.warnings) == 1
    assert "handler 'mine:Raises' failed: RuntimeError: no luck" in done.warnings[0]


def test_blocked_handler_delays_the_exit_by_exit_timeout_only(train, tmp_path):
    (tmp_path / "mine.py").write_text(HANDLERS)
    options = "OPTIONS.update(on_trace_ready=['steps', 'mine:Hangs'], exit_timeout=1)\n"
    kill = "\nimport atexit; atexit.register(lambda: os.kill(worker, signal.SIGKILL))\n"
    remember = "worker = prof._course.windows.handover.tasks.worker.pid"
    # the exit handler that was registered first runs last: after ours
    training = train(kill + options + script(remember, 0))
    done = training.end()
    assert (done.code, done.warnings) == (0, [])
    assert "INFO perfhooks: report is still being written: " in done.err
    assert json.loads((done.folder / WINDOW / "rank0.capture.json").read_text())["state"] == "spooled"


FULL = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))"


def test_a_full_disk_while_spooling(train):
    """Kineto says nothing then; we do, and leave no half file."""
    done = train(script(FULL, 6)).end()
    assert (done.code, done.out) == (0, "trained\n")
    assert len(done.warnings) == 1
    assert "saving the trace" in done.warnings[0]
    assert "is the disk full?" in done.warnings[0]
    assert [path.name for path in (done.folder / WINDOW).iterdir()] == []


@pytest.mark.failing_worker
def test_a_full_disk_while_the_worker_writes(train, tmp_path):
    """The trace stays spooled, and is finished when there is room."""
    (tmp_path / "mine.py").write_text(
        "import resource\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass Full:\n"
        "    def artifacts(self, capture, trace):\n"
        "        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))\n        return []\n"
    )
    done = train("OPTIONS['on_trace_ready'] = ['mine:Full', 'operators', 'trace']\n" + script("pass", 0)).end()
    assert (done.code, len(done.warnings)) == (0, 1)
    assert "is not finished (OSError" in done.warnings[0]
    facts = json.loads((done.folder / WINDOW / "rank0.capture.json").read_text())
    assert facts["state"] == "spooled"
    assert not (done.folder / WINDOW / "rank0.pt.trace.json.gz").exists()


def test_folder_deleted_during_the_run_is_created_again(train):
    done = train(script("import shutil; shutil.rmtree('runs')", 2)).end()
    assert done.code == 0
    assert done.marks() == ["ProfilerStep#4", "ProfilerStep#5", "ProfilerStep#6"]


def test_a_working_directory_deleted_during_the_run(train):
    gone = "os.mkdir('gone'); OPTIONS['out'] = os.path.abspath('runs'); os.chdir('gone'); os.rmdir('../gone')\n"
    done = train(gone + script("pass", 0)).end()
    assert (done.code, done.warnings) == (0, []), done.err
    assert done.steps() == [4, 5, 6]


def test_folder_that_becomes_unwritable_is_one_line(train):
    done = train(script("import shutil; shutil.rmtree('runs'); open('runs', 'w').close()", 5)).end()
    assert (done.code, done.out) == (0, "trained\n")
    assert len(done.warnings) == 2, "one for the timeline, one for the trace"


def test_two_runs_started_in_the_same_second_do_not_mix(train):
    options = "OPTIONS['run'] = None\n"
    both = [train(options + script("pass", 0)), train(options + script("pass", 0))]
    assert [training.end().code for training in both] == [0, 0]
    runs = [path for path in (both[0].folder / "runs").iterdir() if not path.is_symlink()]
    assert len(runs) == 2
    assert all((run / WINDOW.name / "rank0.steps.csv").exists() for run in runs)
    assert (both[0].folder / "runs/latest").resolve() in [run.resolve() for run in runs]


def test_another_profiler_during_the_window_is_noted(train):
    event = (
        "inner = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); inner.start(); inner.stop()"
    )
    done = train(script(event, 5)).end()
    assert done.code == 0
    assert "another profiler ran during the window and took its events" in done.facts()["notes"]
    assert done.facts()["artifacts"] == []
    assert len(done.warnings) == 1


def test_running_profiler_of_the_program_is_not_changed(train):
    left = "outer = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]); outer.start()\n"
    done = train(left + script("pass", 0) + "outer.stop()\nassert len(outer.events())\n").end()
    assert done.code == 0, done.err
    assert len([line for line in done.warnings if "another profiler is recording" in line]) == 1


def test_a_device_that_stops_collecting_is_noted(train):
    """Faked: Kineto says so after a buffer overflow on a GPU only."""
    fake = """
    if hasattr(torch.autograd, "_is_kineto_stopped"):
        torch.autograd._is_kineto_stopped = lambda: step == 4
        init = torch.profiler.profile.__init__
        def with_device(self, **options):
            init(self, **options)
            self.use_device = "cuda"
            self.prepare_trace = lambda: (setattr(self, "use_device", None), type(self).prepare_trace(self),
                                          setattr(self, "use_device", "cuda"))
            self.action_map = {key: [self.prepare_trace if getattr(a, "__name__", "") == "prepare_trace" else a
                                     for a in actions] for key, actions in self.action_map.items()}
        torch.profiler.profile.__init__ = with_device
    """
    done = train(textwrap.dedent(fake) + script("pass", 0)).end()
    if "stopped early" not in done.err:
        pytest.skip("this torch does not report it")
    assert done.code == 0
    assert any("stopped collecting from the device" in note for note in done.facts()["notes"])


def test_clock_set_during_a_window_marks_that_window(train):
    """The recorder goes by it, so that steps would take an hour; faked, as a test may not set it."""
    fake = """
    from perfhooks.record.loop import wall_clock
    real = wall_clock.time.time
    wall_clock.time = type("", (), {"time": lambda: real() + 3600 * (step == 3), "perf_counter": time.perf_counter})
    """
    options = 'OPTIONS.update(schedule="wait=1 warmup=1 active=2 repeat=2")\n'
    done = train(textwrap.dedent(fake) + options + script("pass", 0)).end()
    assert done.code == 0, done.err
    (line,) = done.warnings
    assert "train-000002-000003 has no trace: the clock of this machine was changed by +3600.000 s" in line
    assert done.facts(Path("runs/r/train-000002-000003"))["artifacts"] == []
    assert done.steps(Path("runs/r/train-000006-000007")) == [6, 7]


@pytest.mark.parametrize(
    ("moved_s", "recorded_s", "is_doubtful"),
    [(0.0008, 0.001, False), (0.002, 0.001, True), (0.9, 100.0, False), (-1.5, 100.0, True), (1.5, 100.0, True)],
)
def test_clock_that_drifts_marks_no_window(monkeypatch, moved_s, recorded_s, is_doubtful):
    """Up to 1% of what was recorded, and a millisecond for the readings; beyond that it was set, forward or back."""
    monkeypatch.setattr(wall_clock, "ahead_s", lambda: 7.0 + moved_s)
    assert (f"{moved_s:+.3f} s" in wall_clock.describe_change(7.0, recorded_s)) == is_doubtful
    assert bool(wall_clock.describe_change(7.0, recorded_s)) == is_doubtful


def test_data_loader_workers_forked_while_recording(train):
    loop = """
    data = torch.utils.data.TensorDataset(torch.ones(20, 8))
    loader = torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork")
    with perfhooks.Profiler(**{**OPTIONS, "schedule": "wait=0 warmup=0 active=3 repeat=3"}) as prof:
        for (batch,) in prof.steps(loader):
            batch @ x
    """
    done = train(loop).end()
    assert (done.code, done.warnings) == (0, [])
    for first in (0, 3, 6):
        assert done.steps(Path(f"runs/r/train-{first:06d}-{first + 2:06d}")) == [first, first + 1, first + 2]


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

OPTIONS["schedule"] = "wait=2 warmup=2 active=3 repeat=2"
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="asks Linux for the memory of a process")
@pytest.mark.parametrize("stacks", [False, True])
def test_a_child_forked_in_a_window_is_as_any_other(train, stacks):
    """It records nothing of its parent's window, may profile, and ends; the window goes on in the parent."""
    options = f"OPTIONS['with_stack'] = {stacks}\n"
    done = train(FORK + options + script("fork()", 5).replace("range(10)", "range(16)")).end()
    assert (done.code, done.warnings) == (0, []), done.err
    grew, *rest = done.out.splitlines()
    assert int(grew.removeprefix("grew ")) < 12
    assert rest == ["saw 7", "code 3", "trained"]
    assert "Toggling" not in done.err
    for first in (4, 11):
        window = Path(f"runs/r/train-{first:06d}-{first + 2:06d}")
        assert done.facts(window)["partial"] is None
        assert done.steps(window) == [first, first + 1, first + 2]


def test_an_interpreter_that_exits_with_the_profiler_open(train):
    loop = """
    prof = perfhooks.Profiler(**OPTIONS)
    prof.start()
    for step in range(6):
        x @ x
        prof.step()
    """
    done = train(loop).end()
    assert done.code == 0
    assert done.facts()["partial"] == "the interpreter exited"
    assert len(done.warnings) == 1


def test_use_after_stop_does_nothing(train):
    loop = """
    prof = perfhooks.Profiler(**OPTIONS)
    prof.stop()
    prof.start(); prof.start(); prof.stop(); prof.stop()
    for _ in range(10):
        with prof.region("forward"):
            prof.step()
    """
    done = train(loop).end()
    assert done.code == 0
    assert len(done.warnings) == 1
    assert "no window has been recorded" in done.warnings[0]
    assert not list(done.folder.glob("runs/r/train*"))


def test_the_profiler_in_a_thread(train):
    loop = """
    import threading
    def work():
        with perfhooks.Profiler(**OPTIONS) as prof:
            for _ in range(10):
                x @ x
                prof.step()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    """
    done = train(loop).end()
    assert (done.code, done.warnings) == (0, [])
    assert done.steps() == [4, 5, 6]


def test_worker_ignores_a_module_in_the_working_directory(train, tmp_path):
    (tmp_path / "polars.py").write_text("raise RuntimeError('stray')\n")
    (tmp_path / "elsewhere").mkdir()
    done = train("sys.path.remove(os.getcwd())\n" + script("pass", 0)).end()
    assert (done.code, done.warnings) == (0, [])
    assert done.steps() == [4, 5, 6]


def test_ctrl_c_does_not_reach_the_worker(train):
    """The terminal sends it to the whole process group; the worker is in a group of its own."""
    training = train(script("ready()", 8), is_leader=True)
    training.until_ready()
    os.killpg(training.process.pid, signal.SIGINT)
    done = training.end()
    assert done.facts()["partial"] is None
    assert done.steps() == [4, 5, 6]
