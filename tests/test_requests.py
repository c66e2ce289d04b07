"""Windows on request: where they go, who hears of them, and what whoever asked is told."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_watching import keep_stepping
from typer.testing import CliRunner
from warm import Process as Started

import perfhooks
from perfhooks import Profiler, Schedule
from perfhooks.cli.actions import asking
from perfhooks.cli.actions.asking import CaptureOptions, CaptureRequest
from perfhooks.cli.app import app
from perfhooks.core.schedule import OnRequest, Phase
from perfhooks.record.loop.requested import Requests
from perfhooks.record.watch.inbox import RequestInbox
from perfhooks.record.watch.loops import LoopRequest, WatchedLoop
from perfhooks.run import layout
from perfhooks.run.folder import Run
from perfhooks.run.live import requests, slow_steps
from perfhooks.run.live.requests import Loop
from perfhooks.run.live.status import Status
from perfhooks.run.liveness import Process
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import OwnFolder, publish_json
from perfhooks.run.timeline import Timeline

MATRIX = torch.ones(8, 8)
QUIET = {"on_trace_ready": "steps", "keep_results": False}
LATE = "had begun when the request was read"
ASKED = int(os.environ.get("PERFHOOKS_REQUESTS", "6"))
"""Requests to two ranks; PERFHOOKS_REQUESTS=100 takes minutes."""


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def requested(*asked, base=None, step=0):
    """The schedule that comes of some requests at a step, and what was answered."""
    loop = WatchedLoop(Timeline("train"), "train", 1.0, step=int, wake=lambda: None)
    loop.run = Run(Path("nowhere"))
    wanted = Requests(loop, base or OnRequest())
    loop.inbox.extend(asked)
    wanted.schedule_pending(step)
    return wanted, [said for _, said in loop.answers]


def ask(steps=3, first=None, name="somebody"):
    return LoopRequest("request", steps, first, name=name)


def active(phases, steps=200):
    return [step for step in range(steps) if phases.phase(step) is Phase.ACTIVE]


def test_unsaved_window_is_rejected_with_the_reason():
    for notes, why in (([], "its trace was not saved"), (["the disk is full", "cut"], "the disk is full; cut")):
        phases, _ = requested(ask(first=50))
        phases.answer_recorded(phases.window_at(49), None, 50, 52, notes)
        (_, said) = phases.loop.answers[-1]
        assert (said.state, said.why) == ("refused", why)
        assert active(phases) == []


# --- where a window goes ---


def test_requested_steps_are_recorded_after_one_warmup_step():
    phases, said = requested(ask(first=50), step=10)
    assert active(phases) == [50, 51, 52]
    assert phases.phase(49) is Phase.WARMUP
    assert phases.opens(49)
    assert phases.ends(52)
    assert phases.next_change(10) == 49
    assert [(each.state, each.first, each.last, each.window) for each in said] == [
        ("accepted", 50, 52, "train-000050-000052")
    ]


def test_late_rank_logs_and_records_its_next_steps():
    phases, said = requested(ask(first=50), step=60)
    assert active(phases) == [61, 62, 63]
    assert said[0].state == "late"
    assert "the window cannot begin at the requested step 50: step 60 had begun" in said[0].why


def test_last_moment_request_has_no_warmup():
    phases, said = requested(ask(first=50), step=50)
    assert active(phases) == [50, 51, 52]
    assert phases.opens(50)
    assert said[0].state == "accepted"


@pytest.mark.slow
@given(
    base=st.builds(
        Schedule,
        wait=st.integers(0, 9),
        warmup=st.integers(0, 2),
        active=st.integers(1, 4),
        repeat=st.integers(0, 3),
        skip_first=st.integers(0, 20),
    ),
    asked=st.lists(st.tuples(st.integers(1, 5), st.none() | st.integers(0, 60)), min_size=1, max_size=4),
    step=st.integers(0, 40),
)
def test_steps_are_recorded_once_and_windows_are_complete(base, asked, step):
    phases, said = requested(*(ask(*each) for each in asked), base=base, step=step)
    told = [(each.first, each.last) for each in said if each.state != "refused"]
    ours = sorted(one for first, last in told for one in range(first, last + 1))
    assert (
        len(ours)
        == len(set(ours))
        == sum(count for (count, _), each in zip(asked, said, strict=True) if each.first is not None)
    )
    assert all(base.phase(one) is Phase.WAIT for one in ours)
    most = max([*ours, 100])
    planned = [one for one in range(step, most + 1) if base.phase(one) is Phase.ACTIVE]
    assert [one for one in range(step, most + 1) if phases.phase(one) is Phase.ACTIVE] == sorted([*ours, *planned])
    for first, last in told:
        assert phases.ends(last)
        assert any(phases.opens(one) for one in range(max(step, first - 1), first + 1))


def test_request_is_rejected_if_all_steps_are_recorded():
    phases, said = requested(ask(), base=Schedule(wait=0, warmup=0, active=5))
    assert said[0].state == "refused"
    assert active(phases, 10) == list(range(10))


def apply(schedule, step):
    """A callable of somebody's: torch's own would be read back."""
    return schedule(step)


@pytest.mark.recorder
def test_requested_window_follows_that_of_a_callable_schedule(tmp_path):
    """What a callable will say nobody knows before its step."""
    schedule = torch.profiler.schedule(wait=3, warmup=1, active=2, repeat=2)
    with Profiler(schedule=partial(apply, schedule), out=tmp_path, run="r", background=False, **QUIET) as prof:
        for step in range(20):
            if step == 2:
                prof.request(2)
            MATRIX @ MATRIX
            prof.step()
    assert windows(tmp_path / "r") == ["train-000003", "train-000007-000008", "train-000009"]


# --- a profiler ---


def windows(run):
    return sorted(folder.name for folder in Path(run).glob("*-*") if folder.is_dir())


@pytest.mark.recorder
def test_request_from_code_uses_steps_between_windows(tmp_path):
    with Profiler(
        schedule="wait=6 warmup=1 active=2 repeat=1", out=tmp_path, run="r", background=False, **QUIET
    ) as prof:
        for step in range(30):
            if step == 1:
                prof.request(2, record_shapes=True)
            if step == 4:
                prof.request(2)  # the schedule has begun before it would be over
            if step == 20:
                prof.request(1)
            MATRIX @ MATRIX
            prof.step()
    captures = [place.load() for place in Run(tmp_path / "r").places()]
    assert [(each.first, each.last, each.request) for each in captures] == [
        (3, 4, "code"), (7, 8, ""), (10, 11, "code"), (22, 22, "code"),
    ]  # fmt: skip
    assert [each.options.get("record_shapes", False) for each in captures] == [True, False, False, False]


def test_request_accepts_only_its_options():
    prof = Profiler(schedule="on request", on_trace_ready=lambda _: None)
    for steps in (0, True, 1.5, 1001):
        with pytest.raises(perfhooks.OptionError, match="steps must be an integer from 1 to 1000"):
            prof.request(steps)
    prof.request(1000)
    with pytest.raises(TypeError, match="a request for a window accepts record_shapes"):
        prof.request(record_everything=True)


def test_a_request_to_a_profiler_that_ends_is_a_message(tmp_path, caplog):
    with Profiler(schedule="on request", out=tmp_path, background=False, **QUIET) as prof:
        prof.step()
        prof.request()
    assert "no window is recorded on request: the loop ended at step 1" in caplog.text
    prof.request()
    assert "no window is recorded on request: the profiler has been stopped" in caplog.text


@pytest.mark.parametrize("is_recorded", [True, False])
def test_open_shows_the_report_of_a_requested_window(tmp_path, monkeypatch, is_recorded):
    opened, page = [], tmp_path / "report.html"
    page.touch()
    monkeypatch.setattr("typer.launch", opened.append)
    monkeypatch.setattr("perfhooks.cli.actions.capture.asked", lambda *_, **__: is_recorded)
    for more in ([], ["--open"]):
        done = CliRunner().invoke(app, ["capture", str(tmp_path), *more])
        assert (done.exit_code, done.output) == ((0, f"{page}\n") if is_recorded else (1, ""))
    assert opened == ([page.as_uri()] if is_recorded else [])


@pytest.fixture
def stepping(monkeypatch):
    """Steps until some threads, each with a request, have ended; makes none while a request is on its way.

    The step that is asked for is chosen by the pace of the last steps. Those that come may be faster, and the thread
    that asks or that listens may be paused.
    """
    on_the_way = set()

    def call(request, *args, real=CaptureRequest._call):
        on_the_way.add(request.name)
        return real(request, *args)

    def ask(loop, request, real=WatchedLoop.ask):
        real(loop, request)
        on_the_way.discard(request.name)

    monkeypatch.setattr(CaptureRequest, "_call", call)
    monkeypatch.setattr(WatchedLoop, "ask", ask)

    def step_until_answered(prof, *threads):
        for thread in threads:
            thread.start()

        def is_over():
            while on_the_way and any(thread.is_alive() for thread in threads):
                time.sleep(0.01)
            return not any(thread.is_alive() for thread in threads)

        keep_stepping(prof, is_over, most_s=300)

    return step_until_answered


@pytest.mark.worker
def test_command_and_signal_request_windows(tmp_path, stepping):
    """One loop: the command, two requests at once, a half-written file, a signal, a call of an old process."""
    folder = tmp_path / "r" / "requests"
    with Profiler(schedule="on request", out=tmp_path, run="r", poll=0.02, signal="USR2", **QUIET) as prof:
        keep_stepping(prof, (tmp_path / "r" / "run.json").exists)
        results = []
        command = ["capture", str(tmp_path / "r"), "--steps", "2", "--shapes", "--timeout", "250"]
        stepping(prof, threading.Thread(target=lambda: results.append(CliRunner().invoke(app, command))))
        assert results[0].exit_code == 0, results[0].output
        (first,) = windows(tmp_path / "r")
        assert re.search(rf"train +{int(first[6:12])} ", results[0].output)
        place = Run(tmp_path / "r").places()[0]
        assert place.load().options["record_shapes"] is True

        folder.mkdir(exist_ok=True)
        half = folder / "00000000000000ff.window.json"
        half.write_text('{"stage": "train", "fir')
        asking = [CaptureRequest(tmp_path / "r", CaptureOptions(steps)) for steps in (2, 3)]
        stepping(prof, *(threading.Thread(target=lambda one=one: results.append(one.outcomes(250))) for one in asking))
        assert [len(outcome) for outcome in results[1:]] == [1, 1]
        assert all(outcome[0].capture and not outcome[0].note for outcome in results[1:])
        assert len(windows(tmp_path / "r")) == 3
        whole = folder / "00000000000000fe.window.json"
        whole.write_text('{"stage": "train", "first": 0, "steps": 1}')
        keep_stepping(prof, lambda: len(windows(tmp_path / "r")) == 4)

        os.kill(os.getpid(), signal.SIGUSR2)
        keep_stepping(prof, lambda: len(windows(tmp_path / "r")) == 5)
        steps = prof.step_num
    captures = sorted((place.load() for place in Run(tmp_path / "r").places()), key=lambda each: each.first)
    assert [each.last - each.first + 1 for each in captures] in ([2, 2, 3, 1, 3], [2, 3, 2, 1, 3])
    assert [each.request for each in captures[3:]] == ["00000000000000fe", "signal"]
    assert "the window cannot begin at the requested step 0" in captures[3].notes[0]
    assert all(before.last < after.first for before, after in itertools.pairwise(captures))
    assert captures[-1].last <= steps
    done = CliRunner().invoke(app, ["capture", str(tmp_path / "r"), "--ranks", "3"])
    assert isinstance(done.exception, perfhooks.PerfhooksError)
    assert "rank 3 does not record in this run; recording ranks: 0" in str(done.exception)


@pytest.mark.slow
def test_command_exits_with_1_and_reasons_if_no_rank_recorded(tmp_path, monkeypatch):
    """A job that hears it, and ends before the steps that were chosen."""
    results, heard = [], threading.Event()

    def collect(post, loops, *more, real=RequestInbox.collect):
        real(post, loops, *more)
        if any(loop.inbox for loop in loops):
            heard.set()

    monkeypatch.setattr(RequestInbox, "collect", collect)
    with Profiler(schedule="on request", out=tmp_path, run="r", poll=0.02, background=False, **QUIET) as prof:
        prof.step()
        command = ["capture", str(tmp_path / "r"), "--timeout", "60"]
        thread = threading.Thread(target=lambda: results.append(CliRunner().invoke(app, command)))
        thread.start()
        assert heard.wait(60)
    thread.join(90)
    assert results[0].exit_code == 1, results[0].output
    assert "rank 0: nothing recorded: the loop ended at step 1" in results[0].output
    assert windows(tmp_path / "r") == []


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can ask in a folder of somebody else"
)
def test_run_of_a_user_can_answer_requests_of_root(tmp_path):
    begun, new = tmp_path / "begun", tmp_path / "new"
    for run in (begun, new):
        run.mkdir()
        os.chown(run, 12345, 23456)
    (begun / "requests").mkdir()
    for run in (begun, new):
        requests.call(run, requests.new_id())
    owner = [((run / "requests").stat().st_uid, (run / "requests").stat().st_gid) for run in (begun, new)]
    # what was there before stays whose it is
    assert owner == [(0, 0), (12345, 23456)]


def test_answer_to_a_withdrawn_request_is_deleted(tmp_path, monkeypatch):
    name = requests.new_id()
    requests.call(tmp_path, name)
    publish = OwnFolder.publish_json

    def slowly(folder, file, said):
        requests.withdraw(tmp_path, name)
        folder.make()
        publish(folder, file, said)

    monkeypatch.setattr(OwnFolder, "publish_json", slowly)
    requests.write_answer(tmp_path, name, requests.Answer(rank=0, state="recorded"))
    assert list((tmp_path / "requests").iterdir()) == []


def test_a_folder_that_is_a_link_is_not_written_through(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "requests").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        requests.call(tmp_path / "run", requests.new_id())
    assert list((tmp_path / "elsewhere").iterdir()) == []


# --- a job by hand ---


class Job:
    """Ranks that look into the folder once a second, in a time that passes while whoever asks naps.

    Each refuses what it is asked for, with the steps as its reason.
    """

    def __init__(self, folder, monkeypatch):
        self.folder, self.now, self._looked, self._ranks = folder, 1000.0, 1000.0, {}
        self.heard = []
        Manifest().write(folder)
        monkeypatch.setattr(asking, "time", self)

    def rank(self, rank, *loops, process=None):
        """One with loops; without any it never answers."""
        run = Run(self.folder, rank)
        publish_json(self.folder / layout.owner(rank), process or Process.current())
        watched = {WatchedLoop(Timeline(loop.stage), loop.stage, 1.0, step=int, wake=int): loop for loop in loops}
        for loop in watched:
            loop.run = run
        self._ranks[rank] = RequestInbox(run), watched

    def monotonic(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds
        if self.now - self._looked >= 1.0:
            self._looked = self.now
            self.look()

    def look(self):
        for post, loops in self._ranks.values():
            if loops:
                post.collect(list(loops), loops.__getitem__)
            for loop in loops:
                while loop.inbox:
                    asked = loop.inbox.popleft()
                    self.heard.append(asked)
                    loop.answer(asked, "refused", why=f"{loop.stage} {asked.first} {asked.steps}")
                post.answer(loop)

    def ask(self, wish=CaptureOptions(), timeout=600.0):  # noqa: B008 -- frozen
        """What came of it: by rank, the loop that was asked and its first step, or why nothing did."""
        outcomes = CaptureRequest(self.folder, wish).outcomes(timeout)
        assert not any((self.folder / layout.REQUESTS).glob("*.json")), "a request is taken back"
        return {outcome.rank: outcome.problem for outcome in outcomes}


@pytest.fixture
def job(tmp_path, monkeypatch):
    folder = tmp_path / "job"
    folder.mkdir()
    return Job(folder, monkeypatch)


def at(step, stage="train", median_ms=100.0, **options):
    return Loop(stage=stage, step=step, median_ms=median_ms, **options)


def test_requested_steps_are_ahead_of_every_rank(job):
    """Ranks look once a second, so it takes up to two: 20 steps of the fast rank. Much more only costs time."""
    job.rank(0, at(500))
    job.rank(1, at(300, median_ms=1000.0))
    said = job.ask(CaptureOptions(4))
    (stage, first, steps) = said[0].split()
    assert said[1] == said[0], "the same ones on all ranks"
    assert (stage, steps) == ("train", "4")
    assert 520 < int(first) < 600


def test_request_goes_to_the_loop_of_most_ranks(job):
    for rank in range(3):
        job.rank(rank, at(500, is_running=rank == 2), at(7, "val", is_running=rank != 2))
    assert {said.split()[0] for said in job.ask().values()} == {"val"}
    assert {said.split()[0] for said in job.ask(CaptureOptions(stage="train")).values()} == {"train"}
    with pytest.raises(perfhooks.PerfhooksError, match="no loop is called 'test' in this job; there are: train, val"):
        job.ask(CaptureOptions(stage="test"))


def test_request_goes_only_to_selected_living_ranks(job):
    gone = msgspec.structs.replace(Process.current(), began="before")
    for rank in range(3):
        job.rank(rank, at(500), process=gone if rank == 1 else None)
    assert list(job.ask()) == [0, 2]
    assert list(job.ask(CaptureOptions(ranks=(2,)))) == [2]
    with pytest.raises(perfhooks.PerfhooksError, match="has ended: a window can be requested only while it runs"):
        job.ask(CaptureOptions(ranks=(1,)))


def test_rank_ignores_foreign_and_older_requests(job):
    def window(ranks):
        requests.ask(
            job.folder, requests.new_id(), requests.WindowRequest(stage="train", first=9, steps=1, ranks=ranks)
        )

    requests.call(job.folder, requests.new_id())
    window((0,))
    run = Run(job.folder, 0)
    loop = WatchedLoop(Timeline("train"), "train", 1.0, step=int, wake=int)
    post = RequestInbox(run)
    for ranks, heard in (((0,), 1), ((1, 2), 1), ((0, 2), 2), (None, 3)):
        window(ranks)
        post.collect([loop], lambda _: at(500))
        assert len(loop.inbox) == heard


def test_silent_rank_is_excluded_after_a_few_seconds(job):
    job.rank(0, at(500))
    job.rank(1)
    began = job.now
    said = job.ask()
    assert said[0].startswith("train ")
    assert said[1].startswith("it did not answer: ")
    assert 3 < job.now - began < 20


def test_no_answer_is_reported_after_a_minute(job):
    job.rank(0)
    began = job.now
    with pytest.raises(
        perfhooks.PerfhooksError, match=r"no rank of .* answered: it did not answer: its profiler has stop"
    ):
        job.ask()
    assert 50 < job.now - began < 70


def test_timeout_ends_the_wait_for_a_stopped_loop(job, monkeypatch):
    job.rank(0, at(500))
    monkeypatch.setattr(RequestInbox, "answer", lambda self, loop: None)
    began = job.now
    assert job.ask(timeout=30.0) == {0: "it did not read the request in time"}
    assert job.now - began == pytest.approx(30.0, abs=0.5)


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (None, "its steps are too slow, or have stopped"),
        (at(510), "its steps are too slow, or have stopped"),
        (at(510, is_running=False), "its loop is between two epochs, at step 510"),
    ],
    ids=["says nothing", "steps", "between two passes"],
)
def test_late_rank_is_reported_with_its_current_step(job, monkeypatch, where, why):
    answer = WatchedLoop.answer

    def accept(loop, asked, *_, **__):
        answer(loop, asked, "accepted", window="train-to-come", first=asked.first)

    monkeypatch.setattr(WatchedLoop, "answer", accept)
    job.rank(0, at(500))
    if where is not None:
        publish_json(job.folder / layout.status(0), Status(process=Process.current(), time=0.0, loop=where))
    (problem,) = job.ask(timeout=30.0).values()
    (asked,) = job.heard
    assert problem == f"it did not reach step {asked.first} in time: {why}"


def test_command_requests_exactly_its_options(job):
    """Where nobody records, each rank has a line that says why, and the exit code is 1."""
    job.rank(0, at(500))
    for words, asked in (
        ([], (3, {})),
        (["--steps", "2", "--with-stack", "--memory"], (2, {"with_stack": True, "profile_memory": True})),
        (["--shapes", "--ranks", "0,4-7"], None),
        (["--shapes", "--ranks", "0"], (3, {"record_shapes": True})),
    ):
        job.heard.clear()
        done = CliRunner().invoke(app, ["capture", str(job.folder), *words])
        if asked is None:
            assert "rank 4 does not record in this run" in str(done.exception)
            continue
        assert done.exit_code == 1
        assert "rank 0: nothing recorded: train " in done.output
        assert [(each.steps, each.options) for each in job.heard] == [asked]
    for words, said in ((["--timeout", "0"], "--timeout must be"), (["--steps", "0"], "steps must be")):
        assert said in str(CliRunner().invoke(app, ["capture", str(job.folder), *words]).exception)


def test_too_large_request_is_rejected(job):
    """Whoever may write into the folder may not switch on whatever he likes, nor fill the disk."""
    folder = job.folder / "requests"
    folder.mkdir()
    plain = {"stage": "train", "first": 9, "steps": 1}
    for more in (
        {"options": {"out": True}},
        {"steps": 10**6},
        {"steps": 0},
        {"first": -1},
        {"ranks": [-1]},
        {"stage": 401 * "x"},
        {"options": {"with_stack": 1}},
    ):
        name = f"{requests.new_id()}.window.json"
        (folder / name).write_text(json.dumps(plain | more))
        with pytest.raises(perfhooks.PerfhooksError, match="not a request"):
            requests.read_window(job.folder, name)
    (folder / name).write_text(json.dumps(plain | {"options": {"with_stack": True}}))
    assert requests.read_window(job.folder, name).options == {"with_stack": True}


def test_request_can_name_a_hundred_thousand_ranks(job):
    """And its ask is one file, below what a look reads."""
    (job.folder / "requests").mkdir()
    name, ranks = requests.new_id(), tuple(range(10**5))
    requests.ask(job.folder, name, requests.WindowRequest(stage="train", first=9, steps=1, ranks=ranks))
    assert requests.read_window(job.folder, f"{name}.window.json").ranks == ranks


def just_now(path):
    """Have a file changed a moment ago, however long this process is paused now."""
    os.utime(path, (time.time() + 3600,) * 2)


@pytest.fixture
def post(job):
    """The post of rank 0, its loop, its folder, and what puts requests into that."""
    job.rank(0, at(0))
    (post, loops) = job._ranks[0]
    (loop,) = loops
    (job.folder / layout.REQUESTS).mkdir()

    def forge(count, **more):
        """Puts so many windows into the folder, long ago; gives their names."""
        names = [requests.new_id() for _ in range(count)]
        for name in names:
            window = requests.WindowRequest(stage="train", first=50, steps=2)
            requests.ask(job.folder, name, msgspec.structs.replace(window, **more))
            os.utime(job.folder / layout.REQUESTS / f"{name}.window.json", (9, 9))
        just_now(job.folder / layout.REQUESTS)
        return names

    return SimpleNamespace(
        look=lambda: post.collect([loop], loops.__getitem__),
        loop=loop,
        forge=forge,
        folder=job.folder / layout.REQUESTS,
    )


def test_poll_lists_the_folder_only_after_a_change(post, monkeypatch):
    looks = []
    monkeypatch.setattr(requests, "files", lambda run, real=requests.files: looks.append(run) or real(run))
    os.utime(post.folder, (9, 9))
    for _ in range(20):
        post.look()
    assert len(looks) == 3, "the first one, and of each ten one"
    post.forge(1)
    for _ in range(5):
        post.look()
    assert len(looks) == 8, "a folder that has just changed may change within the same tick of its clock"
    assert len(post.loop.inbox) == 1


def test_poll_reads_a_limited_number_of_files(job, monkeypatch):
    monkeypatch.setattr(requests, "_MOST_FILES", 50)
    for _ in range(80):
        requests.call(job.folder, requests.new_id())
    assert len(requests.names(job.folder)) == 50


def test_sixteen_of_many_requests_are_accepted(post, caplog):
    names = post.forge(100)
    for _ in range(3):
        post.look()
    assert [asked.name for asked in post.loop.inbox] == names[:16]
    assert sorted(path.name for path in post.folder.iterdir() if path.is_dir()) == names[16:32]
    assert len(caplog.records) == 1
    assert "100 requests arrived at once; at most 16 are accepted" in caplog.text
    late = post.forge(1)
    post.look()
    assert requests.answers(post.folder.parent, late[0])[0].why == "16 requests already wait for the end of the step"
    post.loop.inbox.clear()
    later = post.forge(1)
    post.look()
    assert [asked.name for asked in post.loop.inbox] == later


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stage":"train","first":1,"steps":99999}', "[" * 10**5, "\x1b[2J", " " * (2 << 20)]
)
def test_forged_request_is_rejected_in_one_line(post, text, caplog):
    for number in range(5):
        path = post.folder / f"0000000{number}.window.json"
        path.write_text(text)
        just_now(path)
        just_now(post.folder)
        post.look()
    assert not caplog.records, "it may not be whole yet"
    for path in post.folder.iterdir():
        os.utime(path, (9, 9))
    for _ in range(3):
        post.look()
    assert not post.loop.inbox
    (record,) = caplog.records
    assert "a request is refused: " in record.message
    assert record.message.isprintable()
    assert requests.answers(post.folder.parent, "00000003")[0].state == "refused"


def test_sixteen_windows_wait_at_most(caplog):
    wanted, said = requested(*(ask(first=50) for _ in range(1000)))
    assert [each.state for each in said].count("accepted") == 16
    assert said[-1].why == "16 requested windows wait already"
    assert len(active(wanted)) == 16 * 3
    assert not caplog.records
    requested(*(ask(name="") for _ in range(1000)))
    assert len(caplog.records) == 1, "a training may ask at every step"
    _, said = requested(ask(first=2**61), ask(first=10**6))
    assert [each.state for each in said] == ["refused", "accepted"]


def test_search_for_a_gap_in_the_schedule_is_bounded(monkeypatch):
    looked = []
    real = Requests._end_of_overlap
    monkeypatch.setattr(Requests, "_end_of_overlap", lambda self, *span: looked.append(span) or real(self, *span))
    _, said = requested(ask(steps=30), base=Schedule(wait=3, warmup=1, active=2))
    assert said[0].state == "refused"
    assert len(looked) <= 100


def test_withdrawn_request_gets_no_answer(job):
    """So that no folder stays for nobody."""
    name = requests.new_id()
    requests.call(job.folder, name)
    answer = requests.Answer(rank=0, state="refused")
    requests.write_answer(job.folder, name, answer)
    assert requests.answers(job.folder, name) == {0: answer}
    requests.withdraw(job.folder, name)
    requests.write_answer(job.folder, name, answer)
    assert list((job.folder / "requests").iterdir()) == []


# --- many ranks ---


def know_their_pace(run):
    """Whether both ranks can say how long their steps take: before, a request may come too late for the faster one."""
    if not all((run / f"rank{rank}.status.json").exists() for rank in range(2)):
        return False
    name = requests.new_id()
    requests.call(run, name)
    time.sleep(0.1)
    heard = requests.positions(run, name)
    requests.withdraw(run, name)
    return len(heard) == 2 and all(each.loops and each.loops[0].median_ms for each in heard.values())


@pytest.fixture
def ranks(channel, tmp_path):
    """Two ranks, the second ten times as slow, which go on until they are told to stop."""
    script = Path(__file__).parent / "watched_training.py"
    words = [f"--out={tmp_path}", f"--stop={tmp_path}/stop", f"--meeting={tmp_path}/meeting"]
    started = [
        Started(
            channel,
            script,
            *words,
            f"--pause={pause}",
            environment={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
        )
        for rank, pause in enumerate((0.001, 0.01))
    ]
    while not know_their_pace(tmp_path / "job"):
        assert all(process.poll() is None for process in started)
        time.sleep(0.05)
    yield started
    (tmp_path / "stop").touch()
    for process in started:
        process.wait(60)
        process.close()


def assert_the_fast_rank_waited_for_the_slow_one(run):
    """Each time that they meet, in one way or the other; where it was seen, the cause and the line are right."""
    lines = (Path(__file__).parent / "watched_training.py").read_text().splitlines()
    waits = [f":{number})" for number, line in enumerate(lines, 1) if "# wait in a " in line]
    seen, until = set(), time.monotonic() + 300
    while len(seen) < len(waits):
        assert time.monotonic() < until, (seen, waits)
        time.sleep(0.05)
        rows = slow_steps.read(run / "rank0.slow.csv")
        seen = {line for line in waits for row in rows if row.cause == "other ranks" and row.line.endswith(line)}


@pytest.mark.process
def test_ranks_of_different_speed_record_the_same_steps(tmp_path, ranks):
    """Requests at any moment, two at a time; then one rank is killed, and the other answers all the same."""
    run = tmp_path / "job"
    results = []

    def make(count):
        results.extend(CaptureRequest(run, CaptureOptions(1)).outcomes(300) for _ in range(count))

    threads = [threading.Thread(target=make, args=(ASKED // 2,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == ASKED // 2 * 2
    found = [[(each.capture.first, each.capture.request, each.note) for each in outcomes] for outcomes in results]
    assert all(len(outcomes) == 2 for outcomes in found)
    # while a rank or whoever asks is paused a step may begin; the rank says so, and the next requests make room
    moved = [outcomes for outcomes in found if any(note for *_, note in outcomes)]
    assert not moved or any(LATE in note for outcomes in moved for *_, note in outcomes), moved
    in_time = [outcomes for outcomes in found if outcomes not in moved]
    assert in_time, moved
    assert all(outcomes[0] == outcomes[1] for outcomes in in_time)
    firsts = [outcomes[0][0] for outcomes in in_time]
    assert len(set(firsts)) == len(firsts)
    assert len(windows(run)) == len({first for outcomes in found for first, *_ in outcomes}), "each once"
    assert_the_fast_rank_waited_for_the_slow_one(run)
    ranks[1].kill()
    ranks[1].wait(60)
    (outcome,) = CaptureRequest(run, CaptureOptions(1)).outcomes(300)
    assert (outcome.rank, outcome.problem) == (0, "")
    until = time.monotonic() + 60
    while list((run / "requests").glob("*")):  # the rank may be writing an answer that nobody wants any more
        assert time.monotonic() < until
        time.sleep(0.05)
