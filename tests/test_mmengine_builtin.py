"""mmengine's own ProfilerHook, its arguments and its defects: the same config with only the type changed.

The numbers of the tests are those of mmengine 0.10.7's defects on torch 2.15, each of which was reproduced; what
happens when a process ends is in test_mmengine_ends.py, several ranks are in test_mmengine_ranks.py.
"""

import argparse
import gzip
import inspect
import json
import re
import shlex
import time
from pathlib import Path

import pytest
import warm

pytest.importorskip("mmengine")

import mmengine.hooks
import torch
from mmengine.config import Config, ConfigDict, DictAction
from mmengine.hooks import Hook
from mmengine.registry import DATASETS, HOOKS
from mmengine.runner import Runner
from mmengine_training import (
    EPOCHS,
    ITERATIONS,
    LOADING,
    capture,
    names,
    on_test,
    rows,
    runner,
    settings,
    steps,
    tidy,
    trained,
    validation,
    windows,
)

import perfhooks
import perfhooks_mmengine
from perfhooks import OptionError
from perfhooks_mmengine import ProfilerHook

pytestmark = [
    pytest.mark.framework,
    pytest.mark.usefixtures(tidy.__name__),
]


def marks(trace):
    """The numbers of the steps in a Chrome trace."""
    data = trace.read_bytes()
    data = gzip.decompress(data) if trace.name.endswith(".gz") else data
    found = {
        event["name"]
        for event in json.loads(data)["traceEvents"]
        if event.get("cat") == "user_annotation" and event["name"].startswith("ProfilerStep#")
    }
    return sorted(int(name.removeprefix("ProfilerStep#")) for name in found)


def recorded(done):
    """The iterations that the one window recorded."""
    assert len(windows(done)) == 1
    return steps(done)


# --- the eleven arguments ---


def test_arguments_of_mmengines_hook_are_accepted():
    theirs = inspect.signature(mmengine.hooks.ProfilerHook).parameters
    taken = {*inspect.signature(ProfilerHook).parameters, *perfhooks.Options.__annotations__}
    assert set(theirs) - {"self"} <= taken
    assert ProfilerHook.priority == mmengine.hooks.ProfilerHook.priority


@pytest.mark.parametrize(
    ("config", "train_cfg", "iterations"),
    [
        ({"by_epoch": True}, EPOCHS, range(8)),
        ({"profile_times": 1}, EPOCHS, range(8)),
        ({"by_epoch": True, "profile_times": 1}, ITERATIONS, range(16)),
        ({"by_epoch": False}, EPOCHS, range(1)),
        ({"by_epoch": False, "profile_times": 5}, EPOCHS, range(5)),
        ({"by_epoch": False, "profile_times": 5}, ITERATIONS, range(5)),
        ({"by_epoch": False, "profile_times": 16}, ITERATIONS, range(16)),
        ({"by_epoch": False, "profile_times": 12}, EPOCHS, range(12)),  # longer than an epoch
        (
            {"profile_times": 2, "by_epoch": False, "activity_with_cpu": False, "activity_with_cuda": False},
            EPOCHS,
            range(2),
        ),
        ({"activity_with_cpu": True}, EPOCHS, range(8)),
        ({"activity_with_cuda": False}, EPOCHS, range(8)),
        ({}, EPOCHS, range(8)),
    ],
    ids=str,
)
def test_by_epoch_and_profile_times_equal_those_of_mmengine(tmp_path, config, train_cfg, iterations):
    path = tmp_path / "trace.json"
    config = {"type": "perfhooks_mmengine.ProfilerHook", "json_trace_path": str(path), **config}
    done = trained(tmp_path, config, train_cfg=train_cfg)
    assert recorded(done) == list(iterations)
    assert capture(windows(done)[0])["partial"] is None
    assert set(marks(path)) >= set(iterations)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"profile_times": 0}, "profile_times must be an integer >= 1, got 0"),
        ({"by_epoch": True, "profile_times": 2}, "profile_times must be 1 with by_epoch=True"),
        ({"profile_times": 2}, "profile_times must be 1 with by_epoch=True"),
        ({"by_epoch": 1}, "by_epoch must be true or false, got 1"),
        ({"by_epoch": False, "profile_times": "3"}, "profile_times must be an integer >= 1, got '3'"),
        ({"activity_with_cpu": None, "activity_with_cuda": 1}, "activity_with_cuda must be true or false, got 1"),
        ({"activities": ["cpu"], "activity_with_cpu": True}, "activities cannot be combined with activity_with_cpu"),
        ({"schedule": {}}, "active"),
        ({"schedule": ConfigDict()}, "active"),
        ({"schedule": {"wait": 1, "warmup": 1, "activ": 1}}, "did you mean active"),
        ({"schedule": {"train": None, "val": "wait=1"}}, "active"),
        ({"schedule": [1, 1, 3]}, "schedule"),
        ({"on_trace_ready": 0}, "on_trace_ready"),
        ({"on_trace_ready": "stakcs"}, "stacks"),
        ({"on_trace_ready": {"type": "unknown"}}, "unknown"),
        ({"on_trace_ready": {"type": "tb_trace", "dirname": "here"}}, "tb_trace does not take these options"),
        ({"on_trace_ready": {"type": "log_trace", "row_limt": 5}}, "log_trace does not take these options"),
        ({"json_trace_path": 3}, "json_trace_path must be a path, got 3"),
    ],
    ids=str,
)
def test_wrong_arguments_of_mmengine_raise_at_construction(wrong, message):
    with pytest.raises(OptionError, match=message):
        ProfilerHook(**wrong)


