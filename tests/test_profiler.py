"""Profiler: torch's face without torch's defects, the schedule's windows, regions and steps."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import logging
import os
import signal
import time
import weakref
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import perfhooks
import perfhooks.record.loop.window
from perfhooks import Profiler
from perfhooks.trace import read, stacks

torch.set_num_threads(1)
MATRIX = torch.randn(16, 16)
TORCH = tuple(map(int, torch.__version__.split(".")[:2]))
TORCH_24 = torch.__version__.startswith("2.4")
SCHEDULE = "wait=1 warmup=1 active=2 repeat=2"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def loop(profiler, steps=10):
    for _ in range(steps):
        MATRIX @ MATRIX
        profiler.step()


def marks(path):
    events = read_json(path)["traceEvents"]
    return sorted(event["name"] for event in events if event["name"].startswith("ProfilerStep"))


def read_json(path):
    with (gzip.open if str(path).endswith(".gz") else open)(path, "rb") as file:
        return json.load(file)


def recorded(steps=10, *, say=lambda window: window.step_num, act=loop, **options):
    """What is said of each window of some steps, and the profiler."""
    seen = []
    with Profiler(on_trace_ready=lambda window: seen.append(say(window)), **{"schedule": SCHEDULE, **options}) as prof:
        act(prof, steps)
    return seen, prof


def marks_of(window):
    window.export_chrome_trace("t")
    return marks("t")


def actions(**names):
    """A schedule that knows the action of some steps, as ``step_3="RECORD"``."""
    return lambda step: torch.profiler.ProfilerAction[names.get(f"step_{step}", "NONE")]


def ignore(window):
    """A handler that keeps the profiler from writing files."""


@pytest.mark.recorder
def test_lost_window_disables_stacks_in_later_windows(monkeypatch, caplog):
    """As torch 2.4 does where a window begins inside of a call from C; the training continues."""
    plain, stopped = profile.stop_trace, []

    def stop_trace(self):
        plain(self)
        stopped.append(self.with_stack)
        if self.with_stack:
            raise RuntimeError("!stack.empty() INTERNAL ASSERT FAILED. Python replay stack is empty.")

    monkeypatch.setattr(profile, "stop_trace", stop_trace)
    with Profiler(schedule=SCHEDULE, with_stack=True, background=False, run="r") as prof:
        loop(prof)
    assert stopped == [True, False]
    (window,) = Path("perf/r").glob("train-*")
    assert window.name == "train-000006-000007"
    assert read_json(window / "rank0.capture.json")["options"]["with_stack"] is False
    assert "has lost the window; later windows are recorded without stacks" in caplog.text


@pytest.mark.recorder
def test_marks_are_the_steps_the_schedule_drew():
    assert recorded(say=marks_of)[0] == [["ProfilerStep#2", "ProfilerStep#3"], ["ProfilerStep#6", "ProfilerStep#7"]]


@pytest.mark.recorder
@pytest.mark.filterwarnings("ignore:.*Profiler clears events")
def test_callable_sees_the_same_as_under_torch():
    """A handler written for torch.profiler.profile gets the same step number, events and isinstance."""

    def run(make):
        seen = []

        def handler(prof):
            matmuls = [event.name for event in prof.events() if event.name == "aten::mm"]
            seen.append((prof.step_num, len(matmuls), isinstance(prof, profile)))

        schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)
        with make(activities=[ProfilerActivity.CPU], schedule=schedule, on_trace_ready=handler) as prof:
            loop(prof)
        return seen

    found, expected = run(Profiler), run(profile)
    if TORCH_24:  # it adds the events of earlier windows to those of later ones
        found, expected = ([each[::2] for each in seen] for seen in (found, expected))
    assert found == expected


@pytest.mark.recorder
@pytest.mark.parametrize("name", ["a.json", "a.json.gz", "b.pt.trace.json.gz"])
def test_a_trace_can_be_exported_again_and_again(name):
    with Profiler(activities=["cpu"]) as prof:
        MATRIX @ MATRIX
    for copy in range(3):
        prof.export_chrome_trace(f"{copy}{name}")
    first, again = read_json(f"0{name}"), read_json(f"2{name}")
    assert first == again
    assert any(event["name"] == "aten::mm" for event in first["traceEvents"])


@pytest.mark.recorder
def test_profiler_without_a_schedule_equals_torch(tmp_path):
    with Profiler(activities=[ProfilerActivity.CPU]) as prof:
        loop(prof, 3)
    rows = {row.key: row.count for row in prof.key_averages()}
    assert rows["aten::mm"] == 3
    assert not any(key.startswith("ProfilerStep") for key in rows)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("ask", ["key_averages", "events"])
@pytest.mark.parametrize(
    ("schedule", "first"), [("wait=100 warmup=1 active=2", "steps 101-102"), ("wait=0 warmup=0 active=2", "steps 0-1")]
)
def test_table_before_a_window_explains_the_error(ask, schedule, first):
    prof = Profiler(schedule=schedule, on_trace_ready=ignore)
    with pytest.raises(
        perfhooks.NothingRecordedError, match=rf"^no window has been recorded: 0 steps.*the first window is {first}$"
    ):
        getattr(prof, ask)()


@pytest.mark.recorder
def test_table_during_a_window_explains_the_error():
    with Profiler(activities=["cpu"]) as prof, pytest.raises(perfhooks.NothingRecordedError, match="still recording"):
        prof.key_averages()


@pytest.mark.recorder
@pytest.mark.parametrize("steps", [4, 5, 6])
def test_last_cycle_is_readable_after_the_loop(steps):
    """torch gives 0 events when the loop ends in the next cycle's wait or warm-up."""
    _, prof = recorded(steps, schedule="wait=1 warmup=1 active=2")
    assert {row.key: row.count for row in prof.key_averages()}["aten::mm"] == 2


