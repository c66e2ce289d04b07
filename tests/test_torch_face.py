"""Code that was written for ``torch.profiler.profile`` finds in a Profiler what it reads there."""

from __future__ import annotations

import sys
import warnings
from collections import defaultdict
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import KinetoStepTracker
from torch.profiler import ProfilerAction, ProfilerActivity, profile

from perfhooks import OptionError, Profiler
from perfhooks.core.errors import NothingRecordedError
from perfhooks.record.loop.like_torch import silence

pytestmark = pytest.mark.recorder

torch.set_num_threads(1)
X = torch.ones(8, 8)
OPTIONS = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "with_stack": True}
SCHEDULE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}
WINDOWS = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=1)
OURS = {"step_num", "profiler", "current_action", "schedule", "on_trace_ready", "action_map", "record_steps"}


def ignore(window):
    """A handler, so that no file is written."""


def test_profiler_is_a_torch_profile():
    assert isinstance(Profiler(), profile)
    assert isinstance(deepcopy(Profiler()), profile)


def test_attributes_equal_those_of_torch():
    ours, theirs = Profiler(on_trace_ready=ignore, **OPTIONS), profile(on_trace_ready=ignore, **OPTIONS)
    for name in vars(theirs):
        if name not in OURS:
            assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.on_trace_ready is ignore
    assert (ours.profiler, ours.step_num, ours.current_action) == (None, 0, ProfilerAction.RECORD)


def test_public_methods_of_torch_are_implemented():
    methods = [name for name in vars(profile) | vars(profile.__mro__[1]) if not name.startswith("_")]
    assert [name for name in methods if getattr(Profiler, name) is getattr(profile, name)] == []


@pytest.mark.parametrize("name", ["wait_for_exports", "take_pending_cupti_export", "take_pending_cuspy_export"])
def test_later_methods_of_torch_use_the_last_window(name, monkeypatch):
    """A version of torch has some of these; where nothing was recorded nothing is waited for."""
    prof = Profiler(on_trace_ready=ignore, **OPTIONS)
    assert getattr(prof, name)() is None
    with prof:
        X @ X
    monkeypatch.setattr(prof._course.windows.last, name, lambda *args, **kwargs: (args, kwargs), raising=False)
    assert getattr(prof, name)(5, timeout=6) == ((5,), {"timeout": 6})


@pytest.mark.parametrize("schedule", [None, SCHEDULE])
def test_current_action_and_schedule_equal_those_of_torch(schedule):
    def run(make, of):
        seen = []
        with make(activities=[ProfilerActivity.CPU], on_trace_ready=ignore, schedule=of) as prof:
            for _ in range(6):
                seen.append((prof.step_num, prof.current_action, prof.schedule(prof.step_num), prof.record_steps))
                X @ X
                prof.step()
        return seen

    assert run(Profiler, schedule) == run(profile, schedule and torch.profiler.schedule(**schedule))


def test_the_recorder_is_that_of_the_window():
    with Profiler(activities=["cpu"]) as prof:
        assert prof.profiler is prof._course.windows.current.profiler
        X @ X
    assert {event.name for event in prof.profiler.function_events} >= {"aten::mm"}


def test_trace_ids_come_from_the_latest_callback():
    if not hasattr(profile, "set_custom_trace_id_callback"):
        pytest.skip("torch 2.6 brought it")
    prof = Profiler(activities=["cpu"], custom_trace_id_callback=lambda: "first")
    prof.set_custom_trace_id_callback(lambda: "second")
    with prof:
        X @ X
    assert prof.get_trace_id() == "second"


def test_start_trace_and_stop_trace_record_a_window():
    prof = Profiler(activities=["cpu"])
    prof.prepare_trace()
    prof.start_trace()
    X @ X
    prof.stop_trace()
    assert {row.key: row.count for row in prof.key_averages()}["aten::mm"] == 1


def test_profiler_passes_type_checks_for_torch_profile():
    """As ``torch.profiler.tensorboard_trace_handler`` and Lightning check."""
    seen = []
    with Profiler(
        activities=["cpu"], schedule=SCHEDULE, on_trace_ready=lambda p: seen.append(isinstance(p, profile))
    ) as p:
        for _ in range(5):
            p.step()
    assert seen == [True]


def counted(monkeypatch, make):
    """How many steps torch has counted after each one."""
    monkeypatch.setattr(KinetoStepTracker, "_current_step", 0)
    monkeypatch.setattr(KinetoStepTracker, "_step_dict", defaultdict(int))
    seen = []
    with make(activities=[ProfilerActivity.CPU], on_trace_ready=ignore, schedule=WINDOWS) as prof:
        for _ in range(8):
            X @ X
            prof.step()
            seen.append(KinetoStepTracker.current_step())
    return seen


