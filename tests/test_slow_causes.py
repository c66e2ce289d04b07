"""What tells the cause of a slow step: looks at a thread, what a run usually does, and what its source says."""

from __future__ import annotations

import csv
import sys
import threading
import time
from functools import cache
from types import SimpleNamespace

import pytest
import torch

import perfhooks
from perfhooks.adapters import Parts
from perfhooks.core import labels
from perfhooks.core.thread_time import CountedThread
from perfhooks.record.launch import loaders
from perfhooks.record.launch.step_detectors import Events
from perfhooks.record.watch.causes import Explainer, StepFacts
from perfhooks.record.watch.counters import Counters
from perfhooks.record.watch.samples import FoldedStacks, Sample, Sampler, State
from perfhooks.record.watch.sampling import Frame
from perfhooks.record.watch.usual import beyond
from perfhooks.run import installation
from perfhooks.run.installation import Installation
from perfhooks.run.timeline import Timeline, clock

MS = 10**6
linux = pytest.mark.skipif(sys.platform != "linux", reason="the kernel does not tell")


class Stopped:
    """A thread that has come to where a function waits, to be looked at from here."""

    def __init__(self, work):
        self._met, self._go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=work, args=(self.wait,))

    def wait(self):
        self._met.set()
        self._go.wait()

    def __enter__(self):
        self._thread.start()
        self._met.wait()
        return self._thread

    def __exit__(self, *_):
        self._go.set()
        self._thread.join()


def look_at(thread, looker=None, late_ns=0):
    return (looker or Sampler()).sample(thread.ident, thread.native_id, now=1, spent_ns=5 * MS, late_ns=late_ns)


def facts(*looks, wall=1000 * MS, **more):
    known = {
        "wall_ns": wall, "median_ns": 100 * MS, "wait_ns": -1, "garbage_ns": 0, "garbage_at": None, "samples": looks,
        "counters": Counters(), "is_distributed": False,
    }  # fmt: skip
    return StepFacts(**known | more)


def explainer(*usual):
    """One that knows what usual steps do."""
    made = Explainer(Installation.current())
    for look in usual:
        made.usual.add(look)
    return made


# --- looks ---


def test_late_sample_has_waited_for_the_gil():
    """It sees the line exactly where the interpreter was let go on time or because Python had to; else only nearly."""
    with Stopped(lambda wait: wait()) as thread:
        looks = [look_at(thread, late_ns=int(late_ms * MS)) for late_ms in (0.1, 2, 6)]
    assert [(look.is_held, look.is_exact) for look in looks] == [(False, True), (True, False), (True, True)]
    folded = FoldedStacks()
    folded.add(looks)
    assert sum("held the interpreter" in line for line in folded.text().splitlines()) == 1


@linux
def test_wait_of_a_thread_comes_from_the_system():
    done = threading.Event()

    def sleep():
        while not done.is_set():
            time.sleep(0.1)

    waiting, sleeping = threading.Thread(target=done.wait, args=(300,)), threading.Thread(target=sleep)
    for thread in (waiting, sleeping):
        thread.start()
    try:
        for thread in (waiting, sleeping):
            looker, until = Sampler(), time.monotonic() + 60
            while look_at(thread, looker).state is not State.BLOCKED:
                assert time.monotonic() < until
    finally:
        done.set()
        for thread in (waiting, sleeping):
            thread.join()


@linux
def test_state_of_a_computing_thread_is_computing():
    """And one that could, and has no processor just now, to want one: what it waits is counted afterwards."""
    done = threading.Event()

    def compute():
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    looker, seen = Sampler(), set()
    while State.COMPUTING not in seen:
        seen.add(look_at(thread, looker).state)
        sum(range(10_000))
    counted = CountedThread(thread.native_id)
    while counted.is_blocked() is not False:
        sum(range(10_000))
    done.set()
    thread.join()
    assert CountedThread(-1).is_blocked() is None, "the system does not tell"


class Waiting(torch.nn.Module):
    def __init__(self, wait):
        super().__init__()
        self.wait = wait

    def forward(self, given):
        self.wait()
        return given