@pytest.mark.recorder
def test_results_are_available_only_in_the_handler_by_default():
    counts, prof = recorded(say=lambda window: len(window.key_averages()), keep_results=False)
    assert len(counts) == 2
    assert min(counts) > 0
    with pytest.raises(perfhooks.NothingRecordedError):
        prof.key_averages()


@pytest.mark.recorder
def test_acc_events_accumulates_over_windows():
    _, prof = recorded(acc_events=True)
    assert {row.key: row.count for row in prof.key_averages()}["aten::mm"] == 4


@pytest.mark.recorder
def test_metadata_reaches_the_trace_at_any_time():
    """Before the start, while recording, and after a window (there it goes into the next one)."""
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=lambda w: w.export_chrome_trace(f"{w.step_num}.json"))
    prof.preset_metadata_json("preset", '{"a": 1}')
    prof.start()
    for step in range(8):
        if step == 2:
            prof.add_metadata("during", 'a "quoted" word')
            prof.add_metadata_json("number", "7")
        if step == 5:
            prof.add_metadata("later", 'another "one"')
        MATRIX @ MATRIX
        prof.step()
    prof.stop()
    first, second = (read_json(f"{step}.json") for step in (4, 8))
    assert first["preset"] == second["preset"] == {"a": 1}
    assert first["number"] == 7
    assert first["during"] == "a 'quoted' word"  # Kineto cannot write an escape
    assert second["later"] == "another 'one'"
    assert "later" not in first


def test_metadata_that_is_no_json_is_rejected():
    with pytest.raises(perfhooks.OptionError, match="metadata must be JSON"):
        Profiler().add_metadata_json("key", "{broken")


@pytest.mark.recorder
@pytest.mark.skipif(not TORCH_24, reason="torch can switch")
def test_collection_that_torch_cannot_switch_is_a_message(caplog):
    with Profiler(activities=["cpu"]) as prof:
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
    assert "cannot disable or enable collection" in caplog.text


