"""Planted delays on real ranks, and equal ones: who is said to make the others wait; how long very many ranks take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import cycle, islice, product
from pathlib import Path
from typing import TYPE_CHECKING

from comparison import Comparison, say

from perfhooks.analysis.ranks.leads import RankSteps, align_steps, leads
from perfhooks.run import steps

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from perfhooks.analysis.ranks.leads import StageTimes

Case = tuple[str, int, str]
"""The stage, the rank and the kind of a planted delay."""

STEPS = 160
EQUAL = ("", 0, "none")
PLANTED = 50
EQUALS = 12
RANKS = (2, 3, 4)
HERE = Path(__file__).parent
BUSY = "while True: pass"

MANY = """
import json, time, resource
import numpy as np
from perfhooks.analysis.ranks.leads import StageTimes, leads
dice = np.random.default_rng(0)
times = dice.integers(9_000_000, 11_000_000, (1024, 4, 10_000))
times[17, 1] += 30_000_000
stages = StageTimes(("update", "data", "forward", "backward"), np.arange(10_000), times)
began = time.perf_counter()
found = leads(stages)
took = time.perf_counter() - began
print(json.dumps([took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, found[0].row, found[0].stage]))
"""


def measure() -> list[Comparison]:
    """First suspects of planted delays, suspects of equal ranks beside none and six busy programs, and 1,024 ranks."""
    planted = [[*cases_of(ranks), EQUAL] for ranks in RANKS]
    right = [
        found == case[:2] for cases in planted for case, found in zip(cases, firsts(cases), strict=True) if case[0]
    ]
    alarms = []
    for load in (0, 6):
        with Busy(load):
            equal = [EQUAL] * EQUALS
            alarms.append(sum(found is not None for ranks in RANKS for found in firsts(equal, ranks)))
    say("1,024 ranks")
    done = subprocess.run([sys.executable, "-c", MANY], capture_output=True, text=True, check=True)
    took, used, row, stage = json.loads(done.stdout)
    if (row, stage) != (17, 1):
        raise RuntimeError(f"rank 17 leads stage 1, and rank {row}, stage {stage} was named")
    suspects = (
        ("planted delays", float(len(right))),
        ("first suspect right", float(sum(right))),
        ("equal ranks, looks", float(EQUALS * len(RANKS))),
        ("of them with a suspect, nothing else running", float(alarms[0])),
        ("of them with a suspect, beside six busy programs", float(alarms[1])),
    )
    title = "1,024 ranks x 10,000 steps x 4 stages"
    return [
        Comparison(
            title=f"Who leads, on {', '.join(map(str, RANKS))} gloo ranks, {STEPS} steps each", unit="", rows=suspects
        ),
        Comparison(title=f"{title}: time", unit="s", rows=(("what is allowed", 1.0), ("leads", took))),
        Comparison(title=f"{title}: memory", unit="MB", rows=(("what is allowed", 1000.0), ("leads", used))),
    ]


def cases_of(ranks: int) -> list[Case]:
    """This world's share of the planted delays: each stage and each kind as often as can be, on ranks in turn."""
    kinds = product(("data", "forward", "update"), ("constant", "sudden", "rare", "alternating"))
    every = [(stage, kind) for stage, kind in islice(cycle(kinds), PLANTED)]
    mine = every[RANKS.index(ranks) :: len(RANKS)]
    return [(stage, number % ranks, kind) for number, (stage, kind) in enumerate(mine)]


def firsts(cases: Sequence[Case], ranks: int | None = None) -> Iterator[tuple[str, int] | None]:
    """The first suspect of each case: its stage and rank; None where there is none."""
    world = ranks or RANKS[[cases_of(each) for each in RANKS].index(list(cases[:-1]))]
    say(f"{len(cases)} cases on {world} ranks")
    for case, stages in zip(cases, run(cases, world), strict=True):
        found = leads(stages)
        first = (stages.names[found[0].stage], found[0].row) if found else None
        if first != (case[:2] if case[0] else None):
            say(f"{world} ranks, {case}: {first} {found[:2]}")
        yield first


def run(cases: Sequence[Case], ranks: int) -> Iterator[StageTimes]:
    """Train all cases, one after the other, and look at the steps of each, as far as nobody recorded them."""
    with tempfile.TemporaryDirectory() as folder:
        training = [HERE / "planted" / "frontier_ranks.py", json.dumps(cases), str(STEPS)]
        launcher = ["torchrun", "--standalone", f"--nproc-per-node={ranks}"]
        command = [sys.executable, "-m", "perfhooks", "run", "--schedule", "wait=1000000 warmup=1 active=1"]
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        subprocess.run(
            [*command, *launcher, *training], cwd=folder, env=environment, check=True, capture_output=True, timeout=1500
        )
        every = [steps.read(path)["train"] for path in sorted(Path(folder).glob("perf/torchrun*/rank*.timeline.csv"))]
    for number in range(len(cases)):
        first = number * STEPS
        mine = []
        for rank in every:
            chosen = rank.is_idle & ~rank.is_first & (rank.numbers // STEPS == number) & (rank.numbers > first)
            mine.append(RankSteps(*(column[chosen] for column in rank[:1] + rank[3:7])))
        found = align_steps(mine)
        if found is None or len(found.names) < 4:
            raise RuntimeError(f"the stages of case {cases[number]} are not known: {found and found.names}")
        yield found


class Busy:
    """Other programs that compute all the time, as a context."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __enter__(self) -> None:
        self._programs = [subprocess.Popen([sys.executable, "-c", BUSY]) for _ in range(self._count)]

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.kill()
            program.wait()
