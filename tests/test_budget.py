"""The budget of every recording: what it counts, where it ends a window, and what it announces."""

from __future__ import annotations

import _thread
import contextlib
import csv
import gc
import importlib.machinery
import json
import operator
import os
import queue
import re
import subprocess
import sys
import threading
import time
import types
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from perfhooks import Profiler
from perfhooks.core import thread_time
from perfhooks.core.process import THREADS
from perfhooks.core.schedule.unplanned import FromStartToStop
from perfhooks.core.thread_time import silent_times
from perfhooks.record.loop import window as window_module
from perfhooks.record.loop import windows
from perfhooks.record.loop.ending import in_step, open_ranges
from perfhooks.record.loop.limits import budget, other_threads
from perfhooks.record.loop.limits.budget import Limits, StepCalls, WindowBudget
from perfhooks.record.loop.limits.call_count import CallCount
from perfhooks.record.loop.window import Window, recorder_busy

X = torch.ones(4)
BLOCK = 512


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def operators(count):
    x = X
    for _ in range(count):
        x = x * 1.0  # five operators: mul, to, _to_copy, empty_strided, copy_


def record(act, **recording):
    window = Window(first=0, phases=FromStartToStop(0), on_trace_ready=lambda _: None, recording=recording)
    window.start()
    act()
    window.close(0, None)
    return window


@contextlib.contextmanager
def asking(act, asked):
    """Another thread wants the main thread to act, again and again."""
    is_over = threading.Event()

    def ask():
        while not is_over.wait(0.002):
            in_step.in_main_thread(act)
            asked.release()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def facts(name):
    return json.loads(Path(f"runs/r/{name}/rank0.capture.json").read_text())


def numbers(name):
    with Path(f"runs/r/{name}/rank0.steps.csv").open() as file:
        return [int(row["step"]) for row in csv.DictReader(file)]


@pytest.mark.recorder
def test_operators_of_a_recording_are_counted():
    before = record(lambda: None).budget.events
    window = record(lambda: operators(4_000))
    assert before <= BLOCK
    assert 20_000 <= window.budget.events <= 20_000 + 2 * BLOCK
    window.release()


@pytest.mark.recorder
def test_memory_of_the_training_is_not_counted():
    kept = []
    window = record(lambda: kept.append(torch.ones(20_000_000)))
    assert window.budget.events <= 2 * BLOCK


@pytest.mark.recorder
@pytest.mark.parametrize("option", [None, "record_shapes"])
def test_size_is_within_30_percent_of_the_trace(tmp_path, option):
    window = record(lambda: operators(4_000), **({option: True} if option else {}))
    window.save(tmp_path / "trace.json")
    size = (tmp_path / "trace.json").stat().st_size
    assert window.budget.cost.size == pytest.approx(size, rel=0.3)
    window.release()


def test_costs_of_later_windows_equal_earlier_costs():
    first = WindowBudget(Limits(), {})
    first._totals = (100_000.0, 0.0)
    first.learn(wait_s=3 * first.cost.wait_s, size=2 * int(first.cost.size))
    later = WindowBudget(Limits(), {})
    later._totals = (100_000.0, 0.0)
    assert later.cost.size == pytest.approx(2 * 270 * 100_000, rel=0.1)
    assert later.cost.wait_s == pytest.approx(3 * 0.45, rel=0.15)


def test_paused_process_raises_the_expected_wait_little():
    first = WindowBudget(Limits(), {})
    first._totals = (3_000.0, 0.0)
    first.learn(wait_s=60.0, size=int(first.cost.size))
    later = WindowBudget(Limits.of_size(20), {})
    later._totals = (3_000.0, 0.0)
    assert not later.is_spent()


def test_small_window_corrects_no_costs():
    """Its last block of events is not full, so that its trace has fewer events than the recorder counts."""
    first = WindowBudget(Limits(), {})
    first._totals = (512.0, 0.0)
    first.learn(wait_s=0.0, size=1_000)
    later = WindowBudget(Limits(), {})
    later._totals = (100_000.0, 0.0)
    assert later.cost.size == pytest.approx(270 * 100_000, rel=0.1)


