"""Long steps of another kind: how often they come, and what a verdict says of them."""

import numpy as np
import pytest
from comparing_runs import make_run

from perfhooks.analysis.comparison import comparison, sentences, sources
from perfhooks.analysis.comparison.timed import stalls


def steps(every=0, times=2.5, seed=0):
    """400 of 5 ms, of which every so many take longer."""
    found = 5 * np.exp(np.random.default_rng(seed).normal(0, 0.005, 400))
    if every:
        found[::every] *= times
    return found


def compared(folder, a, b):
    sides = [
        [make_run(folder / f"{name}{seed}", None, steps(seed=seed, **what)) for seed in (1, 2)]
        for name, what in (("a", a), ("b", b))
    ]
    return comparison.compare(*sources.read(sides))


@pytest.mark.parametrize(
    ("a", "b", "outcome", "said"),
    [
        ({}, {"every": 5}, "slower", "in B every fifth takes 2.5 times as long."),
        ({"every": 5}, {}, "faster", "in A every fifth takes 2.5 times as long."),
        ({"every": 10}, {"every": 2, "times": 2.2}, "slower", "in B every second takes"),
        ({"every": 5}, {"every": 5}, "same", None),
        ({}, {"every": 1, "times": 1.3}, "slower", None),
    ],
)
def test_unusual_steps_that_change_the_mean_are_named(tmp_path, a, b, outcome, said):
    made = compared(tmp_path, a, b)
    assert made.verdict.outcome in (outcome, "undecided" if outcome == "same" else outcome)
    assert said in made.sentence if said else "every" not in made.sentence


@pytest.mark.parametrize(("waits", "is_data"), [(7.5, True), (5.0, True), (2.0, False), (None, False)])
def test_long_steps_with_half_the_excess_in_data_are_named(tmp_path, waits, is_data):
    run = make_run(tmp_path / "r", None, [])
    rows = []
    for number in range(200):
        is_long = number % 5 == 0
        data = "" if waits is None else f"{0.1 + waits * is_long}"
        rows.append(f"train,{number},wait,{5 + 7.5 * is_long},{data}\n")
    (run / "rank0.timeline.csv").write_text("stage,step,phase,wall_ms,data_ms\n" + "".join(rows))
    (side,) = sources.read([[run]])
    found = stalls(side.runs)
    assert (found.share, found.times, found.is_data) == (pytest.approx(0.2, abs=0.01), pytest.approx(2.5), is_data)


def test_equal_steps_contain_no_long_steps(tmp_path):
    (side,) = sources.read([[make_run(tmp_path / "r", None, steps())]])
    assert stalls(side.runs).share == 0


@pytest.mark.parametrize(
    ("share", "said"),
    [(0.5, "every second"), (0.2, "every fifth"), (1 / 37, "one in 37"), (0.41, "41% of them"), (0.7, "70% of them")],
)
def test_frequency_of_steps_is_in_words(share, said):
    assert sentences.format_frequency(share) == said
