"""Profile the first ten iterations of a Runner that is already built, as accelerator vendors' guides do it.

DeepLink's guide for DIPU, for one, registers mmengine's own ProfilerHook like this; only the import is another one. The
device is recorded whatever kind it is, if torch can record it, as after ``import torch_npu``. Recording needs torch
2.4: torch_dipu runs on torch 2.0 to 2.2, and what its own profiler recorded is read on any machine with
``perfhooks show trace.json``.
"""

from __future__ import annotations

from pathlib import Path

from mmengine.runner import Runner

from images import arguments, list_files, loader
from mmengine_resnet18 import Classifier
from perfhooks_mmengine import ProfilerHook


def main() -> None:
    """Train a few steps and list the files: the JSON that the guide asks for, and what perfhooks makes of it."""
    args = arguments(__doc__).parse_args()
    runner = Runner(
        model=Classifier(),
        work_dir="work_dirs/resnet18",
        train_dataloader=loader(args),
        train_cfg={"by_epoch": True, "max_epochs": 1},
        optim_wrapper={"optimizer": {"type": "SGD", "lr": 0.01}},
        default_hooks={"checkpoint": None},
    )
    profiler = ProfilerHook(
        by_epoch=False,
        profile_times=10,
        activity_with_cpu=True,
        activity_with_cuda=True,
        json_trace_path=str(Path(runner.log_dir) / "trace.json"),
        out=args.out,
    )
    runner.register_custom_hooks([profiler])
    runner.train()

    print(profiler.summary())
    list_files(Path(runner.log_dir))


if __name__ == "__main__":
    main()
