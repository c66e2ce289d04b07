"""The verdict on programs that took turns: right about equal and about planted ones, and about which clock tells."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from comparing_runs import undocumented

from perfhooks.analysis.comparison import comparison, sentences, turns
from perfhooks.analysis.comparison.difference import StepPair
from perfhooks.analysis.comparison.turns import Block, ProcessPair, judge
from perfhooks.analysis.comparison.verdict import OFTEN, of_pairs
from perfhooks.analysis.comparison.verdict import verdict as recorded
from perfhooks.cli.turns import written
from perfhooks.cli.turns.alternation import ComparisonResult, Plan
from perfhooks.cli.turns.program import Command, ProgramResult
from perfhooks.core.statistics import level
from perfhooks.run.live.change_notes import Effects

EQUAL, BLOCKS = 100, 30


def blocks(times, *, waited=0.0, busy=1.0, cpu=None, steps=100):
    """Blocks of so many milliseconds a step."""
    computed = times if cpu is None else cpu
    return [
        Block(steps, round(wall * steps * 1e6), round(own * steps * 1e6), round(wall * steps * busy * 1e6),
              None if waited is None else round(wall * steps * waited * 1e6))
        for wall, own in zip(times, computed, strict=True)
    ]  # fmt: skip


def pairs(rng, count, *, ratio=1.0, process=0.01, noise=0.05, weather=0.3):
    """What disturbs the machine is the same in neighbouring blocks, so it is in no difference."""
    made = []
    for _ in range(count):
        shared = np.exp(np.cumsum(rng.normal(0, weather / 5, BLOCKS)))
        levels = np.exp(rng.normal(0, process, 2)) * (1.0, ratio)
        a, b = (2 * level * shared * np.exp(rng.normal(0, noise, BLOCKS)) for level in levels)
        made.append(ProcessPair(a=blocks(a), b=blocks(b)))
    return made


def verdict(made):
    return judge(made, tolerance=0.02).verdict


def course(rng, **how):
    """The outcome, and after how many pairs, as the command comes to it."""
    made = pairs(rng, turns.MOST_PAIRS, **how)
    for count in range(turns.FEWEST_PAIRS, turns.MOST_PAIRS + 1):
        outcome = verdict(made[:count]).outcome
        if outcome != "undecided":
            break
    return outcome, count


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("process", [0.005, 0.01, 0.02, 0.05])
def test_equal_programs_are_rarely_reported_as_different(process):
    """Where processes differ by as much as is expected, by less, and by five times that: one in a hundred at most."""
    rng = np.random.default_rng(1)
    outcomes = [course(rng, process=process)[0] for _ in range(EQUAL)]
    assert sum(outcome in ("slower", "faster") for outcome in outcomes) <= EQUAL // 100


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize(("ratio", "word"), [(1.12, "slower"), (1 / 1.12, "faster")])
def test_twelve_percent_are_mostly_found_by_three_pairs(ratio, word):
    rng = np.random.default_rng(2)
    found = [course(rng, ratio=ratio) for _ in range(40)]
    assert {outcome for outcome, _ in found} == {word}
    assert np.median([count for _, count in found]) == turns.FEWEST_PAIRS


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("process", [0.003, 0.005])
def test_five_pairs_mostly_detect_five_percent(process):
    rng = np.random.default_rng(3)
    found = [course(rng, ratio=1.05, process=process, noise=0.02) for _ in range(40)]
    assert sum(outcome == "slower" and count <= 5 for outcome, count in found) >= 32


@pytest.mark.slow
def test_equal_programs_on_a_quiet_machine_are_the_same():
    rng = np.random.default_rng(4)
    outcomes = [course(rng, process=0.002, noise=0.005)[0] for _ in range(40)]
    assert set(outcomes) == {"same"}


@pytest.mark.parametrize(("noise", "outcome"), [(0.01, "slower"), (0.5, "undecided")])
@pytest.mark.parametrize("is_together", [True, False])
def test_pairs_that_agree_by_chance_decide_nothing(noise, outcome, is_together):
    """Three pairs of 12%, to the last digit: what a turn differs by from the next says whether that is known."""
    scattered = np.random.default_rng(8).normal(0, noise, BLOCKS)
    longer = 2 * 1.12 * np.exp(scattered - scattered.mean())
    pair = ProcessPair(a=blocks(np.full(BLOCKS, 2.0)), b=blocks(longer), is_together=is_together)
    assert verdict([pair] * 3).typical.outcome == outcome


@pytest.mark.slow
@pytest.mark.nightly
def test_error_of_a_typical_block_equals_its_variation():
    """Over many pairs of turns that scatter, against the deviation of what comes out."""
    rng = np.random.default_rng(10)
    made = pairs(rng, 400, process=1e-9, noise=0.1)
    seen = [turns._MeasuredPair.of(pair, "wall") for pair in made]
    for found in ([each.typical for each in seen], [each.mean(is_far_counted=True) for each in seen]):
        errors = [math.sqrt(sum(part.variance for part in each.errors)) for each in found]
        assert np.mean(errors) == pytest.approx(np.std([math.log(each.b / each.a) for each in found]), rel=0.12)


def test_two_pairs_that_differ_have_a_finite_interval():
    made = of_pairs(*[[StepPair(1.0, 1.0), StepPair(1.0, 1.5)]] * 2, share=turns.share)
    assert made.outcome == "undecided"
    assert 0 < made.low < 1 < made.high < math.inf


def test_early_decisions_need_more_evidence():
    """Three pairs may agree by chance: a verdict after five may be wrong forty times as often."""
    made = pairs(np.random.default_rng(12), 8, process=1e-9, noise=1e-9)
    widths = [math.log(found.typical.high / found.typical.low) for found in (verdict(made[:n]) for n in range(3, 6))]
    alike = ([StepPair(1, 1)] * count for count in (3, 4, 5))
    alone = [2 * math.log(of_pairs(each, each).typical.high) for each in alike]
    assert widths == sorted(widths, reverse=True)
    ratios = [width / once for width, once in zip(widths, alone, strict=True)]
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[-1] < 1.4 < ratios[0]
    assert ratios[0] > 1.5


def test_lower_error_budget_needs_more_pairs():
    seen = [StepPair(1, each) for each in (1.02, 1.05, 1.11)]
    more = [of_pairs(seen, seen, share=lambda _, part=part: part).more_runs for part in (1.0, 0.3, 0.1)]
    assert more == sorted(more)
    assert 0 < more[0] < more[-1]


def test_fewer_than_three_pairs_decide_nothing():
    made = pairs(np.random.default_rng(5), 2, ratio=2.0)
    found = verdict(made)
    assert (found.outcome, found.more_runs) == ("undecided", None)
    assert (found.runs_a, found.runs_b, found.runs_earlier) == (2, 2, 0)


@pytest.mark.parametrize(("count", "said"), [(1, "1 pair of processes is"), (2, "2 pairs of processes are")])
def test_interval_that_excludes_equality_is_not_called_chance(count, said):
    """Too few pairs are what leaves it open, whatever their interval."""
    found = verdict(pairs(np.random.default_rng(5), count, ratio=2.0, noise=0.001, process=0.001))
    assert found.low > 1.02
    sentence = sentences.verdict(found)
    assert sentence.endswith(f"; {said} too few to decide, 3 are needed.")
    assert "chance" not in sentence


@pytest.mark.parametrize(("more", "is_named"), [(turns.MOST_PAIRS, False), (49, True)])
def test_unrealistic_number_of_runs_suggests_interleaved_blocks(more, is_named):
    run = level(np.exp(np.random.default_rng(3).normal(0, 0.02, 200)))
    found = replace(recorded([run], [run]), outcome="undecided", more_steps=None, more_runs=more)
    (told,) = sentences.certainty(found)
    assert f"{more} more runs per side would decide" in told
    assert ("--run" in told) == is_named


def test_number_of_deciding_pairs_is_shown_while_pairs_remain():
    rng = np.random.default_rng(9)
    made = pairs(rng, turns.MOST_PAIRS, ratio=1.07, process=0.005, noise=0.01)
    assert verdict(made[:3]).outcome == "undecided"
    assert 0 < verdict(made[:3]).more_runs <= turns.MOST_PAIRS - 3
    close = verdict(pairs(rng, turns.MOST_PAIRS, ratio=1.02))
    assert (close.outcome, close.more_runs) == ("undecided", None)


def stalled(rng, rate, *, factor, block=100):
    """Blocks of steps of 2 ms, of which each takes so many times as long with that probability."""
    times = [
        2 * rng.normal(1, 0.02) * np.where(rng.random(block) < rate, factor, 1.0).mean() for _ in range(2 * BLOCKS)
    ]
    return blocks(np.array(times), steps=block)


@pytest.mark.parametrize("steps", [1, 4, 100])
def test_mean_detects_long_steps_that_are_every_fifth(steps):
    """30% of the throughput, be a turn one long step or a hundred short ones."""
    long = np.where(np.arange(4 * BLOCKS * steps) % 5 == 0, 5.0, 2.0).reshape(-1, steps).mean(axis=1)
    even, uneven = (blocks(times, steps=steps) for times in (np.full(4 * BLOCKS, 2.0), long))
    found = verdict([ProcessPair(a=even, b=uneven)] * 4)
    assert (found.outcome, found.by) == ("slower", "mean")
    assert found.mean.ratio == pytest.approx(1.3, rel=0.02)
    assert found.mean.a == pytest.approx(2.0)
    assert steps > 1 or found.typical.outcome == "same"


@pytest.mark.parametrize(
    ("rate", "block", "is_counted"),
    [(0.2, 1, True), (0.025, 1, True), (0.025, 25, True), (0.025, 100, False), (0.005, 1, False), (0.002, 100, False)],
)
def test_frequent_long_blocks_are_part_of_the_mean(rate, block, is_counted):
    """Some 2% of the steps, as of single steps; with turns of a hundred steps it is in the median of turns as well."""
    rng = np.random.default_rng(11)
    factor = 10.0 * block
    made = [ProcessPair(a=stalled(rng, 0, factor=1, block=block), b=stalled(rng, rate, factor=factor, block=block))
            for _ in range(turns.MOST_PAIRS)]  # fmt: skip
    found = verdict(made)
    is_slower = found.outcome == "slower"
    assert found.is_far_counted == is_counted
    assert is_slower == (rate >= OFTEN)


def test_block_with_more_steps_is_no_outlier():
    """It takes as much longer as it has more steps."""
    made = [Block(steps, *[steps * 2_000_000] * 3, 0) for steps in (10, 10, 10, 80) * BLOCKS]
    assert judge([ProcessPair(a=made, b=made)] * 3, tolerance=0.02).far == (0, 0)


def test_b_against_a_is_the_mirror_of_a_against_b():
    made = pairs(np.random.default_rng(6), 4, ratio=1.1)
    one = judge(made, tolerance=0.02)
    other = judge([ProcessPair(a=pair.b, b=pair.a) for pair in made], tolerance=0.02)
    assert (one.verdict.outcome, other.verdict.outcome) == ("slower", "faster")
    assert one.verdict.typical.low == pytest.approx(1 / other.verdict.typical.high)
    assert one.verdict.mean.ratio == pytest.approx(1 / other.verdict.mean.ratio)


@pytest.mark.parametrize(
    ("waited", "busy", "clock"),
    [(0.04, 0.96, "wall"), (0.5, 0.5, "processor"), (0.5, 0.2, "wall"), (None, 1.0, "wall")],
)
def test_cpu_time_is_compared_under_contention_if_steps_compute(waited, busy, clock):
    """B waits as long as A and computes 10% more; of one that waits for data or a device the wall clock tells."""
    wall, cpu = np.full(BLOCKS, 4.0), np.full(BLOCKS, 2.0)
    how = {"waited": waited, "busy": busy}
    pair = ProcessPair(a=blocks(wall, cpu=cpu, **how), b=blocks(wall, cpu=1.1 * cpu, **how))
    seen = judge([pair] * 3, tolerance=0.02)
    assert seen.verdict.clock == clock
    assert seen.verdict.typical.ratio == pytest.approx(1.1 if clock == "processor" else 1.0)
    assert seen.other.ratio == pytest.approx(1.0 if clock == "processor" else 1.1)


def test_first_steps_and_outlier_blocks_do_not_count():
    """Three to ten first steps start what is started once; an evaluation is in the verdict of neither side."""
    start, times = blocks([90.0] * 3, steps=1), np.full(BLOCKS, 2.0)
    evaluated = times.copy()
    evaluated[7] = 50.0
    for steps, left in ((2, BLOCKS), (100, BLOCKS - 1)):  # of 3,003 steps the first ten do not count, nor their block
        pair = ProcessPair(a=start + blocks(times, steps=steps), b=start + blocks(evaluated, steps=steps))
        seen = judge([pair] * 3, tolerance=0.02)
        assert seen.far == (0, 3)
        assert seen.verdict.mean.ratio == pytest.approx(1.0)
        assert seen.blocks == 6 * left


def test_a_pair_with_less_than_five_blocks_does_not_count():
    long, short = blocks(np.full(8, 2.0)), blocks(np.full(5, 2.0))
    assert not ProcessPair(a=long, b=short).counts
    assert ProcessPair(a=long, b=blocks(np.full(6, 2.0))).counts


def test_few_blocks_without_outliers_do_not_decide():
    far = [2.0, 90.0, 90.0, 2.0, 2.0], [2.0, 2.0, 2.0, 90.0, 90.0]
    pair = ProcessPair(a=blocks(far[0]), b=blocks(far[1]))
    assert verdict([pair] * 3).outcome == "undecided"


def test_sequential_programs_are_judged_without_neighbours():
    """What the machine did in the meantime is in the difference then, and in what pairs differ by."""
    rng = np.random.default_rng(7)
    made = [
        ProcessPair(a=blocks(rng.normal(2, 0.02, 20)), b=blocks(rng.normal(2.6, 0.02, 33)), is_together=False)
        for _ in range(4)
    ]
    found = verdict(made)
    assert found.outcome == "slower"
    assert math.isclose(found.typical.ratio, 1.3, rel_tol=0.02)


@pytest.mark.parametrize("spread", [0.2, 1.0, 3.0])
def test_meaningless_interval_decides_nothing_and_is_not_shown(spread):
    """Pairs that differ by orders of magnitude, in both clocks."""
    rng = np.random.default_rng(13)
    for _ in range(10):
        made = pairs(rng, turns.FEWEST_PAIRS, process=spread, noise=spread)
        seen = judge(made, tolerance=0.02)
        assert seen.verdict.outcome == "undecided"
        written = comparison.answers(seen.verdict)
        shown = (written, written["typical"], written["mean"], comparison.ratio_data(seen.other))
        assert all(ratio["low"] is None or ratio["high"] < 2 * ratio["low"] for ratio in shown)
        assert written["low"] is not None or "interval" not in sentences.certainty(seen.verdict)[0]


def test_fields_of_the_json_are_documented():
    command = Command(name="A", label="a", words=(), folder=Path())
    program = ProgramResult(command, "", 0, False, 30, (), (), Effects(), 0)
    judgement = judge(pairs(np.random.default_rng(1), 3), tolerance=0.02)
    result = ComparisonResult(Plan(a=command, b=command, tolerance=0.02), judgement, "", [program], None)
    assert undocumented(written.data(result)) == set()