def test_steps_are_counted_for_a_daemon_like_torch(monkeypatch):
    """Dynolog starts to record at a step of that count."""
    monkeypatch.setenv("KINETO_USE_DAEMON", "1")
    theirs = counted(monkeypatch, profile)
    assert theirs == [*range(1, 9)]
    assert counted(monkeypatch, Profiler) == theirs
    for _ in range(5):
        KinetoStepTracker.increment_step("Optimizer")
    reached = KinetoStepTracker.current_step()
    with Profiler(schedule="wait=9 warmup=1 active=1", on_trace_ready=ignore) as prof:
        prof.step()
    assert KinetoStepTracker.current_step() == reached + 1, "those that others counted meanwhile are before it"


THEIRS = """
import unittest
from torch.profiler import ProfilerActivity, gone, profile
from torch.profiler.gone_too import Gone

class Theirs(unittest.TestCase):
    def test_same(self):
        with profile(activities=[ProfilerActivity.CPU], with_stack=True, record_shapes=True) as prof:
            pass
        assert isinstance(prof, profile) and prof.with_stack and prof.record_shapes

    def test_other(self):
        assert profile.__module__.startswith("torch")

    @gone
    def test_gone(self):
        raise RuntimeError
"""


def test_tests_of_torch_run_with_the_profiler(tmp_path, monkeypatch, caplog):
    """As `make drop-in` does; whoever puts it in the place of torch's has all options of torch's."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    for module, name, value in ((torch.profiler, "profile", torch.profiler.profile), (torch.profiler, "gone", None)):
        monkeypatch.setattr(module, name, value, raising=False)
    del torch.profiler.gone
    import drop_in

    (tmp_path / "theirs.py").write_text(THEIRS)
    found = [drop_in.run(tmp_path / "theirs.py", ours=ours) for ours in (False, True)]
    for name in ("theirs", "torch.profiler.gone_too"):
        del sys.modules[name]
    kinds = [{name.rpartition(".")[2]: what.partition(":")[0] for name, what in each.items()} for each in found]
    same = {"test_same": "passed", "test_gone": "skipped"}
    assert kinds == [{**same, "test_other": "passed"}, {**same, "test_other": "failed"}]
    assert "does not support" not in caplog.text


def test_handler_gets_an_instance_of_profile(monkeypatch):
    seen = []
    for exchanged in (False, True):
        if exchanged:
            monkeypatch.setattr(torch.profiler, "profile", Profiler)
        with Profiler(
            activities=["cpu"], on_trace_ready=lambda got: seen.append(isinstance(got, torch.profiler.profile))
        ):
            X @ X
    assert seen == [True, True]
    assert not isinstance(object(), Profiler)


# --- what a user of torch.autograd.profiler types ---


def test_autograd_profile_results_are_those_of_the_window():
    with Profiler(use_cpu=True, use_kineto=True, record_shapes=True) as prof:
        X @ X
    assert [event.name for event in prof.function_events] == [event.name for event in prof.events()]
    assert "aten::mm" in prof.table(sort_by="self_cpu_time_total", row_limit=5)
    assert prof.self_cpu_time_total == prof.events().self_cpu_time_total > 0
    assert prof.total_average().count == len(prof.events())


def test_autograd_profile_enabled_false_records_nothing():
    with Profiler(enabled=False) as prof:
        assert not torch.autograd._profiler_enabled()
        X @ X
    with pytest.raises(NothingRecordedError, match="enabled=False"):
        prof.table()


def test_autograd_profile_arguments_select_activities():
    assert Profiler(use_cpu=True).activities == {ProfilerActivity.CPU}
    assert Profiler(use_device="cuda").activities == {ProfilerActivity.CPU, ProfilerActivity.CUDA}
    assert Profiler(use_cpu=False, use_device="cuda").activities == {ProfilerActivity.CUDA}
    for options in ({"use_cpu": False}, {"use_cpu": True, "activities": ["cpu"]}):
        with pytest.raises(OptionError, match="use_cpu and use_device"):
            Profiler(**options)


@pytest.mark.skipif(
    "deprecated" not in (profile.__mro__[1].__doc__ or "").partition("with_modules")[2][:600],
    reason="this torch does not warn of with_modules",
)
def test_deprecated_options_of_torch_warn_once(monkeypatch, tmp_path):
    """Every window has a recorder of its own, and each would say it."""
    monkeypatch.setattr(silence, "_warned", set())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        windows = []
        options = {"with_modules": True, "profile_memory": True, "record_shapes": True, "with_stack": True}
        each_step = torch.profiler.schedule(wait=0, warmup=0, active=1, repeat=3)
        with Profiler(activities=["cpu"], schedule=each_step, on_trace_ready=windows.append, **options) as prof:
            for _ in range(4):
                X @ X
                prof.step()
        prof.export_memory_timeline(str(tmp_path / "memory.json"), "cpu")
    assert [window.with_modules for window in windows] == [True] * 3
    about = [str(each.message) for each in said if each.category is FutureWarning]
    assert [text for text in about if text.startswith("with_modules is deprecated")] == about[:1]
    assert len([text for text in about if "`export_memory_timeline` is deprecated" in text]) == 1
    assert (tmp_path / "memory.json").stat().st_size
