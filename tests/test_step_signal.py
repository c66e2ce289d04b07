"""Which loops end their steps when: eleven kinds of them, in this process, with torch's own loaders and optimizers."""

from __future__ import annotations

import os
import queue
import re
import threading
from typing import get_args
from unittest import mock

import launched_training as loops
import msgspec
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfhooks import Profiler
from perfhooks.core.guard import logger
from perfhooks.record.launch import calls, exit_summary, loaders, notes, profiling, step_signal
from perfhooks.record.launch.command_line import Request
from perfhooks.record.launch.step_detectors import Mode, Round
from perfhooks.record.launch.step_signal import StepSignal
from perfhooks.record.loop.ending import lifetime
from perfhooks.record.loop.ending.signals import deferral

WHY_NOT = profiling.why_not


class Startup:
    """Takes no time, and starts no thread."""

    is_over = True

    def first_step(self):
        pass

    def end(self, file=None):
        pass

    def wait(self):
        pass


class Counter:
    """Counts steps in place of a profiler."""

    folder = None

    def __init__(self, mode, step):
        self.mode, self.first, self.step_num, self.stopped = mode, step, step, None
        self.asked, self.arrived, self.passes = [], [], []
        self.pulse = self

    def discard(self):
        return None  # a window was recorded

    def why_nothing(self):
        return "no window has been recorded"

    def step(self):
        self.step_num += 1

    def ask(self, time):
        self.asked.append((self.step_num, time))

    def arrive(self, time):
        self.arrived.append((self.step_num, time))

    def set_aside(self, began, now, *_):
        pass

    def passed_back(self, times):
        self.passes.append(times)

    def wake(self):
        self.due = 0

    def stop(self, cause=None):
        self.stopped = cause


@pytest.fixture
def heard(monkeypatch):
    """A signal that listens to everything in this process, and the counters it has begun."""
    begun = []

    def begin(asked, mode, step):
        begun.append(Counter(mode, step))
        return begun[-1]

    monkeypatch.setattr(profiling, "begin", begin)
    # a profiler of another test may still wait for its files
    monkeypatch.setattr(profiling, "why_not", lambda ours: None)
    module = torch.utils.data.dataloader
    signal = StepSignal(Request(), Startup())
    leave = loaders.listen(module, signal)
    handle = register_optimizer_step_post_hook(signal.hook())
    yield signal, begun
    handle.remove()
    leave()
    signal.disable()


@pytest.mark.process
@pytest.mark.parametrize(
    ("kind", "mode", "steps"),
    [
        # a loop asks for a batch once more than it gets, so the last update ends a step too
        ("raw", "loader", 16),
        ("fork", "loader", 16),
        ("persistent", "loader", 16),
        ("accumulate", "loader", 8),
        ("gan", "loader", 16),
        ("lbfgs", "loader", 16),
        ("scaler", "loader", 7),
        ("in_backward", "loader", 16),
        ("no_loader", "optimizer", 20),
        ("generator", "optimizer", 20),
        ("inference", "batches", 40 - 20),
        ("compiled", "loader", 16),
    ],
)
def test_steps_end_at_fetches_after_updates(heard, kind, mode, steps):
    signal, begun = heard
    getattr(loops, kind)()
    assert (begun[-1].mode, begun[-1].step_num) == (mode, steps), [vars(each) for each in begun]
    assert signal.mode == mode


def train(updates, optimizer=None):
    """Update so often, without a loader."""
    optimizer = optimizer or torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(updates):
        optimizer.step()
    return optimizer


def fetched(count):
    """Ask a loader so often; it has nothing the last time."""
    list(torch.utils.data.DataLoader(range(count - 1)))


