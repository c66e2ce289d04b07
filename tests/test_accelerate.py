"""The handler of accelerate, beyond the contract of all integrations: other loops, trackers, calls by hand."""

import pytest

pytest.importorskip("accelerate")

import torch
from accelerate import Accelerator
from face_files import TWO_WINDOWS, at_once, capture, parts, run_readme, tables, windows
from torch.utils.data import DataLoader, TensorDataset

from perfhooks.core.options import DEFAULTS
from perfhooks_accelerate import ProfileKwargs

pytestmark = [
    pytest.mark.recorder,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning", "ignore::UserWarning"),
]


def kwargs(folder, schedule, **options):
    """A handler that writes to a folder, at once, and only step tables unless told otherwise."""
    return ProfileKwargs(schedule, **at_once(folder) | options)


def prepared(accelerator, batches=10, models=1):
    """A loader, and some models with an optimizer each."""
    data = TensorDataset(torch.randn(2 * batches, 4))
    layers = [torch.nn.Linear(4, 2) for _ in range(models)]
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.01) for layer in layers]
    return accelerator.prepare(DataLoader(data, batch_size=2), *layers, *optimizers)


def train(accelerator, prof, loader, model, optimizer):
    """One epoch in accelerate's own form."""
    for (batch,) in prof.steps(loader):
        with accelerator.accumulate(model):
            with prof.region("forward"):
                loss = model(batch).square().mean()
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()


def test_the_blocks_of_its_readme_run(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(DEFAULTS, "background", False)
    accelerator = Accelerator(cpu=True, project_dir=str(tmp_path))
    layer = torch.nn.Linear(4, 2)
    model, optimizer, loader = accelerator.prepare(
        layer, torch.optim.SGD(layer.parameters(), lr=0.01), DataLoader(torch.randn(56, 4))
    )
    names = {"accelerator": accelerator, "model": model, "optimizer": optimizer}
    run_readme("perfhooks_accelerate", names | {"loader": loader, "validation_loader": loader})
    found = [path.parent.name for path in (tmp_path / "perf").glob("*/*/rank0.steps.csv")]
    assert {"train-000052-000054", "validate-000011-000013"} <= set(found)


@pytest.mark.parametrize("how", ["argument", "handler"])
def test_profile_and_accelerator_accept_the_kwargs(tmp_path, how):
    ours = kwargs(tmp_path, TWO_WINDOWS)
    accelerator = Accelerator(cpu=True, kwargs_handlers=[ours] if how == "handler" else None)
    with accelerator.profile(ours if how == "argument" else None) as prof:
        train(accelerator, prof, *prepared(accelerator))
    assert windows(tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}
    assert not {"backward", "save_state"} & set(vars(accelerator))


# --- which steps, and what is in them ---


def test_an_update_that_was_skipped_ends_no_step(tmp_path, monkeypatch):
    accelerator = Accelerator(cpu=True)
    loader, model, optimizer = prepared(accelerator)
    skipped = iter([True, False] * 5)
    monkeypatch.setattr(type(accelerator), "optimizer_step_was_skipped", property(lambda _: next(skipped)))
    with accelerator.profile(kwargs(tmp_path, TWO_WINDOWS, step_unit="optimizer")) as prof:
        train(accelerator, prof, loader, model, optimizer)
        assert prof.step_num == 5


@pytest.mark.parametrize("clip", ["clip_grad_norm_", "clip_grad_value_"])
def test_clipping_gradients_counts_as_update_from_the_first_step(tmp_path, clip):
    accelerator = Accelerator(cpu=True)
    loader, model, _ = prepared(accelerator, 3)
    with accelerator.profile(kwargs(tmp_path, "wait=0 warmup=0 active=2 repeat=1")) as prof:
        for (batch,) in prof.steps(loader):
            accelerator.backward(model(batch).square().mean())
            getattr(accelerator, clip)(model.parameters(), 1.0)
    found = [parts(row) for row in tables(tmp_path)["train-000000-000001"]]
    assert found == [{"data", "forward", "backward", "optimizer"}] * 2


def test_other_loops_have_windows_of_their_own(tmp_path):
    accelerator = Accelerator(cpu=True)
    loader, model, _ = prepared(accelerator, 4)
    one = "wait=1 warmup=0 active=2 repeat=1"
    with accelerator.profile(kwargs(tmp_path, {"validate": one, "predict": one})) as prof:
        for name in ("validate", "predict", "test"):
            with prof.stage(name) as loop:
                for (batch,) in loop.steps(loader):
                    model(batch)
    assert windows(tmp_path) == {"predict-000001-000002": [1, 2], "validate-000001-000002": [1, 2]}


def test_loop_without_a_window_is_reported_once_at_the_end(tmp_path, caplog):
    accelerator = Accelerator(cpu=True)
    loader, model, _ = prepared(accelerator, 3)
    with accelerator.profile(kwargs(tmp_path, {"validate": "wait=50 warmup=0 active=1 repeat=1"})) as prof:
        for _ in range(2):
            with prof.stage("validate") as loop:
                for (batch,) in loop.steps(loader):
                    model(batch)
            assert "no window has been recorded" not in caplog.text
    assert "6 steps ended; the first window is step 50" in caplog.text


def test_batch_with_several_models_and_optimizers_is_one_step(tmp_path):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    loader, one, two, first, second = prepared(accelerator, models=2)
    with accelerator.profile(kwargs(tmp_path, "wait=1 warmup=0 active=2 repeat=1", step_unit="optimizer")) as prof:
        for (batch,) in prof.steps(loader):
            with accelerator.accumulate(one, two):
                accelerator.backward(one(batch).mean() + two(batch).mean())
                for optimizer in (first, second):
                    optimizer.step()
                    optimizer.zero_grad()
        assert prof.step_num == 5
    assert windows(tmp_path) == {"train-000001-000002": [1, 2]}


# --- made by hand ---


class Handing(Accelerator):
    """One that hands out a profiler which has not begun."""

    def made(self, handler):
        return handler.build()


def test_folder_and_run_of_start_override_the_logging_folder(tmp_path):
    accelerator = Handing(cpu=True, project_dir=tmp_path / "project")
    prof = accelerator.made(ProfileKwargs(TWO_WINDOWS, ["steps"], background=False))
    prof.start(out=tmp_path / "perf", run="run")
    train(accelerator, prof, *prepared(accelerator))
    prof.stop()
    assert set(windows(tmp_path)) == {"train-000003-000004", "train-000007-000008"}
    assert not (tmp_path / "project").exists()


def test_without_accelerator_a_step_is_a_batch_without_parts(tmp_path, caplog):
    prof = kwargs(tmp_path, "wait=1 warmup=0 active=1 repeat=1", step_unit="optimizer").build()
    with prof:
        for _ in prof.steps(range(3)):
            torch.ones(2).sum()
    assert "not called by an Accelerator" in caplog.text
    (row,) = tables(tmp_path)["train-000001-000001"]
    assert parts(row) == {"data"}


# --- checkpoints, ends, cost ---


def test_window_that_a_checkpoint_shortens_is_marked_partial(tmp_path):
    accelerator = Accelerator(cpu=True)
    with accelerator.profile(kwargs(tmp_path, "wait=1 warmup=0 active=9 repeat=1")) as prof:
        for index, _ in enumerate(prof.steps(range(4))):
            if index == 2:
                prof.load_state_dict({"steps": {"train": 20}})
        assert prof.step_num == 22
    assert "resumed" in capture(tmp_path, "train-000001-000009")["partial"]
