"""The schedule of who gave none: when its window begins, and how long it lasts."""

from __future__ import annotations

import itertools
import time

import pytest
import torch

from perfhooks import Profiler, Schedule
from perfhooks.core.schedule import WhenSettled, is_enough, settled
from perfhooks.run.capture import Place

S = 1_000_000_000


def window(walls, *, together=False, first=0, looks=None, known=50, shortest_wait_s=0.0):
    """The window of a loop whose steps take so many seconds, asked at each step at which it wants to be."""
    schedule, ends = WhenSettled(), [0, *itertools.accumulate(int(wall * S) for wall in walls)]
    schedule.begin(first, 0)
    step = first
    while (step := schedule.next_change(step)) - first < len(ends):
        if looks is not None:
            looks.append(step)
        told = [after - before for before, after in itertools.pairwise(ends[: step - first + 1])]
        found = schedule.decided(
            step, ends[step - first], told[-known:], together=together, shortest_wait_s=shortest_wait_s
        )
        if found is not None:
            return found
    return None


def test_window_begins_after_ten_even_steps_and_lasts_three():
    assert window([5.0] + [0.2] * 30) == (10, 12, 14)
    assert window([5.0] + [0.2] * 30, first=700) == (710, 712, 714)


def test_window_waits_while_steps_become_faster():
    assert window([0.2 * 0.8**step for step in range(20)] + [0.002] * 60).first == 50
    assert window([0.1] * 8 + [0.05] * 60).first == 22


def test_window_begins_after_fifty_uneven_steps():
    assert window([0.01 * (1 + step % 50) for step in range(90)]).first == 50


@pytest.mark.parametrize(
    ("walls", "first", "active"), [([40.0] * 9, 2, 2), ([8.0] * 9, 3, 4), ([8.0, *[0.7] * 40], 10, 12)]
)
def test_window_begins_after_twenty_seconds_of_long_steps(walls, first, active):
    found = window(walls)
    assert found == (first, active, active + 2)


@pytest.mark.parametrize(("wall", "first"), [(0.01, 250), (0.5, 10), (1.0, 10)])
def test_window_begins_after_a_minimum_wait(wall, first):
    assert window([wall] * 400, shortest_wait_s=2.5).first == first


@pytest.mark.parametrize(("again", "first"), [(3, 13), (40, 30)])
def test_restarted_loop_waits_again(again, first):
    """As a training that loads a checkpoint; one that only goes on later, after a pause, is not."""
    schedule = WhenSettled()
    schedule.begin(20, 0)
    schedule.begin(again, 10 * S)
    step, found = again, None
    while found is None:
        step = schedule.next_change(step)
        found = schedule.decided(step, 10 * S + (step - again) * S // 5, [S // 5] * min(step, 50), together=False)
    assert found.first == max(first, again + 1)


@pytest.mark.parametrize("known", [2, 3, 13])
def test_window_begins_in_time_with_few_stored_steps(known):
    assert window([0.6 * (1 + step % 7) for step in range(60)], known=known).first in range(10, 14)


@pytest.mark.parametrize(("wall", "steps"), [(0.2, 3), (0.1, 3), (0.05, 6), (0.01, 30), (0.003, 100), (0.0001, 100)])
def test_window_has_its_minimum_length(wall, steps):
    found = window([wall] * 60)
    assert found.last - found.active + 1 == steps


def test_few_steps_compare_their_times():
    looks = []
    window([0.01 * (1 + step % 50) for step in range(90)], looks=looks)
    assert looks == [1, 2, 10, 15, 22, 33, 50]


@pytest.mark.parametrize("wall", [0.001, 0.02, 0.05, 0.2, 3.0, 7.0, 45.0])
@pytest.mark.parametrize("late", [0.0, 1.5, 11.0])
def test_ranks_that_begin_at_different_times_record_equal_steps(wall, late):
    noise = [1 + 0.001 * (step % 3) for step in range(40)]
    early = window([wall, *(wall * each for each in noise)], together=True)
    assert window([wall + late, *(wall * each for each in noise[::-1])], together=True) == early


def test_schedule_is_described_in_text():
    assert isinstance(Schedule.of("when settled"), WhenSettled)
    assert str(Schedule.of("when settled")).startswith("when settled\none window")


def test_long_evaluation_does_not_count_as_a_typical_step():
    """Warm-up of two steps and three that last, as steps of 0.3 s have it; two such evaluations do."""
    assert window([0.3, 25.0, *[0.3] * 9]) == (2, 4, 6)
    assert window([30.0, 25.0, *[0.3] * 9]) == (2, 2, 4)


@pytest.mark.parametrize(
    ("walls", "steps"), [([0.03] * 99, 10), ([5.0, *[0.03] * 99], 10), ([0.2] * 99, 3), ([0.001] * 300, 100)]
)
def test_recorded_steps_end_the_window_by_their_own_pace(walls, steps):
    nanoseconds = [int(wall * S) for wall in walls]
    assert next(count for count in range(301) if is_enough(nanoseconds[:count], 0)) == steps


@pytest.mark.parametrize(("per_step", "steps"), [(50, 100), (500, 10), (1000, 5), (4500, 3), (10**6, 3)])
def test_enough_operators_end_the_window(per_step, steps):
    assert next(count for count in range(301) if is_enough([S // 1000] * count, per_step * count)) == steps


@pytest.mark.recorder
@pytest.mark.parametrize(("ranks", "fewest", "most"), [("1", 3, 15), ("2", 16, 100)])
def test_only_a_single_rank_ends_the_window_by_its_step_times(tmp_path, monkeypatch, ranks, fewest, most):
    for name, value in {"RANK": "0", "WORLD_SIZE": ranks, "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    recorded, begins = [], []
    with Profiler(schedule="when settled", out=".", run="r", explain=False, background=False) as prof:
        for step in prof.steps(range(600)):
            begins.append(time.monotonic())
            if prof.is_recording:
                recorded.append(step)
                time.sleep(0.02)
    assert fewest <= len(recorded) <= most
    # where few steps are enough their median is long, so they last this long even without the longest one
    assert begins[recorded[-1] + 1] - begins[recorded[0]] >= settled.SHORTEST_S / 3
    names = [path.parent.name for path in tmp_path.glob("r/*/rank0.capture.json")]
    assert names == [f"train-{recorded[0]:06d}-{recorded[-1]:06d}"]


@pytest.mark.recorder
def test_window_of_many_operators_is_short_and_complete(tmp_path, monkeypatch):
    monkeypatch.setattr(settled, "SHORTEST_S", 1e9)  # however long the steps take: their operators end it
    recorded = []
    with Profiler(schedule="when settled", out=tmp_path, run="r", explain=False, background=False) as prof:
        for step in prof.steps(range(300)):
            if prof.is_recording:
                recorded.append(step)
            for _ in range(1500):
                torch.add(1, 1)
    place = Place(next(tmp_path.glob("r/*/rank0.capture.json")).parent, 0)
    assert (len(recorded), place.load().partial) == (4, None)
    assert place.folder.name == f"train-{recorded[0]:06d}-{recorded[-1]:06d}"
