"""Trainings for the tests of comparisons: small traces of which every nanosecond is known, and runs made of them."""

import itertools
import random
import re
from pathlib import Path

from perfhooks import testing
from perfhooks.run.capture import Capture, Place
from perfhooks.run.timeline import HEADER

US = 1_000
STEP = 4


class Training:
    """Writes the events of a training on one thread, one after the other; times are microseconds of what is called."""

    def __init__(self):
        self.events = []
        self.now = 0
        self._external = itertools.count(1)

    def spend(self, us):
        self.now += round(us * US)

    def inside(self, make, name, body, **arguments):
        begin = self.now
        place = len(self.events)
        body()
        self.events.insert(place, make(name, begin, self.now, **arguments))

    def op(self, name, us, *, dims=None, types=None, inner=()):
        def body():
            self.spend(us)
            for each in inner:
                self.op(**each)

        shaped = {} if dims is None else {"Input_Dims": dims, "Input_type": types or ["float"] * len(dims)}
        self.inside(testing.op, name, body, **shaped)

    def label(self, name, body):
        self.inside(testing.annotation, name, body)

    def module(self, name, body):
        self.inside(testing.python_frame, f"nn.Module: {name}", body)

    def frame(self, name, body):
        self.inside(testing.python_frame, name, body)


def linear(training, name, us, width=64, types=None):
    dims = [[width], [16, 64], [64, width]]
    training.module(name, lambda: training.op("aten::addmm", us, dims=dims, types=types))


def optimizer(training, *, foreach):
    def body():
        if foreach:
            for name in ("aten::_foreach_mul_", "aten::_foreach_addcdiv_"):
                training.op(name, 200)
        else:
            for name in ("aten::mul_", "aten::addcdiv_"):
                for _ in range(20):
                    training.op(name, 40)

    training.label("optimizer", body)


def training(
    *,
    steps=3,
    data=1000,
    doubled=False,
    items=0,
    types=None,
    slower_by_type=1,
    foreach=True,
    layers=2,
    noise=None,
    renamed=False,
    line="",
    order=None,
):
    """The events of a training, with what is planted in it."""
    made = Training()
    rng = random.Random(noise)

    def layer(number, us):
        jitter = rng.uniform(0.99, 1.01) if noise is not None else 1
        linear(made, f"Linear_{number}", us * slower_by_type * jitter, 64 if number < layers - 1 else 10, types)

    def forward():
        def body():
            for number in range(layers) if order is None else order:
                layer(number, 700 if number else 1000)
            if doubled:
                linear(made, f"Linear_{layers}", 700)

        made.module("Renamed_0" if renamed else "Net_0", (lambda: made.frame(line, body)) if line else body)

    def step():
        made.label("data", lambda: made.spend(data))
        made.label("forward", forward)
        for _ in range(items):
            made.op("aten::item", 10, dims=[[]], inner=[{"name": "aten::_local_scalar_dense", "us": 290, "dims": [[]]}])
        optimizer(made, foreach=foreach)

    for number in range(steps):
        begin = made.now
        made.frame("train.py(7): main", step)
        made.spend(50)
        made.events.append(testing.step_mark(10 + number, begin, made.now))
    return made.events


def compiled(*, steps=3):
    """The same model compiled: the names are those that torch 2.15 writes for it with inductor and with aot_eager."""
    made = Training()

    def region():
        made.op("TorchDynamo Cache Lookup", 50)
        inner = [{"name": "aten::addmm", "us": 500, "dims": [[64], [16, 64], [64, 64]]}]
        inner += [{"name": "aten::mm", "us": 400, "dims": [[16, 64], [64, 64]]}]
        made.module(
            "GraphModule_0",
            lambda: made.op(
                "Torch-Compiled Region: 0/0", 10, inner=[{"name": "CompiledFunction", "us": 40, "inner": inner}]
            ),
        )

    def step():
        made.label("data", lambda: made.spend(1000))
        made.label("forward", lambda: made.module("OptimizedModule_0", lambda: made.module("Net_0", region)))
        optimizer(made, foreach=True)

    for number in range(steps):
        begin = made.now
        made.frame("train.py(7): main", step)
        made.spend(50)
        made.events.append(testing.step_mark(10 + number, begin, made.now))
    return made.events


def make_run(folder, events, steps, *, stage="train", options=None, rank=0, **manifest):
    """A run folder as a training leaves it: ``steps`` are the milliseconds of steps that nobody recorded."""
    import msgspec

    folder.mkdir(parents=True, exist_ok=True)
    facts = {"format": 1, "host": "here", "versions": {"torch": "2.15"}, "world_size": 1} | manifest
    (folder / "run.json").write_bytes(msgspec.json.encode(facts))
    rows = [f"{stage},{number},wait,{ms:.6f},\n" for number, ms in enumerate([50.0] * 3 + list(steps))]
    if len(steps):
        (folder / f"rank{rank}.timeline.csv").write_text(HEADER + "".join(rows))
    if events is not None:
        place = Place(folder / f"{stage}-000010-000012", rank)
        place.save(
            Capture(
                rank=rank, stage=stage, first=10, last=12, reached=13, options=options or {}, summary={"wall_ms": 5.0}
            )
        )
        testing.write_trace(place.artifact("pt.trace.json.gz"), events)
    return folder


def undocumented(data):
    """Fields of a comparison in JSON that docs/compare.md does not name."""
    page = (Path(__file__).parents[1] / "docs/compare.md").read_text(encoding="utf-8")
    named = set(re.findall(r'"(\w+)":', page.partition("## The JSON")[2]))
    sides = [data["a"]] if "a" in data else data["programs"][:1]
    return {*data, *data["verdict"], *data["verdict"]["mean"], *(name for side in sides for name in side)} - named
