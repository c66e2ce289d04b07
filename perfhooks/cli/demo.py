from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from perfhooks.run.layout import LATEST, PAGE

EXAMPLES: Final = "Example: perfhooks demo --open"


def command(
    *,
    out: Annotated[Path, typer.Option("--out", help="Folder of all runs.")] = Path("perf"),
    show_it: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Profile a small training on this machine, and write its report."""
    import perfhooks.record.loop  # noqa: F401 -- says which torch to install where there is none

    table, page = run(out)
    typer.echo(table)
    typer.echo(page)
    if show_it:
        typer.launch(page.absolute().as_uri())


def run(out: Path) -> tuple[str, Path]:
    """Train a small network on noise. Return the step table and the path of the report."""
    import torch

    from perfhooks.record.loop.profiler import Profiler

    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 32 * 32, 10),
    )  # fmt: skip  # a network is read as its layers follow each other
    optimizer = torch.optim.AdamW(model.parameters())
    noise = torch.utils.data.TensorDataset(torch.randn(16 * 16, 3, 32, 32), torch.randint(10, (16 * 16,)))
    loader = torch.utils.data.DataLoader(noise, batch_size=16)
    schedule = "skip_first=4 wait=0 warmup=2 active=4 repeat=1"
    with Profiler(schedule=schedule, with_stack=True, record_shapes=True, profile_memory=True, out=out) as prof:
        for images, labels in prof.steps(loader):
            with prof.region("forward"):
                loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return prof.summary(), out / LATEST / PAGE
