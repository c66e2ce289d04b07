"""Profile a ResNet-18 in a loop with Lightning's Fabric."""

from __future__ import annotations

from pathlib import Path

import torch
from lightning.fabric import Fabric
from torch.nn.functional import cross_entropy
from torchvision.models import resnet18

from images import CLASSES, arguments, list_files, loader
from perfhooks_fabric import ProfilerCallback


def main() -> None:
    """Train a few steps, show the table of the profiled ones and list the files."""
    args = arguments(__doc__).parse_args()
    profiler = ProfilerCallback(
        schedule="skip_first=2 wait=2 warmup=1 active=3 repeat=2", with_stack=True, max_trace_mb=None, out=args.out
    )
    fabric = Fabric(devices=1, callbacks=[profiler])
    network = resnet18(num_classes=CLASSES)
    model, optimizer = fabric.setup(network, torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9))

    for images, labels in profiler.steps(fabric.setup_dataloaders(loader(args))):
        with profiler.region("forward"):
            loss = cross_entropy(model(images), labels)
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    profiler.stop()

    print(profiler.summary())
    list_files((args.out or Path("perf")) / "latest")


if __name__ == "__main__":
    main()
