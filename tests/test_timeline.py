"""Timeline: every step's wall time and wait, from raw clock readings."""

from __future__ import annotations

import gc
import itertools
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_equal  # numpy 1 starts a process at this import

import perfhooks
from perfhooks.core.schedule import Phase
from perfhooks.run import steps
from perfhooks.run.timeline import HEADER, Rows, Timeline


@pytest.mark.slow
@given(
    durations=st.lists(st.tuples(st.integers(0, 100), st.integers(0, 100)), min_size=1, max_size=40),
    first=st.integers(0, 10**9),
    cuts=st.sets(st.integers(0, 40)),
)
def test_steps_keep_their_times_if_taken_at_any_moment(durations, first, cuts):
    """Each step is a wait and a rest; taking the readings in between loses and moves nothing."""
    line = Timeline("train")
    line.begin(first)
    now = line._begins[first] = 1000
    taken = []
    for index, (wait, rest) in enumerate(durations):
        line.data_arrived(now + wait)
        now += wait + rest
        line.end_step(now)
        if index in cuts:
            taken.append(line.take())
    taken.append(line.take())
    numbers = [number for each in taken for number in each.numbers.tolist()]
    walls = [wall for each in taken for wall in (each.ends - each.begins).tolist()]
    waits = [wait for each in taken for wait in each.waits.tolist()]
    assert numbers == list(range(first, first + len(durations)))
    assert walls == [wait + rest for wait, rest in durations]
    total = dict.fromkeys(numbers, -1)
    assert len(waits) == len(total)
    if all(rest > 0 for _, rest in durations):
        assert waits == [wait for wait, _ in durations]


@pytest.mark.slow
@given(
    walls=st.lists(st.integers(0, 100), max_size=30),
    first=st.integers(0, 50),
    asked=st.integers(0, 90),
    taken=st.sets(st.integers(0, 30)),
    paused=st.sets(st.integers(1, 30)),
)
def test_last_wall_times_equal_those_of_all_readings(walls, first, asked, taken, paused):
    line = Timeline("train")
    line.begin(first)
    now = line._begins[first] = 1000
    for index, wall in enumerate(walls):
        if index in paused:  # we kept the loop waiting
            now += 7
            line.begin(first + index)
            line._begins[first + index] = now
        now += wall
        line.end_step(now)
        if index in taken:  # as the watcher does, every few seconds
            line.take()
    wanted = max(asked - first, 0)
    assert line.walls_since(asked)[1].tolist() == walls[wanted:]
    ended = line.since(asked)
    begin, found = line.walls_since(asked)
    assert found.tolist() == (ended.ends - ended.begins).tolist()
    assert begin + np.arange(len(found)) == pytest.approx(ended.numbers)


def test_time_that_we_took_between_two_steps_belongs_to_neither():
    line = Timeline("train")
    line.begin(0)
    line._begins[0] = 0
    line.end_step(10)
    line.begin(1)
    line._begins[1] = 50
    line.end_step(60)
    assert np.subtract(*line.take()[2:0:-1]).tolist() == [10, 10]


def test_unmeasured_wait_is_empty(tmp_path):
    line = Timeline("train")
    line.begin(0)
    line._begins[0] = 0
    line.end_step(1_500_000)
    line.rows().append_to(tmp_path / "t.csv")
    header = "stage,step,phase,wall_ms,data_ms,backward_ms,update_ms\n"
    assert (tmp_path / "t.csv").read_text() == header + "train,0,wait,1.500000,,,\n"


def test_rows_are_appended_below_one_header(tmp_path):
    line = Timeline("train")
    line.begin(0)
    began = line._begins[0]
    for step in range(6):
        line.enter(step, Phase.ACTIVE if step % 2 else Phase.WAIT)
        line.end_step(began + (step + 1) * 1_000_000)
        if step == 3:
            line.rows().append_to(tmp_path / "t.csv")
    with (tmp_path / "some.raw").open("wb") as file:
        line.rows().save(file)
    Rows.load(tmp_path / "some.raw").append_to(tmp_path / "t.csv")
    lines = (tmp_path / "t.csv").read_text().splitlines()
    assert len(lines) == 7
    assert [row.split(",")[2] for row in lines[1:]] == ["wait", "active"] * 3


def test_empty_timeline_gives_no_steps():
    assert [column.tolist() for column in Timeline("train").take()] == [[]] * 6
    assert np.array(Timeline("train").take()).shape == (6, 0)


def test_time_between_two_passes_is_no_wait_for_data():
    """As ``train(); test()`` in every epoch; also when the readings were taken in between."""
    for is_taken_before in (False, True):
        line = Timeline("train")
        line.begin(0)
        line._begins[0] = 0
        line.data_asked(0)
        line.data_arrived(3)
        line.end_step(10)
        taken = [line.take()] if is_taken_before else []
        line.data_asked(4000)
        line.data_arrived(4005)
        line.end_step(4010)
        line.data_arrived(4012)
        line.end_step(4020)
        taken.append(line.take())
        assert [wait for each in taken for wait in each.waits.tolist()] == [3, 5, 2]
        assert [wall for each in taken for wall in (each.ends - each.begins).tolist()] == [10, 4000, 10]


