"""How often equal trainings are told apart, and different ones not, under each noise that trainings have.

``python benchmarks/noises.py`` simulates 25 noises, runs of several lengths and several runs a side, and prints, for
each, the share of pairs of equal trainings that are called slower or faster, which is to be 1% at most, and that of
pairs that are rightly told apart where B takes 5% or 12% longer, or every fifth of its steps 2.5 times as long.
With ``--processes`` it simulates even runs whose processes differ, without steps: thousands of pairs in a minute.
With ``--turns`` it does so for programs that take turns (``perfhooks compare --run``), by what processes differ by.
"""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from perfhooks.analysis.comparison.difference import StepPair, Variance
from perfhooks.analysis.comparison.turns import FEWEST_PAIRS, MOST_PAIRS, share
from perfhooks.analysis.comparison.verdict import of_pairs, verdict
from perfhooks.core.statistics import Estimate, Level, level
from perfhooks.run.steps import is_near

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Random = np.random.Generator
Noise = Callable[[Random, int], np.ndarray]
"""Makes the logarithms of the times of so many steps of a run."""
LENGTHS = (200, 1000, 5000)
RUNS = (1, 2, 3, 5)
PAIRS = 300
SPREADS = (0.003, 0.005, 0.0075, 0.01, 0.02, 0.03, 0.05, 0.1)
"""What processes differ by that take turns."""
BY_TURNS = 0.004
"""And what is left open by the turns of a pair, of four seconds for each program."""
TURNS_FREEDOM = 60
BY_STEPS = 3e-4
"""Standard error of the mean of 1,000 steps that differ by 1%."""
FACTORS = {"+5%": 1.05, "+12%": 1.12}


def independent(deviation: float) -> Noise:
    return lambda random, steps: random.normal(0, deviation, steps)


def correlated(phi: float, deviation: float) -> Noise:
    """What slows one step slows the next: an autoregressive process, settled before the first step."""

    def make(random: Random, steps: int) -> np.ndarray:
        noise = random.normal(0, deviation * math.sqrt(1 - phi**2), steps)
        noise[0] = random.normal(0, deviation)
        return np.fromiter(itertools.accumulate(noise.tolist(), lambda before, new: phi * before + new), np.float64)

    return make


def drifting(deviation: float) -> Noise:
    """Each run becomes slower or faster as it goes, each one otherwise."""
    return lambda random, steps: random.normal(0, deviation) * np.linspace(0, 1, steps)


def two_kinds(share: float, longer: float) -> Noise:
    return lambda random, steps: math.log(longer) * (random.random(steps) < share)


def every(number: int, longer: float) -> Noise:
    """One in so many steps has something else in it, as an evaluation."""
    return lambda random, steps: math.log(longer) * (np.arange(steps) % number == random.integers(number))


def stretches(share: float, length: int, longer: float) -> Noise:
    """The machine is slower for a share of the time, for so many steps in a row."""

    def make(random: Random, steps: int) -> np.ndarray:
        found, step, is_slow = np.zeros(steps), 0, random.random() < share
        while step < steps:
            many = 1 + int(random.exponential(length if is_slow else length * (1 - share) / share))
            found[step : step + many] = math.log(longer) * is_slow
            step, is_slow = step + many, not is_slow
        return found

    return make


def half_slow(longer: float) -> Noise:
    """Of every other run one half is slower."""
    return lambda random, steps: (
        math.log(longer) * (random.random() < 0.5) * ((np.arange(steps) < steps / 2) == (random.random() < 0.5))
    )


def wholly_slow(share: float, longer: float) -> Noise:
    return lambda random, steps: np.full(steps, math.log(longer) * (random.random() < share))


def by_process(deviation: float) -> Noise:
    return lambda random, steps: np.full(steps, random.normal(0, deviation))


def heavy(random: Random, steps: int) -> np.ndarray:
    """A few steps take far longer than usual ones."""
    return np.asarray(np.minimum(np.abs(0.02 * random.standard_t(2, steps)), 5))