def test_too_many_iterations_are_an_error_before_the_first(tmp_path):
    reached = []

    class Look(Hook):
        def before_train(self, runner):
            reached.append(runner)

    made = runner(tmp_path, ProfilerHook(by_epoch=False, profile_times=17), Look())
    with pytest.raises(OptionError, match="at most the 16 iterations of training, got 17"):
        made.train()
    assert reached == [], "it is said before weights are loaded"


def test_handlers_of_mmengine_can_be_added(tmp_path):
    done = trained(tmp_path, {"type": "perfhooks_mmengine.ProfilerHook", "on_trace_ready": {"type": "tb_trace"}})
    (trace,) = (Path(done.log_dir) / "tf_tracing_logs").iterdir()
    events = json.loads(trace.read_text())["traceEvents"]
    assert [event["name"] for event in events].count("Optimizer.step#SGD.step") == 8


def test_schedule_overrides_mmengines_own_arguments(tmp_path):
    config = {"json_trace_path": str(tmp_path / "a.json"), "schedule": "wait=9 warmup=1 active=2 repeat=1"}
    done = trained(tmp_path, {"type": "perfhooks_mmengine.ProfilerHook", **config})
    assert recorded(done) == marks(tmp_path / "a.json") == [10, 11]


def test_activities_follow_mmengine_and_any_device(monkeypatch):
    activity = torch.profiler.ProfilerActivity
    from perfhooks_mmengine import builtin

    assert builtin.activities(None, None) is None
    assert builtin.activities(True, None) == [activity.CPU]
    assert builtin.activities(None, False) == [activity.CPU]
    monkeypatch.setattr(torch.profiler, "supported_activities", lambda: {activity.CPU, activity.PrivateUse1})
    assert builtin.activities(True, True) == [activity.CPU, activity.PrivateUse1]
    assert builtin.activities(False, True) == [activity.PrivateUse1]


def test_missing_device_is_a_log_line(tmp_path, caplog):
    if torch.profiler.supported_activities() != {torch.profiler.ProfilerActivity.CPU}:
        pytest.skip("there is a device")
    done = trained(tmp_path, ProfilerHook(by_epoch=False, profile_times=2, activity_with_cuda=True))
    assert recorded(done) == [0, 1]
    assert "torch cannot record a device on this host" in caplog.text


@pytest.mark.parametrize("level", ["INFO", "ERROR"])
def test_log_trace_is_in_the_log_at_any_level(tmp_path, level):
    """mmengine's own prints its table."""
    table = ConfigDict(type="log_trace", sort_by="self_cpu_time_total", row_limit=3)
    done = trained(tmp_path, ProfilerHook(by_epoch=True, on_trace_ready=table), log_level=level)
    (log,) = (tmp_path / done.timestamp).glob("*.log")
    assert "Self CPU time total" in log.read_text()


