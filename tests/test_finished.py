"""What page, markdown, `compare`, `merge`, `show` and the last line of `run` say of one run: the same."""

import statistics
from pathlib import Path

import pytest
from finished_runs import windows_of
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal  # numpy 1 starts a process at this import

from perfhooks.analysis.comparison import sources
from perfhooks.analysis.ranks.merge import merge
from perfhooks.cli.actions.show import markdown, tables
from perfhooks.report import page as report
from perfhooks.report.finishing.adoption import adopted
from perfhooks.report.page.data import read_run
from perfhooks.run import steps
from perfhooks.run.timeline import HEADER
from perfhooks.testing import op, step_mark, write_trace

# --- which steps count


def written(folder, rows):
    """A timeline of rows of stage, step, phase, wall time and wait for data."""
    path = folder / "rank0.timeline.csv"
    path.write_text(HEADER + "".join(",".join(map(str, row)) + "\n" for row in rows))
    return path


def by_hand(rows, phase):
    """The steps that count, found one by one: the walls of those like each other, and how many are far from them."""
    stretches = []
    for _, number, what, wall, _ in rows:
        if not stretches or number != stretches[-1][-1][0] + 1:
            stretches.append([])
        stretches[-1].append((number, what, wall))
    left = []
    for stretch in stretches:
        first = len(stretch) // 20
        first = 3 if first < 3 else min(first, 10)
        left += [wall for _, what, wall in stretch[first:] if what == phase]
    middle = statistics.median(left) if left else 0
    like = [wall for wall in left if wall <= 3 * middle]
    return like, len(left) - len(like)


PHASES = st.sampled_from(["wait"] * 8 + ["warmup", "active", "active"])
STRETCHES = st.lists(st.tuples(st.integers(0, 400), st.sampled_from([1, 2, 3, 4, 30, 60, 99, 250])), max_size=5)


@pytest.mark.slow
@given(STRETCHES, st.data())
def test_counted_steps_equal_a_simple_computation(tmp_path_factory, stretches, data):
    rows = []
    for start, length in stretches:
        phases = data.draw(st.lists(PHASES, min_size=length, max_size=length))
        walls = data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.25, 9.0]), min_size=length, max_size=length))
        rows += [("train", start + turn, *each, "") for turn, each in enumerate(zip(phases, walls, strict=True))]
    found = steps.read(written(tmp_path_factory.getbasetemp(), rows)).get("train", steps.NONE)
    for counted, phase in ((found.unrecorded(), "wait"), (found.recorded(), "active")):
        assert (counted.wall_ms.tolist(), counted.far) == by_hand(rows, phase)


def of_train(*stretches, wall=5.0):
    return [("train", number, "wait", wall, "") for stretch in stretches for number in stretch]


@pytest.mark.parametrize(("count", "first"), [(20, 3), (100, 5), (1000, 10), (10_000, 10)])
def test_first_steps_are_a_twentieth_from_three_to_ten(tmp_path, count, first):
    found = steps.read(written(tmp_path, of_train(range(count))))["train"]
    assert len(found.unrecorded().wall_ms) == count - first


def test_a_run_resumed_at_step_1000_has_first_steps_too(tmp_path):
    """In its own folder, and behind the steps of the process that was there before."""
    slow = [("train", number, "wait", 900.0, "") for number in range(1000, 1003)]
    again = slow + of_train(range(1003, 1030))
    for rows in (again, of_train(range(500)) + again):
        found = steps.read(written(tmp_path, rows))["train"].unrecorded()
        assert (set(found.wall_ms), found.far) == ({5.0}, 0)


def test_loops_have_separate_first_steps(tmp_path):
    rows = []
    for epoch in range(4):
        for stage, wall in (("train", 5.0), ("validate", 2.0)):
            rows += [(stage, number, "wait", wall, "") for number in range(epoch * 10, epoch * 10 + 10)]
    found = steps.read(written(tmp_path, rows))
    assert list(found) == ["train", "validate"]
    assert [len(each.unrecorded().wall_ms) for each in found.values()] == [37, 37]


def test_cut_part_of_a_file_begins_no_stretch(tmp_path, monkeypatch):
    """Neither at its beginning nor between parts of it; a number that goes back is another process all the same."""
    path = written(tmp_path, of_train(range(2000)))
    assert steps.read_sample(path)["train"].numbers.tolist() == list(range(2000)), "few steps are read as they are"
    monkeypatch.setattr(steps, "LAST", 5000)
    last = steps.read_last(path)["train"]
    assert 100 < len(last.numbers) < 300
    assert not last.is_first.any()
    monkeypatch.setattr(steps, "_SAMPLE", 10_000)
    monkeypatch.setattr(steps, "_PARTS", 10)
    sample = steps.read_sample(path)["train"]
    assert 100 < len(sample.numbers) < 500
    assert sample.numbers[sample.is_first].tolist() == list(range(10))
    path = written(tmp_path, of_train(range(1000), range(1000)))
    sample = steps.read_sample(path)["train"]
    assert sample.is_first.sum() > 10