@pytest.mark.parametrize(
    ("switch", "is_evaluating"),
    [(torch.no_grad(), True), (torch.inference_mode, True), (torch.enable_grad(), False)],
    ids=["no_grad", "inference_mode", "enable_grad"],
)
def test_module_calls_without_gradients_are_an_evaluation(switch, is_evaluating):
    """In a function that is decorated; a model may call one itself, as a teacher whose answers it learns from."""

    def call(wait):
        torch.nn.Sequential(Waiting(wait))(torch.ones(1))

    inner = switch() if isinstance(switch, type) else switch
    for work, expected in ((inner(call), is_evaluating), (lambda wait: Waiting(inner(wait))(torch.ones(1)), False)):
        with Stopped(work) as thread:
            assert look_at(thread).is_evaluating is expected


@pytest.mark.parametrize("is_training", [True, False])
def test_the_innermost_switch_of_gradients_counts(is_training):
    """A step of LBFGS is without gradients, and enables them for its closure. The closure may call a fixed network."""

    def closure(wait):
        torch.nn.Sequential(Waiting(wait)).train(is_training)(torch.ones(1))

    with Stopped(torch.no_grad()(torch.enable_grad()(closure))) as thread:
        assert look_at(thread).is_evaluating is False
    with Stopped(torch.enable_grad()(torch.no_grad()(closure))) as thread:
        assert look_at(thread).is_evaluating is True


@pytest.mark.parametrize("is_training", [True, False])
def test_sample_contains_the_mode_of_the_outermost_module(is_training):
    def call(wait):
        model = torch.nn.Sequential(Waiting(wait))
        model.train(is_training)
        model[0].train(not is_training)
        model(torch.ones(1))

    with Stopped(call) as thread:
        assert look_at(thread).is_evaluating is not is_training


# --- what is usual ---


def test_only_time_beyond_the_usual_explains_a_step():
    assert beyond(0.8, 0.8) == 0
    assert beyond(0.96, 0.8) == pytest.approx(0.8)
    assert beyond(0.5, 0.0) == 0.5
    assert beyond(0.5, 0.9) == beyond(1.0, 1.0) == 0


@pytest.mark.parametrize(
    ("usual", "waited", "cause"), [(0.0, 600, "CPU contention"), (0.8, 800, "unknown"), (0.8, 960, "CPU contention")]
)
def test_cpu_contention_needs_more_than_the_usual_wait(usual, waited, cause):
    judge = explainer()
    judge.usual.count(1000 * MS, int(usual * 1000 * MS))
    assert judge.explain(facts(Sample((), 900 * MS), waited_ns=waited * MS)).cause == cause


def test_cpu_contention_is_unknown_without_usual_values():
    assert explainer().explain(facts(waited_ns=900 * MS)).cause == "unknown"


def at(name, file="/home/me/train.py", line=1, *, source="pass"):
    """A frame of a function of the user's."""
    made = {}
    exec(compile(f"def {name}():\n    {source}", file, "exec"), made)
    return Frame(made[name].__code__, line)


CASES = """
# computing in code that is not usual; what a thread does may be unknown
20 main step | 800 main report computing
20 main step | 800 main report queueing
20 main step | 800 main report blocked
20 main step | 800 main report unknown
5 main step | 800 main report
# the same stack after the step means another loop
20 main stage step | 800 main report step | after main report backward
20 main stage step | 800 main report step | after main stage step
# one of three samples of a short run is inside the loader: slow data is beyond that
1 main fetch, 2 main step | 600 main fetch, 250 main step
# all samples of a short run are inside the loader
2 main fetch read | 800 main fetch read blocked
# longer waits at a usual line; half of the time waits in all steps
10 main report blocked, 10 main report | 800 main report blocked
10 main report blocked, 10 main report | 400 main report blocked, 400 main report
# longer code of Python holds the GIL; half of the time holds it in all steps
10 main step held, 10 main step | 800 main step held, 100 main step
10 main step held, 10 main step | 450 main step held, 450 main step
# a line has samples of half of the excess
20 main step | 500 main report | data 800
20 main step | 400 main report | data 800
20 main step | 200 main one, 200 main two, 200 main three | data 800
# an approximate line is not named
20 main | 500 main report:2 held nearly, 300 main report held
# an evaluation in the loop
20 main:5 call | 500 main:8 call forward evaluating, 300 main:9
20 main:5 call | 500 main:8 call forward, 300 main:9
# the rest may be scores; where it is most of it, as in one that writes a checkpoint too, it is something else
20 main:5 call | 120 main:5 score:15 call evaluating, 780 main:5 score:15
20 main:5 call | 60 main:5 score:15 call evaluating, 840 main:5 score:15
# the innermost function with half of the samples: what it calls in turn has less each
20 main:5 call | 250 main:5 score:15 one, 250 main:5 score:15 two, 250 main:5 score:15 three
20 main:5 call | 250 main:5 score:15 one, 500 main:5 score:15 two, 800 main:5 score:15 report | wall 2000
# frozen modules, as a teacher whose answers each step learns from
20 main:5 call evaluating | 800 main:5 call evaluating
"""
"""Samples of usual steps, of 5 ms; those of a slow step, in ms; what else is known of it."""
FLAGS = {state.name.lower(): {"state": state} for state in State}
FLAGS |= {"held": {"is_held": True}, "nearly": {"is_exact": False}, "evaluating": {"is_evaluating": True}}
FILES = {"fetch": ("__next__", "/site-packages/torch/utils/data/dataloader.py")}
FILES |= {"call": ("_wrapped_call_impl", "/site-packages/torch/nn/modules/module.py")}


