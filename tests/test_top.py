"""A run seen from outside: what `perfhooks top` computes, and how it draws it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import math
import os
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from types import SimpleNamespace
from unittest import mock

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from many_ranks import ManyRanks
from rich.console import Console
from terminal import Terminal
from typer.testing import CliRunner

from perfhooks.analysis import ranks
from perfhooks.cli.actions import keys, top
from perfhooks.cli.actions.written import ASCII, line, screen
from perfhooks.cli.app import app
from perfhooks.core.errors import PerfhooksError
from perfhooks.report import live as view
from perfhooks.report.live import RankState, View, bars, last_minute, mark_stragglers, times
from perfhooks.run import layout
from perfhooks.run.capture import Capture, Place
from perfhooks.run.live import slow_steps
from perfhooks.run.live.requests import Loop
from perfhooks.run.live.slow_steps import SlowStep
from perfhooks.run.live.status import Status
from perfhooks.run.live.tail import Tail
from perfhooks.run.liveness import Process
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import publish_json
from perfhooks.run.timeline import HEADER, Row

ALIVE = Process.current()
GONE = msgspec.structs.replace(ALIVE, began="before")
ELSEWHERE = msgspec.structs.replace(ALIVE, host="another")


class Folder:
    """A run folder made by hand."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        Manifest().write(path)

    def owner(self, rank, process):
        publish_json(self.path / layout.owner(rank), process)

    def steps(self, rank, walls, *, first=0, stage="train", data=None):
        path = self.path / layout.timeline(rank)
        with path.open("a", encoding="utf-8") as file:
            if not file.tell():
                file.write(HEADER)
            for step, wall in enumerate(walls, first):
                file.write(f"{stage},{step},wait,{wall:.6f},{'' if data is None else data}\n")

    def status(self, rank, step, *, stage="train", is_running=True):
        loop = Loop(stage=stage, step=step, is_running=is_running)
        publish_json(self.path / layout.status(rank), Status(process=ALIVE, time=1.0, loop=loop))

    def slow(self, rank, *steps):
        rest = (520.0, 149.0, "data", 513.0, "f (train.py:16)", 1.0, 0.0, None, None, None, None)
        slow_steps.append(self.path / layout.slow_steps(rank), [SlowStep("train", step, *rest) for step in steps])

    def window(self, first, ranks=(0,), state="done"):
        place = Place(self.path / layout.window("train", first, first + 2))
        for rank in ranks:
            Place(place.folder, rank).save(Capture(rank=rank, first=first, last=first + 2, state=state))
        return place.folder


@pytest.fixture
def run(tmp_path):
    return Folder(tmp_path / "run")


def rows(walls, stage="train"):
    return [Row(stage, step, "wait", wall, wall / 4) for step, wall in enumerate(walls)]


# --- what is computed, against a slow and obvious computation ---


def test_remote_run_is_copied_every_ten_seconds(monkeypatch):
    brought, looked, now = [], [], [100.0]
    monkeypatch.setattr(top.mirror, "mirror", brought.append)
    monkeypatch.setattr(top, "time", SimpleNamespace(monotonic=lambda: now[0]))
    look = top._elsewhere(SimpleNamespace(refresh=lambda: looked.append(now[0])), "memory://runs")
    for now[0] in (101.0, 109.0, 111.0, 112.0, 120.0, 122.0):
        look()
    assert (len(looked), brought) == (6, ["memory://runs"] * 2)


WALLS = st.lists(st.floats(0.001, 90_000), max_size=60)


@pytest.mark.slow
@given(WALLS)
def test_last_minute_has_the_fewest_steps_of_a_minute(walls):
    mixed = list(itertools.chain.from_iterable(zip(rows(walls), rows(walls, "val"), strict=True)))
    enough = [count for count in range(len(walls) + 1) if math.fsum(walls[len(walls) - count :]) >= 60_000]
    found = last_minute(mixed, "train")
    count = len(found)
    assert [row.wall_ms for row in found] == walls[len(walls) - count :]
    assert count == min(enough, default=len(walls)) or math.isclose(math.fsum(walls[-count:]), 60_000)


