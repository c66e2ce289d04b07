"""What a comparison finds in real trainings: nothing where nothing changed, and what was planted, and where.

``python benchmarks/compare.py`` runs 30 pairs of equal trainings one after the other; and for each planted change the
training with it and without it, in turns, until it is decided which is slower (``perfhooks compare --run``), and once
recorded each, for the reason. That takes half an hour, and beside a machine's other users longer.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from comparison import Comparison, say, seconds

from perfhooks.analysis.comparison.comparison import compare
from perfhooks.analysis.comparison.sources import read

if TYPE_CHECKING:
    from collections.abc import Iterable

PAIRS = 30
STEPS = 400
"""That are recorded; those that take turns are ended."""
PROGRAM_S = 4
"""How long a program that takes turns steps."""
WAIT_S = 0.003
"""How much slower the planted loader is."""
ITEMS = 500
"""How many times the planted step asks for a value: on a CPU, where nothing waits, one costs a microsecond."""
MANY = 300
"""Parameters of the training in which foreach is switched off: with eight it makes no difference."""
PLANTED = {
    "loader": ("base", "part", "data"),
    "doubled": ("base", "module", "Net_0/Linear_2"),
    "item": ("base", "operator", "aten::item"),
    "float64": ("base", "types", "float -> double"),
    "foreach": ("many", "part", "optimizer"),
}
"""What is planted, what it is compared with, and the row that should come first."""
PASSES = {"passes": 40, "five": 42, "twelve": 45}
"""Forward and backward passes of a step: 5 and 12% more of the same work. A step that waits in a loop instead slows
what comes after that as well, by 4% where 12% were waited for; one of more layers differs by 4% between processes."""
SAMPLES = 8
"""Of such a pass, so that a step takes some 20 ms."""


def network(kind: str) -> Any:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(64, 256), nn.Linear(256, 256), *([nn.Linear(256, 256)] * (kind == "doubled"))]
            self.layers = nn.ModuleList(layers)
            self.head = nn.Linear(256, 10)
            self.many = nn.ParameterList(torch.zeros(16) for _ in range(MANY * (kind in ("many", "foreach"))))

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = torch.relu(layer(x))
            return self.head(x + torch.cat(list(self.many)).sum() if len(self.many) else x)

    return Net()


def train(kind: str, out: str, name: str) -> None:
    """Train a small network with something planted in it; nobody records a training without a name."""
    import torch
    from torch import nn

    import perfhooks

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Slow(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                began = time.perf_counter()
                while time.perf_counter() < began + WAIT_S:
                    pass
                clocks["loader"].append(time.perf_counter() - began)
                yield batch

    dtype = torch.float64 if kind == "float64" else torch.float32
    samples = 64 * STEPS
    data = torch.utils.data.TensorDataset(torch.randn(samples, 64, dtype=dtype), torch.randint(10, (samples,)))
    loader = (Slow if kind == "loader" else torch.utils.data.DataLoader)(
        data, batch_size=SAMPLES if kind in PASSES else 64
    )
    model = network(kind).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), foreach=kind != "foreach")
    value = torch.ones(())
    clocks: dict[str, list[float]] = {"loader": [], "item": [], "foreach": []}
    schedule = "skip_first=60 wait=0 warmup=2 active=10 repeat=1"
    with contextlib.ExitStack() as stack:
        batches: Iterable[Any] = itertools.chain.from_iterable(itertools.repeat(loader))
        if name:
            prof = perfhooks.Profiler(
                schedule=schedule, with_stack=True, record_shapes=True, out=out, run=name, background=False
            )
            batches = stack.enter_context(prof).steps(loader)
        for x, y in batches:
            for _ in range(PASSES.get(kind, 1)):
                nn.functional.cross_entropy(model(x), y).backward()
            began = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            updated = time.perf_counter()
            for _ in range(ITEMS * (kind == "item")):
                value.item()
            now = time.perf_counter()
            clocks["foreach"].append(updated - began)
            clocks["item"].append(now - updated)
    recorded = {name: usual(each[62:72]) for name, each in clocks.items()}
    (Path(out) / f"{name}.json").write_text(json.dumps(recorded))


def usual(times: list[float]) -> float:
    """The mean, without what took far longer than the others: a comparison leaves such steps out as well."""
    middle = statistics.median(times) if times else 0.0
    return statistics.mean([each for each in times if each <= 3 * middle] or [0.0])


def words(kind: str, out: Path, name: str = "") -> list[str]:
    return [sys.executable, __file__, "--train", kind, str(out), name]


def trained(kind: str, out: Path, name: str) -> Path:
    subprocess.run(words(kind, out, name), stderr=subprocess.DEVNULL, check=True)
    return out / name


def alarms(out: Path, pairs: int) -> tuple[int, list[str]]:
    """How many pairs of equal trainings are told apart, and what is said of each."""
    told = []
    for pair in range(pairs):
        say(f"equal trainings, pair {pair + 1} of {pairs}")
        made = compare(*read([[trained("base", out / f"{pair}{side}", "run")] for side in "ab"]))
        told.append("nothing" if made.verdict is None else f"{made.verdict.outcome} {made.verdict.ratio:.3f}")
    return sum(each.startswith(("slower", "faster")) for each in told), told


def decided(base: str, kind: str, out: Path) -> str:
    """What is said of two trainings that take turns."""
    a, b = (shlex.join(words(each, out)[1:]) for each in (base, kind))
    given = ["--run", a, "--", b, "--seconds", str(PROGRAM_S), "--format", "json"]
    told = json.loads(subprocess.check_output([sys.executable, "-m", "perfhooks", "compare", *given]))
    return f"{told['verdict']['sentence']} ({len(told['programs'])} programs)"


def planted(out: Path) -> None:
    """Print, for each planted change, the verdict, the first row, and the row that should be first."""
    for kind in ("five", "twelve", *PLANTED):
        base, *row = PLANTED.get(kind, ("passes",))
        say(f"planted: {kind}")
        print(f"  {kind:8}  {decided(base, kind, out)}", flush=True)
        if row:
            print(f"  {'':8}  {_reason(out, base, kind, row)}", flush=True)


def _reason(out: Path, base: str, kind: str, row: list[str]) -> str:
    runs = [trained(each, out, f"{kind}-{each}") for each in (base, kind)]
    made = compare(*read([[run] for run in runs]))
    found = next((place for place, each in enumerate(made.reasons) if _is(each, row)), None)
    if found is None:
        return "missing"
    truth = _truth(runs, kind)
    share = "" if truth is None else f", {made.reasons[found].difference / truth:.2f} of the truth"
    return f"row {found + 1}{share}: {made.told[0]}"


def _truth(runs: list[Path], kind: str) -> float | None:
    """What is planted costs a recorded step by the training's own clock, in nanoseconds."""
    a, b = (json.loads(run.with_suffix(".json").read_text()).get(kind) for run in runs)
    return None if a is None else (b - a) * 1e9


