"""All of the callback can be said in a configuration file of LightningCLI."""

import sys
import warnings

import pytest
import torch
import yaml
from lightning.pytorch import LightningDataModule
from lightning.pytorch.cli import LightningCLI
from lightning_training import QUIET, Tiny, batches, read

from perfhooks_lightning import ProfilerCallback

pytest.importorskip("jsonargparse")

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning",
        "ignore:.*LeafSpec.*:FutureWarning",
        "ignore:.*No seed found.*:UserWarning",
    ),
]


class Data(LightningDataModule):
    def train_dataloader(self):
        return batches(6)

    def val_dataloader(self):
        return batches(3)


def configured(tmp_path, monkeypatch, arguments, *, run=True, keep=False):
    """LightningCLI with a configuration file that has our callback with some arguments."""
    config = {
        "seed_everything": 1,
        "trainer": QUIET
        | {
            "max_epochs": 1,
            "logger": keep,
            "enable_checkpointing": False,
            "default_root_dir": str(tmp_path),
            "callbacks": [{"class_path": "perfhooks_lightning.ProfilerCallback", "init_args": arguments}],
        },
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    monkeypatch.setattr(sys, "argv", ["train.py", *(["fit"] if run else []), "--config", str(path)])
    monkeypatch.chdir(tmp_path)
    cli = LightningCLI(Tiny, Data, run=run, save_config_kwargs={"overwrite": True})
    (callback,) = [each for each in cli.trainer.callbacks if isinstance(each, ProfilerCallback)]
    callback.summary()
    return callback


EVERYTHING = {
    "schedule": {"train": "wait=1 warmup=0 active=2 repeat=1", "validate": {"wait": 1, "warmup": 0, "active": 1}},
    "on_trace_ready": ["trace", {"type": "operators", "row_limit": 5}, "steps"],
    "step_unit": "batch",
    "module_names": True,
    "log_results": False,
    "log_files": False,
    "activities": ["cpu"],
    "record_shapes": True,
    "with_stack": True,
    "profile_memory": True,
    "ranks": [0],
    "run": "from-yaml",
    "background": False,
    "exit_timeout": 5.0,
    "on_error": "raise",
}


def test_configuration_file_sets_all_options(tmp_path, monkeypatch):
    configured(tmp_path, monkeypatch, EVERYTHING | {"out": str(tmp_path / "perf")})
    run = tmp_path / "perf" / "from-yaml"
    folders = {path.name: path for path in run.iterdir() if path.is_dir()}
    assert set(folders) == {"train-000001-000002", "validate-000001-000001"}
    for folder in folders.values():
        assert len(read(folder / "rank0.operators.csv")) == 5
        assert (folder / "rank0.pt.trace.json.gz").exists()


@pytest.mark.parametrize(
    "schedule",
    [
        None,
        "wait=1 warmup=1 active=2 repeat=3",
        {"wait": 1, "warmup": 1, "active": 2, "repeat": 3, "skip_first": 4},
        {"train": None, "test": "wait=1 warmup=1 active=1", "predict": {"wait": 0, "warmup": 0, "active": 1}},
    ],
    ids=str,
)
def test_forms_of_a_schedule_work_in_configuration_files(schedule, tmp_path, monkeypatch):
    from_file = configured(tmp_path, monkeypatch, {"schedule": schedule}, run=False)
    in_python = ProfilerCallback(schedule)
    assert {stage: str(each._course.requests.base) for stage, each in from_file.profilers.items()} == {
        stage: str(each._course.requests.base) for stage, each in in_python.profilers.items()
    }


@pytest.mark.parametrize("handlers", ["stacks", ["default"], {"type": "operators", "by": ["shapes"]}, None], ids=str)
def test_handlers_can_be_names(handlers, tmp_path, monkeypatch):
    from_file = configured(tmp_path, monkeypatch, {"on_trace_ready": handlers}, run=False)
    in_python = ProfilerCallback(on_trace_ready=handlers)
    assert (
        from_file.profilers["train"]._course.windows.handover.recipes
        == in_python.profilers["train"]._course.windows.handover.recipes
    )


def test_the_saved_configuration_can_be_used_again(tmp_path, monkeypatch):
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        before = configured(tmp_path, monkeypatch, EVERYTHING, keep=True)
    assert [str(each.message) for each in warned if "serialize" in str(each.message)] == []
    (saved,) = tmp_path.glob("lightning_logs/version_0/config.yaml")
    (arguments,) = [
        each["init_args"]
        for each in yaml.safe_load(saved.read_text(encoding="utf-8"))["trainer"]["callbacks"]
        if each["class_path"].endswith("ProfilerCallback")
    ]
    assert arguments["on_trace_ready"] == EVERYTHING["on_trace_ready"]
    after = configured(tmp_path, monkeypatch, arguments, run=False)
    for stage in ("train", "validate"):
        assert after.profilers[stage]._course.options == before.profilers[stage]._course.options
        assert after.profilers[stage]._course.requests.base == before.profilers[stage]._course.requests.base


def test_wrong_argument_in_a_file_is_named(tmp_path, monkeypatch, capsys):
    with pytest.raises(ValueError, match="active must be an integer >= 1, got 0"):
        configured(tmp_path, monkeypatch, {"schedule": "wait=1 warmup=1 active=0"}, run=False)
    with pytest.raises(SystemExit):
        configured(tmp_path, monkeypatch, {"with_stacks": True}, run=False)
    assert "with_stacks" in capsys.readouterr().err
    assert not torch._C._autograd._profiler_enabled()