QUIET = (independent(0.03), by_process(0.003))
NOISES: dict[str, tuple[Noise, ...]] = {
    "independent, 3%": QUIET,
    "independent, 20%": (independent(0.2), by_process(0.003)),
    "correlated, 0.9": (correlated(0.9, 0.04), by_process(0.003)),
    "correlated, 0.99": (correlated(0.99, 0.04), by_process(0.003)),
    "drift, 2%": (drifting(0.02), *QUIET),
    "drift, 5%": (drifting(0.05), *QUIET),
    "drift, 10%": (drifting(0.1), *QUIET),
    "two kinds of steps, half and half": (two_kinds(0.5, 1.4), *QUIET),
    "two kinds, one in ten": (two_kinds(0.1, 2.0), *QUIET),
    "garbage collection": (every(70, 2.0), *QUIET),
    "spikes of five times, one in 40": (two_kinds(0.025, 5.0), *QUIET),
    "heavy tails": (heavy, by_process(0.003)),
    "evaluations every 100": (every(100, 30.0), *QUIET),
    "checkpoints every 45": (every(45, 8.0), *QUIET),
    "epochs of 50": (every(50, 2.5), *QUIET),
    "neighbours, short": (stretches(0.2, 10, 1.5), *QUIET),
    "neighbours, long": (stretches(0.2, 30, 1.5), *QUIET),
    "neighbours, for half of a short run": (stretches(0.2, 100, 1.5), *QUIET),
    "half of a run slow": (half_slow(1.2), *QUIET),
    "one run in 100 wholly slow": (wholly_slow(0.01, 1.3), *QUIET),
    "lengths of sequences": (independent(0.4), by_process(0.003)),
    "processes, 0.5%": (independent(0.03), by_process(0.005)),
    "processes, 1%": (independent(0.03), by_process(0.01)),
    "processes, 2%": (independent(0.03), by_process(0.02)),
    "processes, 5%": (independent(0.03), by_process(0.05)),
}


def times(noise: str, random: Random, steps: int) -> np.ndarray:
    return np.asarray(np.exp(sum((part(random, steps) for part in NOISES[noise]), np.zeros(steps))))


def levels(noise: str, steps: int, runs: int, change: Callable[[np.ndarray], np.ndarray] | None = None) -> list[Level]:
    """So many runs; those with a change are others than those without."""
    random = np.random.default_rng([steps, change is not None, *noise.encode()])
    found = []
    for _ in range(runs):
        walls = times(noise, random, steps)
        walls = walls if change is None else change(walls)
        found.append(level(walls, ~is_near(walls)))
    return found


def longer(run: Level, factor: float) -> Level:
    """The same run with all steps longer."""
    return run.divided(1 / factor)


def every_fifth(walls: np.ndarray) -> np.ndarray:
    return np.where(np.arange(len(walls)) % 5 == 0, 2.5 * walls, walls)


def told(a: Sequence[Level], b: Sequence[Level], runs: int, earlier: int = 0) -> dict[str, float]:
    """The share of each outcome, of pairs with so many runs a side; other runs of A are so many earlier ones."""
    pairs = len(a) // runs
    others = [
        list(itertools.islice(itertools.cycle(a), runs * (p + 1), runs * (p + 1) + earlier)) for p in range(pairs)
    ]
    sides = [[side[runs * p : runs * (p + 1)] for side in (a, b)] for p in range(pairs)]
    outcomes = [verdict(*both, earlier=[other]).outcome for both, other in zip(sides, others, strict=True)]
    return {outcome: outcomes.count(outcome) / pairs for outcome in set(outcomes)}