@pytest.mark.recorder
@pytest.mark.parametrize(
    ("acts", "ends"),
    [
        # a look at the data, or a sanity check, before the training
        ("fetch18 update1 raw", [("loader", 17)]),
        ("fetch25 raw", [("loader", 0), ("batches", 5), ("loader", 15)]),
        # a loader that gives all data at once, or is read into a list
        ("fetch2 update20", [("loader", 0), ("optimizer", 20)]),
        ("fetch10 update20", [("loader", 0), ("optimizer", 20)]),
        ("fetch40 update20", [("loader", 0), ("batches", 19), ("loader", 0), ("optimizer", 20)]),
        # a validation, after which the training continues without a loader
        ("update10 fetch20 update10", [("optimizer", 20)]),
        # a warm-up of the optimizer
        ("update3 raw", [("optimizer", 3), ("loader", 16)]),
        # a training that goes on without its loader, in the run that it has
        ("raw update30", [("loader", 45)]),
    ],
)
def test_steps_follow_from_the_order_of_fetches_and_updates(heard, acts, ends):
    _, begun = heard
    optimizer = None
    for name, count in re.findall(r"([a-z]+)(\d*)", acts):
        if name == "update":
            optimizer = train(int(count), optimizer)
        elif name == "fetch":
            fetched(int(count))
        else:
            loops.raw()
    assert [(each.mode, each.step_num) for each in begun] == ends
    assert [each.stopped is None for each in begun] == [False] * (len(ends) - 1) + [True]


def after_fetches():
    fetched(40)
    loops.accumulate()


def validated():
    for _ in range(2):
        loops.raw()
        fetched(40)


@pytest.mark.recorder
@pytest.mark.parametrize(
    ("loop", "mode", "means"),
    [
        # fetches before the training, and the two updates after which it is known what a step is, are not of it
        (after_fetches, "loader", {"fetches": 2.0, "updates": 1.0}),
        (validated, "loader", {"fetches": 1.0, "updates": 1.0}),
        (loops.no_loader, "optimizer", {"fetches": 0.0, "updates": 2.0}),
    ],
)
def test_counts_per_step_are_those_of_the_training(heard, monkeypatch, loop, mode, means):
    said = []
    monkeypatch.setattr(profiling, "say_steps_by", lambda profiler, mode, **means: said.append((mode, means)))
    loop()
    heard[0]._write_counts()
    assert said == [(mode, pytest.approx(means, abs=0.05))]


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_forked_child_restarts_the_detection(heard):
    """One that trains as well, as a worker of a pool may, has steps and a profiler of its own."""
    _, begun = heard
    optimizer = train(5)
    child = os.fork()
    if not child:
        try:
            train(7)
        finally:
            os._exit([(each.mode, each.step_num) for each in begun] != [("optimizer", 5), ("optimizer", 7)])
    assert os.waitpid(child, 0)[1] == 0
    train(1, optimizer)
    assert [each.step_num for each in begun] == [6], "the parent goes on as before"


@pytest.mark.slow
@pytest.mark.parametrize("is_begun", [False, True])
def test_disabled_detection_leaves_a_note_without_a_recording(heard, tmp_path, caplog, monkeypatch, is_begun):
    monkeypatch.setattr(logger, "handlers", [caplog.handler])  # the first detector keeps its lines from other loggers
    signal, begun = heard
    signal.request = msgspec.structs.replace(signal.request, notes=str(tmp_path))
    if is_begun:
        train(3)
    signal.disable("the script does it itself")
    what = "more" if is_begun else "here"
    assert f"perfhooks run records nothing {what}: the script does it itself" in caplog.text
    assert [each.stopped for each in begun] == ["the script does it itself"] * is_begun
    reasons = exit_summary.reasons(notes.read(str(tmp_path)), ["train.py"])
    assert reasons[0].startswith("no Python" if is_begun else "the script does it")


@pytest.fixture
def launched(monkeypatch, tmp_path):
    """Begins a profiler as for a step of some kind, and returns what it was made with, and who was started where."""
    made = mock.MagicMock(return_value=mock.MagicMock(folder=None))
    monkeypatch.setattr(profiling, "Profiler", made)

    def begin(mode, **asked):
        profiling.begin(Request(here=str(tmp_path), **asked), mode, 7)
        return made.call_args.kwargs, made.return_value.start.call_args.kwargs

    return begin


