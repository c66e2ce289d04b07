"""The verdict: equal trainings are not told apart, different ones are, and both sides are treated alike."""

import dataclasses
import math
from functools import cache
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfhooks import statistics
from perfhooks.comparing import sentences
from perfhooks.comparing.verdict import _Process, verdict
from perfhooks.errors import OptionError
from perfhooks.statistics import Level, level

PAIRS = 1000
STEPS = 300
AN_ALARM = ("slower", "faster")


def independent(random, runs):
    return random.normal(0, 0.05, (runs, STEPS))


def correlated(random, runs, phi=0.9, deviation=0.04):
    """What slows one step slows the next: an autoregressive process, settled before the first step."""
    noise = random.normal(0, deviation * math.sqrt(1 - phi**2), (runs, STEPS))
    found = np.empty((runs, STEPS))
    found[:, 0] = random.normal(0, deviation, runs)
    for step in range(1, STEPS):
        found[:, step] = phi * found[:, step - 1] + noise[:, step]
    return found


def drifting(random, runs):
    """Each run becomes slower or faster as it goes, by 2% or so, each one otherwise."""
    slope = random.normal(0, 0.02, (runs, 1))
    return slope * np.linspace(0, 1, STEPS) + random.normal(0, 0.02, (runs, STEPS))


@cache
def levels(noise):
    """2,000 runs of one training, 100 ms a step."""
    random = np.random.default_rng(17)
    if noise == "from process to process":
        shifts = random.normal(0, 0.02, 2 * PAIRS)
        return [slower(each, math.exp(shift)) for each, shift in zip(levels("correlated"), shifts, strict=True)]
    make = {"independent": independent, "correlated": correlated, "drifting": drifting}[noise]
    return [level(100 * np.exp(run)) for run in make(random, 2 * PAIRS)]


NOISES = ("independent", "correlated", "drifting", "from process to process")


def slower(run, factor):
    """The level of the same run with all steps longer."""
    return dataclasses.replace(run, log=run.log + math.log(factor))


def outcomes(noise, runs, factor=1.0):
    """What is said of pairs of trainings with so many runs a side, of which the second is slower by a factor."""
    made = levels(noise)
    pairs = [made[first : first + 2 * runs] for first in range(0, len(made) - 2 * runs + 1, 2 * runs)]
    return [verdict(each[:runs], [slower(run, factor) for run in each[runs:]]).outcome for each in pairs]


@pytest.mark.parametrize("noise", NOISES)
def test_of_a_thousand_pairs_of_equal_runs_one_in_a_hundred_alarms_at_most(noise):
    found = outcomes(noise, runs=1)
    assert len(found) == PAIRS
    assert sum(each in AN_ALARM for each in found) <= PAIRS / 100


@pytest.mark.parametrize("runs", [2, 3, 5])
@pytest.mark.parametrize("noise", NOISES)
def test_several_equal_runs_a_side_alarm_as_seldom(noise, runs):
    found = outcomes(noise, runs)
    assert sum(each in AN_ALARM for each in found) <= max(len(found) / 100, 1)


@pytest.mark.parametrize(("noise", "runs"), [("independent", 3), ("correlated", 5), ("drifting", 5)])
def test_five_percent_more_are_found_in_most(noise, runs):
    found = outcomes(noise, runs, 1.05)
    assert found.count("slower") > len(found) / 2
    assert "faster" not in found


def test_where_processes_differ_by_two_percent_five_are_found_with_a_dozen_runs_a_side():
    found = outcomes("from process to process", 12, 1.05)
    assert found.count("slower") > len(found) / 2


@pytest.mark.parametrize(("noise", "runs"), [("independent", 1), ("correlated", 3), ("drifting", 3)])
def test_twelve_percent_more_are_found_in_all(noise, runs):
    found = outcomes(noise, runs, 1.12)
    assert found.count("slower") >= 0.99 * len(found)


def test_where_processes_differ_by_two_percent_twelve_are_found_with_five_runs_a_side():
    found = outcomes("from process to process", 5, 1.12)
    assert found.count("slower") >= 0.95 * len(found)


def test_equal_runs_are_called_the_same_when_there_are_enough():
    assert outcomes("independent", 5).count("same") > 90


MIRROR = {"slower": "faster", "faster": "slower", "same": "same", "undecided": "undecided"}


@settings(max_examples=60)
@given(
    st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=7),
    st.integers(1, 6),
    st.floats(0.8, 1.25),
)
def test_b_against_a_is_the_mirror_of_a_against_b(seeds, cut, factor):
    runs = [level(np.exp(np.random.default_rng(seed).normal(0, 0.03, 60))) for seed in seeds]
    cut = min(cut, len(runs) - 1)
    a, b = runs[:cut], [slower(run, factor) for run in runs[cut:]]
    there, back = verdict(a, b), verdict(b, a)
    assert back.outcome == MIRROR[there.outcome]
    assert (back.ratio, back.low, back.high) == pytest.approx((1 / there.ratio, 1 / there.high, 1 / there.low))
    assert (back.more_steps, back.more_runs) == (there.more_steps, there.more_runs)


