"""`compare_calls`: functions of one's own held against each other, kept, and printed."""

from dataclasses import replace

import pytest
import torch
from test_trying import Machine
from torch.utils.benchmark import Compare, FuzzedParameter, FuzzedTensor, Fuzzer

import perfhooks
from perfhooks.core.errors import OptionError, PerfhooksError

pytestmark = pytest.mark.recorder


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


def outcomes(found):
    return dict(zip(found.table["call"], found.table["verdict"], strict=True))


def compare(machine, **seconds):
    return perfhooks.compare_calls(
        calls(machine, **seconds), [torch.ones(3)], {"scale": 2.0}, seconds=1e9, clock=machine.clock
    )


def test_calls_are_compared_with_the_first_call(machine):
    found = compare(machine, old=2e-3, new=1e-3, same=2e-3, worse=3e-3)
    assert outcomes(found) == {"old": "the reference", "new": "faster", "same": "same", "worse": "slower"}
    assert found.table["times"].to_list()[1:] == pytest.approx([2, 1, 2 / 3], rel=0.03)
    assert found.table["median_ms"].to_list() == pytest.approx([2, 1, 2, 3], rel=0.1)
    assert found.table["difference"].to_list() == [None, 0.0, 0.0, 0.0]
    assert repr(found) == str(found), "what a notebook shows by itself is the table"
    lines = str(found).splitlines()[-4:]
    assert "the reference" in lines[0]
    assert "faster" in lines[1]
    assert all(line.split()[4] == "ms" for line in lines), "a time has its unit"


def test_results_that_differ_are_shown(machine):
    both = {"old": lambda x: (machine.work(1e-3), x)[1], "new": lambda x: (machine.work(1e-3), {"y": 1.5 * x})[1]}
    found = perfhooks.compare_calls(both, [torch.ones(3)], clock=machine.clock)
    assert found.table["difference"][1] == pytest.approx(0.5)
    nothing = {name: lambda: machine.work(1e-3) for name in ("old", "new")}
    assert perfhooks.compare_calls(nothing, clock=machine.clock).table["difference"].to_list() == [None, None]


def test_different_numbers_of_tensors_differ_infinitely(machine):
    both = {"old": lambda x: (machine.work(1e-3), x)[1], "new": lambda x: (machine.work(1e-3), (x, x))[1]}
    assert perfhooks.compare_calls(both, [torch.ones(3)], clock=machine.clock).table["difference"][1] == float("inf")


def test_function_can_use_autograd_and_random_numbers(machine):
    weights = torch.ones(3, requires_grad=True)
    before = torch.get_rng_state()

    def train():
        machine.work(1e-3)
        torch.rand(3)
        (weights * 2).sum().backward()

    perfhooks.compare_calls({"a": train, "b": train}, clock=machine.clock)
    assert weights.grad is not None
    assert torch.equal(torch.get_rng_state(), before)


def test_comparison_is_saved_and_compared_later(machine, tmp_path):
    earlier = compare(machine, old=2e-3, new=1e-3)
    earlier = replace(earlier, rows=(earlier.rows[0], replace(earlier.rows[1], difference=float("inf"))))
    earlier.save(tmp_path / "calls.json")
    loaded = perfhooks.CallComparison.load(tmp_path / "calls.json")
    assert loaded == earlier
    later = compare(machine, new=3e-3, other=1e-3)
    table = later.against(loaded)
    assert table["call"].to_list() == ["new"]
    assert table["verdict"].to_list() == ["slower"]
    assert table["ratio"][0] == pytest.approx(3, rel=0.15)
    with pytest.raises(OptionError, match=r"got old \(\[3\], "):
        compare(machine, third=1e-3).against(loaded)
    (tmp_path / "calls.json").write_text('{"format": 99}')
    with pytest.raises(PerfhooksError, match="format"):
        perfhooks.CallComparison.load(tmp_path / "calls.json")


# --- what a user of torch.utils.benchmark types ---


@pytest.fixture
def grid(machine):
    """Two functions over two shapes and two numbers of threads; the second is twice as fast with the larger one."""

    def halved(x):
        machine.work(2e-3 if len(x) < 100 else 1e-3)
        return x.sum()

    def whole(x):
        machine.work(2e-3)
        return x.sum()

    return perfhooks.compare_calls(
        {"mul sum": "whole(x)", "bmm": halved},
        inputs={f"[{rows}, 2]": {"x": torch.ones(rows, 2)} for rows in (64, 128)},
        threads=(1, 2),
        globals={"whole": whole},
        label="Batched vector dot product",
        env="before",
        clock=machine.clock,
    )


def test_compare_print_has_rows_blocks_and_columns_of_torch(grid):
    """Four shapes are four rows, and two threads are two, in torch's own table."""
    title, columns, one, small, large, two, *rest = str(grid).splitlines()
    assert "Batched vector dot product" in title
    assert columns.replace("|", "").split() == ["mul", "sum", "bmm"]
    assert one.startswith("1 threads: --")
    assert two.startswith("2 threads: --")
    assert [line.split("|")[0].strip() for line in (small, large, *rest[:2])] == ["[64, 2]", "[128, 2]"] * 2
    assert "\nTimes are in " in str(grid)


