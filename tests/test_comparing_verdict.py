"""The verdict: equal trainings are not told apart, different ones are, and both sides are treated alike."""

import math
from dataclasses import replace
from functools import cache
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfhooks.analysis.comparison import sentences, turns
from perfhooks.analysis.comparison.difference import PROCESS_SD, StepPair
from perfhooks.analysis.comparison.sentences import certainty
from perfhooks.analysis.comparison.verdict import of_pairs, verdict
from perfhooks.core import statistics
from perfhooks.core.errors import OptionError
from perfhooks.core.statistics import Estimate, Level, level

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
    return run.divided(1 / factor)


def outcomes(noise, runs, factor=1.0):
    """What is said of pairs of trainings with so many runs a side, of which the second is slower by a factor."""
    made = levels(noise)
    pairs = [made[first : first + 2 * runs] for first in range(0, len(made) - 2 * runs + 1, 2 * runs)]
    return [verdict(each[:runs], [slower(run, factor) for run in each[runs:]]).outcome for each in pairs]


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("noise", NOISES)
def test_equal_runs_alarm_in_at_most_one_percent_of_pairs(noise):
    found = outcomes(noise, runs=1)
    assert len(found) == PAIRS
    assert sum(each in AN_ALARM for each in found) <= PAIRS / 100


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("runs", [2, 3, 5])
@pytest.mark.parametrize("noise", NOISES)
def test_several_equal_runs_a_side_alarm_as_seldom(noise, runs):
    found = outcomes(noise, runs)
    assert sum(each in AN_ALARM for each in found) <= max(len(found) / 100, 1)


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "runs"), [("independent", 3), ("correlated", 5), ("drifting", 5)])
def test_five_percent_more_are_found_in_most(noise, runs):
    found = outcomes(noise, runs, 1.05)
    assert found.count("slower") > len(found) / 2
    assert "faster" not in found


@pytest.mark.slow
def test_twelve_runs_per_side_detect_five_percent():
    found = outcomes("from process to process", 12, 1.05)
    assert found.count("slower") > len(found) / 2


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "runs"), [("independent", 1), ("correlated", 3), ("drifting", 3)])
def test_twelve_percent_more_are_found_in_all(noise, runs):
    found = outcomes(noise, runs, 1.12)
    assert found.count("slower") >= 0.99 * len(found)


@pytest.mark.slow
def test_five_runs_per_side_detect_twelve_percent():
    found = outcomes("from process to process", 5, 1.12)
    assert found.count("slower") >= 0.95 * len(found)


@pytest.mark.slow
def test_enough_equal_runs_are_the_same():
    assert outcomes("independent", 5).count("same") > 90


MIRROR = {"slower": "faster", "faster": "slower", "same": "same", "undecided": "undecided"}


@pytest.mark.slow
@pytest.mark.nightly
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


