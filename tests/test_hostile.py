"""A run folder somebody sent is data: nothing in it starts code, leaves the folder, hangs, or ends in a traceback."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import time

import numpy as np
import pytest

from perfhooks import testing
from perfhooks.cli.app import main
from perfhooks.core.errors import PerfhooksError
from perfhooks.report.finishing.finish import finish
from perfhooks.report.finishing.leftovers import finish_all
from perfhooks.report.handlers.permit import Permit
from perfhooks.run import steps
from perfhooks.run.capture import Capture, Place
from perfhooks.run.folder import Run
from perfhooks.run.layout import Listing, below
from perfhooks.run.liveness import Process
from perfhooks.run.locking import locked
from perfhooks.run.publishing import OwnFolder, publish_json
from perfhooks.run.timeline import HEADER, Rows

pytestmark = pytest.mark.slow

WINDOW = "train-000003-000004"
TOKEN = "0123abcd"
"""Of the trace that was saved and is not finished."""
EVENTS = [testing.step_mark(3, 0, 100_000), testing.step_mark(4, 100_000, 200_000), testing.op("aten::mm", 10, 60)]
OWN = """
from dataclasses import dataclass
from pathlib import Path
from perfhooks import Artifact

@dataclass(frozen=True)
class Own:
    def artifacts(self, capture, trace):
        Path(__file__).with_name("ran").touch()
        yield Artifact("own.txt", lambda file: file.write(b"own"))
"""


@pytest.fixture
def victim(tmp_path):
    """A file of the user's own, beside the folder that was sent."""
    path = tmp_path / "precious.json"
    path.write_text("{}")
    return path


@pytest.fixture
def run(tmp_path):
    """A run folder with one window that waits to be finished."""
    folder = tmp_path / "runs" / "sent"
    folder.mkdir(parents=True)
    publish_json(folder / "run.json", {"format": 1, "windows": []})
    window(folder)
    return folder


def window(folder, name=WINDOW, **facts):
    """A window with a saved trace and what a sender says of it, which may be anything."""
    (folder / name).mkdir(exist_ok=True)
    facts = {"rank": 0, "first": 3, "last": 4, "reached": 5, "state": "spooled", "token": TOKEN, "format": 1} | facts
    (folder / name / "rank0.capture.json").write_text(json.dumps({"handlers": [{"type": "steps"}], **facts}))
    testing.write_trace(folder / name / f".rank0.{TOKEN}.spool.json", EVENTS)
    return folder / name


def report(monkeypatch, capsys, *arguments):
    """What `perfhooks report` says, and its exit code; a traceback fails the test."""
    return called(monkeypatch, capsys, "report", *arguments)