def test_python_calls_stay_bounded_in_long_steps(monkeypatch):
    own_s = now = 0.0
    monkeypatch.setattr(WindowBudget, "_cpu_s", lambda _: (own_s, 0.0))
    monkeypatch.setattr("perfhooks.record.loop.limits.budget.time.perf_counter", lambda: now)
    seen = WindowBudget(Limits(), {"with_stack": True})
    seen.step_calls = StepCalls(1_000, 0.01)
    seen.begin()
    own_s = now = 0.002
    assert seen._estimate_calls(0.0) == pytest.approx(0.002 * 300_000), "as if this part of the step made most calls"
    own_s = now = 0.01
    assert seen._estimate_calls(0.0) == pytest.approx(1_000)
    own_s = now = 0.11
    assert seen._estimate_calls(0.0) == pytest.approx(1_000 + 0.1 * 1_500_000)
    now = 0.15
    seen.end_step()
    own_s, now = 0.114, 0.19
    assert seen._estimate_calls(0.0) == pytest.approx(1_000 + 0.002 * 300_000), "the new step used 2 ms"
    now = 10.0
    assert seen._estimate_calls(0.0) == pytest.approx(1_000 + 0.002 * 300_000), "a wait makes no calls"


@pytest.mark.parametrize(
    ("gil_waits_s", "operators", "calls"),
    [
        ((0.005, 0.003), 0, 0.1 * 100_000),
        ((0.005, 0.003), 1_900, 0.1 * 100_000),
        ((0.005, 0.003), 3_000, 10 * 2_000),
        ((0.003, 0.005), 0, 0.1 * 100_000),
        ((0.005, 0.005), 0, 0.1 * 1_500_000),
        ((), 0, 0.1 * 1_500_000),
    ],
)
def test_a_free_gil_shows_that_a_long_step_makes_no_loop_of_calls(monkeypatch, gil_waits_s, operators, calls):
    """It takes 0.1 s of CPU longer than usual: for the usual 1,000 operators, for more of them, or for Python calls."""
    own_s = now = 0.0
    monkeypatch.setattr(WindowBudget, "_cpu_s", lambda _: (own_s, 0.0))
    monkeypatch.setattr("perfhooks.record.loop.limits.budget.time.perf_counter", lambda: now)
    seen = WindowBudget(Limits(), {"with_stack": True})
    seen.step_calls = StepCalls(1_000, 0.01)
    seen.steps_that_fit(1_000)
    seen.begin()
    for number, gil_wait_s in enumerate(gil_waits_s):
        own_s = now = (0.11 + operators * 1e-6) * number
        seen.measure(gil_wait_s)  # counts no operators
    own_s = now = 0.11 + operators * 1e-6
    assert seen._estimate_calls(operators) == pytest.approx(1_000 + calls)


@pytest.mark.recorder
@pytest.mark.parametrize(
    ("makes_calls", "partial"), [(False, None), (True, "max_trace_mb=10 was reached inside step 3")]
)
def test_long_operators_end_no_window_with_stacks(makes_calls, partial, monkeypatch):
    """A busy machine makes operators longer. Its recorded step takes 0.5 s of CPU, that of the warm-up a few ms."""
    matrix = torch.ones(600, 600)
    if not makes_calls:
        monkeypatch.setattr(budget, "_FREE_GIL_S", 1e9)  # other threads of a busy machine may have it for longer

    def work(*_):
        return None

    with Profiler(
        schedule="wait=1 warmup=2 active=1 repeat=1",
        out="runs",
        run="r",
        with_stack=True,
        max_trace_mb=10,
        background=False,
    ) as prof:
        for step in range(5):
            began = time.thread_time()
            while time.thread_time() - began < (0.5 if step == 3 and prof.in_window else 0.005):
                if makes_calls:
                    work()
                else:
                    matrix @ matrix
            prof.step()
    assert facts("train-000003-000003")["partial"] == partial


def test_calls_of_a_step_follow_its_warmup_step():
    """Most calls of a step may come at once, for example those of a plot."""
    count = CallCount(1e9)
    count.marks = [(1_000, 0.01), (2_000, 0.02), (2_100, 0.04), (3_000, 0.05), (4_000, 0.06)]
    count._events, count.cpu_s = 8_200, 0.08
    seen = WindowBudget(Limits(), {"with_stack": True})
    seen.end_count(count, steps=2)
    step = seen.step_calls
    assert (step.calls, step.cpu_s) == (pytest.approx(1.15 * 2_050), 0.04)
    for cpu_s, calls in ((0.0, 0), (0.01, 950), (0.02, 1_950), (0.04, 2_050), (0.1, 2_050)):
        assert step.after(cpu_s) == pytest.approx(1.15 * calls)