@cache
def function(name):
    return at(*FILES.get(name, (name,)))


def stack_of(words):
    pairs = [word.partition(":") for word in words if word not in FLAGS]
    return tuple(function(name)._replace(line=int(line or 1)) for name, _, line in pairs)


def samples(text):
    """The number of each sample, and the sample."""
    for number, *words in map(str.split, text.split(",")):
        known = [pair for word in words if word in FLAGS for pair in FLAGS[word].items()]
        yield int(number), Sample(stack_of(words), 5 * MS, **dict(known))


def explained(case):
    usual, slow, *more = case.split(" | ")
    judge = explainer(*(sample for count, sample in samples(usual) for _ in range(count)))
    known = facts(*(sample._replace(spent_ns=ms * MS) for ms, sample in samples(slow)))
    for what, *words in map(str.split, more):
        options = {"after": "after", "data": "wait_ns", "wall": "wall_ns"}
        known = known._replace(**{options[what]: stack_of(words) if what == "after" else int(words[0]) * MS})
    return judge, known


def test_causes_of_slow_steps_equal_the_golden_file(golden):
    lines = []
    for case in CASES.strip().splitlines():
        if case[0] != "#":
            judge, known = explained(case)
            cause, explained_ns, frame = judge.explain(known)
            place = "" if frame is None else f" in {frame.name}:{frame.line}"
            lines.append(f"{case}\n  {cause}, {(explained_ns or 0) / MS:.0f} ms{place}\n")
    golden("slow_causes.txt", "".join(lines))


def test_cpu_contention_precedes_code_of_another_loop():
    busy, known = explained("20 main stage step | 800 main report step | after main report backward")
    busy.usual.count(1000 * MS, 0)
    assert busy.explain(known._replace(waited_ns=900 * MS)).cause == "CPU contention"


@pytest.mark.parametrize(
    ("source", "state", "device", "cause"),
    [
        ("os.fsync(file.fileno())", State.BLOCKED, False, "blocking call"),
        ("os.fsync(file.fileno())", State.UNKNOWN, False, "unknown"),
        ("total += loss.item()", State.BLOCKED, True, "device"),
        ("total += loss.item()", State.COMPUTING, True, "device"),
        ("total += loss.item()", State.COMPUTING, False, "own code"),
    ],
)
def test_cause_is_the_wait_at_a_line(tmp_path, source, state, device, cause):
    (tmp_path / "train.py").write_text(f"def main():\n    {source}\n")
    frame = at("main", str(tmp_path / "train.py"), 2)
    usual = [Sample((frame._replace(line=1),), 5 * MS)] * 20
    found = explainer(*usual).explain(facts(Sample((frame,), 800 * MS, state=state), has_device=device))
    assert (found.cause, found.frame) == (cause, frame)


# --- evaluations ---


