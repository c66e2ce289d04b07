"""The hook of mmengine, beyond the contract of all integrations: configs, loops, logs and optimizers of mmengine."""

import csv
import functools
import io
import json
import logging
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("mmengine")

import torch
from face_files import parts
from mmengine.config import Config
from mmengine.hooks import Hook
from mmengine.model import BaseDataPreprocessor
from mmengine.optim import OptimWrapper, OptimWrapperDict
from mmengine.runner import FlexibleRunner, Runner
from mmengine_training import (
    EPOCHS,
    ITERATIONS,
    LOADING,
    Samples,
    Tiny,
    batches,
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
from terminal import steps_of_mean

import perfhooks.core.options
from perfhooks_mmengine import ProfilerHook

SCHEDULE = "skip_first=2 wait=2 warmup=1 active=3 repeat=2"
AT_ONCE = "wait=0 warmup=0 active=3 repeat=1"
NEVER = "wait=100 warmup=1 active=1"

pytestmark = [
    pytest.mark.framework,
    pytest.mark.usefixtures(tidy.__name__),
]


FORMS = {
    "instance": lambda: ProfilerHook(schedule=SCHEDULE),
    "dict": lambda: {"type": "perfhooks_mmengine.ProfilerHook", "schedule": SCHEDULE},
    "config": lambda: (
        Config(
            {
                "hook": {
                    "type": "perfhooks_mmengine.ProfilerHook",
                    "schedule": {"skip_first": 2, "wait": 2, "warmup": 1, "active": 3, "repeat": 2},
                    "on_trace_ready": ["default", {"type": "operators", "row_limit": 5}],
                }
            }
        ).hook
    ),
}


@pytest.mark.parametrize(("form", "train_cfg"), [("instance", EPOCHS), ("dict", EPOCHS), ("config", ITERATIONS)])
def test_schedule_selects_the_recorded_iterations(tmp_path, form, train_cfg):
    done = trained(tmp_path, FORMS[form](), train_cfg=train_cfg)
    assert names(done) == ["train-000005-000007", "train-000011-000013"]
    assert steps(done) == [5, 6, 7, 11, 12, 13]
    assert [capture(window)["partial"] for window in windows(done)] == [None, None]


def test_a_flexible_runner_is_profiled_like_the_other(tmp_path):
    hook = ProfilerHook(schedule=SCHEDULE)
    made = FlexibleRunner(
        **settings(tmp_path, hook, env_cfg={}, randomness={"seed": None}), strategy={"type": "SingleDeviceStrategy"}
    )
    made.train()
    assert steps(made) == [5, 6, 7, 11, 12, 13]


# --- the parts of a step ---


UPDATE = {"data", "transfer", "forward", "backward", "optimizer"}


@pytest.mark.parametrize("train_cfg", [EPOCHS, ITERATIONS], ids=["epochs", "iterations"])
def test_parts_are_labelled_from_the_first_step_on(tmp_path, train_cfg):
    done = trained(tmp_path, ProfilerHook(schedule=AT_ONCE), train_cfg=train_cfg)
    assert [parts(row) for row in rows(windows(done)[0])] == [UPDATE] * 3


class SlowTransfer(BaseDataPreprocessor):
    def forward(self, data, training=False):
        time.sleep(0.020)
        return super().forward(data, training)


class Snail(Hook):
    """A hook of somebody's that takes its time."""

    def before_train_iter(self, runner, **_):
        time.sleep(0.060)


def test_transfers_and_other_hooks_have_the_time_spent_in_them(tmp_path):
    model = Tiny()
    model.data_preprocessor = SlowTransfer()
    done = trained(tmp_path, ProfilerHook(schedule=AT_ONCE), Snail(), model=model)
    for row in rows(windows(done)[0]):
        assert row["transfer_ms"] >= 20
        assert row["other_ms"] >= 60


class SlowSamples(Samples):
    """Each takes a while to read."""

    def __getitem__(self, index):
        time.sleep(0.010)
        return super().__getitem__(index)


def test_wait_for_a_batch_is_in_the_timeline_outside_of_windows(tmp_path):
    slow = functools.partial(batches, 8, dataset=SlowSamples())
    done = trained(
        tmp_path,
        ProfilerHook(schedule={"train": NEVER, "val": NEVER}),
        train_dataloader=slow(),
        train_cfg={"max_epochs": 1, "by_epoch": True},
        **validation() | {"val_dataloader": slow()},
    )
    path = Path(done.log_dir) / "perf" / done.timestamp / "rank0.timeline.csv"
    with path.open() as file:
        waits = [(row["stage"], float(row["data_ms"] or 0)) for row in csv.DictReader(file)]
    assert Counter(stage for stage, _ in waits) == {"train": 8, "validate": 8}
    assert min(wait for _, wait in waits) >= 20, waits


def test_loops_run_as_before_when_a_training_is_over(tmp_path):
    done = trained(tmp_path, ProfilerHook(schedule=SCHEDULE), **validation())
    assert "run" not in vars(done.train_loop)
    assert "run" not in vars(done.val_loop)


def test_covered_wrapper_stays_without_effect(tmp_path):
    class Cover(Hook):
        priority = "LOWEST"

        def after_train_iter(self, runner, **_):
            if runner.iter == 4:
                runner.optim_wrapper.step = functools.partial(runner.optim_wrapper.step)

    done = trained(tmp_path, ProfilerHook(schedule="wait=4 warmup=1 active=2 repeat=2"), Cover())
    assert steps(done) == [5, 6, 12, 13]


class Adversarial(Tiny):
    """Two optimizers, one after the other, in a ``train_step`` of its own."""

    def __init__(self):
        super().__init__()
        self.other = torch.nn.Linear(4, 2)

    def train_step(self, data, optim_wrapper):
        inputs, labels = self.data_preprocessor(data, True)
        for name, layer in (("one", self.layer), ("two", self.other)):
            with optim_wrapper[name].optim_context(self):
                loss = torch.nn.functional.cross_entropy(layer(inputs), labels)
            optim_wrapper[name].update_params(loss)
        return {"loss": loss}


def test_several_optimizers_are_labelled(tmp_path):
    model = Adversarial()
    layers = {"one": model.layer, "two": model.other}
    update = OptimWrapperDict(
        **{name: OptimWrapper(torch.optim.SGD(layer.parameters(), lr=0.01)) for name, layer in layers.items()}
    )
    done = trained(tmp_path, ProfilerHook(schedule=AT_ONCE), model=model, optim_wrapper=update)
    assert [parts(row) for row in rows(windows(done)[0])] == [UPDATE] * 3


def test_a_compiled_step_is_not_touched(tmp_path, recwarn):
    compiled = []

    def counted(graph, _):
        compiled.append(hook.profilers["train"].step_num)
        return graph.forward

    torch._dynamo.register_backend(counted, name="counted")
    cfg = settings(tmp_path, cfg={"compile": {"backend": "counted"}})
    hook = ProfilerHook(schedule="wait=1 warmup=1 active=2 repeat=1")
    made = Runner(**{**cfg, "custom_hooks": [hook]})
    made.train()
    assert steps(made) == [2, 3]
    assert parts(rows(windows(made)[0])[0]) >= {"data", "backward"}
    assert not [one for one in recwarn if "record_function" in str(one.message)]
    # at a graph break, torch 2.4 compiles the modules again inside our wrapper, once
    first = 3 if torch.__version__.startswith("2.4") else 2
    assert max(compiled) < first, "nor is it compiled again in the window or after it"


# --- accumulated gradients, resuming ---

ACCUMULATE = {"optimizer": {"type": "SGD", "lr": 0.01}, "accumulative_counts": 3}


def test_a_step_can_be_an_update_of_the_optimizer(tmp_path):
    hook = ProfilerHook(schedule="wait=1 warmup=1 active=2 repeat=1", step_unit="optimizer")
    done = trained(tmp_path, hook, optim_wrapper=ACCUMULATE)
    assert steps(done) == [2, 3]
    # 16 iterations: an update after every third, and after the last
    assert hook.profiler.step_num == 6


def resumed(tmp_path, make_hook, monkeypatch, *, interval, **more):
    """Train to a checkpoint, then on from there; gives the two runners."""
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")  # for mmengine's own checkpoints on torch 2.6 and later
    checkpoint = {"checkpoint": {"type": "CheckpointHook", "interval": interval, "by_epoch": False}}
    more = {"default_hooks": checkpoint, "train_cfg": ITERATIONS, **more}
    first = runner(tmp_path, make_hook(), **{**more, "train_cfg": {**more["train_cfg"], "max_iters": interval}})
    first.train()
    time.sleep(1.1)  # mmengine names log folders by the second
    second = runner(tmp_path, make_hook(), resume=True, **more)
    second.train()
    return first, second


@pytest.mark.filterwarnings(*LOADING)
def test_updates_and_validations_continue_from_the_checkpoint(tmp_path, monkeypatch):
    schedule = {"train": "wait=3 warmup=0 active=2", "val": "wait=6 warmup=0 active=2 repeat=1"}
    first, second = resumed(
        tmp_path,
        lambda: ProfilerHook(schedule=schedule, step_unit="optimizer"),
        monkeypatch,
        interval=9,
        optim_wrapper=ACCUMULATE,
        train_cfg={**ITERATIONS, "val_interval": 4},
        **validation(),
    )
    # nine iterations are three updates, and hold three validations of five
    assert steps(first, stage="validate") == [6, 7]
    assert names(first, stage="train") == []
    assert steps(second, stage="train") == [3, 4]
    assert names(second, stage="validate") == []


@pytest.mark.filterwarnings(*LOADING)
def test_weights_without_a_resumption_restart_the_schedule(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    checkpoint = {"checkpoint": {"type": "CheckpointHook", "interval": 6, "by_epoch": False}}
    make = {"step_unit": "optimizer", "schedule": AT_ONCE}
    trained(tmp_path / "first", ProfilerHook(**make), default_hooks=checkpoint)
    second = trained(tmp_path / "second", ProfilerHook(**make), load_from=str(tmp_path / "first" / "iter_6.pth"))
    assert steps(second) == [0, 1, 2]


# --- validation and test as loops of their own ---


def test_single_runner_val_and_runner_test_are_profiled(tmp_path):
    made = runner(tmp_path, ProfilerHook(schedule={"val": AT_ONCE, "test": AT_ONCE}), **validation(), **on_test())
    made.val()
    made.test()
    assert names(made) == ["test-000000-000002", "validate-000000-000002"]
    for window in windows(made):
        assert {row["stage"] for row in rows(window)} == {window.name.split("-")[0]}
        assert parts(rows(window)[-1]) == {"data", "transfer", "forward"}


# --- where mmengine's users look ---


def test_parts_are_in_the_log_line_and_steps_in_the_visualizer(tmp_path):
    hook = ProfilerHook(schedule="wait=1 warmup=1 active=3 repeat=1")
    default_hooks = {"checkpoint": None, "logger": {"type": "LoggerHook", "interval": 1}}
    made = trained(tmp_path, hook, default_hooks=default_hooks, log_level="INFO")
    (log,) = (tmp_path / made.timestamp).glob("*.log")
    text = log.read_text()
    assert steps_of_mean(2, 4).search(text)
    assert str(windows(made)[0].parent) in text
    assert "perf_wall_ms: " in text
    assert "perf_forward_ms: " in text
    lines = (tmp_path / made.timestamp / "vis_data" / "perfhooks.json").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    assert [row["step"] for row in found] == [2, 3, 4]
    for ours, row in zip(found, rows(windows(made)[0]), strict=True):
        assert ours["perf/train/wall_ms"] == row["wall_ms"]


def test_the_log_line_shows_a_windows_numbers_once(tmp_path):
    hook = ProfilerHook(schedule="wait=1 warmup=1 active=1 repeat=2")
    default_hooks = {"checkpoint": None, "logger": {"type": "LoggerHook", "interval": 2}}
    made = trained(tmp_path, hook, default_hooks=default_hooks, log_level="INFO")
    (log,) = (tmp_path / made.timestamp).glob("*.log")
    lines = [line for line in log.read_text().splitlines() if "Epoch(train)" in line]
    # the windows end with iterations 2 and 5; lines come after every second one
    assert ["perf_wall_ms: " in line for line in lines] == [False, True, False, True, *[False] * 4]
    assert "get_log_after_iter" not in vars(made.log_processor)


def test_tensorboard_has_the_steps_at_their_numbers(tmp_path):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    visualizer = {"type": "Visualizer", "vis_backends": [{"type": "TensorboardVisBackend"}]}
    made = trained(tmp_path, ProfilerHook(schedule=SCHEDULE), visualizer=visualizer)
    (events,) = tmp_path.rglob("events.out.tfevents.*")
    found = accumulator.EventAccumulator(str(events)).Reload().Scalars("perf/train/wall_ms")
    assert [(one.step, one.value) for one in found] == [
        (row["step"], pytest.approx(row["wall_ms"])) for window in windows(made) for row in rows(window)
    ]


def test_window_finished_after_the_training_is_shown(tmp_path, monkeypatch):
    monkeypatch.setitem(perfhooks.core.options.DEFAULTS, "background", True)
    hook = ProfilerHook(schedule="wait=12 warmup=1 active=2 repeat=1")
    made = trained(tmp_path, hook, log_level="INFO")
    logging.getLogger("perfhooks").warning("said by another profiler")
    assert hook.profiler.wait(250)
    (log,) = (tmp_path / made.timestamp).glob("*.log")
    assert steps_of_mean(13, 14).search(log.read_text())
    assert "another profiler" not in log.read_text()
    targets = [getattr(handler, "target", None) for handler in logging.getLogger("perfhooks").handlers]
    assert made.logger not in targets, "when all is said, nothing stays"
    lines = (tmp_path / made.timestamp / "vis_data" / "perfhooks.json").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [13, 14]


def test_closed_log_gets_no_lines(tmp_path, monkeypatch, capfd):
    """Its window is finished when nobody can write into the runner's log any more."""
    monkeypatch.setitem(perfhooks.core.options.DEFAULTS, "background", True)
    hook = ProfilerHook(schedule="wait=12 warmup=1 active=2 repeat=1")
    made = trained(tmp_path, hook, log_level="INFO")
    closed = io.StringIO()
    closed.close()
    with monkeypatch.context() as patched:
        for handler in made.logger.handlers:
            patched.setattr(handler, "stream", closed)
        assert hook.profiler.wait(250)
    said = capfd.readouterr().err
    assert "Logging error" not in said
    assert "Traceback" not in said


def test_two_hooks_log_each_line_once(tmp_path, caplog, capfd):
    hooks = [
        ProfilerHook(schedule="wait=1 warmup=0 active=2 repeat=1"),
        ProfilerHook(schedule="wait=5 warmup=0 active=2 repeat=1"),
    ]
    made = trained(tmp_path, *hooks, log_level="INFO")
    (log,) = (tmp_path / made.timestamp).glob("*.log")
    assert len(steps_of_mean(1, 2).findall(log.read_text())) == 1
    assert len(steps_of_mean(5, 6).findall(log.read_text())) == 1
    targets = [getattr(handler, "target", None) for handler in logging.getLogger("perfhooks").handlers]
    assert made.logger not in targets


def test_error_of_perfhooks_is_a_log_line_and_training_continues(tmp_path, monkeypatch):
    made = runner(tmp_path, ProfilerHook(schedule=AT_ONCE), log_level="INFO")
    add_scalars = made.visualizer.add_scalars

    def fail(*args, file_path, **kwargs):
        if file_path == "perfhooks.json":
            raise OSError("no space left")
        add_scalars(*args, file_path=file_path, **kwargs)

    monkeypatch.setattr(made.visualizer, "add_scalars", fail)
    made.train()
    (log,) = (tmp_path / made.timestamp).glob("*.log")
    assert "the training continues" in log.read_text()
    assert made.iter == 16


def test_checkpoint_keeps_the_count_of_an_idle_loop(tmp_path):
    """As of a validation that comes after the training's checkpoints."""
    late = "wait=9 warmup=0 active=1"
    hook = ProfilerHook(schedule={"train": late, "val": late}, out=str(tmp_path))
    resumed = SimpleNamespace(iter=5, log_dir=str(tmp_path), timestamp="resumed")
    hook.after_load_checkpoint(resumed, {"perfhooks": {"validate": 3}})
    hook.before_train(resumed)
    checkpoint = {}
    hook.before_save_checkpoint(resumed, checkpoint)
    hook.before_val(resumed)
    hook.after_val_iter(resumed)
    later = {}
    hook.before_save_checkpoint(resumed, later)
    for profiler in hook.profilers.values():
        profiler.stop()
    assert (checkpoint["perfhooks"], later["perfhooks"]) == ({"validate": 3}, {"validate": 4})
