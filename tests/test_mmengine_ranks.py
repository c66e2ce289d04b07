"""Two ranks of one training share a folder, and no file of one is overwritten by the other."""

import json
import os
from pathlib import Path

import pytest
import warm

pytest.importorskip("mmengine")

from mmengine_training import rows
from terminal import steps_of_mean

pytestmark = pytest.mark.framework

HERE = Path(__file__).parent

if not hasattr(os, "fork"):
    pytest.skip("needs fork", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(frameworks, tmp_path_factory):
    """What two ranks left."""
    folder = tmp_path_factory.mktemp("ranks")
    done = warm.run(frameworks, HERE / "mmengine_ranks.py", folder, timeout=300)
    assert done.returncode == 0, done.stderr
    return folder


def test_ranks_share_one_run_under_their_own_names(folder):
    (run,) = {path.parent for path in folder.rglob("run.json")}
    (window,) = run.glob("train-000001-000002")
    for rank in range(2):
        assert [(row["rank"], row["step"]) for row in rows(window, rank)] == [(rank, 1), (rank, 2)]
        assert (window / f"rank{rank}.pt.trace.json.gz").exists()


def test_ranks_option_selects_recording_ranks(folder):
    (window,) = folder.rglob("train-000005-000006")
    assert {path.name.split(".")[0] for path in window.iterdir() if not path.name.startswith(".")} == {"rank0"}


def test_json_of_the_first_rank_has_the_requested_name(folder):
    traces = {path.name: json.loads(path.read_text()) for path in folder.glob("*trace.json")}
    assert {name: trace["distributedInfo"]["rank"] for name, trace in traces.items()} == {
        "trace.json": 0,
        "rank1.trace.json": 1,
    }


@pytest.mark.parametrize("name", ["tf_tracing_logs", "named"])
def test_tensorboard_sees_the_rank_in_the_name(folder, name):
    (logs,) = folder.rglob(name)
    assert sorted(path.name.split(".")[0] for path in logs.iterdir()) == ["rank0", "rank1"]


def test_the_log_is_the_first_ranks(folder):
    (log,) = folder.glob("work/*/*.log")
    text = log.read_text()
    assert len(steps_of_mean(1, 2).findall(text)) == 1
    assert len(steps_of_mean(5, 6).findall(text)) == 1
