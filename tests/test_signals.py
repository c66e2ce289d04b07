"""Signals: a training ends as fast as without us, and what its own handlers raise is its own."""

from __future__ import annotations

import _thread
import functools
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.profiler import ProfilerActivity
from warm import Process

from perfhooks import Profiler
from perfhooks.core.handlers import contained, is_of_handler
from perfhooks.record.loop import labelling, request_signal
from perfhooks.record.loop.ending import lifetime, signals
from perfhooks.record.loop.limits import other_threads
from perfhooks.trace import read

pytestmark = pytest.mark.process

X = torch.ones(8, 8)
TIMEOUT = 300

WAITING = """
import ctypes, sys, torch, torch.distributed as dist, perfhooks
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
with perfhooks.Profiler(schedule="wait=0 warmup=0 active=5", out="runs", run="r", background=False) as prof:
    for step in range(3):
        if step == 1:
            print("ready", flush=True)
            if rank == 0:
                dist.barrier()
            mutex, system = ctypes.create_string_buffer(256), ctypes.CDLL(None)
            system.pthread_mutex_lock(mutex)
            system.pthread_mutex_lock(mutex)  # for ever, whatever signal comes
        prof.step()
"""


def until_it_sleeps(pid):
    """Wait until its main thread has neither run nor wanted to for a while: it is in the call that does not return."""
    until, quiet = time.monotonic() + TIMEOUT, 0
    while quiet < 10:
        assert time.monotonic() < until
        time.sleep(0.05)
        quiet = quiet + 1 if Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] == "S" else 0


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_sigterm_ends_blocked_ranks_as_without_perfhooks(tmp_path, channel):
    """The main thread is in a call that does not return, so no Python handler comes to run; so is the other's."""
    script = tmp_path / "train.py"
    script.write_text(WAITING)
    both = [Process(channel, script, rank, tmp_path / "meet") for rank in "01"]
    try:
        for each in both:
            assert each.stdout.readline() == "ready\n"
        for each in both:
            until_it_sleeps(each.pid)
        for each in both:
            each.send_signal(signal.SIGTERM)
            # It is given half a second to come out of C code. With a Python handler alone the first would wait for the
            # other one, and the other one for ever.
            assert each.wait(TIMEOUT) == -signal.SIGTERM
    finally:
        for each in both:
            each.close()
    assert not list((tmp_path / "runs/r").glob("train-*/*.capture.json")), "nobody can end a recorder from outside"


OWN = """
import os, signal, time, torch, perfhooks, perfhooks.record.loop.window as window
with perfhooks.Profiler(schedule="wait=0 warmup=0 active=9", out="runs", run="fork", background=False):
    child = os.fork()
    if not child:
        time.sleep(100)
        os._exit(0)
    os.kill(child, signal.SIGTERM)
    print("child", os.waitpid(child, 0)[1])
    time.sleep(1.0)  # longer than a main thread may take to come to a signal of its own
    torch.ones(3) + 1
class Preempted(Exception): pass
def handler(number, frame):
    raise Preempted(number)
real, when = window.Window.save, signal.SIGALRM
def save(self, path):
    os.kill(os.getpid(), when)
    real(self, path)
window.Window.save = save
for when in (signal.SIGALRM, signal.SIGUSR1):
    signal.signal(when, handler)
    prof = perfhooks.Profiler(schedule="wait=0 warmup=0 active=2 repeat=2", out="runs", run=when.name, background=False)
    try:
        with prof:
            for _ in range(10):
                torch.ones(3) + 1
                prof.step()
    except Preempted as error:
        print(when.name, error, prof.step_num, signal.getsignal(when) is handler)
os.kill(os.getpid(), signal.SIGTERM)
"""


def test_exception_of_a_handler_during_saving_keeps_the_window(tmp_path, run_script):
    """And a child that is terminated in a window, as the workers of a data loader are, ends no other process."""
    done = run_script(OWN)
    handled = [f"{name} {getattr(signal, name)} 2 True" for name in ("SIGALRM", "SIGUSR1")]
    assert done.stdout.splitlines() == [f"child {int(signal.SIGTERM)}", *handled], done.stderr
    assert done.returncode == -signal.SIGTERM, "nothing is held back any more"
    for name in ("fork", "SIGALRM", "SIGUSR1"):
        assert list((tmp_path / "runs" / name).glob("train-*/rank0.steps.csv"))


