"""The parts of a step in the trace: right for every way to train, and nothing left behind when no window records."""

import time
from contextlib import contextmanager

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.profilers import PassThroughProfiler, Profiler, SimpleProfiler
from lightning_training import Numbers, Tiny, batches, events, fit, profiler, tables, trainer
from torch.utils.data import DataLoader

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning", "ignore:.*LeafSpec.*:FutureWarning"
    ),
]

WINDOW = "wait=1 warmup=1 active=2 repeat=1"
FOLDER = "train-000002-000003"
PARTS = ("data", "transfer", "forward", "backward", "optimizer", "validation", "checkpoint", "other")


def parts(row):
    """Milliseconds of each part of a step."""
    return {part: float(row[f"{part}_ms"] or 0) for part in PARTS}


class SlowTransfer(Tiny):
    def transfer_batch_to_device(self, batch, device, dataloader_idx):
        time.sleep(0.03)
        return batch


def test_transfer_has_the_time_spent_in_it(tmp_path):
    callback = profiler(tmp_path, WINDOW)
    fit(tmp_path, callback, steps=5, module=SlowTransfer())
    assert all(parts(row)["transfer"] >= 30 for row in tables(callback, tmp_path)[FOLDER])


class Scheduled(Tiny):
    """Its scheduler takes its time after every update."""

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.LambdaLR(optimizer, slowly), "interval": "step"}]


def slowly(_update):
    time.sleep(0.03)
    return 1.0


def test_a_scheduler_is_part_of_the_update(tmp_path):
    callback = profiler(tmp_path, WINDOW)
    fit(tmp_path, callback, steps=5, module=Scheduled())
    assert all(parts(row)["optimizer"] >= 30 for row in tables(callback, tmp_path)[FOLDER])


class Saving(Tiny):
    """Saves a checkpoint in its validation, which takes its time before anything is written."""

    def on_validation_epoch_end(self):
        self.trainer.save_checkpoint(f"{self.trainer.default_root_dir}/best.ckpt")

    def on_save_checkpoint(self, checkpoint):
        time.sleep(0.03)


def test_checkpoint_saved_in_a_validation_is_a_checkpoint(tmp_path):
    callback = profiler(tmp_path, WINDOW)
    fit(tmp_path, callback, steps=6, val=1, module=Saving(), val_check_interval=3, num_sanity_val_steps=0)
    (row,) = (found for found in map(parts, tables(callback, tmp_path)[FOLDER]) if found["validation"])
    assert row["checkpoint"] >= 30


class Stream(torch.utils.data.IterableDataset):
    """Has no length, and takes its time before the first item of an epoch."""

    def __iter__(self):
        time.sleep(0.5)
        return iter(torch.ones(6, 4))


def test_wait_for_the_first_batch_of_an_epoch_is_a_wait_for_data(tmp_path):
    callback = profiler(tmp_path, "wait=1 warmup=0 active=5 repeat=1")
    made = trainer(tmp_path, callback, max_epochs=2)
    made.fit(Tiny(), DataLoader(Stream(), batch_size=2))
    waits = [parts(row)["data"] for row in tables(callback, tmp_path)["train-000001-000005"]]
    first = waits.pop(2)
    assert first >= 500, "three batches an epoch: step 3 begins one"
    assert sorted(waits)[1] < 500, "of the others, a busy machine may delay some"


def wake_late(_worker):
    time.sleep(0.3)


def test_the_start_of_workers_is_a_wait_for_data(tmp_path):
    callback = profiler(tmp_path, "wait=3 warmup=0 active=1 repeat=1")
    made = trainer(tmp_path, callback, max_epochs=2)
    made.fit(Tiny(), DataLoader(Numbers(6), batch_size=2, num_workers=1, worker_init_fn=wake_late))
    (row,) = tables(callback, tmp_path)["train-000003-000003"]
    assert parts(row)["data"] >= 300