@pytest.mark.slow
@given(WALLS)
def test_step_times_match_a_manual_computation(walls):
    found = times(rows(walls))
    if not walls:
        assert found is None
        return
    assert found.steps == len(walls)
    assert found.rate == pytest.approx(len(walls) / (sum(walls) / 1000))
    assert found.median_ms == statistics.median(walls)
    assert found.p95_ms == min(each for each in walls if 100 * sum(one <= each for one in walls) >= 95 * len(walls))
    assert found.data_share == pytest.approx(0.25)


def test_unmeasured_wait_is_unknown_and_not_zero():
    unknown = [row._replace(data_ms=None) for row in rows([10.0, 10.0])]
    assert times(unknown).data_share is None
    assert times([*unknown, *rows([10.0])]).data_share == 0.25


@pytest.mark.slow
@given(WALLS, st.integers(1, 30))
def test_bars_fit_the_width_and_show_every_long_step(walls, most):
    found = bars(walls, most)
    assert len(found) <= most
    assert all(0 <= each <= 1 for each in found)
    if walls:
        assert max(found) == min(1.0, max(walls) / (3 * statistics.median(walls)))


def judged_by(*facts, steps=30):
    """What is said of ranks of which every step took the same: wall time and wait for data of each rank."""
    seen = [RankState(rank, 10, wall, data, True) for rank, (wall, data) in enumerate(facts)]
    lines = [
        [] if wall is None else [Row("train", step, "wait", wall, data) for step in range(steps)]
        for wall, data in facts
    ]
    return mark_stragglers(seen, lines)


@pytest.mark.parametrize(
    ("facts", "slow"),
    [
        ([(100.0, 1.0)], []),
        ([(100.0, 1.0)] * 8, []),
        ([(100.0, 1.0), (105.0, 1.0), (103.0, 1.0)], []),
        ([(100.0, 1.0), (150.0, 1.0)], [1]),
        ([(150.0, 1.0), *[(100.0, 1.0)] * 6, (130.0, None)], [0]),
        ([(100.0, 1.0), (100.0, 30.0), (100.0, 2.0)], [1]),
        ([(None, None), (100.0, None), (100.0, None)], []),
        ([(None, None), (None, None)], []),
        ([(100.0, 1.0)] * 7 + [(103.0, 1.0)], [7]),
        ([(200.0, 1.0), (180.0, 1.0), (100.0, 1.0)], []),
    ],
)
def test_a_rank_is_slow_by_its_steps_or_by_its_wait_for_data(facts, slow):
    assert [rank.rank for rank in judged_by(*facts) if rank.slow] == slow


def test_screen_explains_a_slow_rank():
    by_steps, by_data = judged_by((150.0, 1.0), (100.0, 31.0), (100.0, 1.0), (100.0, 1.0))[:2]
    assert by_steps.slow == "is late by 50 ms after its batch: the other ranks wait 50 ms a step"
    assert by_data.slow == "is late by 30 ms waiting for data: the other ranks wait 30 ms a step"


def on_the_page(path):
    return sorted({rank for finding in ranks.findings(ranks.gather(path)) for rank in finding["ranks"]})


def in_top(path):
    return [rank.rank for rank in View(path).refresh().ranks if rank.slow]


@pytest.mark.parametrize("more", [{}, {2: 0.5}, {2: 10.0}, {1: 10.0, 2: 14.0}, {0: 10.0, 1: 10.0, 2: 10.0}])
def test_top_and_report_name_equal_ranks_waiting_for_data(tmp_path, more):
    """In a step of some 50 ms in which all ranks meet, so that the steps of all take the same."""
    path = ManyRanks(ranks=4, windows=1, steps=40, slow_data=more).write(tmp_path / "run")
    for table in path.glob("*/*.steps.csv"):
        rows = [row.split(",") for row in table.read_text().splitlines()[1:]]
        text = "".join(f"train,{row[2]},wait,{row[3]},{row[4]}\n" for row in rows)
        (path / layout.timeline(int(rows[0][0]))).write_text(HEADER + text)
    assert in_top(path) == on_the_page(path) == [rank for rank, ms in more.items() if ms > 5 and len(more) < 3]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("count", "more", "slow"), [(4, 1.0, []), (4, 1.3, [1]), (16, 1.0, []), (16, 1.3, [1])])
