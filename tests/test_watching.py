"""Every step is watched: what is slow, why, and that nobody notices it being watched."""

from __future__ import annotations

import _thread
import csv
import functools
import gc
import gzip
import itertools
import json
import math
import operator
import os
import random
import re
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
import warm
from slow_parts import NAP_S, too_short

import perfhooks
from perfhooks import Profiler
from perfhooks.core.schedule import Phase
from perfhooks.record.loop import profiler as profiler_module
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.watch import counters, slow, watch, watcher
from perfhooks.record.watch.causes import Explainer, Explanation, StepFacts
from perfhooks.record.watch.counters import Collections, CountedThread, Counters
from perfhooks.record.watch.loops import WatchedLoop
from perfhooks.record.watch.pace import Pace
from perfhooks.record.watch.samples import FoldedStacks, Sample
from perfhooks.record.watch.sampling import frames_of, outwards, stack_of, variables_of
from perfhooks.record.watch.slow import SlowSteps, predict
from perfhooks.run import layout, timeline
from perfhooks.run.finished import FinishedRun
from perfhooks.run.folder import Run
from perfhooks.run.installation import Installation
from perfhooks.run.live import slow_steps
from perfhooks.run.live.slow_causes import CONTENTION
from perfhooks.run.live.status import Status
from perfhooks.run.publishing import publish_json
from perfhooks.run.steps import read_waits
from perfhooks.run.timeline import Timeline

MATRIX = torch.ones(8, 8)
SCRIPT = Path(__file__).parent / "slow_training.py"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def keep_stepping(prof, until, most_s=60):
    began = time.monotonic()
    while not until() and time.monotonic() - began < most_s:
        MATRIX @ MATRIX
        time.sleep(0.001)
        prof.step()
    assert until()


def planted():
    """What the lines of the script say that make a step slow: its cause and its line, by its number."""
    remark = re.compile(r"# step (\d+): (.*)$")
    for script in (SCRIPT, SCRIPT.with_name("slow_parts.py")):
        for number, line in enumerate(script.read_text().splitlines(), 1):
            found = remark.search(line)
            if found:
                yield int(found[1]), (found[2], f"{script.name}:{number})")


@pytest.mark.parametrize("how", ["in use", "in trouble", "not in use"])
def test_only_devices_in_use_are_queried_and_may_fail(monkeypatch, how):
    """To ask a device that nobody uses would begin to use it."""
    asked = []

    def answer(name, value):
        def answered(*_):
            asked.append(name)
            if how == "in trouble":
                raise RuntimeError("no library")
            return value

        monkeypatch.setattr(torch.cuda, name, answered)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: how != "not in use")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    answer("memory_stats", {"num_alloc_retries": 2})
    found = Counters.read(CountedThread(threading.get_native_id())).retries
    assert found == (6 if how == "in use" else None)
    assert bool(asked) == (how != "not in use")


def test_planted_slow_steps_have_their_cause_and_line(tmp_path, channel):
    done = warm.run(channel, SCRIPT, tmp_path / "perf", timeout=300)
    assert done.returncode == 0, done.stderr
    found = {row.step: row for row in slow_steps.read(tmp_path / "perf/job/rank0.slow.csv")}
    causes = dict(sorted(planted()))
    assert len(causes) == 17
    chance = {step for step in causes if found[step].cause in ("unknown", CONTENTION)}  # if a step waited for a CPU
    unknown = {step for step in chance if found[step].cause == "unknown"}
    for step, (_, line) in causes.items():
        assert found[step].line.rpartition("/")[2].rpartition(" (")[2] in {line, *([""] if step in chance else [])}
    named = {step: found[step].cause for step in causes if step not in chance}
    assert named == {step: causes[step][0] for step in named}
    assert len(named) >= len(causes) - 4
    for step in causes:
        row = found[step]
        assert (row.explained_ms is None) == (step in unknown)
        assert row.explained_ms is None or 0.45 * row.wall_ms < row.explained_ms <= row.wall_ms
    logged = {cause for cause, _ in causes.values() if f": {cause}" in done.stderr}
    assert set(named.values()) <= logged <= {row.cause for row in found.values()}  # other steps may be slow, too
    folded = (tmp_path / "perf/job/rank0.slow.folded").read_text()
    assert any("spin (" in line and int(line.rpartition(" ")[2]) > 0 for line in folded.splitlines())


def test_no_step_of_ten_thousand_is_slow_because_of_noise():
    """Steps of 20 ms with noise of 5%; and one that is, so that the silence says something."""
    draw = random.Random(7)
    walls = [int(20e6 * draw.gauss(1, 0.05)) for _ in range(10_000)]
    walls[5000] = int(3 * 20e6 + 2 * 50e6)
    line = Timeline("train")
    loop = WatchedLoop(line, "train", 1.0, step=int, wake=lambda: None)
    line.begin(0)
    now = line._begins[0] = 10**9
    pace = Pace()
    slow = SlowSteps(loop, pace)
    try:
        for start in range(0, len(walls), 40):
            for wall in walls[start : start + 40]:
                now += wall
                line.end_step(now)
            ended = line.since(start)
            before = pace.median_ns, pace.limit_ns
            pace.add((ended.ends - ended.begins).tolist())
            slow.ended(ended, *before)
    finally:
        slow.end()
    assert [row.step for row in slow.rows] == [5000]


def test_request_folder_is_polled_in_time(monkeypatch):
    polled = threading.Semaphore(0)
    monkeypatch.setattr(watcher.Watcher, "_check", lambda *_: (1000.0, True))
    monkeypatch.setattr(watcher.Watcher, "_poll", lambda _: polled.release())
    ours, loop = watcher.Watcher(), WatchedLoop(Timeline("train"), "train", 0.05, step=int, wake=int)
    ours.attach(loop)
    try:
        assert all(polled.acquire(timeout=300) for _ in range(4))
    finally:
        ours.detach(loop)
        ours.end()


