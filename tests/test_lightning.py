"""The Lightning callback, beyond the contract of all integrations: loops, units, checkpoints and ends of Lightning."""

import itertools
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning_training import Tiny, batches, capture, events, fit, profiler, read, tables, trainer, windows
from slow_parts import NAP_S, event_after, too_short

from perfhooks.record.watch import watcher
from perfhooks.run.live import slow_steps
from perfhooks.run.live.slow_causes import CONTENTION
from perfhooks_lightning import ProfilerCallback, framework

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning", "ignore:.*LeafSpec.*:FutureWarning"
    ),
]

TWO_WINDOWS = "skip_first=1 wait=1 warmup=1 active=2 repeat=2"
"""Records steps 3 and 4, 7 and 8."""


# --- arguments ---


def test_first_installed_lightning_is_used_by_default(monkeypatch):
    for name in framework.PACKAGES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(framework.importlib, "import_module", lambda name: name)
    assert framework.modules() == ["lightning.pytorch"]
    monkeypatch.setitem(sys.modules, "pytorch_lightning", pytest)
    assert framework.modules() == ["pytorch_lightning"]


def test_files_go_to_the_folder_of_the_logger(tmp_path):
    from lightning.pytorch.loggers import CSVLogger

    callback = ProfilerCallback("wait=0 warmup=0 active=1 repeat=1", on_trace_ready="steps")
    fit(tmp_path, callback, steps=3, logger=CSVLogger(tmp_path), log_every_n_steps=1)
    callback.summary()
    assert list(tmp_path.glob("lightning_logs/version_0/perf/latest/train-000000-000000/rank0.steps.csv"))


def test_callbacks_of_one_process_have_separate_runs(tmp_path):
    for _ in range(2):
        callback = ProfilerCallback("wait=0 warmup=0 active=1 repeat=1", on_trace_ready="steps", out=tmp_path)
        fit(tmp_path, callback, steps=2)
        callback.summary()
    assert len(list(tmp_path.glob("*/run.json"))) == 2 + 1, "two runs and the link to the latest"


def test_trainer_with_a_torch_profiler_is_not_recorded(tmp_path, caplog):
    from lightning.pytorch.profilers import PyTorchProfiler

    callback = profiler(tmp_path, "wait=0 warmup=1 active=3 repeat=2")
    own = PyTorchProfiler(tmp_path, "own")
    made = fit(tmp_path, callback, steps=12, profiler=own)
    assert made.global_step == 12
    assert windows(callback, tmp_path) == {}
    assert "PyTorchProfiler" in caplog.text
    assert list(tmp_path.glob("*.pt.trace.json"))


# --- which steps ---


def test_second_fit_continues_counting(tmp_path):
    callback = profiler(tmp_path, TWO_WINDOWS)
    made = fit(tmp_path, callback, steps=5)
    made.fit_loop.max_epochs = 2
    made.fit(Tiny(), batches(5))
    assert windows(callback, tmp_path) == {"train-000003-000004": [3, 4], "train-000007-000008": [7, 8]}


def test_loops_have_separate_schedules_numbers_and_files(tmp_path):
    one = "wait=1 warmup=0 active=2 repeat=1"
    callback = profiler(tmp_path, {"train": one, "validate": one, "test": one, "predict": one})
    made = fit(tmp_path, callback, steps=3, val=4)
    made.test(Tiny(), batches(4), verbose=False)
    made.predict(Tiny(), batches(4))
    made.validate(Tiny(), batches(4), verbose=False)
    assert windows(callback, tmp_path) == {
        f"{stage}-000001-000002": [1, 2] for stage in ("train", "validate", "test", "predict")
    }
    assert all(name.startswith(rows[0]["stage"]) for name, rows in tables(callback, tmp_path).items())


# --- the unit of a step ---


def test_a_step_may_be_an_optimizer_update_of_several_batches(tmp_path):
    callback = profiler(
        tmp_path, "wait=1 warmup=0 active=2 repeat=1", step_unit="optimizer", on_trace_ready=["trace", "steps"]
    )
    fit(tmp_path, callback, steps=8, accumulate_grad_batches=2)
    assert windows(callback, tmp_path) == {"train-000001-000002": [1, 2]}
    assert callback.profilers["train"].step_num == 4
    marks = [event["name"] for event in events(tmp_path, "train-000001-000002")]
    assert marks.count("backward") == 4, "two batches in each of two steps"
    waits = [row["data_ms"] for row in read(tmp_path / "perf/run/rank0.timeline.csv")]
    assert waits == [""] * 4, "the wait for the first of two batches is not the wait of the step"


