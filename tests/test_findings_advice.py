"""Advice is given where it was measured to help: the rules that were wrong, each on a real training of its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import perfhooks
from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.analysis.findings import optimizer
from perfhooks.run.capture import Capture, Cost, Place
from perfhooks.run.circumstances import Circumstances
from perfhooks.testing import annotation, op, step_mark
from perfhooks.trace import read

pytestmark = pytest.mark.recorder

SCHEDULE = "wait=2 warmup=1 active=3 repeat=1"
STEPS = 6
MS = 1_000_000
"""Nanoseconds."""


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def recorded(out, model, batches, make_optimizer):
    """The capture and the trace of a window; what recording cost is of this machine, and has tests of its own."""
    optimizer = make_optimizer(model.parameters())
    with perfhooks.Profiler(schedule=SCHEDULE, record_shapes=True, out=out, background=False) as prof:
        for batch in prof.steps(batches):
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    (facts,) = {path.resolve() for path in out.glob("*/train-*/rank0.capture.json")}
    place = Place(facts.parent)
    return replace(place.load(), cost=Cost()), read(place.artifact("pt.trace.json.gz"))


def found(capture, trace):
    return {finding.rule: finding for finding in findings.find(capture, trace)}


def many_layers():
    return torch.nn.Sequential(*(torch.nn.Linear(96, 96) for _ in range(40)))


def convolutions():
    """As in many a net: most of the work in filters of 3 x 3, and 1 x 1 beside them."""
    return torch.nn.Sequential(torch.nn.Conv2d(3, 64, 3), torch.nn.Conv2d(64, 128, 1), torch.nn.Conv2d(128, 16, 1))


@pytest.mark.parametrize("name", ["Adadelta", "RMSprop", "Adamax"])
def test_optimizer_without_a_fused_version_has_no_finding(name, tmp_path):
    """``foreach=True`` was measured at -69% to +93% there."""
    make = getattr(torch.optim, name)
    assert "optimizer-loop" not in found(*recorded(tmp_path, many_layers(), [torch.rand(8, 96)] * STEPS, make))


def test_plain_sgd_has_no_finding_on_a_cpu(tmp_path):
    """Fused, it was as slow on a ResNet-18."""

    def make(parameters):
        return torch.optim.SGD(parameters, lr=0.1, foreach=False)

    assert "optimizer-loop" not in found(*recorded(tmp_path, many_layers(), [torch.rand(8, 96)] * STEPS, make))


def test_the_advice_names_the_optimizer_that_was_used(tmp_path, monkeypatch):
    monkeypatch.setattr(optimizer, "HEAVY", 0.0)  # pauses may take most of the three steps
    finding = found(*recorded(tmp_path, many_layers(), [torch.rand(8, 96)] * STEPS, torch.optim.Adagrad))
    assert "torch.optim.Adagrad(" in finding["optimizer-loop"].code


def test_convolutions_that_torch_itself_unfolds_are_no_finding(tmp_path):
    """With one thread and a batch below 16 it takes its own path for 1 x 1 filters, while oneDNN is on."""
    capture, trace = recorded(tmp_path, convolutions(), [torch.rand(4, 3, 40, 40)] * STEPS, torch.optim.SGD)
    assert len(trace.named(perfhooks.trace.Kind.OP, prefix="aten::_slow_conv2d")), "what the test is about"
    assert capture.circumstances.onednn is True
    assert "slow-convolution" not in found(capture, trace)
    assert "slow-convolution" not in found(replace(capture, circumstances=Circumstances()), trace), "nobody asked"
    off = replace(capture, circumstances=Circumstances(onednn=False))
    assert "slow-convolution" in found(off, trace)


def test_creation_of_optimizer_state_is_no_update_time(tmp_path):
    """Of an update of 50 ms it takes 30; fused or not, it is made in the first one."""
    events = [
        event
        for begin in (0, 100 * MS)
        for event in (
            step_mark(begin // (100 * MS), begin, begin + 100 * MS),
            annotation("forward", begin, begin + 50 * MS),
            annotation("Optimizer.step#Adam.step", begin + 50 * MS, begin + 100 * MS),
            op("aten::zeros_like", begin + 50 * MS, begin + 80 * MS),
            op("aten::zero_", begin + 51 * MS, begin + 79 * MS),
            *(op("aten::add_", begin + at * MS // 2, begin + at * MS // 2 + 1000) for at in range(162, 198)),
        )
    ]
    finding = found(Capture(first=0, last=1, reached=2), read(testing.write_trace(tmp_path / "t.json", events)))
    assert finding["optimizer-loop"].title == "Adam updates its parameters one by one, which takes 20 ms of a step."
    assert finding["optimizer-loop"].gain_ms == pytest.approx(10)
    assert not any("zero_" in line for line in finding["optimizer-loop"].lines)
