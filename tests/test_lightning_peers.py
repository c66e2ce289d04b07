"""Reproduced defects of Lightning's own PyTorchProfiler, by number. The common contract covers the missing numbers."""

import inspect
import re
from pathlib import Path

import pytest
import torch
from lightning.pytorch.profilers import PyTorchProfiler
from lightning_training import Tiny, events, fit, profiler, windows

from perfhooks import Profiler
from perfhooks.core.successors import successors
from perfhooks.report import handlers
from perfhooks_lightning import ProfilerCallback

pytestmark = [
    pytest.mark.framework,
    pytest.mark.nightly,
    pytest.mark.filterwarnings(
        "ignore::lightning.fabric.utilities.warnings.PossibleUserWarning", "ignore:.*LeafSpec.*:FutureWarning"
    ),
]

WINDOW = "wait=1 warmup=1 active=2 repeat=1"
FOLDER = "train-000002-000003"


def test_2_file_contains_the_steps_of_its_name(tmp_path):
    """There: the files of training and validation mix both loops, and steps are numbered 2,1,2,3,3,4,4,5,6."""
    schedule = {"train": "wait=1 warmup=1 active=5 repeat=1", "validate": "wait=4 warmup=0 active=3 repeat=1"}
    callback = profiler(tmp_path, schedule, on_trace_ready=["steps", "trace"])
    fit(tmp_path, callback, steps=12, val=4, val_check_interval=4)
    assert windows(callback, tmp_path) == {"train-000002-000006": [2, 3, 4, 5, 6], "validate-000004-000006": [4, 5, 6]}
    for name, numbers in {"train-000002-000006": range(2, 7), "validate-000004-000006": range(4, 7)}.items():
        marks = [event["name"] for event in events(tmp_path, name) if event.get("name", "").startswith("ProfilerStep#")]
        assert sorted(marks) == [f"ProfilerStep#{number}" for number in numbers]
        trains = any("Optimizer.step" in event.get("name", "") for event in events(tmp_path, name))
        assert trains == name.startswith("train")


def test_4_resumed_training_neither_crashes_nor_restarts(tmp_path):
    """There: a resume with nothing left to do crashes, and the schedule starts at 0 again."""
    first = profiler(tmp_path, WINDOW, run="first")
    made = fit(tmp_path, first, steps=5)
    made.save_checkpoint(tmp_path / "end.ckpt")
    again = profiler(tmp_path, WINDOW, run="again")
    fit(tmp_path, again, steps=5, ckpt_path=tmp_path / "end.ckpt")
    fit(tmp_path, again, steps=5, max_epochs=2, ckpt_path=tmp_path / "end.ckpt")
    assert windows(again, tmp_path, "again") == {}
    assert again.profilers["train"].step_num == 10


def test_6_stacks_become_a_flame_graphs_input(tmp_path):
    """There: ``export_to_flame_graph=True`` always crashes, and the stacks would be empty."""
    callback = profiler(tmp_path, WINDOW, with_stack=True, on_trace_ready=["stacks"])
    fit(tmp_path, callback, steps=5)
    callback.summary()
    stacks = (tmp_path / "perf" / "run" / FOLDER / "rank0.stacks.folded").read_text(encoding="utf-8").splitlines()
    assert any("training_step" in stack and "aten::linear" in stack for stack in stacks)
    assert len({stack.rpartition(" ")[0] for stack in stacks}) == len(stacks), "equal stacks are summed"


def test_8_nested_actions_and_shared_modules_are_recorded(tmp_path):
    """There: a nested action of the same name is not recorded; recursion and exceptions leave ranges open."""

    class Nesting(Tiny):
        def training_step(self, batch, batch_idx):
            with self.trainer.profiler.profile("outer"), self.trainer.profiler.profile("outer"):
                try:
                    self.layer(torch.ones(7))  # of the wrong shape
                except RuntimeError:
                    return self.loss(self.layer(batch) @ self.layer.weight)

    callback = profiler(tmp_path, WINDOW, module_names=True, on_trace_ready="trace")
    fit(tmp_path, callback, steps=5, module=Nesting())
    callback.summary()
    labels = [event for event in events(tmp_path, FOLDER) if event.get("cat") == "user_annotation"]
    names = [event["name"] for event in labels]
    assert names.count("outer") == 4
    assert names.count("[module] layer") == 6
    last = {event["name"]: event for event in labels}
    assert all(
        event["ts"] + event["dur"] <= last["ProfilerStep#3"]["ts"] + last["ProfilerStep#3"]["dur"] for event in labels
    )


@pytest.mark.parametrize(("whose", "name"), [(whose, name) for whose, names in successors().items() for name in names])
def test_option_of_another_profiler_names_its_successor(whose, name):
    """Each keyword and handler that an answer names is one that there is."""
    faces = [ProfilerCallback] if name in inspect.signature(Profiler).parameters else [Profiler, ProfilerCallback]
    for face in faces:
        with pytest.raises(
            TypeError, match=re.escape(f"unexpected option {name!r}; this is an option of {whose}; use")
        ):
            face(**{name: 1})
    answer = successors()[whose][name]
    keywords = {*inspect.signature(Profiler).parameters, *inspect.signature(ProfilerCallback).parameters}
    given = {"group_by_input_shape", "max_name_column_width"}  # torch's own table's
    assert {*re.findall(r"(\w+)=", answer)} <= keywords | given
    for kind in re.findall(r'"type": "(\w+)"|\["(\w+)"\]|"(stacks|flame)"', answer):
        assert "".join(kind) in {*handlers.NAMES, "cpu"}


def test_arguments_of_lightnings_profiler_are_known():
    """Those that torch's profiler takes are options of ours; the others have an answer."""
    own = {*inspect.signature(PyTorchProfiler).parameters} - {"profiler_kwargs"}
    assert own <= {*successors()["Lightning's PyTorchProfiler"]}


@pytest.mark.usefixtures("even_pace")
def test_page_about_lightnings_profiler_is_correct(tmp_path, monkeypatch):
    """Each pair of its calls is taken by both, and the call of ours gives what the line says."""
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[1] / "docs/from-others.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(PyTorchProfiler.+)` \| `(ProfilerCallback.+)` \|$", page, re.MULTILINE)
    names = {"PyTorchProfiler": PyTorchProfiler, "ProfilerCallback": ProfilerCallback, "torch": torch}
    ours = [eval(new, names) for old, new in rows if eval(old, names)]
    assert len(ours) == 5
    windows_of, named, recording, modules, limited = ours
    steps = windows_of.profilers["train"].schedule
    assert [steps(step).name for step in range(8)] == ["NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"] * 2
    fit(tmp_path, named, steps=16)
    assert sorted(each.name for each in (tmp_path / "logs/first").glob("train-*")) == ["train-000012-000014"]
    options = recording.profilers["train"]
    assert (options.record_shapes, options.profile_memory, options.with_stack) == (True, True, True)
    assert (modules, limited) != (None, None)