def _is(each: Any, row: list[str]) -> bool:
    return each.kind == row[0] and each.name.partition(" ")[0] == row[1].partition(" ")[0]


def measure(pairs: int = PAIRS) -> list[Comparison]:
    """Equal and planted trainings, printed; and how long a comparison takes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        count, told = alarms(out, pairs)
        print(f"\nequal trainings told apart: {count} of {pairs} ({', '.join(told)})\n\nplanted changes:")
        planted(out)
        runs = [[out / "loader-base"], [out / "loader-loader"]]
        whole = seconds(lambda: compare(*read(runs)))
        for path in out.glob("*/train-*/rank0.costs.json"):
            path.unlink()
        traces = seconds(lambda: compare(*read(runs)))
    rows = (("from the traces", traces * 1e3), ("from what a window leaves", whole * 1e3))
    return [Comparison(title="comparing two runs of one window", unit="ms", rows=rows)]


def main() -> None:
    """Run a training, or all of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--train", nargs=3, metavar=("KIND", "OUT", "NAME"))
    parser.add_argument("--pairs", type=int, default=PAIRS)
    given = parser.parse_args()
    if given.train:
        train(*given.train)
        return
    for comparison in measure(given.pairs):
        print(f"\n{comparison}")


if __name__ == "__main__":
    main()