class TwoOptimizers(Tiny):
    """As a GAN does it: manual optimization, two optimizers, one of them every other batch."""

    automatic_optimization = False

    def configure_optimizers(self):
        return [torch.optim.SGD(self.parameters(), lr=1e-3), torch.optim.Adam(self.parameters(), lr=1e-3)]

    def training_step(self, batch, batch_idx):
        for optimizer in self.optimizers()[: 1 + batch_idx % 2]:
            loss = self.loss(batch)
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()


@pytest.mark.parametrize("unit", ["batch", "optimizer"])
def test_batch_of_two_optimizers_is_one_step(unit, tmp_path):
    def automatic(self):
        return False

    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        super(type(self), self).training_step(batch, batch_idx)

    hooks = {"automatic_optimization": property(automatic), "training_step": training_step}
    module = type("Manual", (TwoOptimizers,), hooks)()
    callback = profiler(tmp_path, "wait=1 warmup=0 active=2 repeat=1", step_unit=unit)
    fit(tmp_path, callback, steps=4, module=module)
    rows = tables(callback, tmp_path)["train-000001-000002"]
    assert callback.profilers["train"].step_num == 4
    for row in rows:
        assert all(float(row[f"{part}_ms"]) > 0 for part in ("data", "transfer", "forward", "backward", "optimizer"))
        assert float(row["other_ms"]) >= 20, "the forward pass is only the calls of modules"


# --- resume ---


def checkpoint_at(folder, callback, steps, path):
    made = fit(folder, callback, steps=steps)
    made.save_checkpoint(path)
    return made


def test_checkpoint_without_perfhooks_restarts_the_schedule(tmp_path):
    made = trainer(tmp_path)
    made.fit(Tiny(), batches(4))
    made.save_checkpoint(tmp_path / "other.ckpt")
    callback = profiler(tmp_path, TWO_WINDOWS)
    fit(tmp_path, callback, steps=6, max_epochs=2, ckpt_path=tmp_path / "other.ckpt")
    assert windows(callback, tmp_path) == {"train-000003-000004": [3, 4]}


def test_testing_a_checkpoint_keeps_the_counts(tmp_path):
    callback = profiler(tmp_path, {"train": TWO_WINDOWS, "validate": "wait=100 warmup=0 active=1"})
    made = checkpoint_at(tmp_path, callback, 4, tmp_path / "half.ckpt")
    made.fit_loop.max_epochs = 2
    made.fit(Tiny(), batches(4), batches(3))
    made.test(Tiny(), batches(2), ckpt_path=tmp_path / "half.ckpt", verbose=False)
    made.validate(Tiny(), batches(2), ckpt_path=tmp_path / "half.ckpt", verbose=False)
    assert {stage: each.step_num for stage, each in callback.profilers.items()} == {"train": 8, "validate": 5}


def test_checkpoint_before_the_first_validation_keeps_its_count(tmp_path):
    schedule = {"validate": "wait=4 warmup=0 active=1 repeat=1"}
    first = profiler(tmp_path, schedule, run="first")
    made = fit(tmp_path, first, steps=2, val=3)
    made.save_checkpoint(tmp_path / "one.ckpt")

    def save(module, batch_idx):
        module.trainer.save_checkpoint(tmp_path / "two.ckpt")

    second = profiler(tmp_path, schedule, run="second")
    fit(tmp_path, second, steps=1, val=1, module=Tiny(save), max_epochs=2, ckpt_path=tmp_path / "one.ckpt")
    third = profiler(tmp_path, schedule, run="third")
    fit(tmp_path, third, steps=4, val=3, max_epochs=2, ckpt_path=tmp_path / "two.ckpt")
    assert windows(second, tmp_path, "second") == {}
    assert windows(third, tmp_path, "third") == {"validate-000004-000004": [4]}


# --- ends ---