def test_default_is_one_window_after_step_times_have_settled(launched):
    given, started = launched("loader")
    assert given["schedule"] == "when settled"
    assert started["step"] == 7
    assert launched("loader", schedule="wait=1 warmup=1 active=3")[0]["schedule"] == "wait=1 warmup=1 active=3"


def test_run_folder_is_in_the_initial_working_directory(launched, tmp_path):
    """The script may have another working directory by then."""
    assert launched("loader")[1]["out"] == str(tmp_path / "perf")
    assert launched("loader", options={"out": "/elsewhere"})[1]["out"] == "/elsewhere"
    assert launched("loader", options={"out": "memory://elsewhere"})[0]["out"] == "memory://elsewhere"


def test_program_without_training_is_not_recorded(launched):
    stages = {mode: launched(mode)[0].get("stage", "train") for mode in get_args(Mode)}
    trained = dict.fromkeys(("loader", "optimizer", "backward"), "train")
    assert stages == trained | {"batches": "predict", "call": "predict", "process": "process"}


@pytest.mark.process
def test_reused_iterator_reports_each_fetch_once(heard):
    signal, _ = heard
    loops.persistent()
    kept = signal.events.fetches
    loops.fork()
    assert signal.events.fetches == 2 * kept


@pytest.mark.slow
def test_unobservable_iterator_leaves_steps_to_updates(heard):
    class Own(torch.utils.data.DataLoader):
        def _get_iterator(self):
            return iter([1, 2, 3])

    _, begun = heard
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(4):
        for _ in Own(range(3)):
            optimizer.step()
    assert [(each.mode, each.step_num) for each in begun] == [("optimizer", 12)]


@pytest.mark.recorder
def test_profiler_waiting_for_files_is_not_foreign(heard, monkeypatch):
    """As where an evaluation of many batches was recorded before the training begins."""
    monkeypatch.setattr(profiling, "why_not", WHY_NOT)
    monkeypatch.setattr(lifetime, "_registered", {})  # other tests of this process may wait for files
    counted = profiling.begin

    def begin(asked, mode, step):
        counter = counted(asked, mode, step)
        lifetime.register(counter, counter)
        return counter

    monkeypatch.setattr(profiling, "begin", begin)
    _, begun = heard
    fetched(40)
    assert profiling.why_not() == "the script profiles itself with perfhooks"
    loops.raw()
    assert [each.mode for each in begun] == ["loader", "batches", "loader"]
    assert begun[-1].step_num >= 14


def test_fetches_of_another_thread_end_no_step(heard):
    _, begun = heard
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    optimizer.step()
    fetching = threading.Thread(target=lambda: list(loops.loader()))
    fetching.start()
    fetching.join()
    for _ in range(9):
        optimizer.step()
    assert [(each.mode, each.step_num) for each in begun] == [("optimizer", 10)]
    assert begun[0].arrived == [], "the training does not wait for what another thread fetches"


def by_hand(batches, net):
    """Passes gradients back, and makes the updates itself."""
    for x, y in batches:
        loops.loss_of(net, x, y).backward()


