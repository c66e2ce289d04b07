"""While a window records, the parts of a step are labelled without a line from the user; and nothing else changes."""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import os
import threading
import time
from collections import Counter

import polars as pl
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset
from warm import Process

import perfhooks
from perfhooks.core import labels
from perfhooks.record.loop import labelling
from perfhooks.run.capture import Place
from perfhooks.trace import read
from perfhooks.trace.kinds import Kind
from perfhooks.trace.tables import steps

pytestmark = pytest.mark.recorder

READER = torch.utils.data.dataloader._BaseDataLoaderIter
PLACES = (
    *((nn.Module, "__call__"), (torch.autograd, "backward"), (torch, "save"), (torch.distributed.Work, "wait")),
    (READER, "__next__"),
)
SCHEDULE = "wait=1 warmup=1 active=2 repeat=1"
OPTIONS = {"run": "run", "background": False, "on_error": "raise", "on_trace_ready": "trace"}


def standing():
    """What is in the places where stand-ins are put."""
    return [vars(owner)[name] for owner, name in PLACES]


ORIGINALS = standing()


@pytest.fixture(autouse=True)
def nothing_is_left():
    yield
    assert standing() == ORIGINALS


class Recorded:
    """What one window of a loop showed."""

    def __init__(self, folder):
        (path,) = folder.glob("run/*/rank0.pt.trace.json.gz")
        self.trace = read(path)
        self.steps = steps.table(self.trace)
        trace = self.trace
        self.names = Counter(trace.names[name] for name in trace.name[trace.rows(Kind.ANNOTATION)].tolist())

    def ms(self, part):
        return self.steps[f"{part}_ms"].sum()

    def count(self, part):
        return self.names[labels.AUTOMATIC[part]]


def record(folder, body, *, steps=5, schedule=SCHEDULE, **options):
    """Run a loop of steps and read back what its window showed."""
    with perfhooks.Profiler(out=folder, schedule=schedule, **OPTIONS, **options) as prof:
        for step in range(steps):
            body(prof, step)
            prof.step()
    return Recorded(folder)


@pytest.mark.parametrize("how", ["steps()", "a loader in a loop"])
def test_settings_of_the_training_loader_are_stored(tmp_path, how):
    """And not those of a validation, whose loader is read without gradients, or in fewer of the steps."""
    training = DataLoader(torch.ones(20, 1), batch_size=4, pin_memory=False)
    with perfhooks.Profiler(out=tmp_path, schedule=SCHEDULE, **OPTIONS) as prof:
        for step, _ in enumerate(prof.steps(training) if how == "steps()" else training):
            with torch.set_grad_enabled(step == 3):
                list(DataLoader(torch.ones(64, 1), batch_size=16))
            if how != "steps()":
                prof.step()
    (facts,) = tmp_path.glob("run/*/rank0.capture.json")
    loader = Place(facts.parent).load().circumstances.loader
    assert (loader.batch_size, loader.num_workers, loader.persistent_workers) == (4, 0, False)


def model(width=64, depth=3):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(width, width) for _ in range(depth)))


class Clock:
    """The time of each part by the clock of the process, while the window records."""

    def __init__(self):
        self.ms = Counter()
        self.on = False

    @contextlib.contextmanager
    def __call__(self, part):
        began = time.perf_counter()
        yield
        self.ms[part] += (time.perf_counter() - began) * 1e3 * self.on


class Slow(Dataset):
    """Samples that take a millisecond each."""

    def __init__(self, count):
        self.samples = torch.randn(count, 256)

    def __len__(self):
        return len(self.samples)

    def __getitem__(self, index):
        time.sleep(0.001)
        return self.samples[index]


DOZE_MS = 5.0
"""How long each of the following takes at least, whatever else the machine does."""


class Dozing(torch.autograd.Function):
    """Takes its time in both directions, and changes nothing."""

    @staticmethod
    def forward(_, batch):
        time.sleep(DOZE_MS / 1e3)
        return batch.clone()

    @staticmethod
    def backward(_, gradient):
        time.sleep(DOZE_MS / 1e3)
        return gradient