@pytest.mark.recorder
@pytest.mark.skipif(TORCH_24, reason="torch cannot switch yet")
def test_collection_can_be_switched_off_and_on_inside_a_window():
    with Profiler(activities=["cpu"]) as prof:
        MATRIX @ MATRIX
        prof.toggle_collection_dynamic(False, [ProfilerActivity.CPU])
        MATRIX + MATRIX
        prof.toggle_collection_dynamic(True, [ProfilerActivity.CPU])
        MATRIX * MATRIX
    names = {event.name for event in prof.events()}
    assert {"aten::mm", "aten::mul"} <= names
    assert "aten::add" not in names


@pytest.mark.recorder
def test_execution_trace_observer_runs_with_the_window(tmp_path):
    observer = torch.profiler.ExecutionTraceObserver()
    observer.register_callback(str(tmp_path / "et.json"))
    with Profiler(schedule=SCHEDULE, on_trace_ready=ignore, execution_trace_observer=observer) as prof:
        loop(prof, 4)
    nodes = json.loads((tmp_path / "et.json").read_text())["nodes"]
    assert sum(node["name"] == "aten::mm" for node in nodes) == 2


@pytest.mark.recorder
def test_stacks_are_folded_and_not_empty(tmp_path):
    with Profiler(activities=["cpu"], with_stack=True) as prof:
        for _ in range(3):
            MATRIX @ MATRIX
    prof.export_stacks("folded")
    lines = (tmp_path / "folded").read_text().splitlines()
    ours = [line for line in lines if "test_stacks_are_folded_and_not_empty" in line and "aten::mm" in line]
    assert ours
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)


@pytest.mark.recorder
def test_export_stacks_is_in_microseconds(tmp_path):
    """What torch's own table says took so many, and all stacks together what the trace covers."""
    with Profiler(activities=["cpu"]) as prof:
        for _ in range(20):
            MATRIX @ MATRIX
    prof.export_stacks("folded", "self_cpu_time_total")
    values = [int(line.rpartition(" ")[2]) for line in (tmp_path / "folded").read_text().splitlines()]
    assert min(values) > 0
    prof.export_chrome_trace("trace.json")
    nanoseconds = stacks.folded(read("trace.json")).values()
    assert sum(values) == sum(nanoseconds) // 1000
    assert sum(values) == pytest.approx(sum(each.self_cpu_time_total for each in prof.key_averages()), rel=0.01, abs=2)


def first_half():
    return MATRIX @ MATRIX


def second_half():
    return MATRIX @ MATRIX


@pytest.mark.recorder
@pytest.mark.skipif(TORCH < (2, 12), reason="its events have no Python functions")
def test_key_averages_with_stacks_sums_and_groups_like_torch():
    with Profiler(activities=["cpu"], with_stack=True) as prof, torch.profiler.record_function("LABEL2"):
        for _ in range(20):
            first_half()
            second_half()
    averages = prof.key_averages()
    (label,) = (each for each in averages if each.key == "LABEL2")
    assert sum(each.self_cpu_time_total for each in averages) == pytest.approx(label.cpu_time_total, rel=1e-6)
    (product,) = (each for each in averages if each.key == "aten::mm")
    inner = sum(each.self_cpu_time_total for each in averages if each.key != "LABEL2")
    assert label.self_cpu_time_total == pytest.approx(label.cpu_time_total - inner)
    # the same once more: nothing of torch's own tree has been changed
    frames = prof.key_averages(include_python_functions=True)
    assert any("first_half" in each.key for each in frames)
    grouped = prof.key_averages(group_by_stack_n=2)
    rows = {each.stack[0].rpartition(" ")[2]: each.count for each in grouped if each.key == "aten::mm" and each.stack}
    assert {name: rows.get(name) for name in ("first_half", "second_half")} == {"first_half": 20, "second_half": 20}
    assert product.count == 40


@pytest.mark.recorder
def test_unknown_stack_metric_is_rejected():
    with Profiler(activities=["cpu"]) as prof:
        MATRIX @ MATRIX
    with pytest.raises(perfhooks.OptionError, match="self_cpu_time_total"):
        prof.export_stacks("folded", metric="time")


