"""Who makes the other ranks wait, of real ranks."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import warm

from perfhooks.analysis import ranks
from perfhooks.report.live import View
from perfhooks.run import layout

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="torchrun and gloo, as on clusters"),
]

TRAINING = Path(__file__).parents[1] / "benchmarks/planted/frontier_ranks.py"
COMMAND = Path(__file__).with_name("warm_launch.py")
STEPS = 160


def trained(channel, folder, case):
    """The run of two ranks, one of which is late, under `perfhooks run` with a training that knows of nothing."""
    words = ["run", "--schedule", "wait=100000 warmup=1 active=1", TRAINING, json.dumps([case]), str(STEPS)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = warm.ranks(channel, COMMAND, *words, folder=folder, environment=environment, timeout=300)
    assert [each.returncode for each in done] == [0, 0], [each.stderr for each in done]
    (run,) = {path.parent.resolve() for path in folder.glob(f"perf/*/{layout.timeline(1)}")}
    return run


@pytest.mark.parametrize("case", [("data", 1, "constant"), ("update", 0, "alternating"), ("forward", 1, "sudden")])
def test_straggler_and_part_are_named_by_all_steps(tmp_path, channel, case):
    """By all steps of the run, of which no window was recorded; `top` says the same."""
    stage, rank, kind = case
    for attempt in range(3):  # the times of an overloaded machine may vary so much that no rank is named
        (folder := tmp_path / f"{attempt}").mkdir()
        run = trained(channel, folder, case)
        told = ranks.gather(run)
        if found := ranks.findings(told):
            break
    first = found[0]
    assert (first["rule"], first["rank"], first["part"]) == ("straggler", rank, stage)
    (group,) = told["frontier"]
    assert group["stages"]["name"] == ["update", "data", "forward", "backward"]
    assert sum(group["stages"]["exposed_ms"]) == pytest.approx(group["step_ms"])
    (lead,) = [each for each in group["leads"] if each["part"] == stage]
    assert lead["lead_ms"] == pytest.approx(float((folder / "delay_ms.txt").read_text()), rel=0.5)
    assert first["gain_ms"] == pytest.approx(lead["cost_ms"], abs=1e-6)
    assert first["gain_percent"] == pytest.approx(100 * lead["cost_ms"] / group["step_ms"], abs=0.01)
    assert (lead["since"] is not None) == (kind == "sudden")
    assert [each.rank for each in View(run).refresh().ranks if each.slow] == [rank]
