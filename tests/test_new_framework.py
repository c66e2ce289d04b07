"""The integration that integrations/README.md shows is one: it trains with a framework of thirty lines."""

from __future__ import annotations

import inspect
import pickle
import re
import sys
import time
import types
from pathlib import Path

import pytest
import torch

import perfhooks
from perfhooks import adapters

README = (Path(__file__).parents[1] / "integrations/README.md").read_text(encoding="utf-8")
WINDOW = "wait=1 warmup=0 active=2 repeat=1"
SLEEP_MS = 20
"""In a forward and in a backward pass, outside of any operator: only a label can tell whose time that is."""


class Engine:
    def backward(self, loss):
        time.sleep(SLEEP_MS / 1000)
        loss.backward()


class Trainer:
    """A framework: a loop with hooks, an engine and a log."""

    def __init__(self, folder, callback):
        self.log_dir = folder
        self.callback = callback
        self.engine = Engine()
        self.model = torch.nn.Linear(4, 2)
        self.logged = []

    def log(self, values):
        self.logged.append(values)

    def loss(self, batch):
        if batch is None:
            raise ValueError("no batch")
        time.sleep(SLEEP_MS / 1000)
        return self.model(batch).square().mean()

    def fit(self, batches, step=0):
        self.callback.on_train_begin(self, step)
        try:
            for batch in batches:
                self.engine.backward(self.loss(batch))
                self.callback.on_step_end(self)
        except ValueError as error:
            self.callback.on_exception(self, error)
            raise
        self.callback.on_train_end(self)


@pytest.fixture
def face(monkeypatch):
    """The class that the page shows, in a module of its own, after all of its Python blocks were run."""
    module = types.ModuleType("perfhooks_frame")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    blocks = re.findall(r"^```python\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    assert "class ProfilerCallback" in "".join(blocks)
    for block in blocks:
        exec(compile(block, "integrations/README.md", "exec"), vars(module))
    return module.ProfilerCallback


@pytest.fixture
def options():
    """With no labels but those of the face."""
    return {"on_trace_ready": ["steps", "trace"], "background": False, "labels": False, "on_error": "raise"}


def batches(count):
    return list(torch.ones(count, 3, 4))


def rows(callback):
    """The step tables of the training, row by row."""
    (place,) = callback.profilers["train"].folder.glob("train-*")
    return dict(adapters.step_rows(adapters.Place(place)))


@pytest.mark.recorder
def test_integration_records_labels_logs_and_cleans_up(face, options, tmp_path, caplog):
    callback = face(WINDOW, **options)
    trainer = Trainer(tmp_path, callback)
    trainer.fit(batches(5))
    table = rows(callback)
    assert list(table) == [1, 2]
    assert all(row["forward_ms"] >= SLEEP_MS and row["backward_ms"] >= SLEEP_MS for row in table.values())
    (logged,) = trainer.logged
    assert logged["perf/train/wall_ms"] == pytest.approx(sum(row["wall_ms"] for row in table.values()) / 2, rel=1e-3)
    assert (vars(trainer.engine), "loss" in vars(trainer)) == ({}, False)
    assert callback.profilers["train"].folder.parent == tmp_path / "perf"
    assert "forward  backward" in callback.summary()
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


@pytest.mark.recorder
def test_a_step_that_fails_ends_the_window_with_its_cause(face, options, tmp_path, caplog):
    callback = face(WINDOW, **options)
    with pytest.raises(ValueError, match="no batch"):
        Trainer(tmp_path, callback).fit([*batches(2), None])
    assert list(rows(callback)) == [1]
    assert "ValueError: no batch" in caplog.text


def test_training_without_profiling_works(face, options, tmp_path):
    callback = face({"validate": WINDOW}, **options)
    Trainer(tmp_path, callback).fit(batches(3))
    assert list(callback.profilers) == ["validate"]
    assert not (tmp_path / "perf").exists()


def test_a_wrong_argument_is_an_error_before_the_training(face):
    with pytest.raises(TypeError, match="unexpected option 'step_unti'; did you mean 'step_unit'"):
        face(step_unti="batch")
    with pytest.raises(perfhooks.OptionError, match="step_unit must be 'batch' or 'optimizer', got 'epoch'"):
        face(step_unit="epoch")
    with pytest.raises(perfhooks.OptionError, match="Frame sets the stage"):
        face(stage="test")
    with pytest.raises(perfhooks.OptionError, match=r"schedule must have only loops as keys \(train, validate\)"):
        face({"train": WINDOW, "test": WINDOW})


def test_its_signature_has_every_option_and_its_own_defaults(face):
    parameters = inspect.signature(face).parameters
    wanted = [name for name in perfhooks.Options.__annotations__ if name != "stage"]
    assert [name for name in parameters if name in wanted] == wanted
    assert list(parameters)[:3] == ["schedule", "on_trace_ready", "step_unit"]
    assert parameters["keep_results"].default is False


@pytest.mark.recorder
def test_unpickled_callback_continues_counting(face, options, tmp_path):
    callback = face(WINDOW, **options)
    Trainer(tmp_path, callback).fit(batches(5))
    callback._trainer = None
    again = pickle.loads(pickle.dumps(callback))
    trainer = Trainer(tmp_path / "again", again)
    trainer.fit(batches(5), step=None)
    assert again.profilers["train"].step_num == 10