@pytest.mark.recorder
def test_tensorboard_handler_works_beside_perfhooks_handlers(tmp_path):
    handlers = [torch.profiler.tensorboard_trace_handler("tb", use_gzip=True), "steps", {"type": "trace"}]
    with Profiler(schedule=SCHEDULE, on_trace_ready=handlers, out="runs", run="r", background=False) as prof:
        loop(prof)
    assert len(list((tmp_path / "tb").glob("*.pt.trace.json.gz"))) == 2
    assert (tmp_path / "runs/r/train-000002-000003/rank0.steps.csv").exists()
    assert marks(tmp_path / "runs/r/train-000006-000007/rank0.pt.trace.json.gz") == ["ProfilerStep#6", "ProfilerStep#7"]


@pytest.mark.recorder
def test_failing_handler_is_one_log_line(caplog):
    """Callables are called in their order."""

    def bad(window):
        order.append(2)
        raise RuntimeError("no luck")

    order = []
    calls = [lambda w: order.append(1), bad, lambda w: order.append(3)]
    with Profiler(schedule=SCHEDULE, on_trace_ready=calls) as prof:
        loop(prof)
    assert [record.message.count("no luck") for record in caplog.records if record.levelno >= logging.WARNING] == [1, 1]
    assert order == [1, 2, 3] * 2


@pytest.mark.recorder
def test_errors_are_raised_with_on_error_raise():
    def bad(window):
        raise RuntimeError("no luck")

    with pytest.raises(RuntimeError, match="no luck"), Profiler(on_trace_ready=bad, on_error="raise"):
        MATRIX @ MATRIX


@pytest.mark.recorder
def test_torch_profiler_exists_only_in_windows():
    with Profiler(schedule="wait=3 warmup=1 active=1 repeat=1", on_trace_ready=ignore) as prof:
        alive = []
        for _ in range(8):
            alive.append(prof.in_window)
            prof.step()
    assert alive == [False, False, False, True, True, False, False, False]


@pytest.mark.recorder
def test_training_resumed_inside_a_window_waits_for_the_next():
    seen = []
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=lambda w: seen.append(marks_of(w)))
    prof.start(step=2)
    loop(prof)
    prof.stop()
    assert seen == [["ProfilerStep#6", "ProfilerStep#7"]]


@pytest.mark.recorder
def test_repeated_start_and_stop_continue_counting():
    seen = []
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=lambda w: seen.append(w.step_num))
    prof.start()
    prof.start()
    loop(prof, 5)
    prof.stop()
    prof.stop()
    prof.start()
    assert prof.step_num == 5
    loop(prof, 5)
    prof.stop()
    assert seen == [4, 8]


@pytest.mark.recorder
def test_running_profiler_stays_unchanged(caplog):
    with profile(activities=[ProfilerActivity.CPU]) as outer:
        with Profiler(activities=["cpu"], on_trace_ready=ignore) as prof:
            MATRIX @ MATRIX
        with pytest.raises(perfhooks.NothingRecordedError):
            prof.events()
    assert any(event.name == "aten::mm" for event in outer.events())
    assert "another profiler is recording" in caplog.text
    assert "no window has been recorded: 1 had to be skipped" in prof.summary()


@pytest.mark.recorder
def test_a_callable_schedule_drives_windows():
    asked, drawn = [], actions(step_2="WARMUP", step_3="RECORD", step_4="RECORD_AND_SAVE")
    seen, _ = recorded(7, schedule=lambda step: asked.append(step) or drawn(step), say=marks_of)
    assert seen == [["ProfilerStep#3", "ProfilerStep#4"]]
    assert asked == list(range(8))