def test_top_and_report_name_equal_slow_ranks(run, count, more, slow, seed):
    """Ranks that do not wait for each other; a step of equal ranks takes from 95 to 105 ms, by chance."""
    dice = random.Random(seed)
    folder = run.path / "train-000000-000039"
    folder.mkdir()
    for rank in range(count):
        walls = [dice.uniform(95.0, 105.0) * (more if rank == 1 else 1.0) for _ in range(40)]
        run.steps(rank, walls)
        Place(folder, rank).save(Capture(rank=rank, last=39, reached=40))
        lines = [f"{rank},train,{step},{wall:.6f}" for step, wall in enumerate(walls)]
        Place(folder, rank).artifact(layout.STEPS).write_text("\n".join(["rank,stage,step,wall_ms", *lines]) + "\n")
    assert in_top(run.path) == on_the_page(run.path) == slow


def test_ranks_are_compared_by_steps_of_equal_number(run):
    for rank in range(3):
        run.steps(rank, [130.0 if rank == 1 else 100.0] * 30, first=1000 * rank)
    assert in_top(run.path) == []


# --- reading what grows ---


def test_tail_reads_each_complete_row_once(run):
    tail = Tail(run.path / layout.timeline(0), 1000)
    assert tail.read() == []
    run.steps(0, [1.0, 2.0])
    assert [row.wall_ms for row in tail.read()] == [1.0, 2.0]
    assert tail.read() == []
    with (run.path / layout.timeline(0)).open("a") as file:
        file.write("train,2,wai")
        file.flush()
        assert tail.read() == []
        file.write("t,3.0,\n")
    assert [(row.step, row.wall_ms) for row in tail.read()] == [(2, 3.0)]


def test_a_tail_reads_no_more_than_the_end(run, monkeypatch):
    run.steps(0, range(5000))
    read = []
    real = os.fdopen

    def spy(*args):
        file = real(*args)
        return _Counted(file, read)

    monkeypatch.setattr("perfhooks.run.live.tail.os.fdopen", spy)
    tail = Tail(run.path / layout.timeline(0), 1000)
    steps = [row.step for row in tail.read()]
    assert steps == list(range(steps[0], 5000))
    run.steps(0, [1.0], first=5000)
    assert [row.step for row in tail.read()] == [5000]
    run.steps(0, range(500), first=5001)
    steps = [row.step for row in tail.read()]
    assert steps == list(range(steps[0], 5501))
    assert steps[0] > 5001
    assert read[1] < 40, "only what is new"
    assert max(read) <= 1000


class _Counted(io.BufferedIOBase):
    """A file that notes how much was read of it."""

    def __init__(self, file, read):
        self._file, self._read = file, read

    def read(self, most=-1):
        found = self._file.read(most)
        self._read.append(len(found))
        return found

    def seek(self, *where):
        return self._file.seek(*where)

    def fileno(self):
        return self._file.fileno()

    def close(self):
        self._file.close()
        super().close()