def test_the_interval_is_that_of_a_bootstrap_with_draws():
    """What is worked out for infinitely many draws is what many draws give, but for Student's wider reach."""
    random = np.random.default_rng(3)
    steps = 100 * np.exp(correlated(random, 1)[0])
    found = level(steps)
    length = statistics.block_length(np.log(steps))
    blocks = STEPS // length
    starts = random.integers(0, STEPS, (20_000, blocks, 1))
    medians = np.median(np.log(steps)[(starts + np.arange(length)) % STEPS].reshape(20_000, -1), axis=1)
    wider = statistics.student(0.005, STEPS / length - 1) / NormalDist().inv_cdf(0.995)
    low, high = np.quantile(medians, [0.005, 0.995])
    assert (found.below, found.above) == pytest.approx(
        ((found.log - low) * wider, (high - found.log) * wider), rel=0.25
    )


def test_one_run_a_side_is_known_less_well_than_its_steps_tell():
    quiet = [level(100 + 0.01 * np.random.default_rng(seed).random(1000)) for seed in range(8)]
    one, several = verdict(quiet[:1], quiet[1:2]), verdict(quiet[:4], quiet[4:])
    assert not one.is_process_known
    assert one.high > 1.05
    assert one.outcome == "undecided"
    assert several.is_process_known
    assert several.high < 1.001
    assert several.outcome == "same"


def test_where_steps_differ_much_processes_are_taken_to_differ_more():
    random = np.random.default_rng(9)
    quiet, disturbed = ([level(np.exp(random.normal(0, sd, 2000))) for _ in "ab"] for sd in (0.03, 0.4))
    assert verdict(quiet[:1], quiet[1:]).process_sd == 0.02
    assert verdict(disturbed[:1], disturbed[1:]).process_sd == pytest.approx(0.12, rel=0.1)
    assert verdict(disturbed[:1], [slower(disturbed[1], 1.3)]).outcome == "undecided"


def test_where_parts_of_a_run_differ_processes_are_taken_to_differ_more():
    random = np.random.default_rng(11)
    noise, slow = random.normal(0, 0.03, (2, 800)), np.repeat([0.0, 0.3, 0.1, 0.4] * 2, 100)
    steady = [level(np.exp(each)) for each in noise]
    drifting = [level(np.exp(each + slow)) for each in noise]
    shuffled = [level(np.exp(random.permutation(each + slow))) for each in noise]
    apart = np.array([0.0, 0.3, 0.1, 0.4] * 2).std(ddof=1)
    assert [each.drift for each in drifting] == pytest.approx([apart] * 2, rel=0.1)
    assert all(each.drift < 0.01 for each in steady)
    assert all(each.drift < apart / 2 for each in shuffled)
    assert verdict(steady[:1], [slower(steady[1], 1.5)]).outcome == "slower"
    assert verdict(drifting[:1], [slower(drifting[1], 1.5)]).outcome == "undecided"
    assert verdict(drifting[:1], drifting[1:]).process_sd == pytest.approx(2 * apart, rel=0.1)


def test_undecided_says_how_many_runs_would_decide_and_they_do():
    random = np.random.default_rng(5)

    def runs(count, factor):
        return [level(factor * 100 * np.exp(random.normal(0, 0.02, 200))) for _ in range(count)]

    found = verdict(runs(1, 1), runs(1, 1.05))
    assert (found.outcome, found.more_steps) == ("undecided", None)
    assert found.more_runs
    count = 1 + found.more_runs
    assert verdict(runs(count, 1), runs(count, 1.05)).outcome == "slower"


def test_undecided_says_how_many_steps_would_decide_where_only_steps_are_missing():
    random = np.random.default_rng(6)

    def said(steps):
        runs = [level(factor * np.exp(random.normal(0, 0.3, steps))) for factor in (1, 1, 1, 1, 1.1, 1.1, 1.1, 1.1)]
        return verdict(runs[:4], runs[4:])

    found = said(100)
    assert found.outcome == "undecided"
    assert found.more_steps
    assert said(2 * (100 + found.more_steps)).outcome == "slower"


def open_question(ratio, reach, steps=100):
    """Four runs a side that agree to the last digit, of which the steps leave the ratio open by so much (a logarithm).

    The mean of four runs is known twice as well as one, and the ratio of two such means less well by the root of 2.
    """
    own = reach * math.sqrt(2)
    return verdict(*([Level(math.log(median), own, own, steps)] * 4 for median in (1, ratio)))


