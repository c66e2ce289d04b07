"""How many workers keep up: the arithmetic, against what can be said without it."""

import itertools
import math
import random

import pytest

from perfhooks.analysis.findings.loader_plan import BatchCost, Demand, LoaderPlan
from perfhooks.run.loader.workers import LoaderWorker


@pytest.mark.parametrize("workers", [1, 2, 5, 200])
def test_waiting_workers_with_free_cpus_do_not_interfere(workers):
    assert BatchCost(cpu_s=1e-9, waits_s=0.02).rate(workers, 1) == pytest.approx(50 * workers, rel=0.01)
    assert BatchCost(cpu_s=0.02).rate(workers, workers) == pytest.approx(50 * workers)


@pytest.mark.parametrize("workers", [2, 3, 64])
def test_computing_workers_are_limited_by_their_cpus(workers):
    assert BatchCost(cpu_s=0.01, transfer_s=0.01).rate(workers, 2) == pytest.approx(100)
    assert BatchCost(cpu_s=0.02).rate(workers, 1.5) <= 75 + 1e-9


def test_workers_with_several_threads_use_more_cpus():
    """A batch of 40 ms of computing by four threads takes 10: one worker alone fills four processors."""
    cost = BatchCost(cpu_s=0.04, threads=4)
    assert cost.alone_s == pytest.approx(0.01)
    assert [cost.rate(1, 4), cost.rate(8, 4)] == pytest.approx([100, 100])


def played(workers, processors, computes, waits, seconds=400.0):
    """Batches a second of workers that share processors evenly, each going round for times that are drawn."""
    draw = random.Random(3)
    left = [draw.expovariate(1 / waits) for _ in range(workers)]
    here, now, made = [False] * workers, 0.0, 0
    while now < seconds:
        speed = min(1.0, processors / max(sum(here), 1))
        passed, first = min((left[each] / (speed if here[each] else 1.0), each) for each in range(workers))
        left = [rest - passed * (speed if here[each] else 1.0) for each, rest in enumerate(left)]
        now += passed
        made += here[first]
        here[first] = not here[first]
        left[first] = draw.expovariate(1 / (computes if here[first] else waits))
    return made / now


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "processors", "waits"), [*itertools.product((1, 3, 6), (1, 2), (0.01, 0.05))])
def test_rate_equals_that_of_alternating_workers(workers, processors, waits):
    rate = BatchCost(cpu_s=0.02, waits_s=waits).rate(workers, processors)
    assert rate == pytest.approx(played(workers, processors, 0.02, waits), rel=0.04)


def test_step_takes_at_least_its_own_and_its_batches_computation():
    """Two processors, a step of 50 ms and batches of 50: both share them, and none waits for more than it needs."""
    needs = Demand(rest_s=0.05, waited_s=0.05, cpus=1, own_s=0.05)
    assert needs.step_with(BatchCost(cpu_s=0.05), 8) == pytest.approx(0.1, rel=0.01)
    assert needs.step_with(BatchCost(cpu_s=0.05), 0) == pytest.approx(0.1)
    roomy = Demand(rest_s=0.05, waited_s=0.05, cpus=2, own_s=0.05)
    assert roomy.step_with(BatchCost(cpu_s=0.05), 1) == pytest.approx(0.05)


def made(workers, batch_s, cpu_s, queued_s=0.0):
    batches = {"batches": 10, "wall_s": 10 * batch_s, "busy_s": 10 * batch_s, "cpu_s": 10 * cpu_s}
    times = {"squares": 10 * batch_s**2, "longest_s": batch_s, "idle_s": 0, "transfer_s": 0, "queued_s": queued_s}
    return [LoaderWorker(worker=worker, pid=1, memory_bytes=None, **batches, **times) for worker in range(workers)]


@pytest.mark.parametrize(("workers", "batch_s"), [(1, 0.08), (1, 0.03), (2, 0.16), (2, 0.07)])
def test_cost_of_a_batch_agrees_with_the_step_time(workers, batch_s):
    """A window may be of a moment in which workers took longer than usual, or less long: a step takes 40 ms."""
    needs = Demand(rest_s=0.005, waited_s=0.035, cpus=8, own_s=0.005)
    plan = LoaderPlan.of(made(workers, batch_s, 0.6 * batch_s), needs)
    assert plan.predict(workers).step_s == pytest.approx(0.04, rel=0.02)
    assert plan.predict(2 * workers).step_s == pytest.approx(0.02, rel=0.05)
    assert plan.cost.waits_s == pytest.approx(0.4 * plan.cost.alone_s)


def test_workers_that_explain_half_of_a_wait_are_not_slowed():
    needs = Demand(rest_s=0.03, waited_s=0.01, cpus=8, own_s=0.005)
    plan = LoaderPlan.of(made(1, 0.02, 0.02), needs)
    assert (plan.cost.alone_s, plan.bound) == (pytest.approx(0.02), "transfer")


