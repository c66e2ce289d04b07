"""Two real trainings compared, from the loop to the sentence."""

import time

import pytest
import torch
from torch import nn

import perfhooks
from perfhooks.analysis.comparison import comparison, sources

pytestmark = pytest.mark.recorder

WAIT_S = 0.03
ITEMS = 50
EVALUATED = 33
"""Step of the window that evaluates as well."""
EVALUATIONS = 20


class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers)))

    def forward(self, x):
        return self.layers(x)


def slowly(loader):
    """Batches that each come some milliseconds later."""
    for batch in loader:
        time.sleep(WAIT_S)
        yield batch


def evaluate(model, batches):
    model.eval()
    with torch.no_grad():
        for x in batches:
            model(x).softmax(1).argmax(1)
    model.train()


def train(out, name, *, layers=2, planted=False, evaluates=False):
    model = Net(layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batches = [torch.ones(16, 64)] * 60
    schedule = "skip_first=30 wait=0 warmup=1 active=5 repeat=1"
    options = {"with_stack": True, "record_shapes": True, "background": False, "max_trace_mb": None}
    with perfhooks.Profiler(schedule=schedule, out=out, run=name, **options) as prof:
        for step, x in enumerate(prof.steps(slowly(batches) if planted else batches)):
            if evaluates and step == EVALUATED:
                with prof.region("validation"):
                    evaluate(model, batches[:EVALUATIONS])
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            for _ in range(ITEMS * planted):
                model.layers[0].bias[0].item()
    return prof


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    out = tmp_path_factory.mktemp("perf")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several wait for each other where others use the machine
    base = train(out, "base")
    train(out, "new", layers=3, planted=True)
    torch.set_num_threads(threads)
    return out, base


def test_slow_loader_and_new_layer_are_found_in_real_trainings(runs):
    out, _ = runs
    assert (out / "base" / "train-000031-000035" / "rank0.costs.json").exists()
    made = comparison.compare(*sources.read([[out / "base"], [out / "new"]]))
    # a machine that others use may leave it undecided, and never makes of it the opposite
    assert made.verdict.outcome in ("slower", "undecided")
    assert made.verdict.ratio > 1
    # the loop waited that long by the same clock; what else a busy machine adds may be more
    (data,) = (row for row in made.reasons if row.name == "data")
    assert data.b >= WAIT_S * 1e9
    assert data.difference > 0
    (layer,) = (row for row in made.reasons if row.name.endswith("Linear_2"))
    assert layer.is_new
    (item,) = (row for row in made.reasons if row.name == "aten::item")
    assert (item.is_new, item.count_b) == (True, ITEMS)
    difference = made.b.costs.wall / made.b.costs.steps - made.a.costs.wall / made.a.costs.steps
    assert sum(row.difference for row in made.reasons) == pytest.approx(difference, abs=1e-3)


def test_evaluation_in_one_window_is_not_a_reason(runs):
    out, _ = runs
    train(out, "evaluates", evaluates=True)
    made = comparison.compare(*sources.read([[out / "base"], [out / "evaluates"]]))
    assert not made.b.costs.counts.get("aten::argmax")
    assert not [row.name for row in made.reasons if row.b and ("argmax" in row.name or "softmax" in row.name)]
    assert not [row for row in made.reasons if row.name == "validation" and row.b]


def test_a_training_sums_itself_up_in_markdown(runs):
    _, prof = runs
    text = prof.summary(format="markdown")
    assert "- model: Net" in text
    assert "## Where the step goes" in text
    assert text._repr_markdown_() == text
    assert prof.summary()._repr_html_().startswith("<pre>")
    with pytest.raises(perfhooks.OptionError, match="format must be table or markdown, got 'html'"):
        prof.summary(format="html")
