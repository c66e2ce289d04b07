"""The child process that makes the files: whatever becomes of it, the training continues and nothing is lost."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perfhooks import Profiler
from perfhooks.record.loop.tasks import QUEUE, Tasks
from perfhooks.record.loop.worker import Priority, Worker, spawn
from perfhooks.report.finishing import serving
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.report.finishing.messages import FinishWindow, WriteSteps, encode
from perfhooks.run.capture import Place

pytestmark = pytest.mark.process

TIMEOUT = 250


@pytest.fixture
def worker(tmp_path):
    made = Worker(tmp_path / "worker.log")
    yield made
    if made.exit_code is None:
        os.kill(made.pid, signal.SIGKILL)
    made.leave(TIMEOUT)


def answers(worker):
    deadline = time.monotonic() + TIMEOUT
    while time.monotonic() < deadline:
        if found := worker.answers(1.0):
            return found
    pytest.fail("no answer")


def test_stuck_worker_does_not_block_the_training(worker):
    """A pipe is full after some hundred messages; the rest waits here. An invalid answer is ignored."""
    worker._unparsed = b"{torn\nhello\n[1]\n"
    os.kill(worker.pid, signal.SIGSTOP)
    for _ in range(5_000):
        worker.send(WriteSteps("nowhere.raw", "nowhere.csv"))
    os.kill(worker.pid, signal.SIGCONT)
    answer = answers(worker)[0]
    assert answer.task == "nowhere.raw"
    assert "nowhere.raw" in answer.problem


def test_worker_ends_although_a_forked_child_has_the_channel(worker):
    """As the workers of a data loader have, for as long as the training takes."""
    child = os.fork()
    if not child:
        time.sleep(TIMEOUT)
        os._exit(0)
    try:
        worker.send(WriteSteps("nowhere.raw", "nowhere.csv"))
        worker.close()
        assert answers(worker)[0].task == "nowhere.raw"
        deadline = time.monotonic() + TIMEOUT
        while worker.exit_code is None and time.monotonic() < deadline:
            time.sleep(0.05)
        assert worker.exit_code == 0
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this Linux compares no sessions")
def test_worker_has_a_low_priority_until_the_program_or_a_request_waits(tmp_path):
    """The priority of its session, because Linux compares sessions first."""
    tasks = Tasks(bool, "raise")
    tasks.open(tmp_path / "worker.log")
    group = Path(f"/proc/{tasks.worker.pid}/autogroup")

    def nice_after(act):
        for _ in range(3):  # Linux permits one change per 0.1 s
            act()
            time.sleep(0.12)
        return int(group.read_text().split()[-1])

    os.kill(tasks.worker.pid, signal.SIGSTOP)
    windows = [FinishWindow(str(tmp_path / name), 0) for name in "abc"]
    assert nice_after(lambda: tasks.send(windows[0])) == 19
    assert nice_after(lambda: tasks.send(windows[1])) == 19
    assert nice_after(lambda: tasks.send(windows[2])) == 10
    assert nice_after(lambda: tasks.wait(0.01, is_loud=False)) == 0
    assert nice_after(tasks.poll) == 10
    assert nice_after(lambda: tasks.send(windows[0], is_requested=True)) == 0
    assert nice_after(tasks.poll) == 0
    del tasks.pending[windows[0].task]
    assert nice_after(tasks.poll) == 19, "the request is done"
    os.kill(tasks.worker.pid, signal.SIGCONT)
    tasks.leave(TIMEOUT)


@pytest.mark.skipif(not Path("/proc/self/autogroup").exists(), reason="this Linux compares no sessions")
def test_worker_of_an_ended_training_has_the_usual_priority(tmp_path):
    """It has no training to disturb. On a busy machine, a low priority would delay its report by minutes."""
    script = f"""
        import os, time
        from pathlib import Path
        from perfhooks.record.loop.tasks import Tasks
        from perfhooks.report.finishing.messages import FinishWindow
        tasks = Tasks(bool, "raise")
        tasks.open(Path("worker.log"))
        group = Path(f"/proc/{{tasks.worker.pid}}/autogroup")
        tasks.send(FinishWindow("nowhere", 0))
        tasks.wait({TIMEOUT})  # with a low priority, the imports of the worker would take minutes on a busy machine
        if not os.fork():  # the channel stays open, and the worker waits for messages
            time.sleep({TIMEOUT})
            os._exit(0)
        while group.read_text().split()[-1] != "19":
            tasks.send(FinishWindow("nowhere", 0))
            time.sleep(0.12)
        print(tasks.worker.pid, flush=True)
        os._exit(0)
    """
    words = [sys.executable, "-c", textwrap.dedent(script)]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, start_new_session=True) as training:
        worker = int(training.stdout.readline())
        try:
            training.wait(TIMEOUT)
            group, deadline = Path(f"/proc/{worker}/autogroup"), time.monotonic() + TIMEOUT
            while group.read_text().split()[-1] != "0":
                assert time.monotonic() < deadline
                time.sleep(0.05)
        finally:
            os.killpg(training.pid, signal.SIGKILL)
            os.kill(worker, signal.SIGKILL)


def test_worker_that_is_left_behind_has_the_usual_priority():
    tasks, calls = Tasks(bool, "raise"), []
    tasks.worker = SimpleNamespace(close=bool, set_priority=calls.append, leave=calls.append)
    tasks.pending["w"] = FinishWindow("w", 0)
    assert not tasks.leave(0)
    assert calls == [Priority.NORMAL, 0.0]


def test_worker_waits_for_messages_on_a_channel_without_blocking(tmp_path, monkeypatch):
    """As gevent makes each socket of a program. Until then it has done no more than to lower its priority."""
    pair = socket.socketpair

    def without_blocking():
        ours, theirs = pair()
        os.set_blocking(theirs.fileno(), False)
        return ours, theirs

    monkeypatch.setattr(socket, "socketpair", without_blocking)
    worker = Worker(tmp_path / "worker.log")
    own, deadline = os.getpriority(os.PRIO_PROCESS, 0), time.monotonic() + TIMEOUT
    while os.getpriority(os.PRIO_PROCESS, worker.pid) < min(own + 10, 19) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert os.getpriority(os.PRIO_PROCESS, worker.pid) == min(own + 10, 19)
    worker.send(WriteSteps("nowhere.raw", "nowhere.csv"))
    assert answers(worker)[0].task == "nowhere.raw"
    worker.leave(TIMEOUT)
    assert (tmp_path / "worker.log").read_text().count("BlockingIOError") == 0


def test_closed_descriptors_end_the_worker_without_an_exception(worker):
    os.close(worker._channel.fileno())
    worker.send(WriteSteps("nowhere.raw", "nowhere.csv"))
    assert worker.answers(0.1) == []
    assert worker.is_gone


def test_training_survives_its_own_odd_environment(tmp_path, run_script):
    """SIGPIPE at its default, 1,100 open files, a stray json.py and a sitecustomize that prints, and a dead worker."""
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text("print('{\"task\": 1}\\nhello')\n")
    script = """
        import os, resource, signal, sys, time
        import torch, perfhooks
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
        many = [open(os.devnull) for _ in range(1100)]
        os.environ["PYTHONPATH"] = os.pathsep.join([os.path.abspath("site"), os.environ.get("PYTHONPATH", ""), ""])
        open("json.py", "w").write("raise RuntimeError('stray')\\n")
        with perfhooks.Profiler(schedule="wait=2 warmup=0 active=1 repeat=3", out="runs", run="r") as prof:
            worker = prof._course.windows.handover.tasks.worker
            os.kill(worker.pid, signal.SIGSTOP)  # it has not finished the first window when it dies
            for step in range(12):
                torch.ones(3) + 1
                if step == 4:
                    os.kill(worker.pid, signal.SIGKILL)
                    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)
                prof.step()
        print("trained", prof.wait(250), len(many))
    """
    done = run_script(script, is_whole=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, "trained True 1100\n"), done.stderr
    assert done.stderr.count("was started again") == 1
    windows = sorted(path.parent.name for path in tmp_path.glob("runs/r/*/rank0.steps.csv"))
    assert windows == ["train-000002-000002", "train-000005-000005", "train-000008-000008"]
    assert "hello" in (tmp_path / "runs/r/rank0.worker.log").read_text()


LITTLE = """
    import os, resource, sys

    def leave(megabytes):
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), resource.RLIM_INFINITY))
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the system does not hold to the limit")
@pytest.mark.failing_worker
def test_little_address_space_keeps_training_and_saved_traces(tmp_path, run_script):
    """First too little for the recorder, then enough for it, and too little for any worker."""
    (tmp_path / "site").mkdir()
    little = textwrap.dedent(LITTLE)
    (tmp_path / "site/sitecustomize.py").write_text(little + "if sys.argv[0] == '-c':\n    leave(20)\n")
    (tmp_path / "little.py").write_text(little)
    script = """
        import os, sys
        import torch, perfhooks
        from little import leave
        os.environ["PYTHONPATH"] = os.pathsep.join([os.path.abspath("site"), os.environ.get("PYTHONPATH", "")])

        def train(after):
            torch.manual_seed(7)
            model = torch.nn.Linear(8, 8)
            optimizer = torch.optim.Adam(model.parameters())
            for step in range(12):
                model(torch.randn(4, 8)).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                after()
            return torch.cat([each.flatten() for each in model.parameters()])

        def profiled(run):
            with perfhooks.Profiler(schedule="wait=2 warmup=1 active=1 repeat=2", out="runs", run=run) as prof:
                return torch.equal(train(lambda: (prof.step(), prof.wait())), bare)

        bare = train(int)
        leave(8)
        print(profiled("tiny"))
        print("--", file=sys.stderr)
        leave(100)
        print(profiled("small"))
    """
    done = run_script(script)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n"), done.stderr
    assert "Traceback" not in done.stderr
    said = [line for line in done.stderr.partition("--\n")[2].splitlines() if line.startswith("WARNING")]
    assert len(said) == 2, done.stderr
    later = "`perfhooks report` finishes the remaining windows"
    assert said[0].endswith(f"died twice in the same task, runs/small/train-000003-000003: {later}")
    assert "perfhooks starts no further worker" in said[1]
    outcomes = [(outcome.finished_now, outcome.problem) for outcome in finish_all(tmp_path / "runs/small")]
    assert outcomes == [(True, ""), (True, "")]