@pytest.mark.recorder
def test_schedule_that_never_saves_loses_nothing():
    schedule = actions(step_1="RECORD", step_2="RECORD")
    ((step, partial),), _ = recorded(5, schedule=schedule, say=lambda window: (window.step_num, window.partial))
    assert step == 3
    assert "RECORD_AND_SAVE" in partial


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"schedule": "wait=-1 warmup=1 active=1"}, "wait must be an integer >= 0, got -1"),
        ({"schedule": {"wait": 1, "warmup": 1, "active": 0}}, "active must be an integer >= 1, got 0"),
        ({"schedule": {"wait": 1.5, "warmup": 1, "active": 1}}, "wait must be an integer >= 0, got 1.5"),
        ({"on_trace_ready": "stack"}, "did you mean 'stacks'"),
        ({"on_trace_ready": {"type": "operators", "rows": 3}}, "does not take these options"),
        ({"on_trace_ready": [3]}, "got 3"),
        ({"on_trace_ready": "no.such.module:Handler"}, "cannot be imported"),
        ({"out": "/proc/nowhere"}, "out must be a writable folder"),
        ({"out": Path(__file__) / "runs"}, "out must be a writable folder"),
        ({"activities": ["gpu"]}, "activities must be one or more of"),
        ({"activities": []}, "at least one"),
        ({"ranks": [-1]}, "ranks must be"),
        ({"ranks": "first"}, "ranks must be"),
        ({"record_shapes": "yes"}, "record_shapes must be true or false, got 'yes'"),
        ({"on_error": "ignore"}, "on_error must be"),
        ({"stage": ""}, "stage must be a name"),
        ({"poll": 0}, "poll must be a number > 0"),
        ({"trigger": "fast"}, "trigger must be 'slow' or None"),
        ({"keep": "some"}, "keep must be 'all' or 'slow'"),
        ({"keep": "slow", "watch": False}, "need watch=True"),
        ({"signal": "USR2", "watch": False}, "signal needs watch=True"),
        ({"signal": "NOTHING"}, "signal must be the name of a signal"),
        ({"keep_windows": 0}, "keep_windows must be an integer >= 1"),
        ({"exit_timeout": -1}, "exit_timeout must be a number >= 0"),
    ],
)
def test_wrong_argument_is_one_error_at_construction(arguments, words):
    with pytest.raises(perfhooks.OptionError) as caught:
        Profiler(**arguments)
    assert words in str(caught.value)


def test_an_unknown_option_is_a_type_error_with_a_suggestion():
    with pytest.raises(TypeError, match="did you mean 'with_stack'"):
        Profiler(with_stacks=True)


def test_loader_that_is_no_iterable_is_rejected():
    with pytest.raises(perfhooks.OptionError, match="got 5"):
        Profiler().steps(5)


@pytest.mark.recorder
def test_steps_have_the_loader_length_and_can_be_repeated():
    seen = []
    with Profiler(schedule=SCHEDULE, on_trace_ready=lambda w: seen.append(w.step_num)) as prof:
        loader = prof.steps([1, 2, 3, 4])
        assert len(loader) == 4
        assert [list(loader), list(loader)] == [[1, 2, 3, 4]] * 2
    assert prof.step_num == 8
    assert seen == [4, 8]


@pytest.mark.recorder
def test_steps_takes_generators_and_tqdm():
    from tqdm import tqdm

    with Profiler(schedule=SCHEDULE, on_trace_ready=ignore) as prof:
        assert list(prof.steps(i for i in range(3))) == [0, 1, 2]
        assert list(tqdm(prof.steps([1, 2]), disable=True)) == [1, 2]


@pytest.mark.recorder
def test_waits_and_regions_are_labelled_only_while_recording():
    with Profiler(schedule="wait=1 warmup=0 active=1", on_trace_ready=ignore) as prof:
        for _ in prof.steps(range(4)):
            with prof.region("forward"):
                MATRIX @ MATRIX
    prof.export_chrome_trace("t.json")
    names = [event["name"] for event in read_json("t.json")["traceEvents"]]
    assert names.count("forward") == 1
    assert names.count("data") == 1


@pytest.mark.recorder
def test_a_break_does_not_end_the_window():
    seen = []
    with Profiler(schedule="wait=0 warmup=0 active=4", on_trace_ready=lambda w: seen.append(w.partial)) as prof:
        for _ in prof.steps(range(9)):
            break
        for _ in prof.steps(range(9)):
            pass
    assert seen[0] is None