@pytest.mark.parametrize(
    ("options", "folder", "ending"),
    [
        ({}, "tf_tracing_logs", ".pt.trace.json"),
        ({"use_gzip": True}, "tf_tracing_logs", ".pt.trace.json.gz"),
        ({"dir_name": "here", "worker_name": "me"}, "here", ".pt.trace.json"),
    ],
    ids=str,
)
def test_tb_trace_is_in_the_folder_of_mmengine(tmp_path, options, folder, ending):
    hook = ProfilerHook(by_epoch=True, on_trace_ready={"type": "tb_trace", **options})
    done = trained(tmp_path, hook)
    (trace,) = (Path(done.log_dir) / folder).iterdir()
    assert trace.name.endswith(ending)
    assert trace.name.startswith(options.get("worker_name", ""))


def test_absolute_dir_name_stays_unchanged(tmp_path):
    hook = ProfilerHook(by_epoch=True, on_trace_ready={"type": "tb_trace", "dir_name": str(tmp_path / "tb")})
    trained(tmp_path / "work", hook)
    assert len(list((tmp_path / "tb").iterdir())) == 1


def test_a_callable_gets_torchs_profiler(tmp_path):
    seen = []
    trained(tmp_path, ProfilerHook(by_epoch=True, on_trace_ready=lambda prof: seen.append(type(prof).mro())))
    assert torch.profiler.profile in seen[0]


def test_the_attribute_profiler_answers_after_the_training(tmp_path):
    hook = ProfilerHook(by_epoch=False, profile_times=3)
    trained(tmp_path, hook)
    assert {row.key for row in hook.profiler.key_averages()} >= {"aten::linear", "aten::addmm"}


def test_config_accepts_handlers_of_both_kinds(tmp_path):
    wanted = ["default", "log_trace", {"type": "tb_trace", "dir_name": "tb"}, {"type": "operators", "row_limit": 3}]
    cfg = Config({"custom_hooks": [{"type": "perfhooks_mmengine.ProfilerHook", "on_trace_ready": wanted}]})
    cfg.custom_hooks[0].schedule = "wait=11 warmup=1 active=3 repeat=1"
    done = trained(tmp_path, cfg.custom_hooks[0])
    assert recorded(done) == [12, 13, 14]
    assert (windows(done)[0] / "rank0.operators.csv").exists()
    assert len(list((Path(done.log_dir) / "tb").iterdir())) == 1


# --- in place of mmengine's ---


def test_replace_builtin_serves_configs_that_cannot_be_edited(tmp_path):
    theirs = HOOKS.get("ProfilerHook")
    try:
        perfhooks_mmengine.replace_builtin()
        done = trained(tmp_path / "three", {"type": "ProfilerHook", "by_epoch": False, "profile_times": 3})
        assert recorded(done) == [0, 1, 2]
        done = trained(tmp_path / "all", {"type": "ProfilerHook"})
        assert recorded(done) == list(range(8)), "mmengine's default: the first epoch"
    finally:
        HOOKS.register_module(name="ProfilerHook", module=theirs, force=True)


def test_subclass_of_mmengines_hook_works(tmp_path):
    """In the wild: ``after_val_iter`` steps, ``after_val_epoch`` ends the profile."""

    class DepthProfilerHook(ProfilerHook):
        def after_val_epoch(self, runner, metrics=None):
            if not self._closed:
                self._export_chrome_trace(runner)

    done = trained(tmp_path, DepthProfilerHook(by_epoch=False, profile_times=12), **validation())
    assert recorded(done) == list(range(8))


TRAIN = """
import argparse, sys
from mmengine.config import Config, DictAction
from mmengine.runner import Runner
parser = argparse.ArgumentParser()
parser.add_argument("config")
parser.add_argument("--cfg-options", nargs="+", action=DictAction)
args = parser.parse_args()
cfg = Config.fromfile(args.config)
if args.cfg_options is not None:
    cfg.merge_from_dict(args.cfg_options)
cfg.work_dir = "work"
sys.path.insert(0, {tests!r})
import mmengine_training  # registers the model and the data of the config
Runner.from_cfg(cfg).train()
"""
CONFIG = """
model = dict(type="mmengine_training.Tiny")
train_dataloader = dict(
    dataset=dict(type="mmengine_training.Samples"), batch_size=2, sampler=dict(type="DefaultSampler", shuffle=True),
    collate_fn=dict(type="default_collate"))
train_cfg = dict(by_epoch=True, max_epochs=2)
optim_wrapper = dict(optimizer=dict(type="SGD", lr=0.01))
default_hooks = dict(checkpoint=None)
"""


