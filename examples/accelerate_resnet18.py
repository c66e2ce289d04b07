"""Profile a ResNet-18 in a loop with accelerate."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from images import CLASSES, arguments, list_files, loader
from perfhooks_accelerate import ProfileKwargs


def main() -> None:
    """Train a few steps, show the table of the profiled ones and list the files."""
    args = arguments(__doc__).parse_args()
    accelerator = Accelerator()
    model = resnet18(num_classes=CLASSES)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    model, optimizer, batches = accelerator.prepare(model, optimizer, loader(args))

    profile = ProfileKwargs(
        schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True, max_trace_mb=None, out=args.out
    )
    with accelerator.profile(profile) as prof:
        for images, labels in prof.steps(batches):
            with prof.region("forward"):
                loss = cross_entropy(model(images), labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()

    print(prof.summary())
    list_files((args.out or Path("perf")) / "latest")


if __name__ == "__main__":
    main()