def called(monkeypatch, capsys, *arguments):
    """What the command says, and its exit code."""
    monkeypatch.setattr(sys, "argv", ["perfhooks", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    return end.value.code or 0, said.out + said.err


def notes(folder, name=WINDOW):
    return " ".join(Place(folder / name).load().notes)


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module of the user's own with a handler, which leaves a file when it runs."""
    (tmp_path / "own_hostile.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "ran"
    sys.modules.pop("own_hostile", None)


# --- it starts no code ---


@pytest.mark.parametrize(
    "recipe",
    [
        {"type": "subprocess:Popen", "args": ["touch", "{victim}.ran"]},
        {"type": "os:system", "command": "touch {victim}.ran"},
        {"type": "tensorboard", "folder": "{victim}.ran"},
        {"type": ["steps"]},
        {},
    ],
)
def test_files_can_name_only_handlers_of_perfhooks(run, victim, recipe):
    named = json.loads(json.dumps(recipe).replace("{victim}", str(victim)))
    window(run, handlers=[named, {"type": "steps"}])
    (outcome,) = finish_all(run)
    assert outcome.capture.artifacts == ("rank0.steps.csv",), "the others have their files"
    assert "only a file of the run requests it" in notes(run)
    assert list(victim.parent.glob("precious.json.ran*")) == []


def test_run_json_names_none_either(run, own):
    (run / WINDOW / "rank0.capture.json").unlink()
    publish_json(run / "run.json", {"format": 1, "handlers": [{"type": "own_hostile:Own"}, {"type": "steps"}]})
    (outcome,) = finish_all(run)
    assert outcome.capture.artifacts == ("rank0.steps.csv",)
    assert not own.exists()


def test_handler_of_the_user_runs_with_permission(run, own, monkeypatch, capsys):
    window(run, handlers=[{"type": "own_hostile:Own"}])
    assert "--handler own_hostile:Own" in " ".join(finish(Place(run / WINDOW)).notes), "the line says how"
    assert not own.exists()
    window(run, handlers=[{"type": "own_hostile:Own"}])
    assert finish(Place(run / WINDOW), Permit(handlers=({"type": "own_hostile:Own"},))).artifacts == ("rank0.own.txt",)
    own.unlink()
    window(run, handlers=[{"type": "own_hostile:Own"}])
    assert report(monkeypatch, capsys, run, "--handler", "own_hostile:Own")[0] == 0
    assert own.exists()


def test_permission_holds_for_exactly_these_options(run, tmp_path):
    window(run, handlers=[{"type": "tensorboard", "folder": str(tmp_path / "elsewhere")}])
    finish(Place(run / WINDOW), Permit(handlers=({"type": "tensorboard", "folder": str(tmp_path / "logs")},)))
    assert not (tmp_path / "elsewhere").exists()


def test_installed_package_can_announce_handlers(run, own, tmp_path):
    info = tmp_path / "own-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[perfhooks.handlers]\nmine = own_hostile:Own\n")
    window(run, handlers=[{"type": "mine"}])
    assert finish(Place(run / WINDOW)).artifacts == ("rank0.own.txt",)
    from perfhooks.report import handlers

    assert handlers.spec(handlers.build("mine")) == {"type": "mine"}
    assert own.exists()


def test_invalid_steps_are_logged_and_not_written(run):
    """Half a number; a phase that there is not; what is no text; more than steps can be."""
    path = run / ".rank0.steps.000000000000.raw"
    for content in (b"train\n" + bytes(31), b"train\n" + np.full(4, 9).tobytes(), b"\xff" * 4001):
        path.write_bytes(content)
        assert any("cannot be read" in outcome.problem for outcome in finish_all(run))
    os.truncate(path, 65 << 20)
    assert any("larger than 64 MB" in outcome.problem for outcome in finish_all(run))
    assert not (run / "rank0.timeline.csv").exists()


# --- it leaves its folder nowhere ---


@pytest.mark.parametrize("name", ["/etc/x", "../x", "..", ".", "", "a/b", "a\\b", "a\0b", "x" * 300])
def test_names_are_single_path_components(tmp_path, name):
    with pytest.raises(PerfhooksError, match="cannot be the name"):
        below(tmp_path, name)


def test_artifact_names_cannot_leave_the_folder(run, victim):
    """They are deleted with old windows, and copied."""
    for first in range(3):
        names = [str(victim), f"rank0.x/../../../../{victim.name}", f"../../../{victim.name}"]
        window(run, f"train-00000{first}-00000{first}", state="done", artifacts=names, keep_windows=1, time=first)
    window(run, keep_windows=1, time=9.0)
    list(finish_all(run))
    assert victim.exists()


@pytest.mark.parametrize("field", ["spool", "token"])
def test_no_other_file_is_read_or_deleted_as_the_trace(run, victim, field):
    testing.write_trace(victim, EVENTS)
    path = str(victim) if field == "spool" else f"x/../../../../../{victim.name}"
    window(run, **{field: path})
    content = victim.read_bytes()
    assert all(outcome.problem or outcome.capture.token == TOKEN for outcome in finish_all(run))
    assert victim.read_bytes() == content


def test_traces_outside_of_the_temporary_folder_are_rejected(run, tmp_path):
    place = Place(run / WINDOW)
    elsewhere = tmp_path / "precious" / "0123456789ab" / run.name / WINDOW / place.saved_trace(TOKEN).name
    elsewhere.parent.mkdir(parents=True)
    testing.write_trace(elsewhere, EVENTS)
    window(run, spool=str(elsewhere))
    (outcome,) = finish_all(run)
    assert "which is not in" in outcome.problem
    assert elsewhere.exists()


def test_a_mark_names_no_other_folder(run, victim):
    mark = {"window": str(victim), "process": {"pid": 1, "host": "elsewhere"}}
    (run / ".rank0.recording").write_text(json.dumps(mark))
    os.utime(run / ".rank0.recording", (0, 0))
    assert all(outcome.place.folder.parent == run for outcome in finish_all(run))


@pytest.fixture(params=[".rank0.lock", ".run.lock", ".page.lock", "rank0.timeline.csv"])
def changed_in_place(request, run):
    """A file that is not replaced by another one."""
    return run / request.param


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_that_leads_outside_is_not_followed(changed_in_place, victim, link, monkeypatch, capsys):
    run = changed_in_place.parent
    link(victim, changed_in_place)
    steps = Rows("train", *(np.zeros(1, np.int64),) * 6)
    with (run / ".rank0.steps.000000000000.raw").open("wb") as file:
        steps.save(file)
    report(monkeypatch, capsys, run)
    assert victim.read_text() == "{}"


def test_a_link_is_no_window_and_no_facts(run, tmp_path, monkeypatch, capsys):
    elsewhere = tmp_path / "elsewhere"
    (run / WINDOW).rename(elsewhere)
    (run / WINDOW).symlink_to(elsewhere)
    assert list(finish_all(run)) == []
    (run / WINDOW).unlink()
    (run / WINDOW).mkdir()
    for name in ("rank0.capture.json", f".rank0.{TOKEN}.spool.json"):
        (run / WINDOW / name).symlink_to(elsewhere / name)
    assert "is a link" in report(monkeypatch, capsys, run)[1]
    assert sorted(path.name for path in elsewhere.iterdir()) == [f".rank0.{TOKEN}.spool.json", "rank0.capture.json"]


TRAINING = """
    import torch, perfhooks
    steps = "wait=1 warmup=0 active=2 repeat=2"
    for out in "links to a file", "links to a folder", "FIFOs", "links of the user":
        with perfhooks.Profiler(schedule=steps, out=out, run="sent") as prof:
            for step in range(8):
                torch.ones(8, 8) @ torch.ones(8, 8)
                prof.step()
        print(out, prof.wait(100))
"""
NAMES_OF_A_RUN = """
rank0.timeline.csv rank0.processor.csv rank0.status.json rank0.rare.csv rank0.slow.csv rank0.slow.folded
rank0.worker.log run.json report.html report.json findings.json .page.cache.json .rank0.recording .rank0.process
.rank0.lock .page.lock .run.lock .requests.lock .rank0.process.lock requests train-000001-000002
"""


def test_a_training_writes_through_no_link_and_waits_for_no_fifo(tmp_path, victim, run_script):
    """Whatever has the name of a file of ours, the training is as without us, and nothing outside has changed.

    The run and its parent may be links: the user has named them, and they may be on another disk.
    """
    outside = tmp_path / "outside"
    outside.mkdir()
    makers = {
        "links to a file": lambda place: place.symlink_to(victim),
        "links to a folder": lambda place: place.symlink_to(outside),
        "FIFOs": os.mkfifo,
    }
    for kind, make in makers.items():
        (tmp_path / kind / "sent").mkdir(parents=True)
        for name in NAMES_OF_A_RUN.split():
            make(tmp_path / kind / "sent" / name)
    (tmp_path / "disk").mkdir()
    (tmp_path / "large").mkdir()
    (tmp_path / "links of the user").symlink_to(tmp_path / "disk")
    (tmp_path / "disk" / "sent").symlink_to(tmp_path / "large")
    done = run_script(TRAINING)
    assert (done.returncode, done.stdout.splitlines()) == (
        0,
        [f"{kind} True" for kind in (*makers, "links of the user")],
    )
    assert "Traceback" not in done.stderr
    assert victim.read_text() == "{}"
    assert list(outside.iterdir()) == []
    assert Place(tmp_path / "large" / "train-000001-000002").load().state == "done"


def test_window_replaced_by_a_link_is_not_followed(tmp_path, victim):
    """Kineto opens its file by a path, which leads to the folder that was opened."""
    outside, window = victim.parent / "outside", OwnFolder(tmp_path, "train-000001-000002")
    outside.mkdir()
    window.make()
    with window.lent() as lent:
        window.path.rename(tmp_path / "moved")
        window.path.symlink_to(outside)
        (lent / "trace.json").write_text("{}")
    assert (tmp_path / "moved" / "trace.json").exists()
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("by_descriptor", [True, False], ids=["by descriptors", "by paths, as on Windows"])
def test_no_folder_below_a_run_is_a_link(tmp_path, victim, by_descriptor, monkeypatch):
    monkeypatch.setattr("perfhooks.run.publishing._OPENS_RELATIVE", by_descriptor)
    outside = tmp_path / "outside"
    (outside / "0123abcd").mkdir(parents=True)
    (outside / "rank0.json").touch()
    (tmp_path / "requests").symlink_to(outside)
    own = OwnFolder(tmp_path, "requests")
    uses = (
        own.make,
        OwnFolder(tmp_path, "requests", "0123abcd").make,
        OwnFolder(tmp_path, "requests", "0123abcd").delete,
        lambda: own.publish_json("rank0.json", {}),
        lambda: own.append("rank0.json"),
        lambda: own.remove("rank0.json"),
    )
    for use in uses:
        with pytest.raises(OSError, match="requests is a link"):
            use()
    assert {path.name for path in outside.iterdir()} == {"0123abcd", "rank0.json"}
    (tmp_path / "requests").unlink()
    own.make()
    own.publish_json("a.json", {})
    with own.append("a.json") as file:
        file.write(b" ")
    assert (tmp_path / "requests" / "a.json").read_bytes() == b"{} "
    (tmp_path / "requests" / "link.json").symlink_to(victim)
    with pytest.raises(OSError, match=r"requests/link\.json is a link"):
        own.append("link.json")
    own.publish_json("link.json", [])
    assert (tmp_path / "requests" / "link.json").read_bytes() == b"[]"
    for name in ("a.json", "link.json", "not there"):
        own.remove(name)
    own.delete()
    assert not (tmp_path / "requests").exists()
    assert victim.read_text() == "{}"


def test_the_log_of_the_worker_is_no_link(victim):
    from perfhooks.record.loop.worker import Worker

    log = victim.with_name("rank0.worker.log")
    log.symlink_to(victim)
    with pytest.raises(OSError, match="is a link"):
        Worker(log)
    assert victim.read_text() == "{}"


READ_OF_A_RUN = [
    ("rank0.startup.csv", ("show", "--table", "startup")),
    ("rank0.timeline.csv", ("compare",)),
    (f"{WINDOW}/rank0.page.json", ("compare",)),
    (f"{WINDOW}/rank0.costs.json", ("compare",)),
    (f"{WINDOW}/rank0.pt.trace.json", ("show", "--table", "steps")),
    ("rank0.slow.csv", ("show", "--table", "slow")),
]


@pytest.fixture(params=["link", "FIFO"])
def odd(request, tmp_path):
    """Puts a link to a secret, or a FIFO, where a file should be."""
    secret = tmp_path / "secret.csv"
    secret.write_text("phase,what,seconds,stage,step,wall_ms\nsecret,secret,7777,secret,7777,7777\n")

    def put(place):
        place.unlink(missing_ok=True)
        (place.symlink_to if request.param == "link" else lambda _: os.mkfifo(place))(secret)
        return place

    return put


@pytest.mark.parametrize("reading", READ_OF_A_RUN, ids=[name.rpartition("/")[2] for name, _ in READ_OF_A_RUN])
def test_no_verb_reads_through_a_link_or_waits_for_a_fifo(run, odd, reading, monkeypatch, capsys):
    name, verb = reading
    report(monkeypatch, capsys, run)
    place = odd(run / name)
    targets = (run, run) if verb[0] == "compare" else (run,)
    code, said = called(monkeypatch, capsys, verb[0], *targets, *verb[1:])
    assert code in (0, 1, 2)
    assert "secret" not in said.replace(str(place), "")
    assert "7777" not in said


def test_no_trace_behind_a_link_or_a_fifo_is_merged(run, tmp_path, monkeypatch, capsys):
    testing.write_trace(tmp_path / "secret.json", [testing.op("secret", 0, 5)])
    testing.write_trace(run / WINDOW / "rank0.pt.trace.json", EVENTS)
    (run / WINDOW / "rank1.pt.trace.json").symlink_to(tmp_path / "secret.json")
    os.mkfifo(run / WINDOW / "rank2.pt.trace.json")
    code, said = called(monkeypatch, capsys, "merge", run, "-o", tmp_path / "merged.json")
    assert code == 1
    assert "rank 1 is incomplete: " in said
    assert "is a FIFO" in said
    merged = (tmp_path / "merged.json").read_text()
    assert "aten::mm" in merged
    assert "secret" not in merged


def test_upload_needs_the_command_line(run, tmp_path, monkeypatch, capsys):
    there = (tmp_path / "sender").as_uri()
    publish_json(run / "run.json", {"format": 1, "windows": [], "remote": there})
    code, said = report(monkeypatch, capsys, run)
    assert code == 0
    assert f"--upload {there}" in said, "the line says how"
    assert not (tmp_path / "sender").exists()
    report(monkeypatch, capsys, run, "--upload", (tmp_path / "mine").as_uri())
    assert not (tmp_path / "sender").exists()
    assert {"run.json", "report.html", WINDOW} <= {path.name for path in (tmp_path / "mine").iterdir()}


# --- odd files are one line ---

NUMBERS = ["-1", "1e999", "1" * 400, "9" * 19]
JUNK = [
    *("", "[]", "7", '"x"', "null", "[" * 100_000, '{"options":' * 50_000, '{"time": NaN}', '{"a": "\0"}'),
    *('"\\ud800"', b"\xff\xfe\x00", '{"format": 99}', '{"format": "2"}'),
    json.dumps({"format": 1, "windows": ["w"] * 100_000, "world_size": 10**9}),
    *(f'{{"rank": {each}, "first": {each}, "world_size": {each}, "time": {each}}}' for each in NUMBERS),
]
FIRST = ["run.json", f"{WINDOW}/rank0.capture.json", f"{WINDOW}/.rank0.{TOKEN}.spool.json"]
FILES = [
    *(f"{WINDOW}/rank0.page.json", f"{WINDOW}/rank0.steps.csv", "rank0.timeline.csv", "rank0.startup.csv"),
    *(".rank0.recording", ".rank0.lock", ".page.lock", ".page.cache.json", ".rank0.steps.000000000000.raw"),
]


def no_traceback(code, said):
    assert code in (0, 1, 2)
    assert "Traceback" not in said
    if code == 2:
        assert said.startswith("perfhooks: ") + said.count("\nperfhooks: ") == 1, said


@pytest.mark.parametrize("names", [*([name] for name in FIRST), FILES], ids=lambda names: names[0])
def test_invalid_file_contents_are_one_line(run, names, monkeypatch, capsys):
    """Without a file of the first ones no other is read. The others have each content once, beside other contents."""
    publish_json(run / WINDOW / "rank0.page.json", {"format": 1})
    for turn in range(len(JUNK)):
        for place, name in enumerate(names):
            junk = JUNK[(turn + place) % len(JUNK)]
            (run / name).unlink(missing_ok=True)
            (run / name).write_bytes(junk if isinstance(junk, bytes) else junk.encode())
        began = time.process_time()
        no_traceback(*report(monkeypatch, capsys, run))
        assert time.process_time() - began < 5, "it ends soon"


@pytest.mark.parametrize("name", [*FIRST, *FILES])
@pytest.mark.parametrize("kind", ["folder", "FIFO", "link to itself"])
def test_special_files_are_one_line_and_do_not_block(run, name, kind, monkeypatch, capsys):
    (run / name).unlink(missing_ok=True)
    if kind == "folder":
        (run / name).mkdir()
    elif kind == "FIFO":
        os.mkfifo(run / name)
    else:
        (run / name).symlink_to(run / name)
    no_traceback(*report(monkeypatch, capsys, run))


@pytest.mark.parametrize("name", ["x" * 5000, "a/b/c", "\udcff", "a\x1b[31mb"])
def test_odd_folder_name_is_one_line(name, monkeypatch, capsys):
    code, said = report(monkeypatch, capsys, name)
    assert code == 2
    assert len(said.splitlines()) == 1
    assert "\x1b" not in said


@pytest.mark.parametrize("which", ["run", "capture"])
def test_unknown_format_is_rejected_with_a_remedy(run, which):
    path = run / "run.json" if which == "run" else run / WINDOW / "rank0.capture.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(PerfhooksError, match="update perfhooks"):
        list(finish_all(run)) if which == "run" else Place(run / WINDOW).load()


# --- nothing is lost ---


def test_torn_row_does_not_affect_other_rows(tmp_path):
    """As after a full disk."""
    path = tmp_path / "rank0.timeline.csv"
    path.write_text(HEADER + "train,3,wait,1.0,\ntrain,4,wait,2.0,0.1\ntrain,5,wa")
    unknown = np.array([-1, -1])
    rows = Rows("train", np.array([6, 7]), np.array([0, 0]), np.array([3_000_000, 4_000_000]), *[unknown] * 3)
    rows.append_to(path)
    assert steps.read(path)["train"].wall_ms.tolist() == [1.0, 2.0, 3.0, 4.0]
    assert path.read_text().splitlines()[3:5] == ["train,5,wa", "train,6,wait,3.000000,,,"]


def test_text_that_json_cannot_take_is_written_all_the_same(tmp_path):
    place = Place(tmp_path / WINDOW)
    place.save(Capture(partial="\udcff" + "x" * 20_000_000, notes=("\ud800",)))
    assert place.capture_file.stat().st_size < 10_000
    assert place.load().notes == ("\\ud800",)


def test_a_process_that_lives_keeps_its_run(tmp_path):
    from perfhooks.core.job import Job
    from perfhooks.run.folder import Run

    folder = Run.open(tmp_path, "same", Job(), {}).folder
    Run.open(tmp_path, "same", Job(), {})  # this process itself may go on
    parent = Process(pid=1, **{name: getattr(Process.current(), name) for name in ("host", "boot", "space")}, began="")
    publish_json(folder / ".rank0.process", parent)
    from perfhooks.run.liveness import began

    publish_json(folder / ".rank0.process", {**json.loads((folder / ".rank0.process").read_text()), "began": began(1)})
    with pytest.raises(PerfhooksError, match="set another name for this job, run="):
        Run.open(tmp_path, "same", Job(), {})
    Run.open(tmp_path, "same", Job(rank=1), {})


def test_path_that_cannot_be_recorded_raises_at_construction(tmp_path):
    from perfhooks.run.remote import check_out

    with pytest.raises(PerfhooksError, match="the recorder cannot save"):
        check_out(tmp_path / "a\nb")


def test_temporary_folder_of_another_user_is_not_used(tmp_path, monkeypatch):
    from perfhooks.run import remote

    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    (tmp_path / "other").mkdir()
    remote.temporary_folder().rmdir()
    remote_folder = tmp_path / f"perfhooks-{remote._user()}"
    remote_folder.symlink_to(tmp_path / "other")
    with pytest.raises(PerfhooksError, match="TMPDIR"):
        remote.local_folder("s3://bucket/runs")


@pytest.fixture
def no_locks(monkeypatch):
    """A file system without them."""
    import errno

    def flock(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)


def test_lock_of_a_dead_machine_expires_after_an_hour(tmp_path, no_locks):
    """Nobody here can ask whether its process lives."""
    held = tmp_path / "lock.held"
    for minutes, is_free in ((50, False), (70, True)):
        held.write_text("1\na-machine-that-died\n")
        os.utime(held, (time.time() - 60 * minutes,) * 2)
        with contextlib.nullcontext() if is_free else pytest.raises(TimeoutError), locked(tmp_path / "lock", 0.1):
            pass
        assert held.exists() is not is_free


def test_a_file_system_without_locks_does_without(run, no_locks, monkeypatch, capsys):
    assert report(monkeypatch, capsys, run)[0] == 0
    assert (run / "report.html").exists()
    assert not list(run.rglob("*.held")), "what stood for the locks is gone"


_NOT_ALMIGHTY = (
    "import ctypes, os, sys; [ctypes.CDLL(None).prctl(24, each, 0, 0, 0) for each in (1, 2, 3)]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_ALL_OF = """
import json, sys
from perfhooks.cli.app import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["perfhooks", *words]
    try:
        main()
    except SystemExit as end:
        print(end.code)
"""
"""Some commands in a program without the rights (CAP_DAC_OVERRIDE and its like) by which root may write everywhere."""


@pytest.mark.worker
def test_unwritable_folder_is_one_line(run, tmp_path):
    list(finish_all(run))
    trace = run / WINDOW / "rank0.pt.trace.json"
    testing.write_trace(trace, EVENTS)
    for path in (*run.rglob("*"), run):
        path.chmod(0o555 if path.is_dir() else 0o444)
    words = [(verb, str(run)) for verb in ("report", "merge", "flame")]
    words += [("report", str(trace)), ("report", str(run / WINDOW))]
    command = [sys.executable, "-c", _NOT_ALMIGHTY, sys.executable, "-c", _ALL_OF, json.dumps(words)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True, cwd=tmp_path)
    finally:
        for path in (run, *run.rglob("*")):
            path.chmod(0o755)
    assert done.stdout.splitlines() == ["2"] * 5, done.stdout + done.stderr
    lines = done.stderr.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["perfhooks"] * 5, lines
    assert "copy it to a folder of your own" in lines[0]
    assert all(str(run) in line for line in lines)


def test_the_timeline_of_a_long_training_is_read_in_parts(tmp_path):
    from perfhooks.report.page.run_data import _count_steps, _downsample

    path = tmp_path / "rank0.timeline.csv"
    rows = "".join(f"train,{step},wait,{step / 1000:.6f},\n" for step in range(300_000))
    path.write_text(HEADER + rows)
    assert path.stat().st_size > 4 << 20
    sampled = steps.read_sample(path)
    assert 299_000 < _count_steps(sampled) <= 300_000
    found = _downsample(sampled["train"])
    assert 300 < len(found["step"]) <= 401
    assert all(abs(wall - step / 1000) < 1.5 for step, wall in zip(found["step"], found["wall_ms"], strict=True))


def test_error_text_of_a_baseline_has_no_control_characters(run, tmp_path, monkeypatch, capsys):
    kept = {"perfhooks_baseline": 2, "label": "x", "stage": "tr\nain\x1b[2J", "costs": {"format": 3}}
    lists = {"texts": [], "host": [], "device": [], "counts": []}
    (tmp_path / "base.json").write_text(json.dumps(kept | {"costs": kept["costs"] | lists}))
    (run / "rank0.timeline.csv").write_text(HEADER + "train,0,wait,1.0,\n")
    code, said = called(monkeypatch, capsys, "compare", tmp_path / "base.json", run)
    assert code == 2
    assert said.startswith("perfhooks: the sides have no stage in common: tr ain")
    assert said.removesuffix("\n").replace("\N{REPLACEMENT CHARACTER}", "").isprintable()


# --- the cost of a window does not grow ---


def test_report_of_a_long_run_reads_each_window_once(run, monkeypatch):
    """Of a long run: what was said of a window is known as long as its folder stays as it is."""
    from perfhooks.analysis import ranks
    from perfhooks.report.page import run_data

    monkeypatch.setattr("perfhooks.run.finished._WINDOWS", 3)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(facts | {"world_size": 2}))  # ranks of one process are not compared
    for first in range(5):
        folder = window(run, f"train-00001{first}-00001{first}", state="done", first=first + 10, time=float(first))
        os.utime(folder, (first, first))
    os.utime(run / WINDOW, (0, 0))
    made = run_data.gather(run)
    assert [each["first"] for each in made["windows"]] == [12, 13, 14]
    assert made["windows_count"] == 6
    read = []
    monkeypatch.setattr(
        "perfhooks.analysis.ranks._summarize",
        lambda folder, real=ranks._summarize: read.append(folder.name) or real(folder),
    )
    assert run_data.gather(run) == made
    assert read == []
    last = Place(run / "train-000014-000014")
    last.save(dataclasses.replace(last.load(), partial="cut"))
    assert run_data.gather(run) != made
    assert read == ["train-000014-000014"]


def test_finishing_cost_does_not_grow_with_the_windows(run, monkeypatch):
    """Each further window is one name in a folder that is listed, and one in ``run.json``."""
    monkeypatch.setattr("perfhooks.run.finished._WINDOWS", 4)
    os.utime(run / WINDOW, (0, 0))
    asked = {}
    names = []
    for count in (20, 220):
        for number in range(len(names), count):
            names.append(f"train-{number:06d}-{number:06d}")
            folder = window(run, names[-1], state="done", first=number, time=float(number))
            os.utime(folder, (number, number))
        publish_json(run / "run.json", {"format": 1, "windows": names})
        kinds = [{"type": "steps"}, {"type": "page"}]
        place = Place(window(run, f"last-{count:06d}", first=count, handlers=kinds, time=float(count)))
        finish(place)  # whatever is imported late
        again = dataclasses.replace(place.load(), state="spooled", token="again")
        place.save(again)
        testing.write_trace(place.saved(again), EVENTS)
        with counted("open", "stat", "lstat", "fstat", "scandir", "listdir") as asked[count]:
            finish(place)
        assert json.loads((run / "run.json").read_text())["windows"][-1] == place.folder.name
        shown = json.loads((run / "report.json").read_text())
        assert len(shown["windows"]) == 4
        assert shown["windows"][-1]["name"] == place.folder.name
        names.append(place.folder.name)
        os.utime(place.folder, (0, 0))
    assert sum(asked[20].values()) > 20
    assert asked[20] == asked[220]


@contextlib.contextmanager
def counted(*names):
    """How often functions of C of these names are called."""
    found = collections.Counter()

    def see(_frame, event, called):
        if event == "c_call" and called.__name__ in names:
            found[called.__name__] += 1

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        yield found
    finally:
        sys.setprofile(before)


def test_latest_windows_do_not_depend_on_run_json(run):
    """A window that is finished again is a late one; one that is not named is asked when it changed."""
    for number in range(6):
        os.utime(window(run, f"train-{number:06d}-{number:06d}", state="done"), (number + 1, number + 1))
    os.utime(run / WINDOW, (0, 0))
    of_run = Run(run)
    names = [f"train-{number:06d}-{number:06d}" for number in range(5, -1, -1)]
    for finished in ([], names[::-1], names[:0:-1], [*names[::-1], "not-there"], names[3:]):
        found = of_run.latest_windows(3, Listing.of(run), finished)
        assert [path.name for path in found] == names[:3], finished
    assert len(of_run.latest_windows(9, Listing.of(run), names[:2])) == 7
    for place in (run / names[5], run / names[0]):
        of_run.note_window(Place(place))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfhooks.run.folder._LATE", 1)
        of_run.note_window(Place(run / names[5]))
    assert list(of_run.manifest().windows) == [names[0], names[5]]