def test_late_transfers_are_named_if_more_workers_would_help():
    needs = Demand(rest_s=0.02, waited_s=0.04, cpus=16, own_s=0.005, workers=1)
    more = LoaderPlan.for_cost(BatchCost(cpu_s=0.01, transfer_s=0.05), needs)
    assert str(more).startswith("Workers spend 83% of their time on transferring batches. 3 workers would keep up")
    none = LoaderPlan.for_cost(BatchCost(cpu_s=0.01, transfer_s=0.02), needs)
    assert "the step waits for the transfer of each batch. More than 1 worker would not help." in str(none)


def test_workers_of_two_epochs_count_once():
    needs = Demand(rest_s=0.005, waited_s=0.035, cpus=8, own_s=0.005)
    ended, begun = made(2, 0.08, 0.08), made(2, 0.08, 0.08)
    assert LoaderPlan.of([*ended, *begun], needs) == LoaderPlan.of(ended, needs)
    assert BatchCost.of([*ended, *begun], free=2) == BatchCost.of(ended, free=2)


def test_run_queue_wait_is_no_disk_wait():
    known = BatchCost.of(made(4, 0.1, 0.04, 0.4), free=2)
    assert (known.cpu_s, known.waits_s) == (pytest.approx(0.04), pytest.approx(0.02))
    assert BatchCost.of(made(2, 0.1, 0.04, None), free=2).waits_s == pytest.approx(0.06)
    assert BatchCost.of(made(4, 0.1, 0.05, None), free=2).waits_s == 0, "it may have been processors all the time"
    assert BatchCost.of([]) is None


def test_workers_without_cpus_are_not_promised_free_cpus():
    """Four workers that got one and a half processors of 16, and waited for more, would share them with any other."""
    crowded = LoaderPlan.of(made(4, 0.1, 0.0375, 0.6), Demand(rest_s=0.01, waited_s=0.015, cpus=16))
    assert not crowded.is_larger
    alone = LoaderPlan.of(made(4, 0.1, 0.1), Demand(rest_s=0.01, waited_s=0.015, cpus=16))
    assert (alone.advised, alone.bound) == (10, "CPUs")


def test_existing_workers_do_not_keep_up_while_a_step_waits():
    """One makes a batch in less than a step, and has no processor for it: others want the one that there is."""
    plan = LoaderPlan.of(made(1, 0.02, 0.008, 0.12), Demand(rest_s=0.01, waited_s=0.011, cpus=2, own_s=0.01))
    assert plan.keep_up == 1
    assert "1 worker would keep up if it had a free CPU, but all CPUs are in use, so workers are slower" in str(plan)


def test_more_than_keep_up_are_never_advised():
    draw = random.Random(0)
    for _ in range(100):
        cost = BatchCost(cpu_s=draw.uniform(0.001, 0.2), waits_s=draw.uniform(0, 0.2), transfer_s=draw.uniform(0, 0.05))
        needs = Demand(
            rest_s=draw.uniform(0.005, 0.2), waited_s=draw.uniform(0, 0.3), cpus=draw.randint(1, 16), own_s=0.005
        )
        plan = LoaderPlan.for_cost(cost, needs)
        assert 0 <= plan.advised <= plan.keep_up
        assert plan.keep_up * needs.rest_s >= cost.alone_s / 1.03
        rates = [each.supply for each in plan.predictions if each.workers]
        assert rates == sorted(rates)
        assert math.isclose(max(rates), plan.predict(plan.keep_up).supply)
        assert str(plan)


def test_table_equals_the_plan():
    """The table marks the number that needs more CPUs, and is empty if the workers keep up."""
    needs = Demand(rest_s=0.01, waited_s=0.03, cpus=2, own_s=0.002, workers=1)
    plan = LoaderPlan.for_cost(BatchCost(cpu_s=0.002, waits_s=0.038), needs)
    rows = [dict(zip(plan.rows, values, strict=True)) for values in zip(*plan.rows.values(), strict=True)]
    assert [(row["workers"], row["note"]) for row in rows] == [(1, "now"), (2, ""), (4, "advised")]
    assert rows[0]["batches_per_s"] == pytest.approx(25, rel=0.01)
    for row in rows:
        assert row["of_step_percent"] + row["waits_percent"] == pytest.approx(100)
        assert row["batches_per_s"] >= 1e3 / row["step_ms"] - 1e-6, "a step takes no less than its batch"
    short = LoaderPlan.for_cost(BatchCost(cpu_s=0.04), needs)
    assert short.rows["note"][-1] == "would keep up with more CPUs"
    assert "advised" in " ".join(short.rows["note"])
    uneven = BatchCost(cpu_s=0.005, deviation=2.0, longest_s=0.5)
    assert LoaderPlan.for_cost(uneven, needs).rows["workers"] == []