def rows(noise: str, pairs: int, lengths: Sequence[int], earlier: int) -> Iterator[str]:
    for steps in lengths:
        many = pairs * max(RUNS) // max(1, steps // 5000)
        both = levels(noise, steps, 2 * many)
        a, b = both[:many], both[many:]
        c = levels(noise, steps, max(many // 4, 20), every_fifth)
        changed = [[longer(run, factor) for run in b] for factor in FACTORS.values()]
        for runs in RUNS:
            equal = told(a, b, runs, earlier)
            found = [told(a, each, runs, earlier).get("slower", 0.0) for each in changed]
            fifth = told(a[: len(c)], c, runs, earlier).get("slower", 0.0)
            alarms = equal.get("slower", 0.0) + equal.get("faster", 0.0)
            columns = [alarms, equal.get("same", 0.0), *found, fifth]
            mark = " !" if alarms > 0.01 else ""
            yield f"{noise:34} {steps:6} {runs:2}  " + " ".join(f"{100 * each:6.1f}" for each in columns) + mark


def even_run(log: float) -> Level:
    """Return a run of 1,000 even steps: how it would be known, without its steps."""
    estimate = Estimate(log=log, below=BY_STEPS, above=BY_STEPS, freedom=49)
    return Level(typical=estimate, mean=estimate, whole=estimate, steps=1000)


def process_rows(pairs: int) -> Iterator[str]:
    for spread in (0.005, 0.01, 0.02, 0.03, 0.05):
        for runs in RUNS:
            random = np.random.default_rng([runs, round(1e6 * spread)])
            shares = list[float]()
            for factor in (1.0, *FACTORS.values()):
                a, b = np.array([[0.0], [math.log(factor)]]) + random.normal(0, spread, (2, runs * pairs))
                found = told(list(map(even_run, a)), list(map(even_run, b)), runs)
                alarms = found.get("slower", 0.0) + found.get("faster", 0.0)
                shares += [alarms, found.get("same", 0.0)] if factor == 1 else [found.get("slower", 0.0)]
            columns = (f"{100 * share:.1f}" for share in shares)
            yield f"| {100 * spread:g}% | {runs} | {' | '.join(columns)} |"


def course(random: Random, spread: float, factor: float) -> tuple[str, int]:
    """What is said of two programs in the end, and after how many pairs."""
    typical, mean, outcome = list[StepPair](), list[StepPair](), "undecided"
    while outcome == "undecided" and len(mean) < MOST_PAIRS:
        a, b = np.exp(random.normal(0, spread, 2)) * (1, factor)
        errors = [Variance(BY_TURNS**2, TURNS_FREEDOM)]
        by_turns = random.normal(0, BY_TURNS)
        typical.append(StepPair(a, b * math.exp(by_turns), errors))
        # both come from the same turns
        mean.append(StepPair(a, b * math.exp((by_turns + random.normal(0, BY_TURNS)) / math.sqrt(2)), errors))
        if len(mean) >= FEWEST_PAIRS:
            found = of_pairs(typical, mean, share=share)
            outcome = found.outcome
            if outcome == "undecided" and len(mean) > FEWEST_PAIRS and (found.more_runs or math.inf) > MOST_PAIRS:
                break
    return outcome, len(mean)


def turn_rows(courses: int) -> Iterator[str]:
    for spread in SPREADS:
        random = np.random.default_rng(round(1e6 * spread))
        equal = [course(random, spread, 1.0)[0] for _ in range(courses)]
        shares = [1 - sum(map(equal.count, ("same", "undecided"))) / courses, equal.count("same") / courses]
        pairs = []
        for factor in FACTORS.values():
            found = [course(random, spread, factor) for _ in range(courses)]
            shares += [sum(told == "slower" and of <= most for told, of in found) / courses for most in (5, MOST_PAIRS)]
            pairs.append(sum(of for _, of in found) / courses)
        columns = " ".join(f"{100 * each:6.1f}" for each in shares)
        yield f"{100 * spread:8.2f}%  {columns}  " + " ".join(f"{each:5.1f}" for each in pairs)


def print_turns(courses: int) -> None:
    print(
        f"equal programs told apart, or the same; {', '.join(FACTORS)} found by five pairs, or at all: % of {courses}"
    )
    print("processes  alarms   same" + "".join(f"{each:>7} by 8" + " " for each in FACTORS) + " pairs")
    for row in turn_rows(courses):
        print(row, flush=True)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=PAIRS, help="with five runs a side; more with fewer")
    parser.add_argument("--steps", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--noise", default="", help="only those whose name contains this")
    parser.add_argument("--earlier", type=int, default=0, help="runs that the folder has of A besides")
    parser.add_argument("--turns", action="store_true", help="programs that take turns; --pairs are whole comparisons")
    parser.add_argument("--processes", action="store_true", help="even runs whose processes differ")
    given = parser.parse_args()
    if given.processes:
        print("| processes differ by | runs a side | alarms | same | +5% | +12% |\n|---:|---:|---:|---:|---:|---:|")
        for row in process_rows(given.pairs):
            print(row, flush=True)
        return
    if given.turns:
        print_turns(given.pairs)
        return
    head = " ".join(f"{each:>6}" for each in ("alarms", "same", *FACTORS, "fifth"))
    print(f"{'noise':34} {'steps':>6} runs {head}   (% of pairs)")
    for noise in NOISES:
        if given.noise in noise:
            for row in rows(noise, given.pairs, given.steps, given.earlier):
                print(row, flush=True)


if __name__ == "__main__":
    main()
