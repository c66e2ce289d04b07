"""The run folder: names, the manifest, whole files only, runs that never mix, and places elsewhere."""

from __future__ import annotations

import json
import os
import platform
import re
from pathlib import Path

import pytest

from perfhooks.errors import OptionError, PerfhooksError
from perfhooks.finish import finish_all
from perfhooks.job import Job
from perfhooks.remote import is_network_disk
from perfhooks.run import FORMAT, Capture, Place, Run, check_out, file_name, publish

ALONE = Job(node="here")


def test_a_window_is_named_after_stage_and_planned_steps(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {})
    assert run.place("train", 12, 14).folder.name == "train-000012-000014"
    assert run.place("train", 12, None).folder.name == "train-000012"
    assert run.place("a/b c", 1234567, 1234568).folder.name == "a-b-c-1234567-1234568"


@pytest.mark.parametrize("name", ["../up", "a/b", ".hidden", "x y", "ü", ""])
def test_a_name_is_one_name_on_every_file_system(name):
    assert re.fullmatch(r"[\w][\w.-]*", file_name(name))


def test_the_manifest_says_who_when_where_and_in_which_format(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"schedule": {"wait": 1}})
    manifest = json.loads((tmp_path / "r/run.json").read_text())
    assert manifest["format"] == FORMAT
    assert {"started", "host", "pid", "world_size", "command", "versions", "windows"} <= set(manifest)
    assert manifest["schedule"] == {"wait": 1}
    assert run.manifest() == manifest


def test_a_newer_format_is_refused(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {"format": FORMAT + 1})
    with pytest.raises(PerfhooksError, match="newer than this perfhooks"):
        Run.existing(run.folder)
    place = run.place("train", 1, 2)
    place.save(Capture(format=FORMAT + 1))
    with pytest.raises(PerfhooksError, match="newer than this perfhooks"):
        place.load()


def test_a_folder_without_manifest_is_no_run(tmp_path):
    with pytest.raises(PerfhooksError, match="no run folder"):
        list(finish_all(tmp_path))
    with pytest.raises(PerfhooksError, match="does not exist"):
        list(finish_all(tmp_path / "nowhere"))
    Run.open(tmp_path, "r", ALONE, {})
    with pytest.raises(PerfhooksError, match=r"holds runs.*the last one is"):
        list(finish_all(tmp_path))


def test_a_capture_comes_back_as_it_was_saved(tmp_path):
    capture = Capture(rank=3, stage="validate", first=1, last=2, partial="Why: not", handlers=({"type": "steps"},))
    place = Place(tmp_path / "validate-000001-000002", 3)
    place.save(capture)
    assert place.load() == capture


@pytest.mark.parametrize("text", ["", "{", "[]", '{"rank": "three"}'])
def test_a_broken_capture_is_an_error_that_names_it(tmp_path, text):
    place = Place(tmp_path, 0)
    place.capture_file.write_text(text)
    with pytest.raises(PerfhooksError, match=r"rank0\.capture\.json"):
        place.load()


def test_a_file_with_its_final_name_is_whole(tmp_path):
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


def test_all_ranks_of_a_job_meet_in_one_folder_and_others_do_not(tmp_path):
    ranks = [Run.open(tmp_path, None, Job(rank=rank, world_size=2, identity="job-1"), {}) for rank in (0, 1)]
    other = Run.open(tmp_path, None, Job(rank=0, world_size=2, identity="job-2"), {})
    assert ranks[0].folder == ranks[1].folder != other.folder


def test_runs_without_a_launcher_never_share_a_folder(tmp_path):
    folders = {Run.open(tmp_path, None, ALONE, {}).folder for _ in range(5)}
    assert len(folders) == 5


def test_latest_leads_to_the_last_run(tmp_path):
    for name in ("a", "b"):
        Run.open(tmp_path, name, ALONE, {})
    assert (tmp_path / "latest").resolve() == (tmp_path / "b").resolve()


def test_latest_is_left_out_where_there_are_no_links(tmp_path, monkeypatch):
    def refuse(*_args, **_options):
        raise OSError("no links here")

    monkeypatch.setattr("pathlib.Path.symlink_to", refuse)
    Run.open(tmp_path, "a", ALONE, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


MOUNTS = """\
/dev/vda / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/vdb /home/local\\040disk xfs rw 0 0
bucket /mnt/bucket fuse.s3fs rw 0 0
"""


@pytest.mark.parametrize(
    ("folder", "network"),
    [("/tmp/x", False), ("/home/me/runs", True), ("/home/local disk/runs", False), ("/mnt/bucket/r", True)],
)
def test_a_network_disk_is_known_by_its_mount(tmp_path, folder, network):
    mounts = tmp_path / "mounts"
    mounts.write_text(MOUNTS)
    assert is_network_disk(Path(folder), mounts) is network
    assert is_network_disk(Path(folder), tmp_path / "none") is False


def test_traces_are_saved_on_a_local_disk_where_the_run_is_on_a_network_one(tmp_path, monkeypatch):
    run = Run.open(tmp_path / "runs", "r", ALONE, {})
    place = run.place("train", 1, 2)
    assert run.spool_for(place) == place.spool
    monkeypatch.setattr("perfhooks.remote.is_network_disk", lambda folder: True)
    assert not run.spool_for(place).is_relative_to(tmp_path / "runs")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_an_unwritable_out_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OptionError):
        check_out(tmp_path / "runs")


def test_an_unknown_protocol_is_refused():
    with pytest.raises(OptionError, match="out must be a folder"):
        check_out("nosuchthing://bucket/runs")


def test_a_killed_recording_is_told_from_one_that_goes_on(tmp_path):
    run = Run.open(tmp_path, "r", ALONE, {})
    run.enter_window("train-000001-000002")
    assert run.died_recording() == []
    mark = run.folder / ".rank0.recording"
    mark.write_text(json.dumps({"window": "train-000001-000002", "pid": 2**22 + 1, "host": platform.node()}))
    assert [place.folder.name for place in run.died_recording()] == ["train-000001-000002"]
    mark.write_text(json.dumps({"window": "train-000001-000002", "pid": 1, "host": "another"}))
    assert run.died_recording() == []
    os.utime(mark, (0, 0))
    assert [place.folder.name for place in run.died_recording()] == ["train-000001-000002"]
    run.enter_window(None)
    assert run.died_recording() == []