@pytest.mark.slow
@given(st.lists(st.integers(0, 40), max_size=12), st.integers(100, 400))
def test_tail_reads_every_row_across_partial_writes(tmp_path_factory, cuts, most):
    path = tmp_path_factory.mktemp("tail") / "t.csv"
    text = HEADER + "".join(f"train,{step},wait,{step}.5,\n" for step in range(12))
    tail, seen, at = Tail(path, most), [], 0
    for cut in [*cuts, *[40] * (len(text) // 40 + 1)]:
        with path.open("a") as file:
            file.write(text[at : at + cut])
        at += cut
        seen += [row.step for row in tail.read()]
    assert seen == list(range(12))


def test_a_file_that_is_replaced_is_read_from_its_beginning(run):
    path = run.path / layout.timeline(0)
    run.steps(0, range(9))
    tail = Tail(path, 1000)
    tail.read()
    path.unlink()
    run.steps(0, [7.0])
    assert [row.wall_ms for row in tail.read()] == [7.0]


def test_a_line_without_an_end_is_passed_over(run):
    path = run.path / layout.timeline(0)
    path.write_text("x" * 5000)
    tail = Tail(path, 100)
    assert tail.read() == []
    with path.open("a") as file:
        file.write(",1,wait,1.0,\ntrain,2,wait,2.0,\n")
    assert [row.step for row in tail.read()] == [2]


def test_last_slow_steps_equal_those_of_the_full_table(run):
    run.slow(0, *range(300))
    path = run.path / layout.slow_steps(0)
    whole = slow_steps.read(path)
    assert len(whole) == 300
    assert slow_steps.read(path, 1 << 20) == whole
    few = slow_steps.read(path, 500)
    assert 0 < len(few) < 20
    assert few == whole[-len(few) :]


# --- a run ---


def test_finished_run_is_shown_in_its_last_state(run):
    run.owner(0, GONE)
    run.steps(0, [10.0] * 99 + [520.0], data=2.5)
    run.status(0, 100, is_running=False)
    run.slow(0, 99)
    run.window(12)
    (run.path / layout.PAGE).write_text("page")
    seen = View(run.path).refresh()
    assert (seen.stage, seen.rank, seen.step, seen.is_alive) == ("train", 0, 100, False)
    assert seen.times == (100, pytest.approx(100 / 1.51), 10.0, 10.0, pytest.approx(250 / 1510))
    assert seen.walls == (10.0,) * 99 + (520.0,)
    assert [(rank, step.step) for rank, step in seen.slow] == [(0, 99)]
    assert (seen.windows, seen.unfinished, seen.is_recording) == (1, {}, False)
    assert seen.page == run.path / layout.PAGE
    assert line(seen) == (
        "train step 100, 66.2 steps/s, median 10 ms, p95 10 ms, data 17%, last slow: step 99 of rank 0 (data), 1 window"
    )


def test_running_run_is_followed(run):
    run.owner(0, ALIVE)
    view = View(run.path)
    assert line(view.refresh()) == "no step yet, 0 windows"
    run.steps(0, [10.0] * 5)
    assert view.refresh().step == 5
    run.status(0, 9)
    run.steps(0, [30.0], first=5)
    run.slow(0, 5)
    seen = view.refresh()
    assert (seen.step, seen.walls, len(seen.slow), seen.is_alive) == (9, (10.0,) * 5 + (30.0,), 1, True)
    run.slow(0, 7)
    assert [step.step for _, step in view.refresh().slow] == [7, 5]


def test_windows_are_followed_until_finished(run):
    run.owner(0, ALIVE)
    view = View(run.path)
    run.window(10, ranks=(0, 1), state="spooled")
    assert (view.refresh().windows, view.refresh().unfinished) == (1, {"train-000010-000012": 2})
    run.window(10, ranks=(0,))
    run.window(20)
    assert (view.refresh().windows, view.refresh().unfinished) == (2, {"train-000010-000012": 1})
    run.window(10, ranks=(1,))
    assert view.refresh().unfinished == {}
    run.window(20, ranks=(1,), state="spooled")
    assert view.refresh().unfinished == {"train-000020-000022": 1}
    (run.path / "other").mkdir()
    assert view.refresh().windows == 2


def test_an_open_window_is_being_recorded(run):
    run.owner(0, ALIVE)
    mark = {"window": "train-000010-000012", "process": ALIVE}
    publish_json(run.path / layout.mark(0), mark)
    seen = View(run.path).refresh()
    assert seen.is_recording
    assert "recording" in line(seen)


@pytest.mark.slow
def test_slow_rank_of_many_is_named(run):
    for rank in range(150):
        run.owner(rank, ALIVE)
        run.steps(rank, [20.0 if rank == 140 else 10.0] * 30)
    run.slow(140, 29)
    view = View(run.path)
    seen = view.refresh()
    assert [rank.rank for rank in seen.ranks if rank.slow] == [140]
    assert "1 of 150 ranks slow (140), last slow: step 29 of rank 140 (data)" in line(seen)
    for rank in range(150):
        run.steps(rank, [10.0], first=30)
    known = [[rank.rank for rank in view.refresh().ranks if rank.step == 31] for _ in range(3)]
    assert all(0 in ranks for ranks in known)
    assert [len(ranks) < 150 for ranks in known] == [True, True, False]


def test_the_loop_that_most_ranks_are_in_is_shown(run):
    for rank in range(3):
        run.owner(rank, ALIVE)
        run.steps(rank, [10.0] * 4)
        run.steps(rank, [1.0] * 2, stage="val")
        run.status(rank, 3, stage="val" if rank else "train")
    seen = View(run.path).refresh()
    assert (seen.stage, seen.step, seen.walls) == ("val", 2, (1.0, 1.0))
    for rank in range(3):
        run.status(rank, 8, is_running=True)
    assert View(run.path).refresh().stage == "train"


def test_pipe_output_ends_with_the_processes_or_silence(run, monkeypatch, capsys):
    """For ten minutes; here it is known that they live."""
    seen = View(run.path).refresh()
    looks = [(True, 900.0), (None, 599.0), (None, 601.0)]
    for expected in (looks, [(True, 0.0), (False, 0.0)]):
        left = [dataclasses.replace(seen, is_alive=is_alive, silent_s=silent_s) for is_alive, silent_s in expected]
        monkeypatch.setattr(View, "refresh", lambda _, left=left: left.pop(0))
        monkeypatch.setattr("time.sleep", lambda _: None)
        top.top(run.path)
        assert left == []
        assert len(capsys.readouterr().out.splitlines()) == 1, "the same line is printed once"


def test_processes_of_other_hosts_have_an_unknown_state(run):
    run.owner(0, ELSEWHERE)
    run.owner(1, GONE)
    assert View(run.path).refresh().is_alive is None
    run.owner(2, ALIVE)
    assert View(run.path).refresh().is_alive is True


def test_run_without_steps_is_reported(run):
    run.owner(0, ALIVE)
    assert "no step has been written yet" in screen(View(run.path).refresh(), "", 80, 24).plain


# --- what strangers may have put there ---


def test_hostile_folder_cannot_control_the_terminal(run, tmp_path):
    run.owner(0, GONE)
    (run.path / layout.timeline(0)).write_text(
        f"{HEADER}\x1b]0;title\x07,3,wait,1.0,\ntrain,{'9' * 4000},wait,1.0,\ntrain,4,wait,1e308,\n"
        f"{'s' * 10_000},5,wait,1.0,\ntrain,-1,wait,1.0,\ntrain,6,wait,-5.0,\ntrain,7,wait,nan,\n"
    )
    (run.path / layout.slow_steps(0)).write_text(
        f'{",".join(SlowStep._fields)}\ntrain,5,nan,inf,[red]\x1b[2J,,"a\nb",,0,,,,\n'
        f'train,6,100,9,[red]\x1b[2J,,"a\nb",,0,,,,\ntrain,"{"x" * 9}\0\n'
    )
    (run.path / layout.status(0)).write_text('{"process": {"pid": 1}}')
    secret = tmp_path / "secret"
    secret.write_text(f"{HEADER}train,787878787878,wait,1.0,\n")
    (run.path / layout.timeline(1)).symlink_to(secret)
    os.mkfifo(run.path / layout.timeline(2))
    (run.path / layout.owner(3)).write_text(f'{{"pid": {1 << 40}, "host": "{ALIVE.host}", "boot": "{ALIVE.boot}", '
                                            f'"space": "{ALIVE.space}"}}')  # fmt: skip
    seen = View(run.path).refresh()
    assert seen.step == 4
    assert [rank.step for rank in seen.ranks] == [4, None, None, None]
    assert [rank.is_alive for rank in seen.ranks] == [False, None, None, False]
    for text in (line(seen), screen(seen, "a\x1b[31mnote", 80, 24).plain):
        assert "\x1b" not in text
        assert "\x07" not in text
        assert "787878787878" not in text.replace(",", "")
    assert "[red]" in screen(seen, "", 80, 24).plain


@pytest.mark.parametrize("target", ["nothing", "empty", "a" * 300, "a\0b"])
def test_folder_without_a_run_is_rejected(tmp_path, target):
    (tmp_path / "empty").mkdir()
    with pytest.raises(PerfhooksError):
        View(tmp_path / target)


def test_deleted_folder_is_a_one_line_error(run):
    view = View(run.path)
    run.path.rename(run.path.with_name("gone"))
    with pytest.raises(PerfhooksError, match="cannot be read any more"):
        view.refresh()


# --- drawing ---


def drawn(seen, *, width=80, height=24, note=""):
    console = Console(width=width, height=height, file=io.StringIO(), force_terminal=False)
    console.print(screen(seen, note, width, height, ASCII))
    return console.file.getvalue().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 20), (20, 8)])