def test_calls_of_a_step_above_the_limit_are_those_of_its_counted_part(monkeypatch):
    own_s = 0.0
    monkeypatch.setattr(WindowBudget, "_cpu_s", lambda _: (own_s, 0.0))
    seen = WindowBudget(EXPLAINING, {"with_stack": True})
    count = CallCount(10_000)
    count._events, count.cpu_s, count.is_complete, count.marks = 20_000, 0.01, False, [(10_000, 0.01)]
    seen.end_count(count, steps=2)
    assert seen.steps_that_fit(0) == 0
    seen.begin()
    own_s = 0.005
    seen.end_step()
    assert seen._estimate_calls(0.0) == pytest.approx(1.15 * 5_000)
    own_s = 0.02
    assert seen._estimate_calls(0.0) == pytest.approx(1.15 * 10_000 + 0.01 * 1_500_000)


EXPLAINING = Limits(size=330 * 300_000, training_s=1e9)


def test_other_threads_call_at_full_speed_in_a_second_window(monkeypatch):
    monkeypatch.setattr(WindowBudget, "_cpu_s", lambda _: (0.01, 0.1))
    for limits, rate in ((EXPLAINING, 3_000_000), (Limits(), 300_000)):
        seen = WindowBudget(limits, {"with_stack": True})
        seen.step_calls = StepCalls(1_000, 0.01)
        seen.begin()
        assert seen._estimate_calls(0.0) == pytest.approx(1_000 + 0.1 * rate)


def test_counted_calls_decide_how_many_steps_fit():
    seen = WindowBudget(EXPLAINING, {"with_stack": True})
    count = CallCount(1e9)
    count._events, count.cpu_s = 4_000, 0.02
    seen.end_count(count, steps=2)
    assert seen.step_calls == StepCalls(1_150, 0.01)
    assert seen.steps_that_fit(0) == pytest.approx(300_000 / 1_150 / 1.25, rel=0.01)


@pytest.mark.parametrize("is_busy", [True, False])
def test_threads_that_compute_are_busy(is_busy):
    over, has_begun = threading.Event(), threading.Event()

    def compute():
        has_begun.set()
        while not (over.is_set() if is_busy else over.wait(60)):
            sum(range(100))

    thread = threading.Thread(target=compute)
    thread.start()
    has_begun.wait()
    try:
        assert other_threads.has_other_threads()
        # another program may have the processor for all of the few milliseconds that are looked at
        assert any(other_threads.has_busy_threads() for _ in range(200 if is_busy else 1)) is is_busy
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize(("programs", "is_busy"), [(3, True), (2, False)])
def test_crowded_machine_is_observed_longer(monkeypatch, programs, is_busy):
    """The thread computes in the third of at most five periods. A container may use two of 64 CPUs."""
    answers = iter([False, False, True])
    monkeypatch.setattr(other_threads, "has_other_threads", lambda: True)
    monkeypatch.setattr(other_threads, "ThreadLoad", lambda: SimpleNamespace(is_busy=lambda: next(answers)))
    monkeypatch.setattr(other_threads.os, "getloadavg", lambda: (programs, 0.0, 0.0))
    monkeypatch.setattr(other_threads.os, "cpu_count", lambda: 64)
    monkeypatch.setattr(other_threads, "cores", lambda: 2)
    assert other_threads.has_busy_threads() is is_busy


def test_threads_of_perfhooks_are_no_busy_threads():
    over = threading.Event()
    thread = threading.Thread(target=lambda: [None for _ in iter(over.is_set, True)], name=f"{THREADS}-test")
    thread.start()
    try:
        load = other_threads.ThreadLoad()
        time.sleep(0.01)
        assert not load.is_busy()
    finally:
        over.set()
        thread.join()


def test_room_is_predicted_for_steps_after_the_last_measurement(monkeypatch):
    now = 0.0
    monkeypatch.setattr("perfhooks.record.loop.limits.budget.time.perf_counter", lambda: now)
    seen = WindowBudget(Limits(size=1000.0), {})
    seen.begin()
    assert seen.has_room
    now = 1.0
    seen.end_step()
    now = 2.0
    seen.end_step()
    now = 2.5
    monkeypatch.setattr(WindowBudget, "_events", lambda _: (2.5 * 200 / 270, 0.0))  # 200 bytes a step
    assert seen.measure() == pytest.approx(0.5)
    assert seen.has_room, "four steps take 800 bytes"
    seen.end_step()
    assert not seen.has_room, "five steps take 1,000 bytes"


