"""What a window says reaches the trainer's loggers, at the trainer's own step, when its files are there."""

import os
import time
from pathlib import Path

import pytest
from lightning.pytorch import Trainer
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning_training import Tiny, batches, fit, profiler, read, tables, trainer
from terminal import steps_of_mean

from perfhooks.record.loop.worker import Worker

pytestmark = [
    pytest.mark.framework,
    pytest.mark.filterwarnings(
        "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning", "ignore:.*LeafSpec.*:FutureWarning"
    ),
]

WINDOWS = "wait=1 warmup=1 active=2 repeat=2"
"""Records steps 2 and 3, 6 and 7."""


class Logging(Tiny):
    """Logs the number of each training batch under its own name."""

    def training_step(self, batch, batch_idx):
        self.log("batch", float(batch_idx))
        return super().training_step(batch, batch_idx)


def logged(logger, name):
    """The values of a metric of a CSVLogger, by step."""
    rows = read(Path(logger.log_dir) / "metrics.csv")
    return {int(row["step"]): float(row[name]) for row in rows if row.get(name)}


def test_window_is_logged_at_the_trainer_step_of_its_last_step(tmp_path):
    logger = CSVLogger(tmp_path)
    callback = profiler(tmp_path, WINDOWS)
    fit(tmp_path, callback, steps=10, module=Logging(), logger=logger, log_every_n_steps=1)
    walls = logged(logger, "perf/train/wall_ms")
    means = [sum(float(row["wall_ms"]) for row in rows) / len(rows) for rows in tables(callback, tmp_path).values()]
    assert list(walls) == [3, 7]
    assert list(walls.values()) == pytest.approx(means)
    assert logged(logger, "batch") == {step: float(step) for step in range(10)}, "the trainer's own are as before"


@pytest.mark.parametrize(
    ("stage", "schedule", "how", "steps"),
    [
        # batches 3 and 7 are the second of an update
        ("train", WINDOWS, {"steps": 10, "accumulate_grad_batches": 2}, [1, 3]),
        ("train", "wait=1 warmup=1 active=9 repeat=1", {"steps": 5}, [5]),
        ("validate", "wait=0 warmup=0 active=2 repeat=1", {"steps": 4, "val": 3}, [4]),
    ],
    ids=["accumulated", "shortened", "validation"],
)
def test_results_are_logged_at_the_step_of_the_trainer(tmp_path, stage, schedule, how, steps):
    logger = CSVLogger(tmp_path)
    fit(tmp_path, profiler(tmp_path, {stage: schedule}), logger=logger, log_every_n_steps=1, **how)
    assert list(logged(logger, f"perf/{stage}/wall_ms")) == steps


def test_results_are_logged_without_waiting(tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "set_priority", lambda *_: None)  # with a low priority, it takes minutes when busy
    logger = CSVLogger(tmp_path)
    callback = profiler(tmp_path, "wait=1 warmup=1 active=2 repeat=1", background=True)

    def slowly(module, batch_idx):
        time.sleep(0.01)
        if any("perf/train/wall_ms" in row for row in logger.experiment.metrics):
            module.trainer.should_stop = True

    made = fit(tmp_path, callback, steps=30_000, module=Tiny(slowly), logger=logger, log_every_n_steps=1)
    assert made.global_step < 30_000, "the worker was heard while training went on"
    assert list(logged(logger, "perf/train/wall_ms")) == [3], "and what it said is logged where the window was"


def test_tensorboard_gets_scalars_and_the_table_as_text(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    callback = profiler(tmp_path, WINDOWS)
    fit(tmp_path, callback, steps=10, logger=logger, log_every_n_steps=1)
    found = EventAccumulator(logger.log_dir).Reload()
    assert [event.step for event in found.Scalars("perf/train/forward_ms")] == [3, 7]
    (first, _) = found.Tensors("perf/train/text_summary")
    text = first.tensor_proto.string_val[0].decode()
    assert steps_of_mean(2, 3).search(text.splitlines()[0])
    assert "| rank | stage | step | wall_ms |" in text
    assert str(tmp_path / "perf" / "run" / "train-000002-000003") in text


def test_first_of_several_ranks_logs(tmp_path, monkeypatch):
    """A logger of one's own may log whatever any rank says."""
    heard = []
    monkeypatch.setattr(CSVLogger, "log_metrics", lambda _, metrics, step=None: heard.extend(metrics))
    for is_first in (False, True):
        monkeypatch.setattr(Trainer, "is_global_zero", is_first)
        fit(tmp_path, profiler(tmp_path, WINDOWS, run=str(is_first)), steps=10, logger=CSVLogger(tmp_path))
        assert ("perf/train/wall_ms" in heard) == is_first


def test_a_logger_that_fails_does_not_stop_the_training(tmp_path, caplog):
    class Failing(CSVLogger):
        def log_metrics(self, metrics, step=None):
            if any(name.startswith("perf") for name in metrics):
                raise OSError("no space left")

    callback = profiler(tmp_path, WINDOWS)
    made = fit(tmp_path, callback, steps=10, logger=Failing(tmp_path), log_every_n_steps=1)
    assert made.global_step == 10
    assert "no space left" in caplog.text


@pytest.mark.nightly
def test_weights_and_biases_gets_the_files_on_request(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    from lightning.pytorch.loggers import WandbLogger

    monkeypatch.setenv("WANDB_SILENT", "true")
    callback = profiler(tmp_path, WINDOWS, log_files=True)
    logger = WandbLogger(save_dir=tmp_path, offline=True)
    fit(tmp_path, callback, steps=10, logger=logger, log_every_n_steps=1)
    logger.experiment.finish()
    wandb.teardown()  # the process that writes the file has ended
    (sent,) = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    assert b"train-000002-000003" in sent.read_bytes()


@pytest.mark.nightly
def test_mlflow_gets_the_files_on_request(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    from lightning.pytorch.loggers import MLFlowLogger

    monkeypatch.setitem(os.environ, "MLFLOW_ALLOW_FILE_STORE", "true")
    callback = profiler(tmp_path, WINDOWS, log_files=True)
    logger = MLFlowLogger(tracking_uri=f"file:{tmp_path}/mlruns")
    fit(tmp_path, callback, steps=10, logger=logger, log_every_n_steps=1)
    assert len(list(tmp_path.glob("mlruns/*/*/artifacts/perf/train-*/rank0.steps.csv"))) == 2


def test_files_finished_after_the_training_are_not_logged(tmp_path):
    logger = CSVLogger(tmp_path)
    callback = profiler(tmp_path, "wait=1 warmup=1 active=2 repeat=1", background=True)
    made = trainer(tmp_path, callback, logger=logger, log_every_n_steps=1)
    made.fit(Tiny(), batches(5))
    before = len(logger.experiment.metrics)
    tables(callback, tmp_path)
    assert len(logger.experiment.metrics) == before