def test_ten_consecutive_profilers_leave_no_worker(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pids = []
    for _ in range(3):
        with Profiler(schedule="wait=0 warmup=0 active=1 repeat=1", out="runs", on_trace_ready="steps") as prof:
            prof.step()
            pids.append(prof._course.windows.handover.tasks.worker.pid)
    deadline = time.monotonic() + TIMEOUT
    while any(map(_is_there, pids)) and time.monotonic() < deadline:
        prof.wait(0)
        time.sleep(0.05)
    assert not any(map(_is_there, pids)), "neither running nor a zombie"


def _is_there(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_window_that_kills_all_workers_costs_only_itself(tmp_path, monkeypatch, caplog):
    (tmp_path / "mine.py").write_text(
        "import os\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass Kills:\n"
        "    def artifacts(self, capture, trace):\n"
        "        if capture.first == 1:\n            os._exit(9)\n        return []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with Profiler(
        schedule="wait=1 warmup=0 active=1 repeat=3", out="runs", run="r", on_trace_ready=["mine:Kills", "steps"]
    ) as prof:
        for _ in range(8):
            torch.ones(3) + 1
            prof.step()
    assert prof.wait(TIMEOUT)
    made = sorted(path.parent.name for path in tmp_path.glob("runs/r/*/rank0.steps.csv"))
    assert made == ["train-000003-000003", "train-000005-000005"]
    assert [record.levelname for record in caplog.records if "died twice" in record.message] == ["WARNING"]


ANSWERS = """
import json, os, sys
with os.fdopen(int(sys.argv[2]), "r+b", buffering=0) as channel:
    for line in channel:
        channel.write(json.dumps({"task": json.loads(line)["folder"]}).encode() + b"\\n")
"""
"""A worker without a delay, which says that it has done what it was told."""


def test_workers_that_die_rarely_are_replaced(tmp_path, monkeypatch):
    """Three in a row are the end of it; three in a month, each after windows that were finished, are not."""
    monkeypatch.setattr("perfhooks.record.loop.worker._BOOTSTRAP", ANSWERS)
    done = []
    tasks = Tasks(done.append, "raise")
    tasks.open(tmp_path / "worker.log")
    for number in range(5):
        place = Place(tmp_path / f"train-{number}")
        tasks.send(FinishWindow(str(place.folder), 0))
        assert tasks.wait(TIMEOUT)
        assert done[-1:] == [place]
        os.kill(tasks.worker.pid, signal.SIGKILL)
        os.waitid(os.P_PID, tasks.worker.pid, os.WEXITED | os.WNOWAIT)
    tasks.leave(TIMEOUT)


def test_slow_polls_are_seldom_unless_the_queue_is_full(monkeypatch):
    """A poll of 0.3 s is followed by none for 30 s of training."""
    now, polls, tasks = [0.0], [], Tasks(print, "raise")
    monkeypatch.setattr("perfhooks.record.loop.tasks.time.monotonic", lambda: now[0])

    def poll():
        polls.append(now[0])
        now[0] += 0.3

    monkeypatch.setattr(tasks, "poll", poll)
    for _ in range(400):
        now[0] += 0.1
        tasks.poll_seldom()
    assert len(polls) == 2
    for number in range(QUEUE):
        tasks.pending[str(number)] = FinishWindow(str(number), 0)
    tasks.poll_seldom()
    assert len(polls) == 3


def test_a_worker_that_is_moved_ends_and_another_takes_its_place(tmp_path):
    tasks = Tasks(print, "raise")
    tasks.open(tmp_path / "worker.log")
    first = tasks.worker._process
    tasks.move(tmp_path / "elsewhere.log")
    assert tasks.worker.pid != first.pid
    assert first.wait(TIMEOUT) == 0
    tasks.leave(TIMEOUT)


def test_worker_has_no_device_and_no_modules_of_the_training(tmp_path, monkeypatch):
    devices = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    tools = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH", "KINETO_USE_DAEMON", "PERFHOOKS_RUN")
    for name in (*devices, *tools, "OMP_NUM_THREADS", "A_KEY_OF_THE_USERS"):
        monkeypatch.setenv(name, "8")
    monkeypatch.setattr(
        "perfhooks.record.loop.worker._BOOTSTRAP", "import json, os; print(json.dumps(dict(os.environ)))"
    )
    made = Worker(tmp_path / "worker.log")
    made.leave(TIMEOUT)
    assert made.exit_code == 0
    found = json.loads((tmp_path / "worker.log").read_text())
    assert [found[name] for name in devices] == ["", "", ""]
    assert not set(tools) & set(found)
    assert (found["OMP_NUM_THREADS"], found["POLARS_MAX_THREADS"], found["A_KEY_OF_THE_USERS"]) == ("1", "1", "8")


def test_training_makes_the_files_if_no_worker_can_start(tmp_path, monkeypatch):
    """In a frozen application ``sys.executable`` would be the application again, and again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "frozen", True, raising=False)
    with Profiler(schedule="wait=0 warmup=0 active=1 repeat=1", out="runs", run="r", on_trace_ready="steps") as prof:
        prof.step()
        assert (tmp_path / "runs/r/train-000000-000000/rank0.steps.csv").exists()


def test_unfinished_windows_wait_for_report(tmp_path, monkeypatch):
    """A worker that dies at once, always: eight windows in the queue were the end of profiling."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("perfhooks.record.loop.worker._BOOTSTRAP", "import os; os._exit(3)")
    with Profiler(schedule="wait=1 warmup=0 active=1 repeat=12", out="runs", run="r", on_trace_ready="steps") as prof:
        for _ in range(24):
            torch.ones(3) + 1
            prof.step()
            prof.wait(TIMEOUT)  # for the death of its worker: windows that wait for one that dies slowly are skipped
    outcomes = [outcome.finished_now for outcome in finish_all(tmp_path / "runs/r")]
    assert outcomes == [True] * 12


def test_worker_checks_its_training_once_per_second(monkeypatch):
    """It has no processor of its own to look all the time, and gives its last window a quarter of an hour."""
    slept = []
    there = iter([7, 7, 7, 1])
    monkeypatch.setattr(serving, "os", SimpleNamespace(getppid=lambda: next(there), _exit=slept.append))
    monkeypatch.setattr(serving, "time", SimpleNamespace(sleep=slept.append))
    monkeypatch.setattr(serving, "_raise_priority", lambda: slept.append("priority"))
    serving._exit_when_orphaned(7)
    assert slept == [1, 1, 1, "priority", 900, 1]


def test_worker_of_an_ended_training_ends_after_its_handler():
    """Also where the training had ended before the worker asked; what it writes after that nobody hears."""
    hanging = (
        "import sys, threading; from perfhooks.report.finishing import serving; serving.ORPHAN_TIMEOUT_S = 0; "
        "serving._problem = lambda *_: threading.Event().wait(); "
        "serving.serve(b'', int(sys.argv[1]))"
    )
    training = subprocess.Popen([sys.executable, "-c", "pass"])
    training.wait(TIMEOUT)
    tasks, ours = os.pipe()
    with os.fdopen(ours, "wb", buffering=0) as channel, os.fdopen(tasks, "rb") as given:
        channel.write(encode(WriteSteps(steps="a", timeline="b")))  # the worker may have ended before we come to it
        with subprocess.Popen([sys.executable, "-c", hanging, str(training.pid)], stdin=given) as worker:
            assert worker.wait(TIMEOUT) == 1


def test_waiting_windows_share_one_report(monkeypatch, tmp_path):
    written = []
    monkeypatch.setattr(serving.page, "is_due", lambda _: True)
    monkeypatch.setattr(serving, "write_page", lambda run, _: written.append(run.folder))
    reports = serving.Reports()
    for name in ("train-000001-000002", "train-000004-000005"):
        reports.add(FinishWindow(str(tmp_path / "r" / name), 0))
    reports.write()
    reports.write()
    assert written == [tmp_path / "r"]


def test_inbox_returns_one_message_at_a_time(monkeypatch):
    chunks = [b"two\nthr", b"ee\n", b""]
    ready = SimpleNamespace(select=lambda *_: ([0] if len(chunks) > 1 else [], [], []))
    monkeypatch.setattr(serving, "os", SimpleNamespace(read=lambda *_: chunks.pop(0)))
    monkeypatch.setattr(serving, "select", ready)
    inbox = serving.Inbox(b"one\n")
    assert [(inbox.read(), inbox.is_empty) for _ in range(4)] == [
        (b"one", False),
        (b"two", False),
        (b"three", True),
        (b"", True),
    ]


def test_training_imports_the_trace_reader_only_on_use(run_script):
    """Each module that the training does not import saves CPU time at its start."""
    late = "perfhooks.trace.reading.reader", "perfhooks.trace.tables", "polars", "perfhooks.report.finishing.finish"
    code = f"import sys, perfhooks.record.loop.profiler; print([name for name in {late} if name in sys.modules])"
    assert run_script(code).stdout == "[]\n"


def test_debugger_does_not_change_the_command_of_the_worker(monkeypatch):
    """As debugpy does, which starts each Python that a program starts under its debugger."""
    commands = []
    begin = subprocess.Popen.__init__

    def init(self, command, **options):
        commands.append(command)
        begin(self, command, **options)

    monkeypatch.setattr(subprocess.Popen, "__init__", init)
    monkeypatch.setenv("COVERAGE_PROCESS_START", "rc")
    ours, theirs = socket.socketpair()
    code = "import os; print(os.environ.get('COVERAGE_PROCESS_START'))"
    with ours, theirs:
        child = spawn(["-c", code], theirs, out=subprocess.PIPE, error=subprocess.DEVNULL)
        assert child.communicate(timeout=300)[0].strip() == b"None"
    assert "python" not in commands[0][0]