class ByHand:
    """A loop in which time passes as a test says, and what watches it; its steps take 0.1 s, so 0.35 s is slow."""

    def __init__(self, folder, monkeypatch):
        self._folder, self.now_ms = folder, 1000.0
        for module in (slow, timeline):
            monkeypatch.setattr(module, "clock", self._clock)
        # else the waits of this process, by another clock, would be a cause
        monkeypatch.setattr(counters.CountedThread, "waited_ns", lambda _: 0)
        line = Timeline("train")
        self.loop = WatchedLoop(line, "train", 1.0, step=lambda: line.reached, wake=lambda: None)
        self.loop.begin(Run(folder))
        line.begin(0)
        self.watch = watch.Watch(self.loop)

    def _clock(self):
        return int(self.now_ms * 1e6)

    def steps(self, *walls_ms, looks=(), data_ms=None, is_followed=True):
        """Let steps pass, each with looks after so many milliseconds of it, and one when it has ended."""
        for wall_ms in walls_ms:
            began = self.now_ms
            if data_ms is not None:
                self.loop.timeline.data_asked(self._clock())
                self.now_ms += data_ms
                self.loop.timeline.data_arrived(self._clock())
            for look_ms in looks:
                self.now_ms = began + look_ms
                self.watch.check()
            self.now_ms = began + wall_ms
            self.loop.timeline.end_step(self._clock())
            if is_followed:
                self.watch.check()
                self.watch.tick()

    def slow(self):
        """The rows of the table of slow steps."""
        return slow_steps.read(self._folder / layout.slow_steps(0))


QUIET = [100.0] * 20


@pytest.fixture
def by_hand(tmp_path, monkeypatch):
    found = ByHand(tmp_path, monkeypatch)
    yield found
    found.watch.end()


def test_step_that_a_recording_makes_slow_is_not_listed(by_hand, monkeypatch):
    """Its stop within the step is none of the training; nor are steps of a window with stacks."""
    monkeypatch.setattr(timeline, "OWN_WORK", timeline.OWN_WORK.copy())
    monkeypatch.setattr(slow, "OWN_WORK", timeline.OWN_WORK)
    by_hand.steps(*QUIET)
    at = int(by_hand.now_ms * 1e6)
    timeline.OWN_WORK.append((threading.get_ident(), at + 10_000_000, at + 910_000_000))
    by_hand.steps(1000.0)
    timeline.OWN_WORK.append((threading.get_ident() + 1, at + 1_000_000_000, at + 2_000_000_000))
    by_hand.steps(1000.0)
    by_hand.loop.timeline.enter(22, Phase.WARMUP)
    by_hand.loop.timeline.enter(23, Phase.WAIT)
    by_hand.steps(1000.0, 1000.0)
    assert [row.step for row in by_hand.slow()] == [21, 23]


USUAL = [100.0, 150.0, 220.0, 220.0, 80.0] * 8


@pytest.mark.parametrize(
    ("walls_ms", "slow"),
    {
        "none of the first ten": ([*[100.0] * 9, 5000.0, *[100.0] * 5, 5000.0], [15]),
        "three medians": ([*USUAL, 520.0, *USUAL, 480.0, *USUAL], [40]),
        "fifty milliseconds": ([*[1.0] * 40, 60.0, *[1.0] * 40, 50.0, *[1.0] * 40], [40]),
        "seven seconds where five are usual": (
            [*[5000.0, 5200.0] * 20, 7000.0, *[5000.0, 5200.0] * 20, 6200.0, *[5000.0, 5200.0] * 20],
            [40],
        ),
        # as with a larger batch: slow at first, and usual then
        "a pace that changes": ([*[100.0] * 300, *[1000.0] * 200], [*range(300, 325)]),
    }.values(),
)
def test_slow_step_exceeds_three_medians_or_the_usual_spread(by_hand, walls_ms, slow):
    by_hand.steps(*walls_ms)
    assert [(row.step, row.wall_ms) for row in by_hand.slow()] == [(step, walls_ms[step]) for step in slow]


@pytest.mark.parametrize(
    ("wall_ms", "looks", "is_slow"),
    [
        (59e3, [], True),
        (62e3, [], False),
        (62e3, range(400, 62_000, 10_000), True),
        (8 * 3600e3, [], False),
        # the watcher wakes up with the machine, and looks before the training has come to the end of its step
        (8 * 3600e3, [8 * 3600e3 - 40, 8 * 3600e3 - 30], False),
        # it was slow already when the machine fell asleep
        (8 * 3600e3, [400, 410, 8 * 3600e3 - 30], False),
    ],
)
def test_step_without_samples_for_a_minute_is_not_slow(by_hand, wall_ms, looks, is_slow):
    by_hand.steps(*QUIET)
    by_hand.steps(wall_ms, looks=looks)
    by_hand.steps(*QUIET, 1000.0)
    assert [row.step for row in by_hand.slow()] == ([20, 41] if is_slow else [41])


def test_sample_of_a_step_that_was_not_slow_is_usual(by_hand):
    usual = by_hand.watch._slow._explainer.usual
    by_hand.steps(*QUIET)
    known = len(usual.samples)
    assert known > 0
    by_hand.steps(1000.0, looks=[400])
    assert len(usual.samples) == known
    by_hand.steps(100.0, 100.0)
    assert len(usual.samples) == known + 2


def test_a_collection_is_not_forgotten_before_its_step_has_ended(by_hand, monkeypatch):
    by_hand.steps(*QUIET)
    with monkeypatch.context() as patch:
        patch.setattr(counters, "clock", by_hand._clock)
        by_hand.watch._slow._collections = Collections()
        hear = by_hand.watch._slow._collections._listener
        hear("start", {"generation": 2})
        by_hand.now_ms += 800
        hear("stop", {"generation": 2})
    by_hand.watch.tick()
    by_hand.steps(100.0)
    assert [(row.cause, row.wall_ms) for row in by_hand.slow()] == [("garbage collection", 900.0)]


def test_status_is_written_only_after_progress(by_hand, tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "STATUS_S", 0.0)
    by_hand.steps(*QUIET)
    said = tmp_path / layout.status(0)
    said.unlink()
    by_hand.watch.tick()
    assert not said.exists()
    by_hand.steps(100.0)
    assert said.exists()


def test_answer_to_a_call_has_the_current_step_time(by_hand):
    by_hand.steps(*[100.0] * 50, is_followed=False)
    where = by_hand.watch.where()
    assert (where.step, where.median_ms) == (50, 100.0)