def _interrupted_at(line, act):
    """Do something with a Ctrl-C at the n-th line of our code for signals; whether there was such a line."""
    left = [line]

    def trace(frame, event, _):
        if frame.f_code.co_filename == signals.__file__ and event == "line":
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGINT)
        return trace

    before = sys.gettrace()
    try:
        sys.settrace(trace)
        act()
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(before)
    return left[0] <= 0


def test_ctrl_c_at_any_moment_restores_signals():
    def work():
        with lifetime.busy(), lifetime.busy():
            pass

    own = signal.signal(signal.SIGUSR1, lambda number, frame: None)
    mine = signal.getsignal(signal.SIGUSR1)
    try:
        line = 1
        while _interrupted_at(line, work):
            assert signals.deferral._depth == 0, line
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, line
            assert signal.getsignal(signal.SIGUSR1) is mine, line
            line += 1
        assert line > 20
    finally:
        signal.signal(signal.SIGUSR1, own)


def test_event_loop_with_signal_handling_stays_unchanged():
    """There is one place to be told; SIGTERM then ends the training at once, as without us."""
    import socket

    hear, tell = socket.socketpair()
    tell.setblocking(False)
    signal.set_wakeup_fd(tell.fileno())
    try:
        with Profiler(schedule="wait=0 warmup=0 active=9", on_trace_ready=lambda w: None) as prof:
            prof.step()
            assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        assert signal.set_wakeup_fd(-1) == tell.fileno()
    finally:
        hear.close()
        tell.close()


def test_a_window_that_ends_leaves_no_thread_and_no_handler():
    before, started = threading.active_count(), _thread._count()
    with Profiler(schedule="wait=0 warmup=0 active=2 repeat=1", on_trace_ready=lambda w: None) as prof:
        assert signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
        prof.step()
        prof.step()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert signal.set_wakeup_fd(-1) == -1
    assert threading.active_count() <= before
    until = time.monotonic() + TIMEOUT
    while _thread._count() > started and time.monotonic() < until:
        time.sleep(0.01)
    assert _thread._count() <= started, "threads of other tests may have ended meanwhile"


