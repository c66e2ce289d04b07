"""Two trainings compared: what is said of them, where the difference is, and that nothing of it is lost."""

import dataclasses
import json
import math
import re
import time

import numpy as np
import pytest
from comparing_runs import compiled, make_run, training, undocumented
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

import perfhooks.trace
from perfhooks import testing
from perfhooks.analysis.comparison import (
    around,
    baseline,
    comparison,
    costs,
    facts,
    matching,
    saved,
    sentences,
    sources,
)
from perfhooks.analysis.comparison.around import CostKey
from perfhooks.analysis.comparison.difference import Ratio
from perfhooks.analysis.comparison.matching import Aligned
from perfhooks.analysis.comparison.reason import Contribution, NoiseModel, largest
from perfhooks.analysis.comparison.side import Side, merge_runs
from perfhooks.cli.app import app
from perfhooks.core import labels
from perfhooks.core import words as said_in_words
from perfhooks.core.errors import PerfhooksError
from perfhooks.core.statistics import level
from perfhooks.report.comparison import written
from perfhooks.run.capture import Capture, Place
from perfhooks.run.circumstances import Circumstances, Loader
from perfhooks.run.live.requests import Loop
from perfhooks.run.live.status import Status
from perfhooks.run.liveness import Process
from perfhooks.run.manifest import Manifest
from perfhooks.run.publishing import publish_json
from perfhooks.run.steps import CpuInterval, append_waits
from perfhooks.trace.window import Tables


def measured(folder, events):
    return costs.measure(Tables(perfhooks.trace.read(testing.write_trace(folder / "t.json", events))))


def spent(calls, nanoseconds):
    """In steps of which one is like the next."""
    return costs.KeyCost(calls, nanoseconds, nanoseconds)


def steps(median=5.0, count=300, seed=0):
    return median * np.exp(np.random.default_rng(seed).normal(0, 0.005, count))


