"""The same code with ``torch.profiler.profile`` and with ``perfhooks.Profiler``: the same comes out.

The kinds of cases are those of torch's own tests of its profiler, as far as they are public. Meant to be different: a
table that is asked for before anything was recorded, or in the middle of a window, says so instead of being empty; a
trace can be exported again; stacks are folded; the last whole window can be read after a loop whose schedule goes on.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.profiler import (
    ProfilerAction,
    ProfilerActivity,
    profile,
    record_function,
    schedule,
    tensorboard_trace_handler,
)

from perfhooks import Profiler

pytestmark = [
    pytest.mark.recorder,
    pytest.mark.filterwarnings("ignore:.*Profiler clears events"),
    pytest.mark.filterwarnings("ignore:Profiler won't be using warmup"),
]
torch.set_num_threads(1)
CPU = [ProfilerActivity.CPU]
X = torch.ones(8, 8)


def work():
    with record_function("mine"):
        return (X @ X).relu()


def fail():
    work()
    raise ValueError("mine")


def names(prof):
    return sorted(
        (row.key, row.count) for row in prof.key_averages() if row.key.startswith(("aten::", "mine", "ProfilerStep"))
    )


def plain(make):
    with make(activities=CPU) as prof:
        work()
    return names(prof)


def started_and_stopped(make):
    prof = make(activities=CPU)
    prof.start()
    work()
    prof.stop()
    return names(prof)


def shapes(make):
    with make(activities=CPU, record_shapes=True) as prof:
        work()
    return sorted((row.key, str(row.input_shapes)) for row in prof.key_averages(group_by_input_shape=True))


def flops(make):
    with make(activities=CPU, with_flops=True) as prof:
        work()
    return sum(row.flops for row in prof.key_averages())


def memory(make):
    with make(activities=CPU, profile_memory=True) as prof:
        kept = torch.ones(1000)
    del kept
    return max(row.cpu_memory_usage for row in prof.key_averages())


def table(make):
    with make(activities=CPU) as prof:
        work()
    return "aten::mm" in prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=20)


def exported(make):
    with make(activities=CPU) as prof:
        work()
    prof.export_chrome_trace("trace.json.gz")
    with gzip.open("trace.json.gz") as file:
        events = json.load(file)["traceEvents"]
    return sorted(event["name"] for event in events if event.get("cat") in {"cpu_op", "user_annotation"})


def tensorboard(make):
    with make(activities=CPU, schedule=schedule(wait=1, warmup=1, active=2, repeat=2),
              on_trace_ready=tensorboard_trace_handler("tb", "w")) as prof:  # fmt: skip
        for _ in range(9):
            work()
            prof.step()
    return len(list(Path("tb").iterdir()))


def calls(make, **fields):
    seen = []
    with make(activities=CPU, schedule=schedule(**fields), on_trace_ready=lambda p: seen.append((p.step_num, names(p)))
              ) as prof:  # fmt: skip
        for _ in range(12):
            work()
            prof.step()
    return seen


def callable_schedule(make):
    def answer(step):
        return ProfilerAction.RECORD_AND_SAVE if step % 3 == 2 else ProfilerAction.NONE

    seen = []
    with make(activities=CPU, schedule=answer, on_trace_ready=lambda p: seen.append(p.step_num)) as prof:
        for _ in range(9):
            prof.step()
    return seen


def unwound(make):
    seen = []
    prof = make(activities=CPU, on_trace_ready=lambda p: seen.append(names(p)))
    with pytest.raises(ValueError, match="mine"), prof:
        fail()
    return seen


def metadata(make):
    with make(activities=CPU) as prof:
        prof.add_metadata("word", "hello")
        prof.add_metadata_json("numbers", "[1, 2]")
        work()
    prof.export_chrome_trace("metadata.json")
    found = json.loads(Path("metadata.json").read_text())
    return found["word"], found["numbers"]


def preset(make):
    prof = make(activities=CPU)
    prof.preset_metadata_json("job", '"nightly"')
    with prof:
        work()
    prof.export_chrome_trace("preset.json")
    return json.loads(Path("preset.json").read_text())["job"]


def observer(make):
    watching = torch.profiler.ExecutionTraceObserver()
    watching.register_callback(f"{make.__name__}.et.json")
    with make(activities=CPU, execution_trace_observer=watching):
        work()
    nodes = json.loads(Path(f"{make.__name__}.et.json").read_text())["nodes"]
    return sum(node["name"] == "aten::mm" for node in nodes)


def events(make):
    with make(activities=CPU) as prof:
        work()
    return sorted(event.name for event in prof.events() if event.name.startswith("aten::"))


def accumulated(make):
    with make(activities=CPU, acc_events=True, schedule=schedule(wait=0, warmup=0, active=1, repeat=2),
              on_trace_ready=lambda p: None) as prof:  # fmt: skip
        for _ in range(2):
            work()
            prof.step()
    return names(prof)


def trace_id(make):
    with make(activities=CPU, custom_trace_id_callback=lambda: "seven") as prof:
        work()
    return prof.get_trace_id()


def stepped_without_start(make):
    prof = make(activities=CPU, schedule=schedule(wait=1, warmup=0, active=2, repeat=1), on_trace_ready=lambda p: None)
    for _ in range(4):
        work()
        prof.step()
    prof.stop()
    return names(prof)


CASES = (plain, started_and_stopped, shapes, flops, memory, table, exported, tensorboard, callable_schedule, unwound,
         metadata, preset, observer, events, accumulated, trace_id, stepped_without_start)  # fmt: skip
SCHEDULES = (
    {"wait": 1, "warmup": 1, "active": 2},
    {"wait": 0, "warmup": 0, "active": 3, "repeat": 2},
    {"wait": 0, "warmup": 1, "active": 1, "repeat": 3},
    {"skip_first": 3, "wait": 1, "warmup": 0, "active": 2, "repeat": 1},
    {"wait": 5, "warmup": 5, "active": 5},
)
OLD = {accumulated: (2, 5), trace_id: (2, 6)}
"""Cases that need a newer torch than the oldest one."""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_outputs_equal_those_of_torch(case, tmp_path, monkeypatch):
    if tuple(map(int, torch.__version__.split(".")[:2])) < OLD.get(case, (2, 4)):
        pytest.skip("this torch cannot do it")
    found = []
    for make in (profile, Profiler):
        (tmp_path / make.__name__).mkdir()
        monkeypatch.chdir(tmp_path / make.__name__)
        found.append(case(make))
    assert found[1] == found[0]


@pytest.mark.skipif(torch.__version__.startswith("2.4"), reason="torch adds the events of earlier windows")
@pytest.mark.parametrize("fields", SCHEDULES, ids=str)
def test_handlers_run_at_the_same_steps_with_equal_tables(fields):
    assert calls(Profiler, **fields) == calls(profile, **fields)


@pytest.mark.parametrize("fields", SCHEDULES, ids=str)
def test_the_schedule_answers_the_same(fields):
    theirs, ours = schedule(**fields), Profiler(schedule=schedule(**fields)).schedule
    assert [ours(step) for step in range(30)] == [theirs(step) for step in range(30)]