@pytest.mark.slow
@pytest.mark.nightly
def test_errors_equal_those_of_a_bootstrap_with_draws():
    """What is worked out for infinitely many draws is what many draws give, but for what blocks know of each other."""
    random = np.random.default_rng(3)
    steps = 100 * np.exp(correlated(random, 1)[0])
    values = np.log(steps)
    found = level(steps)
    length, memory = statistics.block_length(values), statistics._memory(values)
    starts = random.integers(0, STEPS, (20_000, STEPS // length, 1))
    draws = values[(starts + np.arange(length)) % STEPS].reshape(20_000, -1)
    blocks_differ = (1 - length / STEPS) * (1 + math.expm1(-length / memory) / (length / memory))
    wider = 1 / math.sqrt(blocks_differ)
    assert (found.typical.below + found.typical.above) / 2 == pytest.approx(
        np.median(draws, axis=1).std() * wider, rel=0.25
    )
    assert found.mean.below == found.mean.above == pytest.approx(draws.mean(axis=1).std() * wider, rel=0.05)


@pytest.mark.slow
@pytest.mark.nightly
def test_errors_of_correlated_steps_match_differences_of_runs():
    """Of 1,000 steps that each know of the last ten; an independent one would be known four times as well."""
    random = np.random.default_rng(4)
    runs = []
    for _ in range(300):
        noise = random.normal(0, 0.04 * math.sqrt(1 - 0.9**2), 1000)
        noise[0] = random.normal(0, 0.04)
        runs.append(level(np.exp(list(accumulate(noise, lambda before, new: 0.9 * before + new)))))
    for name in ("typical", "mean"):
        estimates = [getattr(run, name) for run in runs]
        true = np.std([each.log for each in estimates])
        assert math.sqrt(np.mean([each.above**2 for each in estimates])) == pytest.approx(true, rel=0.15)


def test_two_quiet_runs_are_the_same_and_one_run_is_less_certain():
    quiet = [level(100 + 0.01 * np.random.default_rng(seed).random(1000)) for seed in range(8)]
    one, two, several = (verdict(quiet[:runs], quiet[4 : 4 + runs]) for runs in (1, 2, 4))
    assert (one.outcome, two.outcome, several.outcome) == ("undecided", "same", "same")
    assert (one.process_freedom, two.process_freedom, several.process_freedom) == (0, 2, 6)
    assert one.process_sd == PROCESS_SD > two.process_sd > several.process_sd
    assert one.high > 1.05


def test_mean_detects_longer_steps_that_are_every_fifth():
    """30% of the throughput; the median of the steps is what it was."""
    random = np.random.default_rng(12)
    a, b = 100 * np.exp(random.normal(0, 0.02, (2, 1000)))
    found = verdict([level(a)], [level(np.where(np.arange(1000) % 5, b, 2.5 * b))])
    assert (found.outcome, found.by) == ("slower", "mean")
    assert found.typical.outcome == "undecided"
    assert found.mean.ratio == pytest.approx(1.3, rel=0.01)
    assert found.typical.ratio == pytest.approx(1, abs=0.01)


def test_typical_step_detects_a_change_that_the_mean_hides():
    """Every step takes 20% longer, and now and then one 2.5 times as long, in either."""
    random = np.random.default_rng(13)
    a, b = 100 * np.exp(random.normal(0, 0.02, (2, 200)) + np.log(2.5) * (random.random((2, 200)) < 0.2))
    found = verdict([level(a)], [level(1.2 * b)])
    assert (found.outcome, found.by) == ("slower", "typical")


@pytest.mark.parametrize(("far", "is_counted"), [(3, False), (5, True)])
def test_outliers_count_if_one_side_has_more_than_one_in_fifty(far, is_counted):
    """On both sides then: else two equal trainings would be told apart where one has a little more of them."""
    walls = np.full(200, 1.0)
    walls[:far] = 10.0
    plain, spiked = level(np.full(200, 1.0)), level(walls, walls > 3)
    found = verdict([plain], [spiked])
    assert found.is_far_counted == is_counted
    assert found.mean.ratio == pytest.approx(walls.mean() if is_counted else 1)
    assert (found.far_a, found.far_b) == (0, far / 200)
    assert spiked.far_time == pytest.approx(10 * far / walls.sum())


def busy(waited, factor=1.0):
    """A run whose steps wait for a processor for such a share of their time, but would take as long without."""
    return level(np.full(200, 0.01 * factor / (1 - waited)), waited=np.full(200, waited))


def test_mean_without_run_queue_waits_is_compared():
    quiet, waiting = busy(0.0), busy(0.1)
    found = verdict([quiet] * 5, [waiting] * 5)
    assert (found.clock, found.outcome, found.waited_a, found.waited_b) == ("processor", "same", 0, pytest.approx(0.1))
    assert verdict([quiet] * 5, [busy(0.3, 1.3)] * 5).outcome == "slower"
    assert verdict([quiet] * 3, [busy(0.04)] * 3).clock == "wall"


def test_assumed_process_spread_grows_with_run_queue_waits():
    spread = [verdict([busy(0.0)], [busy(waited)]).process_sd for waited in (0.0, 0.06, 0.5, 0.8)]
    assert spread == sorted(spread)
    assert spread[0] == PROCESS_SD
    assert spread[2] == pytest.approx(0.11), "equal runs that wait for half of their time were seen to differ by that"


def test_assumed_process_spread_grows_with_other_programs():
    """They take no processor away, but the memory's speed: a training takes up to twice as long beside one."""
    alone = level(np.full(200, 0.01))
    runs = {share: (replace(alone, others=0.0), replace(busy(0.0, 1.9), others=share)) for share in (0.0, 0.1, 0.5)}
    found = {share: verdict([a], [b]) for share, (a, b) in runs.items()}
    assert [each.process_sd for each in found.values()] == pytest.approx([PROCESS_SD, 0.03, 0.11])
    assert (found[0.0].outcome, found[0.5].outcome) == ("slower", "undecided")
    assert (found[0.5].others_a, found[0.5].others_b, found[0.5].clock) == (0, 0.5, "wall")
    assert [each.is_beside_others for each in found.values()] == [False, True, True]
    assert verdict([alone], [runs[0.5][1]]).others_a is None, "nobody told it"


def test_unknown_waits_of_one_side_prevent_a_decision():
    """Unknown is not 0%."""
    unknown = level(np.full(200, 0.01))
    found = verdict([unknown] * 5, [busy(0.3)] * 5)
    assert (found.outcome, found.is_withheld, found.more_runs, found.waited_a) == ("undecided", True, None, None)
    assert sentences.certainty(found) == []
    assert not verdict([unknown] * 5, [busy(0.01)] * 5).is_withheld


def test_suggested_number_of_runs_decides():
    random = np.random.default_rng(5)

    def runs(count, factor):
        return [level(factor * 100 * np.exp(random.normal(0, 0.02, 200))) for _ in range(count)]

    found = verdict(runs(1, 1), runs(1, 1.05))
    assert (found.outcome, found.more_steps) == ("undecided", None)
    assert found.more_runs
    count = 1 + found.more_runs
    assert verdict(runs(count, 1), runs(count, 1.05)).outcome == "slower"


def test_suggested_number_of_steps_decides():
    random = np.random.default_rng(6)

    def said(steps):
        runs = [level(factor * np.exp(random.normal(0, 0.3, steps))) for factor in (1, 1, 1, 1, 1.06, 1.06, 1.06, 1.06)]
        return verdict(runs[:4], runs[4:])

    found = said(100)
    assert found.outcome == "undecided"
    assert found.more_steps
    assert said(2 * (100 + found.more_steps)).outcome == "slower"


def open_question(ratio, error, steps=100):
    """Thirty runs a side that agree to the last digit, of which the steps leave each open by so much (a logarithm)."""
    sides = [Estimate(log=math.log(median), below=error, above=error, freedom=1e6) for median in (1, ratio)]
    return verdict(*([Level(typical=each, mean=each, whole=each, steps=steps)] * 30 for each in sides))


@pytest.mark.slow
@pytest.mark.parametrize("runs", [1, 2, 3])
@pytest.mark.parametrize("factor", [1.06, 1.09])
def test_suggested_runs_decide_in_most_cases(runs, factor):
    """Of runs that differ by half a percent."""
    random = np.random.default_rng(31)

    def sides(count):
        shifts = random.normal(0, 0.005, 2 * count)
        made = [level(np.exp(random.normal(0, 0.02, 200) + shift)) for shift in shifts]
        return made[:count], [slower(run, factor) for run in made[count:]]

    asked = [verdict(*sides(runs)) for _ in range(40)]
    advised = [found.more_runs for found in asked if found.outcome == "undecided" and found.more_runs]
    if len(advised) < 8:
        return  # it decides without more
    count = runs + round(float(np.median(advised)))
    decided = [verdict(*sides(count)).outcome == "slower" for _ in range(40)]
    assert sum(decided) >= 28, (count, sum(decided))
    if count - runs > 2:
        fewer = [verdict(*sides(runs + (count - runs) // 3)).outcome == "slower" for _ in range(40)]
        assert sum(fewer) < sum(decided)


def test_unrealistic_numbers_of_runs_are_not_suggested():
    """Where nothing in reach decides, nothing is advised."""
    found = open_question(1.025, 0.5)
    assert (found.outcome, found.more_steps, found.more_runs) == ("undecided", None, None)
    found = open_question(1.05, 0.07)
    assert found.more_steps
    assert found.more_runs


@pytest.mark.parametrize(("error", "outcome"), [(0.1, "same"), (0.13, "undecided")])
def test_same_needs_an_interval_within_two_and_a_half_tolerances(error, outcome):
    """The 90% interval ends at 4.3% and 5.6%."""
    assert open_question(1.0, error).outcome == outcome


def of_processes(random, spread, factor=1.0, runs=2):
    """Return both sides of a comparison of runs with 1,000 even steps whose processes differ by ``spread``."""

    def run(level_):
        estimate = Estimate(log=level_, below=3e-4, above=3e-4, freedom=49)
        return Level(typical=estimate, mean=estimate, whole=estimate, steps=1000)

    shifts = random.normal(0, spread, 2 * runs)
    return [run(shift) for shift in shifts[:runs]], [run(shift + math.log(factor)) for shift in shifts[runs:]]


def outcomes_of_processes(spread, factor, runs, pairs=400):
    random = np.random.default_rng([runs, round(1e4 * spread)])
    found = [verdict(*of_processes(random, spread, factor, runs)).outcome for _ in range(pairs)]
    return {outcome: found.count(outcome) / pairs for outcome in ("slower", "faster", "same", "undecided")}


@pytest.mark.slow
def test_two_equal_runs_a_side_are_the_same():
    """Also if processes differ by 1%: that was so in 60 of 100 pairs."""
    assert outcomes_of_processes(0.005, 1.0, 2)["same"] > 0.98
    assert outcomes_of_processes(0.01, 1.0, 2)["same"] > 0.85


@pytest.mark.slow
@pytest.mark.nightly
def test_three_runs_a_side_find_five_percent():
    """Also if processes differ by 1%: that was so in 45 of 100 pairs."""
    assert outcomes_of_processes(0.005, 1.05, 3)["slower"] > 0.98
    assert outcomes_of_processes(0.01, 1.05, 3)["slower"] > 0.8


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(
    ("spread", "runs"), [(0.01, 1), (0.02, 1), (0.01, 2), (0.02, 2), (0.02, 3), (0.05, 3), (0.05, 5)]
)
def test_equal_runs_alarm_in_one_percent_of_pairs(spread, runs):
    found = outcomes_of_processes(spread, 1.0, runs, pairs=1000)
    assert found["slower"] + found["faster"] <= 0.015


@pytest.mark.parametrize(("ratio", "outcome"), [(1.017, "same"), (1.023, "slower"), (1 / 1.023, "faster")])
def test_default_tolerance_is_two_percent(ratio, outcome):
    assert open_question(ratio, 0.0).outcome == outcome


def test_errors_of_independent_steps_equal_the_formulas():
    """The standard error of a mean, and of a median of normal values, which is sqrt(pi / 2) times that."""
    found = [level(np.exp(run)) for run in np.random.default_rng(8).normal(0, 0.05, (20, 4000))]
    error = 0.05 / math.sqrt(4000)
    assert np.mean([run.mean.above for run in found]) == pytest.approx(error, rel=0.1)
    assert np.mean([run.typical.above + run.typical.below for run in found]) / 2 == pytest.approx(
        math.sqrt(math.pi / 2) * error, rel=0.1
    )


def test_steps_that_are_all_equal_have_no_error():
    found = level([5.0] * 40)
    assert (found.typical.value, found.mean.value) == (pytest.approx(5), pytest.approx(5))
    assert (found.typical.below, found.typical.above, found.mean.above) == (0, 0, 0)
    assert verdict([found] * 3, [found] * 3).outcome == "same"


def test_pairs_are_judged_by_their_differences():
    """However much the pairs differ among each other, as the machine is slower for a while."""
    machine = np.geomspace(1, 3, 5)
    wobble = np.exp(np.random.default_rng(14).normal(0, 0.004, 5))
    pairs = [StepPair(slow, 1.05 * each * slow) for slow, each in zip(machine, wobble, strict=True)]
    found = of_pairs(pairs, pairs)
    assert (found.outcome, found.is_paired, found.runs_a, found.steps_a) == ("slower", True, 5, 0)
    assert found.ratio == pytest.approx(1.05, rel=0.01)
    equal = [pair._replace(b=pair.a) for pair in pairs]
    assert of_pairs(equal, equal).outcome == "same"


def test_tests_of_pairs_share_the_error_budget():
    """Each of six questions may be wrong that much more seldom: its interval is wider."""
    pairs = [StepPair(1.0, ratio) for ratio in (1.04, 1.05, 1.06)]
    once, often = of_pairs(pairs, pairs), of_pairs(pairs, pairs, share=lambda _: 1 / 6)
    assert often.low < once.low < once.high < often.high


@pytest.mark.slow
@pytest.mark.nightly
def test_repeated_tests_of_equal_pairs_alarm_in_one_percent():
    random = np.random.default_rng(15)
    alarms = 0
    for _ in range(1000):
        pairs = [StepPair(1.0, math.exp(random.normal(0, 0.02 * math.sqrt(2)))) for _ in range(8)]
        alarms += any(of_pairs(pairs[:n], pairs[:n], share=turns.share).outcome in AN_ALARM for n in range(3, 9))
    assert alarms <= 10


@pytest.mark.parametrize("steps", [[1.0] * 19, [1.0] * 30 + [0.0]], ids=["too few", "no time at all"])
def test_invalid_steps_are_rejected(steps):
    with pytest.raises(OptionError, match="steps must contain at least 20 step times"):
        level(steps)


def test_a_long_run_takes_a_moment():
    """65,536 steps a side, the most that a run keeps at once."""
    import time

    random = np.random.default_rng(0)
    began = time.process_time()
    level(np.exp(random.normal(0, 0.05, 1 << 16)))
    assert time.process_time() - began < 2


def known_by(earlier, runs=1, spread=0.003, factor=1.08):
    random = np.random.default_rng(13)
    made = independent_of_processes(random, 2 * runs + len(earlier) * 8, spread)
    others = [made[2 * runs + 8 * place :][:count] for place, count in enumerate(earlier)]
    return verdict(made[:runs], [slower(run, factor) for run in made[runs : 2 * runs]], earlier=others)


def independent_of_processes(random, runs, spread):
    return [level(100 * np.exp(random.normal(0, spread) + random.normal(0, 0.02, 500))) for _ in range(runs)]


def test_earlier_runs_can_lower_the_assumed_spread():
    alone, one, several, two_programs = (known_by(earlier) for earlier in ([], [1], [6], [4, 4]))
    assert [each.runs_earlier for each in (alone, one, several, two_programs)] == [0, 0, 6, 8]
    assert [each.process_freedom for each in (alone, one, several, two_programs)] == [0, 0, 5, 6]
    assert alone.outcome == one.outcome == "undecided"
    assert several.outcome == two_programs.outcome == "slower"
    assert several.process_sd < alone.process_sd == one.process_sd == PROCESS_SD
    (told,) = certainty(several)
    assert told.endswith("(one run per side; assumed spread between processes 0.68%, estimated with 6 earlier runs)")


def test_earlier_runs_with_a_larger_spread_are_ignored():
    assert known_by([6], spread=0.03) == known_by([], spread=0.03)


def test_earlier_runs_do_not_outweigh_compared_runs():
    random = np.random.default_rng(14)
    even = independent_of_processes(random, 8, 0.001)
    apart = [slower(run, factor) for run, factor in zip(even, (1, 1.05, 1, 1.05), strict=False)]
    assert verdict(apart[:2], apart[2:], earlier=[even]) == verdict(apart[:2], apart[2:])
    busy = [replace(run, waited=0.3, own=run.mean) for run in even]
    assert verdict(busy[:1], busy[1:2], earlier=[even]) == verdict(busy[:1], busy[1:2])
    beside = [replace(run, others=0.3) for run in even]
    assert verdict(beside[:1], beside[1:2], earlier=[even]) == verdict(beside[:1], beside[1:2])
    for others in (busy, beside):
        assert verdict(even[:1], even[1:2], earlier=[others]) == verdict(even[:1], even[1:2])


def test_earlier_runs_with_uneven_steps_do_not_lower_the_spread():
    """Their levels differ by what their steps leave open; whether processes differ besides, they cannot say."""
    random = np.random.default_rng(15)
    uneven = [level(100 * np.exp(random.normal(0, 0.4, 40))) for _ in range(8)]
    even = independent_of_processes(random, 2, 0.001)
    assert verdict(even[:1], even[1:], earlier=[uneven]).runs_earlier == 0