@pytest.mark.recorder
def test_a_step_that_was_broken_off_ends_with_the_next_iteration():
    with Profiler(schedule=SCHEDULE, on_trace_ready=ignore) as prof:
        loader = prof.steps(range(5))
        for _ in range(3):
            for index, _item in enumerate(loader):
                if index == 1:
                    break
        assert prof.step_num == 5, "the last one is still open"
        for _ in range(2):
            list(loader)
        assert prof.step_num == 16, "it ends once, and not with each iteration that follows"


@pytest.mark.recorder
def test_ranks_option_selects_recording_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    jobs = []
    for ranks, records in (([0], False), ([0, 1], True), ("all", True), (lambda job: jobs.append(job) or False, False)):
        assert bool(recorded(ranks=ranks)[0]) is records, ranks
    assert [(job.rank, job.world_size) for job in jobs] == [(1, 2)], "asked once, about itself"


@pytest.mark.recorder
@pytest.mark.parametrize(("rank", "records"), [(0, True), (1, False), (2, True), (3, False)])
def test_first_rank_of_each_node_can_be_selected(monkeypatch, rank, records):
    node = {"RANK": rank, "WORLD_SIZE": 4, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2}
    for name, value in node.items():
        monkeypatch.setenv(name, str(value))
    assert bool(recorded(ranks="first-of-node")[0]) is records


@pytest.fixture
def rank_one_of_two(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "j", "LOCAL_WORLD_SIZE": "1"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.recorder
def test_consecutive_runs_have_equal_folders_on_all_ranks(rank_one_of_two):
    """The first one is not recorded here, but on rank 0: the second must be called the same on both."""
    for ranks in ([0], "all", "all"):
        with Profiler(schedule=SCHEDULE, ranks=ranks, background=False) as prof:
            loop(prof)
    assert sorted(path.name for path in Path("perf").iterdir()) == ["j-1", "j-2", "latest"]
    with prof:  # the same one again goes on with its run
        loop(prof)
    assert sorted(path.name for path in Path("perf").iterdir()) == ["j-1", "j-2", "latest"]


@pytest.mark.recorder
@pytest.mark.parametrize(("ranks", "speaks"), [("all", False), ([1], True), (lambda job: job.rank == 1, True)])
def test_only_one_recording_rank_logs(rank_one_of_two, caplog, ranks, speaks):
    caplog.set_level(logging.INFO, "perfhooks")
    with Profiler(schedule=SCHEDULE, ranks=ranks, background=False) as prof:
        loop(prof)
    assert any("report.html" in message for message in caplog.messages) is speaks


def test_rank_that_does_not_record_is_logged(rank_one_of_two, monkeypatch, caplog):
    with Profiler(schedule=SCHEDULE, ranks=[7]) as prof:
        loop(prof)
    assert prof.summary() == "no window is recorded here: ranks= excludes this rank, or enabled=False is set"
    assert caplog.messages == []
    monkeypatch.setenv("RANK", "0")
    for ranks in ([7], [2]):
        with Profiler(schedule=SCHEDULE, ranks=ranks) as prof:
            loop(prof)
        assert caplog.messages.pop() == f"ranks={ranks} are not in this job (world size 2): nothing is recorded"
        caplog.clear()
    with Profiler(schedule=SCHEDULE, ranks=[1], background=False) as prof:
        loop(prof)
    assert caplog.messages == []


def test_rank_that_does_not_record_stores_nothing():
    with Profiler(schedule=SCHEDULE, out="runs", run="r", ranks=[3]) as prof:
        for _ in prof.steps(range(1000)):
            pass
    assert len(prof._course.loop.timeline._ends) == len(prof._course.loop.timeline._arrivals) == 0
    assert not list(Path("runs").glob("*"))
    assert prof.step_num == 1000


def test_a_forked_child_keeps_no_times_of_its_parents_loop():
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=ignore)
    prof.start()
    prof.abandon()  # as in each forked child
    loop(prof, 3)
    assert prof._course.loop.timeline.waiting == 0
    assert prof.step_num == 3