def test_fetches_of_an_evaluation_are_no_wait_for_data():
    line = Timeline("train")
    line.begin(0)
    line._begins[0] = 0
    line.data_asked(0)
    line.data_arrived(5)
    for batch in range(100, 900, 100):
        line.data_asked(batch)
        line.data_arrived(batch + 90)
    line.set_aside(100, 900)
    line.data_asked(1000)
    line.data_arrived(1007)
    line.end_step(1100)
    assert line.take().waits.tolist() == [5 + 7]
    line.set_aside(200, 1000, labels.CHECKPOINT)
    line.set_aside(300, 400, labels.CHECKPOINT)
    assert line.aside_within(0, 500, labels.VALIDATION) == [(100, 500)]
    assert line.aside_within(900, 1000, labels.VALIDATION) == []
    assert line.aside_within(0, 950, labels.CHECKPOINT) == [(200, 950)], "nested checkpoints count once"


@pytest.fixture
def heard():
    """What is heard of loaders, and what of it is set aside."""
    module = torch.utils.data.dataloader
    heard, aside = Events(), []
    heard.pulse = SimpleNamespace(
        ask=lambda _: None, arrive=lambda _: None, set_aside=lambda *when: aside.append(when[:2])
    )
    leave = loaders.listen(module, SimpleNamespace(events=heard, on_fetch=lambda: None))
    yield heard, aside
    leave()


@pytest.mark.parametrize("is_left", [False, True])
def test_loader_pass_without_an_update_is_an_evaluation(heard, is_left):
    heard, aside = heard
    loader = torch.utils.data.DataLoader(range(4))
    list(loader)
    assert not aside, "nobody knows yet whether anything will be learned"
    for _ in loader:
        heard.updates += 1
    assert not aside
    for batch in loader:
        if is_left and batch:
            break
    assert len(aside) == 1
    assert aside[0][0] < aside[0][1]
    next(iter(loader))
    assert len(aside) == 1, "a single fetch is the batch of a training step"
    for _ in loader:
        heard.backwards += 1
    assert len(aside) == 1, "gradients are accumulated"


def test_begin_of_a_pass_does_not_classify_files(heard, monkeypatch):
    """Each read of the file system lets other threads take the GIL."""
    monkeypatch.setattr(installation, "_is_of_user", pytest.fail)
    assert list(torch.utils.data.DataLoader(torch.arange(3))) == [0, 1, 2]


def test_passes_of_a_reused_iterator_are_counted_separately(heard):
    """As with persistent workers."""

    class BaselineFile(torch.utils.data.DataLoader):
        kept = None

        def _get_iterator(self):
            if self.kept is None:
                self.kept = super()._get_iterator()
            self.kept._reset(self)
            return self.kept

    heard, aside = heard
    heard.updates, loader = 1, BaselineFile(range(4))
    iterator = iter(loader)
    next(iterator), next(iterator)
    assert not aside, "it is still there"
    left = clock()
    for _ in loader:
        heard.updates += 1
    ((began, ended),) = aside
    assert began < left < ended, "it was left when the next one began, which is a training's"
    list(loader)
    assert len(aside) == 2
    assert aside[1][0] > ended


@pytest.mark.parametrize("cause", ["checkpoint", "evaluation"])
def test_reported_rare_work_of_half_the_excess_is_the_cause(cause):
    """Samples may miss it, for example if it holds the GIL."""
    field = {"checkpoint": "checkpoint_ns", "evaluation": "validation_ns"}[cause]
    known = facts(wall=100 * MS, median_ns=20 * MS)
    assert explainer().explain(known._replace(**{field: 41 * MS})).cause == cause
    assert explainer().explain(known._replace(**{field: 39 * MS})).cause == "unknown"


@pytest.mark.worker
def test_validation_reported_by_a_framework_is_an_evaluation(tmp_path):
    inside = []
    with perfhooks.Profiler(schedule="on request", out=tmp_path, run="r") as prof:
        parts = Parts(prof, {})
        for _ in range(3):
            with parts.validation():
                began = clock()
                sum(range(1_000_000))
                inside.append((clock() - began) / MS)
            prof.data_arrived()
            prof.step()
    with (tmp_path / "r/rank0.timeline.csv").open() as file:
        for row, validation_ms in zip(csv.DictReader(file), inside, strict=True):
            assert float(row["data_ms"]) <= float(row["wall_ms"]) - validation_ms


def test_constant_and_missing_counters_have_not_grown():
    before, now = Counters(cpu_ns=5, switches=None, faults=9), Counters(cpu_ns=5, switches=3, faults=7)
    assert (now.since(before).cpu_ns, now.since(before).switches, now.since(before).faults) == (0, None, 0)