def test_compare_colorize_marks_the_fastest_without_colors(grid):
    rows = [line.split("|") for line in str(grid).splitlines() if "[128, 2] " in line and "|" in line]
    assert [["*" in cell for cell in row] for row in rows] == [[False, False, True]] * 2
    assert "\x1b" not in str(grid)


def test_timer_num_threads_sets_the_threads_of_torch():
    seen = []
    before = torch.get_num_threads()
    found = perfhooks.compare_calls({"a": lambda: seen.append(torch.get_num_threads())}, threads=[2, 3], seconds=1e-3)
    assert {*seen} == {2, 3}
    assert [one.task_spec.num_threads for one in found.measurements] == [2, 3]
    assert "2 threads" in repr(found.measurements[0])
    assert torch.get_num_threads() == before


def test_timer_labels_are_those_of_the_measurements(grid):
    task = grid.measurements[1].task_spec
    assert (task.label, task.sub_label, task.description, task.env) == (
        "Batched vector dot product",
        "[64, 2]",
        "bmm",
        "before",
    )
    assert grid.measurements[0].task_spec.stmt == "whole(x)"
    single = perfhooks.compare_calls({"a": len}, [torch.ones(3)], sub_label="three", seconds=1e-3)
    assert single.measurements[0].as_row_name == "three"


def test_timer_stmt_setup_and_globals_are_accepted_as_text(machine):
    found = perfhooks.compare_calls(
        {"old": "work(1e-3)\ncount += 1\ntotal[0] += 1", "new": "(work(5e-4),\n  y * x)"},
        kwargs={"x": torch.ones(3)},
        setup="import torch\ny = 2 * torch.ones(3)\ncount = 0",
        globals={"work": machine.work, "total": (total := [0])},
        clock=machine.clock,
    )
    assert outcomes(found)["new"] == "faster"
    assert total[0] > 10
    same = {"times": "y * x", "plus": "y + x - x + y", "twice": lambda x: 2 * x}
    given = {"kwargs": {"x": torch.ones(3)}, "setup": "y = 2", "seconds": 1e-3}
    assert perfhooks.compare_calls(same, **given).table["difference"].to_list() == [None, 1.0, 0.0]


def test_a_b_test_from_two_environments_is_one_table(grid, tmp_path):
    """Saved in one, loaded in the other: torch's table has a row for each, and `against` holds equal rows together."""
    grid.save(tmp_path / "before.json")
    earlier = perfhooks.CallComparison.load(tmp_path / "before.json")
    later = replace(grid, env="after")
    assert earlier == grid
    text = str(Compare(earlier.measurements + later.measurements))
    assert "(before)" in text
    assert "(after)" in text
    assert text.count("[64, 2]") == 4
    slower = tuple(replace(row, seconds=tuple(3 * each for each in row.seconds)) for row in grid.rows[:4])
    table = replace(grid, rows=slower).against(earlier)
    assert table.select("sub_label", "threads").rows() == [("[64, 2]", 1)] * 2 + [("[64, 2]", 2)] * 2
    assert table["ratio"].to_list() == pytest.approx([3] * 4, rel=0.2)


def test_fuzzer_take_gives_sets_of_inputs():
    """Without a name, a set is called by the shapes of its tensors."""
    fuzzer = Fuzzer(
        parameters=[FuzzedParameter("k0", 2, 9, "uniform")],
        tensors=[FuzzedTensor("x", size=("k0", 3), min_elements=1, max_elements=99, probability_contiguous=1)],
        seed=3,
    )
    sets = {str(params["k0"]): tensors for tensors, _, params in fuzzer.take(3)}
    found = perfhooks.compare_calls({"sum": "x.sum()"}, inputs=sets, seconds=1e-3)
    assert found.table["sub_label"].to_list() == list(sets)
    listed = perfhooks.compare_calls({"sum": torch.sum}, inputs=[[torch.ones(2, 3)], [torch.ones(4)]], seconds=1e-3)
    assert listed.table["sub_label"].to_list() == ["[2, 3]", "[4]"]


@pytest.mark.parametrize(
    ("calls", "options", "sentence"),
    [
        ({}, {}, "calls must map"),
        ([len, print], {}, "calls must map names to functions or statements"),
        ({"a": 1}, {}, "calls must map"),
        ({"a": print}, {"seconds": 0}, "must be"),
        ({"a": print}, {"tolerance": 2}, "must be"),
        ({"a": print}, {"threads": 0}, "threads must be"),
        ({"a": print}, {"threads": []}, "threads must be"),
        ({"a": print}, {"inputs": []}, "inputs must be"),
        ({"a": print}, {"inputs": [torch.ones(2)]}, "each set of inputs must be"),
        ({"a": print}, {"inputs": [[torch.ones(2)], [torch.zeros(2)]]}, "need names"),
        ({"a": print}, {"inputs": [[1]], "args": [1]}, "one or the other"),
        ({"a": print}, {"setup": "x = 1"}, "need statements"),
        ({"a": "x"}, {"args": [1]}, "named inputs"),
        ({"a": "x ="}, {}, "stmt must be Python"),
        ({"a": "x"}, {"setup": "x ="}, "setup must be Python"),
    ],
)
def test_invalid_arguments_are_rejected_in_one_sentence(calls, options, sentence):
    with pytest.raises(OptionError, match=sentence):
        perfhooks.compare_calls(calls, **options)