def test_rank_without_files_has_no_status(by_hand, tmp_path):
    by_hand.loop.run = None
    by_hand.steps(*QUIET, 1000.0)
    assert list(tmp_path.iterdir()) == []


def test_steps_are_judged_by_the_limit_at_their_begin(by_hand):
    """As where the watcher could not look for a while: forty slow steps at once are not the usual ones."""
    by_hand.steps(*QUIET)
    by_hand.steps(*[1000.0] * 40, is_followed=False)
    by_hand.watch.tick()
    assert [(row.step, row.times_median) for row in by_hand.slow()] == [(step, 10.0) for step in range(20, 60)]


@pytest.mark.slow
def test_sampling_starts_before_a_step_is_slow_and_slows_down(by_hand):
    """Every 5 ms at first; a checkpoint that takes minutes is not worth as much. Such steps are slow from 350 ms on."""
    by_hand.steps(*QUIET)
    began, looks = by_hand.now_ms, []
    while by_hand.now_ms < began + 60_000:
        looks.append(by_hand.now_ms - began)
        by_hand.now_ms += 1000 * by_hand.watch.check()
    assert looks[:3] == pytest.approx([0, 162.5, 167.5], abs=1)
    assert sum(each < 662 for each in looks) == pytest.approx(101, abs=2)
    assert 300 < sum(each < 5500 for each in looks) < 400
    assert sum(each > 20_000 for each in looks) == pytest.approx(400, abs=10)


def test_restarted_step_loses_its_samples(by_hand, monkeypatch):
    """As a loop that was paused in the middle of a step."""
    told = []
    monkeypatch.setattr(Explainer, "explain", lambda _, seen: told.append(seen) or Explanation("own code", 0, None))
    by_hand.steps(*QUIET)
    for _ in range(300):
        by_hand.now_ms += 10
        by_hand.watch.check()
    by_hand.loop.timeline.begin(20)
    began = by_hand.now_ms
    by_hand.steps(1000.0, looks=range(400, 1000, 10))
    (seen,) = told
    assert seen.wall_ns / 1e6 == pytest.approx(1000)
    assert len(seen.samples) == 60
    assert min(look.at for look in seen.samples) / 1e6 > began
    assert test_restarted_step_loses_its_samples.__code__ in {frame.code for frame in seen.after}


@pytest.mark.recorder
def test_own_work_is_in_no_step(monkeypatch):
    """A window takes two seconds to end, before a step that is slow by itself, and others that are not."""
    now, told, modules = [10**9], [], (slow, timeline, profiler_module)
    for module in modules:
        monkeypatch.setattr(module, "clock", lambda: now[0])
    monkeypatch.setattr(Explainer, "explain", lambda _, seen: told.append(seen) or Explanation("own code", 0, None))

    def spend(wall_ms):
        for _ in range(0, wall_ms, 10):
            now[0] += 10_000_000
            watched.check()

    prof = Profiler(schedule="wait=16 warmup=1 active=1 repeat=2", on_trace_ready=lambda _: spend(2000), watch=False)
    watched = watch.Watch(prof._course.loop)
    with prof:
        for step in range(45):
            spend(1000 if step in (36, 40) else 100)
            prof.step()
            watched.tick()
    watched.end()
    assert [0.5e9 < seen.sampled_ns < 0.9e9 for seen in told] == [True, True]
    usual = watched._slow._explainer.usual.samples
    looks = [*usual, *told[0].samples, *told[1].samples]
    assert len(usual) > 10
    assert {"spend", "advance"} & {frame.name for look in looks for frame in look.stack} == {"spend"}


def test_has_no_slow_is_false_before_the_limit_is_known(by_hand):
    by_hand.steps(*[100.0] * 9)
    assert not by_hand.loop.has_no_slow(0)
    by_hand.steps(*QUIET)
    assert by_hand.loop.has_no_slow(12)
    by_hand.steps(1000.0)
    assert not by_hand.loop.has_no_slow(12)
    assert by_hand.loop.has_no_slow(30)


def test_folded_stacks_are_bounded_and_known_stacks_count():
    folded = FoldedStacks()
    (frame,) = stack_of(threading.get_ident())[-1:]
    for line in range(20_000):
        folded.add([Sample((frame._replace(line=line),), 1000)])
    folded.add([Sample((frame._replace(line=0),), 10**9)])
    lines = folded.text().splitlines()
    assert len(lines) == 5000
    assert sum(int(each.rpartition(" ")[2]) for each in lines) == 4999 + 1000, "at least a millisecond each"


def test_a_stack_of_a_deep_recursion_has_its_innermost_frames():
    def down(depth):
        return down(depth - 1) if depth else stack_of(threading.get_ident())

    stack = down(500)
    assert 190 <= len(stack) <= 200
    assert {frame.name for frame in stack} == {"down"}


LEAVES_ITS_FRAMES = """
import gc, sys, threading
from perfhooks.record.watch.sampling import stack_of

reader, deep, may_leave, left = threading.current_thread(), threading.Event(), threading.Event(), threading.Event()

def down(depth):
    if depth:
        return down(depth - 1)
    deep.set()
    may_leave.wait()

def reuse(depth, *numbers):
    # other frames in the memory of those that the thread left
    if depth:
        return reuse(depth - 1, *numbers, depth)
    left.set()
    done.wait()

def recurse():
    down(150)
    reuse(100)

def leave(phase, info):
    # a finalizer of the program that releases the GIL
    if phase == "start" and threading.current_thread() is reader and deep.is_set():
        may_leave.set()
        left.wait()

gc.callbacks.append(leave)
for allocations in range(40, 60):
    done = threading.Event()
    for event in (deep, may_leave, left):
        event.clear()
    thread = threading.Thread(target=recurse)
    thread.start()
    deep.wait()
    gc.disable()
    gc.set_threshold(allocations)
    gc.callbacks.clear()
    gc.collect()
    gc.callbacks.append(leave)
    gc.enable()
    stack = stack_of(thread.ident)
    gc.set_threshold(700)
    assert gc.isenabled()
    may_leave.set()
    done.set()
    thread.join()
    names = [frame.name for frame in stack]
    assert names.count("recurse") == 1, stack
    assert names.count("down") == 151 or "down" not in names, stack
print("read")
"""