def by_grad(batches, net):
    """Asks for gradients, after those that are learned from as well."""
    for x, y in batches:
        x.requires_grad_()
        loss = loops.loss_of(net, x, y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        torch.autograd.grad(loss + slope.square().mean(), list(net.parameters()))


@pytest.fixture
def passes(heard):
    """The signal hears of backward passes."""
    calls.listen(bool, heard[0].on_backward, slice)
    yield
    calls.leave()


@pytest.mark.recorder
@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize(("kind", "mode"), [(list, "backward"), (iter, "loader")])
@pytest.mark.parametrize("loop", [by_hand, by_grad])
def test_twenty_backward_passes_without_an_optimizer_are_updates(heard, monkeypatch, kind, mode, loop):
    """Of a loader that is read at once, or in the loop."""
    signal, begun = heard
    monkeypatch.setattr(step_signal, "has_made_optimizer", lambda: False)  # other tests of this process made some
    loop(kind(torch.utils.data.DataLoader(loops.data(60), batch_size=loops.SIZE)), loops.model())
    assert signal.mode == begun[-1].mode == mode
    assert begun[-1].step_num == 60, "those count that nobody knew of"
    assert begun[-1].first in (20, 22), "and are in no step"


@pytest.mark.recorder
@pytest.mark.usefixtures("passes")
def test_backward_passes_are_no_updates_beside_an_optimizer(heard):
    signal, begun = heard
    loops.accumulate()
    assert [(each.mode, each.step_num) for each in begun] == [("loader", 8)]
    assert signal.events.updates == 8
    assert begun[0].passes
    assert all(began < ended for began, ended in begun[0].passes)


@pytest.mark.recorder
@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize(("is_known", "first"), [(True, 0), (False, 1)])
def test_optimizer_that_steps_after_thirty_passes_defines_steps(heard, monkeypatch, is_known, first):
    """If the optimizer was made later, its first update tells that the passes before were no steps."""
    _, begun = heard
    if not is_known:
        monkeypatch.setattr(step_signal, "has_made_optimizer", lambda: False)
    net = loops.model()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number, (x, y) in enumerate(torch.utils.data.DataLoader(loops.data(120), batch_size=loops.SIZE), 1):
        loops.loss_of(net, x, y).backward()
        if not number % 30:
            optimizer.step()
    assert (begun[-1].mode, begun[-1].step_num) == ("loader", 4 - first)
    assert all(each.stopped for each in begun[:-1])


def test_prefetching_thread_leaves_steps_to_updates(heard):
    """As DataLoaderX and prefetch_generator do."""
    _, begun = heard
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    batches = queue.Queue(1)

    def fetch():
        for batch in loops.loader():
            batches.put(batch)
        batches.put(None)

    thread = threading.Thread(target=fetch)
    thread.start()
    while batches.get() is not None:
        optimizer.step()
    thread.join()
    assert [(each.mode, each.step_num) for each in begun] == [("optimizer", 8)]


@pytest.mark.recorder
def test_fetches_have_begin_and_end(heard):
    """Of a step that accumulates, both: what lies between them is work."""
    _, begun = heard
    loops.accumulate()
    counter = begun[-1]
    assert [step for step, _ in counter.arrived[:6]] == [0, 0, 1, 1, 2, 2]
    assert [step for step, _ in counter.asked[:6]] == [0, 0, 1, 1, 2, 2]
    times = [time for pair in zip(counter.asked[:6], counter.arrived[:6], strict=True) for _, time in pair]
    assert times == sorted(times)


def test_disabled_detection_receives_no_events(heard):
    signal, begun = heard
    signal.disable()
    loops.raw()
    assert begun == []


@pytest.mark.recorder
@pytest.mark.parametrize(("kind", "mode", "steps"), [("raw", "loader", 64 - 40), ("no_loader", "optimizer", 80 - 40)])
def test_training_after_a_framework_is_detected(heard, kind, mode, steps):
    signal, begun = heard
    face = Counter("loader", 0)
    face.is_running = True
    signal.yield_to_integration({"train": face})
    for _ in range(4):
        loops.raw()
    face.is_running = False
    for _ in range(4):
        getattr(loops, kind)()
    assert [(each.mode, each.step_num >= steps) for each in begun] == [(mode, True)]
    face.is_running = True
    loops.raw()
    assert [each.stopped for each in begun] == ["the integration of the framework takes over"]
    assert begun[0].step_num < steps + 40, "what the face counts is not counted twice"


@pytest.mark.recorder
def test_yielding_to_a_framework_detects_the_end_of_the_start(heard, monkeypatch):
    signal, begun = heard
    monkeypatch.setattr(Startup, "is_over", False)
    ended = []
    monkeypatch.setattr(Startup, "end", lambda self, file=None: ended.append(file()))
    face = Counter("loader", 0)
    face.is_running = True
    signal.yield_to_integration({"train": face})
    loops.raw()
    loops.raw()
    assert (begun, ended) == ([], [None])
    assert signal.events.updates == 32


@pytest.mark.recorder
def test_iterator_finds_its_original_class(heard):
    class Own(torch.utils.data.dataloader._SingleProcessDataLoaderIter):
        def __next__(self):
            return super(self.__class__, self).__next__()

    class Loader(torch.utils.data.DataLoader):
        def _get_iterator(self):
            return Own(self)

    signal, _ = heard
    loader = Loader(range(3))
    before = len(Own.__mro__[1].__subclasses__())
    for _ in range(3):
        iterator = iter(loader)
        assert type(iterator) is Own
        assert [int(each) for each in iterator] == [0, 1, 2]
    assert signal.events.fetches == 3 * 4, "once more than there are batches"
    assert len(Own.__mro__[1].__subclasses__()) == before


@pytest.mark.recorder
def test_a_loader_keeps_its_class_its_length_and_its_batches(heard):
    iterator = iter(loops.loader())
    assert isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter)
    assert len(iterator) == loops.BATCHES
    assert type(iterator).__name__ == "_SingleProcessDataLoaderIter"
    assert len(list(iterator)) == loops.BATCHES


