"""Profile a ResNet-18 on several ranks: ``torchrun --nproc-per-node 2 torchrun_ddp.py``.

All ranks record the same steps into one run folder; nobody waits for anybody because of it.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision.models import resnet18

import perfhooks
from images import CLASSES, arguments, list_files, training_images


def main() -> None:
    """Train a few steps on every rank; the first shows its table and the files of all."""
    args = arguments(__doc__).parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    where = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    model = DistributedDataParallel(resnet18(num_classes=CLASSES).to(where))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = training_images(args, args.steps * args.batch_size * dist.get_world_size())
    loader = DataLoader(images, batch_size=args.batch_size, sampler=DistributedSampler(images))

    with perfhooks.Profiler(schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", out=args.out) as prof:
        for batch in prof.steps(loader):
            with prof.region("transfer"):
                pixels, labels = (tensor.to(where) for tensor in batch)
            with prof.region("forward"):
                loss = cross_entropy(model(pixels), labels)
            with prof.region("backward"):
                loss.backward()
            with prof.region("optimizer"):
                optimizer.step()
                optimizer.zero_grad()

    prof.wait()
    dist.barrier()  # for the list below; a training needs none
    if dist.get_rank() == 0:
        print(prof.summary())
        list_files((args.out or Path("perf")) / "latest")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
