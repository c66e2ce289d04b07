"""Who makes the other ranks wait, of real ranks under torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfhooks import ranks
from perfhooks.run import layout
from perfhooks.watching.view import View

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="torchrun and gloo, as on clusters")

TRAINING = Path(__file__).parents[1] / "benchmarks/planted/frontier_ranks.py"
STEPS = 160


def trained(folder, stage, rank, kind):
    """The run of two ranks, one of which is late: `perfhooks run torchrun` with a training that knows of nothing."""
    command = [sys.executable, "-m", "perfhooks", "run", "--schedule", "wait=100000 warmup=1 active=1"]
    launcher = [Path(sys.executable).with_name("torchrun"), "--standalone", "--nproc-per-node=2"]
    training = [TRAINING, json.dumps([[stage, rank, kind]]), str(STEPS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, *launcher, *training], cwd=folder, env=environment, check=True, timeout=300)
    (run,) = {path.parent.resolve() for path in folder.glob(f"perf/*/{layout.timeline(1)}")}
    # the launcher imports torch and waits, which is no run
    assert {path.resolve() for path in (folder / "perf").iterdir()} == {run}
    return run


@pytest.mark.parametrize(
    ("stage", "rank", "kind"), [("data", 1, "constant"), ("update", 0, "alternating"), ("forward", 1, "sudden")]
)
def test_the_rank_and_the_part_of_the_step_that_make_others_wait_are_named(tmp_path, stage, rank, kind):
    """By all steps of the run, of which no window was recorded; `top` says the same."""
    run = trained(tmp_path, stage, rank, kind)
    told = ranks.gather(run)
    first = ranks.findings(told)[0]
    assert (first["rule"], first["rank"], first["part"]) == ("led", rank, stage)
    (group,) = told["frontier"]
    assert group["stages"]["name"] == ["update", "data", "forward", "backward"]
    assert sum(group["stages"]["exposed_ms"]) == pytest.approx(group["step_ms"])
    (lead,) = [each for each in group["leads"] if each["part"] == stage]
    assert lead["lead_ms"] == pytest.approx(25, rel=0.5)
    assert first["gain_ms"] == pytest.approx(lead["cost_ms"], abs=1e-6)
    assert first["gain_percent"] == pytest.approx(100 * lead["cost_ms"] / group["step_ms"], abs=0.01)
    assert (lead["since"] is not None) == (kind == "sudden")
    assert [each.rank for each in View(run).look().ranks if each.slow] == [rank]