class DozingLayer(nn.Module):
    def forward(self, batch):
        return Dozing.apply(batch)


class DozingAdam(torch.optim.Adam):
    def step(self, closure=None):
        time.sleep(DOZE_MS / 1e3)
        return super().step(closure)


class DozingState:
    """Takes its time to be saved."""

    def __reduce__(self):
        time.sleep(DOZE_MS / 1e3)
        return (dict, ())


LEAST_MS = {
    "data": 2 * 16,
    "forward": 2 * DOZE_MS,
    "backward": 2 * DOZE_MS,
    "optimizer": 2 * DOZE_MS,
    "validation": 60 + 2 * DOZE_MS,
    "checkpoint": DOZE_MS,
    "other": 2 * 20,
}
"""What each part of the two steps takes at least, as it sleeps: a millisecond a sample, and the dozes."""


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A loop as people write it: it trains, validates, saves, and is idle for a while."""
    folder = tmp_path_factory.mktemp("plain")
    net, loss_of = nn.Sequential(*model(256, 8), DozingLayer()), nn.MSELoss()
    optimizer = DozingAdam(net.parameters())
    clock, batches = Clock(), DataLoader(Slow(60), batch_size=30)
    training = iter(DataLoader(Slow(80), batch_size=16))

    def body(prof, step):
        clock.on = prof.is_recording
        with clock("data"):
            batch = next(training)
        with clock("forward"):
            loss = loss_of(net(batch), batch)
        with clock("backward"):
            loss.backward()
        with clock("optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if step == 3:
            net.eval()
            with torch.no_grad(), clock("validation"):
                for held_out in batches:
                    loss_of(net(held_out), held_out)
            net.train()
            with clock("checkpoint"):
                torch.save([net.state_dict(), DozingState()], folder / "state.pt")
        time.sleep(0.02)

    return record(folder, body), clock


@pytest.mark.parametrize("part", LEAST_MS)
def test_time_of_a_part_is_between_sleep_and_lines(plain, part):
    """A label lies within the lines that it is about; the fetches of the validation are part of it."""
    recorded, clock = plain
    assert recorded.ms(part) >= LEAST_MS[part]
    assert part == "other" or recorded.ms(part) <= clock.ms[part] + 0.5, "half a millisecond between the two clocks"


def test_loop_has_one_label_per_outermost_call(plain):
    """The loss is a module too; it and the model count once for each batch, the model's layers never."""
    recorded, _ = plain
    assert {part: recorded.count(part) for part in labels.PARTS if recorded.count(part)} == {
        "forward": 4, "backward": 2, "validation": 4, "checkpoint": 1,
    }  # fmt: skip


def trained(folder, **options):
    """The losses and weights of a training with a bit of everything, and what its window showed."""
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Dropout(0.1), nn.Linear(16, 4))
    loss_of, optimizer = nn.CrossEntropyLoss(), torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []

    def body(_prof, _step):
        for _ in range(2):  # accumulates
            batch, target = torch.randn(8, 16), torch.randint(4, (8,))
            with torch.autocast("cpu", torch.bfloat16):
                loss = loss_of(checkpoint(net, batch, use_reentrant=False), target)
            losses.append(loss.item())
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return losses, [each.clone() for each in net.parameters()], record(folder, body, **options)


def test_labels_leave_the_results_unchanged(tmp_path):
    """To the bit, with accumulation, autocast, dropout and activation checkpoints; recomputing is backward."""
    losses, weights, recorded = trained(tmp_path / "on")
    expected, others, unlabelled = trained(tmp_path / "off", labels=False)
    assert losses == expected
    assert all(torch.equal(*pair) for pair in zip(weights, others, strict=True))
    assert (recorded.count("forward"), recorded.count("backward")) == (8, 4)
    assert not any(unlabelled.count(part) for part in labels.PARTS)


def test_a_label_of_the_user_wins(tmp_path):
    """Whatever is labelled by itself inside of it."""
    net = model()

    def body(prof, _step):
        with prof.region("data"):
            net(torch.randn(4, 64)).sum().backward()
            time.sleep(0.002)

    recorded = record(tmp_path, body)
    assert recorded.count("forward") == 2
    assert recorded.ms("data")
    assert not recorded.ms("forward")
    assert not recorded.ms("backward")


