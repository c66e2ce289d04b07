"""Real trainings with one thing planted: it is the first reason, and costs what a clock around it says."""

import math
import statistics
import time

import pytest
import torch
from torch import nn

import perfhooks
from perfhooks.analysis.comparison import comparison, sources

pytestmark = pytest.mark.recorder

FIRST, STEPS = 81, 12
"""The recorded ones; those before are the verdict's."""
ITEMS = 300
ITEM = ("aten::item", "aten::_local_scalar_dense")
LOOP = 60_000
WAIT_S = 0.02


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(64, 512), nn.Linear(512, 64)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


def nothing(model):
    pass


def items(model):
    for _ in range(ITEMS):
        model.first.bias[0].item()


def sorting(model):
    torch.sort(torch.linspace(1, 0, 200_000))


def counting(model):
    total = 0
    for number in range(LOOP):
        total += number & 7
    return total


def batches(size, wait, clock):
    for _ in range(FIRST + STEPS + 3):
        began = time.perf_counter()
        if wait:  # a loop that reads a clock would record each reading, and a sleep of 0 s gives the CPU away
            time.sleep(wait)
        clock["data"].append(time.perf_counter() - began)
        yield torch.ones(size, 64)


def train(out, name, *, planted=nothing, size=16, wait=0.0):
    """What a clock says of each part, in seconds, for each of the recorded steps, and of steps before them."""
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    clock = {"data": [], "planted": [], "step": []}
    schedule = f"skip_first={FIRST - 1} wait=0 warmup=1 active={STEPS} repeat=1"
    with perfhooks.Profiler(
        schedule=schedule, out=out, run=name, with_stack=True, record_shapes=True, background=False, max_trace_mb=None
    ) as prof:
        for x in prof.steps(batches(size, wait, clock)):
            began = time.perf_counter()
            model(x).square().mean().backward()
            passed = time.perf_counter()
            planted(model)
            clock["planted"].append(time.perf_counter() - passed)
            optimizer.step()
            optimizer.zero_grad()
            clock["step"].append(time.perf_counter() - began + clock["data"][-1])
    usual = clock["step"][FIRST // 2 : FIRST - 1]
    return {part: seconds[FIRST : FIRST + STEPS] for part, seconds in clock.items()} | {"usual": usual}


def counted(clock, part, side):
    """Return the times of the steps that the side counts, which are its quickest."""
    quickest = sorted(range(STEPS), key=clock["step"].__getitem__)[: side.costs.steps]
    return [clock[part][step] for step in quickest]


def mean(clock, part, side):
    return statistics.mean(counted(clock, part, side))


def standard_error(clock, part, side):
    times = counted(clock, part, side)
    return statistics.stdev(times) / math.sqrt(len(times))


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    out = tmp_path_factory.mktemp("perf")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where others use the machine
    yield out, train(out, "base")
    torch.set_num_threads(threads)


CASES = {
    # which of both takes longer is not the same on a busy machine
    "items": ({"planted": items}, "planted", "test_comparing_planted.py: items", ITEM),
    "sort": ({"planted": sorting}, "planted", "test_comparing_planted.py: sorting", "aten::sort"),
    "python": ({"planted": counting}, "planted", "test_comparing_planted.py: counting", "Python"),
    "loader": ({"wait": WAIT_S}, "data", "data", "Python"),
}


@pytest.mark.parametrize("case", CASES)
def test_planted_change_comes_first_with_its_measured_cost(base, case):
    out, before = base
    planted, part, name, inside = CASES[case]
    clock = train(out, case, **planted)
    made = comparison.compare(*sources.read([[out / "base"], [out / case]]))
    first = made.reasons[0]
    assert first.name == name, [(row.name, row.difference, row.typical, row.sure) for row in made.reasons[:5]]
    assert any(each[0].startswith(inside) for each in first.inside), first.inside
    change = mean(clock, part, made.b) - mean(before, part, made.a)
    error = math.hypot(standard_error(clock, part, made.b), standard_error(before, part, made.a))
    assert first.difference / 1e9 == pytest.approx(change, abs=0.2 * change + 3 * error)
    # other programs may cost more than what is planted, also by the clock
    average = statistics.mean if made.verdict.clock == "processor" else statistics.median
    is_faster = average(clock["usual"]) < average(before["usual"])
    assert made.verdict.ratio > 1 or is_faster
    assert made.verdict.outcome in ("slower", "undecided") or is_faster


def test_reasons_for_a_larger_batch_sum_to_the_measured_change(base):
    out, before = base
    clock = train(out, "larger", size=2048)
    made = comparison.compare(*sources.read([[out / "base"], [out / "larger"]]))
    assert "batch" in {each.name for each in made.differs}
    passes = [row for row in made.reasons if row.kind in ("module", "operator", "line")]
    assert {row.name for row in passes[:3]} >= {"Net_0/Linear_0", "Net_0/Linear_1"}
    spent = sum(row.difference for row in made.reasons)
    took = mean(clock, "step", made.b)
    error = math.hypot(standard_error(clock, "step", made.b), standard_error(before, "step", made.a))
    assert spent / 1e9 == pytest.approx(took - mean(before, "step", made.a), abs=0.2 * took + 3 * error)