@pytest.mark.parametrize(("passed_s", "used", "pause_s"), [(0, 1, 0.02), (1, 0, 0.1), (2, 0.8, 0.1), (2, 0.9, 0.0556),
                                                          (2, 0.99, 0.02)])  # fmt: skip
def test_overseer_measures_more_often_near_the_end_of_a_budget(passed_s, used, pause_s):
    """A quarter of the rest of 2 / 0.9 s, for example."""
    assert in_step.pause_s(passed_s, used, in_step.LONGEST_S) == pytest.approx(pause_s, rel=1e-3)


@pytest.mark.parametrize(
    ("before", "used", "passed_s", "late_s", "at_next"),
    [(0.8, 0.9, 0.1, 0.0, 0.92), (0.8, 0.9, 0.02, 0.0, 1.0), (0.5, 0.7, 0.08, 0.06, 0.9), (0.9, 0.9, 0.1, 5.0, 0.9)],
)
def test_overseer_predicts_the_budget_at_the_next_measurement(before, used, passed_s, late_s, at_next):
    assert in_step.used_at_next_measurement(before, used, passed_s, late_s) == pytest.approx(at_next)


def test_call_count_ends_and_leaves_other_profilers():
    def called():
        return None

    counts = []
    for most in (1e6, 10):
        count = CallCount(most)
        count.begin()
        for _ in range(100):
            called()
        count.end()
        counts.append(count.calls)
    assert counts[0] == pytest.approx(100, abs=5)
    assert counts[1] <= 11
    assert not count.is_complete
    assert count.marks == [(counts[1], count.cpu_s)]
    assert sys.getprofile() is None
    sys.setprofile(theirs := lambda *_: None)
    try:
        count.begin()
        count.end()
        assert sys.getprofile() is theirs
    finally:
        sys.setprofile(None)


@pytest.mark.recorder
def test_window_ends_before_the_step_that_exceeds_its_budget(caplog, monkeypatch):
    monkeypatch.setattr(in_step, "SHORTEST_S", 600.0)  # however long a step lasts, nobody looks inside
    with Profiler(schedule="wait=1 warmup=1 active=4 repeat=2", out="runs", run="r", background=False,
                  max_trace_mb=1) as prof:  # fmt: skip
        for _ in range(13):
            operators(300)  # 0.4 MB
            prof.step()
    windows = sorted(path.name for path in Path("runs/r").glob("train-*"))
    assert windows == ["train-000002-000005", "train-000008-000011"], "named by the planned steps, for other ranks"
    assert (facts(windows[0])["last"], facts(windows[0])["partial"]) == (3, None)
    assert numbers(windows[0]) == [2, 3]
    assert "the window ends after steps 2-3: one more step would exceed max_trace_mb=1" in caplog.messages


@pytest.mark.recorder
@pytest.mark.parametrize("schedule", ["wait=1 warmup=1 active=3 repeat=1", None])
def test_window_ends_inside_a_long_step(schedule, monkeypatch):
    calls, run = [], in_step._run
    monkeypatch.setattr(in_step, "_run", lambda *arguments: calls.append(run(*arguments)))
    until = time.monotonic() + 60
    with Profiler(schedule=schedule, out="runs", run="r", background=False, max_trace_mb=1) as prof:
        for step in range(5):
            while step == 2 and prof.in_window and time.monotonic() < until:
                operators(10)
            assert step != 2 or not prof.in_window
            prof.step()
    (path,) = Path("runs/r").glob("train-*")
    found = facts(path.name)
    assert found["partial"] == "max_trace_mb=1 was reached inside step 2"
    assert found["reached"] == 2
    assert len(calls) <= 5, "the first call in the main thread ends the window, or one soon after"