def test_a_screen_fits_its_terminal(run, width, height):
    for rank in range(100):
        run.owner(rank, ALIVE)
        run.steps(rank, [20.0 if rank in (7, 70) else 10.0] * 300)
    run.slow(0, *range(20))
    text = drawn(View(run.path).refresh(), width=width, height=height, note="asking")
    assert max(map(len, text)) <= width
    assert len(text) <= height
    assert text[-1].startswith("q quit")
    if height >= 20:
        assert ["7:" in each for each in text if "ranks  " in each] == [True], "the slow one comes first"
        assert any(each.split() == ["capture", "asking"] for each in text), (
            "ranks leave room for what stands below them"
        )


def test_screen_shows_all_facts(run):
    run.owner(0, ALIVE)
    run.steps(0, [10.0] * 99 + [520.0])
    run.slow(0, 99)
    run.window(12, state="spooled")
    text = "\n".join(drawn(View(run.path).refresh(), width=150, note="asking"))
    for part in (
        "running", "train step 100", "66.2 steps/s, median 10 ms, p95 10 ms, data unknown", ":::", "#",
        "0: step 100, median 10 ms", "rank 0: step 99 took 520 ms, 149 times the median: data",
        "1 window, being finished: train-000012-000014", "none yet", "asking", "q quit",
    ):  # fmt: skip
        assert part in text


