"""The run folder: names, the manifest, whole files only, runs that never mix, and places elsewhere."""

from __future__ import annotations

import concurrent.futures
import csv
import json
import os
import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import psutil
import pytest

import perfhooks.report.finishing.finish
import perfhooks.run.folder
import perfhooks.run.liveness
from perfhooks.core.errors import OptionError, PerfhooksError
from perfhooks.core.job import Job
from perfhooks.report.finishing.finish import finish
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.run import remote
from perfhooks.run.capture import Capture, Place
from perfhooks.run.folder import Run
from perfhooks.run.liveness import Process, began, began_s, born_s, clock_s
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import file_name, publish
from perfhooks.run.remote import check_out
from perfhooks.testing import op, step_mark, write_trace

ALONE = Job(node="here")


def test_temporary_folder_is_private_to_the_user(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = remote.temporary_folder()
    assert folder.parent == tmp_path
    assert folder.stat().st_mode & 0o777 == 0o700
    assert remote.temporary_folder() == folder, "also where it is there"


def test_a_window_is_named_after_stage_and_planned_steps(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {})
    assert run.place("train", 12, 14).folder.name == "train-000012-000014"
    assert run.place("train", 12, None).folder.name == "train-000012"
    assert run.place("a/b c", 1234567, 1234568).folder.name == "a-b-c-1234567-1234568"


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x y", "ü", ""])
def test_name_is_equal_on_all_file_systems(name):
    assert re.fullmatch(r"[\w][\w.-]*", file_name(name))


def test_manifest_has_process_time_host_and_format(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"schedule": {"wait": 1}})
    manifest = json.loads((tmp_path / "r/run.json").read_text())
    assert manifest["format"] == 1
    assert {"started", "host", "pid", "world_size", "command", "versions", "windows"} <= set(manifest)
    assert manifest["schedule"] == {"wait": 1}
    assert msgspec.to_builtins(run.manifest()) == msgspec.to_builtins(msgspec.convert(manifest, Manifest))


def test_newer_format_is_rejected(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"format": 2})
    with pytest.raises(PerfhooksError, match="from a newer perfhooks"):
        Run.existing(run.folder)
    place = run.place("train", 1, 2)
    place.save(Capture(format=2))
    with pytest.raises(PerfhooksError, match="from a newer perfhooks"):
        place.load()


def test_a_folder_without_manifest_is_no_run(tmp_path):
    with pytest.raises(PerfhooksError, match="no run folder"):
        list(finish_all(tmp_path))
    with pytest.raises(PerfhooksError, match="does not exist"):
        list(finish_all(tmp_path / "nowhere"))
    Run.open(tmp_path, "r", ALONE, {})
    with pytest.raises(PerfhooksError, match=r"contains runs; did you mean its latest run"):
        list(finish_all(tmp_path))


def test_capture_is_loaded_as_saved(tmp_path):
    capture = Capture(rank=3, stage="validate", first=1, last=2, partial="Why: not", handlers=({"type": "steps"},))
    place = Place(tmp_path / "validate-000001-000002", 3)
    place.save(capture)
    assert place.load() == capture


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rank": "three"}'])
def test_broken_capture_is_named_in_the_error(tmp_path, text):
    place = Place(tmp_path, 0)
    place.capture_file.write_text(text)
    with pytest.raises(PerfhooksError, match=r"rank0\.capture\.json"):
        place.load()