@pytest.mark.parametrize("begin", [Profiler.step, lambda prof: next(iter(prof.steps(range(2))))], ids=["step", "steps"])
def test_subclass_gets_all_starts_and_pauses(begin):
    """The face of accelerate gives its folder in the one, and closes its labels in the other."""
    heard = []

    class Noted(Profiler):
        def start(self, *args, **kwargs):
            heard.append("start")
            super().start(*args, **kwargs)

        def pause(self, cause=None):
            heard.append("pause")
            super().pause(cause)

    prof = Noted(schedule="wait=9 warmup=0 active=1", on_trace_ready=ignore)
    begin(prof)
    prof.stop()
    assert heard == ["start", "pause"]


def test_paused_loop_is_reported_to_the_client():
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=ignore)
    where = []
    prof.start()
    for change in (lambda: None, prof.pause, prof.start, prof.stop):
        change()
        where.append(prof._course.loop.where(None).is_running)
    assert where == [True, False, True, False]


@pytest.mark.recorder
def test_a_copy_keeps_its_own_time():
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=ignore)
    twin = deepcopy(prof)
    with twin:
        loop(twin, 3)
        assert [each._course.loop.timeline.waiting for each in (twin, prof)] == [3, 0]


@pytest.mark.parametrize(
    ("schedule", "why", "level"),
    [
        ("wait=100 warmup=1 active=2", "the first window is steps 101-102", "WARNING"),
        ("on request", "no window was planned", "INFO"),
    ],
)
def test_missing_window_is_a_message_with_the_reason(caplog, schedule, why, level):
    caplog.set_level("INFO", "perfhooks")
    recorded(3, schedule=schedule)
    assert (level, f"no window has been recorded: 3 steps ended; {why}") in [
        (record.levelname, record.getMessage()) for record in caplog.records
    ]


@pytest.mark.recorder
def test_a_window_that_ends_in_its_warmup_is_a_message(caplog):
    with Profiler(schedule="wait=1 warmup=5 active=2", on_trace_ready=ignore) as prof:
        loop(prof, 3)
    assert "ended during its warm-up" in caplog.text


def forked(act):
    """How a forked child ended that did something and was left by ``os._exit``, as a data loader's worker is."""
    child = os.fork()
    if not child:
        code = 1
        try:
            code = act()
        finally:
            os._exit(code)
    deadline = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(ended[1])


def has_children():
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return True
    return False


def contents():
    return {path: path.read_bytes() for path in Path("runs/r").rglob("*") if path.is_file()}


@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*use of fork.* may lead to deadlocks:DeprecationWarning")
def test_forked_child_writes_nothing_and_starts_no_worker():
    """Neither one forked between two windows nor one forked inside of one; and the parent loses nothing."""
    with Profiler(
        schedule="wait=2 warmup=0 active=3 repeat=3", out="runs", run="r", on_trace_ready="steps", watch=False
    ) as prof:

        def go_on():
            loop(prof, 20)
            prof.stop()
            prof.wait(0)
            return has_children()

        for steps in (6, 2):
            loop(prof, steps)
            assert prof.in_window is (steps == 2)
            assert prof.wait(250)
            before = contents()
            assert forked(go_on) == 0
            assert contents() == before
        loop(prof, 9)
    assert prof.wait(250)
    assert sorted(path.parent.name for path in Path("runs/r").glob("*/rank0.steps.csv")) == [
        "train-000002-000004", "train-000007-000009", "train-000012-000014"
    ]  # fmt: skip
    with Path("runs/r/rank0.timeline.csv").open() as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == list(range(17))


# --- started by nobody, and failures ---


@pytest.mark.recorder
@pytest.mark.parametrize("begin", [loop, lambda prof, count: list(prof.steps(range(count)))], ids=["step", "steps"])
def test_step_starts_the_profiler_like_torch(begin):
    """torch records there, from the second step on; ``steps()`` from the first one."""
    seen = []
    prof = Profiler(schedule=SCHEDULE, on_trace_ready=lambda w: seen.append(w.step_num))
    begin(prof, 9)
    assert seen == [4, 8]
    prof.stop()
    loop(prof, 20)
    assert seen == [4, 8], "who stops it does not want it to start again"


