"""Who a process is: rank, node and the name of its job, the same on all ranks and another for the next job."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from perfhooks.core.job import Job
from perfhooks.run.job import current_job

NAMES = (
    *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT"),
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS"),
    *("SLURM_NTASKS_PER_NODE", "SLURM_STEP_NUM_NODES"),
)
UUID = "a694adec-b1b3-4f9e-b8bf-6bca67fe013c"


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def job(monkeypatch):
    """The job of a process with some environment, and nothing else."""

    def current(**environment):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, str(value))
            return current_job()

    return current


def torchrun(rank=0, nodes=1, attempt=0, launch="ab12cd", run_id=UUID):
    """What torchrun tells a rank."""
    return {
        "RANK": rank,
        "LOCAL_RANK": rank % 2,
        "WORLD_SIZE": nodes * 2,
        "LOCAL_WORLD_SIZE": 2,
        "MASTER_ADDR": "localhost" if nodes == 1 else "node0",
        "MASTER_PORT": 29500,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": attempt,
        "TORCHELASTIC_ERROR_FILE": f"/tmp/elastic_x/{run_id}_{launch}/attempt_{attempt}/{rank % 2}/error.json",
    }


def slurm(rank=0, step=0, **more):
    """What srun tells a task."""
    return {"SLURM_JOB_ID": 77, "SLURM_STEP_ID": step, "SLURM_PROCID": rank, "SLURM_STEP_NUM_TASKS": 4, **more}


def test_process_without_a_launcher_is_alone(job):
    assert job() == Job(node=platform.node())


def test_first_process_is_rank_0_of_job_and_node():
    assert Job(rank=5, local_rank=1, world_size=8, node="b").first == Job(rank=0, local_rank=0, world_size=8, node="b")


def test_torchrun_provides_rank_and_world(job):
    found = job(**torchrun(rank=3, nodes=2))
    assert (found.rank, found.local_rank, found.world_size) == (3, 1, 4)


def test_srun_provides_rank_and_world(job):
    found = job(**slurm(rank=2, SLURM_LOCALID=1))
    assert (found.rank, found.local_rank, found.world_size, found.identity) == (2, 1, 4, "slurm-77.0")


def test_process_of_a_batch_script_is_alone(job):
    assert job(SLURM_JOB_ID=77, SLURM_NTASKS=4, SLURM_PROCID=0).world_size == 1


def test_a_rank_without_a_world_is_none(job):
    assert job(RANK=3).rank == 0
    assert job(RANK="three", WORLD_SIZE=4).world_size == 1


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("run_id", [UUID, "mine", "none"])
def test_ranks_of_a_launch_share_an_identity_across_restarts(job, nodes, run_id):
    world = range(2 * nodes)
    # the port that ranks meet at may be another one after a restart
    found = {job(**torchrun(rank, nodes, attempt, run_id=run_id)).identity for rank in world for attempt in (0, 1)}
    assert len(found) == 1
    assert found.pop()


@pytest.mark.parametrize("run_id", [UUID, "mine", "none"])
def test_next_job_on_the_same_port_has_another_identity(job, run_id):
    first, second = (job(**torchrun(launch=launch, run_id=run_id)).identity for launch in ("aaaa", "bb_b"))
    assert first != second
    assert first.endswith("aaaa")
    assert second.endswith("torchrun-bb_b")
    assert ("mine" in first) == (run_id == "mine")


def test_steps_of_one_slurm_job_are_different_jobs(job):
    found = {job(**slurm(step=step)).identity for step in (0, 1)}
    assert len(found) == 2
    nested = {job(**torchrun(nodes=2, run_id="none"), SLURM_JOB_ID=77, SLURM_STEP_ID=step).identity for step in (0, 1)}
    assert len(nested) == 2


def test_nodes_without_an_id_share_their_rendezvous(job):
    found = {job(**torchrun(rank, 2, launch=f"launch{rank}", run_id="none")).identity for rank in range(4)}
    assert found == {"node0-29500"}


SCRIPT = "from perfhooks.run.job import current_job; print(current_job().identity, current_job().local_rank)"
START = f"import subprocess, sys; [subprocess.run([sys.executable, '-c', {SCRIPT!r}]) for _ in range(2)]"


@pytest.mark.process
def test_ranks_started_by_one_process_have_its_identity():
    """By the process, as port and addresses may be the same again."""
    environment = {name: value for name, value in os.environ.items() if name not in NAMES}
    environment |= {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29501"}
    launches = [
        subprocess.run(
            [sys.executable, "-c", START], env=environment, capture_output=True, text=True, check=True, timeout=300
        )
        for _ in range(2)
    ]
    first, second = (launch.stdout.splitlines() for launch in launches)
    assert len(set(first)) == len(set(second)) == 1
    assert first[0] != second[0]
    assert first[0].endswith("-29501 1"), "and rank 1 of one node is local rank 1"


def test_a_process_group_knows_better_than_the_environment(monkeypatch, tmp_path):
    import torch.distributed as dist

    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    try:
        found = current_job()
    finally:
        dist.destroy_process_group()
    assert (found.rank, found.world_size, found.identity) == (0, 1, None)