def test_checkpoint_is_a_part_of_the_following_step(tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    callback = profiler(tmp_path, WINDOW, on_trace_ready=["steps", "trace"])
    checkpoints = ModelCheckpoint(tmp_path / "ckpt", every_n_train_steps=1)
    made = trainer(tmp_path, checkpoints, callback, enable_checkpointing=True)
    made.fit(Tiny(), batches(5))
    assert all(parts(row)["checkpoint"] > 0 for row in tables(callback, tmp_path)[FOLDER])
    names = {event.get("name", "") for event in events(tmp_path, FOLDER)}
    assert any(name.startswith("[Callback]ModelCheckpoint") and name.endswith("on_train_batch_end") for name in names)
    assert not any("ProfilerCallback" in name for name in names)
    assert "run_training_batch" not in names, "it says nothing that the step does not say"


class OfItsOwn(PassThroughProfiler):
    """A profiler of the user's whose `profile` calls neither `start` nor `stop`."""

    @contextmanager
    def profile(self, action_name):
        yield action_name


@pytest.mark.parametrize("own", [PassThroughProfiler, OfItsOwn])
def test_actions_of_the_user_are_in_the_trace(own, tmp_path):
    class Augmenting(Tiny):
        def training_step(self, batch, batch_idx):
            with self.trainer.profiler.profile("augment"):
                batch = batch + 1
            return self.loss(batch)

    callback = profiler(tmp_path, WINDOW, on_trace_ready="trace")
    fit(tmp_path, callback, steps=5, module=Augmenting(), profiler=own())
    callback.summary()
    assert [event.get("name") for event in events(tmp_path, FOLDER)].count("augment") == 2


# --- in front of the trainer's profiler ---


class Witness(Callback):
    """Notes at the beginning of every batch whether the trainer's profiler is as its class has it."""

    def __init__(self):
        self.seen = []

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        self.seen.append(not {"start", "stop", "profile"} & vars(trainer.profiler).keys())


def test_profiler_of_the_trainer_is_restored_after_a_window(tmp_path):
    own, witness = SimpleProfiler(), Witness()
    made = trainer(tmp_path, profiler(tmp_path, WINDOW), witness, profiler=own)
    made.fit(Tiny(), batches(6))
    assert witness.seen == [True, False, False, False, True, True]
    assert made.profiler is own


def test_profiler_of_the_trainer_gets_all_actions(tmp_path):
    with_us, without = SimpleProfiler(), SimpleProfiler()
    trainer(tmp_path, profiler(tmp_path, WINDOW), Witness(), profiler=with_us).fit(Tiny(), batches(6))
    trainer(tmp_path, Witness(), profiler=without).fit(Tiny(), batches(6))

    def counted(own):
        return {name: len(times) for name, times in own.recorded_durations.items() if "ProfilerCallback" not in name}

    assert counted(with_us) == counted(without)


class Strict(Profiler):
    """A profiler of the user's, with a method of its own; every action that begins must end."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.notes = []

    def note(self, text):
        self.notes.append(text)

    def start(self, action_name):
        self.open.append(action_name)

    def stop(self, action_name):
        assert self.open.pop() == action_name


def test_profiler_of_the_user_keeps_its_methods_and_pairs(tmp_path):
    class Noting(Tiny):
        def training_step(self, batch, batch_idx):
            self.trainer.profiler.note(batch_idx)
            return self.loss(batch)

    own = Strict()
    made = trainer(tmp_path, profiler(tmp_path, WINDOW), profiler=own)
    made.fit(Noting(), batches(6))
    assert own.notes == [0, 1, 2, 3, 4, 5]
    assert own.open == []


def test_error_inside_a_part_leaves_no_labels(tmp_path):
    class Failing(Tiny):
        def training_step(self, batch, batch_idx):
            if batch_idx == 3:
                raise RuntimeError("in the forward pass")
            return self.loss(batch)

    own = PassThroughProfiler()
    module = Failing()
    callback = profiler(tmp_path, WINDOW, module_names=True)
    made = trainer(tmp_path, callback, profiler=own)
    with pytest.raises(RuntimeError, match="in the forward pass"):
        made.fit(module, batches(6))
    assert made.profiler is own
    assert hooks(module) == 0
    assert [int(row["step"]) for row in tables(callback, tmp_path)[FOLDER]] == [2]


# --- module names ---


def hooks(module):
    """The number of forward hooks in a module and its descendants."""
    return sum(len(each._forward_hooks) + len(each._forward_pre_hooks) for each in module.modules())


class Deep(Tiny):
    """A block that is used twice, and one that calls itself."""

    class Recursive(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x, depth=2):
            return self.inner(x) if depth == 0 else self(x, depth - 1)

    def __init__(self):
        super().__init__()
        self.shared = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
        self.again = self.shared
        self.recursive = self.Recursive()

    def loss(self, batch):
        return super().loss(self.recursive(self.again(self.shared(batch))))


def test_module_names_are_in_the_trace_only_on_request(tmp_path):
    module = Deep()
    callback = profiler(tmp_path, WINDOW, module_names=True, on_trace_ready="trace")
    fit(tmp_path, callback, steps=6, module=module)
    callback.summary()
    names = [event.get("name", "") for event in events(tmp_path, FOLDER)]
    found = {name: names.count(name) for name in names if name.startswith("[module] ")}
    assert found == {
        "[module] layer": 2,
        "[module] shared": 4,
        "[module] shared.0": 4,
        "[module] shared.1": 4,
        "[module] recursive": 6,
        "[module] recursive.inner": 2,
    }
    assert hooks(module) == 0
    quiet = profiler(tmp_path, WINDOW, run="quiet", on_trace_ready="trace")
    fit(tmp_path, quiet, steps=6, module=module)
    quiet.summary()
    assert not any(event.get("name", "").startswith("[module]") for event in events(tmp_path, FOLDER, "quiet"))


@pytest.fixture
def compilations():
    """A backend that counts what it compiles."""
    graphs = []

    def backend(graph, _inputs):
        graphs.append(graph)
        return graph.forward

    yield backend, graphs
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("how", ["whole module", "a layer", "in place", "a function"])
@pytest.mark.parametrize("first", [0, 2], ids=["compiled inside the window", "compiled before it"])
def test_module_names_leave_compiled_code_unchanged(how, first, tmp_path, compilations):
    """What torch.compile first sees inside the window it compiles once more after it: it guards the number of hooks."""
    backend, graphs = compilations
    module = Deep()
    if how == "a layer":
        module.shared = torch.compile(module.shared, backend=backend, fullgraph=True)
        module.again = module.shared
    elif how == "in place":
        module.recursive.compile(backend=backend, fullgraph=True)
    elif how == "a function":
        module.loss = torch.compile(module.loss, backend=backend, fullgraph=True)
    made = torch.compile(module, backend=backend) if how == "whole module" else module
    callback = profiler(tmp_path, f"wait={first} warmup=0 active=2 repeat=1", module_names=True)
    run = trainer(tmp_path, callback)
    run.fit(made, batches(2))
    count = len(graphs)
    assert count > 0
    run.fit_loop.max_epochs = 3
    run.fit(made, batches(2))
    assert len(graphs) <= count + (first == 0)
    assert len(tables(callback, tmp_path)) == 1
    assert hooks(module) == 0
