"""Who makes the other ranks wait, at every step."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from perfhooks.analysis.ranks.leads import RankSteps, StageTimes, align_steps, describe_lead, frontier, leads

NAMES = ("update", "data", "forward", "backward")
TIMES = arrays.arrays(
    np.int64, st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 8)), elements=st.integers(0, 10**12)
)


@pytest.mark.slow
@given(TIMES)
def test_exposed_times_equal_a_simple_computation(times):
    ranks, stages, steps = times.shape
    found = frontier(times)
    for step in range(steps):
        before = 0
        for stage in range(stages):
            ends = [sum(int(times[rank, each, step]) for each in range(stage + 1)) for rank in range(ranks)]
            assert found.exposed[stage, step] == max(ends) - before
            assert found.leader[stage, step] == ends.index(max(ends))
            before = max(ends)
        assert int(found.exposed[:, step].sum()) == max(int(times[rank, :, step].sum()) for rank in range(ranks))


def test_blocks_of_steps_equal_a_computation_step_by_step():
    times = np.random.default_rng(0).integers(0, 100, (3, 4, 1300))
    whole = frontier(times)
    for step in (0, 511, 512, 1299):
        assert (frontier(times[:, :, [step]]).exposed[:, 0] == whole.exposed[:, step]).all()


def ranks_of(count, *, steps=400, seed=0, late=(), sigma_ms=0.5):
    """Ranks that meet in their backward pass, where early ones wait; each of `late` is a rank, a stage, and when."""
    dice = np.random.default_rng(seed)
    own = np.abs(dice.normal([[[1.0], [2.0], [5.0], [8.0]]], sigma_ms, (count, 4, steps)))
    for rank, stage, when in late:
        own[rank, NAMES.index(stage)] += 30.0 * np.array([when(step) for step in range(steps)])
    ends = own.sum(axis=1)
    own[:, 3] += ends.max(axis=0) - ends
    return StageTimes(NAMES, np.arange(steps) + 1000, (own * 1e6).astype(np.int64))


KINDS = {
    "constant": lambda _: True,
    "sudden": lambda step: step >= 240,
    "until": lambda step: step < 130,
    "rare": lambda step: step % 8 == 3,
    "alternating": lambda step: step % 2 == 0,
}


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stage", NAMES[:3])
def test_planted_delay_names_its_rank_and_stage_only(stage, kind, count):
    stages = ranks_of(count, late=[(1, stage, KINDS[kind])])
    (lead,) = leads(stages)
    assert (lead.row, NAMES[lead.stage]) == (1, stage)
    assert lead.lead_ms == pytest.approx(30, abs=2)
    assert lead.percent == pytest.approx({"rare": 12.5, "alternating": 50}.get(kind, 100), abs=5)
    assert lead.since == (pytest.approx(1240, abs=2) if kind == "sudden" else None)
    assert lead.until == (pytest.approx(1129, abs=2) if kind == "until" else None)
    assert lead.total_ms == pytest.approx(sum(map(KINDS[kind], range(400))) * 29, rel=0.1)


@pytest.mark.parametrize(("count", "seed"), [*itertools.product((2, 4, 16), range(10))])
def test_equal_noisy_ranks_have_no_straggler(count, seed):
    assert leads(ranks_of(count, seed=seed)) == []
    assert leads(ranks_of(count, seed=seed, sigma_ms=20.0)) == []


def test_two_late_ranks_are_named_and_most_ranks_are_not():
    always = KINDS["constant"]
    found = leads(ranks_of(8, late=[(2, "data", always), (5, "data", always)]))
    assert {(lead.row, lead.stage) for lead in found} == {(2, 1), (5, 1)}
    assert leads(ranks_of(3, late=[(0, "data", always), (1, "data", always)])) == []


def test_single_long_pause_is_no_evidence():
    assert leads(ranks_of(4, late=[(1, "data", lambda step: 1000.0 * (step == 77))])) == []


def test_message_contains_delay_begin_and_cost():
    (lead,) = leads(ranks_of(4, late=[(1, "data", KINDS["sudden"])]))
    assert describe_lead(lead._replace(lead_ms=30.0, cost_ms=28.0, since=41000), "data") == (
        "is late by 30 ms waiting for data from step 41,000: the other ranks wait 28 ms a step"
    )


def steps_of(numbers, *, data=1.0, backward=4.0, update=9.0, wall=12.0):
    columns = (np.full(len(numbers), float(value)) for value in (wall, data, backward, update))
    return RankSteps(np.array(numbers, np.int64), *columns)


def test_steps_are_aligned_by_number_between_backward_passes():
    found = align_steps([steps_of(range(50)), steps_of([*range(10, 40), *range(30, 60)])])
    assert found.names == NAMES
    assert found.numbers.tolist() == list(range(11, 50))
    assert (found.times == np.array([3, 1, 3, 5])[None, :, None] * 1_000_000).all()


@pytest.mark.parametrize(
    ("unknown", "names"),
    [
        ({"update": np.nan, "backward": np.nan}, ("data", "rest")),
        ({"data": np.nan}, ("update", "forward", "backward")),
        ({"data": np.nan, "update": np.nan}, ("step",)),
    ],
)
def test_stage_that_one_rank_lacks_is_omitted(unknown, names):
    found = align_steps([steps_of(range(50)), steps_of(range(50), **unknown)])
    assert found.names == names
    assert (found.times >= 0).all()


def test_ranks_with_too_few_common_steps_are_omitted():
    assert align_steps([steps_of(range(50)), steps_of(range(40, 90))]) is None
    assert align_steps([]) is None
