"""Which loops end their steps when: eleven kinds of them, in this process, with torch's own loaders and optimizers."""

from __future__ import annotations

import threading

import launched_training as loops
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from perfhooks.launching import loaders, profiling
from perfhooks.launching.command_line import Request
from perfhooks.launching.step_signal import Round, StepSignal
from perfhooks.recording.ending import lifetime


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
        self.asked, self.arrived = [], []

    def step(self):
        self.step_num += 1

    def ask(self, time):
        self.asked.append((self.step_num, time))

    def arrive(self, time):
        self.arrived.append((self.step_num, time))

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
    monkeypatch.setattr(torch.utils.data.DataLoader, "__iter__", torch.utils.data.DataLoader.__iter__)
    signal = StepSignal(Request(), Startup())
    loaders.listen(torch.utils.data.DataLoader, signal)
    handle = register_optimizer_step_post_hook(signal.hook())
    yield signal, begun
    handle.remove()
    signal.stand_down()


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
def test_steps_end_where_the_loop_makes_updates(heard, kind, mode, steps):
    signal, begun = heard
    getattr(loops, kind)()
    assert (begun[-1].mode, begun[-1].step_num) == (mode, steps), [vars(each) for each in begun]
    assert signal.mode == mode


def test_a_warm_up_of_the_optimizer_does_not_hide_the_loader(heard):
    _, begun = heard
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    for _ in range(3):
        optimizer.step()
    loops.raw()
    assert [each.mode for each in begun] == ["optimizer", "loader"]
    assert begun[0].stopped is not None
    assert begun[1].step_num == 16


def test_a_profiler_of_ours_that_waits_for_its_files_is_nobody_elses(heard, monkeypatch):
    """As where an evaluation of many batches was recorded before the training begins."""
    monkeypatch.undo()
    monkeypatch.setattr(lifetime, "_known", set())  # other tests of this process may wait for files
    signal, _ = heard
    ours = Counter("batches", 0)
    lifetime.opened(ours)
    try:
        assert profiling.why_not([ours]) is None
        assert profiling.why_not() == "the script profiles itself with perfhooks"
        signal.profiler = ours
        signal._end("steps are told by loader from here on")
        assert profiling.why_not(signal._stopped) is None
    finally:
        lifetime.forget(ours)


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


def test_each_fetch_says_when_it_was_asked_for_and_when_it_came(heard):
    """Of a step that accumulates, both: what lies between them is work."""
    _, begun = heard
    loops.accumulate()
    counter = begun[-1]
    assert [step for step, _ in counter.arrived[:6]] == [0, 0, 1, 1, 2, 2]
    assert [step for step, _ in counter.asked[:6]] == [0, 0, 1, 1, 2, 2]
    times = [time for pair in zip(counter.asked[:6], counter.arrived[:6], strict=True) for _, time in pair]
    assert times == sorted(times)


def test_a_sanity_check_before_training_is_no_training(heard):
    _, begun = heard
    list(torch.utils.data.DataLoader(range(25)))
    loops.raw()
    assert [each.mode for each in begun] == ["loader", "batches", "loader"]
    assert begun[-1].step_num >= 14, "the updates that told that this is training are not counted"


def test_who_stands_down_hears_nothing_more(heard):
    signal, begun = heard
    signal.stand_down()
    loops.raw()
    assert begun == []


def test_who_gives_way_to_a_framework_hears_the_end_of_the_start_and_nothing_more(heard, monkeypatch):
    signal, begun = heard
    monkeypatch.setattr(Startup, "is_over", False)
    ended = []
    monkeypatch.setattr(Startup, "end", lambda self, file=None: ended.append(file))
    signal.give_way([Counter("loader", 0)])
    loops.raw()
    assert (begun, ended) == ([], [None])
    assert signal.updates == 16


def test_a_loader_keeps_its_class_its_length_and_its_batches(heard):
    iterator = iter(loops.loader())
    assert isinstance(iterator, torch.utils.data.dataloader._BaseDataLoaderIter)
    assert len(iterator) == loops.BATCHES
    assert type(iterator).__name__ == "_SingleProcessDataLoaderIter"
    assert len(list(iterator)) == loops.BATCHES


@pytest.mark.parametrize(("order", "ends"), [("aaaa", " aaa"), ("abab", "   b"), ("abcabcabc", "     c  c")])
def test_a_round_ends_with_the_optimizer_that_steps_last(order, ends):
    """Known from the second round on: only then is it known who begins."""
    optimizers = {name: object() for name in "abc"}
    turns = Round()
    assert "".join(name if turns.ends(optimizers[name]) else " " for name in order) == ends