def test_missed_first_window_is_reported(caplog):
    prof = Profiler(schedule="wait=0 warmup=0 active=2 repeat=1", on_trace_ready=ignore)
    loop(prof, 5)
    prof.stop()
    assert "was not started before its first step" in caplog.text


@pytest.mark.recorder
def test_batch_is_freed_with_the_last_reference_of_the_loop():
    """One more batch of memory is the difference between fitting on a device and not."""

    class Batch:
        pass

    for schedule in ("wait=99 warmup=0 active=1", "wait=0 warmup=0 active=99"):
        with Profiler(schedule=schedule, on_trace_ready=ignore) as prof:
            for batch in prof.steps(Batch() for _ in range(3)):
                alive = weakref.ref(batch)
                del batch
                assert alive() is None
        prof.stop()


class Failing:
    """A schedule of windows of one step each, which fails at some steps, each once."""

    def __init__(self, *steps):
        self.steps = set(steps)

    def __call__(self, step):
        if step in self.steps:
            self.steps.remove(step)
            raise RuntimeError("no luck")
        return torch.profiler.ProfilerAction.RECORD_AND_SAVE if step % 2 else torch.profiler.ProfilerAction.NONE


@pytest.mark.recorder
@pytest.mark.parametrize("steps", [[2], [2, 6, 10, 14, 18, 22]], ids=["once", "between windows"])
def test_errors_in_steps_affect_only_their_windows(caplog, steps):
    """As often as it may be, profiling is not disabled."""
    seen, _ = recorded(24, schedule=Failing(*steps))
    assert seen == list(range(2, 25, 2))
    assert caplog.text.count("no luck") == len(steps)


@pytest.mark.recorder
def test_recorder_failure_keeps_the_recorded_part(monkeypatch, caplog):
    window_step, left = perfhooks.record.loop.window.Window.step, [1]

    def step(self):
        if self.step_num == 2 and left.pop():
            raise RuntimeError("no luck")
        window_step(self)

    monkeypatch.setattr(perfhooks.record.loop.window.Window, "step", step, raising=False)
    seen, _ = recorded(say=lambda window: (window.step_num, window.partial))
    assert seen == [(3, "profiling this step failed"), (8, None)]
    assert "no luck" in caplog.text


def test_profiling_that_always_fails_ends_with_a_line(caplog):
    recorded(50, schedule=Failing(*range(51)))
    assert caplog.text.count("no luck") < 10
    assert "failed 3 times in a row" in caplog.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a device Kineto keeps its voice")
@pytest.mark.parametrize("said", [{}, {"KINETO_LOG_LEVEL": "4"}])
def test_kineto_stays_silent_by_default(run_script, said):
    """It was told for one call; the training's environment, and what it starts, know nothing of it."""
    script = """
import os, perfhooks, torch
before = dict(os.environ)
for _ in range(2):
    with perfhooks.Profiler():
        assert dict(os.environ) == before
        torch.ones(2).sum()
assert dict(os.environ) == before
"""
    clean = {name: value for name, value in os.environ.items() if name != "KINETO_LOG_LEVEL"}
    done = run_script(script, environment={**clean, **said})
    assert done.returncode == 0, done.stderr
    assert ("profiler_start" in done.stderr) == (bool(said) and not TORCH_24)


@pytest.mark.recorder
@pytest.mark.skipif(TORCH_24, reason="torch 2.4 has no such warning")
def test_windows_start_if_torch_warns_at_each_start(monkeypatch):
    """As torch 2.11 does of earlier cycles; here warnings are errors."""
    prepare, module = torch.profiler.profile.prepare_trace, torch.profiler.profiler
    warn = module._warn_once

    def warns(profile):
        module._warn_once("Warning: Profiler clears events at the end of each cycle.")
        prepare(profile)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", warns)
    with perfhooks.Profiler(schedule="wait=0 warmup=1 active=1 repeat=1", background=False) as prof:
        for _ in range(3):
            prof.step()
    assert prof.key_averages() is not None
    assert module._warn_once is warn