PAGE = (Path(perfhooks_mmengine.__file__).parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("block", re.findall(r"```python\n(custom_hooks = .*?)```", PAGE, re.DOTALL))
def test_configs_of_the_page_are_valid(block):
    for config in Config.fromstring(block, ".py").custom_hooks:
        assert isinstance(HOOKS.build(config), ProfilerHook)


def test_command_line_options_of_the_page_are_valid():
    (command,) = re.findall(r"```sh\n(.*?--cfg-options.*?)```", PAGE, re.DOTALL)
    parser = argparse.ArgumentParser()
    parser.add_argument("--cfg-options", nargs="+", action=DictAction)
    words = shlex.split(command.replace("\\\n", ""))
    cfg = Config({"default_hooks": {}})
    cfg.merge_from_dict(parser.parse_args(words[words.index("--cfg-options") :]).cfg_options)
    assert isinstance(HOOKS.build(cfg.default_hooks.profiler), ProfilerHook)


def test_single_line_adds_the_hook_to_an_unmodified_script(frameworks, tmp_path):
    (tmp_path / "train.py").write_text(TRAIN.format(tests=str(Path(__file__).parent)))
    (tmp_path / "config.py").write_text(CONFIG)
    line = [
        "default_hooks.profiler.type=perfhooks_mmengine.ProfilerHook",
        "default_hooks.profiler.schedule=wait=2 warmup=1 active=2 repeat=1",
        "default_hooks.profiler.with_stack=True",
    ]
    done = warm.run(frameworks, tmp_path / "train.py", "config.py", "--cfg-options", *line, timeout=300)
    assert done.returncode == 0, done.stderr
    (window,) = (path for path in tmp_path.glob("work/*/perf/2*/*") if path.is_dir())
    assert window.name == "train-000003-000004"
    assert {path.name for path in window.iterdir()} >= {"rank0.steps.csv", "rank0.stacks.folded"}


def test_the_recipe_of_a_vendors_guide_runs(frameworks, tmp_path):
    recipe = Path(__file__).parents[1] / "examples" / "mmengine_recipe.py"
    done = warm.run(frameworks, recipe, "--batch-size", "2", "--steps", "12", folder=tmp_path, timeout=300)
    assert done.returncode == 0, done.stderr
    (path,) = tmp_path.glob("work_dirs/resnet18/*/trace.json")
    assert set(marks(path)) >= set(range(10))
    (table,) = tmp_path.glob("work_dirs/resnet18/*/perf/2*/train-000000/rank0.steps.csv")
    assert [row["step"] for row in rows(table.parent)] == list(range(10))


# --- mmengine's defects, by number ---


def test_2_single_test_and_val_do_not_build_the_training(tmp_path):
    class Unbuildable(torch.utils.data.Dataset):
        def __init__(self):
            raise AssertionError("the training's data were built")

    DATASETS.register_module(name="Unbuildable", module=Unbuildable, force=True)
    loader = {"dataset": {"type": "Unbuildable"}, "batch_size": 2, "sampler": {"type": "DefaultSampler"}}
    hook = ProfilerHook(by_epoch=True)
    made = runner(tmp_path, hook, train_dataloader=loader, **validation(), **on_test())
    made.test()
    made.val()
    assert not hook.profiler.in_window
    assert not (Path(made.log_dir) / "perf").exists()


@pytest.mark.parametrize("again", ["train", "test"])
def test_2_second_run_in_one_process_records_nothing_twice(tmp_path, again):
    made = trained(tmp_path, ProfilerHook(by_epoch=False, profile_times=3), **on_test())
    getattr(made, again)()
    assert recorded(made) == [0, 1, 2]


def test_3_a_runner_without_a_training_runs(tmp_path):
    cfg = settings(tmp_path, ProfilerHook(by_epoch=False, profile_times=10), **on_test())
    for name in ("train_dataloader", "train_cfg", "optim_wrapper"):
        del cfg[name]
    assert Runner(**cfg).test() == {"count": 10}


@pytest.mark.parametrize(
    "schedule",
    [None, {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}, {"wait": 1, "warmup": 1, "active": 20}],
    ids=["no schedule", "finished", "cut short"],
)
def test_4_tensorboard_and_json_are_both_written(tmp_path, schedule):
    path = tmp_path / "trace.json"
    options = {"by_epoch": False, "profile_times": 6, "schedule": schedule, "json_trace_path": str(path)}
    done = trained(tmp_path, ProfilerHook(**options, on_trace_ready={"type": "tb_trace"}))
    (for_tensorboard,) = (Path(done.log_dir) / "tf_tracing_logs").iterdir()
    assert for_tensorboard.read_bytes() == path.read_bytes()


def test_5_a_window_that_never_began_is_a_message(tmp_path, caplog):
    schedule = {"wait": 5, "warmup": 1, "active": 1}
    options = {"by_epoch": False, "profile_times": 1, "schedule": schedule}
    done = trained(tmp_path, ProfilerHook(**options, json_trace_path=str(tmp_path / "trace.json")))
    assert done.iter == 16
    assert not (tmp_path / "trace.json").exists()
    assert "no window has been recorded: 1 step ended; the first window is step 6" in caplog.text


def test_6_folder_of_the_json_is_created(tmp_path):
    path = tmp_path / "no" / "such" / "folder" / "trace.json"
    trained(tmp_path, ProfilerHook(by_epoch=True, json_trace_path=str(path)))
    assert path.exists()


def test_6_a_json_that_cannot_be_written_is_a_log_line(tmp_path, caplog):
    (tmp_path / "file").touch()
    done = trained(tmp_path, ProfilerHook(by_epoch=True, json_trace_path=str(tmp_path / "file" / "trace.json")))
    assert done.iter == 16
    assert "the training continues" in caplog.text
    assert recorded(done) == list(range(8))


def test_8_a_schedule_without_repeat_ends_with_the_first_epoch(tmp_path):
    schedule = {"wait": 1, "warmup": 1, "active": 2}
    done = trained(tmp_path, ProfilerHook(by_epoch=True, schedule=schedule))
    assert names(done) == ["train-000002-000003", "train-000006-000007"]


def test_9_a_window_cut_short_has_no_step_that_never_was(tmp_path):
    schedule = {"wait": 1, "warmup": 1, "active": 5}
    done = trained(tmp_path, ProfilerHook(by_epoch=False, profile_times=4, schedule=schedule))
    assert recorded(done) == [2, 3]
    assert capture(windows(done)[0])["partial"] == "stopped before its last step"


@pytest.mark.filterwarnings(*LOADING)
def test_10_resumed_training_is_profiled_from_its_resumption(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    checkpoint = {"checkpoint": {"type": "CheckpointHook", "interval": 4, "by_epoch": False}}
    trained(tmp_path, default_hooks=checkpoint, train_cfg={"by_epoch": False, "max_iters": 4})
    time.sleep(1.1)  # mmengine names log folders by the second
    path = tmp_path / "trace.json"
    hook = ProfilerHook(by_epoch=False, profile_times=6, json_trace_path=str(path))
    done = trained(tmp_path, hook, resume=True, train_cfg={"by_epoch": False, "max_iters": 12})
    assert recorded(done) == list(range(4, 10))
    assert set(marks(path)) >= set(range(4, 10))


def test_11_recording_starts_with_the_first_iteration(tmp_path):
    class Look(Hook):
        def before_run(self, runner):
            runner.model.init_weights = self.init_weights

        def init_weights(self):
            assert not torch.autograd._profiler_enabled()

    assert recorded(trained(tmp_path, Look(), ProfilerHook(by_epoch=True))) == list(range(8))


def test_13_early_stopping_keeps_the_recording(tmp_path):
    class Stop(Hook):
        def after_val_epoch(self, runner, metrics):
            runner.train_loop.stop_training = True

    loop = {"by_epoch": False, "max_iters": 16, "val_interval": 4}
    hook = ProfilerHook(by_epoch=False, profile_times=10)
    assert recorded(trained(tmp_path, Stop(), hook, train_cfg=loop, **validation())) == [0, 1, 2, 3]


def test_16_of_two_hooks_the_second_steps_back(tmp_path, caplog):
    hooks = [ProfilerHook(by_epoch=False, profile_times=3), ProfilerHook(by_epoch=False, profile_times=5)]
    done = trained(tmp_path, *hooks)
    assert recorded(done) == [0, 1, 2]
    assert "another profiler is recording" in caplog.text


def test_18_stacks_are_small(tmp_path):
    done = trained(tmp_path, ProfilerHook(by_epoch=False, profile_times=4, with_stack=True))
    (window,) = windows(done)
    assert (window / "rank0.stacks.folded").stat().st_size
    assert sum(path.stat().st_size for path in window.iterdir()) < 5_000_000
