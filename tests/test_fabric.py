"""The Fabric callback, beyond the contract of all integrations: Fabric's hooks alone, and several models."""

import pytest

pytest.importorskip("lightning")

import torch
from face_files import TWO_WINDOWS, at_once, parts, run_readme, tables, windows
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import perfhooks
from perfhooks.core.options import DEFAULTS
from perfhooks_fabric import ProfilerCallback

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


def profiler(folder, schedule, **options):
    """A callback that writes to a folder, at once, and only step tables unless told otherwise."""
    return ProfilerCallback(schedule, **at_once(folder) | options)


def prepared(callback, batches=10, **options):
    """Fabric, a model, an optimizer and a loader."""
    fabric = Fabric(accelerator="cpu", devices=1, callbacks=[callback], **options)
    layer = torch.nn.Linear(4, 2)
    model, optimizer = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(torch.randn(2 * batches, 4)), batch_size=2))
    return fabric, model, optimizer, loader


def train(fabric, model, optimizer, batches, *, accumulate=1, at=None):
    for index, (batch,) in enumerate(batches):
        fabric.backward(model(batch).square().mean())
        if (index + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        if at is not None:
            at(index)


def test_unknown_loop_is_rejected():
    with pytest.raises(perfhooks.OptionError, match="'val'"):
        ProfilerCallback().steps([], stage="val")


@pytest.mark.parametrize("accumulate", [1, 4])
def test_hooks_alone_count_updates(tmp_path, accumulate):
    callback = profiler(tmp_path, TWO_WINDOWS)
    fabric, model, optimizer, loader = prepared(callback, 10 * accumulate)
    train(fabric, model, optimizer, loader, accumulate=accumulate)
    callback.stop()
    assert callback.profilers["train"].step_num == 10
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}


def test_the_blocks_of_its_readme_run(tmp_path, monkeypatch):
    monkeypatch.setitem(DEFAULTS, "background", False)
    layer = torch.nn.Linear(4, 2)
    names = {"Fabric": lambda callbacks: Fabric(accelerator="cpu", callbacks=callbacks, loggers=[CSVLogger(tmp_path)])}
    names |= {"model": layer, "optimizer": torch.optim.SGD(layer.parameters(), lr=0.01)}
    run_readme("perfhooks_fabric", names | {"loader": DataLoader(torch.randn(56, 4))})
    assert [path.parent.name for path in tmp_path.rglob("rank0.steps.csv") if "latest" not in path.parts] == [
        "train-000052-000054"
    ]


def test_gradients_that_are_clipped_are_a_part_of_the_update(tmp_path):
    callback = profiler(tmp_path, "wait=2 warmup=0 active=2 repeat=1", step_unit="batch")
    fabric, model, optimizer, loader = prepared(callback, 8)

    def clip(index):
        if index == 2:
            fabric.clip_gradients(model, optimizer, max_norm=1.0)

    train(fabric, model, optimizer, callback.steps(loader), accumulate=8, at=clip)
    callback.stop()
    assert [parts(row) >= {"optimizer"} for row in tables(tmp_path)["train-000002-000003"]] == [True, False]


def test_update_ends_no_step_if_steps_are_batches(tmp_path):
    callback = profiler(tmp_path, "wait=2 warmup=0 active=2 repeat=1", step_unit="batch")
    fabric, model, optimizer, loader = prepared(callback, 8)
    train(fabric, model, optimizer, loader)
    callback.stop()
    assert callback.profilers["train"].step_num == 0
    assert tables(tmp_path) == {}


def test_first_of_two_optimizers_counts(tmp_path):
    callback = profiler(tmp_path, TWO_WINDOWS)
    fabric, model, optimizer, loader = prepared(callback)
    layer = torch.nn.Linear(4, 2)
    other, second = fabric.setup(layer, torch.optim.SGD(layer.parameters(), lr=0.01))
    for (batch,) in loader:
        fabric.backward(model(batch).mean() + other(batch).mean())
        optimizer.step()
        second.step()
    callback.stop()
    assert callback.profilers["train"].step_num == 10


def test_further_models_cause_no_communication(tmp_path, monkeypatch):
    """Ranks agree on the name of the run once: a training sets up a model, and may set up more."""
    said = []
    monkeypatch.setattr(Fabric, "broadcast", lambda _, value, **__: said.append(value) or value)
    fabric, *_ = prepared(profiler(tmp_path, "wait=1 warmup=0 active=1 repeat=1"))
    fabric.setup(torch.nn.Linear(4, 2))
    assert len(said) == 1