@pytest.mark.parametrize("beyond", [0.03, -0.01])
@pytest.mark.parametrize(("times", "steps", "runs"), [(2, 300, 12), (4.9, 2301, 93)])
def test_an_interval_that_is_some_times_too_wide_needs_the_square_of_that_in_steps_or_runs(beyond, times, steps, runs):
    """Whether the answer is to be slower, or the same."""
    found = open_question(1.02 * math.exp(beyond), times * abs(beyond))
    assert found.outcome == "undecided"
    assert found.more_steps == pytest.approx(steps, abs=1)
    assert found.more_runs == pytest.approx(runs, abs=1)


@pytest.mark.parametrize(("times", "is_step_advice", "is_run_advice"), [(5.2, True, False), (32, False, False)])
def test_nobody_is_told_to_record_a_hundred_runs_or_a_thousand_times_the_steps(times, is_step_advice, is_run_advice):
    found = open_question(1.02 * math.exp(0.01), times * 0.01)
    assert (found.more_steps is not None, found.more_runs is not None) == (is_step_advice, is_run_advice)
    assert ("no number of runs that one makes will decide" in sentences.certainty(found)[0]) == (not is_step_advice)


def test_a_verdict_says_what_would_decide_and_what_it_assumes_of_processes():
    found = open_question(1.02 * math.exp(0.03), 0.06)
    assert sentences.verdict(found) == "Not decided: a step takes 1.05 ms instead of 1 ms, +5.1%, which may be chance."
    assert sentences.certainty(found)[0].endswith("; 300 more steps in each run or 12 more runs a side would decide")
    for spread, assumed in ((0.01, "2% from process to process)"), (0.2, "6% from process to process, as steps")):
        run = Level(0.0, 0.0, 0.0, 100, spread=spread)
        assert f"so it allows for {assumed}" in sentences.certainty(verdict([run], [run]))[0]


def test_what_few_steps_leave_open_is_open_whatever_several_runs_agree_on():
    """Three runs a side of 20 steps that differ by 40% each: that their medians are equal by chance decides nothing."""
    found = verdict(*[[Level(0.0, 0.2, 0.2, 20)] * 3] * 2)
    assert found.is_process_known
    assert found.outcome == "undecided"
    assert math.log(found.high) == pytest.approx(0.2 * math.sqrt(2 / 3))


def test_of_steps_that_differ_by_chance_alone_half_of_all_runs_show_no_drift():
    """Medians of parts differ in every run; what single steps make them differ by is no drift."""
    found = [level(np.exp(run)).drift for run in independent(np.random.default_rng(21), 200)]
    assert 0.4 < sum(each == 0 for each in found) / len(found) < 0.75


@pytest.mark.parametrize(("runs", "is_known"), [(2, False), (3, True)])
def test_three_runs_a_side_tell_how_much_processes_differ_and_two_do_not(runs, is_known):
    assert verdict(*[[Level(0.0, 0.0, 0.0, 100)] * runs] * 2).is_process_known == is_known


@pytest.mark.parametrize(("ratio", "outcome"), [(1.019, "same"), (1.021, "slower"), (1 / 1.021, "faster")])
def test_two_percent_are_no_difference_unless_said_otherwise(ratio, outcome):
    assert open_question(ratio, 0.0).outcome == outcome


def test_an_interval_holds_ninety_nine_of_a_hundred_medians():
    """Of one run of independent steps: 2.58 errors of a median to either side, more with few blocks (Student)."""
    found = [level(np.exp(run)) for run in np.random.default_rng(8).normal(0, 0.05, (20, 4000))]
    error = math.sqrt(math.pi / 2) * 0.05 / math.sqrt(4000)
    assert np.mean([each.above + each.below for each in found]) / 2 / error == pytest.approx(2.58, rel=0.1)


def test_steps_that_are_all_equal_have_an_interval_without_width():
    found = level([5.0] * 40)
    assert (found.median, found.below, found.above) == (pytest.approx(5), 0, 0)
    assert verdict([found] * 3, [found] * 3).outcome == "same"


@pytest.mark.parametrize("steps", [[1.0] * 19, [1.0] * 30 + [0.0]], ids=["too few", "no time at all"])
def test_steps_that_say_nothing_are_refused(steps):
    with pytest.raises(OptionError, match="steps must be at least 20 times above 0"):
        level(steps)


def test_a_long_run_takes_a_moment():
    """65,536 steps a side, the most that a run keeps at once."""
    import time

    random = np.random.default_rng(0)
    began = time.process_time()
    level(np.exp(random.normal(0, 0.05, 1 << 16)))
    assert time.process_time() - began < 2


@pytest.mark.parametrize(("more", "is_measured"), [(0, False), (1, False), (2, True)])
def test_advice_on_more_runs_trusts_what_runs_differ_by_from_three_a_side_on(more, is_measured):
    now = _Process.of([np.zeros(1), np.zeros(1)], 0.02)
    assert now.with_more(more).is_measured == is_measured
