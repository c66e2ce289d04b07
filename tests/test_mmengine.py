"""A normal training with mmengine: the hook in every form a config can give it, in both kinds of loop."""

import csv
import json

import pytest

pytest.importorskip("mmengine")

from mmengine.config import Config
from mmengine_training import EPOCHS, ITERATIONS, close_logs, runner

from perfhooks import OptionError
from perfhooks_mmengine import ProfilerHook

SCHEDULE = "skip_first=2 wait=2 warmup=1 active=3 repeat=2"


@pytest.fixture(autouse=True)
def logs():
    yield
    close_logs()


def windows(runner):
    from pathlib import Path

    return sorted(folder for folder in (Path(runner.log_dir) / "perf" / runner.timestamp).iterdir() if folder.is_dir())


def rows(window, rank=0):
    with (window / f"rank{rank}.steps.csv").open() as file:
        return list(csv.DictReader(file))


FORMS = {
    "instance": lambda: ProfilerHook(schedule=SCHEDULE),
    "dict": lambda: {"type": "perfhooks_mmengine.ProfilerHook", "schedule": SCHEDULE},
    "config": lambda: (
        Config(
            {
                "hook": {
                    "type": "perfhooks_mmengine.ProfilerHook",
                    "schedule": {"skip_first": 2, "wait": 2, "warmup": 1, "active": 3, "repeat": 2},
                }
            }
        ).hook
    ),
}


@pytest.mark.parametrize("train_cfg", [EPOCHS, ITERATIONS], ids=["epochs", "iterations"])
@pytest.mark.parametrize("form", FORMS)
def test_the_schedule_says_which_iterations_are_recorded(tmp_path, form, train_cfg):
    trained = runner(tmp_path, FORMS[form](), train_cfg=train_cfg)
    trained.train()
    found = windows(trained)
    assert [window.name for window in found] == ["train-000005-000007", "train-000011-000013"]
    assert [int(row["step"]) for window in found for row in rows(window)] == [5, 6, 7, 11, 12, 13]
    for window in found:
        assert json.loads((window / "rank0.capture.json").read_text())["partial"] is None


def test_without_a_schedule_iterations_12_to_14_are_recorded(tmp_path):
    trained = runner(tmp_path, {"type": "perfhooks_mmengine.ProfilerHook"})
    trained.train()
    assert [window.name for window in windows(trained)] == ["train-000012-000014"]


def test_a_training_that_ends_inside_a_window_keeps_it_and_says_so(tmp_path):
    trained = runner(tmp_path, ProfilerHook(schedule="wait=12 warmup=1 active=30"))
    trained.train()
    (window,) = windows(trained)
    capture = json.loads((window / "rank0.capture.json").read_text())
    assert capture["partial"]
    assert capture["reached"] == 16


@pytest.mark.parametrize(
    "wrong",
    [{"schedule": "wait=1"}, {"schedule": {"wait": -1, "warmup": 1, "active": 1}}, {"on_trace_ready": "stakcs"}],
    ids=str,
)
def test_a_wrong_option_is_an_error_at_construction(wrong):
    with pytest.raises(OptionError):
        ProfilerHook(**wrong)


def test_an_unknown_option_is_an_error_at_construction():
    with pytest.raises(TypeError, match="with_stack"):
        ProfilerHook(with_stak=True)
