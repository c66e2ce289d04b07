"""Steps of equal work differ by chance; a rank is named only by evidence that goes beyond that."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from perfhooks.analysis.ranks import collectives, files, findings, steps
from perfhooks.core.statistics import beyond_others

pytestmark = pytest.mark.nightly

WALL = 100.0
NO_COLLECTIVES = collectives.large(collectives.match(pl.DataFrame(schema=dict(files.COLLECTIVES))))


def named(own):
    """The ranks that are named, whose own work is given by rank and step; the step ends when the slowest is done."""
    rank, step = (each.ravel() for each in np.indices(own.shape))
    wall, work = np.broadcast_to(own.max(axis=0), own.shape).ravel(), own.ravel()
    split = pl.DataFrame({"rank": rank, "step": step, "wall_ms": wall, "own_ms": work, "wait_ms": wall - work})
    split = split.with_columns(compute_ms="own_ms", data_ms=pl.lit(0.0), communication_ms=pl.lit(0.0))
    split = split.with_columns(other_ms="data_ms", busy_comm_ms="data_ms", exposed_comm_ms="data_ms")
    table = steps.of_ranks(split, NO_COLLECTIVES, {})
    window = {
        "name": "w",
        "ranks": {name: table[name].to_list() for name in table.columns},
        "unprofiled_ms": [None] * table.height,
    }
    return [rank for finding in findings({"windows": [window]}) for rank in finding["ranks"]]


def normal(rng, shape):
    return rng.normal(1, 0.15, shape)


def skewed(rng, shape):
    return rng.lognormal(0, 0.2, shape)


def spikes(rng, shape):
    return 1 + 0.02 * rng.random(shape) + 0.5 * (rng.random(shape) < 0.1)


@pytest.mark.slow
@pytest.mark.parametrize("noise", [normal, skewed, spikes])
@pytest.mark.parametrize(("ranks", "count"), [(2, 3), (4, 3), (8, 3), (2, 8), (16, 5)])
def test_noise_names_no_rank(noise, ranks, count):
    rng = np.random.default_rng(7)
    wrong = sum(bool(named(WALL * noise(rng, (ranks, count)))) for _ in range(100))
    assert wrong <= 3, "at most 1 in 100 windows is meant"


@pytest.mark.parametrize(("ranks", "count"), [(2, 3), (4, 3), (8, 3), (16, 5)])
def test_a_rank_that_is_slow_indeed_is_named(ranks, count):
    rng = np.random.default_rng(7)
    found = 0
    for _ in range(50):
        own = WALL * rng.normal(1, 0.01, (ranks, count))
        own[1] *= 1.25
        found += named(own) == [1]
    assert found >= 48


def test_two_steps_that_agree_are_evidence():
    assert named(np.array([[100.0, 100.0], [140.0, 140.5]])) == [1]


def test_three_steps_that_do_not_are_none():
    own = np.array([[100.0, 104.0, 98.0], [116.0, 175.0, 117.0], [99.0, 101.0, 103.0]])
    assert (beyond_others(own)[1] >= 10).all(), "without the evidence it would be named"
    assert named(own) == []


def test_a_single_step_of_few_ranks_is_none():
    assert named(np.array([[100.0], [140.0]])) == []