def test_threads_of_perfhooks_are_not_recorded(tmp_path):
    """Torch records the Python frames of every thread that is there, also of those that wait."""
    threads = []
    for profile in (torch.profiler.profile, Profiler):
        with profile(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
            assert profile is not Profiler or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL
            X.relu()
        path = tmp_path / f"{profile.__module__}.json"
        prof.export_chrome_trace(str(path))
        threads.append({thread.tid for thread in read(path).threads if isinstance(thread.tid, int)})
    assert not threads[1] - threads[0], "threads of other tests may have ended meanwhile"
    assert threading.get_native_id() in threads[1]


def in_thread(act):
    thread = threading.Thread(target=act, name="trainer")
    thread.start()
    thread.join()


def test_steps_in_another_thread_are_reported(caplog):
    prof = Profiler(on_trace_ready=lambda window: None)
    prof.start()
    in_thread(lambda: [prof.step() for _ in range(3)])
    (said,) = [record.message for record in caplog.records]
    assert (
        "the window of step 1 cannot continue: it records the thread 'MainThread', but was called from 'trainer'"
        in said
    )
    in_thread(prof.stop)
    assert "the window cannot end here" in caplog.text
    prof.stop()
    assert not torch._C._autograd._profiler_enabled()


@pytest.mark.skipif(torch.__version__.startswith("2.4"), reason="no recorder begins any more in such a process")
def test_window_of_an_ended_thread_is_reported_as_lost(caplog):
    caplog.set_level(logging.INFO, "perfhooks")
    seen = []
    prof = Profiler(on_trace_ready=lambda window: seen.append(window.notes))
    in_thread(prof.start)
    prof.stop()
    assert seen == [["the recorded thread has ended, so its events are lost"]]
    with Profiler(activities=["cpu"]) as after:
        X @ X
    assert {event.name for event in after.events()} >= {"aten::mm"}


def test_warm_up_in_another_thread_moves_to_the_training_thread():
    seen = []
    prof = Profiler(
        schedule="wait=0 warmup=1 active=2 repeat=1",
        on_trace_ready=lambda w: seen.append([event.name for event in w.events()].count("aten::mm")),
    )
    prof.start()
    in_thread(lambda: [(X @ X, prof.step()) for _ in range(4)])
    prof.stop()
    assert seen == [2]


def test_no_thread_waits_in_c_with_greenlets(monkeypatch):
    """gevent replaces the function: what is started shares the main thread, and a wait in C would block the program."""
    started = []
    monkeypatch.setattr("_thread.start_new_thread", lambda *given: started.append(given))
    assert not signals._SignalThread().begin()
    assert not started
    monkeypatch.setattr(threading, "enumerate", lambda: [threading.Thread()])
    assert not other_threads.has_other_threads()


class ExpiredError(TimeoutError):
    """What a handler of the program raises."""


@pytest.fixture
def expire():
    """Raise in a handler of the program, inside whatever function is called."""

    def handler(*_):
        raise ExpiredError

    before = signal.signal(signal.SIGALRM, handler)
    yield lambda *_: signal.raise_signal(signal.SIGALRM)
    signal.signal(signal.SIGALRM, before)


def test_error_of_a_handler_inside_a_label_reaches_the_program(tmp_path, monkeypatch, expire):
    model = torch.nn.Linear(8, 8)
    with Profiler(schedule="wait=0 warmup=0 active=9", out=tmp_path, run="r", background=False) as prof:
        model(X)
        prof.step()
        for name in ("_part_of", "_is_compiled", "_begin", "LabelledRange"):
            with monkeypatch.context() as patch:
                patch.setattr(labelling, name, expire)
                with pytest.raises(ExpiredError) as error:
                    model(X)
            assert not labelling._state.open, name
            if sys.version_info >= (3, 11):  # see `hide_frames`
                assert [entry.path.name for entry in error.traceback if "labelling" in entry.path.name] == [], name
        model(X)
    (trace,) = tmp_path.glob("r/train-*/*.pt.trace.json.gz")
    assert "forward (auto)" in read(trace).names


@pytest.mark.parametrize("kind", ["function", "method", "partial", "object"])
def test_errors_of_all_kinds_of_handlers_are_recognized(kind):
    class Handler:
        def __call__(self, *_):
            raise ExpiredError

        method = __call__

    def function(*_):
        raise ExpiredError

    handlers = {"function": function, "method": Handler().method, "object": Handler()}
    handlers["partial"] = functools.partial(function, 1)
    before = signal.signal(signal.SIGALRM, handlers[kind])
    with pytest.raises(ExpiredError) as error:
        signal.raise_signal(signal.SIGALRM)
    assert is_of_handler(error.value)
    signal.signal(signal.SIGALRM, before)
    assert not is_of_handler(error.value)


INTERRUPTED_IMPORT = """
import signal, sys
class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "perfhooks.record.launch.frameworks":
            signal.raise_signal(signal.SIGALRM)
def handler(*_):
    raise {error}
signal.signal(signal.SIGALRM, handler)
sys.meta_path.insert(0, Interrupt())
import torch
"""


@pytest.mark.parametrize(("error", "code"), [("TimeoutError", 1), ("SystemExit(7)", 7)])
def test_handler_error_during_our_imports_reaches_the_program(tmp_path, error, code):
    (tmp_path / "train.py").write_text(INTERRUPTED_IMPORT.format(error=error))
    command = [sys.executable, "-m", "perfhooks", "run", "--out", "runs", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == code, done.stderr


INTERRUPTED_END = """
import atexit, signal, sys
atexit.register(signal.setitimer, signal.ITIMER_REAL, 0)
import torch
def handler(*_):
    raise TimeoutError("late")
model = torch.nn.Linear(8, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(20):
    model(torch.ones(4, 8)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
signal.signal(signal.SIGALRM, handler)
atexit.register(signal.setitimer, signal.ITIMER_REAL, 1e-3, 1e-3)
raise ValueError("planted")
"""


def test_errors_of_handlers_do_not_interrupt_the_end(tmp_path):
    """A timer of the program expires every millisecond while perfhooks saves and waits at the exit."""
    (tmp_path / "train.py").write_text(INTERRUPTED_END)
    command = [sys.executable, "-m", "perfhooks", "run", "--out", "runs", "--exit-timeout", "200", "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert done.returncode == 1, done.stderr
    assert "planted" in done.stderr
    assert "nothing was recorded" not in done.stderr
    assert list(tmp_path.glob("runs/*/report.html")), done.stderr


def test_work_is_done_in_a_thread_that_cannot_change_handlers():
    """As if a program that embeds Python ends it in another thread."""
    before, done = signal.signal(signal.SIGALRM, lambda *_: None), []

    def work():
        with contained():
            done.append(True)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(TIMEOUT)
    signal.signal(signal.SIGALRM, before)
    assert done == [True]


@pytest.mark.parametrize("error", [TimeoutError, SystemExit, KeyboardInterrupt])
def test_contained_handler_runs_without_its_error(error):
    calls = []

    def handler(number, _):
        calls.append(number)
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    try:
        with contained():
            signal.raise_signal(signal.SIGALRM)
        assert calls == [signal.SIGALRM]
        assert signal.getsignal(signal.SIGALRM) is handler
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("is_blocked", [False, True, None])
def test_main_thread_without_a_cpu_is_waited_for(monkeypatch, is_blocked):
    """One that waits in a call has half a second; where nobody knows what it does, it has the same."""
    ended = signals._SignalThread()
    looks = []

    class Thread:
        def __init__(self, *_):
            self.is_blocked = lambda: is_blocked

        def cpu_ns(self):
            looks.append(1)
            if len(looks) == 50:
                ended.is_noticed = True
            return 7

    monkeypatch.setattr(signals, "CountedThread", Thread)
    assert ended._wait_for_notice(0.2) is (is_blocked is False)


SECOND_SIGNAL = """
import faulthandler, os, signal, sys
from perfhooks.record.loop.ending import signals

faulthandler.dump_traceback_later(30, exit=True)
handled, sent = [], set()
signals.set_end_handler(lambda *_: handled.append(1))

def trace(frame, event, _):
    place = frame.f_code.co_filename, frame.f_lineno
    if event == "line" and place not in sent and place[0] != __file__:
        sent.add(place)
        os.kill(os.getpid(), signal.SIGTERM)
    return trace

sys.settrace(trace)
os.kill(os.getpid(), signal.SIGTERM)
sys.settrace(None)
assert sent and len(handled) == len(sent) + 1, (sent, handled)
print("handled")
"""


def test_second_sigterm_arrives_anywhere_in_the_handler_of_the_first(run_script):
    """The handler held the lock of an event, for which the second one waited without end."""
    done = run_script(SECOND_SIGNAL)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr


def test_handler_that_raises_at_a_fork_leaves_no_signal_blocked(monkeypatch):
    thread, change = signals._SignalThread(), signal.pthread_sigmask
    before = change(signal.SIG_BLOCK, ())

    def interrupted(how, numbers):
        result = change(how, numbers)
        if how == signal.SIG_BLOCK and numbers:
            raise KeyboardInterrupt
        return result

    assert thread.begin()
    try:
        monkeypatch.setattr(signal, "pthread_sigmask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            thread.pause()
        thread.go_on()
        assert change(signal.SIG_BLOCK, ()) == before
    finally:
        change(signal.SIG_SETMASK, before)
        thread.end()


def test_signal_for_a_window_may_arrive_at_once(monkeypatch):
    monkeypatch.setattr(request_signal, "_loops", {})
    monkeypatch.setattr(signals.deferral, "handler", lambda number: signal.SIG_DFL)
    monkeypatch.setattr(signals.deferral, "set_handler", lambda number, handler: handler(number, None))
    request_signal.listen("USR2", SimpleNamespace())
    assert [*request_signal._loops] == [signal.SIGUSR2]


ENDED_BY_A_FINALIZER = """
import faulthandler, gc
import perfhooks

faulthandler.dump_traceback_later(60, exit=True)

class Trainer:
    def __init__(self):
        self.itself = self
        self.profiler = perfhooks.Profiler(out="perf", run="r", schedule="wait=1000000000 warmup=1 active=1")
        self.profiler.start()

    def __del__(self):
        self.profiler.stop()

trainer = Trainer()
timeline = trainer.profiler._course.loop.timeline
trainer.profiler.step()
with timeline.taking:  # as the watcher, which makes objects meanwhile
    del trainer
    gc.collect()
print("ended")
"""


def test_finalizer_may_stop_a_profiler_in_any_thread(run_script):
    done = run_script(ENDED_BY_A_FINALIZER)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
