"""Folders of traces that others recorded: the straggler, findings of several ranks, and ranks that lost kernels."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfhooks.analysis import ranks
from perfhooks.analysis.ranks.findings import merge_findings
from perfhooks.cli.app import app
from perfhooks.testing import kernel, launch, op, step_mark, write_trace

MS = 1_000_000
STEPS = 4
REDUCE_MS = 2
SIZE = {"dtype": "BFloat16", "In msg nelems": 1_000_000, "Out msg nelems": 1_000_000, "Process Group Name": "0"}


def write_job(folder, compute_ms, *, wait_ms=None, queue=False, small=0, lost=()):
    """Write one trace of each rank: a step computes, then all ranks reduce, and no rank ends before the last arrives.

    Args:
        folder: The folder.
        compute_ms: Milliseconds of computation in a step, for each rank.
        wait_ms: Milliseconds for which the host launches nothing, for each rank.
        queue: Whether the host runs ahead: its steps last 1 ms each, and the device works on them later.
        small: Collectives of a few bytes in each step, before the large one.
        lost: Ranks whose computation was not recorded.
    """
    folder.mkdir(exist_ok=True)
    ranks = len(compute_ms)
    wait_ms = wait_ms or [0] * ranks
    period = max(compute + wait for compute, wait in zip(compute_ms, wait_ms, strict=True)) + REDUCE_MS
    for rank in range(ranks):
        events, number = [], 0

        def work(name, host, begin, end, *, stream=7, events=events, **args):
            nonlocal number
            number += 1
            events += [op("aten::mm", host, host + 20_000, external=number)]
            events += [launch(number, host + 1_000, host + 5_000, external=number)]
            if stream == 20 or args.pop("is_recorded", True):
                events.append(kernel(number, begin, end, name=name, stream=stream, external=number, **args))

        for step in range(STEPS):
            begin = step * period * MS
            host = step * MS if queue else begin
            events.append(step_mark(step, host, host + (MS if queue else period * MS)))
            start = begin + wait_ms[rank] * MS + 100_000
            launched = host + 50_000 if queue else start - 30_000
            end = start + compute_ms[rank] * MS - 200_000
            for index in range(4):
                share = (end - start) // 4
                times = start + index * share, start + (index + 1) * share
                work("gemm", launched + index * 25_000, *times, is_recorded=rank not in lost)
            for index in range(small):
                at = end + 10_000 + index * 5_000
                args = {**SIZE, "In msg nelems": 1, "Out msg nelems": 1, "Collective name": "allreduce"}
                work("ncclDevKernel_AllReduce", launched + 100_000, at, at + 4_000, stream=20, **args)
            reduce = end + 20_000 + small * 5_000
            done = begin + period * MS - 50_000
            args = {**SIZE, "Collective name": "allreduce", "Group size": ranks}
            work("ncclDevKernel_AllReduce", launched + 130_000, reduce, done, stream=20, **args)
        about = {"rank": rank, "world_size": ranks, "backend": "nccl"}
        device = [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}]
        write_trace(folder / f"rank{rank}.json", events, distributedInfo=about, deviceProperties=device)
    return folder


def shown(*arguments):
    done = CliRunner().invoke(app, ["show", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def found_in(folder):
    return json.loads(shown(folder, "-t", "findings", "--json"))


def stragglers(folder):
    return [row for row in found_in(folder) if row["rule"] == "straggler"]


@pytest.mark.slow
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(("ranks", "slow"), [(2, 0), (4, 3), (8, 5)])
def test_rank_that_computes_longer_is_the_straggler(tmp_path, ranks, slow, queue):
    compute = [10] * ranks
    compute[slow] = 14
    (row,) = stragglers(write_job(tmp_path / "job", compute, queue=queue))
    assert (row["rank"], row["ranks"]) == (slow, str(slow))
    assert row["title"].startswith(f"Rank {slow} computes longer")


@pytest.mark.slow
@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize(("ranks", "slow"), [(4, 1), (8, 7)])
def test_rank_with_a_slow_host_is_not_accused_of_its_data(tmp_path, ranks, slow, queue):
    """No rank has a loader, so no rank waits for data; the device of the straggler is idle."""
    wait = [0] * ranks
    wait[slow] = 4
    (row,) = stragglers(write_job(tmp_path / "job", [10] * ranks, wait_ms=wait, queue=queue, small=3))
    assert row["rank"] == slow
    assert "spends longer on its host" in row["title"]
    assert not re.search(r"\bdata\b|disk", json.dumps(row))


@pytest.mark.parametrize("queue", [False, True])
def test_equal_ranks_have_no_straggler(tmp_path, queue):
    assert not stragglers(write_job(tmp_path / "job", [10, 10, 10, 10], queue=queue, small=2))


def test_equal_findings_of_ranks_are_one_row(tmp_path):
    rows = found_in(write_job(tmp_path / "job", [10, 10, 10, 14]))
    titles = [(row["rule"], re.sub(r"[\d.,]+", "", row["title"])) for row in rows]
    assert len(titles) == len(set(titles)) > 1
    assert all(row["rank"] is not None and row["ranks"] for row in rows)
    assert {row["ranks"] for row in rows if row["rule"] != "straggler"} & {"0-2", "0-3"}


def test_findings_of_ranks_with_different_names_stay_separate():
    def row(kernel, gain):
        values = {"kernel": {"value": kernel, "unit": "name"}, "time_ms": {"value": gain, "unit": "ms"}}
        return {"rule": "slow-kernel", "title": kernel, "gain_ms": gain, "values": values, "evidence": []}

    found = merge_findings(
        {
            0: [row("gemm_64x64", 3.0), row("gemm_128x64", 2.0)],
            1: [row("gemm_64x64", 0.95)],
        },
        [{"rule": "straggler", "title": "Rank 1 is slow.", "gain_ms": 9.0, "evidence": (), "rank": 1, "ranks": [1]}],
    )
    assert [(each["rank"], [*each["ranks"]]) for each in found] == [(1, [1]), (0, [0, 1]), (0, [0])]
    assert "ranks 0-1 have this finding, with gains of 0.95 to 3 ms per step" in found[1]["evidence"][-1]["text"]


@pytest.mark.slow
def test_run_shows_the_finding_of_its_last_window_once(tmp_path):
    """`report` of a folder and `show` of it agree."""
    folder = write_job(tmp_path / "job", [10, 14, 10, 10])
    done = CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert done.output.count("Rank 1 computes longer") == 1


@pytest.mark.parametrize("extra", [(), ("--table", "findings", "--csv")])
def test_folder_is_shown_as_a_terminal_would(tmp_path, extra):
    assert shown(write_job(tmp_path / "job", [10, 10]), *extra)


@pytest.mark.slow
def test_markdown_of_a_folder_names_the_straggler(tmp_path):
    text = shown(write_job(tmp_path / "job", [10, 10, 15]), "--format", "markdown")
    assert text.startswith("# job\n")
    assert "- ranks: 3" in text
    assert "Rank 2 computes longer" in text


@pytest.mark.slow
def test_findings_of_ranks_follow_the_schema(tmp_path):
    """Equal findings of several ranks are one; the straggler is that of the table."""
    import jsonschema

    from perfhooks.report.page.findings_file import schema

    folder = write_job(tmp_path / "job", [10, 10, 15])
    text = shown(folder, "--format", "json")
    found = json.loads(text)
    jsonschema.validate(found, json.loads(schema()), jsonschema.Draft202012Validator)
    (straggler,) = [row for row in found["findings"] if row["rule"] == "straggler"]
    assert (found["run"], straggler["rank"], straggler["ranks"]) == ("job", 2, [2])
    assert straggler["title"] == stragglers(folder)[0]["title"]
    assert {tuple(row["ranks"]) for row in found["findings"] if row["rule"] != "straggler"} & {(0, 1), (0, 1, 2)}
    assert shown(folder, "--format", "json") == text


@pytest.mark.slow
def test_folder_at_a_url_is_shown_and_summarized(tmp_path):
    url = write_job(tmp_path / "job", [10, 10, 15]).as_uri()
    assert "Rank 2 computes longer" in shown(url, "-t", "findings", "--csv")
    assert "Rank 2 computes longer" in shown(url, "--format", "markdown")


@pytest.mark.slow
@pytest.mark.parametrize("queue", [False, True])
def test_rank_without_its_kernels_has_no_compute_and_no_own_work(tmp_path, queue):
    from perfhooks.analysis.ranks import gather
    from perfhooks.report.finishing.adoption import adopted

    folder = write_job(tmp_path / "job", [10, 10, 10, 10], lost=[2], queue=queue)
    with adopted(folder) as run:
        data = gather(run.folder)
    (window,) = data["windows"]
    for name in ("compute_ms", "own_ms", "excess_ms"):
        assert [value is None for value in window["ranks"][name]] == [False, False, True, False], name
    assert [entry["ranks"] for entry in data["missing"] if entry["what"] == "lost-kernels"] == [[2]]
    assert not stragglers(folder)


@pytest.mark.slow
def test_rank_with_lost_kernels_is_detected_by_other_ranks(tmp_path):
    """Its own trace has no sign of it, because the launches were lost as well."""
    from perfhooks.analysis.ranks import gather
    from perfhooks.report.finishing.adoption import adopted

    folder = write_job(tmp_path / "job", [10, 10, 10])
    path = folder / "rank1.json"
    trace = json.loads(path.read_text())
    gone = {
        event["args"]["correlation"]
        for event in trace["traceEvents"]
        if event["name"] == "gemm" and event["args"]["correlation"] % 5 != 1
    }
    trace["traceEvents"] = [
        event for event in trace["traceEvents"] if event.get("args", {}).get("correlation") not in gone
    ]
    path.write_text(json.dumps(trace))
    with adopted(folder) as run:
        data = gather(run.folder)
    assert data["windows"][0]["ranks"]["compute_ms"][1] is None
    (entry,) = (entry for entry in data["missing"] if entry["what"] == "lost-kernels")
    assert entry["text"].startswith("rank 1 lacks kernels in the trace (2 kernels per step, but 5")


# --- the rank that arrives last in large collectives


def compared(durations, sizes, *, steps=1, wall_ms=100.0):
    """Compare ranks whose hosts run ahead, from the duration of each collective (column) on each rank (row).

    Each step has as many of the collectives as the next one. The devices need ten times as long as the hosts.
    """
    ranks_steps, ranks_collectives = {}, {}
    for rank, row in enumerate(durations):
        numbers = [index * steps // len(row) for index in range(len(row))]
        busy = [wall_ms] * steps
        ranks_steps[rank] = pl.DataFrame(
            {"step": range(steps), "wall_ms": [wall_ms / 10] * steps, "busy_ms": busy, "device_idle_ms": [0.0] * steps}
            | {"compute_ms": [wall_ms - sum(row) / steps] * steps, "comm_ms": [sum(row) / steps] * steps}
            | {"exposed_comm_ms": [sum(row) / steps] * steps, "ops": [9] * steps, "kernels": [9] * steps}
        )
        ends = [10.0 * index + 9.0 for index in range(len(row))]
        starts = [round((end - duration) * 1e6) for end, duration in zip(ends, row, strict=True)]
        ranks_collectives[rank] = pl.DataFrame(
            {"step": numbers, "start_ns": starts, "operation": "all_reduce", "backend": "nccl", "group": "0"}
            | {"group_size": len(durations), "dtype": "float", "bytes": sizes, "duration_ms": row, "exposed_ms": row}
            | {"bus_gb_per_s": None, "device": 0}
        )
    return ranks.compare("window", ranks_steps, ranks_collectives)


def plain_counts(durations, sizes):
    """Count for each rank the large collectives in which it is last, step by step."""
    counts = []
    for row in durations:
        last = 0
        for index, duration in enumerate(row):
            column = [other[index] for other in durations]
            if sizes[index] * 10 >= max(sizes) and duration == min(column) < max(column):
                last += 1
        counts.append(last)
    return counts


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data())
def test_count_of_large_collectives_equals_a_simple_count(data):
    count, world = data.draw(st.integers(1, 12)), data.draw(st.integers(2, 5))
    sizes = data.draw(st.lists(st.sampled_from([1000, 99_999, 100_000, 1_000_000]), min_size=count, max_size=count))
    row = st.lists(st.integers(1, 8).map(float), min_size=count, max_size=count)
    durations = data.draw(st.lists(row, min_size=world, max_size=world))
    table = compared(durations, sizes)["windows"][0]["ranks"]
    assert table["last"] == plain_counts(durations, sizes)
    assert table["large"] == [sum(size * 10 >= max(sizes) for size in sizes)] * world


def late_in(ranks_last, *, late_ms=1.0, world=4):
    """Durations of collectives in each of which one rank is later than the others; None for none."""
    return [
        [1.0 if last == rank else 1.0 + late_ms * (last is not None) for last in ranks_last] for rank in range(world)
    ]


def test_last_rank_of_most_large_collectives_is_the_straggler():
    """Small collectives do not count, in which another rank is last."""
    large, small = late_in([2] * 41 + [0, 1, 3, 0, 1, 3, 0], late_ms=0.8), late_in([0] * 60, late_ms=0.01)
    durations = [[*of_large, *of_small] for of_large, of_small in zip(large, small, strict=True)]
    (finding,) = ranks.findings(compared(durations, [25 << 20] * 48 + [4] * 60))
    assert (finding["rule"], finding["rank"]) == ("straggler", 2)
    assert finding["evidence"][0]["text"].endswith("; last in 41 of 48 large collectives (25 MiB or more)")


@pytest.mark.parametrize(
    ("last", "late_ms", "sizes"),
    [
        ([0, 1, 2, 3] * 12, 1.0, 25 << 20),  # each is last as often
        ([2] * 41 + [0] * 7, 0.01, 25 << 20),  # last, and nobody waits for long
        ([None] * 48, 1.0, 25 << 20),  # equal
        ([2] * 41 + [0] * 7, 1.0, None),  # of unknown size: a single step is no evidence
    ],
)
def test_ranks_are_no_stragglers_without_delay_or_order(last, late_ms, sizes):
    assert ranks.findings(compared(late_in(last, late_ms=late_ms), [sizes] * len(last))) == []


@pytest.mark.slow
@pytest.mark.parametrize("job", ["cases/b5_ranks_without_loader", "ascend/level1", "sampled-128ranks-*"])
def test_last_ranks_of_jobs_equal_a_simple_computation(recordings, tmp_path, job):
    from perfhooks.report.finishing.adoption import adopted

    for path in recordings.glob(job if "*" in job else f"{job}/*"):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    with adopted(tmp_path) as run:
        (window,) = ranks.gather(run.folder)["windows"]
        tables = [pl.read_csv(path) for path in sorted(run.folder.glob("*/rank*.collectives.csv"))]
    found = [row for table in tables for row in table.sort("start_ns").iter_rows(named=True) if row["bytes"]]
    calls, numbers = {}, Counter()
    for row in found:
        key = tuple(row[name] for name in ("step", "group", "operation", "dtype", "bytes"))
        if row["operation"] in ("all_reduce", "all_gather", "reduce_scatter"):
            calls.setdefault((*key, numbers[row["rank"], key]), {})[row["rank"]] = row["duration_ms"]
            numbers[row["rank"], key] += 1
    common = {key: call for key, call in calls.items() if len(call) == len(tables)}
    keys = [key for key in common if key[4] * 10 >= max(size for *_, size, _ in common)]
    durations = [[common[key][rank] for key in keys] for rank in range(len(tables))]
    assert window["ranks"]["last"] == plain_counts(durations, [key[4] for key in keys])
    assert window["ranks"]["large"] == [len(keys)] * len(tables)
    assert sum(window["ranks"]["last"]) > 0


@pytest.mark.parametrize(("compute", "named"), [((50, 70, 50), [1]), ((50, 50, 50), []), ((50, 54), [])])
def test_ranks_without_collectives_are_compared_by_computation(compute, named):
    """Their steps take equally long, so somebody waits in what was not recorded."""
    count = {"step": range(4), "wall_ms": [100.0] * 4, "comm_ms": [0.0] * 4, "exposed_comm_ms": [0.0] * 4}
    tables = {}
    for rank, compute_ms in enumerate(compute):
        device = {"busy_ms": float(compute_ms), "compute_ms": float(compute_ms), "device_idle_ms": 100.0 - compute_ms}
        tables[rank] = pl.DataFrame(count | device)
    found = ranks.findings(ranks.compare("window", tables, dict.fromkeys(tables, pl.DataFrame())))
    assert [finding["rank"] for finding in found] == named
    for finding in found:
        assert finding["title"].startswith("Rank 1 computes longer: 20 ms more than the other ranks in a step.")
        assert finding["gain_ms"] == pytest.approx(20)
