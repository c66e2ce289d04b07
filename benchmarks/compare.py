"""What a comparison finds in real trainings: nothing where nothing changed, and first what was planted.

``python benchmarks/compare.py`` runs 30 pairs of equal trainings and, for each planted change, five trainings with it
and five without, in turns, each in a process of its own, and says how long comparing takes. It takes some minutes, and
a machine that nobody else uses: trainings of which one was disturbed are not equal. ``--together`` runs both of a pair
at the same time, so that what others do on the machine disturbs both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from comparison import Comparison, say, seconds

PAIRS = 30
RUNS = 5
"""A side, where something is planted."""
STEPS = 400
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
SLOWED = {"five": 0.05, "twelve": 0.12}
"""By what share of itself a step is made longer."""


def train(kind: str, out: str, name: str) -> None:
    """Train a small network with something planted in it."""
    import torch
    from torch import nn

    import perfhooks

    torch.set_num_threads(1)
    torch.manual_seed(0)

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

    class Slow(torch.utils.data.DataLoader):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                began = time.perf_counter()
                while time.perf_counter() < began + WAIT_S:
                    pass
                clocks["loader"].append(time.perf_counter() - began)
                yield batch

    dtype = torch.float64 if kind == "float64" else torch.float32
    data = torch.utils.data.TensorDataset(torch.randn(64 * STEPS, 64, dtype=dtype), torch.randint(10, (64 * STEPS,)))
    loader = (Slow if kind == "loader" else torch.utils.data.DataLoader)(data, batch_size=64)
    model = Net().to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), foreach=kind != "foreach")
    value = torch.ones(())
    clocks: dict[str, list[float]] = {"loader": [], "item": [], "foreach": []}
    schedule = "skip_first=60 wait=0 warmup=2 active=10 repeat=1"
    with perfhooks.Profiler(
        schedule=schedule, with_stack=True, record_shapes=True, out=out, run=name, background=False
    ) as prof:
        start = time.perf_counter()
        for x, y in prof.steps(loader):
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            began = time.perf_counter()
            optimizer.step()
            optimizer.zero_grad()
            updated = time.perf_counter()
            for _ in range(ITEMS * (kind == "item")):
                value.item()
            now = time.perf_counter()
            while time.perf_counter() < now + (now - start) * SLOWED.get(kind, 0):
                pass
            start = time.perf_counter()
            clocks["foreach"].append(updated - began)
            clocks["item"].append(now - updated)
    recorded = {name: usual(each[62:72]) for name, each in clocks.items()}
    (Path(out) / f"{name}.json").write_text(json.dumps(recorded))


def usual(times: list[float]) -> float:
    """The mean, without what took far longer than the others: a comparison leaves such steps out as well."""
    middle = statistics.median(times) if times else 0.0
    return statistics.mean([each for each in times if each <= 3 * middle] or [0.0])


def begun(kind: str, out: Path, name: str) -> subprocess.Popen[bytes]:
    words = [sys.executable, __file__, "--train", kind, str(out), name]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def trained(kind: str, out: Path, name: str) -> Path:
    ended(begun(kind, out, name))
    return out / name


def ended(process: subprocess.Popen[bytes]) -> None:
    if process.wait():
        raise RuntimeError(f"a training ended with exit code {process.returncode}")


def pair_of(out: Path, pair: int, *, together: bool) -> list[list[Path]]:
    """Two equal trainings, one after the other or at the same time."""
    names = [f"{pair}{side}" for side in "ab"]
    if not together:
        return [[trained("base", out, name)] for name in names]
    for process in [begun("base", out, name) for name in names]:
        ended(process)
    return [[out / name] for name in names]


def alarms(out: Path, pairs: int, *, together: bool = False) -> tuple[int, list[str]]:
    """How many pairs of equal trainings are told apart, and what is said of each."""
    from perfhooks.comparing.comparison import compare
    from perfhooks.comparing.sources import read

    told = []
    for pair in range(pairs):
        say(f"equal trainings, pair {pair + 1} of {pairs}")
        made = compare(*read(pair_of(out, pair, together=together)))
        told.append("nothing" if made.verdict is None else f"{made.verdict.outcome} {made.verdict.ratio:.3f}")
    return sum(each.startswith(("slower", "faster")) for each in told), told


def planted(out: Path) -> None:
    """Print, for each planted change, the verdict, the first row, and the row that should be first."""
    from perfhooks.comparing.comparison import compare
    from perfhooks.comparing.sources import read

    runs: dict[str, list[Path]] = {}
    for turn in range(RUNS):
        for kind in ("base", "many", *PLANTED, *SLOWED):
            say(f"planted: {kind}, run {turn + 1} of {RUNS}")
            runs.setdefault(kind, []).append(trained(kind, out, f"{kind}{turn}"))
    for kind in SLOWED:
        made = compare(*read([runs["base"], runs[kind]]))
        print(f"  {kind:8}  {made.sentence}")
    for kind, (base, *row) in PLANTED.items():
        made = compare(*read([runs[base], runs[kind]]))
        found = next((place for place, each in enumerate(made.reasons) if _is(each, row)), None)
        wanted = made.reasons[found] if found is not None else None
        truth = _truth(runs, base, kind)
        share = "" if truth is None or wanted is None else f", {wanted.difference / truth:.2f} of the truth"
        outcome = made.verdict.outcome if made.verdict else "no verdict"
        place = "missing" if found is None else f"row {found + 1}{share}"
        print(f"  {kind:8}  {outcome:9}  {place}: {made.told[0] if made.told else ''}")


def _truth(runs: dict[str, list[Path]], base: str, kind: str) -> float | None:
    """What is planted costs a recorded step by the training's own clock, in nanoseconds."""
    told = [[json.loads(run.with_suffix(".json").read_text()).get(kind) for run in runs[name]] for name in (base, kind)]
    if None in told[0]:
        return None
    a, b = (statistics.mean(each) for each in told)
    return (b - a) * 1e9


def _is(each: Any, row: list[str]) -> bool:
    return each.kind == row[0] and each.name.partition(" ")[0] == row[1].partition(" ")[0]


def measure(pairs: int = PAIRS, *, together: bool = False) -> list[Comparison]:
    """Equal and planted trainings, printed; and how long a comparison takes."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        count, told = alarms(out, pairs, together=together)
        print(f"\nequal trainings told apart: {count} of {pairs} ({', '.join(told)})\n\nplanted changes:")
        planted(out)
        from perfhooks.comparing.comparison import compare
        from perfhooks.comparing.sources import read

        runs = [[out / "base0"], [out / "loader0"]]
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
    parser.add_argument("--together", action="store_true", help="both of a pair at the same time")
    given = parser.parse_args()
    if given.train:
        train(*given.train)
        return
    for comparison in measure(given.pairs, together=given.together):
        print(f"\n{comparison}")


if __name__ == "__main__":
    main()
