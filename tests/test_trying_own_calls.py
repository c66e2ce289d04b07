"""`compare_calls`: functions of one's own held against each other, kept, and printed."""

import pytest
import torch
from test_trying import Machine
from torch.utils.benchmark import Compare

import perfhooks
from perfhooks.errors import OptionError, PerfhooksError


@pytest.fixture
def machine():
    return Machine(3, slow=0.03, fast=0.01)


def calls(machine, **seconds):
    def make(spent):
        def call(x, scale=1.0):
            machine.work(spent)
            return x * scale

        return call

    return {name: make(spent) for name, spent in seconds.items()}


def compare(machine, **seconds):
    return perfhooks.compare_calls(
        calls(machine, **seconds), [torch.ones(3)], {"scale": 2.0}, seconds=1e9, clock=machine.clock
    )


def test_each_is_held_against_the_first(machine):
    found = compare(machine, old=2e-3, new=1e-3, same=2e-3, worse=3e-3)
    assert {name: each.outcome for name, each in found.timings.items()} == {
        "new": "faster",
        "same": "same",
        "worse": "slower",
    }
    assert found.table["times"].to_list()[1:] == pytest.approx([2, 1, 2 / 3], rel=0.03)
    assert found.table["median_ms"].to_list() == pytest.approx([2, 1, 2, 3], rel=0.1)
    assert found.differences == dict.fromkeys(("new", "same", "worse"), 0.0)
    assert repr(found) == str(found), "what a notebook shows by itself is the table"
    lines = str(found).splitlines()
    assert len(lines) == 5
    assert "the reference" in lines[1]
    assert "faster" in lines[2]


def test_results_that_differ_are_shown(machine):
    both = {"old": lambda x: (machine.work(1e-3), x)[1], "new": lambda x: (machine.work(1e-3), {"y": 1.5 * x})[1]}
    found = perfhooks.compare_calls(both, [torch.ones(3)], clock=machine.clock)
    assert found.differences["new"] == pytest.approx(0.5)
    nothing = {name: lambda: machine.work(1e-3) for name in ("old", "new")}
    assert perfhooks.compare_calls(nothing, clock=machine.clock).differences == {"new": None}


def test_results_of_another_number_of_tensors_are_infinitely_far_apart(machine):
    both = {"old": lambda x: (machine.work(1e-3), x)[1], "new": lambda x: (machine.work(1e-3), (x, x))[1]}
    assert perfhooks.compare_calls(both, [torch.ones(3)], clock=machine.clock).differences == {"new": float("inf")}


def test_a_function_may_use_autograd_and_leaves_random_numbers_alone(machine):
    weights = torch.ones(3, requires_grad=True)
    before = torch.get_rng_state()

    def train():
        machine.work(1e-3)
        torch.rand(3)
        (weights * 2).sum().backward()

    perfhooks.compare_calls({"a": train, "b": train}, clock=machine.clock)
    assert weights.grad is not None
    assert torch.equal(torch.get_rng_state(), before)


def test_it_is_kept_and_compared_with_later(machine, tmp_path):
    earlier = compare(machine, old=2e-3, new=1e-3)
    earlier.differences["new"] = float("inf")
    earlier.save(tmp_path / "calls.json")
    loaded = perfhooks.CallComparison.load(tmp_path / "calls.json")
    assert loaded == earlier
    later = compare(machine, new=3e-3, other=1e-3)
    table = later.against(loaded)
    assert table["call"].to_list() == ["new"]
    assert table["verdict"].to_list() == ["slower"]
    assert table["ratio"][0] == pytest.approx(3, rel=0.15)
    with pytest.raises(OptionError, match="it has old, new"):
        compare(machine, third=1e-3).against(loaded)
    (tmp_path / "calls.json").write_text('{"format": 99}')
    with pytest.raises(PerfhooksError, match="format"):
        perfhooks.CallComparison.load(tmp_path / "calls.json")


def test_torchs_own_table_takes_it(machine):
    text = str(Compare(compare(machine, old=2e-3, new=1e-3).measurements))
    assert "old" in text
    assert "new" in text


@pytest.mark.parametrize(
    ("given", "options"), [({}, {}), ({"a": 1}, {}), ({"a": print}, {"seconds": 0}), ({"a": print}, {"tolerance": 2})]
)
def test_what_cannot_be_is_refused(given, options):
    with pytest.raises(OptionError, match="must be"):
        perfhooks.compare_calls(given, **options)