@pytest.mark.parametrize(
    ("rows", "share"),
    [
        ([(10, 5)] * 8, 0.5),
        ([(10, 0), (10, 0), (10, 0), (50, 40)] * 4, 0.5),
        ([(10, 5), (10, 5), (10, 5), (50, 5)] * 4, 0.5),
        ([(10, 0), (10, 0), (10, 0), (30, 20)] * 4, 1 / 3),
        ([(10, 99)] * 8, 1.0),
        ([(10, 5)] * 4, None),
        ([(10, 5)] * 6 + [(10, "")] * 7, None),
        ([(0, 0)] * 8, None),
    ],
    ids=[
        "all",
        "slow by waiting",
        "slow by other work",
        "every fourth",
        "longer than the step",
        "few",
        "half of them",
        "no time",
    ],
)
def test_wait_ratio_covers_the_counted_steps(rows, share, tmp_path):
    rows = [(10, 9)] * 3 + rows
    lines = [("train", number, "wait", *each) for number, each in enumerate(rows)]
    lines += [("train", number, "active", 10, 9) for number in range(len(rows), len(rows) + 10)]
    lines += [("other", number, "wait", 10, 9) for number in range(100)]
    found = steps.read(written(tmp_path, lines))["train"].unrecorded().waiting
    assert found == (share if share is None else pytest.approx(share))


def test_end_of_a_training_reads_equal_steps_without_polars(tmp_path):
    rows = [("train", number, "active" if number == 20 else "wait", 10 + number % 3, 5) for number in range(40)]
    path = written(tmp_path, [*rows, ("validate", 0, "wait", 3, 1), ("train", 40, "wait", "", "")])
    plain, whole = steps.read_in_training(path), steps.read(path)
    assert plain.keys() == whole.keys()
    for loop, columns in plain.items():
        for own, other in zip(columns, whole[loop], strict=True):
            assert_array_equal(own, other)


def test_no_file_has_no_steps(tmp_path):
    for read in (steps.read, steps.read_last, steps.read_sample, steps.read_in_training):
        assert read(tmp_path / "none.csv") == {}


# --- which window is the last one


def last_of_all(run):
    """The window that each of them takes for the last one."""
    page = report.write(run)
    summary = markdown(str(run)).splitlines()
    (side,) = sources.read([[run]])
    return {
        "page": {read_run(page.with_name("report.json")).windows[-1].name},
        "markdown": {text.partition(": ")[2] for text in summary if text.startswith("- window: ")},
        "its files": {Path(text).parent.name for text in summary if "steps.csv" in text},
        "show": set(tables(str(run), ["operators"])["operators"]["window"]),
        "merge": {merge(run).path.parent.name},
        "compare": {side.facts["option window"]},
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "ended",
    [
        [("train-000010-000012", 0, 7.0), ("validate-000020-000022", 0, 5.0)],
        [("train-000010-000012", 0, 9.0), ("train-000050-000052", 0, 3.0)],
        [("train-000010-000012", 0, 3.0), ("train-000050-000052", 0, 2.0), ("train-000050-000052", 1, 99.0)],
    ],
    ids=["two loops", "after a restart from an early checkpoint", "a machine whose clock is ahead"],
)
def test_all_readers_choose_the_same_last_window(tmp_path, ended):
    """That which ended last by the clock of its lowest rank; its name, its steps and other clocks decide nothing."""
    windows_of(tmp_path / "run", *ended)
    found = last_of_all(tmp_path / "run")
    assert found == {who: {"train-000010-000012"} for who in found}


@pytest.mark.slow
def test_traces_without_times_keep_their_order(tmp_path, monkeypatch):
    """Of twelve, the tables, the page and the merged trace are of the twelfth."""
    for number in range(12):
        write_trace(tmp_path / f"step{number:02}.rank0.json", [step_mark(number, 0, 10), op(f"op{number}", 0, 5)])
    assert tables(str(tmp_path), ["operators"])["operators"]["name"].to_list()[1:] == ["op11"]
    with adopted(tmp_path) as run:
        assert read_run(report.write(run.folder).with_name("report.json")).windows[-1].first == 11
        merged = merge(run.folder, tmp_path / "merged.json", follow_links=True)
        assert "op11" in merged.path.read_text()
