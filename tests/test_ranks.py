"""What the ranks of a run say together, from their small files alone."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import statistics
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from many_ranks import BEGAN_NS, ManyRanks

import perfhooks.trace
from perfhooks.analysis import ranks
from perfhooks.analysis.ranks import collectives, files
from perfhooks.analysis.ranks.clocks import align
from perfhooks.analysis.ranks.missing import name_ranks
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.statistics import beyond_others
from perfhooks.report.handlers.collectives import CollectiveTable, rows
from perfhooks.run.capture import Capture, Place
from perfhooks.testing import kernel, launch, op, step_mark, write_trace

FIRST, SECOND, THIRD = WINDOWS = [f"train-000{first}10-000{first}12" for first in range(3)]


@pytest.fixture
def gathered(tmp_path):
    """What the ranks of a run that was written for it say."""

    def gather(**options):
        return ranks.gather(ManyRanks(**options).write(tmp_path / f"run{len(list(tmp_path.iterdir()))}"))

    return gather


def of_rank(window, rank):
    """The row of one rank."""
    table = window["ranks"]
    place = table["rank"].index(rank)
    return {name: values[place] for name, values in table.items()}


# --- steps


def test_waiting_rank_is_not_the_slow_rank(gathered):
    """Nobody's step is shorter than the slow one's; what tells them apart is what they do themselves."""
    window = gathered(ranks=8, slow_compute={5: 20.0})["windows"][0]
    assert len(set(window["ranks"]["wall_ms"])) == 1
    slow, quick = of_rank(window, 5), of_rank(window, 0)
    assert slow["wait_ms"] == 0
    assert quick["wait_ms"] == pytest.approx(20.0)
    assert slow["own_ms"] == pytest.approx(quick["own_ms"] + 20.0) == pytest.approx(1 + 4 * 10 + 20 + 4 * 2)
    assert slow["excess_ms"] == slow["compute_excess_ms"] == pytest.approx(20.0)
    assert (slow["is_straggler"], quick["is_straggler"]) == (True, False)
    assert (slow["data_excess_ms"], slow["communication_excess_ms"]) == (0, 0)


@pytest.mark.parametrize(("where", "part"), [("slow_data", "data"), ("slow_compute", "compute")])
@pytest.mark.parametrize(("count", "slow"), [(2, 1), (4, 0), (16, 11)])
def test_the_straggler_is_named_with_its_part(gathered, where, part, count, slow):
    data = gathered(ranks=count, node=2, **{where: {slow: 25.0}})
    (finding,) = ranks.findings(data)
    assert (finding["rank"], finding["ranks"], finding["part"]) == (slow, [slow], part)
    assert finding["gain_ms"] == pytest.approx(25.0)
    assert finding["windows"] == WINDOWS[:2]
    assert finding["title"].startswith(f"Rank {slow} ")
    json.dumps(finding)


@pytest.mark.parametrize("end", [10, 12])
def test_step_with_an_unmatched_collective_names_no_straggler(tmp_path, end):
    """A rank that waited in what was open when recording began or ended seems to have worked all the while."""
    run = ManyRanks(ranks=2, node=2, slow_data={1: 25.0}).write(tmp_path / "run")
    for path in run.glob("*/rank0.collectives.csv"):
        first = int(path.parent.name.split("-")[1])
        table = pl.read_csv(path)
        table.filter(pl.col("step") != first - 10 + end).write_csv(path)
    data = ranks.gather(run)
    assert all(window["unmatched"] for window in data["windows"])
    (finding,) = ranks.findings(data)
    assert (finding["rank"], finding["part"], finding["gain_ms"]) == (1, "data", pytest.approx(25.0))


def test_steps_with_unmatched_collectives_only_are_kept(tmp_path):
    """As of groups that do not tell their names: that has nothing to do with the ends of a window."""
    run = ManyRanks(ranks=2, node=2, slow_data={1: 25.0}).write(tmp_path / "run")
    for path in run.glob("*/rank0.collectives.csv"):
        table = pl.read_csv(path)
        table.filter(pl.int_range(pl.len()).over("step") > 0).write_csv(path)
    window = ranks.gather(run)["windows"][0]
    assert window["unmatched"]
    assert window["ranks"]["steps"] == [3, 3]


def test_evidence_has_rounded_numbers(gathered):
    """No exponents, and nothing finer than a hundredth: what is left of a difference of equals is 0."""
    data = gathered(ranks=2, node=2, slow_data={1: 1234.5})
    data["windows"][0]["ranks"]["compute_excess_ms"][1] = -2e-14
    (finding,) = ranks.findings(data)
    assert finding["title"].endswith(": the other ranks wait 1234 ms in a step for this rank.")
    assert finding["evidence"][0]["text"] == (
        f"{FIRST}: 1284 ms of own work in a step of 1284 ms, 1234 ms more than the others: "
        "data 1236 ms (+1234), compute 40 ms (+0), communication 8 ms (+0), other 0 ms (+0)"
    )


def test_equal_ranks_name_no_straggler(gathered):
    assert ranks.findings(gathered(ranks=4)) == []
    assert ranks.findings(gathered(ranks=2, slow_data={0: 2.0}, slow_compute={1: 2.0})) == []
    assert ranks.findings(gathered(ranks=1)) == []


def test_half_of_the_ranks_are_no_stragglers(gathered):
    assert ranks.findings(gathered(ranks=4, slow_data=dict.fromkeys((0, 1, 2), 30.0))) == []


def test_ranks_slow_in_one_part_share_a_finding(gathered):
    data = gathered(ranks=8, slow_data={1: 30.0, 6: 20.0}, slow_compute={3: 25.0})
    first, second = ranks.findings(data)
    assert (first["part"], first["rank"], first["ranks"]) == ("data", 1, [1, 6])
    assert (second["part"], second["ranks"]) == ("compute", [3])
    assert (first["gain_ms"], second["gain_ms"]) == (pytest.approx(30.0), pytest.approx(25.0)), (
        "the slowest comes first"
    )


@pytest.mark.parametrize(
    ("node", "slow", "said"),
    [
        (4, (4, 5), "Rank 4 on node1 (and 1 more) computes|slow in this part of the step: ranks 4, 5 on node1"),
        (4, (3, 4), "Rank 3 on node0 (and 1 more) computes|slow in this part of the step: ranks 3, 4"),
        (8, (3, 4), "Rank 3 (and 1 more) computes|slow in this part of the step: ranks 3, 4"),
    ],
)
def test_slow_node_is_named_among_several_nodes(gathered, node, slow, said):
    (finding,) = ranks.findings(gathered(ranks=8, node=node, slow_compute=dict.fromkeys(slow, 30.0)))
    title, evidence = said.split("|")
    assert finding["title"].startswith(title)
    assert finding["evidence"][-1]["text"] == evidence


def test_among_many_ranks_a_small_excess_is_enough(gathered):
    (finding,) = ranks.findings(gathered(ranks=16, slow_compute={3: 2.0}))
    assert (finding["rank"], finding["part"]) == (3, "compute")


@pytest.mark.parametrize(
    ("count", "more", "is_named"),
    [
        (4, 4.0, False),  # 8% of the step
        (4, 6.5, True),  # 12%
        (7, 4.0, False),
        (8, 4.0, True),  # among eight, standing out is enough
        (16, 0.8, False),  # 1.6%
        (16, 1.3, True),  # 2.5%
    ],
)
def test_slow_rank_exceeds_ten_percent_or_two_among_eight(gathered, count, more, is_named):
    data = gathered(ranks=count, node=count, slow_compute={1: more})
    assert [finding["ranks"] for finding in ranks.findings(data)] == [[1]] * is_named


@pytest.mark.parametrize(("windows", "is_named"), [((True, True, False), True), ((True, False), False)])
def test_a_rank_is_named_that_is_a_straggler_in_most_windows(gathered, windows, is_named):
    data = gathered(ranks=4, slow_compute={1: 20.0}, windows=len(windows))
    for window, is_straggler in zip(data["windows"], windows, strict=True):
        window["ranks"]["is_straggler"][1] = is_straggler
    assert bool(ranks.findings(data)) == is_named


def test_gain_is_limited_by_other_slow_ranks(gathered):
    """Rank 1 is slower by 30 ms, and rank 3, which is not named, by 4."""
    (finding,) = ranks.findings(gathered(ranks=4, slow_compute={1: 30.0, 3: 4.0}))
    assert (finding["ranks"], finding["gain_ms"]) == ([1], pytest.approx(26.0))


def test_gain_and_title_are_for_an_unprofiled_step(gathered):
    """A profiled step takes 69 ms."""
    (finding,) = ranks.findings(gathered(ranks=4, slow_compute={1: 20.0}, unprofiled_ms=34.5))
    assert (finding["gain_ms"], finding["gain_percent"]) == (10.0, pytest.approx(100 * 20 / 69, abs=0.01))
    assert "the other ranks wait 10 ms in a step" in finding["title"]
    assert finding["basis"].startswith("Title and gain are for an unprofiled step of 34.5 ms")
    assert "20 ms more than the others" in finding["evidence"][0]["text"]


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "is_told"), [(2048, True), (2049, False)])
def test_long_window_lists_only_the_longest_waits(gathered, steps, is_told):
    """8,192 numbers are 2,048 steps of four ranks."""
    (window,) = gathered(ranks=4, windows=1, steps=steps, collectives=1, slow_compute={1: 5.0})["windows"]
    assert bool(window["own"]) == is_told
    assert len(window["worst"]["wait_ms"]) == 40
    assert len(window["steps"]["step"]) == 500


def test_the_parts_of_a_rank_are_its_own_work_to_the_nanosecond(gathered):
    window = gathered(ranks=4, slow_data={2: 3.0})["windows"][0]
    for rank in range(4):
        row = of_rank(window, rank)
        parts = sum(row[f"{part}_ms"] for part in ("data", "compute", "communication", "other"))
        assert parts == pytest.approx(row["own_ms"], abs=1e-4)
        assert row["own_ms"] + row["wait_ms"] == pytest.approx(row["wall_ms"], abs=1e-4)


def test_rank_with_most_own_work_is_named_per_step(gathered):
    window = gathered(ranks=4, slow_data={2: 30.0})["windows"][0]
    assert window["steps"]["step"] == [10, 11, 12]
    assert window["steps"]["slowest_rank"] == [2, 2, 2]
    assert window["steps"]["ranks"] == [4, 4, 4]
    assert window["own"]["own_ms"][2] == [pytest.approx(1 + 40 + 8 + 30)] * 3


@pytest.mark.slow
@given(
    st.lists(
        st.lists(st.one_of(st.just(math.nan), st.floats(-1e3, 1e3)), min_size=3, max_size=3), min_size=1, max_size=7
    )
)
def test_beyond_others_excludes_the_value_itself(lines):
    values = np.array(lines)
    found = beyond_others(values)
    for column in range(3):
        for row in range(len(values)):
            others = [each for place, each in enumerate(values[:, column]) if place != row and not math.isnan(each)]
            if math.isnan(values[row, column]) or not others:
                assert math.isnan(found[row, column])
            else:
                assert found[row, column] == pytest.approx(values[row, column] - statistics.median(others), abs=1e-9)


# --- collectives


def table(*lines, **defaults):
    """Collectives of some ranks: rank, start and duration in ms each, and what is not as usual."""
    usual = {
        "step": 0,
        "operation": "all_reduce",
        "backend": "nccl",
        "group": "0",
        "group_size": None,
        "dtype": "float",
    }
    usual |= {"bytes": 1000, "exposed_ms": None, "bus_gb_per_s": None, "device": 0} | defaults
    found = []
    for rank, start, duration, *more in lines:
        given_here = more[0] if more else {}
        times = {"rank": rank, "start_ns": BEGAN_NS + round(start * 1e6), "duration_ms": float(duration)}
        found.append(usual | times | {"exposed_ms": float(duration)} | given_here)
    return pl.DataFrame(found, schema=dict(files.COLLECTIVES))


def test_skew_of_a_collective_comes_from_starts_and_waits():
    found = collectives.match(table((0, 0, 10), (1, 6, 4), (2, 7, 3)))
    (row,) = collectives.by_collective(found).rows(named=True)
    assert (row["ranks"], row["last_rank"], row["duration_ms"]) == (3, 2, 3)
    assert (row["spread_ms"], row["wait_ms"]) == (pytest.approx(7), pytest.approx(7))
    assert row["mean_wait_ms"] == pytest.approx((7 + 1) / 3)
    assert found.rows["wait_ms"].to_list() == pytest.approx([7, 1, 0])


def test_collectives_are_summed_by_kind_longest_first():
    """Its time is with the wait, and medians are of what each took without; who came last most often is named."""
    reduced = [(0, 0, 10), (1, 6, 4), (0, 20, 5), (1, 21, 4), (0, 32, 6), (1, 30, 8)]
    other = {"operation": "all_gather", "bytes": 7}
    found = collectives.match(table((0, 50, 12, other), (1, 52, 10, other), *reduced))
    first, second = collectives.kinds(collectives.by_collective(found)).rows(named=True)
    assert (first["operation"], first["count"], first["groups"]) == ("all_reduce", 3, 1)
    assert first["total_ms"] == pytest.approx(10 + 5 + 8)
    assert (first["duration_ms"], first["wait_ms"], first["longest_wait_ms"]) == pytest.approx((4, 2, 6))
    assert (first["last_rank"], first["last_percent"]) == (1, pytest.approx(200 / 3))
    assert (second["operation"], second["count"], second["total_ms"]) == ("all_gather", 1, pytest.approx(12))


def test_waits_do_not_depend_on_clocks():
    found = collectives.match(table((0, 0, 10), (1, 1006, 4), (0, 20, 5), (1, 1021, 4)))
    assert found.rows.sort("rank", "index")["wait_ms"].to_list() == pytest.approx([6, 1, 0, 0])
    assert found.clocks.offset_ms == {0: 0.0, 1: pytest.approx(-1000)}
    assert collectives.by_collective(found)["spread_ms"].to_list() == pytest.approx([6, 1])


@pytest.mark.parametrize(
    ("field", "one", "other"),
    [
        ("step", 1, 2),
        ("group", "0", "1"),
        ("operation", "all_reduce", "all_gather"),
        ("bytes", 8, 16),
        ("dtype", "a", "b"),
    ],
)
def test_collectives_that_differ_are_not_the_same(field, one, other):
    found = collectives.match(table((0, 0, 5, {field: one}), (1, 0, 5, {field: other})))
    assert (found.rows.height, found.unmatched) == (0, 2)


def test_all_to_all_may_have_different_sizes():
    found = collectives.match(table((0, 0, 5, {"bytes": 8}), (1, 0, 5, {"bytes": 16}), operation="all_to_all"))
    assert collectives.by_collective(found)["bytes"].to_list() == [16]


def test_lost_collectives_are_not_guessed():
    """Rank 2 lacks one of two: which, nobody knows; the others are compared."""
    found = collectives.match(table((0, 0, 5), (0, 10, 5), (1, 0, 5), (1, 10, 5), (2, 0, 5)))
    assert (found.rows["rank"].unique().sort().to_list(), found.unmatched) == ([0, 1], 1)


def test_ranks_without_overlap_share_no_collective():
    together = [(rank, 10 * number, 5) for number in range(6) for rank in (0, 1)]
    found = collectives.match(table(*together, (0, 100, 2, {"bytes": 7}), (1, 150, 2, {"bytes": 7})))
    assert (found.rows.height, found.unmatched) == (12, 2)


@pytest.mark.parametrize(
    ("noise", "gap", "is_same"), [(0, 0.04, True), (0, 0.3, False), (0.4, 2.5, True), (0.4, 8, False)]
)
def test_collective_that_ended_before_another_is_different(noise, gap, is_same):
    """0.05 ms is what starts and ends may be wrong by, and ten times what ends differ by where all wait for all."""
    lines = [(rank, 10 * number, 5 + noise * rank * (-1) ** number) for number in range(12) for rank in (0, 1)]
    together = [(*line, {"bytes": place // 2}) for place, line in enumerate(lines)]
    odd = [(0, 200, 2, {"bytes": 77}), (1, 202 + gap, 2, {"bytes": 77})]
    assert collectives.match(table(*together, *odd)).unmatched == (0 if is_same else 2)


def test_unnamed_groups_are_separate():
    found = collectives.match(table(*((rank, 0, 5) for rank in range(4)), group=None, group_size=2))
    assert (found.rows.height, found.unmatched) == (0, 4)


@pytest.mark.parametrize("odd", [{"start_ns": None}, {"duration_ms": None}, {"duration_ms": float("inf")}], ids=str)
def test_a_row_without_its_time_is_of_no_collective(odd):
    """As a damaged table has it; the others are compared."""
    found = collectives.match(table((0, 0, 5), (1, 1, 4), (0, 20, 5, odd), (1, 20, 5, odd)))
    assert found.rows.height == 2
    assert found.unmatched == 2
    assert collectives.match(table((0, 0, 5, odd), (1, 0, 5, odd))).rows.height == 0


def test_ranges_that_request_a_collective_do_not_count():
    found = collectives.match(table((0, 0, 5), (1, 0, 5), device=None))
    assert (found.rows.height, found.unmatched) == (0, 0)
    found = collectives.match(table((0, 0, 5), (1, 0, 5), device=None, backend="gloo"))
    assert found.rows.height == 2


def test_waiting_in_two_collectives_at_once_counts_once():
    lines = [(0, 0, 10), (0, 2, 9, {"bytes": 7}), (1, 9, 1), (1, 9, 2, {"bytes": 7})]
    waits = collectives.of_steps(collectives.match(table(*lines)))
    assert waits["wait_ms"].to_list() == pytest.approx([9, 0])


def test_wait_hidden_by_computation_costs_nothing():
    waits = collectives.of_steps(collectives.match(table((0, 0, 10, {"exposed_ms": 1.5}), (1, 9, 1))))
    assert waits["wait_ms"].to_list() == pytest.approx([1.5, 0])


def test_host_messages_have_an_unknown_wait():
    """As between the stages of a pipeline."""
    message = {"operation": "recv", "dtype": None}
    lines = [(0, 0, 10, message), (0, 8, 4), (0, 20, 3, message), (1, 9, 3)]
    told = collectives.of_steps(collectives.match(table(*lines, backend="gloo", device=None))).sort("rank")
    assert told["host_comm_ms"].to_list() == pytest.approx([12 + 3, 3])
    assert told["wait_ms"].to_list() == pytest.approx([1, 0])


def test_bandwidth_is_that_without_the_wait(gathered):
    window = gathered(ranks=8, slow_compute={3: 10.0})["windows"][0]
    kinds = [
        dict(zip(window["collectives"], row, strict=True)) for row in zip(*window["collectives"].values(), strict=True)
    ]
    whole, part = sorted(kinds, key=lambda kind: -kind["group_size"])
    assert (whole["groups"], part["groups"]) == (1, 2)
    assert whole["bus_gb_per_s"] == pytest.approx((25 << 20) / 2e6 * 2 * 7 / 8, rel=1e-4)
    assert (whole["last_rank"], whole["last_percent"]) == (3, 100)


# --- clocks


def test_clocks_are_aligned(gathered):
    clock = {1: 3.5, 2: -250.0, 5: 0.02}
    window = gathered(ranks=6, node=2, slow_data={3: 5.0}, clock_ms=clock)["windows"][0]
    offsets = dict(zip(window["ranks"]["rank"], window["ranks"]["offset_ms"], strict=True))
    assert offsets == {rank: pytest.approx(-clock.get(rank, 0.0), abs=1e-3) for rank in range(6)}
    assert window["clocks"] == {"ranks": 6, "error_ms": 0.0, "error_95_ms": pytest.approx(0, abs=1e-3)}
    assert window["unmatched"] == 0


def ends(*lines):
    return pl.DataFrame(lines, schema={"match": pl.UInt64, "rank": pl.Int64, "end_ms": pl.Float64}, orient="row")


def test_clocks_are_aligned_through_other_ranks():
    """Ranks 0 and 2 share no collective; 5 and 6 share one with nobody else."""
    found = align(ends((1, 0, 10), (1, 1, 13), (2, 1, 23), (2, 2, 27), (3, 5, 0), (3, 6, 1)))
    assert found.offset_ms == {
        rank: pytest.approx(offset, abs=1e-3) for rank, offset in ((0, 0), (1, -3), (2, -7), (5, 0), (6, -1))
    }


def test_a_few_odd_ends_move_no_clock():
    regular = [(number, rank, 10.0 * number + 2 * rank) for number in range(20) for rank in range(3)]
    found = align(ends(*regular, (99, 0, 0), (99, 1, 500), (99, 2, -500)))
    assert found.offset_ms == {0: 0, 1: pytest.approx(-2), 2: pytest.approx(-4)}
    assert found.error_ms == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("noise", [(0.3, -0.4, 0.5, -0.2, 0.4, -0.5, 0.1), (1.2, -0.1, 2.5, 1.3, -0.2, 2.6, 1.1)])
def test_offset_within_its_error_is_zero(noise):
    """So is one of 1.2 ms, if the ends differ by as much more or less."""
    found = align(ends(*((n, rank, 10.0 * n + rank * each) for n, each in enumerate(noise) for rank in (0, 1))))
    assert found.offset_ms == {0: 0.0, 1: 0.0}
    assert 0 < found.error_ms <= found.error_95_ms


def test_ranks_of_one_machine_share_a_clock():
    """Ranks 1 and 3 leave every collective late; 2 and 3 are on another machine, by whose clock it is 7 ms earlier."""
    late = {0: 0.0, 1: 2.0, 2: -7.0, 3: -5.0}
    lines = [(number, rank, 10.0 * number + each) for number in range(20) for rank, each in late.items()]
    found = align(ends(*lines), {0: "a", 1: "a", 2: "b", 3: "b"})
    assert found.offset_ms == {0: 0, 1: 0, 2: pytest.approx(7), 3: pytest.approx(7)}
    assert found.error_95_ms == pytest.approx(1)
    alone = align(ends(*lines[:2], *((each, 3, end) for each, _, end in lines[:2])), dict.fromkeys(range(4), "a"))
    assert set(alone.offset_ms.values()) == {0.0}
    apart = align(ends(*lines), {0: "a"}).offset_ms
    assert apart == {0: 0, 1: pytest.approx(-2), 2: pytest.approx(7), 3: pytest.approx(5)}


def test_ranks_without_collectives_have_no_clock_to_compare():
    assert align(ends()).offset_ms == {}
    assert align(ends()).error_ms is None


# --- what is missing


def lacks(data):
    return {(entry["window"], entry["what"], tuple(entry["ranks"])): entry["text"] for entry in data["missing"]}


def change(run, window, rank, **facts):
    path = run / window / f"rank{rank}.capture.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | facts))


def remove(run, window, *wanted):
    for rank in wanted:
        for path in (run / window).glob(f"rank{rank}.*"):
            path.unlink()


@pytest.fixture
def run(tmp_path):
    return ManyRanks(ranks=4, windows=3).write(tmp_path / "run")


def die(run):
    remove(run, SECOND, 2)
    remove(run, THIRD, 2)
    mark = run / ".rank2.recording"
    mark.write_text(json.dumps({"window": SECOND, "process": {"pid": 2**22 + 1, "host": "elsewhere"}}))
    os.utime(mark, (0, 0))


def shorten(run):
    path = run / FIRST / "rank1.steps.csv"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:2]))


def empty(run):
    (run / FIRST / "rank2.steps.csv").unlink()
    change(run, FIRST, 2, notes=["another profiler was recording"])


def leave_unfinished(run):
    change(run, FIRST, 0, state="spooled")
    remove(run, SECOND, 0)
    (run / SECOND / ".rank0.0a1b.spool.json").write_text("{}")


def break_file(run, name):
    (run / FIRST / f"rank1.{name}").write_bytes(b'rank,step\n"\xff{,,,\n')


def request(run, wanted):
    manifest = json.loads((run / "run.json").read_text()) | {"world_size": 16, "ranks": wanted}
    (run / "run.json").write_text(json.dumps(manifest))


REQUESTS = (None, "first-of-node", "callable", "all", [0, 1, 2, 3], [0, 1, 2, 3, 9, 40])
DAMAGES = {
    "nothing": lambda run: None,
    "rank 2 died while it recorded": die,
    "ranks 1 and 3 began later, rank 2 lost a window": lambda run: (remove(run, FIRST, 1, 3), remove(run, SECOND, 2)),
    # each keeps the last two; but of the last one every rank must have left something
    "ranks keep two windows, rank 2 left": lambda run: (
        remove(run, FIRST, 1, 3), remove(run, THIRD, 2), change(run, SECOND, 0, keep_windows=2)
    ),
    "rank 3 has no window": lambda run: [remove(run, window, 3) for window in WINDOWS],
    "rank 1 failed": lambda run: (change(run, FIRST, 1, partial="ValueError: gone", reached=11), shorten(run)),
    "rank 1 has fewer steps": shorten,
    "rank 0 did not finish two windows": leave_unfinished,
    "rank 2 has an empty window": empty,
    **{f"rank 1 has a broken {name}": functools.partial(break_file, name=name)
       for name in ("capture.json", "steps.csv", "collectives.csv")},
    **{f"requested of 16: {ranks}": functools.partial(request, wanted=ranks) for ranks in REQUESTS},
}  # fmt: skip
"""What is missing of a run of four ranks with three windows; a golden file has what is said of it."""


@pytest.mark.slow
def test_missing_files_of_ranks_equal_the_golden_file(tmp_path, golden):
    lines, whole = [], "ranks [0, 1, 2, 3], steps of [4, 4, 4] ranks, 48 collectives matched"
    for number, (name, damage) in enumerate(DAMAGES.items()):
        damage(run := ManyRanks(ranks=4, windows=3).write(tmp_path / f"{number}"))
        data = ranks.gather(run)
        counts = f"ranks {data['ranks']} of {data['world_size']}, {len(data['windows'])} windows"
        lines += [f"=== {name}", counts]
        for window in data["windows"]:
            here = f"ranks {window['ranks']['rank']}, steps of {window['steps']['ranks']} ranks"
            here += f", {window['matched']} collectives matched"
            lines += [f"{window['name']}: {here}"] * (here != whole)
        missing = [f"{each['window'] or 'run'}, {each['what']}: {each['text']}" for each in data["missing"]]
        lines += [re.sub("cannot be read: .+", "cannot be read: ...", line) for line in missing]
        lines.append("")
    golden("missing_ranks.txt", "\n".join(lines))


@pytest.mark.parametrize(
    ("same", "ended", "began", "earlier"),
    [
        (True, 10, 5, False),  # together, however long the others went on
        (True, 10, 10.5, True),
        (False, 10, 10.5, False),  # clocks of two machines may differ
        (False, 10, 69, False),
        (False, 10, 71, True),
    ],
)
def test_attempts_of_a_job_are_distinguished(run, same, ended, began, earlier):
    """A rank that ended the window before the process of another one had begun is not compared with it."""
    now = BEGAN_NS / 1e9
    for rank in range(4):
        change(run, FIRST, rank, node="a", boot="x", began=now + began, time=now + 500)
    change(run, FIRST, 3, node="a" if same else "b", began=now - 100, time=now + ended)
    data = ranks.gather(run)
    assert data["windows"][0]["ranks"]["rank"] == [0, 1, 2, 3][: 4 - earlier]
    key = (FIRST, "earlier", (3,))
    assert (key in lacks(data)) is earlier
    if earlier:
        before = {0.5: "500 ms", 61: "61 s"}[began - ended]
        assert f"{before} before the last attempt of the job began" in lacks(data)[key]


def test_cached_columns_of_another_version_are_read(run):
    path = run / FIRST / "rank1.steps.csv"
    path.write_text("stage,wall_ms,step,more\ntrain,60.5,10,x\n")
    (run / FIRST / "rank2.collectives.csv").write_text("rank,step,start_ns\n")
    window = ranks.gather(run)["windows"][0]
    assert of_rank(window, 1)["wall_ms"] == 60.5


def test_folder_without_a_run_is_rejected(tmp_path):
    with pytest.raises(PerfhooksError, match=r"no run\.json"):
        ranks.gather(tmp_path)
    with pytest.raises(PerfhooksError, match="not a window of a run"):
        ranks.clocks_of(tmp_path)


def test_a_run_without_windows_has_none(tmp_path):
    data = ranks.gather(ManyRanks(ranks=2, windows=0).write(tmp_path / "run"))
    assert (data["windows"], ranks.findings(data)) == ([], [])


def test_rank_lists_are_short():
    assert name_ranks([3]) == "rank 3"
    assert name_ranks([0, 1, 2, 7, 9, 8]) == "ranks 0-2, 7-9"
    assert name_ranks(range(0, 100, 2)).endswith("...")


# --- size


@pytest.mark.process
@pytest.mark.parametrize("count", [96])
def test_many_ranks_are_gathered_in_little_time_and_memory(tmp_path, count):
    """The whole size, 1,024 ranks, is in the benchmarks."""
    run = ManyRanks(ranks=count, windows=3, node=8, collectives=20, slow_data={70: 60.0}).write(tmp_path / "run")
    script = (
        "import json, sys, time; began = time.process_time()\n"
        "from pathlib import Path; from perfhooks.analysis import ranks\n"
        "data = ranks.gather(Path(sys.argv[1])); found = ranks.findings(data)\n"
        "took = time.process_time() - began\n"
        'used = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024\n'
        "print(json.dumps([took, used, len(json.dumps(data)), found[0]['rank'], 'torch' in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", script, run], capture_output=True, text=True, check=True, timeout=300)
    took, used, size, rank, torch = json.loads(done.stdout)
    assert took < 20
    assert used < 500
    assert size < 300_000
    assert (rank, torch) == (70, False)


# --- the handler


def test_a_window_leaves_a_table_by_the_clock_of_the_host(tmp_path):
    events = [
        step_mark(4, 0, 900),
        op("mm", 5, 10),
        launch(1, 20, 30),
        kernel(1, 100, 400, name="ncclDevKernel_AllReduce"),
    ]
    trace = perfhooks.trace.read(write_trace(tmp_path / "t.json", events, baseTimeNanoseconds=17 * 10**17))
    found = rows(Capture(rank=3), trace)
    assert found["start_ns"].to_list() == [17 * 10**17 + 100]
    assert (found["rank"].to_list(), found["step"].to_list()) == ([3], [4])
    (artifact,) = CollectiveTable().artifacts(Capture(rank=3), trace)
    assert artifact.name == "collectives.csv"
    path = tmp_path / "rank3.collectives.csv"
    with path.open("wb") as file:
        artifact.write(file)
    Place(tmp_path, 3).save(Capture(rank=3, state="done"))
    assert files.read(tmp_path, [3]).collectives["duration_ms"].to_list() == [0.0003]


def test_a_window_without_collectives_leaves_none(tmp_path):
    trace = perfhooks.trace.read(write_trace(tmp_path / "t.json", [step_mark(0, 0, 9), op("mm", 1, 2)]))
    assert list(CollectiveTable().artifacts(Capture(), trace)) == []


def test_two_ranks_of_a_real_job_match_their_collectives(recordings):
    """Of 128, two were published, and of their events a sample: what can be told is told, the rest is not guessed."""
    read = [perfhooks.trace.read(recordings / f"sampled-128ranks-rank{rank}.json.gz") for rank in (0, 1)]
    found = collectives.match(pl.concat([rows(Capture(rank=rank), trace) for rank, trace in enumerate(read)]))
    kept = collectives.by_collective(found)
    assert sorted(kept["operation"].to_list()) == [
        *("all_gather", "all_gather", "all_reduce", "all_reduce", "all_to_all")
    ]
    assert kept.filter(pl.col("operation") == "all_reduce")["bytes"].to_list() == [78473228, 22866616]
    assert found.clocks.error_95_ms < 1
    assert abs(found.clocks.offset_ms[1]) < 1
    # starts by aligned clocks and durations tell the same
    alike = kept.filter(pl.col("operation") != "all_to_all")
    assert (alike["spread_ms"] - alike["wait_ms"]).abs().max() < 1
