"""A training on two ranks, in two processes that talk over gloo; as a script, it takes the folder to work in."""

import os
import sys
from pathlib import Path

WORLD = 2


def train(folder, rank):
    """What one rank does."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(WORLD))
    import torch.distributed

    meeting = f"file://{folder / 'meeting'}"
    # mmengine itself can start process groups only where there is a GPU
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=WORLD)
    import mmengine_training as tiny

    from perfhooks_mmengine import ProfilerHook

    wanted = ["default", "tb_trace", {"type": "tb_trace", "dir_name": "named", "worker_name": "worker"}]
    on_all = ProfilerHook(
        schedule="wait=1 warmup=0 active=2 repeat=1", on_trace_ready=wanted, json_trace_path=str(folder / "trace.json")
    )
    on_one = ProfilerHook(schedule="wait=5 warmup=0 active=2 repeat=1", ranks=[0])
    tiny.trained(
        folder / "work",
        on_all,
        on_one,
        launcher="pytorch",
        env_cfg={"dist_cfg": {"backend": "gloo"}},
        cfg={"model_wrapper_cfg": {"type": "MMDistributedDataParallel", "device_ids": None}},
        log_level="INFO",
    )
    torch.distributed.destroy_process_group()


def main(folder):
    """Split into the ranks; each ends as a Python program ends."""
    other = os.fork()
    train(folder, 0 if other else 1)
    if other:
        sys.exit(os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