class Optimizer:
    pass


LONG = "a" * 12


@pytest.mark.parametrize(
    ("order", "ends"),
    [
        ("aaaa", " aaa"),
        ("abab", "   b"),
        ("abcabcabc", "     c  c"),
        ("abbabbabb", "   a  a  "),
        ("acbcbacbcb", "     a    "),
        ("cbbbb", "   bb"),
        ("aacaacaac", " a aa aa "),
        ("aabbaabbaabb", " a b   b   b"),
        ("aabbccaabbccaabbcc", " a b c     c     c"),
        ("aabbaabbaabaabbaabb", " a b   b   a b    b"),
        (LONG + "bbb", " " + LONG[1:] + "bbb"),
        (LONG + "babab", " " + LONG[1:] + "b b b"),
        (LONG + "b" * 11 + "aa", " " + LONG[1:] + "b" * 11 + "aa"),
        ("ababaaa", "   b aa"),
        ("ababab" + "ccc", "   b b" + " cc"),
    ],
)
def test_a_round_ends_with_the_optimizer_that_leads(order, ends):
    """That is the last one, known from the second round on; one that steps alone leads at once, or soon."""
    optimizers = {name: Optimizer() for name in "abc"}
    turns = Round()
    assert "".join(name if turns.ends(optimizers[name]) else " " for name in order) == ends


def test_optimizer_that_replaces_the_leader_leads_at_once():
    """As in each fold of a cross-validation: however short it is, none of its steps is lost."""
    turns, ended = Round(), 0
    for _ in range(5):
        optimizer = Optimizer()
        ended += sum(turns.ends(optimizer) for _ in range(4))
    assert (ended, turns.count) == (19, 20)


def test_patience_counts_once_from_the_first_step_event(heard):
    """Not from operators of a script that may read its data for as long as it takes, nor from an earlier recording."""
    signal, _ = heard
    signal.early.has_steps = False
    signal._on_early_end()
    assert signal._patience is None
    signal.early.has_steps = True
    signal._on_early_end()
    first = signal._patience
    signal._on_early_end()
    first.join(60)
    assert not first.is_alive()
    assert signal._patience.is_alive()
    signal._patience.cancel()


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_stage_with_an_optimizer_of_its_own_swallows_no_step(heard, is_kept):
    _, begun = heard
    kept = [train(30)]
    if not is_kept:
        kept.clear()
    train(30)
    assert [(each.mode, each.step_num) for each in begun] == [("optimizer", 60)]


