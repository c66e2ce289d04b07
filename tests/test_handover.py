"""From a recorded window to files: the budget, the cost, remote places, and memory that does not grow."""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from terminal import steps_of_mean

from perfhooks import Profiler
from perfhooks.core.guard import enable_console_log, logger
from perfhooks.record.loop.handover import Handover
from perfhooks.record.loop.like_torch.silence import suppress_stderr
from perfhooks.record.loop.window import Window
from perfhooks.report.finishing.finish import _cost
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.report.handlers.permit import Permit
from perfhooks.run import remote
from perfhooks.run.capture import EXPLAINS, Capture, Place
from perfhooks.run.folder import Run
from perfhooks.run.steps import CpuInterval
from perfhooks.run.timeline import HEADER
from perfhooks.trace import read
from perfhooks.trace.nesting import step_marks

WAITS_HEADER = ",".join(("stage", *CpuInterval._fields)) + "\n"

pytestmark = pytest.mark.worker

torch.set_num_threads(1)
X = torch.ones(16, 16)


@pytest.fixture(autouse=True)
def _here(tmp_path, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # files on their way to a URL wait in a folder that is named after it: another suite on this machine has the same
    monkeypatch.setenv("TMPDIR", str(tmp_path_factory.mktemp("local")))
    monkeypatch.setattr(tempfile, "tempdir", None)


def loop(prof, steps):
    for _ in range(steps):
        X @ X
        prof.step()


def trained(schedule, steps, **options):
    """A profiler of a training that has ended."""
    with Profiler(schedule=schedule, **options) as prof:
        loop(prof, steps)
    return prof


def facts(window, run="r", out="runs"):
    return json.loads(Path(out, run, window, "rank0.capture.json").read_text())


def timeline():
    with Path("runs/r/rank0.timeline.csv").open() as file:
        return list(csv.DictReader(file))


HERE = {"out": "runs", "run": "r", "background": False}
FAST = {**HERE, "on_trace_ready": "steps"}
"""Without the report, which takes longest, and without the start of a worker."""


def test_finished_window_is_one_log_line_with_its_folder(caplog):
    """Where nobody is to open a file for it."""
    caplog.set_level("INFO", "perfhooks")
    trained("wait=1 warmup=1 active=2 repeat=1", 6, **HERE)
    (said,) = [each for each in caplog.messages if " -> " in each]
    assert steps_of_mean(2, 3).search(said), said


@pytest.mark.parametrize(("request_name", "level"), [("", "WARNING"), (EXPLAINS, "DEBUG")])
def test_doubts_about_the_second_window_are_only_in_the_report(request_name, level, tmp_path, caplog):
    caplog.set_level("DEBUG", "perfhooks")
    capture = Capture(last=0, notes=("4 frames have no end",), request=request_name)
    handover = SimpleNamespace(is_summed_up=True, is_loud=True, _is_leaving=True, listeners=())
    Handover._finished(handover, Place(tmp_path / "train-000000-000000", 0), capture)
    assert caplog.records[0].getMessage() == "train-000000-000000: 4 frames have no end"
    assert caplog.records[0].levelname == level


@pytest.mark.parametrize(("reached", "recorded"), [(15, "step 14 recorded"), (14, "a part of step 14 recorded")])
def test_log_line_of_a_cut_window_names_what_was_recorded(reached, recorded, tmp_path, caplog):
    caplog.set_level("INFO", "perfhooks")
    capture = Capture(first=14, last=15, reached=reached, partial="the budget of 0.5 s", stage="train")
    handover = SimpleNamespace(is_summed_up=True, is_loud=True, _is_leaving=False, listeners=())
    Handover._finished(handover, Place(tmp_path / "train-000014-000015", 0), capture)
    assert caplog.messages[-1].startswith(f"{recorded} -> ")


@pytest.mark.parametrize(
    ("request_name", "is_awaited"),
    [("", False), ("slow", False), (EXPLAINS, False), ("code", True), ("signal", True), ("7f3a", True)],
)
def test_somebody_waits_for_the_window_of_a_request(request_name, is_awaited, tmp_path):
    sent = []
    tasks = SimpleNamespace(send=lambda _, *, is_requested=False: sent.append(is_requested))
    handover = SimpleNamespace(places=[], tasks=tasks, _background=True, _permit=Permit())
    Handover._submit(handover, Place(tmp_path / "train-000000-000000", 0), request_name)
    assert sent == [is_awaited]


def test_incomplete_trace_of_the_recorder_is_no_trace(monkeypatch, caplog):
    """Kineto says nothing of a disk that is full."""
    monkeypatch.setattr(torch.profiler.profile, "export_chrome_trace", lambda _, path: Path(path).write_text('{"a": ['))
    trained("wait=1 warmup=1 active=2 repeat=1", 6, **HERE)
    assert "the recorder wrote an incomplete" in caplog.text
    assert "is the disk full?" in caplog.text
    assert [path.name for path in Path("runs/r").rglob("*.trace.json*")] == []


def test_work_of_perfhooks_between_two_steps_is_in_no_step(monkeypatch):
    """After each recorded step, perfhooks measures whether another one fits the budget."""
    monkeypatch.setattr(Window, "has_room_for_step", lambda _: not time.sleep(0.5))
    trained("wait=1 warmup=1 active=4 repeat=1", 8, **HERE, on_trace_ready="trace")
    (path,) = Path("runs/r/train-000002-000005").glob("rank0.pt.trace.json*")
    marks = step_marks.find(read(path))
    assert marks.number == [2, 3, 4, 5]
    assert (marks.start[1:] - marks.end[:-1]).min() > 0.5e9


def test_silence_leaves_no_file_open():
    """Counted over many, as other threads open and close files as well."""
    before = sum(1 for _ in Path("/dev/fd").iterdir())
    for _ in range(100):
        with suppress_stderr():
            os.write(2, b"nobody reads this")
    assert sum(1 for _ in Path("/dev/fd").iterdir()) < before + 50


@pytest.mark.parametrize("background", [True, False])
def test_worker_and_training_make_the_same_files(background):
    prof = trained("wait=1 warmup=1 active=2 repeat=2", 9, with_stack=True, out="runs", run="r", background=background)
    assert prof.wait(200)
    for window in ("train-000002-000003", "train-000006-000007"):
        names = {path.name for path in Path("runs/r", window).iterdir()}
        assert {"rank0.pt.trace.json.gz", "rank0.steps.csv", "rank0.operators.csv", "rank0.stacks.folded"} <= names
        assert not [name for name in names if name.startswith(".")]
        assert {*facts(window)["artifacts"], "rank0.capture.json"} == names
    manifest = json.loads(Path("runs/r/run.json").read_text())
    assert manifest["windows"] == ["train-000002-000003", "train-000006-000007"]
    assert manifest["ranks"] == "all"


@pytest.mark.parametrize("background", [True, False])
def test_run_on_a_network_disk_is_finished_from_a_local_disk(background, monkeypatch):
    monkeypatch.setattr("perfhooks.run.remote.is_network_disk", lambda folder: True)
    prof = trained("wait=1 warmup=0 active=1 repeat=1", 3, out="runs", run="r", background=background)
    assert prof.wait(200)
    spool = Path(facts("train-000001-000001")["spool"])
    assert not spool.exists()
    assert not spool.is_relative_to(Path.cwd())
    assert Path("runs/r/train-000001-000001/rank0.pt.trace.json.gz").exists()


def test_inline_files_exist_when_step_returns():
    with Profiler(schedule="wait=0 warmup=0 active=1", **FAST) as prof:
        loop(prof, 1)
        assert Path("runs/r/train-000000-000000/rank0.steps.csv").exists()


@pytest.mark.parametrize("ending", [KeyboardInterrupt, SystemExit])
def test_callable_that_ends_the_training_keeps_the_window(ending):
    def end(_):
        raise ending

    with pytest.raises(ending), Profiler(schedule="wait=0 warmup=0 active=1", out="runs", run="r",
                                         on_trace_ready=[end, "steps"]) as prof:  # fmt: skip
        loop(prof, 2)
    assert prof.wait(200)
    assert facts("train-000000-000000")["artifacts"] == ["rank0.steps.csv"]


def test_unsaved_trace_costs_only_its_window(monkeypatch, caplog):
    """As where the disk is full for a while."""

    def save(window, path, real=Window.save):
        if window.first == 1:
            raise OSError(28, "No space left on device")
        real(window, path)

    monkeypatch.setattr(Window, "save", save)
    seen = []
    wanted = [lambda window: seen.append(window.first), "steps"]
    trained("wait=1 warmup=0 active=1 repeat=2", 5, **HERE, on_trace_ready=wanted)
    (said,) = [record.message for record in caplog.records if record.levelno >= logging.WARNING]
    assert said.startswith("saving the trace of train-000001-000001 failed (OSError")
    assert seen == [1, 3], "who asked to see it sees it nevertheless"
    assert [path.parent.name for path in Path("runs/r").glob("*/rank0.steps.csv")] == ["train-000003-000003"]


def test_finished_window_contains_waits_of_unprofiled_steps(tmp_path):
    """The wait of a slow unprofiled step counts; that of profiled steps and of the first three does not."""
    lines = ["wait,104.0,51.0"] * 9 + ["wait,900.0,890.0"] + ["active,1000.0,990.0"] * 3
    rows = "".join(f"train,{step},{line}\n" for step, line in enumerate(lines))
    (tmp_path / "rank0.timeline.csv").write_text(HEADER + rows)
    seconds = "train,0,9,1000,500,700,0,100\ntrain,9,12,3000,1100,1400,0,300\n"
    (tmp_path / "rank0.processor.csv").write_text(WAITS_HEADER + seconds)
    found = _cost(Capture(), 7, Run(tmp_path), 0)
    assert (found.idle_step_ms, found.recorded_step_ms, found.events) == (104.0, 1000.0, 7)
    assert found.idle_data_ms == pytest.approx(104 * (6 * 51 + 890) / (6 * 104 + 900))
    assert found.idle_thread_ms == pytest.approx(0.4 * 104)
    assert found.others == pytest.approx(0.1)
    other = _cost(Capture(stage="validate"), 7, Run(tmp_path), 0)
    assert other.idle_data_ms is other.idle_thread_ms is other.others is None


@pytest.mark.parametrize(
    ("walls", "idle_ms"), [([20.0] * 9 + [10.0] * 11, 10.0), ([20.0] * 20 + [50.0] * 80, 20.0), ([50.0] * 9, 50.0)]
)
def test_findings_use_the_step_time_of_the_headline_or_window(walls, idle_ms, tmp_path):
    lines = [*(f"wait,{wall}," for wall in walls[:9]), *["active,30,"] * 3, *(f"wait,{wall}," for wall in walls[9:])]
    rows = "".join(f"train,{step},{line}\n" for step, line in enumerate(lines))
    (tmp_path / "rank0.timeline.csv").write_text(HEADER + rows)
    assert _cost(Capture(first=9, last=11), 7, Run(tmp_path), 0).idle_step_ms == idle_ms


def test_unprofiled_step_time_uses_all_steps_at_the_end():
    """At the end of the window there were too few."""
    with Profiler(schedule="wait=1 warmup=1 active=2 repeat=1", **FAST) as prof:
        loop(prof, 4)
        assert facts("train-000002-000003")["cost"]["idle_step_ms"] is None
        loop(prof, 20)
    walls = [float(row["wall_ms"]) for row in timeline() if row["phase"] == "wait"]
    assert min(walls) <= facts("train-000002-000003")["cost"]["idle_step_ms"] <= max(walls)


def test_recording_cost_is_stored_and_shown():
    prof = trained("wait=5 warmup=1 active=3 repeat=2", 20, **FAST)
    assert facts("train-000006-000008")["cost"]["idle_step_ms"] is None, "two steps after the first three say nothing"
    cost = facts("train-000015-000017")["cost"]
    assert cost["stop_s"] > 0
    assert cost["save_s"] > 0
    assert cost["events"] >= 3
    assert cost["trace_bytes"] > 1000
    active = sorted(float(row["wall_ms"]) for row in timeline() if row["phase"] == "active")
    assert min(active) <= cost["recorded_step_ms"] <= max(active)
    assert "recording stopped the loop for" in prof.summary()
    assert "unprofiled" in prof.summary()


def test_the_timeline_has_every_step_once_with_its_phase():
    with Profiler(schedule="wait=2 warmup=1 active=2 repeat=2", **FAST) as prof:
        for _ in prof.steps(range(13)):
            X @ X
    rows = timeline()
    assert [int(row["step"]) for row in rows] == list(range(13))
    phases = ["wait", "wait", "warmup", "active", "active"]
    assert [row["phase"] for row in rows] == [*phases, *phases, "wait", "wait", "wait"]
    assert all(0 <= float(row["data_ms"]) <= float(row["wall_ms"]) for row in rows)


def test_many_steps_are_written_by_the_worker_and_none_is_lost(monkeypatch):
    monkeypatch.setattr("perfhooks.run.timeline.CAPACITY", 5000)
    most = 0
    options = {**FAST, "background": True, "watch": False}
    with Profiler(schedule="wait=7000 warmup=0 active=1 repeat=1", **options) as prof:
        for _ in range(12_345):
            prof.step()
            most = max(most, prof._course.loop.timeline.waiting)
    assert most < 5000, "they are written as soon as they are so many"
    assert prof.wait(200)
    rows = timeline()
    assert [int(row["step"]) for row in rows] == list(range(12_345))
    assert [int(row["step"]) for row in rows if row["phase"] == "active"] == [7000]
    assert not list(Path("runs/r").glob(".rank0.steps*"))


def test_report_writes_the_steps_that_a_killed_worker_left(monkeypatch):
    monkeypatch.setattr("perfhooks.record.loop.worker.Worker.send", lambda self, message: None)
    # the watcher writes steps as well, if they take long; otherwise the worker starts late beside other threads
    options = {"exit_timeout": 0, "watch": False, "on_error": "raise"}
    with Profiler(schedule="wait=9999 warmup=0 active=1", out="runs", run="r", **options) as prof:
        for _ in range(3000):
            prof.step()
        os.kill(prof._course.windows.handover.tasks.worker.pid, 9)  # it would write them when its pipe closes
    prof.leave()
    assert list(Path("runs/r").glob(".rank0.steps*"))
    assert list(finish_all(Path("runs/r"))) == []
    assert len(Path("runs/r/rank0.timeline.csv").read_text().splitlines()) == 3001


def test_only_the_last_windows_of_this_run_are_kept():
    theirs = Path("runs/r/train-000001-000001/notes.txt")
    theirs.parent.mkdir(parents=True)
    theirs.write_text("not ours")
    with Profiler(schedule="wait=1 warmup=0 active=1", **FAST, keep_windows=2) as prof:
        loop(prof, 5)
        Path("runs/r/train-000003-000003/merged.pt.trace.json.gz").touch()
        loop(prof, 5)
    kept = sorted(path.name for path in Path("runs/r").glob("train-*/rank0.steps.csv") for path in [path.parent])
    assert kept == ["train-000007-000007", "train-000009-000009"]
    assert theirs.read_text() == "not ours"
    assert not Path("runs/r/train-000003-000003").exists(), "what was merged of it goes with it"
    assert [path.name for path in theirs.parent.iterdir()] == ["notes.txt"]


def test_copies_of_old_windows_are_deleted(tmp_path):
    there = tmp_path / "there" / "r"
    options = {**FAST, "out": f"file://{there.parent}", "keep_windows": 1}
    with Profiler(schedule="wait=1 warmup=0 active=1", **options) as prof:
        loop(prof, 3)
        (other := there / "train-000001-000001" / "notes.txt").write_text("not ours")
        loop(prof, 3)
    assert [path.parent.name for path in there.glob("train-*/rank0.steps.csv")] == ["train-000005-000005"]
    assert list(other.parent.iterdir()) == [other]


def test_full_queue_skips_a_window_with_a_log_line(caplog, monkeypatch):
    monkeypatch.setattr("perfhooks.record.loop.handover.QUEUE", 0)
    trained("wait=1 warmup=0 active=1 repeat=1", 3, out="runs", run="r")
    assert "the window at step 1 is skipped" in caplog.text
    assert not list(Path("runs/r").glob("train-*"))


def test_skipped_windows_are_logged_less_and_less_often(caplog, monkeypatch):
    monkeypatch.setattr("perfhooks.record.loop.handover.QUEUE", 0)
    trained("wait=1 warmup=0 active=1", 26, out="runs", run="r")
    lines = [message for message in caplog.messages if "is skipped" in message]
    assert [line.rpartition("at step ")[2] for line in lines] == [
        "1 is skipped", "5 is skipped (3 so far)", "19 is skipped (10 so far)",
    ]  # fmt: skip


def test_listeners_get_all_windows_on_the_training_thread():
    heard = []
    prof = Profiler(schedule="wait=1 warmup=0 active=1 repeat=3", out="runs", run="r", on_trace_ready="steps")
    prof.when_finished(lambda capture, place: heard.append((capture.first, place.artifact("steps.csv").exists())))
    with prof:
        loop(prof, 8)
    assert prof.wait(200)
    assert heard == [(1, True), (3, True), (5, True)]


def test_wait_ends_after_its_timeout(tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text(
        "import time\nfrom dataclasses import dataclass\n@dataclass(frozen=True)\nclass Slow:\n"
        "    def artifacts(self, capture, trace):\n        time.sleep(60)\n        return []\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    prof = trained("wait=0 warmup=0 active=1 repeat=1", 2, on_trace_ready="slow:Slow", exit_timeout=0)
    assert prof.wait(0.3) is False
    os.kill(prof._course.windows.handover.tasks.worker.pid, 9)
    prof._course.windows.handover.tasks._deaths = 1
    prof.leave()


WINDOWS = """
import ctypes, gc, re
from pathlib import Path
from types import SimpleNamespace
import torch, perfhooks

# threads that end late share one pool of memory: each more of them would have its own
getattr(ctypes.CDLL(None), "mallopt", max)(-8, 1)
matrix = torch.ones(8, 8)
prof = perfhooks.Profiler(
    schedule="wait=0 warmup=1 active=1", record_shapes=True, with_stack=True, profile_memory=True,
    on_trace_ready=lambda window: None, keep_results=False,
)

def loop(steps):
    for _ in range(steps):
        matrix @ matrix
        prof.step()

def own_kb():
    # pages of files come and go as the machine needs memory
    status = Path("/proc/self/status").read_text()
    return sum(int(re.search(rf"{name}:\\s+(\\d+) kB", status)[1]) for name in ("RssAnon", "VmSwap"))

sizes = []
with prof:
    loop(40)
    gc.collect()
    gc.disable()
    for _ in range(20):
        loop(20)
        sizes.append(own_kb())
    print(gc.collect(), *sizes)
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="nothing tells the memory of a process here")
def test_two_hundred_windows_leave_no_garbage_and_no_memory(run_script):
    """What a window held is freed when it ends: the collector finds nothing, and the process does not grow."""
    done = run_script(WINDOWS)
    assert done.returncode == 0, done.stderr
    found, *sizes = map(int, done.stdout.split())
    # torch 2.4 makes a function that refers to itself at every stop
    limit = 50 + (3 * 200 if torch.__version__.startswith("2.4") else 0)
    assert found < limit, "objects of 200 windows were left to the collector"
    assert min(sizes[15:]) - min(sizes[5:10]) < 2000, "20 kB for each of a hundred windows"


def test_out_may_be_a_url_into_memory():
    import fsspec

    prof = trained("wait=1 warmup=0 active=1 repeat=1", 3, out="memory://bucket/runs", run="r")
    files = fsspec.filesystem("memory").find("/bucket/runs/r")
    assert "/bucket/runs/r/train-000001-000001/rank0.pt.trace.json.gz" in files
    assert "/bucket/runs/r/run.json" in files
    assert "train" in prof.summary()


def test_missing_remote_folder_is_created(tmp_path):
    """Object stores have none; another file system has."""
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run.json").write_text("{}")
    remote.check(f"file://{tmp_path}/there/runs")
    assert list((tmp_path / "there" / "runs").iterdir()) == []
    remote.copy(tmp_path / "here", ["run.json", "missing.csv"], f"file://{tmp_path}/there/again/r")
    assert [path.name for path in (tmp_path / "there" / "again" / "r").iterdir()] == ["run.json"]


@pytest.mark.nightly
@pytest.mark.filterwarnings("ignore")
def test_out_may_be_an_s3_bucket(s3):
    """The worker process copies what it finished."""
    import s3fs

    system = s3fs.S3FileSystem(skip_instance_cache=True)
    system.mkdir("bucket")
    prof = trained("wait=1 warmup=0 active=1 repeat=1", 3, out=s3, run="r")
    assert prof.wait(120)
    system.invalidate_cache()
    names = {name.removeprefix("bucket/runs/r/") for name in system.find("bucket/runs/r")}
    assert {"run.json", "rank0.timeline.csv", "train-000001-000001/rank0.steps.csv"} <= names


def test_url_contains_the_steps_after_the_last_window(run_script, tmp_path):
    url = f"file://{tmp_path}/there"
    options = {"schedule": "wait=1 warmup=0 active=1 repeat=1", "on_trace_ready": "steps", "out": url, "run": "r"}
    script = (
        "import torch, perfhooks\n"
        f"with perfhooks.Profiler(**{options!r}) as prof:\n"
        "    for step in prof.steps(range(400)):\n"
        "        torch.ones(3) + 1\n"
        "        if step == 2: assert prof.wait(100)\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr

    def text():
        return (tmp_path / "there" / "r" / "rank0.timeline.csv").read_text()

    until = time.monotonic() + 100  # the worker outlives the training by what it has to do, and writes over the file
    while "\ntrain,399,wait," not in text():
        assert time.monotonic() < until
        time.sleep(0.05)


def test_progress_is_shown_on_a_terminal_only(monkeypatch, capsys):
    from perfhooks.core.progress import show_wait

    with show_wait() as show:
        show(5.0)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with show_wait() as show:
        show(5.0)
    assert "writing the report, 5 s" in capsys.readouterr().err


def test_info_reaches_a_program_that_never_configured_logging(run_script):
    script = (
        "import torch, perfhooks\n"
        "with perfhooks.Profiler(schedule='wait=0 warmup=0 active=1 repeat=1', run='r') as prof:\n"
        "    for _ in prof.steps(range(3)): torch.ones(3) + 1\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("INFO perfhooks: ") and "step 0: " in line]
    assert len(lines) == 1
    assert lines[0].endswith("-> perf/r/report.html")


def test_configured_logging_stays_unchanged(run_script):
    script = (
        "import logging; logging.basicConfig(level=logging.ERROR)\n"
        "import torch, perfhooks\n"
        f"with perfhooks.Profiler(schedule='wait=0 warmup=0 active=1 repeat=1', **{FAST}) as prof:\n"
        "    for _ in prof.steps(range(3)): torch.ones(3) + 1\n"
    )
    done = run_script(script)
    assert done.returncode == 0, done.stderr
    assert "perfhooks" not in done.stderr


def unconfigured(monkeypatch):
    """The root of a logging that the program has not configured."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    for name, value in (("handlers", []), ("level", logging.NOTSET), ("propagate", True)):
        monkeypatch.setattr(logger, name, value)
    return root


def test_later_configured_logging_shows_each_line_once(monkeypatch, capsys):
    root = unconfigured(monkeypatch)
    enable_console_log()
    logger.info("one")
    root.addHandler(logging.StreamHandler(sys.stderr))
    logger.info("two")
    assert capsys.readouterr().err.splitlines() == ["INFO perfhooks: one", "two"]


def test_log_of_the_program_contains_no_perfhooks_lines(monkeypatch, capsys):
    """As hydra's, which goes to standard output."""
    unconfigured(monkeypatch).addHandler(logging.StreamHandler(sys.stdout))
    enable_console_log(apart=True)
    logger.info("one")
    assert capsys.readouterr() == ("", "INFO perfhooks: one\n")


def test_replaced_and_closed_standard_error_is_no_failure(monkeypatch, capsys):
    unconfigured(monkeypatch)
    with monkeypatch.context() as exchanged, io.StringIO() as theirs:
        exchanged.setattr(sys, "stderr", theirs)
        enable_console_log()
        logger.info("one")
    logger.info("two")
    assert capsys.readouterr().err == "INFO perfhooks: two\n"


def test_only_warnings_stay_in_a_notebook(monkeypatch):
    class BaselineFile(io.StringIO):
        """What a notebook keeps of standard error."""

    BaselineFile.__module__ = "ipykernel.iostream"
    monkeypatch.setattr(sys, "stderr", BaselineFile())
    unconfigured(monkeypatch)
    enable_console_log()
    logger.info("one")
    logger.warning("two")
    assert sys.stderr.getvalue() == "WARNING perfhooks: two\n"


def test_time_between_two_passes_is_no_wait_for_data():
    """Validation after an epoch: 3,790 of 4,055 ms of a step were said to be a wait."""
    with Profiler(schedule="wait=99 warmup=0 active=1", **FAST) as prof:
        loader = prof.steps(range(3))
        for _ in loader:
            pass
        time.sleep(0.3)
        for _ in loader:
            pass
    (between,) = [row for row in timeline() if row["step"] == "3"]
    assert 0 <= float(between["data_ms"]) <= float(between["wall_ms"]) - 300


@pytest.mark.parametrize("background", [True, False])
def test_report_contains_the_steps_after_the_last_window(background):
    prof = trained("wait=1 warmup=0 active=2 repeat=1", 60, out="runs", run="r", background=background)
    assert prof.wait(200)
    data = json.loads(Path("runs/r/report.json").read_text())
    assert data["timeline"]["train"]["step"][-1] == 59