@pytest.mark.parametrize("with_modules", [True, False])
def test_optimizer_differs_from_its_closure(tmp_path, with_modules):
    """LBFGS calls the forward and the backward pass itself; functions count like modules."""
    net = model(256, 4)
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=3)
    batch = torch.randn(256, 256)
    evaluations = Counter()

    def forward():
        out = batch
        for layer in net:
            out = layer(out) if with_modules else nn.functional.linear(out, layer.weight, layer.bias)
        return (DozingLayer()(out) if with_modules else Dozing.apply(out)).square().mean()

    def body(prof, _step):
        def closure():
            evaluations[prof.is_recording] += 1
            optimizer.zero_grad()
            loss = forward()
            loss.backward()
            return loss

        optimizer.step(closure)

    recorded = record(tmp_path, body)
    assert recorded.ms("forward") >= evaluations[True] * DOZE_MS > 0
    assert recorded.ms("backward") >= evaluations[True] * DOZE_MS
    assert recorded.ms("optimizer") > 0
    assert sum(recorded.ms(part) for part in ("forward", "backward", "optimizer")) <= recorded.ms("wall") + 1e-6


class Learner(nn.Linear):
    """Trains itself in its forward pass, like the outer module of a meta-learning."""

    def forward(self, batch):
        weights = [self.weight, self.bias]
        (gradient, _) = torch.autograd.grad(nn.functional.linear(batch, *weights).square().mean(), weights)
        loss = Dozing.apply(nn.functional.linear(batch, self.weight - gradient, self.bias)).square().mean()
        loss.backward()
        return loss


def test_module_that_trains_itself_has_a_backward_pass(tmp_path):
    learner = Learner(64, 64)
    recorded = record(tmp_path, lambda *_: learner(torch.randn(4, 64)))
    assert (recorded.count("forward"), recorded.count("backward")) == (2, 2)
    assert recorded.ms("forward") >= 2 * DOZE_MS
    assert recorded.ms("backward") >= 2 * DOZE_MS
    trace = recorded.trace
    rows = trace.named(Kind.OP, prefix="autograd::engine::evaluate_function: ")
    called = trace.named(Kind.ANNOTATION, prefix=labels.AUTOMATIC["backward"])
    inner = [row for row in rows if not any(trace.start[call] <= trace.start[row] < trace.end[call] for call in called)]
    assert len(inner) >= 2
    in_calls, in_grad = ((trace.end - trace.start)[each].sum() / 1e6 for each in (called, inner))
    assert recorded.ms("backward") >= in_calls + in_grad - 1e-6


def test_label_ends_with_the_step(tmp_path, capfd):
    """As in a module that trains itself, and whose optimizer ends the step. torch warned about the optimizer."""
    learner = Learner(64, 64)
    optimizer = torch.optim.Adam(learner.parameters())
    with perfhooks.Profiler(out=tmp_path, schedule=SCHEDULE, **OPTIONS) as prof:
        optimizer.register_step_post_hook(lambda *_: prof.step())
        trained = []
        learner.register_forward_hook(lambda *_: trained.append(optimizer.step()))
        for _ in range(8):
            learner(torch.randn(4, 64))
    recorded = Recorded(tmp_path)
    trace = recorded.trace
    calls = trace.named(Kind.ANNOTATION, prefix=labels.AUTOMATIC["forward"])
    marks = trace.named(Kind.ANNOTATION, prefix=labels.STEP_MARK)
    assert len(trained) == 8
    assert len(calls) == len(marks) == 2
    assert (trace.end[calls] <= trace.end[marks]).all()
    assert "Warning: Optimizer.step" not in capfd.readouterr().err