def test_three_slow_ranks_and_five_slow_steps_are_shown(run):
    for rank in range(20):
        run.owner(rank, ALIVE)
        run.steps(rank, [20.0 if rank >= 12 else 10.0] * 30)
    run.slow(0, *range(20, 28))
    seen = View(run.path).refresh()
    assert "8 of 20 ranks slow (12, 13, 14 and 5 more)" in line(seen)
    steps = [each.split("step ")[1].split()[0] for each in drawn(seen, width=200, height=60) if " took 520 ms" in each]
    assert steps == ["27", "26", "25", "24", "23"]


# --- the command ---


def test_ended_run_is_one_line_without_a_terminal(run, monkeypatch):
    monkeypatch.delattr("perfhooks.cli.actions.top.time.sleep")  # it waits for no run that has ended
    run.owner(0, GONE)
    run.steps(0, [10.0] * 9)
    done = CliRunner().invoke(app, ["top", str(run.path)])
    assert (done.exit_code, done.stdout) == (
        0, "train step 9, 100 steps/s, median 10 ms, p95 10 ms, data unknown, 0 windows\n",
    )  # fmt: skip


def test_run_of_another_host_is_followed_while_it_may_run(run, monkeypatch):
    """A long step, or a checkpoint, changes no file for minutes."""
    run.owner(0, ELSEWHERE)
    now, ages, naps = [time.time()], iter((300.0, 200.0, 3600.0)), []

    def grow_old(seconds):
        naps.append(seconds)
        now[0] += next(ages)

    monkeypatch.setattr(top, "time", mock.Mock(sleep=grow_old))
    monkeypatch.setattr(view, "time", mock.Mock(time=lambda: now[0]))
    done = CliRunner().invoke(app, ["top", str(run.path)])
    assert (done.exit_code, done.stdout) == (0, "no step yet, 0 windows\n")
    assert naps == [1.0] * 3


@pytest.mark.parametrize(
    ("pressed", "is_quit", "asked"),
    [("q", True, 0), ("Q", True, 0), ("xcy", False, 1), ("C", False, 1), ("cq", True, 1)],
)
def test_keys_have_the_effects_of_the_last_line(monkeypatch, pressed, is_quit, asked):
    """They are waited for until it is time to look again."""
    now, done = [0.0], []
    monkeypatch.setattr(top, "time", mock.Mock(monotonic=lambda: now[0]))

    def keys(seconds):
        assert 0 < seconds <= 1
        now[0] += 0.5
        return pressed if now[0] == 0.5 else ""

    assert top._is_quit(keys, lambda: done.append("asked"), lambda: done.append("drawn")) is is_quit
    assert done == ["asked", "drawn"] * asked