def test_recording_does_not_end_inside_a_backward_pass():
    """torch restores the state of the thread after the pass, with the recorder in it."""
    ends, asked = [], threading.Semaphore(0)

    class Waits(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            with asking(lambda: ends.append(True), asked):
                for _ in range(10):
                    assert asked.acquire(timeout=300)
            return gradient

    Waits.apply(torch.ones(2, requires_grad=True)).sum().backward()
    assert not ends
    until = time.monotonic() + 60
    with asking(lambda: ends.append(True), asked):
        while not ends and time.monotonic() < until:
            pass
    assert ends


def test_signal_exception_in_a_pending_call_reaches_the_program():
    signals = [KeyboardInterrupt]  # one, as a second could come outside of the program

    def act():
        if signals:
            raise signals.pop()

    def wait():
        until = time.monotonic() + 60
        while time.monotonic() < until:
            pass

    with pytest.raises(KeyboardInterrupt), asking(act, threading.Semaphore(0)):
        wait()


@pytest.mark.recorder
def test_long_wait_is_announced_once(monkeypatch, caplog):
    monkeypatch.setattr(windows, "LONG_WAIT_S", 1e-9)
    caplog.set_level("INFO")
    with Profiler(schedule="wait=0 warmup=1 active=2 repeat=1", out="runs", background=False) as prof:
        for _ in range(5):
            operators(200)
            prof.step()
    (said,) = [line for line in caplog.messages if "the training waits about" in line]
    assert re.fullmatch(r"the recorder holds [\d,]+ events; the training waits about \S+ \S+ until .*", said)


@pytest.mark.recorder
def test_window_does_not_begin_while_a_recorded_range_is_open(caplog):
    """The end of such a range writes to freed memory if another recording goes on."""
    with Profiler(schedule="wait=0 warmup=0 active=1 repeat=3", out="runs", run="r", background=False) as prof:
        with torch.profiler.record_function("epoch"):
            operators(1)
            prof.step()
            assert "the window at step 1 is skipped" in caplog.text
        prof.step()
        assert prof.in_window
    assert not open_ranges.is_any_open()


@pytest.mark.recorder
def test_decorator_of_a_range_is_no_open_range():
    @torch.profiler.record_function("decorated")
    def decorated():
        operators(1)

    with Profiler(schedule="wait=0 warmup=0 active=1 repeat=2", out="runs", run="r", background=False) as prof:
        decorated()
        prof.step()
        assert prof.in_window


@pytest.mark.recorder
def test_recorder_without_a_counter_is_estimated_by_time(monkeypatch):
    monkeypatch.setattr(budget, "_counter", lambda: None)
    window = record(lambda: threading.Event().wait(0.05))
    assert window.budget.events >= 0.05 * budget._OPERATORS_PER_S


@pytest.mark.process
def test_forked_child_drops_the_pending_call_of_its_parent():
    seen = []
    call = in_step._PendingCall(lambda: seen.append(0), has_dynamo=False)
    child = os.fork()
    if not child:
        bool(call)
        os._exit(len(seen))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bool(call)
    assert seen == [0]


def test_pending_call_does_not_run_while_a_queue_is_locked():
    """A log of the program may use the same queue, and perfhooks would wait for its lock without end."""
    frames = [sys._getframe()]

    class Queue(queue.Queue):
        def _put(self, _):
            frames.append(sys._getframe(1))

    Queue().put(None)
    assert [in_step._may_run(frame) for frame in frames] == [True, False]


def test_pending_call_does_not_run_without_a_frame():
    """For example while Python ends."""
    seen, done = [], _thread.allocate_lock()
    call = in_step._PendingCall(lambda: seen.append(0), has_dynamo=False)
    done.acquire()
    _thread.start_new_thread(list, (map(operator.methodcaller("__call__"), [call.__bool__, done.release]),))
    assert done.acquire(timeout=30)
    assert not seen


def test_no_call_is_pending_while_dynamo_is_imported(monkeypatch):
    """Its module has no `decorators` yet."""
    module = types.ModuleType("torch._dynamo")
    module.__spec__ = importlib.machinery.ModuleSpec(module.__name__, None)
    module.__spec__._initializing = True
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(sys.modules, f"{module.__name__}.decorators", types.ModuleType("decorators"))
    in_step.in_main_thread(lambda: None)
    assert not in_step._pending


def test_another_thread_may_begin_a_window_while_windows_are_counted(monkeypatch):
    class Other:
        yield_recorder = None

    other, before = Other(), sys.gettrace()
    monkeypatch.setattr(window_module, "_open", weakref.WeakValueDictionary({0: Other()}))

    def begin(frame, *_):
        if Path(frame.f_code.co_filename).name == "weakref.py":
            window_module._open[len(window_module._open)] = other
        return begin

    sys.settrace(begin)
    try:
        is_busy = recorder_busy()
    finally:
        sys.settrace(before)
    assert is_busy


@pytest.mark.process
def test_only_one_pending_call_exists_at_a_time():
    """Python 3.11 would never leave a function that is traced."""
    script = """if True:
        import sys, threading, time
        from perfhooks.record.loop.ending.in_step import in_main_thread
        ran = []
        def act():
            thread = threading.Thread(target=in_main_thread, args=(lambda: ran.append(2),))
            thread.start()
            thread.join()
            called()
            ran.append(1)
        def called():
            pass
        def repeat():  # a call is dropped if the main thread is in Python's library
            while not ran:
                in_main_thread(act)
                time.sleep(0.01)
        sys.setprofile(lambda *_: None)
        other = threading.Thread(target=repeat)
        other.start()
        while not ran:
            called()
        other.join()
        assert set(ran) == {1}, ran
    """
    subprocess.run([sys.executable, "-c", script], check=True, timeout=300)


@pytest.mark.slow
def test_cpu_time_of_perfhooks_threads_is_not_that_of_python_calls():
    """While a step waits for a minute, they use as much as 50,000 calls."""
    seen, others, is_over = WindowBudget(Limits(), {"with_stack": True}), [], threading.Event()

    def compute(act):
        while time.thread_time() < 0.3:
            act()
        others.append(seen._cpu_s()[1])
        is_over.wait(300)

    seen.begin()
    measuring = threading.Thread(target=compute, args=(seen.measure,))
    named = threading.Thread(target=compute, args=(lambda: sum(range(100)),), name=f"{THREADS}-test")
    for thread in (measuring, named):
        thread.start()
    try:
        until = time.monotonic() + 120
        while len(others) < 2 and time.monotonic() < until:
            time.sleep(0.01)
        assert max(*others, seen._cpu_s()[1]) < 0.1
    finally:
        is_over.set()


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_cpu_time_of_a_fork_is_not_that_of_python_calls():
    ident, began = threading.get_ident(), time.thread_time_ns()
    counted = silent_times.without(ident, lambda: began)
    child = os.fork()
    if not child:  # its clocks begin at 0
        os._exit(silent_times.without(ident, lambda: 5) != 5)
    now = time.thread_time_ns()
    assert silent_times.without(ident, lambda: now) - counted < (now - began) / 2
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_cpu_time_is_without_a_fork_at_each_moment_of_it(monkeypatch):
    """Another thread reads it at each line of what is done after the fork, and while the fork takes place."""
    now, forks, read = [100], silent_times, []
    monkeypatch.setattr(thread_time, "threading", SimpleNamespace(get_ident=lambda: -1))
    monkeypatch.setattr(thread_time, "time", SimpleNamespace(thread_time_ns=lambda: now[0]))
    monkeypatch.setattr(forks, "_times", {})

    def trace(frame, event, _):
        if frame.f_code.co_name == "end":
            read.append(forks.without(-1, lambda: now[0]))
            return trace
        return None

    def fork():
        forks.begin()
        now[0] += 800
        forks.end()

    before = sys.gettrace()
    sys.settrace(trace)
    fork()
    sys.settrace(before)
    assert len(read) > 3
    assert {*read, forks.without(-1, lambda: now[0])} == {100}

    def clock():
        found = now[0]
        if found == 900:
            fork()
        return found

    assert forks.without(-1, clock) == 100


@pytest.mark.slow
def test_wait_in_a_garbage_collection_is_no_cpu_time():
    class Waiting:
        def __init__(self):
            self.itself = self

        def __del__(self):
            time.sleep(0.3)

    budget = WindowBudget(EXPLAINING, {"with_stack": True})
    budget.begin()
    end = time.thread_time() + 0.1
    while time.thread_time() < end:
        pass
    Waiting()
    gc.collect()
    computed_s, _ = budget._cpu_s()
    budget.end()
    assert computed_s > 0.09, "the wait would hide the computation"


@pytest.mark.recorder
def test_cpu_time_of_a_garbage_collection_is_not_that_of_python_calls():
    """At the pace of calls, 50 ms would be all that the window may hold."""
    kept = [[[]] for _ in range(10**6)]
    schedule = "wait=1 warmup=1 active=3 repeat=1"
    with Profiler(schedule=schedule, out="runs", run="r", background=False, with_stack=True) as prof:
        for step in range(6):
            operators(10)
            if step == 3:
                gc.collect()
                time.sleep(0.2)  # the recording is measured meanwhile
            prof.step()
    (path,) = Path("runs/r").glob("train-*")
    assert (facts(path.name)["last"], facts(path.name)["partial"], len(kept)) == (4, None, 10**6)