def test_file_with_its_final_name_is_complete(tmp_path):
    path = tmp_path / "file"
    with publish(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"half"
    with pytest.raises(ZeroDivisionError), publish(path) as file:
        file.write(bytes([1 // 0]))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"half"


def test_ranks_of_a_job_share_one_folder(tmp_path):
    ranks = [Run.open(tmp_path, None, Job(rank=rank, world_size=2, identity="job-1"), {}) for rank in (0, 1)]
    other = Run.open(tmp_path, None, Job(rank=0, world_size=2, identity="job-2"), {})
    assert ranks[0].folder == ranks[1].folder != other.folder


def test_runs_without_a_launcher_have_separate_folders(tmp_path):
    folders = {Run.open(tmp_path, None, ALONE, {}).folder for _ in range(5)}
    assert len(folders) == 5


def test_latest_leads_to_the_last_run(tmp_path):
    for name in ("a", "b"):
        Run.open(tmp_path, name, ALONE, {})
    assert (tmp_path / "latest").resolve() == (tmp_path / "b").resolve()


def test_latest_is_omitted_without_symbolic_links(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    Run.open(tmp_path, "a", ALONE, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_foreign_folder_of_that_name_is_unchanged(tmp_path):
    (tmp_path / "latest").mkdir()
    (tmp_path / "latest" / "mine.txt").touch()
    Run.open(tmp_path, "a", ALONE, {})
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("*")) == ["a", "latest"]
    assert (tmp_path / "latest" / "mine.txt").exists()


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local\\040disk xfs rw 0 0
bucket /mnt/bucket fuse.s3fs rw 0 0
"""


@pytest.mark.skipif(not psutil.LINUX, reason="the table of mounts is Linux's")
@pytest.mark.parametrize(
    ("folder", "network"),
    [("/tmp/x", False), ("/home/me/runs", True), ("/home/local disk/runs", False), ("/mnt/bucket/r", True)],
)
def test_network_disk_is_detected_by_its_mount(tmp_path, monkeypatch, folder, network):
    monkeypatch.setattr(remote, "_MOUNTS", tmp_path / "self/mounts")
    assert remote.is_network_disk(Path(folder)) is False, "where the system does not say"
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mounts").write_text(MOUNTS)
    assert remote.is_network_disk(Path(folder)) is network


def test_traces_of_a_network_run_are_saved_on_a_local_disk(tmp_path, monkeypatch):
    run = Run.open(tmp_path / "runs", "r", ALONE, {})
    place = run.place("train", 1, 2)
    assert run.spool(place).path == place.folder
    monkeypatch.setattr("perfhooks.run.remote.is_network_disk", lambda folder: True)
    assert not run.spool(place).path.is_relative_to(tmp_path / "runs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_unwritable_out_is_rejected(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError):
        check_out(tmp_path / "runs")


def test_unknown_protocol_is_rejected():
    with pytest.raises(OptionError, match="out must be a writable folder"):
        check_out("nosuchthing://bucket/runs")


WINDOW = "train-000001-000002"


def mark(run, process):
    """What a process leaves while it records."""
    path = run.folder / f".rank{run.rank}.recording"
    path.write_bytes(msgspec.json.encode({"window": WINDOW, "process": process}))
    return path


@pytest.mark.parametrize(
    ("change", "is_gone"),
    [
        ({}, False),
        ({"pid": 2**22 + 1}, True),
        ({"began": "1"}, True),  # another one has its number now
        ({"pid": 2**22 + 1, "host": "elsewhere"}, None),
        ({"pid": 1, "space": "pid:[1]"}, None),
        ({"pid": 2**22 + 1, "boot": "before"}, None),
    ],
)
def test_killed_recording_is_distinguished_from_a_running_one(tmp_path, change, is_gone):
    """Of a process that cannot be asked about an hour is the answer."""
    run = Run.open(tmp_path, "r", ALONE, {})
    path = mark(run, msgspec.structs.replace(Process.current(), **change))
    place = Place(run.folder / WINDOW)
    for minutes, is_over in ((0, bool(is_gone)), (50, bool(is_gone)), (70, is_gone is not False)):
        os.utime(path, (time.time() - 60 * minutes,) * 2)
        assert run.died_recording() == [place] * is_over
        assert run.is_recording(place) is run.is_any_recording() is not is_over


@pytest.mark.skipif(not psutil.LINUX, reason="elsewhere the system itself keeps the date")
def test_start_of_a_process_is_that_of_psutil():
    own = psutil.Process()
    assert born_s(own.pid) == pytest.approx(own.create_time() - psutil.boot_time(), abs=1e-3)


@pytest.mark.process
def test_start_of_a_process_is_by_the_process_clock():
    then = clock_s()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as child:
        assert then - 0.02 <= born_s(child.pid) <= clock_s(), "systems count ticks of a hundredth of a second"


def test_start_of_this_process_is_in_system_time():
    perfhooks.run.liveness._began_s.cache_clear()
    asked = clock_s()
    found = began_s()  # from two clocks, between which this process may be paused
    most = 1 + clock_s() - asked
    assert found == pytest.approx(psutil.Process().create_time(), abs=most), "a clock may be set meanwhile"


@pytest.mark.parametrize("pid", [-1, 2**22 + 1, 2**70])
def test_unused_process_number_is_not_alive(pid):
    assert msgspec.structs.replace(Process.current(), pid=pid).is_alive is False


@pytest.mark.process
def test_a_zombie_has_ended():
    child = subprocess.Popen(["sleep", "600"])
    process = msgspec.structs.replace(Process.current(), pid=child.pid, began=began(child.pid))
    assert process.is_alive
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert process.is_alive is False
    child.wait()


def test_open_window_has_a_mark_until_its_end(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {})
    run.enter_window(WINDOW)
    assert run.is_recording(Place(run.folder / WINDOW))
    assert not run.is_recording(Place(run.folder / WINDOW, 1))
    run.enter_window(None)
    assert not run.is_recording(Place(run.folder / WINDOW))


def left(run, token="0a1b", *, name="train-000002-000004", handlers=("steps",), **facts):
    """A window of three steps that waits to be finished; without facts, of which only the trace was saved."""
    place = Place(run.folder / name)
    place.folder.mkdir(exist_ok=True)
    events = [
        event
        for step in (2, 3, 4)
        for event in (step_mark(step, 100 * step, 100 * step + 90), op("a", 100 * step, 100 * step + 50))
    ]
    write_trace(place.saved_trace(token), events)
    if facts:
        place.save(Capture(state="spooled", token=token, handlers=tuple({"type": each} for each in handlers), **facts))
    return place


def test_trace_of_an_ended_process_is_finished(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"handlers": [{"type": "steps"}]})
    place = left(run)
    (outcome,) = finish_all(run.folder)
    assert outcome.finished_now
    assert (outcome.capture.stage, outcome.capture.first, outcome.capture.last) == ("train", 2, 4)
    rows = csv.DictReader(place.artifact("steps.csv").read_text().splitlines())
    assert [row["step"] for row in rows] == ["2", "3", "4"]
    assert list(place.folder.glob(".*spool*")) == []


def test_window_with_a_missing_file_can_be_finished_later(tmp_path):
    """A folder in the file's place is as good a reason as a quota: the other files are there, and so is the trace."""
    place = left(Run.open(tmp_path, "r", ALONE, {}), handlers=("operators", "steps"), first=2, last=4, reached=5)
    place.artifact("operators.csv").mkdir()
    with pytest.raises(OSError, match=r"operators\.csv"):
        finish(place)
    assert place.artifact("steps.csv").is_file()
    assert place.load().state == "spooled"
    place.artifact("operators.csv").rmdir()
    assert finish(place).artifacts == ("rank0.operators.csv", "rank0.steps.csv")
    assert place.artifact("operators.csv").is_file()


def test_unfinished_windows_are_not_counted_and_not_deleted(tmp_path):
    """Nor do those of other stages."""
    run = Run.open(tmp_path, "r", ALONE, {})
    facts = {"first": 2, "last": 4, "reached": 5, "keep_windows": 1}
    left(run, name="test-000002-000004", stage="test", time=1.0, **facts)
    finish(Place(run.folder / "test-000002-000004"))
    spooled, older, newer = (
        left(run, name=f"train-00000{number}-000004", time=float(number), **facts) for number in (2, 3, 4)
    )
    finish(older)
    finish(newer)
    assert not older.folder.exists()
    assert {path.name for path in run.window_folders()} == {
        "test-000002-000004", spooled.folder.name, newer.folder.name
    }  # fmt: skip
    assert finish(spooled).state == "done"


def test_windows_are_ordered_by_their_first_finished_rank(tmp_path):
    ranks = [Run.open(tmp_path, "r", Job(rank=rank, world_size=3), {}) for rank in range(3)]
    for rank, first in ((0, 9), (0, 1), (1, 9), (0, 5), (2, 9), (1, 1), (2, 1)):
        ranks[rank].note_window(ranks[rank].place("train", first, first))
    assert ranks[0].manifest().windows == tuple(f"train-00000{first}-00000{first}" for first in (9, 1, 5))


def test_notes_of_a_trace_are_no_doubts_about_the_window(tmp_path):
    """It is on the page; the notes of a window are logged as warnings."""
    place = left(Run.open(tmp_path, "r", ALONE, {}), first=2, last=4, reached=5)
    trace = json.loads(place.saved_trace("0a1b").read_text())
    told = {"INFO": ["Out-of-range = 3, Invalid ext correlations = 2"], "WARNING": ["Something was odd"]}
    place.saved_trace("0a1b").write_text(json.dumps(trace | told))
    (note,) = finish(place).notes
    assert "Invalid ext correlations = 2" in note


def test_window_deleted_by_its_training_is_no_problem(tmp_path):
    """It keeps its latest ones only; one that is there and cannot be read is."""
    run = Run.open(tmp_path, "r", ALONE, {})
    places = [run.place("train", first, first + 1) for first in (1, 3, 5)]
    for place in places:
        place.save(Capture())
    outcomes = finish_all(run.folder)
    assert next(outcomes).place == places[0]
    places[1].capture_file.unlink()
    places[2].capture_file.write_text("{")
    (broken,) = outcomes
    assert (broken.place, broken.capture) == (places[2], None)


def test_trace_in_progress_is_left_to_its_process(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"handlers": [{"type": "steps"}]})
    place = left(run)
    path = mark(run, Process.current())
    path.write_bytes(path.read_bytes().replace(WINDOW.encode(), place.folder.name.encode()))
    assert list(finish_all(run.folder)) == []
    assert place.saved_trace("0a1b").exists()
    assert not place.capture_file.exists()


def test_window_recorded_again_replaces_the_first(tmp_path, monkeypatch):
    """As after an elastic restart: the worker of the first attempt may go on for a while."""
    run = Run.open(tmp_path, "r", ALONE, {})
    place = left(run, first=2, last=4, reached=5, time=1.0)

    def artifacts(*given, real=perfhooks.report.finishing.finish._artifacts):
        monkeypatch.undo()
        left(run, "2c3d", first=2, last=4, reached=5, time=2.0)
        return real(*given)

    monkeypatch.setattr("perfhooks.report.finishing.finish._artifacts", artifacts)
    finish(place)
    assert (place.load().state, place.load().token) == ("spooled", "2c3d")
    assert [path.name for path in place.folder.glob(".*spool*")] == [place.saved_trace("2c3d").name]
    assert (finish(place).time, place.load().state) == (2.0, "done")
    assert list(place.folder.glob(".*spool*")) == []


def test_only_a_complete_newer_trace_replaces_a_window(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"handlers": [{"type": "steps"}]})
    place = left(run, first=2, last=4, reached=5, time=1.0)
    finish(place)
    later = place.capture_file.stat().st_mtime + 5
    whole = place.saved_trace("2c3d")
    left(run, "2c3d")
    text = whole.read_bytes()
    for content, token in ((text[:-3], "0a1b"), (text, "2c3d")):
        whole.write_bytes(content)
        os.utime(whole, (later, later))
        list(finish_all(run.folder))
        assert (place.load().state, place.load().token) == ("done", token)
    assert not whole.exists()


def test_leftovers_of_attempts_are_deleted_at_the_finish(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {})
    place = left(run, first=2, last=4, reached=5, time=1e9)
    for name, at in ((".rank0.2c3d.spool.json", 1), (".rank0.4e5f.spool.json.tmp", 1), (".rank1.2c3d.spool.json", 1)):
        (place.folder / name).touch()
        os.utime(place.folder / name, (at, at))
    finish(place)
    assert [path.name for path in place.folder.glob(".*spool*")] == [".rank1.2c3d.spool.json"]


def test_worker_killed_after_a_window_leaves_only_its_trace(tmp_path, monkeypatch):
    run = Run.open(tmp_path, "r", ALONE, {})
    place = left(run, first=2, last=4, reached=5, time=1.0)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Place, "forget", killed)
    with pytest.raises(KeyboardInterrupt):
        finish(place)
    monkeypatch.undo()
    assert place.load().state == "done"
    list(finish_all(run.folder))
    assert run.manifest().windows == (place.folder.name,)
    assert list(place.folder.glob(".*spool*")) == []


def test_rank_that_died_in_a_later_attempt_has_no_window(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {})
    place = Place(run.folder / WINDOW)
    place.save(Capture())
    path = mark(run, msgspec.structs.replace(Process.current(), pid=2**22 + 1))
    saved = place.capture_file.stat().st_mtime
    os.utime(path, (saved + 5,) * 2)
    assert run.died_recording() == [place]
    os.utime(path, (saved - 5,) * 2)
    assert run.died_recording() == []


def test_runs_of_one_job_are_numbered_and_other_jobs_warn(tmp_path, caplog):
    job = Job(node="here", world_size=2, identity="job")
    assert [Run.open(tmp_path, None, job, {}, before=each).folder.name for each in (0, 1)] == ["job", "job-1"]
    again = Run.open(tmp_path, None, job, {})
    assert (again.is_new, caplog.messages) == (False, [])
    again.note_window(again.place("train", 1, 2))
    Run.open(tmp_path, None, replace(job, is_restart=True), {})
    Run.open(tmp_path, None, replace(job, rank=1), {})
    Run.open(tmp_path, "job", job, {})
    assert caplog.messages == []
    Run.open(tmp_path, None, job, {})
    assert caplog.messages == [], "another profiler of this process"
    perfhooks.run.folder._OPENED.clear()
    Run.open(tmp_path, None, job, {})
    assert "contains windows of an earlier launch" in caplog.text


def test_check_of_out_leaves_the_folder_unchanged(tmp_path):
    """All ranks check at the same time, and none may remove a folder that another one needs."""
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        done = [pool.submit(remote.check_out, tmp_path / "a" / "b" / "perf") for _ in range(400)]
    assert [each.result() for each in done] == [None] * 400
    assert list(tmp_path.iterdir()) == []
