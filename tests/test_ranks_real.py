"""Real trainings on several ranks of this machine: who is slow is named, and what a rank loses costs no other."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import perfhooks.trace
from perfhooks import ranks
from perfhooks.finishing.leftovers import finish_all
from perfhooks.ranks.merge import merge

HERE = Path(__file__).parent
SCRIPT = HERE / "gloo_training.py"
EXAMPLE = HERE.parent / "examples" / "torchrun_ddp.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
LOOPS = {"raw": r"torchrun-\w+", "lightning": r"\d{8}-\d{6}-\d+", "mmengine": r"\d{8}_\d{6}"}
"""Whose loop trains, and what its ranks call their run."""
WINDOWS = ["train-000003-000006", "train-000008-000011"]
TIMEOUT = 240


def environment(folder, **more):
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("TORCHELASTIC", "SLURM"))}
    return quiet | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder), **more}


def the_run(out):
    """The one run folder of all ranks."""
    (found,) = {path.parent.resolve() for path in out.glob("*/run.json")}
    return found


def under_torchrun(folder, *script):
    """What two ranks say that a user starts with torchrun."""
    command = list(map(str, [*TORCHRUN, *script]))
    done = subprocess.run(
        command, env=environment(folder), capture_output=True, text=True, timeout=TIMEOUT, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def started(out, world, *arguments):
    """As many processes as ranks, as any launcher starts them."""
    common = [sys.executable, SCRIPT, "--out", out, "--meeting", out.parent / "meeting", *arguments]
    return [
        subprocess.Popen(
            list(map(str, common)),
            env=environment(out.parent, RANK=str(rank), WORLD_SIZE=str(world)),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


def ended(processes):
    try:
        return [(process.communicate(timeout=TIMEOUT)[1], process.returncode) for process in processes]
    finally:
        for process in processes:
            process.kill()


@pytest.fixture(params=LOOPS)
def loop(request):
    """One of the loops, if its framework is installed."""
    if request.param != "raw" and importlib.util.find_spec(request.param) is None:
        pytest.skip(f"needs {request.param}")
    return request.param


def test_a_rank_that_sleeps_in_its_loader_is_named(tmp_path, loop):
    """Two ranks under torchrun, as a user starts them; each took equally long for its steps."""
    under_torchrun(tmp_path, SCRIPT, "--out", tmp_path / "perf", "--loop", loop, "--slow-data", 1, "--seconds", 0.2)
    run = the_run(tmp_path / "perf")
    assert re.fullmatch(LOOPS[loop], run.name)
    data = ranks.gather(run)
    assert [window["name"] for window in data["windows"]] == WINDOWS
    assert data["missing"] == []
    (finding,) = ranks.findings(data)
    assert (finding["rank"], finding["ranks"], finding["part"]) == (1, [1], "data")
    assert 100 < finding["gain_ms"] < 1000
    for window in data["windows"]:
        walls = window["ranks"]["wall_ms"]
        assert max(walls) < 1.5 * min(walls), "nobody's step is much longer than the other's"
        assert window["unmatched"] in (0, 2), "the last may still be open on a thread of its own when recording ends"
        assert window["clocks"]["ranks"] == 2
        assert window["ranks"]["offset_ms"] == [0, 0], "both are of this machine"
        assert window["worst"]["last_rank"][0] == 1
        assert window["worst"]["wait_ms"][0] > 100
    result = merge(run)
    trace = perfhooks.trace.read(result.path)
    assert {thread.pid for thread in trace.threads} >= {1000, 2000}


def test_nobody_is_named_where_all_ranks_sleep_in_their_loaders(tmp_path):
    asked = ("--loop", "raw", "--slow-data", 0, 1, "--seconds", 0.08)
    under_torchrun(tmp_path, SCRIPT, "--out", tmp_path / "perf", *asked)
    data = ranks.gather(the_run(tmp_path / "perf"))
    assert all(min(window["ranks"]["data_ms"]) > 20 for window in data["windows"])
    assert ranks.findings(data) == []


def test_a_rank_that_computes_longer_is_named_among_four(tmp_path):
    """Started by hand, without any launcher: they meet in one folder all the same."""
    out = tmp_path / "perf"
    results = ended(started(out, 4, "--slow-compute", 2, "--seconds", 0.2))
    assert [code for _, code in results] == [0] * 4, results
    data = ranks.gather(the_run(out))
    assert data["ranks"] == [0, 1, 2, 3]
    (finding,) = ranks.findings(data)
    assert (finding["rank"], finding["part"]) == (2, "compute")


KILLED = """
import os, signal, sys
sys.argv[1:] = {arguments!r}
sys.path.insert(0, {here!r})
import gloo_training as training, torch.distributed as dist
given = training.arguments()
if os.environ["RANK"] == "1":
    read = training.Slow.__getitem__
    def fail(self, index):
        if {what!r} == "killed" and self.count == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        self.count += 1
        return read(self, index)
    training.Slow.count = 0
    training.Slow.__getitem__ = fail
    if {what!r} == "full":
        import resource
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
training.join(given.meeting)
training.train(given)
dist.destroy_process_group()
"""


def launched(tmp_path, what):
    """Two ranks of which something befalls the second one; what they said, and their exit codes."""
    arguments = ["--out", str(tmp_path / "perf"), "--meeting", str(tmp_path / f"meeting-{what}"), "--steps", "8"]
    code = KILLED.format(arguments=arguments, here=str(HERE), what=what)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=environment(tmp_path, RANK=str(rank), WORLD_SIZE="2"),
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    return ended(processes)


def test_a_rank_that_died_in_a_later_attempt_is_not_compared_with_what_it_left_before(tmp_path):
    """Two launches that meet in one folder, as those of an elastic restart do."""
    assert [code for _, code in launched(tmp_path, "nothing")] == [0, 0]
    assert [code for _, code in launched(tmp_path, "killed")] == [1, -9]
    run = the_run(tmp_path / "perf")
    list(finish_all(run))
    data = ranks.gather(run)
    assert data["windows"][0]["ranks"]["rank"] == [0]
    said = {(entry["what"], tuple(entry["ranks"])) for entry in data["missing"] if entry["window"] == WINDOWS[0]}
    assert said == {("died", (1,)), ("earlier", (1,)), ("partial", (0,))}


@pytest.mark.parametrize("what", ["killed", "full"])
def test_what_befalls_one_rank_costs_no_other_its_files(tmp_path, what):
    """Killed inside a window; or nothing of it fits on its disk, while it goes on training."""
    results = launched(tmp_path, what)
    assert [code for _, code in results] == ([1, -9] if what == "killed" else [0, 0]), results
    run = the_run(tmp_path / "perf")
    list(finish_all(run))
    data = ranks.gather(run)
    assert 0 in data["windows"][0]["ranks"]["rank"]
    with (run / WINDOWS[0] / "rank0.steps.csv").open() as file:
        steps = [int(row["step"]) for row in csv.DictReader(file)]
    assert steps == ([3, 4, 5, 6] if what == "full" else [3, 4])
    said = {(entry["what"], tuple(entry["ranks"])) for entry in data["missing"] if entry["window"] == WINDOWS[0]}
    assert ("died", (1,)) in said if what == "killed" else said & {("absent", (1,)), ("unfinished", (1,))}
    facts = json.loads((run / WINDOWS[0] / "rank0.capture.json").read_text())
    assert (facts["partial"] is not None) == (what == "killed")
    assert (("partial", (0,)) in said) == (what == "killed")


def test_the_example_runs_under_torchrun(tmp_path):
    said = under_torchrun(tmp_path, EXAMPLE, "--batch-size", 2, "--out", tmp_path / "perf")
    assert "wall" in said
    for window in ("train-000005-000007", "train-000011-000013"):
        assert all(f"{window}/rank{rank}.collectives.csv" in said for rank in (0, 1))
    assert ranks.gather(the_run(tmp_path / "perf"))["missing"] == []
