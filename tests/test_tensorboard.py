"""Our traces in TensorBoard's profiler plugin, a reader that is not ours; our handlers under torch's plain profile."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import perfhooks

consts = pytest.importorskip("torch_tb_profiler.consts")

SCHEDULE = perfhooks.Schedule(skip_first=2, wait=1, warmup=1, active=3, repeat=2)
WINDOWS = {"train-000004-000006": [4, 5, 6], "train-000009-000011": [9, 10, 11]}


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def train(steps):
    """A generator of training steps of a small conv net, real enough to have all kinds of operators."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        torch.nn.functional.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.zeros(2, dtype=torch.long)).backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def tensorboard_reads(path, tmp_path):
    """What the plugin's loader makes of one file."""
    data = pytest.importorskip("torch_tb_profiler.profiler.data")
    return data.RunProfileData.parse("rank0", None, str(path), str(tmp_path))


def windows(run):
    return {path.name: path for path in Path("perf", run).iterdir() if path.is_dir()}


def capture(folder):
    return json.loads((folder / "rank0.capture.json").read_text())


@pytest.mark.worker
@pytest.mark.parametrize("options", [{}, {"record_shapes": True, "with_stack": True, "profile_memory": True}])
def test_tensorboard_finds_the_scheduled_steps(tmp_path, options):
    with perfhooks.Profiler(schedule=SCHEDULE, out="perf", run="r", activities=["cpu"], **options) as prof:
        for _ in train(14):
            prof.step()
    prof.wait()
    drawn = [list(range(active, last + 1)) for _, active, last in SCHEDULE.windows()]
    assert (list(WINDOWS.values()), windows("r").keys()) == (drawn, WINDOWS.keys())
    for name, steps in WINDOWS.items():
        read = tensorboard_reads(windows("r")[name] / "rank0.pt.trace.json.gz", tmp_path)
        assert [int(step) for step in read.steps_names] == steps
        assert "aten::conv2d" in {op.name for op in read.op_list_groupby_name}


def test_tensorboard_shows_windows_as_runs_and_ranks_as_workers():
    """It looks for folders that hold files of this name."""
    name = consts.WORKER_PATTERN.match("rank0.pt.trace.json.gz")
    assert name.group(1) == "rank0"
    assert name.group(2) is None


# --- our handlers under a plain torch.profiler.profile ---


def plain(*wanted, steps, **options):
    torch_schedule = torch.profiler.schedule(**{k: v for k, v in SCHEDULE.to_dict().items() if k != "skip_first_wait"})
    handler = perfhooks.on_trace_ready(*wanted, out="perf", run="r")
    with profile(activities=[ProfilerActivity.CPU], schedule=torch_schedule, on_trace_ready=handler, **options) as prof:
        for _ in train(steps):
            prof.step()


@pytest.mark.recorder
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_plain_profile_writes_the_files_of_complete_windows():
    plain("trace", "stacks", {"type": "operators", "row_limit": 3}, perfhooks.StepTable(), steps=14, with_stack=True)
    assert windows("r").keys() == WINDOWS.keys()
    for name, folder in windows("r").items():
        facts = capture(folder)
        assert facts["artifacts"] == [
            "rank0.pt.trace.json.gz",
            "rank0.stacks.folded",
            "rank0.operators.csv",
            "rank0.steps.csv",
        ]
        assert (facts["partial"], facts["notes"]) == (None, [])
        assert step_numbers(folder) == WINDOWS[name]
        assert len((folder / "rank0.operators.csv").read_text().splitlines()) == 4
        assert "aten::conv2d" in (folder / "rank0.stacks.folded").read_text()


@pytest.mark.recorder
def test_plain_profile_stopped_inside_a_window_is_kept():
    """Two of three steps had ended when the `with` did; the third had begun."""
    plain(steps=6)
    ((_, folder),) = windows("r").items()
    facts = capture(folder)
    assert facts["first"] == 4
    assert facts["partial"] == "stopped before its last step"
    assert step_numbers(folder) == [4, 5]


@pytest.mark.recorder
def test_default_handlers_follow_the_recorded_options():
    plain(steps=7, with_stack=True)
    ((_, folder),) = windows("r").items()
    kinds = {"pt.trace.json.gz", "steps.csv", "operators.csv", "stacks.folded", "flame.svg", "modules.csv", "page.json"}
    kinds |= {"capture.json", "costs.json", "categories.csv", "labels.csv", "functions.csv"}
    assert {path.name.removeprefix("rank0.") for path in folder.iterdir() if path.name.startswith("rank0")} == kinds


@pytest.mark.recorder
def test_window_without_a_schedule_has_no_steps():
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=perfhooks.on_trace_ready(out="perf", run="r")):
        torch.ones(3).sum()
    ((_, folder),) = windows("r").items()
    assert capture(folder)["partial"] is None
    assert "aten::sum" in (folder / "rank0.operators.csv").read_text()


@pytest.mark.parametrize("wrong", [print, perfhooks.ChromeTrace, 3])
def test_foreign_handler_is_rejected(wrong):
    with pytest.raises(perfhooks.OptionError, match="handlers that read the saved trace"):
        perfhooks.on_trace_ready(wrong)


def test_folder_that_takes_no_files_raises_before_the_training(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(perfhooks.OptionError, match="it is a file"):
        perfhooks.on_trace_ready(out=tmp_path / "file")


def step_numbers(folder):
    header, *rows = (folder / "rank0.steps.csv").read_text().splitlines()
    column = header.split(",").index("step")
    return [int(row.split(",")[column]) for row in rows]
