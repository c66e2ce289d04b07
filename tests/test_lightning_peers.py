"""Lightning's own PyTorchProfiler has eleven reproduced defects, and it can hardly be configured; one test for each."""

import csv
import inspect
import logging
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from lightning.pytorch.profilers import PyTorchProfiler
from lightning_training import Tiny, batches, events, fit, profiler, tables, trainer, windows

import perfhooks
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


def test_1_repeat_repeats(tmp_path):
    """There: one window, whatever ``repeat`` says."""
    callback = profiler(tmp_path, "wait=1 warmup=1 active=1 repeat=5")
    fit(tmp_path, callback, steps=20)
    assert list(windows(callback, tmp_path).values()) == [[2], [5], [8], [11], [14]]


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


def test_3_a_training_that_reaches_no_window_ends_well(tmp_path, caplog):
    """There: an AssertionError at the end of a fit that succeeded."""
    callback = profiler(tmp_path, "wait=100 warmup=1 active=1")
    made = fit(tmp_path, callback, steps=4)
    assert made.global_step == 4
    assert "no window has been recorded" in caplog.text
    assert "101" in caplog.text, "it says which would have been the first"


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


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, "SIGTERM"])
def test_5_exception_keeps_the_trace_and_ends_the_profiler(error, tmp_path):
    """There: no file, and the recorder stays on."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def fail(module, batch_idx):
        if batch_idx == 3 and error == "SIGTERM":
            os.kill(os.getpid(), signal.SIGTERM)
        elif batch_idx == 3:
            raise error("stop here")

    callback = profiler(tmp_path, "wait=1 warmup=1 active=9 repeat=1", on_trace_ready=["trace", "steps"])
    try:
        with pytest.raises(BaseException):  # noqa: B017, PT011 -- Lightning turns Ctrl-C into SystemExit, SIGTERM into its own
            fit(tmp_path, callback, module=Tiny(fail))
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert not torch._C._autograd._profiler_enabled()
    assert windows(callback, tmp_path) == {"train-000002-000010": [2, 3] if error == "SIGTERM" else [2]}
    assert events(tmp_path, "train-000002-000010")


def test_6_stacks_become_a_flame_graphs_input(tmp_path):
    """There: ``export_to_flame_graph=True`` always crashes, and the stacks would be empty."""
    callback = profiler(tmp_path, WINDOW, with_stack=True, on_trace_ready=["stacks"])
    fit(tmp_path, callback, steps=5)
    callback.summary()
    stacks = (tmp_path / "perf" / "run" / FOLDER / "rank0.stacks.folded").read_text(encoding="utf-8").splitlines()
    assert any("training_step" in stack and "aten::linear" in stack for stack in stacks)
    assert len({stack.rpartition(" ")[0] for stack in stacks}) == len(stacks), "equal stacks are summed"


def test_7_step_outside_windows_costs_nearly_nothing(tmp_path, caplog):
    """There: 170 to 730 us a step for the whole run, and a log line about every step's metadata.

    Counted in calls, as a clock says nothing on a busy machine; `make bench` has the time.
    """
    callback = profiler(tmp_path, "wait=0 warmup=0 active=1 repeat=1")
    calls = Counter()

    def count(_frame, event, called):
        if event in ("call", "c_call"):
            calls[event] += 1

    def measure(module, batch_idx):
        if batch_idx == 3:
            hooks = (
                lambda: callback.on_train_batch_start(module.trainer, module, None, 0),
                lambda: callback.on_before_backward(module.trainer, module, None),
                lambda: callback.on_after_backward(module.trainer, module),
                lambda: callback.on_train_batch_end(module.trainer, module, None, None, 0),
            )
            sys.setprofile(count)
            try:
                for _ in range(100):
                    for hook in hooks:
                        hook()
            finally:
                sys.setprofile(None)

    module = Tiny(measure)
    with caplog.at_level(logging.DEBUG, "perfhooks"):
        fit(tmp_path, callback, steps=6, module=module)
    assert 0 < calls.total() / 100 < 40, calls
    assert "on_before_backward" not in {*vars(callback), *vars(type(callback))}, "it is wrapped only during a window"
    assert not any(each._forward_hooks or each._forward_pre_hooks for each in module.modules())
    assert len([record for record in caplog.records if record.name == "perfhooks"]) < 10


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


def test_9_torch_compile_works(tmp_path):
    """There: its hooks break compiled modules."""
    module = Tiny()
    compiled = torch.compile(module, backend="eager")
    callback = profiler(tmp_path, WINDOW, module_names=True)
    made = trainer(tmp_path, callback)
    made.fit(compiled, batches(6))
    torch._dynamo.reset()
    assert made.global_step == 6
    assert windows(callback, tmp_path) == {FOLDER: [2, 3]}


def test_10_ranks_can_be_chosen_and_are_in_the_names_of_files(tmp_path):
    """There: all ranks record, and only the local rank is in a name; see the test with two processes, too."""
    callback = profiler(tmp_path, WINDOW, ranks=[1])
    fit(tmp_path, callback, steps=5)
    assert windows(callback, tmp_path) == {}
    every = profiler(tmp_path, WINDOW, ranks=[0])
    fit(tmp_path, every, steps=5)
    assert windows(every, tmp_path) == {FOLDER: [2, 3]}
    assert [path.name for path in (tmp_path / "perf" / "run" / FOLDER).glob("*steps.csv")] == ["rank0.steps.csv"]


def test_11_every_window_has_its_files_with_or_without_a_logger(tmp_path):
    """There: one table at the very end, of the last window; without a logger nothing; never compressed."""
    callback = ProfilerCallback("wait=0 warmup=0 active=1 repeat=2")
    fit(tmp_path, callback, steps=4, logger=False)
    callback.summary()
    for step in range(2):
        folder = tmp_path / "perf" / "latest" / f"train-00000{step}-00000{step}"
        with (folder / "rank0.operators.csv").open(encoding="utf-8") as file:
            assert any(row["name"] == "aten::linear" for row in csv.DictReader(file))
        assert (folder / "rank0.pt.trace.json.gz").exists()
    names = [path.name for path in (tmp_path / "perf" / "latest").resolve().rglob("*")]
    assert not any(set(name) & set("[] ") for name in names)


def test_12_unsupported_arguments_are_rejected(tmp_path):
    """There: unknown arguments are dropped without a word."""
    with pytest.raises(TypeError, match="wait"):
        ProfilerCallback(wait=1, warmup=1)
    with pytest.raises(perfhooks.OptionError, match="flamegraph"):
        ProfilerCallback(on_trace_ready=["flamegraph"])
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(perfhooks.OptionError, match="out"):
        ProfilerCallback(out=blocked)
    assert tables(profiler(tmp_path, WINDOW), tmp_path) == {}


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