def test_waits_of_a_step_are_summed_without_work_between():
    """As where gradients are accumulated; also when the readings are taken in the middle of a step."""
    for is_taken_between in (False, True):
        line = Timeline("train")
        line.begin(0)
        line._begins[0] = 0
        taken = []
        for begin in (0, 1000):
            line.data_asked(begin + 1)
            line.data_arrived(begin + 4)
            if is_taken_between:
                taken.append(line.take())
            line.data_asked(begin + 500)
            line.data_arrived(begin + 507)
            line.end_step(begin + 1000)
        taken.append(line.take())
        assert [wait for each in taken for wait in each.waits.tolist()] == [3 + 7, 3 + 7]


def test_first_of_several_unrequested_batches_counts():
    """What lies between them is work and waiting, and nobody has said how much of which."""
    line = Timeline("train")
    line.begin(0)
    line._begins[0] = 0
    line.data_arrived(5)
    line.data_arrived(600)
    line.end_step(1000)
    line.data_arrived(1007)
    line.end_step(2000)
    assert line.take().waits.tolist() == [5, 7]


@pytest.mark.parametrize("is_taken_between", [False, True])
def test_last_backward_pass_of_a_step_counts(is_taken_between):
    """Gradients are accumulated in the first step, the second one has no backward pass, a third goes on."""
    line = Timeline("train")
    line.begin(0)
    line._begins[0] = 1000
    taken = []
    for pair in ((1010, 1020), (1040, 1060)):
        line.passed_back(pair)
        if is_taken_between:
            taken.append(line.take())
    line.end_step(1100)
    line.end_step(1200)
    line.passed_back((1205, 1215))
    taken.append(line.take())
    line.end_step(1220)
    taken.append(line.take())
    assert [each for steps in taken for each in steps.backwards.tolist()] == [40, -1, 5]
    assert [each for steps in taken for each in steps.updates.tolist()] == [60, -1, 15]


@pytest.mark.process
def test_loop_with_tests_waits_only_for_its_data(tmp_path):
    """Nothing is slept away: the test burns more time of the processor than all batches of a pass take to fetch."""
    with perfhooks.Profiler(schedule="wait=1 warmup=1 active=6 repeat=1", out=tmp_path, background=False) as prof:
        steps = prof.steps(range(4))
        for _ in range(10):
            list(steps)
            sum(range(1_000_000))
    (file,) = {path.resolve() for path in tmp_path.glob("*/rank0.timeline.csv")}
    rows = [line.split(",") for line in file.read_text().splitlines()[1:]]
    between = [float(row[4]) / float(row[3]) for row in rows if row[1] in map(str, range(4, 40, 4))]
    assert len(between) == 9
    assert median(between) < 0.2, "a busy machine may pause it in some fetches"


def test_files_read_together_equal_files_read_singly(tmp_path):
    """Also those that were written to say something of the next file."""
    texts = [
        "train,1,wait,1.0,,,\ntrain,2,wait,2.0,0.5,,\n", "", "val,3,active,1.0,,,\ntrain,4,wa", "train,5,wait,1.0,,,\n",
        "x,-2,wait,1.0,,,\ntrain,6,wait,1.0,,,\n",
    ]  # fmt: skip
    paths = [tmp_path / f"rank{rank}.timeline.csv" for rank in range(6)]
    for path, text in zip(paths, texts, strict=False):
        path.write_text(HEADER + text)
    for some in (paths[:4], paths[4:] + paths[:2], paths):
        together = steps.read_last_of(some, 1 << 20)
        assert [list(each) for each in together] == [list(steps.read(path)) for path in some]
        for mine, path in zip(together, some, strict=True):
            for stage, known in steps.read(path).items():
                assert_equal(mine[stage], known)
    numbers = [list(each.get("train", steps.NONE).numbers) for each in steps.read_last_of(paths, 1 << 20)]
    assert numbers == [[1, 2], [], [], [5], [6], []]


def test_collection_may_begin_steps_while_the_timeline_is_read():
    """A finalizer of the program releases the GIL, and the training thread goes on."""
    timeline, later = Timeline("train"), itertools.count(100_000)
    for step in range(5000):  # more than Python's stock of unused tuples
        timeline.begin(step)
        timeline.end_step(step)

    def begin(*_):
        timeline.begin(next(later))

    threshold = gc.get_threshold()
    gc.callbacks.append(begin)
    gc.set_threshold(10)
    try:
        walls, taken = timeline.walls_since(0)[1], timeline.take()
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(begin)
    assert len(walls) == len(taken.numbers) == 5000
    assert next(later) > 100_000
