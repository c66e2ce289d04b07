"""Ranks that were started by hand: they know each other only when the process group is there."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from perfhooks import Profiler

SPAWN = """
import sys, torch, torch.distributed as dist, torch.multiprocessing as mp, perfhooks

def work(rank, meet):
    options = dict(out="runs", on_trace_ready="steps", background=False)
    with perfhooks.Profiler(schedule="wait=2 warmup=0 active=1 repeat=1", **options) as prof:
        dist.init_process_group("gloo", init_method="file://" + meet, rank=rank, world_size=2)
        for _ in range(4):
            torch.ones(3) + 1
            prof.step()
        dist.barrier()

if __name__ == "__main__":
    mp.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
def test_ranks_started_before_the_process_group_share_one_run(run_script, tmp_path):
    done = run_script(SPAWN, tmp_path / "meet", timeout=240)
    assert done.returncode == 0, done.stderr
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    window = run / "train-000002-000002"
    assert {path.name for path in window.glob("rank*.steps.csv")} == {"rank0.steps.csv", "rank1.steps.csv"}
    assert json.loads((run / "run.json").read_text())["world_size"] == 2
    assert (tmp_path / "runs/latest").resolve() == run


@pytest.mark.recorder
def test_rank_that_changes_after_the_start_is_reported(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    with Profiler(schedule="wait=0 warmup=0 active=1 repeat=3", out="runs", background=False) as prof:
        prof.step()
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        prof.step()
    assert "this process is rank 1 of 2 now, but was rank 0 of 1 when profiling began" in caplog.text
    assert len([path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]) == 1


def test_rank_that_is_not_selected_records_nothing(tmp_path, monkeypatch):
    """The watcher writes a status into the folder while it is deleted."""
    monkeypatch.chdir(tmp_path)
    delete, statuses = shutil.rmtree, iter(["rank0.status.json"])

    def delete_partly(folder, **options):
        delete(folder, **options)
        for name in statuses:
            folder.mkdir()
            (folder / name).touch()

    monkeypatch.setattr(shutil, "rmtree", delete_partly)
    with Profiler(schedule="wait=1 warmup=0 active=1", out="runs", ranks=[0], background=False) as prof:
        monkeypatch.setenv("RANK", "1")
        monkeypatch.setenv("WORLD_SIZE", "2")
        for _ in range(5):
            prof.step()
    assert [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()] == []
    assert "ranks= excludes this rank" in prof.summary()