@pytest.mark.process
def test_a_garbage_collection_does_not_change_a_stack_that_is_read(run_script):
    """In Python 3.11 the collection began in the middle, the thread left its frames, and the program crashed."""
    result = run_script(LEAVES_ITS_FRAMES)
    assert (result.returncode, result.stdout) == (0, "read\n"), result.stderr


@pytest.mark.parametrize("function", ["_current_frames", "pthread_getcpuclockid"])
def test_memory_of_other_threads_is_read_in_one_place(function):
    package = Path(perfhooks.__file__).parent
    files = {path.name for path in package.rglob("*.py") if f".{function}" in path.read_text(encoding="utf-8")}
    assert files - {"interpreter.py"} == {"sampling.py"}, "interpreter.py reads a thread that waits"


ENDED_TRAINING = """
import threading, time
import perfhooks
from perfhooks.record.watch import watcher

def train():
    profiler = perfhooks.Profiler(out="perf", run="r", schedule="wait=1000000000 warmup=1 active=1")
    profiler.start()
    profiler.step()

def is_mapped(address):
    spans = (line.split()[0].split("-") for line in open("/proc/self/maps"))
    return any(int(first, 16) <= address < int(last, 16) for first, last in spans)

threading.stack_size(64 << 20)  # larger than the cache of the C library for memory of ended threads
training = threading.Thread(target=train)
training.start()
threading.stack_size(128 << 20)  # no later thread fits into the memory of the ended one
training.join()
while is_mapped(training.ident):
    others = [threading.Thread(target=time.sleep, args=(0.1,)) for _ in range(4)]
    for act in (threading.Thread.start, threading.Thread.join):
        for other in others:
            act(other)
with watcher._watcher._working:
    for watch in watcher._watcher._watches.values():
        watch._next_status = 0.0
        watch.tick()
print("read")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the mappings of the process")
@pytest.mark.process
def test_counters_of_an_ended_training_thread_are_empty(tmp_path, run_script):
    """The C library read the clock of the thread in memory that the system had unmapped."""
    done = run_script(ENDED_TRAINING)
    assert (done.returncode, done.stdout) == (0, "read\n"), done.stderr


def test_variables_of_a_sampled_frame_are_freed_in_their_own_thread():
    freed, entered, leave = [], threading.Event(), threading.Event()

    class Owned:
        def __del__(self):
            freed.append(threading.current_thread())

    def train():
        owned = Owned()
        entered.set()
        leave.wait()
        return owned is None

    thread = threading.Thread(target=train)
    thread.start()
    entered.wait()
    read = frames_of(thread.ident), variables_of(thread.ident, {train.__code__}, "thread", "owned_by")
    leave.set()
    thread.join()
    assert freed == [thread]
    assert train.__code__ in [frame.code for frame in read[0]]
    assert read[1] == [(train.__code__, None, None)]


def test_sample_of_a_deep_recursion_reads_few_frames():
    """Each frame is made an object where it is looked at: 100,000 of them take 40 ms, in which nobody else computes."""

    def down(depth):
        return down(depth - 1) if depth else len(list(outwards(sys._getframe())))

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(5000)
    try:
        assert down(3000) == down(2000) == 1000
    finally:
        sys.setrecursionlimit(limit)


def test_collections_have_their_time_in_a_step_and_their_line(monkeypatch):
    now = [0]
    monkeypatch.setattr(counters, "clock", lambda: 1_000_000 * now[0])
    collections = Collections(threading.get_ident())

    def collect(begin, end):
        for now[0], phase in ((begin, "start"), (end, "stop")):
            collections._listener(phase, {})

    def spent_ms(begin, end):
        return collections.within(begin * 1_000_000, end * 1_000_000)[0] / 1e6

    collect(100, 110)
    collect(120, 120.9)
    collect(200, 260)
    assert spent_ms(105, 250) == 5 + 50, "usual collections of young objects are too short to count"
    assert collections.within(0, 10**9)[1].name == "collect"
    assert collections.within(300 * 10**6, 400 * 10**6) == (0, None)
    collections.forget(150 * 10**6)
    assert spent_ms(0, 1000) == 60
    for begin in range(1000, 200_000, 10):
        collect(begin, begin + 1)
    assert 1000 < spent_ms(0, 10**6) < 5000, "what nobody asks for is not kept for ever"


def test_collection_of_another_thread_has_no_line():
    collections = Collections(thread=-1)
    for phase in ("start", "stop"):
        collections._listener(phase, {})
    assert collections.ns_by_thread()[threading.get_ident()] > 0
    (((_, _, place), _),) = collections._new
    assert place == ()


BEGINS_FRAMES = """
import gc, threading
from perfhooks.record.watch.counters import Collections
c = Collections(threading.get_ident()); c.listen()
class Numbers:
    def __init__(self, **numbers):
        self.numbers, self.myself = numbers, self
    @property
    def all(self):
        return [self.numbers, (lambda: self)]
    def __iter__(self):
        yield from (lambda: [self.all])()
def make(a, b, *args, **kw):
    x = [a]; y = {b: x}
    def inner(q):
        nonlocal x
        def deeper(): return (x, y, q, a)
        x = deeper()
        return [*args, kw]
    def gen():
        for i in range(3):
            z = [i, x]
            yield (lambda: (z, y))
    return inner([b]), [g() for g in gen()], {k: inner(k) for k in range(2)}
for threshold in (3, 2, 4, 5, 6, 7, 8, 9):
    gc.set_threshold(threshold)
    for number in range(6000):
        list(Numbers(a=number, b=[number]))
        make(number, str(number), 1, 2, three=3)