def test_a_terminal_that_was_closed_ends_the_view():
    source, end = os.pipe()
    try:
        os.write(end, b"c")
        assert keys._keys(source, 60) == "c"
        assert keys._keys(source, 0) == ""
        os.close(end)
        assert keys._keys(source, 60) == "q"
    finally:
        os.close(source)


def test_one_window_is_requested_at_a_time_with_its_result(run, monkeypatch):
    asked, go_on = [], threading.Event()

    class CaptureRequest:
        def __init__(self, folder, wish, tell):
            self.tell = tell
            asked.append((folder, wish.steps))

        def outcomes(self, timeout):
            self.tell("asking 1 rank")
            assert go_on.wait(60)
            raise PerfhooksError("nobody answered")

    monkeypatch.setattr("perfhooks.cli.actions.top.CaptureRequest", CaptureRequest)
    request = top._Request(run.path)
    request.begin()
    request.begin()
    assert asked == [(run.path, 3)]
    go_on.set()
    request._thread.join(60)
    assert request.note == "nobody answered"
    request.begin()
    request._thread.join(60)
    assert len(asked) == 2


def test_no_window_is_requested_if_no_rank_would_read_it(run, monkeypatch):
    monkeypatch.delattr("perfhooks.cli.actions.top.CaptureRequest")
    request = top._Request(run.path, "the run has ended")
    request.begin()
    assert (request.note, request._thread) == ("the run has ended", None)


@pytest.mark.process
def test_changes_are_printed_without_a_terminal(run):
    """Until Ctrl-C, which has the usual exit code."""
    run.owner(0, ALIVE)
    words = [sys.executable, "-m", "perfhooks", "top", str(run.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "no step yet, 0 windows\n"
        run.steps(0, [10.0] * 9)
        assert any(each.startswith("train step 9,") for each in process.stdout)
        process.send_signal(signal.SIGINT)
        assert "Traceback" not in process.communicate(timeout=300)[1]
        assert process.returncode == 130


@pytest.mark.process
def test_c_requests_a_window_and_q_withdraws_the_request(run):
    run.owner(0, ALIVE)
    run.steps(0, [10.0] * 9)
    requests = run.path / layout.REQUESTS
    with contextlib.closing(Terminal("top", str(run.path))) as terminal:
        terminal.read_until(lambda: "train step 9" in terminal.text and "q quit" in terminal.text)
        assert "\x1b[?1049h" in terminal.text, "a screen of its own"
        run.steps(0, [10.0], first=9)
        terminal.read_until(lambda: "train step 10" in terminal.text)
        terminal.press(b"c")
        terminal.read_until(lambda: any(requests.glob("*.call.json")))
        terminal.read_until(lambda: "requested the current step of 1 rank" in terminal.text)
        terminal.press(b"q")
        assert terminal.end() == 0
        assert not any(requests.iterdir())
        assert terminal.text.rstrip().endswith("0 windows"), "the last look stays"
        assert "\x1b[?1049l" in terminal.text
        assert terminal.modes() == terminal.before


@pytest.mark.process
@pytest.mark.parametrize(("ending", "code"), [(b"\x03", 0), (signal.SIGTERM, 143)])
def test_ctrl_c_and_signals_restore_the_terminal(run, ending, code):
    run.owner(0, GONE)
    run.steps(0, [10.0] * 9)
    with contextlib.closing(Terminal("top", str(run.path))) as terminal:
        terminal.read_until(lambda: "ended" in terminal.text and "q quit" in terminal.text)
        terminal.press(ending) if isinstance(ending, bytes) else terminal.process.send_signal(ending)
        assert terminal.end() == code
        assert "\x1b[?1049l" in terminal.text
        assert "\x1b[?25h" in terminal.text
        assert terminal.modes() == terminal.before
