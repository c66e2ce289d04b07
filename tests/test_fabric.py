"""The Fabric callback: with Fabric's hooks alone, and with a loop over its steps."""

import csv
import json

import pytest

pytest.importorskip("lightning")

import torch
from face_files import TWO_WINDOWS, at_once, calls, parts, run_readme, tables, windows, wrong_options_raise
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


def train(fabric, model, optimizer, batches, *, accumulate=1, region=None, at=None):
    for index, (batch,) in enumerate(batches):
        if region is None:
            loss = model(batch).square().mean()
        else:
            with region("forward"):
                loss = model(batch).square().mean()
        fabric.backward(loss)
        if (index + 1) % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        if at is not None:
            at(index)


def test_wrong_options_raise_before_training():
    wrong_options_raise(ProfilerCallback)
    with pytest.raises(perfhooks.OptionError, match="'val'"):
        ProfilerCallback().steps([], stage="val")


def test_callback_accepts_all_profiler_options_except_stage():
    given = {name: value for name, value in DEFAULTS.items() if name != "stage"}
    assert ProfilerCallback(**given).profilers["train"]._course.options == DEFAULTS


@pytest.mark.usefixtures("even_pace")
def test_defaults_record_one_small_window_into_the_logger_folder(tmp_path):
    callback = ProfilerCallback(background=False)
    logger = CSVLogger(tmp_path)
    fabric, model, optimizer, loader = prepared(callback, 16, loggers=[logger])
    train(fabric, model, optimizer, callback.steps(loader))
    callback.stop()
    (table,) = tmp_path.rglob("perf/latest/*/rank0.steps.csv")
    assert table.parent.name == "train-000012-000014"
    assert str(table).startswith(logger.root_dir)


@pytest.mark.parametrize("looped", [True, False], ids=["steps", "hooks alone"])
@pytest.mark.parametrize("accumulate", [1, 4])
def test_step_is_an_update_of_one_or_more_batches(tmp_path, accumulate, looped):
    callback = profiler(tmp_path, TWO_WINDOWS)
    fabric, model, optimizer, loader = prepared(callback, 10 * accumulate)
    train(fabric, model, optimizer, callback.steps(loader) if looped else loader, accumulate=accumulate)
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


def test_a_step_may_be_a_batch(tmp_path):
    callback = profiler(tmp_path, "wait=2 warmup=0 active=2 repeat=1", step_unit="batch")
    fabric, model, optimizer, loader = prepared(callback, 8)
    train(fabric, model, optimizer, callback.steps(loader), accumulate=4)
    callback.stop()
    assert callback.profilers["train"].step_num == 8
    assert [parts(row) >= {"optimizer"} for row in tables(tmp_path)["train-000002-000003"]] == [False, True]


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


def test_parts_have_times_and_other_loops_are_validation(tmp_path):
    schedule = {"train": "wait=2 warmup=0 active=3 repeat=1", "validate": "wait=12 warmup=0 active=2 repeat=1"}
    callback = profiler(tmp_path, schedule)
    fabric, model, optimizer, loader = prepared(callback)

    def between(index):
        if index in {3, 8}:
            for (batch,) in callback.steps(loader, stage="validate"):
                model(batch)
        if index == 4:
            fabric.save(tmp_path / "state.ckpt", {"model": model})

    train(fabric, model, optimizer, callback.steps(loader), region=callback.region, at=between)
    callback.stop()
    update = {"data", "forward", "backward", "optimizer"}
    found = {int(row["step"]): parts(row) for row in tables(tmp_path)["train-000002-000004"]}
    assert found == {2: update, 3: update | {"validation"}, 4: update | {"checkpoint"}}
    assert windows(tmp_path)["validate-000012-000013"] == [12, 13]
    assert not {"backward", "save"} & set(vars(fabric))


def test_results_are_in_fabrics_loggers(tmp_path):
    callback = profiler(tmp_path, TWO_WINDOWS)
    logger = CSVLogger(tmp_path / "logs", flush_logs_every_n_steps=1)
    fabric, model, optimizer, loader = prepared(callback, loggers=[logger])
    train(fabric, model, optimizer, callback.steps(loader))
    callback.stop()
    (file,) = (tmp_path / "logs").rglob("metrics.csv")
    with file.open(encoding="utf-8") as lines:
        logged = list(csv.DictReader(lines))
    assert [line["step"] for line in logged if line.get("perf/train/wall_ms")] == ["4", "8"]


def test_resumed_training_continues_its_schedule(tmp_path):
    for run, batches in (("first", 6), ("again", 4)):
        callback = profiler(tmp_path, TWO_WINDOWS, run=run)
        fabric, model, optimizer, loader = prepared(callback, batches)
        state = {"model": model, "profiler": callback}
        if run == "again":
            fabric.load(tmp_path / "state.ckpt", state)
        train(fabric, model, optimizer, callback.steps(loader))
        fabric.save(tmp_path / "state.ckpt", state)
        callback.stop()
        assert callback.profilers["train"].step_num == {"first": 6, "again": 10}[run]
    assert windows(tmp_path, "first") == {"train-000003-000004": [3, 4]}
    assert windows(tmp_path, "again") == {"train-000007-000008": [7, 8]}


@pytest.mark.parametrize("state", [{}, {"steps": "nonsense"}, {"steps": {"train": "three"}}], ids=str)
def test_unreadable_state_raises_nothing(tmp_path, state):
    callback = profiler(tmp_path, TWO_WINDOWS)
    callback.load_state_dict(state)
    assert callback.state_dict() == {"steps": {"train": 0}}


def test_error_reported_by_the_program_is_stored_with_the_window(tmp_path):
    callback = profiler(tmp_path, "wait=1 warmup=0 active=9 repeat=1")
    fabric, model, optimizer, loader = prepared(callback)

    def fail(index):
        if index == 3:
            raise RuntimeError("out of luck")

    try:
        train(fabric, model, optimizer, callback.steps(loader), at=fail)
    except RuntimeError as error:
        fabric.call("on_exception", exception=error)
    facts = json.loads((tmp_path / "perf/run/train-000001-000009/rank0.capture.json").read_text(encoding="utf-8"))
    assert facts["partial"] == "RuntimeError: out of luck"
    assert not callback.profilers["train"].in_window


def test_idle_update_costs_little(tmp_path):
    callback = profiler(tmp_path, "wait=1000000 warmup=1 active=1")
    optimizer = object()
    callback.on_after_optimizer_step(None, optimizer)
    assert calls(lambda: callback.on_after_optimizer_step(None, optimizer)) <= 4
    callback.stop()


def test_further_models_cause_no_communication(tmp_path, monkeypatch):
    """Ranks agree on the name of the run once: a training sets up a model, and may set up more."""
    said = []
    monkeypatch.setattr(Fabric, "broadcast", lambda _, value, **__: said.append(value) or value)
    fabric, *_ = prepared(profiler(tmp_path, "wait=1 warmup=0 active=1 repeat=1"))
    fabric.setup(torch.nn.Linear(4, 2))
    assert len(said) == 1