print("made")
"""


@pytest.mark.process
def test_a_collection_may_begin_before_a_function_begins(run_script):
    """For a frame that has not begun, `sys._getframe` returned an object that crashed Python 3.11."""
    result = run_script(BEGINS_FRAMES)
    assert (result.returncode, result.stdout) == (0, "made\n"), result.stderr


def test_ctrl_c_in_a_collection_reaches_the_program():
    """Python drops an exception in a callback of the collection, so the callback runs no Python."""

    class Node:
        pass

    gc.collect()
    node = Node()
    node.itself = node
    presses = map(operator.methodcaller("__call__"), itertools.repeat(_thread.interrupt_main))
    pressed = weakref.ref(node, functools.partial(next, presses))
    del node
    collections, others = Collections(threading.get_ident()), gc.callbacks[:]
    gc.callbacks.clear()
    collections.listen()
    try:
        gc.collect()
        is_lost = True
    except KeyboardInterrupt:
        is_lost = False
    finally:
        gc.callbacks[:] = others
    assert not is_lost, pressed


def test_run_queue_wait_is_of_the_current_training_thread(monkeypatch):
    """A share of the time since it was first looked at."""
    now = [0]
    monkeypatch.setattr(counters.time, "monotonic_ns", lambda: now[0])
    queueing = counters.Queueing()

    def share(native, time, waited):
        now[0] = time
        return queueing.share(mock.Mock(native=native, waited_ns=lambda: waited))

    assert share(1, 100, 50) is None
    assert share(1, 200, 75) == 0.25
    assert share(2, 300, 1000) is None
    assert share(2, 400, 1010) == 0.1
    assert share(2, 500, 5000) == 1.0
    assert share(2, 600, None) is None


def test_run_queue_wait_is_since_the_previous_window(monkeypatch):
    waited = iter([10e9, 10e9, 11e9, 11e9, 11e9, 11e9])
    now = iter(number * 10**9 for number in (50, 50, 50, 54, 54, 56, 56))
    monkeypatch.setattr(counters.time, "monotonic_ns", lambda: next(now))
    monkeypatch.setattr(counters, "clock_s", lambda: 100.0)
    monkeypatch.setattr(counters, "born_s", lambda _: 60.0)
    monkeypatch.setattr(counters.time, "time", lambda: 0.0)  # the system clock may be changed
    monkeypatch.setattr(counters.CountedThread, "waited_ns", lambda _: next(waited))
    queueing = counters.Queueing()
    assert [queueing.since_last() for _ in range(3)] == pytest.approx([0.25, 0.25, 0.0], abs=0.01)


def asked_for(by_hand):
    return [(asked.by, asked.first) for asked in by_hand.loop.inbox]


def test_slow_steps_request_windows_only_with_trigger(by_hand):
    by_hand.steps(*QUIET, 1000.0)
    assert (len(by_hand.slow()), asked_for(by_hand)) == (1, [])


def test_slow_step_requests_no_second_window(by_hand):
    """The first one asks for the steps that follow it: 21 is their warm-up, and 24 the last."""
    by_hand.loop.triggers = True
    by_hand.steps(*QUIET, *[1000.0] * 5)
    assert asked_for(by_hand) == [("slow", None)]
    by_hand.steps(*QUIET, 1000.0)
    assert asked_for(by_hand) == [("slow", None)] * 2


def test_window_covers_the_next_periodic_slow_step(by_hand):
    by_hand.loop.triggers = True
    by_hand.steps(*([100.0] * 29 + [1000.0]) * 3)
    assert asked_for(by_hand) == [("slow", None), ("slow", None), ("slow", 118)], "steps 29, 59 and 89 were slow"
    by_hand.steps(*[100.0] * 14, 1000.0, *[100.0] * 14, 1000.0)
    assert len(asked_for(by_hand)) == 3, "one that is still to come is enough"


def test_slow_steps_request_at_most_ten_windows(by_hand):
    by_hand.loop.triggers = True
    draw = random.Random(7)
    for _ in range(40):
        by_hand.steps(*[100.0] * draw.randrange(10, 40), 1000.0)
    assert len(by_hand.slow()) == 40
    assert len(asked_for(by_hand)) == 10


def test_explanation_of_a_slow_step_knows_other_ranks(by_hand, monkeypatch):
    told, explain = [], Explainer.explain
    monkeypatch.setattr(Explainer, "explain", lambda self, of: told.append(of.is_distributed) or explain(self, of))
    by_hand.steps(*QUIET, 1000.0)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    by_hand.steps(1000.0)
    assert told == [False, True]


def test_a_quiet_loop_logs_no_slow_step(by_hand, caplog):
    caplog.set_level("INFO", "perfhooks")
    by_hand.loop.is_quiet = True
    by_hand.steps(*QUIET)
    by_hand.steps(1000.0, data_ms=600.0)
    assert [row.cause for row in by_hand.slow()] == ["data"]
    assert not caplog.records


def test_log_line_has_the_cause_and_its_time(by_hand, caplog):
    """The first of a kind, then the third, the tenth, and so on; a step that nobody knows anything of is a row."""
    caplog.set_level("INFO", "perfhooks")
    by_hand.steps(*QUIET)
    by_hand.steps(1000.0, data_ms=600.0)
    by_hand.steps(1100.0, data_ms=1050.0)
    by_hand.steps(2000.0)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["step 20 took 1 s, 10 times the median: data, which explains 600 ms"]
    assert [row.explained_ms for row in by_hand.slow()] == [600.0, 1000.0, None], "never more than the excess"
    caplog.clear()
    by_hand.steps(*QUIET)
    for _ in range(8):
        by_hand.steps(1000.0, data_ms=600.0)
    said = [record.getMessage() for record in caplog.records]
    assert said == ["3 slow steps so far, 1.03 s on average: data", "10 slow steps so far, 1.01 s on average: data"]


def test_slow_step_of_another_loop_names_the_loop(by_hand):
    by_hand.steps(*QUIET)
    by_hand.steps(1000.0, data_ms=600.0)
    (row,) = by_hand.slow()
    assert str(row._replace(stage="validate")) == f"validate {row}"


def test_log_omits_unknown_causes_and_cpu_contention(caplog):
    caplog.set_level("INFO", "perfhooks")
    log, row = (
        slow_steps.Log(),
        slow_steps.SlowStep(
            "train", 7, 1000.0, 10.0, "unknown", None, "main (train.py:3)", None, 0.0, None, None, None, None
        ),
    )
    for cause in ("unknown", "CPU contention", "data"):
        log.say(row._replace(cause=cause))
    assert [record.getMessage().count("data") for record in caplog.records] == [1]


def test_pace_is_unknown_before_some_steps_have_ended():
    pace = Pace()
    pace.add([10**6] * 9)
    assert pace.limit_ns is None
    pace.add([10**6])
    assert (pace.median_ns, pace.limit_ns) == (10**6, 53 * 10**6)


def test_first_five_steps_do_not_set_the_pace():
    whole, in_parts = Pace(), Pace()
    walls = [10**9] * 5 + [10**6] * 5
    whole.add(walls)
    for wall in walls:
        in_parts.add([wall])
    assert whole.median_ns == in_parts.median_ns == 10**6


def test_sampling_interval_depends_on_the_cost_of_samples():
    """One that takes 0.15 ms rests for 0.2 s, which is 0.075% of a core; a poll is no look."""
    spent = [0.0]
    thrift = watcher.SamplingBudget(lambda: spent[0])
    rests = []
    for look in range(100):
        is_poll = look % 10 == 9
        spent[0] += 0.005 if is_poll else 0.00015
        rests.append(thrift.rest(is_usual=not is_poll))
    assert rests == sorted(rests)
    assert rests[0] < 0.05
    assert rests[-1] == pytest.approx(0.2, rel=0.01)
    spent[0] += 1.0
    assert thrift.rest(is_usual=True) == 0.5, "a slow step of a second is seen, whatever looks take"


@pytest.mark.parametrize(
    ("slow_steps", "next_step"),
    [
        ([100, 200, 300], 400),
        ([100, 201, 300, 399], 498),
        ([100, 200, 301, 403], 504),
        ([100, 200, 303, 409], None),
        ([100, 200], None),
        ([100, 130, 300, 301], None),
        ([7, 8, 9, 10], None),
    ],
)
def test_periodic_slow_steps_are_predicted(slow_steps, next_step):
    """To a step."""
    assert predict(slow_steps) == next_step


def test_cause_explains_at_least_half_of_the_excess():
    seen = StepFacts(
        wall_ns=1000, median_ns=100, wait_ns=400, garbage_ns=300, garbage_at=None, samples=[], counters=Counters(),
        is_distributed=False,
    )  # fmt: skip
    explain = Explainer(Installation.current()).explain
    assert explain(seen)[:2] == ("unknown", None)
    assert explain(seen._replace(wait_ns=500))[:2] == ("data", 500)
    assert explain(seen._replace(garbage_ns=500, wait_ns=900))[:2] == ("garbage collection", 500)
    assert explain(seen._replace(validation_ns=500, wait_ns=900))[:2] == ("evaluation", 500)


def all_reduce():
    return stack_of(threading.get_ident())


def test_idle_backward_pass_waits_for_other_ranks():
    (frame,) = all_reduce()[-1:]
    code = frame.code.replace(co_filename="/site-packages/torch/autograd/graph.py")
    stack = ((frame._replace(code=code)),)
    seen = StepFacts(
        wall_ns=1000, median_ns=100, wait_ns=-1, garbage_ns=0, garbage_at=None, samples=[Sample(stack, 800)],
        counters=Counters(cpu_ns=20), is_distributed=True,
    )  # fmt: skip
    explain = Explainer(Installation.current()).explain
    assert explain(seen).cause == "other ranks"
    assert explain(seen._replace(is_distributed=False)).cause == "unknown"
    assert explain(seen._replace(counters=Counters(cpu_ns=790))).cause == "unknown"
    assert explain(seen._replace(samples=[Sample(stack, 400)])).cause == "unknown", "one look is not the whole step"


# --- in a training ---


@pytest.mark.worker
def test_slow_step_requests_a_window_during_a_timeline_write(tmp_path, monkeypatch):
    monkeypatch.setattr(watch, "WRITE_S", 0.05)
    run = tmp_path / "r"
    with Profiler(
        schedule="on request", out=tmp_path, run="r", poll=0.02, trigger="slow", on_trace_ready="steps"
    ) as prof:
        keep_stepping(prof, lambda: prof._course.loop.limit_ns is not None)
        time.sleep(0.5)
        keep_stepping(prof, lambda: any(run.glob("train-*")))
        keep_stepping(prof, (run / "rank0.slow.csv").exists)
        reached = prof.step_num
        keep_stepping(prof, lambda: len((run / "rank0.timeline.csv").read_text().splitlines()) > reached)
    assert prof.wait()  # many steps that the watcher has left are written by the worker
    captures = [place.load() for place in prof._course.windows.handover.places]
    assert {capture.request for capture in captures} == {"slow"}, "a busy machine makes a step slow by itself"
    with (run / "rank0.timeline.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == list(range(prof.step_num)), "each once, in their order"


@pytest.mark.recorder
def test_first_steps_are_written_early(tmp_path, monkeypatch):
    """A training that is killed in its first seconds has a step time, too."""
    monkeypatch.setattr(watch, "WRITE_S", 600.0)
    with Profiler(schedule="on request", out=tmp_path, run="r", poll=0.02, background=False) as prof:
        keep_stepping(prof, (tmp_path / "r/rank0.timeline.csv").exists, most_s=300)
        assert prof.step_num < timeline.CAPACITY, "the training writes so many by itself"


@pytest.mark.recorder
@pytest.mark.parametrize(("limit", "kept"), [(1e15, []), (0.0, ["train-000003-000004"])])
def test_windows_without_a_slow_step_can_be_dropped(tmp_path, limit, kept):
    with Profiler(
        schedule="wait=2 warmup=1 active=2 repeat=1", out=tmp_path, run="r", poll=3600, keep="slow", background=False,
        on_trace_ready="steps",
    ) as prof:  # fmt: skip
        prof._course.loop.limit_ns = limit
        for _ in range(6):
            MATRIX @ MATRIX
            prof.step()
    assert [folder.name for folder in (tmp_path / "r").glob("train-*")] == kept


def be_late():
    while too_short():
        time.sleep(NAP_S)


@pytest.mark.recorder
def test_report_shows_slow_steps_after_the_last_window(tmp_path, monkeypatch):
    monkeypatch.setattr(watcher, "_SHARE", 1.0)
    schedule = "wait=2 warmup=0 active=1 repeat=1"
    with Profiler(schedule=schedule, out=tmp_path, run="r", poll=0.05, background=False) as prof:
        keep_stepping(prof, lambda: prof._course.loop.limit_ns is not None)
        be_late()
        prof.step()
    assert "be_late" in (tmp_path / "r" / "report.html").read_text()


@pytest.mark.parametrize("watch", [True, False])
def test_watch_false_starts_no_watcher(tmp_path, watch):
    with Profiler(schedule="on request", out=tmp_path, run="r", watch=watch, background=False) as prof:
        prof.step()
    assert (tmp_path / "r/rank0.status.json").exists() is watch


@pytest.mark.slow
def test_loop_ends_after_the_watcher_has_written_its_last_status(tmp_path, monkeypatch):
    is_writing, detach = threading.Event(), watcher.detach

    def write_slowly(path, status):
        if not status.loop.is_running and threading.current_thread().name == watcher.NAME:
            is_writing.set()
            time.sleep(0.2)
        publish_json(path, status)

    def detach_late(loop):
        assert is_writing.wait(60)
        detach(loop)

    monkeypatch.setattr(watch, "publish_json", write_slowly)
    monkeypatch.setattr(watch, "STATUS_S", 0.0)
    monkeypatch.setattr(watcher, "detach", detach_late)
    with Profiler(schedule="on request", out=tmp_path, run="r", poll=0.01, background=False) as prof:
        prof.step()
    assert not json.loads((tmp_path / "r/rank0.status.json").read_bytes())["loop"]["is_running"]


@pytest.mark.slow
def test_folder_is_checked_at_the_poll_interval(tmp_path, monkeypatch):
    """Sixty times, which at the usual once a second take longer than this waits."""
    looks = []
    monkeypatch.setattr(watcher.RequestInbox, "collect", lambda *_: looks.append(1))
    with Profiler(schedule="on request", out=tmp_path, run="r", poll=0.01, background=False) as prof:
        keep_stepping(prof, lambda: len(looks) >= 60, most_s=50)


# --- faults ---


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks, and limits the size of files")
def test_training_continues_if_the_watcher_fails(tmp_path, channel):
    """Three profilers; a tracer, a fork, a full disk and a read-only folder in slow steps, and an end in one."""
    tmp_path.chmod(0o755)
    done = warm.run(channel, SCRIPT.with_name("faulty_training.py"), tmp_path / "perf", timeout=300, is_whole=True)
    assert done.stdout.splitlines() == ["forked 0", "equal True", "said 3", "watched True"], done.stderr
    assert done.returncode == 3, done.stderr
    assert "Traceback" not in done.stderr
    for name in "abc":
        found = {row.step for row in slow_steps.read(tmp_path / "perf" / name / "rank0.slow.csv")}
        assert found >= {31, 41, 71}
        assert not found & {51, 61}, "no file could be written"


def threads():
    return [thread for thread in threading.enumerate() if thread.name == watcher.NAME]


@pytest.mark.recorder
def test_dead_watcher_is_one_log_line(tmp_path, monkeypatch, caplog):
    def broken(self):
        raise ZeroDivisionError

    monkeypatch.setattr(watch.Watch, "tick", broken)
    with Profiler(schedule="on request", out=tmp_path, poll=0.01, background=False) as prof:
        keep_stepping(prof, lambda: "the watcher stopped (ZeroDivisionError)" in caplog.text)
        prof.request(1)
        keep_stepping(prof, lambda: prof._course.windows.handover.places)
    for thread in threads():
        thread.join(60)
    assert not threads()


@pytest.mark.process
def test_profilers_share_one_thread_that_ends_with_them(tmp_path):
    options = {"schedule": "on request", "out": tmp_path, "poll": 0.01, "background": False}
    profilers = [Profiler(run=name, **options) for name in "abc"]
    for prof in profilers:
        prof.start()
    until = time.monotonic() + 60
    # beside busy threads, another thread opens the run folder first; the watcher of another test may still be there
    while len(threads()) != 1 and time.monotonic() < until:
        time.sleep(0.01)
    (thread,) = threads()
    if hasattr(os, "fork"):
        child = os.fork()
        if not child:
            os._exit(len(threads()) + 2 * lifetime.has_profilers())
        assert os.waitpid(child, 0)[1] == 0
    for prof in profilers:
        prof.pause()
        prof.stop()
    thread.join(60)
    assert not thread.is_alive()


ENDS = """
from perfhooks.run.timeline import Timeline
from perfhooks.record.watch import watcher
from perfhooks.record.watch.loops import WatchedLoop