def test_functional_training_has_a_forward_and_a_backward_pass(tmp_path):
    """Without a module and with ``torch.autograd.grad``, from what autograd leaves in the trace."""
    weight = torch.randn(256, 256, requires_grad=True)

    def body(*_):
        loss = (torch.randn(256, 256) @ weight).relu().sum()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(gradient, alpha=1e-3)

    recorded = record(tmp_path, body)
    trace = recorded.trace
    # a busy machine makes the rest of the step long
    for part, name in (("forward", "aten::matmul"), ("backward", "autograd::engine::evaluate_function: MmBackward0")):
        rows = trace.named(Kind.OP, prefix=name)
        assert rows.size == 2
        assert recorded.ms(part) >= (trace.end - trace.start)[rows].sum() / 1e6 - 1e-6, part


def test_calls_without_gradients_are_classified(tmp_path):
    """A generator in training mode is forward, and so is a teacher before the backward pass; a last call is not."""
    student, teacher, batches = model(), model().eval(), iter(DataLoader(torch.randn(40, 64), batch_size=4))

    def body(_prof, step):
        batch = next(batches)
        with torch.no_grad():
            wanted = teacher(batch)
            student(batch)
        (student(batch) - wanted).square().mean().backward()
        if step == 3:
            teacher(batch)

    recorded = record(tmp_path, body)
    assert (recorded.count("forward"), recorded.count("validation")) == (5, 2)
    assert recorded.ms("validation") is None or recorded.ms("validation") == 0
    assert recorded.ms("data") > 0


def test_other_stages_have_a_forward_pass_and_no_validation(tmp_path):
    net = model().eval()

    @torch.inference_mode()
    def body(*_):
        net(torch.randn(4, 64))

    recorded = record(tmp_path, body, stage="test")
    assert (recorded.count("forward"), recorded.count("validation")) == (2, 0)


class Raises(nn.Module):
    def forward(self, batch):
        raise ValueError(f"no {batch}")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_fault_leaves_no_labels(tmp_path, error):
    """The exception is the user's own, and the label that was open is closed."""
    net = model()

    def stop(*_):
        raise error("in a hook")

    def body(_prof, step):
        if step == 3:
            net.register_forward_hook(stop)
        net(torch.randn(4, 64)).sum().backward()

    with pytest.raises(error, match="in a hook"):
        record(tmp_path, body)
    assert standing() == ORIGINALS
    assert Recorded(tmp_path).count("forward") == 2


def test_a_fault_that_the_loop_survives_ends_its_label(tmp_path):
    net = model()

    def body(*_):
        with contextlib.suppress(ValueError):
            nn.Sequential(nn.Linear(64, 64), Raises())(torch.randn(4, 64))
        net(torch.randn(4, 64))

    assert record(tmp_path, body).count("forward") == 4


class Waits(torch.autograd.Function):
    """Does nothing, in both directions and when it is saved, until somebody goes on."""

    @staticmethod
    def forward(ctx, given, wait):
        ctx.wait = wait
        return given * 2

    @staticmethod
    def backward(ctx, grad):
        ctx.wait()
        return grad, None


class Saved:
    """Waits while it is saved."""

    def __init__(self, wait):
        self.wait = wait

    def __reduce__(self):
        self.wait()
        return int, ()


def call_and_wait(wait):
    net = model()
    net.register_forward_hook(lambda *_: wait())
    net(torch.ones(2, 64))


ASIDE = {
    "call": call_and_wait,
    "backward": lambda wait: torch.autograd.backward(Waits.apply(torch.ones(1, requires_grad=True), wait)),
    "save": lambda wait: torch.save(Saved(wait), io.BytesIO()),
}


@pytest.mark.parametrize("what", ASIDE)
def test_other_threads_neither_add_nor_hide_parts(tmp_path, what):
    net = model()

    def body(*_):
        began, go_on = threading.Event(), threading.Event()

        def wait():
            began.set()
            go_on.wait(60)

        other = threading.Thread(target=ASIDE[what], args=(wait,))
        other.start()
        assert began.wait(60)
        net(torch.ones(2, 64)).sum().backward()
        torch.save(0, io.BytesIO())
        go_on.set()
        other.join()

    recorded = record(tmp_path, body)
    assert [recorded.count(part) for part in ("forward", "backward", "checkpoint")] == [2, 2, 2]