@pytest.mark.recorder
def test_step_can_have_more_updates_than_earlier_steps(heard):
    """As where several rests of accumulated passes come together: the loader goes on, and so do its steps."""
    _, begun = heard
    batches = iter(torch.utils.data.DataLoader(range(100)))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for updates in [2] * 8 + [9] + [2] * 5:
        next(batches)
        train(updates, optimizer)
    assert [(each.mode, each.step_num) for each in begun] == [("loader", 8 + 1 + 4)]


@pytest.mark.recorder
def test_seven_updates_without_a_fetch_become_steps(heard):
    _, begun = heard
    batches = iter(torch.utils.data.DataLoader(range(100)))
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(5):
        next(batches)
        optimizer.step()
    train(30, optimizer)
    assert [each.mode for each in begun] == ["loader"]
    assert 5 + 30 - 8 <= begun[0].step_num <= 5 + 30


def test_no_operators_are_recorded_of_a_program_that_ends(heard, monkeypatch):
    signal, _ = heard
    asked = []
    monkeypatch.setattr(type(signal.early), "begin_with_operators", lambda _: asked.append(True))
    signal._record_operators()
    assert asked == [True]
    signal._is_ending = True
    signal._record_operators()
    assert asked == [True]


@pytest.mark.worker
def test_run_without_a_window_is_reused_by_the_next_detector(tmp_path, monkeypatch):
    """Twenty backward passes before the first update left a run that said that no window was recorded."""
    monkeypatch.chdir(tmp_path)
    options = {"on_trace_ready": "steps", "background": False}
    first = Profiler(schedule="wait=5 warmup=0 active=1 repeat=1")
    second = Profiler(schedule="wait=5 warmup=0 active=1 repeat=1", run="again", **options)
    first.start()
    for _ in range(3):
        first.step()
    folder = first.discard()
    assert folder.parent == tmp_path / "perf"
    assert not list(folder.glob("rank0.timeline.csv"))
    with Profiler(schedule="wait=1 warmup=0 active=1 repeat=1", run=folder.name, **options) as prof:
        for _ in range(3):
            prof.step()
    assert [path.name for path in folder.glob("train-*")] == ["train-000001-000001"]
    assert [path for path in (tmp_path / "perf").iterdir() if not path.is_symlink()] == [folder]
    second.start()
    for _ in range(7):
        second.step()
    assert second.discard() is None, "it has a window"
    second.stop()


def test_signal_waits_until_the_startup_is_marked_as_over(heard, monkeypatch):
    """SIGTERM marks it too, and would wait for the lock of the event without end."""
    signal, _ = heard
    deferred = []
    monkeypatch.setattr(Startup, "is_over", False)
    monkeypatch.setattr(signal.startup, "end", lambda _: deferred.append(deferral.is_active))
    signal.apply("step")
    assert deferred == [True]


ENTERED_AGAIN = """
import faulthandler, sys
from perfhooks.record.launch.command_line import Request
from perfhooks.record.launch.startup import Startup
from perfhooks.record.launch.step_signal import StepSignal

faulthandler.dump_traceback_later(60, exit=True)
signal = StepSignal(Request(), Startup(0))
made = {signal.early}

def trace(frame, event, _):
    if frame.f_code.co_name == "early":
        if event == "line":
            sys.settrace(None)
            made.add(signal.early)
            sys.settrace(trace)
        return trace

sys.settrace(trace)
made.add(signal.early)
sys.settrace(None)
assert len(made) == 1
print("entered")
"""


@pytest.mark.process
def test_finalizer_of_the_program_may_call_a_module_anywhere(run_script):
    done = run_script(ENTERED_AGAIN)
    assert (done.returncode, done.stdout) == (0, "entered\n"), done.stderr