watcher.attach(WatchedLoop(Timeline("train"), "train", 60.0, step=int, wake=int))
"""


def test_process_with_a_watched_loop_ends_with_its_program(run_script):
    """As that of a program which never stops its profiler."""
    assert run_script(ENDS, is_whole=True).returncode == 0


@pytest.mark.slow
def test_deleted_folder_and_tracer_change_nothing(tmp_path, caplog):
    import shutil

    def trace(*event):
        seen.append(event)

    seen = []
    with Profiler(schedule="on request", out=tmp_path, run="r", poll=0.01, background=False) as prof:
        sys.settrace(trace)
        keep_stepping(prof, lambda: prof._course.loop.limit_ns is not None)
        sys.settrace(None)
        with watcher._watcher._working:  # else it may write into the folder while this is deleted
            shutil.rmtree(tmp_path / "r")
            (tmp_path / "r").touch()
        limit = prof.step_num + 300
        keep_stepping(prof, lambda: prof.step_num >= limit)
        assert watcher._watcher._thread.is_alive()
        (tmp_path / "r").unlink()
    assert prof.step_num >= limit
    assert seen
    assert not [record for record in caplog.records if record.exc_info]


CROWDED = """
import os, subprocess, sys, threading, time
import perfhooks
from perfhooks.record.watch.counters import CountedThread

