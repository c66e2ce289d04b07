"""Ranks that do other work than others, as the stages of a pipeline: only those of one role are compared."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
from many_ranks import BEGAN_NS, ManyRanks

from perfhooks.analysis import ranks
from perfhooks.analysis.comparison.side import RunOrTrace
from perfhooks.analysis.ranks import files, roles
from perfhooks.analysis.ranks.leads import RankSteps, group_comparable
from perfhooks.report.live import View
from perfhooks.run import layout
from perfhooks.run.timeline import HEADER


def table(kinds, steps=3):
    """What each rank took part in at every step, in the order of time."""
    rows = [
        {"rank": rank, "step": step, "start_ns": 1000 * step + place, "operation": operation, "group_size": size}
        for rank, mine in kinds.items()
        for step in range(steps)
        for place, (operation, size) in enumerate(mine)
    ]
    return pl.DataFrame(rows, schema=dict(files.COLLECTIVES), orient="row")


REDUCE, SEND, RECV = ("all_reduce", 2), ("send", 2), ("recv", 2)
FIRST, MIDDLE, LAST = [SEND, RECV], [RECV, SEND, RECV, SEND], [RECV, SEND]


@pytest.mark.parametrize(
    ("kinds", "found"),
    [
        ([[REDUCE] * 9] * 4, [0, 0, 0, 0]),
        ([[]] * 3, [0, 0, 0]),
        ([FIRST, FIRST, MIDDLE, MIDDLE, MIDDLE, LAST], [0, 0, 1, 1, 1, 2]),
        ([[REDUCE] * 8 + FIRST, [REDUCE] * 8 + LAST], [0, 1]),
        ([[REDUCE] * 8, [REDUCE] * 10, [REDUCE] * 12], [0, 0, 1]),
        ([[("all_reduce", 2)], [("all_reduce", 4)], [("all_gather", 2)]], [0, 1, 2]),
    ],
    ids=["replicas", "alone", "pipeline", "order", "layers", "kinds"],
)
def test_ranks_with_equal_communication_share_a_role(kinds, found):
    counted = roles.of_ranks(range(len(kinds)), table(dict(enumerate(kinds))))
    assert [counted[rank] for rank in range(len(kinds))] == found


def test_truncated_step_defines_no_role():
    whole = table({0: [REDUCE] * 8, 1: [REDUCE] * 8})
    cut = whole.filter(~((pl.col("rank") == 1) & (pl.col("step") == 2) & (pl.col("start_ns") > 2001)))
    assert roles.of_ranks([0, 1], cut) == {0: 0, 1: 0}


def pipeline(path, **options):
    """A run of eight ranks, of which two are the first stage of a pipeline and six are the second one."""
    run = ManyRanks(ranks=8, node=8, windows=1, steps=40, **options).write(path)
    for rank in range(8):
        order = ("send", "recv") if rank < 2 else ("recv", "send")
        (tables,) = run.glob(f"*/rank{rank}.collectives.csv")
        with tables.open("a") as file:
            for step in range(10, 50):
                for place, operation in enumerate(order):
                    start = BEGAN_NS + step * 10**9 + place
                    file.write(f"{rank},{step},{start},{operation},nccl,9,2,float,100,0.1,0.1,1.0,0,21\n")
        (steps,) = run.glob(f"*/rank{rank}.steps.csv")
        rows = [line.split(",") for line in steps.read_text().splitlines()[1:]]
        rows = [f"train,{int(row[2]) + 100},wait,{row[3]},{row[4]}\n" for row in rows]
        (run / layout.timeline(rank)).write_text(HEADER + "".join(rows))
    return run


FIRST_STAGE = {0: 20.0, 1: 20.0}


def test_stage_with_more_work_is_not_slow(tmp_path):
    run = pipeline(tmp_path / "run", slow_compute=FIRST_STAGE)
    told = ranks.gather(run)
    assert told["windows"][0]["ranks"]["role"] == [0, 0, *[1] * 6]
    assert ranks.findings(told) == []
    assert [group["ranks"] for group in told["frontier"]] == [[0, 1], [2, 3, 4, 5, 6, 7]]
    for messages in run.glob("*/*.collectives.csv"):
        kept = [line for line in messages.read_text().splitlines(keepends=True) if ",9,2," not in line]
        messages.write_text("".join(kept))
    (window,) = ranks.gather(run)["windows"]
    assert "role" not in window["ranks"]
    assert ranks.findings(ranks.gather(run))[0]["ranks"] == [0, 1]


def test_within_a_stage_the_slow_rank_is_named(tmp_path):
    run = pipeline(tmp_path / "run", slow_compute={**FIRST_STAGE, 5: 15.0})
    (finding,) = ranks.findings(ranks.gather(run))
    assert finding["ranks"] == [5]


def test_top_compares_the_ranks_of_one_role(tmp_path):
    run = pipeline(tmp_path / "run", slow_data={0: 20.0, 1: 20.0})
    slow = {rank.rank for rank in View(run).refresh().ranks if rank.slow}
    assert slow == {0, 1}
    told = ranks.gather(run)
    windows = {window["name"]: window for window in told["windows"]}
    (run / layout.PAGE_DATA).write_text(json.dumps({"ranks_together": {"windows": windows}}))
    assert not any(rank.slow for rank in View(run).refresh().ranks)
    assert told["frontier"][0]["leads"] == []


def test_straggler_in_one_of_two_runs_is_a_difference(tmp_path):
    a, b = (
        RunOrTrace(pipeline(tmp_path / name, slow_data=slow)).side("train").findings
        for name, slow in (("a", {}), ("b", {5: 15.0}))
    )
    assert a == {}
    assert b == {"straggler 5 data": "Rank 5 is late by 15 ms waiting for data: the other ranks wait 15 ms a step."}


def test_ranks_with_other_stages_are_not_compared():
    def steps(count, **unknown):
        columns = {name: np.full(count, 1.0) for name in RankSteps._fields[1:]}
        return RankSteps(np.arange(count), **columns | {name: np.full(count, np.nan) for name in unknown})

    known = [steps(50), steps(50, data_ms=1), steps(50), steps(0), steps(50, data_ms=1)]
    assert group_comparable(known, [None] * 5) == [[0, 2], [1, 4], [3]]
    assert group_comparable(known, [0, 0, 1, 1, 0]) == [[0], [1, 4], [2], [3]]


def test_steps_of_hosts_that_run_ahead_name_no_rank(tmp_path):
    """Their unprofiled steps show where a host was blocked, not whose device was late."""
    run = pipeline(tmp_path / "run", slow_data={5: 15.0})
    for path in run.glob("*/rank*.steps.csv"):
        table = pl.read_csv(path)
        table.with_columns(pl.col("wall_ms") / 2).write_csv(path)
    told = ranks.gather(run)
    assert [group["leads"] for group in told["frontier"]] == [None, None]
    assert told["windows"][0]["ranks"]["last"][5] > 0
    assert [finding["windows"] for finding in ranks.findings(told)] == [[told["windows"][0]["name"]]]