def test_without_files_nothing_is_labelled():
    """Then it is torch's profiler, and its table has no rows of ours."""
    net = model()
    with perfhooks.Profiler() as prof:
        assert standing() == ORIGINALS
        net(torch.randn(4, 64))
    assert not any("(auto)" in row.key for row in prof.key_averages())


def test_recorded_stacks_contain_modules(tmp_path):
    """The recorder knows a call of a module by its code, so stand-ins come after it has looked."""
    from perfhooks.trace.tables import modules

    net = model()
    recorded = record(tmp_path, lambda *_: net(torch.randn(4, 64)).sum().backward(), with_stack=True)
    table = modules.table(recorded.trace)
    assert table["name"].to_list() == ["Sequential_0", "Linear_0", "Linear_1", "Linear_2"]
    assert table["calls"].to_list() == [2] * 4


class Breaks(nn.Module):
    """Has a graph break in the middle."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, batch):
        found = self.first(batch)
        return self.second(found * found.sum().item())


def whole_step(net):
    def step(batch):
        loss = net(batch).sum()
        loss.backward()
        return loss

    return step


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile asks for it
@pytest.mark.parametrize("first", [0, 3], ids=["before the window", "in the window"])
@pytest.mark.parametrize("how", ["module", "in place", "inner", "broken", "function"])
def test_compiled_code_stays_unchanged(tmp_path, how, first):
    """No graph is compiled again, none breaks where it did not, nothing of ours is in one."""
    from torch._dynamo.utils import counters

    if how == "in place" and torch.__version__.startswith("2.4"):
        pytest.skip("compiles nothing there")
    torch.compiler.reset()
    counters.clear()
    graphs = []

    def backend(graph, _inputs):
        graphs.append(str(graph.graph))
        return graph.forward

    net = Breaks() if how == "broken" else model(8)
    call = net
    if how == "in place":
        net.compile(backend=backend)
    elif how == "inner":
        net[1] = torch.compile(net[1], backend=backend)
    else:
        call = torch.compile(whole_step(net) if how == "function" else net, backend=backend)

    after = nn.Linear(8, 8)

    def body(_prof, step):
        if step >= first:
            loss = call(torch.ones(2, 8)).sum()
            if how != "function":
                loss.backward()
            after(torch.ones(2, 8))

    breaks = [sum(counters["graph_break"].values())]
    recorded = record(tmp_path, body, steps=6, schedule="wait=1 warmup=1 active=3 repeat=1")
    breaks.append(sum(counters["graph_break"].values()))
    torch.compiler.reset()
    assert len(graphs) == {"broken": 2, "function": 1}.get(how, 1)
    assert breaks == [0, {"broken": 1, "function": 1}.get(how, 0)]
    assert not any("profiler" in graph for graph in graphs)
    assert recorded.count("backward") == 3 - (first == 3)
    assert recorded.ms("forward") > 0
    if how == "function" and torch.__version__.startswith("2.4"):
        return  # its graph has modules, which the backend of this test calls
    assert recorded.count("forward") == (3 - (first == 3)) * (1 if how == "function" else 2), "what comes after it too"


class Tallies:
    """What torch.compile makes of calls: its graphs, and where they break."""

    def __init__(self):
        from torch._dynamo.utils import counters

        torch.compiler.reset()
        counters.clear()
        self._counters, self._graphs = counters, 0
        self.call = torch.compile(nn.Sequential(nn.Linear(8, 8), Breaks(), nn.Linear(8, 8)), backend=self._backend)

    def _backend(self, graph, _inputs):
        self._graphs += 1
        return graph.forward

    def train(self, *_):
        self.call(torch.ones(2, 8)).sum().backward()

    def tallied(self):
        torch.compiler.reset()
        return self._graphs, sum(self._counters["graph_break"].values())


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # torch.compile asks for it
def test_break_in_an_inner_module_keeps_the_graphs(tmp_path, monkeypatch):
    monkeypatch.setattr(labelling, "_state", labelling._LabelState())
    plain = Tallies()
    plain.train()
    expected = plain.tallied()
    assert expected[1], "it breaks"
    seen = Tallies()
    record(tmp_path, lambda prof, step: seen.train() if step == 2 else None, steps=4)
    assert seen.tallied() == expected


RANKS = """
import os, sys, time
from pathlib import Path
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
import perfhooks