os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
busy = "import os, sys\\nprint(flush=True)\\nwhile os.getppid() == int(sys.argv[1]): pass"
other = subprocess.Popen([sys.executable, "-c", busy, str(os.getpid())], stdout=subprocess.PIPE)
other.stdout.readline()
thread = CountedThread(threading.get_native_id())
with perfhooks.Profiler(out="perf", run="r", schedule="wait=1000000000 warmup=1 active=1") as prof:
    def clocks():
        return time.monotonic_ns(), thread.cpu_ns() + thread.waited_ns(), thread.waited_ns()
    before = now = clocks()
    while now[2] - before[2] < 1_500_000_000:
        sum(range(1000))
        prof.step()
        now = clocks()
other.kill()
print((now[0] - before[0] - now[1] + before[1]) / 1e6)
"""


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel does not tell")
def test_run_queue_wait_is_written_to_the_run_folder(tmp_path, run_script):
    """Two programs on one processor: each waits for the other, half of the time if there is no third."""
    done = run_script(CROWDED, timeout=300)
    assert done.returncode == 0, done.stderr
    stopped = float(done.stdout)  # milliseconds in which it neither ran nor waited
    waits = read_waits(tmp_path / "perf/r/rank0.processor.csv", "train")
    steps = FinishedRun(tmp_path / "perf/r").steps["train"]
    assert [row.first for row in waits.intervals[1:]] == [row.last for row in waits.intervals[:-1]]
    assert waits.intervals[-1].last == steps.numbers[-1] + 1
    total = sum(row.wall_ms for row in waits.intervals)
    inside = (steps.numbers >= waits.intervals[0].first) & (steps.numbers < waits.intervals[-1].last)
    assert 0.5 * steps.wall_ms[inside].sum() < total < 2 * steps.wall_ms[inside].sum()
    waited, computed, by_all = (
        sum(getattr(row, name) for row in waits.intervals) for name in ("waited_ms", "thread_ms", "process_ms")
    )
    assert 0.2 < waited / (total - stopped) <= 1
    assert Status.read(tmp_path / "perf/r", 0).waited == pytest.approx(waited / total, abs=0.1)
    # a loop that never sleeps runs or waits; its clocks are read some time slices after a step has ended
    assert waited + computed == pytest.approx(total - stopped, rel=0.2, abs=100)
    assert by_all >= computed > 0
    assert 0.2 * (1 - stopped / total) < waits.shares(steps.numbers).mean() <= 1


def test_cpu_time_of_own_processes_is_not_of_other_programs(tmp_path, monkeypatch):
    """By files as the system's: two processors, a worker with one of its own, and somebody else's program."""
    own = str(os.getpid())

    def ticks(all_of_them, worker, of_worker):
        children = {own: f"{own}1", f"{own}1": f"{own}2 {own}3", f"{own}2": "", f"{own}3": ""}  # the last has ended
        for pid, below in children.items():
            (tmp_path / pid / "task" / pid).mkdir(parents=True, exist_ok=True)
            (tmp_path / pid / "task" / pid / "children").write_text(below)
        for pid, used in ((f"{own}1", worker), (f"{own}2", of_worker)):
            fields = ["S", *"0" * 10, str(used), "3", "2", "1", *"0" * 30]
            (tmp_path / pid / "stat").write_text(f"{pid} (a ) name) {' '.join(fields)}")
        used = [all_of_them - 6, 1, 1, 10**9, 10**9, 1, 1, 2, 0, 0]
        (tmp_path / "stat").write_text(f"cpu  {' '.join(map(str, used))}\ncpu0 1 1 1 1\n")

    monkeypatch.setattr(counters, "_PROC", tmp_path)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(os, "times", lambda: (1.0, 0.5, 0.25, 0.25, 99.0))
    tick = 1e9 / os.sysconf("SC_CLK_TCK")
    ticks(100_000, 10, 20)
    first = counters.others_ns()
    ticks(100_000 + 70 + 30 + 40, 80, 50)
    assert counters.others_ns() - first == pytest.approx(40 * tick / 2)
    (tmp_path / "stat").write_text("cpu  0 0 0 0 0 0 0 0\n")
    assert math.isnan(counters.others_ns()), "a sandbox that tells nobody"
    (tmp_path / "stat").unlink()
    assert math.isnan(counters.others_ns())


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/stat").exists(), reason="the system does not tell")
def test_cpu_time_of_a_foreign_program_is_of_other_programs():
    before = counters.others_ns()
    starts = (
        "import os, subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())]); "
        "os._exit(0)"
    )
    # if it ended earlier, its parent would have its time, and we that of its parent
    burns = (
        "import os, sys, time\nwhile os.getppid() == int(sys.argv[1]): time.sleep(0.01)\n"
        "while time.process_time() < 0.5: pass"
    )
    # the pipe is read until both have ended
    subprocess.run([sys.executable, "-c", starts, burns], capture_output=True, check=True, timeout=300)
    assert counters.others_ns() - before > 0.4e9 / os.cpu_count()


@pytest.mark.parametrize(("ranks", "is_told"), [(1, True), (2, False)])
def test_cpu_time_of_other_programs_is_unknown_with_ranks(monkeypatch, ranks, is_told):
    monkeypatch.setattr(counters, "current_job", lambda: SimpleNamespace(world_size=ranks))
    seen = counters.CpuWaits()
    for step in (3, 5):
        seen.read(threading.get_native_id(), step)
    (row,) = seen.rows
    assert (row.first, row.last, math.isnan(row.others_ms)) == (3, 5, not is_told)


@pytest.mark.recorder
def test_threads_of_perfhooks_add_few_calls_to_a_trace(tmp_path):
    schedule = "wait=1 warmup=1 active=200 repeat=1"
    options = {"with_stack": True, "background": False, "on_trace_ready": "trace"}
    began = time.monotonic()
    with Profiler(schedule=schedule, out=tmp_path, run="r", **options) as prof:
        for _ in prof.steps(range(205)):
            time.sleep(0.005)
    seconds = time.monotonic() - began
    (path,) = (tmp_path / "r").glob("train-*/rank0.pt.trace.json.gz")
    with gzip.open(path) as file:
        calls = [each["name"] for each in json.load(file)["traceEvents"] if each.get("cat") == "python_function"]
    ours = [name for name in calls if "perfhooks/record/watch/" in name or "ending/in_step.py" in name]
    assert len(ours) < 60 * max(seconds, 1.0), ours
