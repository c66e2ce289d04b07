"""Profile a ResNet-18 in a training loop of your own."""

from __future__ import annotations

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

import perfhooks
from images import CLASSES, arguments, device, list_files, loader


def main() -> None:
    """Train a few steps, show the table of the profiled ones and list the files."""
    args = arguments(__doc__).parse_args()
    where = device()
    model = resnet18(num_classes=CLASSES).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

    profiler = perfhooks.Profiler(
        schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True, max_trace_mb=None, out=args.out
    )
    with profiler as prof:
        for step, batch in enumerate(prof.steps(loader(args))):
            with prof.region("transfer"):
                images, labels = (tensor.to(where) for tensor in batch)
            with prof.region("forward"):
                loss = cross_entropy(model(images), labels)
            with prof.region("backward"):
                loss.backward()
            with prof.region("optimizer"):
                optimizer.step()
                optimizer.zero_grad()
            if step + 1 == args.steps:
                break

    print(prof.summary())
    list_files((args.out or Path("perf")) / "latest")


if __name__ == "__main__":
    main()