rank = int(sys.argv[1])
store = dist.FileStore(sys.argv[2] + "/meeting", 2)
dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
net = DistributedDataParallel(torch.nn.Linear(8, 8))

def come(place, step):
    # the second rank goes on some time after the first has begun to wait, in the steps that are recorded
    store.set(f"{place} {step} {rank}", str(os.getpid()))
    if rank == 1 and step >= 2:
        first, quiet = int(store.get(f"{place} {step} 0")), 0
        while quiet < 10:
            time.sleep(0.05)
            is_asleep = Path(f"/proc/{first}/stat").read_text().rpartition(") ")[2][0] == "S"
            quiet = quiet + 1 if is_asleep else 0
        time.sleep(1.0)  # longer than most pauses of this rank

with perfhooks.Profiler(
    schedule="wait=1 warmup=1 active=2 repeat=1", out=sys.argv[2], run="run", background=False, on_error="raise",
    on_trace_ready="steps",
) as prof:
    for step in range(4):
        loss = net(torch.randn(4, 8)).sum()
        come("backward", step)
        loss.backward()
        come("reduce", step)
        dist.all_reduce(torch.ones(4))
        prof.step()
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def ranks(channel, tmp_path_factory):
    """The step tables of two ranks, the second of which is late twice in every step."""
    folder = tmp_path_factory.mktemp("ranks")
    script = folder / "train.py"
    script.write_text(RANKS)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "WORLD_SIZE": "2"}
    started = [
        Process(channel, script, rank, folder, environment={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.close()  # a rank waits half an hour for one that has failed
    assert [process.returncode for process in started] == [0, 0], errors
    return [pl.read_csv(next(folder.glob(f"run/*/rank{rank}.steps.csv"))) for rank in range(2)]


@pytest.mark.parametrize("part", ["backward", "communication"])
def test_wait_for_the_other_rank_is_in_the_part_that_waits(ranks, part):
    """Its gradients are a part of the backward pass, and a collective of the loop is communication."""
    quick, late = (table[f"{part}_ms"] for table in ranks)
    assert quick.min() > 300
    assert (late < quick).all(), "which holds all of the other's"


@pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage")  # no ranks; torch 2.4 of itself
def test_saving_with_torch_distributed_is_a_checkpoint(tmp_path):
    import torch.distributed.checkpoint as dcp

    net = model()
    # without the argument torch 2.4 finds out by itself
    alone = {"no_dist": True} if "no_dist" in inspect.signature(dcp.save).parameters else {}

    def body(_prof, step):
        if step == 2:
            dcp.save(net.state_dict(), checkpoint_id=tmp_path / "state", **alone)

    recorded = record(tmp_path, body)
    assert recorded.count("checkpoint") == 1
    assert dcp.save.__module__.startswith("torch.")


@pytest.mark.worker
def test_label_costs_few_events_with_recorded_stacks(tmp_path):
    """Most calls are inner ones, of which nothing is wanted; and modules are named where the recorder does not look."""
    inner, steps = 20, 6
    net, batch = nn.Sequential(*(nn.Identity() for _ in range(inner))), torch.ones(2)

    def frames(make, path):
        with make(activities=[ProfilerActivity.CPU], with_stack=True) as prof:
            for _ in range(steps):
                net(batch)
        prof.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
        return Counter(each["name"] for each in events if each.get("cat") == "python_function")

    ours = frames(functools.partial(perfhooks.Profiler, out=tmp_path), tmp_path / "ours.json")
    theirs = frames(profile, tmp_path / "theirs.json")
    added = ours - theirs
    assert not any("named_modules" in name for name in added)
    checks = {name: count for name, count in added.items() if "_is_compiled" in name or "get_ident" in name}
    assert checks
    assert max(checks.values()) < inner * steps / 2, "of an inner call, only the first is looked at"