def ends(how):
    """Something that ends the training during step 4, the second of a window's three."""

    def before_step(module, batch_idx):
        if batch_idx != 4:
            return
        if how == "sigterm":
            os.kill(os.getpid(), signal.SIGTERM)
        if how == "should_stop":
            module.trainer.should_stop = True

    return before_step


@pytest.fixture
def _keep_signals():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("_keep_signals")
@pytest.mark.parametrize(
    ("how", "raised", "cause", "steps"),
    [
        ("sigterm", BaseException, "SIGTERMException", [3, 4]),
        ("should_stop", None, "stopped before its last step", [3, 4]),
    ],
)
def test_shortened_training_keeps_its_recording(how, raised, cause, steps, tmp_path):
    callback = profiler(tmp_path, "wait=3 warmup=0 active=3 repeat=1")
    if raised is None:
        fit(tmp_path, callback, module=Tiny(ends(how)))
    else:
        with pytest.raises(raised) as error:
            fit(tmp_path, callback, module=Tiny(ends(how)))
        assert type(error.value).__name__ in {raised.__name__, cause}
    assert windows(callback, tmp_path) == {"train-000003-000005": steps}
    assert capture(tmp_path, "train-000003-000005")["partial"] == cause


def test_max_time_ends_a_training_as_without_perfhooks(tmp_path, monkeypatch):
    from lightning.pytorch.callbacks import Timer

    elapsed_s = itertools.count()
    monkeypatch.setattr(Timer, "time_elapsed", lambda *_: next(elapsed_s))
    callback = profiler(tmp_path, "wait=1 warmup=0 active=1000000 repeat=1")
    made = fit(tmp_path, callback, steps=100_000, max_time={"seconds": 20}, max_epochs=-1)
    assert made.should_stop
    (facts,) = [capture(tmp_path, name) for name in windows(callback, tmp_path)]
    assert facts["partial"] == "stopped before its last step"


def test_early_stopping_keeps_the_window(tmp_path):
    from lightning.pytorch.callbacks import EarlyStopping

    class Logging(Tiny):
        def validation_step(self, batch, batch_idx):
            self.log("loss", torch.tensor(1.0), batch_size=2)

    callback = profiler(tmp_path, "wait=4 warmup=0 active=8 repeat=1")
    made = trainer(tmp_path, callback, EarlyStopping("loss", patience=1), max_epochs=9)
    made.fit(Logging(), batches(3), batches(1))
    assert made.current_epoch == 2
    assert windows(callback, tmp_path) == {"train-000004-000011": [4, 5]}


# --- slow steps ---


class Late(torch.utils.data.Dataset):
    """Samples of which two come late."""

    def __len__(self):
        return 120

    def __getitem__(self, index):
        while index in (80, 100) and too_short():
            time.sleep(NAP_S)  # slow data
        return torch.full((4,), float(index))


def pause(module, batch_idx):
    if batch_idx in (41, 61):
        event = event_after(pause)
        event.wait()  # slow step


def test_slow_step_with_accumulation_has_its_cause_and_line(tmp_path, monkeypatch):
    """Of four micro-batches, the second of updates 10 and 15 waits long; the first of updates 20 and 25 comes late.

    On a busy machine, one step of each kind may wait longer for a CPU.
    """
    monkeypatch.setattr(watcher, "_SHARE", 1.0)
    callback = profiler(tmp_path, "on request", step_unit="optimizer", poll=0.1)
    made = trainer(tmp_path, callback, accumulate_grad_batches=4)
    made.fit(Tiny(pause), torch.utils.data.DataLoader(Late(), batch_size=1))
    rows = {row.step: row for row in slow_steps.read(tmp_path / "perf" / "run" / "rank0.slow.csv")}
    lines = enumerate(Path(__file__).read_text().splitlines(), 1)
    line_of = {line.rpartition("# slow ")[2]: number for number, line in lines if "  # slow " in line}
    for steps, cause, planted in (((10, 15), "blocking call", "step"), ((20, 25), "data", "data")):
        assert {rows[step].cause for step in steps} - {"unknown", CONTENTION} == {cause}
        lines = [rows[step].line for step in steps if rows[step].cause == cause]
        assert all(Path(line).name.endswith(f"test_lightning.py:{line_of[planted]})") for line in lines)