def run(*words):
    return CliRunner().invoke(app, ["compare", *map(str, words)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def base(folder):
    return make_run(folder / "base", training(), steps())


@pytest.fixture(scope="module")
def slower(folder):
    return make_run(folder / "new", training(data=4000), steps(8.0, seed=1))


# --- nothing is lost ---

LABELS = {"aten::mm": "forward", "aten::add": "data"}
NAMES = st.sampled_from(["aten::mm", "aten::add", "aten::item"])
SLICES = st.lists(
    st.tuples(st.sampled_from(["op", "label", "module", "frame"]), NAMES, st.integers(0, 2000), st.integers(1, 900)),
    max_size=25,
)
KERNELS = st.lists(
    st.tuples(
        st.sampled_from(["gemm<1>", "gemm<2>", "ncclAllReduce", "copy"]),
        st.integers(0, 2500),
        st.integers(1, 700),
        st.integers(7, 9),
    ),
    max_size=15,
)
SIDE = st.tuples(SLICES, KERNELS, st.integers(300, 1200))


def drawn(slices, kernels, length):
    """A trace of whatever crosses whatever."""
    makers = {
        "op": lambda name, *span: testing.op(name, *span, Input_Dims=[[2, span[0] % 3]], Input_type=["float"]),
        "label": lambda name, *span: testing.annotation(
            {"aten::mm": "forward", "aten::add": "data"}.get(name, "x"), *span
        ),
        "module": lambda name, *span: testing.python_frame(f"nn.Module: Net_{len(name) % 3}", *span),
        "frame": lambda name, *span: testing.python_frame(f"train.py({len(name)}): f", *span),
    }
    events = [testing.step_mark(3, 100, 100 + length), testing.step_mark(4, 100 + length, 100 + 2 * length)]
    events += [makers[kind](name, start, start + span) for kind, name, start, span in slices]
    free = dict.fromkeys((7, 8, 9), 0)
    for number, (name, begin, span, stream) in enumerate(sorted(kernels, key=lambda kernel: kernel[1]), 1):
        start = max(begin, free[stream])  # work that overlaps on a stream is a reason to doubt the device times
        free[stream] = start + span
        kind = "gpu_memcpy" if name == "copy" else "kernel"
        call = "cudaMemcpyAsync" if name == "copy" else "cudaLaunchKernel"
        events.append(testing.launch(number, max(start - 50, 0), max(start - 40, 1), name=call))
        events.append(testing.kernel(number, start, start + span, name=name, category=kind, stream=stream))
    return events


@pytest.mark.slow
@settings(max_examples=80)
@given(SIDE, SIDE)
def test_rows_of_all_views_sum_to_the_step_difference(folder, one, other):
    (a, length_a), (b, length_b) = ((measured(folder, drawn(*side)), side[-1]) for side in (one, other))
    assert sum(cost.nanoseconds for cost in a.host.values()) == a.wall == 2 * length_a
    assert not a.device or sum(cost.nanoseconds for cost in a.device.values()) == a.wall
    made = compared(a, b)
    for name, rows in {"reasons": made.reasons, **made.views}.items():
        if name != "collectives":
            assert math.fsum(row.difference for row in rows) == pytest.approx(length_b - length_a, abs=1e-6), name
            assert all(row.by_count + row.by_price == pytest.approx(row.difference, abs=1e-6) for row in rows)


def compared(a, b):
    return comparison.compare(Side(label="a", stage="train", costs=a), Side(label="b", stage="train", costs=b))


def working(busy_us, communicated_us=0, steps=(1, 1)):
    """Steps of 1 ms in which a device computes from the begin on, and meanwhile communicates."""
    events = []
    for number, factor in enumerate(steps, 3):
        begin = (number - 3) * 1_000_000
        events += [testing.step_mark(number, begin, begin + 1_000_000), testing.op("aten::mm", begin, begin + 9000)]
        events += [testing.launch(number, begin + 10, begin + 20)]
        events += [testing.kernel(number, begin + 1000, begin + 1000 + 1000 * busy_us * factor)]
        if communicated_us:
            events += [testing.launch(10 + number, begin + 30, begin + 40)]
            end = begin + 1000 + 1000 * communicated_us
            events += [testing.kernel(10 + number, begin + 1000, end, name="ncclDevKernel_AllReduce", stream=20)]
    return events


def test_step_without_length_has_no_costs(tmp_path):
    """As damaged traces have, and clocks that stand still."""
    found = measured(tmp_path, [testing.step_mark(3, 500, 500), testing.op("aten::mm", 0, 1000)])
    assert (found.steps, found.wall, found.host) == (1, 0, {})
    other = measured(tmp_path, [testing.step_mark(3, 0, 1000), testing.op("aten::mm", 0, 1000)])
    for a, b in ((found, other), (other, found), (found, found)):
        assert NoiseModel.of(Aligned(a, b)) == NoiseModel()
        assert sum(each.difference for each in largest(Aligned(a, b))) == b.wall - a.wall


@pytest.mark.parametrize("steps", [-1, 2**63, 0.5])
def test_impossible_costs_are_rejected(tmp_path, steps):
    """A file may say anything."""
    known = json.loads(saved.encode(measured(tmp_path, [testing.step_mark(3, 0, 9), testing.op("aten::mm", 0, 9)])))
    assert saved.decode(json.dumps(known).encode(), "here").steps == 1
    for changed in (
        known | {"steps": steps},
        known | {"wall": steps},
        known | {"host": [[steps] * len(known["host"][0])]},
    ):
        with pytest.raises(PerfhooksError, match="here: the stored times of its steps are damaged"):
            saved.decode(json.dumps(changed).encode(), "here")


def test_costs_are_equal_after_writing_and_reading(tmp_path):
    found = measured(tmp_path, training(items=2))
    again = saved.decode(saved.encode(found), "here")
    assert again == found
    short = saved.decode(saved.encode(found, most=3), "here")
    assert sum(cost.nanoseconds for cost in short.host.values()) == short.wall == found.wall
    assert len(short.host) <= 3 + len(around.PARTS)


# --- what was planted is found first, with what it costs ---


@pytest.mark.parametrize(
    ("planted", "kind", "named", "truth_us"),
    [
        ({"doubled": True}, "module", "Net_0/Linear_2", 700),
        ({"data": 4000}, "part", "data", 3000),
        ({"items": 1}, "operator", "aten::item", 300),
        ({"types": ["double"] * 3, "slower_by_type": 2}, "types", "float -> double", 1700),
        ({"types": ["double", "", "double"], "slower_by_type": 2}, "types", "float -> double", 1700),
        ({"foreach": False}, "part", "optimizer", 1200),
    ],
    ids=["a layer doubled", "a loader 3 ms slower", "an extra item()", "float64 by accident", "no bias", "foreach off"],
)
def test_planted_change_is_the_first_row_with_its_cost(tmp_path, planted, kind, named, truth_us):
    a, b = (measured(tmp_path, training(noise=seed, **what)) for seed, what in ((1, {}), (2, planted)))
    first = largest(Aligned(a, b))[0]
    assert (first.kind, first.name) == (kind, named)
    assert first.difference == pytest.approx(truth_us * 1000, rel=0.05)


def on_a_slower_machine(events, factor):
    """The same events, each of which takes that many times as long."""
    found = []
    for each in events:
        begin, end = (int(round(1000 * time) * factor) for time in (each["ts"], each["ts"] + each["dur"]))
        found.append(each | {"ts": begin / 1000, "dur": (end - begin) / 1000})
    return found


@pytest.mark.parametrize("factor", [1.5, 0.6])
@pytest.mark.parametrize(
    ("planted", "named"),
    [({"items": 1}, "aten::item"), ({"data": 4000}, "data"), ({"doubled": True}, "Net_0/Linear_8")],
)
def test_planted_change_is_first_on_a_slower_machine(tmp_path, planted, named, factor):
    """A process that others disturb has larger differences everywhere; those are not the reason."""
    plain = measured(tmp_path, training(layers=8, noise=1))
    events = on_a_slower_machine(training(layers=8, noise=2, **planted), factor)
    aligned = Aligned(plain, measured(tmp_path, events))
    assert NoiseModel.of(aligned).factor == pytest.approx(factor, rel=0.02)
    first, second, *_ = largest(aligned)
    assert first.name == named
    assert first.sure == pytest.approx(first.difference, rel=0.4)
    assert second.sure == 0


def test_operator_includes_its_callees_and_their_python_time(tmp_path):
    inner = testing.op("aten::_local_scalar_dense", 400, 700)
    events = [
        testing.step_mark(3, 0, 2000),
        testing.python_frame("train.py(3): f", 100, 1900),
        testing.python_frame("<built-in method item of Tensor object at 0x7f>", 200, 900),
        testing.op("aten::item", 300, 800),
        inner,
        testing.op("autograd::engine::evaluate_function: MulBackward0", 1000, 1500),
        testing.op("MulBackward0", 1100, 1400),
        testing.op("aten::mul", 1200, 1300),
    ]
    found = measured(tmp_path, events)
    by_call = {}
    for where, cost in found.host.items():
        by_call[where.call] = by_call.get(where.call, 0) + cost.nanoseconds
    assert by_call == {"aten::item": 700, "aten::mul": 100, "": 1200}


def test_share_refers_to_the_step_of_the_same_side(tmp_path):
    """Waits of 1 ms in a step of 7.35 ms, and of 4 ms in one of 10.35 ms on a machine that is slower by half."""
    longer = on_a_slower_machine(training(layers=8, steps=6, data=4000), 1.5)
    costs_of = measured(tmp_path, training(layers=8)), measured(tmp_path, longer)
    a, b = (Side(label=name, stage="train", costs=each) for name, each in zip("ab", costs_of, strict=True))
    a.facts, b.facts = {"machine": "8 x z80"}, {"machine": "2 x z80"}
    made = comparison.compare(a, b, shares=True)
    (data,) = (row for row in made.reasons if row.name == "data")
    assert (data.a, data.b) == (pytest.approx(1 / 7.35), pytest.approx(4 / 10.35))
    assert sum(row.difference for row in made.reasons) == pytest.approx(0)
    # neither of these says anything of shares
    about_time = ("times in ms are not comparable", "times as long")
    said = [*made.doubts, *made.notes]
    assert [note for note in said if any(words in note for words in about_time)] == []
    made = comparison.compare(a, b)
    assert len([*made.doubts, *made.notes]) == len(about_time)


def test_share_of_added_calls_refers_to_the_step_of_a(tmp_path):
    a, b = (
        Side(label=name, stage="train", costs=measured(tmp_path, events))
        for name, events in (("a", training()), ("b", training(items=3)))
    )
    time, share = (
        sum(row.by_count for row in comparison.compare(a, b, shares=shares).views["operators"])
        for shares in (False, True)
    )
    assert time == pytest.approx(3 * 0.3e6)
    assert share == pytest.approx(time / (a.step_ms * 1e6))


def test_five_largest_reasons_are_listed_and_the_rest_is_summed():
    """Of 260 operators 200 have a row of their own; what they counted is listed where it differs."""
    sides = []
    for name, price in (("a", 1000), ("b", 3000)):
        host = {
            CostKey("other", operator=f"aten::op{place}", call=f"aten::op{place}"): costs.KeyCost(
                1, *[price + place * 10] * 2
            )
            for place in range(260)
        }
        wall = sum(cost.nanoseconds for cost in host.values())
        counts = {"aten::same": 2, "aten::more": 1 + (name == "b")}
        sides.append(costs.Costs(steps=1, wall=wall, host=host, counts=counts))
    made = compared(*sides)
    assert len(made.told) == 5
    told = comparison.data(made)
    assert len(told["reasons"]) == len(told["tables"]["operators"]) == 201
    assert told["reasons"][-1]["name"] == "60 smaller rows"
    assert sum(row["difference"] for row in told["reasons"]) == pytest.approx(260 * 2000)
    assert told["counts"] == [{"name": "aten::more", "a": 1, "b": 2}]


@pytest.mark.parametrize(
    ("name", "plain"),
    [
        ("void at::native::foo<float, 4, std::array<char*, 2ul> >(int, float)", "at::native::foo"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_x_tn"),
        ("triton_poi_fused_add_3", "triton_poi_fused_add_"),
        ("void (anonymous namespace)::copy<int>(int*)", "{anonymous}::copy"),
    ],
)
def test_kernel_matches_without_generated_parts_of_its_name(name, plain):
    assert matching.normalize_kernel(name) == plain


# --- whole outputs ---


def named_kernels(*names):
    events = [testing.step_mark(3, 0, 1000)]
    for number, name in enumerate(names, 1):
        events += [testing.launch(number, 100 * number - 50, 100 * number - 40)]
        events += [testing.kernel(number, 100 * number, 100 * number + 50, name=name)]
    return events


def stopped(stop_us=0, stops=(), more=()):
    """Ten steps of twelve operators of 35 us each; in some of them the process stops in the first operator."""
    events, at = [], 1000
    for number in range(10):
        begin = at
        for place in range(12):
            length = 35_000 + (1000 * stop_us if place == 0 and number in stops else 0)
            events.append(testing.op(f"aten::op{place}", at, at + length))
            at += length
        for name, us in more:
            events.append(testing.op(name, at, at + 1000 * us))
            at += 1000 * us
        events.append(testing.step_mark(number, begin, at))
    return events


def shaped(count, us):
    """An operator of as many shapes, and two products, one of which takes so many microseconds."""
    events = []
    for begin in (0, 100_000, 200_000):
        at = begin
        calls = [*(("aten::norm", [rows, 3], 500) for rows in range(count)), ("aten::mm", [1, 1], 10_000)]
        for name, shape, length in (*calls, ("aten::mm", [2, 2], 1000 * us)):
            events.append(testing.op(name, at, at + length, Input_Dims=[shape], Input_type=["float"]))
            at += length
        events.append(testing.step_mark(begin // 100_000, begin, begin + 100_000))
    return events


def node_of(us):
    around = testing.op("autograd::engine::evaluate_function: MulBackward0", 0, 10_000 + 2000 * us)
    return [testing.step_mark(3, 0, 200_000), around, testing.op("MulBackward0", 5000, 5000 + 1000 * us)]


LINE = "model.py(4): forward"
REASONS = {
    "slower-calls": (training(items=1), training(items=1, slower_by_type=2)),
    "more-calls-per-step": (training(steps=3, items=1), training(steps=6, items=3, data=4000)),
    "fewer-calls-per-step": (training(steps=6, items=3, data=4000), training(steps=3, items=1)),
    "renamed-module": (training(), training(renamed=True)),
    "inserted-layer": (training(layers=2), training(layers=3)),
    "order-of-calls": (training(layers=4, order=(0, 1, 2, 3)), training(layers=4, order=(2, 1, 0, 3))),
    "compiled": (training(), compiled()),
    "compiled-at-first": (compiled(), training()),
    "compiled-in-a-function": (training(line=LINE), compiled()),
    "compiled-in-a-function-at-first": (compiled(), training(line=LINE)),
    "names-of-kernels": (
        named_kernels("gemm<1>", "sum<float>", "cat<1>"),
        named_kernels("gemm<2>", "sum<float>", "sum<half>", "fill<2>"),
    ),
    "pause-in-one-step": (stopped(), stopped(800, (3,))),
    "pause-in-three-steps": (stopped(), stopped(800, (3, 4, 5))),
    "pause-in-all-steps": (stopped(), stopped(800, range(10))),
    "new-call-with-pauses": (stopped(), stopped(900, (2, 7), more=[("aten::item", 60)])),
    "more-calls-of-one-price": (shaped(0, 10), shaped(8, 30)),
    "more-calls-of-more-shapes": (shaped(2, 10), shaped(8, 10)),
    "autograd-node": (node_of(10), node_of(40)),
    "device-becomes-busy": (working(519), working(899)),
    "device-becomes-idle": (working(899), working(479)),
    "device-was-idle": (working(479), working(899)),
    "exposed-communication": (working(600), working(600, 800)),
    # a kernel of 100 us that takes 700 in one of five steps; meanwhile the device is idle for the rest of each
    "uneven-kernel": (working(100, steps=[1] * 5), working(100, steps=[1, 1, 1, 7, 1])),
}
"""Pairs of traces, and in a golden file the rows that explain the difference."""


def described(made):
    yield "by device" if made.by_device else "by host"
    for name, rows in {"reasons": made.reasons, **made.views}.items():
        yield f"\n{name}: ns and calls per step of A and B, difference, by count, by price, typical, certain"
        for row in rows if name == "reasons" else [row for row in rows if row.difference]:
            values = (row.a, row.b, row.difference, row.by_count, row.by_price, row.typical, row.sure or 0)
            a, b, *changes = (f"{value:.0f}" for value in values)
            marks = [f"renamed {row.renamed}"] * bool(row.renamed) + ["new"] * row.is_new + ["gone"] * row.is_gone
            calls = (f"{count:.4g}" for count in (row.count_a, row.count_b))
            yield " | ".join([f"{row.kind} {row.name}", a, b, *calls, *changes, *marks])
            if name == "reasons" and row.difference:
                yield from (f"  {part} {ns:.0f}, calls {x:.4g} {y:.4g}" for part, ns, x, y in row.inside)
                yield f"  {sentences.contribution(row)}"
    yield f"\ncounts: {comparison.data(made)['counts']}"


@pytest.mark.parametrize("name", REASONS)
def test_reasons_of_a_difference_equal_the_golden_file(name, tmp_path, golden):
    made = compared(*(measured(tmp_path, events) for events in REASONS[name]))
    golden(f"comparison/reasons/{name}.txt", "\n".join([*described(made), ""]))


def test_sentences_of_reasons_equal_the_golden_file(golden):
    """60% of the change is the main cause; no call is called slower if there are 20% more; a tenth is not most."""
    inside = [("aten::mm", 5e5, 1, 1), ("aten::add", 2e5, 1, 1), ("aten::mul", 2e5, 1, 1), ("aten::div", 1e5, 1, 1)]
    both = {"a": 1, "b": 2, "by_count": 0, "by_price": 1}
    model = {**both, "name": "Net_0", "kind": "module", "count_a": 1, "count_b": 1}
    calls = {**both, "name": "aten::mm", "kind": "operator", "count_a": 10}
    counts = ((16, 0.6), (15, 0.5), (11, 0.4), (12, 0.4))
    changes = [
        *({**calls, "count_b": count, "by_count": part, "by_price": 1 - part} for count, part in counts),
        {**model, "a": 2, "b": 0, "count_b": 0, "by_count": -2, "by_price": 0},
        {**model, "inside": inside},
        {**model, "inside": inside[3:]},
        # a new operator among fewer calls can take more time
        {**calls, "count_b": 4, "by_count": 1},
        # time of Python between thousands of calls is no price of a call
        {**calls, "name": "optimizer", "kind": "part", "b": 5, "count_b": 400, "by_count": 0.5, "by_price": 3.5},
    ]
    rows = [Contribution(**(each | {key: each[key] * 1e6 for key in both})) for each in changes]
    ratios = [1.051, 1.6, 0.7, 1.0991, 2.5, 0.25]
    told = [*map(sentences.contribution, rows), *(f"{each}: {sentences.format_change(each)}" for each in ratios)]
    golden("comparison/sentences.txt", "\n".join([*told, ""]))


def test_memory_collectives_findings_and_ranks_are_compared_too(tmp_path, golden):
    """All that a side knows besides the time of a step; what only one side has is not compared."""
    sides = []
    for name, peak, calls, ns in (("a", 100, 3, 9_000_000), ("b", 150, 6, 24_000_000)):
        found = measured(tmp_path, training())
        found.peak_bytes = {"cuda:0": peak << 20} | ({"cpu": 7 << 20} if name == "a" else {})
        found.collectives = [costs.Collective("all_reduce", calls, ns, 4096)]
        sides.append(Side(label=name, stage="train", costs=found))
    a, b = sides
    a.findings, b.findings = {"x": "Old one.", "y": "Both."}, {"y": "Both.", "z": "New one."}
    b.ranks = {0: 5.0, 1: 5.0, 2: 9.0, 3: 5.0}
    texts = [written.text(comparison.compare(a, b)), written.text(comparison.compare(b, a))]
    a.ranks = dict.fromkeys(range(4), 5.0)
    made = comparison.compare(a, b)
    texts += [written.text(made), *described(made)]
    texts += [f"{part}: {comparison.data(made)[part]}" for part in ("memory", "findings", "ranks")]
    golden("comparison/other-facts.txt", "\n".join([*texts, ""]))


CACHES = {"TORCHINDUCTOR_CACHE_DIR": "/scratch", "TRITON_CACHE_DIR": "/scratch"}
"""Folders of files are no difference."""
OTHER = {
    "versions": {"torch": "2.16"},
    "machine": "2 x z80",
    "command": ["/home/me/train.py", "--lr=1", "--out", "b"],
    "environment": {"OMP_NUM_THREADS": "4", **CACHES},
}
LIKE_B = ("64x9.0", "64x11.0", "64x10.0", "32x6.0")
UNEVEN = [5 * 10 ** np.random.default_rng(seed).uniform(size=40) for seed in (1, 2)]
RUNS = {
    "base": {},
    "new": {"events": training(data=4000), "steps": steps(8.0, seed=1)},
    "quiet": {"events": training(layers=8, noise=1)},
    "busy": {"events": on_a_slower_machine(training(layers=8, noise=2), 1.3), "steps": steps(6.5, seed=1)},
    "own": {"machine": "8 x z80", "command": ["train.py", "--lr", "2"]},
    "other": OTHER,
    "plain": {
        "events": [event for event in training() if event["cat"] != "python_function"],
        "options": {"with_stack": False},
    },
    "contrary": {"events": training(data=100), "steps": steps(6.0, seed=3)},
    **{f"uneven{number}": {"steps": draws} for number, draws in enumerate(UNEVEN)},
    **{f"noise{number}": {"events": training(noise=number // 2)} for number in range(4)},
    **{f"bare{number}": {"events": None, "steps": steps(8.0 if number == 0 else 5.0)} for number in range(4)},
    **{f"five{seed}": {"events": None, "steps": steps(5.0, seed=seed)} for seed in range(3)},
    **{f"more{seed}": {"events": None, "steps": steps(5.3, seed=seed)} for seed in range(3)},
    **{f"short{number}": {"steps": [*steps(5.0), 90.0], "machine": "a", "host": "a"} for number in range(3)},
    **{f"long{number}": {"steps": [*steps(6.0), 90.0], "machine": "b", "host": "b"} for number in range(3)},
    **{f"waited{percent}": {"steps": steps(8.0, seed=1 + (percent == 0))} for percent in (0, 4, 6, 31)},
    **{f"beside{percent}": {"steps": steps(8.0, seed=1)} for percent in (0, 44)},
    "growing": {},
    "locked": {"events": training(data=4000), "steps": steps(8.0)},
}


def save(path, source):
    assert run("--save", path, source).exit_code == 0
    return path


def window_of(run):
    place = Place(run / "train-000010-000012", 0)
    return place, place.load()


def batches_of(run, samples):
    """A loader makes batches of so many samples, one a step."""
    place, capture = window_of(run)
    loader = Loader(batch_size=samples)
    place.save(dataclasses.replace(capture, circumstances=dataclasses.replace(capture.circumstances, loader=loader)))


@pytest.fixture(scope="module")
def made(folder):
    """Makes a run once; a name like 32x5.0 is one of 32 samples in 5 ms a step."""
    fetch = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    fetches = [testing.annotation(fetch, mark * 10_000, mark * 10_000 + 9) for mark in range(3)]
    fetches += [testing.step_mark(10 + mark, mark * 10_000, mark * 10_000 + 9000) for mark in range(3)]

    def make(name):
        run = folder / "golden" / name
        if run.exists():
            return run
        if name.endswith(".base"):
            return save(run, make(name.removesuffix(".base")))
        if name.endswith(".json"):
            (folder / "golden").mkdir(exist_ok=True)
            return testing.write_trace(run, training(data=1000 if name == "a.json" else 4000))
        samples, _, median = name.partition("x")
        if samples.isdecimal():
            batches_of(make_run(run, fetches, [float(median[:-1])] * 60), int(samples))
            return run
        facts = {"events": training(), "steps": steps()} | RUNS[name]
        make_run(run, facts.pop("events"), facts.pop("steps"), **facts)
        if name.startswith("waited"):
            waits = {"loop": Loop(stage="train", step=300), "waited": int(name.removeprefix("waited")) / 100}
            publish_json(run / "rank0.status.json", Status(process=Process.current(), time=0, **waits))
        if name.startswith("beside"):  # other programs use 50% of the CPUs; a wait for a CPU is more important
            waited = 90.0 * int(name.removeprefix("beside"))
            interval = CpuInterval(0, 999, 9e3, 8.9e3 - waited, 8.9e3 - waited, waited, 4.5e3)
            append_waits(run / "rank0.processor.csv", "train", [interval])
        if name == "growing":
            with (run / "rank0.timeline.csv").open("a") as file:
                file.write("train,303,wa")
            (run / "train-000010-000012" / ".rank0.abc.spool.json").write_text("{}")
        if name == "locked":  # as clocks are while hardware counters are sampled; other steps are as good as ever
            place, capture = window_of(run)
            place.save(dataclasses.replace(capture, notes=(labels.CLOCKS_LOCKED,)))
        return run

    return make


OUTPUTS = {
    "slower-loader": "base new",
    "slower-loader-in-markdown": "base new --format markdown",
    "shares": "base new --shares",
    "one-run": "base base",
    "slower-machine": "quiet busy",
    "differences-of-runs": "own other",
    "other-options": "base plain",
    "opposite-changes": "base contrary",
    "uneven-steps": "uneven0 uneven1",
    "noise": "noise2 noise3 -- noise0 noise1",
    "unfinished-run": "base growing",
    "without-windows": "base bare0",
    "equal-gaps": "bare1 -- bare2 bare3",
    "locked-clocks": "base locked",
    "traces": "a.json b.json",
    **{f"waits-of-{percent}-percent": f"waited0 waited{percent}" for percent in (4, 6, 31)},
    "waits-of-a-baseline": "waited0 waited31.base",
    "unknown-waits": "base waited31.base",
    "few-unknown-waits": "base waited4",
    "other-programs": "base beside0",
    "other-programs-and-waits": "base beside44",
    "three-runs": "five0 five1 five2 -- more0 more1 more2 --fail-if-slower 2%",
    "several-notes": "short0 short1 short2 -- long0 long1 long2",
    "several-notes-in-markdown": "short0 short1 short2 -- long0 long1 long2 --format markdown",
    # a step of twice the samples may take twice as long: 32 samples in 5 ms are 6,400 a second
    **{f"batches-{b}": f"32x5.00 32x5.01 32x5.02 -- {b}0 {b}1 {b}2" for b in LIKE_B},
}
"""What `perfhooks compare` prints for these runs is a golden file."""


@pytest.mark.parametrize("name", OUTPUTS)
def test_output_of_a_comparison_equals_the_golden_file(name, made, golden):
    words = [word if word[0] == "-" or word in ("markdown", "2%") else made(word) for word in OUTPUTS[name].split()]
    done = run(*words)
    golden(f"comparison/{name}.txt", f"{done.output}exit code {done.exit_code}\n")


COMMANDS = (
    ("main.py --batch-size 32", "main.py --batch-size=64"),
    ("main.py", "/tmp/x/main.py --amp"),
    ("main.py --lr -1 --amp", "main.py --lr 1e-3"),
    ("a.py", "b.py"),
    ("main.py a.yaml", "main.py b.yaml"),
    ("main.py --b 1 --a 1", "main.py --a 1 --b 1"),
    ("main.py --out a --log-dir=a", "main.py --out b"),
    ("main.py --data /here/imagenet", "main.py --data /there/imagenet"),
    ("main.py --model_name_or_path tiny", "main.py --model_name_or_path large"),
)


@pytest.mark.slow
def test_commands_differ_by_arguments_except_output_paths(tmp_path, golden):
    lines = []
    for number, pair in enumerate(COMMANDS):
        folders = [tmp_path / f"{number}{name}" for name in "ab"]
        sides = [
            make_run(folder, None, steps(), command=words.split()) for folder, words in zip(folders, pair, strict=True)
        ]
        lines += [*pair, f"  {run(*sides).output.splitlines()[0]}"]
    golden("comparison/commands.txt", "\n".join([*lines, ""]))


# --- runs ---


def test_fail_if_slower_sets_the_exit_code(base, slower):
    assert run(base, slower, "--fail-if-slower", "2%").exit_code == 3
    assert run(slower, base, "--fail-if-slower", "2%").exit_code == 0
    assert run(base, base, "--fail-if-slower", "2%").exit_code == 0


def test_fail_if_undecided_sets_the_exit_code(base, slower, folder):
    near = make_run(folder / "near", None, steps(5.15))
    assert run(base, near).exit_code == 0
    assert run(base, near, "--fail-if-undecided", "--fail-if-slower", "2%").exit_code == 4
    assert run(base, slower, "--fail-if-undecided").exit_code == 0
    assert run(base, slower, "--fail-if-undecided", "--fail-if-slower", "2%").exit_code == 3


@pytest.mark.slow
def test_other_runs_in_the_folder_show_the_process_spread(folder):
    def made(name, seed, **manifest):
        known = {"revision": "a" * 40, "machine": "this", "command": ["train.py", "--lr", "1"]} | manifest
        return make_run(folder / name, None, steps(5.0, seed=seed), **known)

    for seed in range(4):
        made(f"before{seed}", seed)
    others = {"revision": "b" * 40}, {"command": ["train.py", "--lr", "2"]}, {"host": "there"}, {"machine": "other"}
    for seed, other in enumerate(others):
        made(f"other{seed}", 10 + seed, **other)
        made(f"other{seed} again", 20 + seed, **other)
    a = made("a", 30)
    b = made("b", 31, command=["train.py", "--lr", "3"])
    assert "estimated with 4 earlier runs" in run(a, b).output
    assert "estimated with 2 earlier runs" in run(folder / "before0", a, folder / "before1", "--", b).output
    unknown = [made(f"unknown{seed}", 40 + seed, revision="") for seed in range(3)]
    assert "earlier" not in run(*unknown[:2]).output, "nobody knows which program it was"
    (folder / "before0" / "run.json").write_bytes(b"{")
    assert "estimated with 3 earlier runs" in run(a, b).output


@pytest.mark.parametrize("words", [["-o", "page.html"], ["--open"], ["-o", "page.html", "--open"]])
def test_open_opens_the_report(base, slower, tmp_path, monkeypatch, words):
    opened = []
    monkeypatch.setattr("typer.launch", opened.append)
    monkeypatch.chdir(tmp_path)
    assert run(base, slower, *words).exit_code == 0
    name = "page.html" if "-o" in words else "comparison.html"
    assert (tmp_path / name).stat().st_size
    assert opened == ([(tmp_path / name).as_uri()] if "--open" in words else [])


def test_json_and_markdown_have_equal_content(base, slower):
    data = json.loads(run(base, slower, "--format", "json").output)
    assert data["verdict"]["outcome"] == "slower"
    assert undocumented(data) == set()
    assert not any("other way" in note for note in data["notes"])
    assert data["reasons"][0]["name"] == "data"
    assert sum(row["difference"] for row in data["reasons"]) == pytest.approx(3_000_000)
    text = run(base, slower, "--format", "markdown").output
    assert "**Slower" in text
    assert "waiting for data" in text
    assert len(text.splitlines()) <= 60


def test_baseline_has_the_command_without_folders_and_secrets(tmp_path):
    command = ["/home/me/main.py", "--data", "/home/me/data", "--api-key", "abc123", "--hub_token=abc123", "--lr", "1"]
    run("--save", tmp_path / "base.json", make_run(tmp_path / "a", None, steps(), command=command))
    assert baseline.decode(tmp_path / "base.json").facts["command"] == (
        "main.py --data data --api-key ... --hub_token ... --lr 1"
    )


def test_truncated_window_has_the_same_batch_size(made):
    (side,) = sources.read([[made("32x5.00")]])
    assert facts.samples(side.facts) == 32
    capture = Capture(circumstances=Circumstances(loader=Loader(batch_size=32)))
    for fetches, told in ((2, None), (3, "32"), (6, "64")):
        found = facts.facts(Manifest(), capture, costs.Costs(steps=3, fetches=fetches))
        assert found.get("samples a step") == told
    assert facts.facts(Manifest(world_size=4), capture, costs.Costs(steps=3, fetches=3))["samples a step"] == "128"


@pytest.mark.parametrize(
    ("outcome", "low", "high", "text"),
    [
        ("slower", 1.038, 1.78, "+3.8% to +78%"),
        ("slower", 1.5, 30.0, "1.5 to 30 times that"),
        ("slower", 1.5, 2e6, "+50% or more"),
        ("faster", 1e-9, 0.8, "-20% or less"),
        ("undecided", 1e-9, 2e6, None),
        ("undecided", 0.9, 1.2, "-10% to +20%"),
    ],
)
def test_a_wide_interval_is_not_printed_as_percentages(outcome, low, high, text):
    found = Ratio(outcome, math.sqrt(low * high), low, high, 1.0, math.sqrt(low * high))
    assert sentences.is_wide(found) == (text is None)
    assert sentences.interval(found) == (text or "unknown")
    written = comparison.ratio_data(found)
    assert [written["low"] is None, written["high"] is None] == [low < 0.01 or text is None, high > 100 or text is None]


def side_of(name, step_costs, median, runs=3):
    """A side of runs whose steps all take the same, so that what is said of them is certain."""
    return Side(label=name, stage="train", costs=step_costs, levels=[level([median] * 40)] * runs)


@pytest.mark.parametrize(
    ("median", "data", "outcome", "is_said"),
    [
        (5.0, 4000, "same", False),
        (5.0, 100, "same", False),
        (6.0, 4000, "slower", False),
        (6.0, 100, "slower", True),
        (6.0, 970, "slower", False),
        (4.0, 100, "faster", False),
        (4.0, 4000, "faster", True),
    ],
)
def test_contradiction_needs_two_opposite_differences(tmp_path, median, data, outcome, is_said):
    """Where the others stayed the same nothing is contradicted, nor by recorded steps that are 1% shorter."""
    a = side_of("a", measured(tmp_path, training()), 5.0)
    made = comparison.compare(a, side_of("b", measured(tmp_path, training(data=data)), median))
    assert made.verdict.outcome == outcome
    assert any("differ in the opposite direction" in doubt for doubt in made.doubts) == is_said


@pytest.mark.parametrize("factor", [1.03, 1 / 1.03])
def test_three_percent_in_all_rows_is_no_slower_machine(tmp_path, factor):
    """Processes differ by as much."""
    plain = measured(tmp_path, training(layers=8, noise=1))
    same = measured(tmp_path, on_a_slower_machine(training(layers=8, noise=2), factor))
    assert not any("times as long" in note for note in compared(plain, same).notes)


def test_verdict_uses_unprofiled_steps_that_count(tmp_path):
    """First steps, one with something else in it, and recorded ones are not among them; all of these take longer."""
    run = make_run(tmp_path / "r", None, [50.0] * 2 + [5.0] * 50 + [500.0] + [5.0] * 46)
    with (run / "rank0.timeline.csv").open("a") as file:
        file.writelines(f"train,{number},{'warmup' if number < 104 else 'active'},9.0,\n" for number in range(102, 108))
    (side,) = sources.read([[run]])
    assert [(level.steps, level.far) for level in side.levels] == [(96, 1)]
    assert [(level.mean.value, level.typical.value) for level in side.levels] == [(pytest.approx(5), pytest.approx(5))]
    assert side.levels[0].whole.value == pytest.approx((96 * 5 + 500) / 97)


@pytest.mark.parametrize(("count", "is_enough"), [(20, True), (19, False)])
def test_verdict_needs_twenty_steps(tmp_path, count, is_enough):
    (side,) = sources.read([[make_run(tmp_path / "few", None, [5.0, 5.1] * (count // 2) + [5.0] * (count % 2))]])
    assert len(side.levels) == is_enough
    told = f"few has {count} unprofiled steps of train; 20 are needed"
    assert (told in side.notes) != is_enough


@pytest.mark.parametrize(("every", "is_counted"), [(100, False), (40, True)])
def test_rare_evaluations_are_compared_separately(tmp_path, every, is_counted):
    """One step in so many takes twenty times as long on one side."""
    walls = ([5.0] * (every - 1) + [100.0]) * 4
    sides = sources.read([[make_run(tmp_path / "even", None, [5.0] * 400)], [make_run(tmp_path / "far", None, walls)]])
    made = comparison.compare(*sides)
    assert made.verdict.is_far_counted == is_counted
    assert made.verdict.ratio == pytest.approx((every + 19) / every if is_counted else 1, rel=0.02)
    (note,) = [note for note in made.notes if "more than three times the median" in note]
    assert f"take 0% of the time in A and {said_in_words.share(made.b.levels[0].far_time)} in B" in note
    assert note.endswith("included in the mean step" if is_counted else "excluded from the verdict")


def test_lowest_rank_has_the_reasons_and_all_ranks_the_times(tmp_path):
    """And a window that is not finished tells nothing."""
    for rank, data in ((1, 1000), (2, 4000), (3, 9000)):
        make_run(tmp_path / "r", training(data=data), [5.0] * 40, rank=rank)
    place = Place(tmp_path / "r" / "train-000010-000012", 2)
    place.save(dataclasses.replace(place.load(), summary={"wall_ms": 7.0}))
    place = Place(tmp_path / "r" / "train-000010-000012", 3)
    place.save(dataclasses.replace(place.load(), state="spooled"))
    (side,) = sources.read([[tmp_path / "r"]])
    assert (side.windows, side.step_ms) == (1, pytest.approx(3.15))
    assert side.ranks == {1: 5.0, 2: 7.0}


def test_side_of_several_runs_has_their_common_columns(tmp_path):
    """Peaks are the highest, levels are kept apart; what one lacks all lack, and facts that differ are all said."""
    sides = []
    for number, peak in enumerate((5, 9, 7)):
        found = measured(tmp_path, training())
        found.peak_bytes, found.shapes = {"cpu": peak}, number != 1
        sides.append(Side(label=f"r{number}", stage="train", costs=found, levels=[level([5.0] * 40)] * number))
        sides[-1].facts = {"batch": "8" if number else "4", "schedule": "x"}
    whole = merge_runs(sides)
    assert (whole.label, whole.costs.steps, len(whole.levels)) == ("r0 and 2 more", 9, 3)
    assert (whole.costs.peak_bytes, whole.costs.shapes) == ({"cpu": 9}, False)
    assert whole.facts == {"batch": "4 / 8", "schedule": "x"}


def test_folders_of_equal_name_are_distinguished(tmp_path):
    sides = sources.read([[make_run(tmp_path / each / "run", None, [5.0] * 40)] for each in "xy"])
    assert [side.label for side in sides] == ["A (run)", "B (run)"]


def test_profiled_steps_with_rare_work_are_excluded(tmp_path):
    """A machine that stops for 90 us in one of six steps makes no product dearer."""
    events, at = [], 1000
    for number in range(6):
        stop = 90_000 * (number == 3)
        events += [testing.step_mark(number, at, at + 10_000 + stop), testing.op("aten::mm", at + 10, at + 5010 + stop)]
        at += 10_000 + stop
    found = measured(tmp_path, events)
    assert (found.steps, found.wall) == (5, 50_000)
    assert sum(cost.nanoseconds for where, cost in found.host.items() if where.operator == "aten::mm") == 25_000


def markdown_of(facts_count, notes_count, operators):
    sides = []
    for letter, price in (("a", 1000), ("b", 3000)):
        host = {
            CostKey("other", module=f"Net_{place}", operator=f"aten::op{place}"): spent(1, price * place)
            for place in range(1, operators + 1)
        }
        found = costs.Costs(steps=1, wall=sum(cost.nanoseconds for cost in host.values()), host=host, frames=True)
        told = {f"option {place}": letter for place in range(facts_count)}
        notes = [f"{letter}{place}" for place in range(notes_count)]
        sides.append(Side(label=letter * 90, stage="train", costs=found, facts=told, notes=notes))
        sides[-1].findings = {f"{letter}{place}": f"Finding {letter}{place}." for place in range(5)}
        found.peak_bytes = {f"cuda:{place}": price << 20 for place in range(8)}
    return written.markdown(comparison.compare(*sides)).splitlines()


@pytest.mark.parametrize(("facts_count", "notes_count", "operators"), [(30, 20, 40), (8, 0, 1)])
def test_markdown_for_pull_requests_is_short(facts_count, notes_count, operators, golden):
    """60 lines: two doubts, five reasons, twelve notes, three findings that came or went, tables as there is room."""
    lines = markdown_of(facts_count, notes_count, operators)
    assert len(lines) <= 60
    assert all(len(line) < 250 for line in lines)
    golden(f"comparison/pull-request-{operators}.txt", "\n".join([*lines, ""]))


@pytest.mark.parametrize(
    ("a", "b", "is_said"),
    [
        ({"host": "x"}, {"host": "y"}, True),
        ({"host": "x", "machine": "8 x z80"}, {"host": "y", "machine": "8 x z80"}, False),
        ({"device": "A100"}, {"device": "H100"}, True),
        ({"machine": "8 x z80"}, {}, False),
    ],
    ids=["names of hosts", "equal machines", "devices", "only one tells"],
)
def test_machines_differ_by_hardware_or_by_name(tmp_path, a, b, is_said):
    found = measured(tmp_path, training())
    made = comparison.compare(*(Side(label="x", stage="train", costs=found, facts=facts) for facts in (a, b)))
    assert any("different machines" in doubt for doubt in made.doubts) == is_said


def test_batch_size_comes_from_the_first_layer_of_the_last_step(tmp_path):
    """A loader labels its fetches itself, and so may the loop that asks it: each counts once."""
    events = []
    for number, begin, rows in ((3, 0, 4), (4, 100_000, 8)):
        shapes = {"Input_Dims": [[rows, 3, 32, 32]], "Input_type": ["float"]}
        loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        events += [
            testing.step_mark(number, begin, begin + 100_000),
            testing.annotation("data", begin, begin + 30_000),
            *(testing.annotation(loader, begin + 1000 * place, begin + 1000 * place + 900) for place in (1, 2)),
            testing.op("aten::add", begin + 40_000, begin + 41_000, Input_Dims=[[7, 7]], Input_type=["float"]),
            testing.op("aten::conv2d", begin + 50_000, begin + 60_000, **shapes),
        ]
    found = measured(tmp_path, events)
    assert (found.batch, found.fetches) == ("aten::conv2d of [8, 3, 32, 32]", 4)
    labelled = [event for event in events if "DataLoader" not in event["name"]]
    assert measured(tmp_path, labelled).fetches == 2


def rows_of(times):
    """A side of one step with one operator for each time, in microseconds."""
    host = {CostKey("other", operator=f"aten::op{place}"): spent(1, 1000 * us) for place, us in enumerate(times)}
    return costs.Costs(steps=1, wall=sum(cost.nanoseconds for cost in host.values()), host=host)


def test_slower_row_is_certain_beyond_twice_the_spread():
    """Of 20 rows of 1 ms others differ by 2% or so: 3% more are no reason, of 10% more 6% are one."""
    for more, sure in ((1.03, 0), (1.10, 60_000)):
        first = next(row for row in largest(Aligned(rows_of([1000] * 20), rows_of([1000 * more] + [1000] * 19))))
        assert first.name == "aten::op0"
        assert first.sure == pytest.approx(sure, abs=1)


@pytest.mark.parametrize(("shortest", "factor"), [(1, 1.5), (0.999, 1)])
def test_noise_is_measured_on_rows_of_a_minimum_length(shortest, factor):
    times = [shortest] * 10 + [2000 - 10 * shortest]
    sides = rows_of(times), rows_of([1.5 * time for time in times])
    assert NoiseModel.of(Aligned(*sides)).factor == pytest.approx(factor)


def test_typical_cost_includes_the_fraction_of_steps(tmp_path):
    """Of ten steps: a call in every second one takes 10 us there, and is not nothing because the median of all is."""
    events = []
    for number in range(10):
        begin = 100_000 * number
        events.append(testing.step_mark(number, begin, begin + 100_000))
        if number % 2:
            events.append(testing.op("aten::mm", begin + 10, begin + 10_010 + 50_000 * (number == 5)))
    (cost,) = (cost for where, cost in measured(tmp_path, events).host.items() if where.operator == "aten::mm")
    assert cost == costs.KeyCost(5, 100_000, 50_000)


def test_noise_is_unknown_with_fewer_than_ten_rows():
    slow = rows_of([1500] * 9), rows_of([1500] * 10)
    plain = rows_of([1000] * 9), rows_of([1000] * 10)
    assert [NoiseModel.of(Aligned(a, b)).factor for a, b in zip(plain, slow, strict=True)] == [1, pytest.approx(1.5)]


def test_certain_reason_of_one_percent_comes_first():
    """Of 29 s: a new call of 0.35 s precedes one that became 0.38 s longer by chance, and one of 0.2 s does not."""
    for new, first in ((350_000, "aten::op20"), (200_000, "aten::op0")):
        a, b = ([long, *[1_000_000] * 19, *more] for long, more in ((10_000_000, []), (10_380_000, [new])))
        assert largest(Aligned(rows_of(a), rows_of(b)))[0].name == first


# --- baselines ---


def test_baseline_is_small_and_replaces_its_run(folder, base, slower, tmp_path):
    made = tmp_path / "base.json"
    saved = run("--save", made, base)
    assert (saved.exit_code, saved.output.splitlines()[-1]) == (0, str(made))
    content = made.read_text()
    assert len(content) < 60_000
    assert str(folder) not in content
    assert baseline.is_baseline(made)
    with_run, with_file = run(base, slower), run(made, slower)
    assert with_file.output.splitlines()[3:] == with_run.output.splitlines()[3:]
    assert run(made, slower, "--fail-if-slower", "2%").exit_code == 3


def test_baseline_has_no_host_name(tmp_path):
    """It may be committed: no name of a machine, no path of a person."""
    told = {"host": "node7", "option out": "/home/me", "environment HF_HOME": "~/models", "environment TMP": "C:\\me"}
    content = baseline.encode(Side(label="base", stage="train", facts=told | {"machine": "8 x z80"})).decode()
    assert "8 x z80" in content
    assert not any(word in content for word in ("node7", "/home", "models", "C:"))


def test_baseline_has_four_hundred_rows_and_the_total(tmp_path):
    (tmp_path / "base.json").write_bytes(
        baseline.encode(Side(label="base", stage="train", costs=rows_of(range(1, 1001))))
    )
    kept = baseline.decode(tmp_path / "base.json").costs
    assert 400 <= len(kept.host) <= 410
    assert sum(cost.nanoseconds for cost in kept.host.values()) == kept.wall == 500_500_000


def test_files_of_a_newer_perfhooks_are_rejected(tmp_path):
    for name, content, decode in (
        ("base", baseline.encode(Side(label="x", stage="train")), baseline.decode),
        ("costs", saved.encode(costs.Costs()), lambda path: saved.decode(path.read_bytes(), path)),
    ):
        known = json.loads(content)
        number = "perfhooks_baseline" if name == "base" else "format"
        (tmp_path / name).write_text(json.dumps(known))
        decode(tmp_path / name)
        (tmp_path / name).write_text(json.dumps(known | {number: 99}))
        with pytest.raises(PerfhooksError, match=rf"{name}: format 99 is from a newer perfhooks"):
            decode(tmp_path / name)


def test_costs_of_an_older_perfhooks_are_measured_again(tmp_path):
    run = make_run(tmp_path / "r", training(), [5.0] * 40)
    kept = Place(run / "train-000010-000012", 0).artifact("costs.json")
    kept.write_text('{"format":1,"steps":3}')
    (side,) = sources.read([[run]])
    assert (side.costs.steps, side.step_ms) == (3, pytest.approx(3.15))


def test_assertion_fails_with_the_reasons_if_a_step_is_slower(base, slower, tmp_path):
    run("--save", tmp_path / "base.json", base)
    with pytest.raises(AssertionError, match=r"Slower: (?s:.*)waiting for data takes 4 ms instead of 1 ms"):
        testing.assert_not_slower(tmp_path / "base.json", slower, by=0.05)
    assert testing.assert_not_slower(slower, str(base)).verdict.outcome == "faster"
    assert testing.assert_not_slower([base], base).verdict.outcome == "undecided"


@pytest.mark.slow
def test_assertion_tolerates_two_percent_by_default(folder):
    """Steps of 5.00 and 5.25 ms, of five runs a side."""
    sides = [
        [make_run(folder / f"{name} tolerated {number}", None, [median] * 60) for number in range(5)]
        for name, median in (("a", 5.0), ("b", 5.25))
    ]
    assert testing.assert_not_slower(*sides, by=0.06).verdict.outcome == "same"
    for stricter in ({}, {"by": 0.03}):
        with pytest.raises(AssertionError, match=r"Slower: a step takes 5.25 ms instead of 5 ms, \+5.0%"):
            testing.assert_not_slower(*sides, **stricter)


def test_assertion_fails_without_unprofiled_steps(folder, base):
    short = make_run(folder / "short", training(), [5.0] * 10)
    with pytest.raises(PerfhooksError, match="short has 10 unprofiled steps"):
        testing.assert_not_slower(base, short)


FORMATTERS = {
    "indented and sorted": lambda text: json.dumps(json.loads(text), indent=4, sort_keys=True),
    "with a mark of its encoding": lambda text: text.encode("utf-8-sig"),
    "by PowerShell": lambda text: json.dumps(json.loads(text), indent=2).encode("utf-16"),
}


@pytest.mark.parametrize("formatted", FORMATTERS.values(), ids=FORMATTERS)
def test_reformatted_baseline_is_accepted(base, slower, tmp_path, formatted):
    made = tmp_path / "base.json"
    run("--save", made, base)
    before = run(made, slower).output
    content = formatted(made.read_text())
    made.write_bytes(content if isinstance(content, bytes) else content.encode())
    assert run(made, slower).output == before


ODD = "a\x1b]0;x\x07b\u202ec\r\nd\x9b @everyone <img src=x> ![i](http://x.y) [l](http://x.y) www.x.y &#64;here |`*"


def test_texts_of_a_baseline_stay_text(base, tmp_path):
    """Neither a terminal nor a site that shows markdown makes anything of them."""
    told = json.loads(baseline.encode(sources.read([[base]])[0]))
    told |= {"label": ODD, "findings": {"rule": ODD}, "facts": {f"option {ODD}": ODD, "host": "x"}}
    told["costs"]["texts"] = [f"{text}{ODD}" for text in told["costs"]["texts"]]
    told["costs"]["counts"] = []
    (tmp_path / "odd.json").write_text(json.dumps(told))
    for form in ("text", "markdown"):
        text = run(tmp_path / "odd.json", base, "--format", form).stdout
        assert text.count("everyone") > 3
        assert all(letter == "\n" or letter.isprintable() or letter == "\u200b" for letter in text)
        assert not re.search(r"^d", text, re.MULTILINE), "no line of its own"
    for mark in ("@everyone", "<img", "http://", "www.x", "&#64;", " [l]", " |`", "`*"):
        assert mark not in text, mark
    assert "@\u200beveryone &lt;img src=x> !\\[i\\](http:\\//x.y)" in text


def broken():
    """Baselines that are none, and in a few words why."""
    plain = json.loads(baseline.encode(Side(label="x", stage="train")))
    estimate = {"log": 1.0, "below": 0.1, "above": 0.1, "freedom": 9}
    level = {"typical": estimate, "mean": estimate, "whole": estimate, "steps": 100}
    costs = plain["costs"] | {"texts": ["a"], "steps": 1, "wall": 1}
    row = [0] * 9
    yield "deep", b'{"perfhooks_baseline":2,"label":' + b"[" * 10**5
    yield "no UTF-8", b'{"perfhooks_baseline":2,"label":"\xff"}'
    yield "NaN", b'{"perfhooks_baseline":2,"label":"x","stage":"y","levels":[NaN]}'
    yield "an older format", plain | {"perfhooks_baseline": 1}
    yield "cut", json.dumps(plain).encode()[:-20]
    yield "format 0", plain | {"perfhooks_baseline": 0}
    yield "format -1", plain | {"perfhooks_baseline": -1}
    yield "another format of costs", plain | {"costs": costs | {"format": -1}}
    for value in (1e308, -1e308, 10**400, -1, None):
        yield (
            f"level {str(value)[:9]}",
            plain | {"levels": [level | {"mean": estimate | {"log": value and value * 99}}]},
        )
        yield f"rank {str(value)[:9]}", plain | {"ranks": {"0": value}}
        yield f"steps {str(value)[:9]}", plain | {"levels": [level | {"steps": value}]}
        yield f"bytes {str(value)[:9]}", plain | {"costs": costs | {"peak_bytes": {"cpu": value}}}
    yield "an uneven row", plain | {"costs": costs | {"host": [row[:-1]]}}
    yield "a text that is not there", plain | {"costs": costs | {"host": [[7, *row[1:]]]}}
    yield "uneven counts", plain | {"costs": costs | {"counts": [[0, 0, 0]]}}
    yield "a long text", plain | {"label": "x" * 10**5}
    yield "300,000 rows", plain | {"costs": costs | {"host": [row] * 300_000}}
    yield "30,000 rows", plain | {"costs": costs | {"host": [row] * 30_000}}


@pytest.mark.slow
def test_broken_baseline_is_rejected_in_one_line(base, tmp_path):
    path = tmp_path / "broken.json"
    for name, told in broken():
        path.write_bytes(told if isinstance(told, bytes) else json.dumps(told).encode())
        began = time.process_time()
        error = run(path, base).exception
        assert isinstance(error, PerfhooksError), (name, error)
        assert "broken.json" in str(error), name
        assert "\n" not in str(error)
        assert time.process_time() - began < 1, name


def test_steps_of_zero_length_have_no_shares(base, tmp_path):
    kept = baseline.encode(sources.read([[base]])[0]).replace(b'"wall":', b'"wall":0,"was":')
    (tmp_path / "odd.json").write_bytes(kept)
    assert "steps of length 0" in str(run(tmp_path / "odd.json", base, "--shares").exception)
    assert run(tmp_path / "odd.json", base).exit_code == 0


# --- what cannot be ---


@pytest.mark.slow
def test_bad_input_is_one_line(folder, base, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "no.json").write_text("{}")
    (tmp_path / "b.json").write_text('{"perfhooks_baseline":99,"label":""}')
    validation = make_run(folder / "validation", None, steps(), stage="validate")
    silent = make_run(tmp_path / "silent", None, [])
    for words, said in (
        ((tmp_path / "none", base), "does not exist"),
        ((tmp_path / "empty", base), "no run"),
        ((tmp_path / "no.json", base), "no.json"),
        ((tmp_path / "b.json", base), "format 99 is from a newer perfhooks"),
        ((validation, base), "no stage in common"),
        ((silent, base), "nothing to compare"),
        ((base,), "takes two runs"),
        ((base, base, base), "takes two runs"),
        ((base, "--", base, "--", base), "on both sides of one --"),
        ((base, base, "--tolerance", "lots"), "tolerance must be a ratio"),
        ((base, base, "--stage", "predict"), "stage 'predict' is not on both sides; common stages: train"),
    ):
        done = run(*words)
        assert isinstance(done.exception, PerfhooksError), (words, done.output, done.exception)
        assert said in str(done.exception)
        assert "\n" not in str(done.exception)


def test_training_is_the_default_loop(folder):
    both = make_run(folder / "both", training(), steps())
    with (both / "rank0.timeline.csv").open("a") as file:
        file.writelines(f"validate,{number},wait,2.0,\n" for number in range(100))
    (side,) = sources.read([[both]])
    assert side.stage == "train"
    (side,) = sources.read([[both]], "validate")
    assert side.levels[0].typical.value == pytest.approx(2)
