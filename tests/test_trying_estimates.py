"""What a rule estimates, what `try` measures and what following the advice gives: of the same fault, they agree.

By the processor's clock of one thread, which moves on while that thread works and for nobody else: a machine that
others use changes what it tells by a tenth. What is compared are shares of a step.
"""

import re
import time
from statistics import median

import pytest
import torch
from torch import nn

from perfhooks import Profiler, testing
from perfhooks.analysis import findings
from perfhooks.run.capture import Capture
from perfhooks.run.circumstances import Circumstances
from perfhooks.trace import read
from perfhooks.trace.window import Tables
from perfhooks.trials import bench, recorded, safe, trial, variants
from perfhooks.trials.cut import select_calls

pytestmark = pytest.mark.process

ROUNDS = 5


def float64(*, mended):
    dtype = torch.float32 if mended else torch.float64
    model = nn.Sequential(nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 384)).to(dtype)
    return stepping(model.parameters(), lambda: model(torch.ones(256, 384, dtype=dtype)).square().mean())


def loop(*, mended):
    parameters = [nn.Parameter(torch.randn(64)) for _ in range(150)]
    optimizer = torch.optim.Adam(parameters, foreach=False, fused=mended)
    return stepping(parameters, lambda: torch.cat(parameters).square().sum(), optimizer)


def convolution(*, mended):
    model = nn.Sequential(nn.Conv2d(16, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))
    step = stepping(model.parameters(), lambda: model(torch.ones(2, 16, 80, 80)).square().mean())

    def switched():
        with safe.override_flags({safe.ONEDNN: mended}):
            step()

    return switched


def stepping(parameters, loss, optimizer=None):
    optimizer = optimizer or torch.optim.SGD(parameters, 0.01)

    def step():
        loss().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def record(step, path):
    with Profiler(schedule="wait=1 warmup=1 active=8 repeat=1", record_shapes=True, background=False) as profiler:
        for _ in range(10):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return read(path, strides=True)


def spent(step):
    began = time.thread_time()
    step()
    return time.thread_time() - began


def gained(step, mended):
    """The share of a step that following the advice saves: both in turn, A B B A."""
    for each in (step, mended):
        each()
    times = [[spent(each) for each in (step, mended, mended, step)] for _ in range(ROUNDS)]
    before, after = ([row[place] for row in times for place in places] for places in ((0, 3), (1, 2)))
    return 1 - median(after) / median(before)


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.nightly  # caches that other programs share change what is saved
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize(
    ("rule", "planted"),
    [("float64-products", float64), ("optimizer-loop", loop), ("slow-convolution", convolution)],
)
def test_estimate_of_a_rule_is_a_fifth_to_twice_the_gain(rule, planted, tmp_path, monkeypatch):
    """Measured on a busy machine: 0.5 to 0.7 of what it gives for float64, 0.75 to 1 for the optimizer, 0.4 to 0.6 for
    convolutions when estimates were the least that was measured of several models; they are its middle now.
    """
    trace = record(planted(mended=False), tmp_path / "trace.json")
    said = Circumstances(onednn=planted is not convolution, threads=1, cores=1)
    (found,) = (each for each in findings.find(Capture(circumstances=said), trace) if each.rule == rule)
    # what was recorded is by the clock on the wall, which a busy machine moves on as it likes
    monkeypatch.setattr(trial, "COMPARABLE", (0.0, 1e9))
    calls = recorded.load_calls(Tables(trace))
    way = variants.advice_for(rule)
    wish = bench.TrialOptions(device=torch.device("cpu"), variants=way.variants[:1], clock=time.thread_time)
    done = trial.run(select_calls(calls, re.compile(way.operators).fullmatch), calls.step_ms, wish, said)
    # also where one is not decided in time: that is for people
    saved = sum(row.group.step_ms * (1 - each.timing.ratio) for row in done.rows for each in row.tried)
    estimate, measured = found.gain_percent / 100, saved / done.step_ms
    real = gained(planted(mended=False), planted(mended=True))
    assert 1 / 4 < estimate / measured < 2
    assert 1 / 5 < estimate / real < 2  # it is recorded by the clock on the wall: 1.7 was seen on a busy machine
    assert 1 / 4 < measured / real < 2


@pytest.mark.parametrize("marks", [[testing.step_mark(3, 0, 1_000_000)], []], ids=["steps", "no steps"])
def test_call_includes_the_device_time_of_inner_calls(tmp_path, marks):
    """The first one of a trace as well."""
    us, given = 1000, {"Input_Dims": [[2]], "Input_type": ["float"]}
    events = [
        *marks,
        testing.op("aten::linear", 10 * us, 200 * us, **given),
        testing.op("aten::addmm", 20 * us, 100 * us, external=7, **given),
        testing.launch(1, 30 * us, 40 * us),
        testing.kernel(1, 300 * us, 800 * us, external=7),
        testing.op("aten::mul", 850 * us, 900 * us, external=8, **given),
        testing.launch(2, 860 * us, 870 * us),
        testing.kernel(2, 900 * us, 950 * us, external=8),
    ]
    found = recorded.load_calls(Tables(read(testing.write_trace(tmp_path / "t.json", events), strides=True)))
    spent_us = dict(zip(found.names(), (found.total / us).tolist(), strict=True))
    assert {name: spent_us[name] for name in spent_us if "aten" in name} == {
        "aten::linear": 500,
        "aten::addmm": 500,
        "aten::mul": 50,
    }


def test_recorder_overhead_is_no_time_of_an_update(tmp_path):
    """A step of 10 ms, of which recording added 4, to 8 slices: half a millisecond for each, its mark among them."""
    us = 1000
    events = [testing.step_mark(3, 0, 10_000 * us), testing.op("Optimizer.step#Adam.step", 10 * us, 9010 * us)]
    for place in range(5):
        begin = (100 + 1000 * place) * us
        events.append(testing.op("aten::add_", begin, begin + 800 * us, Input_Dims=[[2]], Input_type=["float"]))
    events.append(testing.op("aten::mul", 9200 * us, 9900 * us, Input_Dims=[[2]], Input_type=["float"]))
    tables = Tables(read(testing.write_trace(tmp_path / "t.json", events), strides=True))
    spent_ms = {
        known: dict(zip(found.names(), (found.total / 1e6).tolist(), strict=True)) | {"step": found.step_ms}
        for known in (None, 6.0, 20.0)
        for found in [recorded.load_calls(tables, known)]
    }
    names = ("ProfilerStep#3", "Optimizer.step#Adam.step", "aten::add_", "aten::mul", "step")
    assert [spent_ms[None][each] for each in names] == pytest.approx([10, 9, 0.8, 0.7, 10])
    assert [spent_ms[6.0][each] for each in names] == pytest.approx([6, 6, 0.3, 0.2, 6])
    assert spent_ms[20.0] == spent_ms[None]
