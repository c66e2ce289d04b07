"""Recorded operators run again: nearly all can be, give what they gave, and are timed so that one can believe it."""

import io
import math
import os
import signal
from collections import Counter, defaultdict
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import trying_models
from rich.console import Console
from torch.utils._python_dispatch import TorchDispatchMode

from perfhooks import Profiler, testing
from perfhooks.core.errors import OptionError
from perfhooks.report.page.data import TRIED_FORMAT, TriedAdvice, TriedFile, read_tried
from perfhooks.report.page.terminal_tables import draw
from perfhooks.run.circumstances import Circumstances
from perfhooks.run.layout import TRIED
from perfhooks.run.publishing import publish_json
from perfhooks.trace import read
from perfhooks.trace.window import Tables
from perfhooks.trials import bench, inputs, ready, recorded, safe, schemas, timing, trial, variants, written
from perfhooks.trials.cut import Group, OperatorSelection, select_calls
from perfhooks.trials.ready import difference
from perfhooks.trials.recorded import Argument, Signature, Update
from perfhooks.trials.variants import BY_NAME, VARIANTS

pytestmark = pytest.mark.process

CPU = torch.device("cpu")
MODELS = {"resnet": trying_models.resnet, "vit": trying_models.vit, "gpt": trying_models.gpt}


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    """The recorded calls of each model."""
    folder = tmp_path_factory.mktemp("trying")
    known = {}

    def of(name):
        if name not in known:
            path = trying_models.record(MODELS[name], folder / f"{name}.json")
            known[name] = recorded.load_calls(Tables(read(path, strides=True)))
        return known[name]

    return of


def tensor(*dims, kind="float", strides=None):
    dense = tuple(math.prod(dims[place + 1 :]) for place in range(len(dims)))
    return Argument(kind, dims, strides or dense, "")


def plain(value, kind="Scalar"):
    return Argument(kind, (), (), value)


def nothing():
    return Argument("", (), (), "")


def signature(name, *arguments):
    return Signature(f"aten::{name}", arguments)


def built(name, *arguments):
    return inputs.build(signature(name, *arguments), CPU)


def offer(*entries):
    """What a recording would offer: signatures, each with what a call took and how often a step had it."""
    groups = (Group(each, count, count * spent, spent) for each, spent, count in entries)
    return OperatorSelection(tuple(groups), (), 1.0)


MM = signature("mm", tensor(64, 64), tensor(64, 64))


# --- what can be run again ---


@pytest.mark.parametrize("name", MODELS)
def test_most_operators_can_run_again_and_others_have_a_reason(calls, name):
    """By the number of operators, not by their time: a machine that others use may stop any of them for long."""
    found = calls(name)
    is_torch = np.array([each.startswith("aten::") for each in found.names()])
    chosen = select_calls(replace(found, own=is_torch.astype(np.int64)))
    assert chosen.covered >= 0.99
    left = {each.name: each.reason for each in chosen.left}
    operators = {each: reason for each, reason in left.items() if each.startswith("aten::")}
    assert set(operators.values()) <= {"torch does not record the shapes of lists of more than 30 tensors"}
    assert set(operators) <= {"aten::_foreach_norm", "aten::_foreach_mul_", "aten::stack", "aten::cat"}
    assert {reason for each, reason in left.items() if each not in operators} == {AUTOGRAD}


AUTOGRAD = "autograd's own work between operators"


@pytest.mark.parametrize("name", MODELS)
def test_repeated_calls_return_the_results_of_the_training(calls, name):
    """Shapes, types and layout of results are those that torch gave in a step of the same training."""
    optimizer, loss = MODELS[name]()
    with Witness() as witness:
        trying_models.step(optimizer, loss)
    checked = 0
    for group in select_calls(calls(name)).groups:
        call = inputs.build(group.signature, CPU)
        call()
        # what autograd gave, with the same sizes, types and plain arguments: one level below where Python calls
        key = (call.name, *_seen(call.arguments), *_seen(call.keywords.values()))
        if key in witness.results:
            assert [_looks(each) for each in call.outputs()] in witness.results[key], key
            checked += 1
    assert checked > 40


class Witness(TorchDispatchMode):
    """Writes down what each operator gave for what."""

    def __init__(self):
        super().__init__()
        self.results = defaultdict(list)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = func(*args, **(kwargs or {}))
        # defaults are written out, as the recorder sees them
        formal = [each.name for each in func._schema.arguments if not each.kwarg_only]
        every = list(args) + [each.default_value for each in func._schema.arguments[len(args) : len(formal)]]
        named = [
            (kwargs or {}).get(each.name, each.default_value) for each in func._schema.arguments if each.kwarg_only
        ]
        flat = [each for each in (given if isinstance(given, (list, tuple)) else [given]) if torch.is_tensor(each)]
        looks = [_looks(each) for each in flat]
        key = (func._schema.name, *_seen(every), *_seen(named))
        self.results[key].append(looks)
        return given


def _looks(result):
    return tuple(result.shape), result.dtype


def _seen(arguments):
    for each in arguments:
        if torch.is_tensor(each):
            yield (*each.shape, each.dtype, each.stride())
        elif isinstance(each, (list, tuple)):
            yield tuple(_seen(each))
        else:
            yield each if not isinstance(each, torch.device) else None


def test_inputs_have_the_recorded_extent_layout_and_type():
    call = built("add", tensor(4, 6, strides=(1, 8)), tensor(4, 1, kind="double"), plain("2"))
    first, second = call.arguments
    assert (first.shape, first.stride(), first.dtype) == ((4, 6), (1, 8), torch.float32)
    assert first.untyped_storage().nbytes() == 4 * (1 + 3 * 1 + 5 * 8)
    assert (second.shape, second.dtype) == ((4, 1), torch.float64)
    assert call.keywords == {"alpha": 2}


@pytest.mark.parametrize(
    ("name", "arguments", "overload"),
    [
        ("add_", (tensor(2), tensor(2), plain("1")), "Tensor"),
        ("add_", (tensor(2), plain("3"), plain("1")), "Scalar"),
        ("bernoulli_", (tensor(2), plain("0.9"), nothing()), "float"),
        ("bernoulli_", (tensor(2), tensor(2), nothing()), "Tensor"),
        ("sum", (tensor(2, 3), plain("[1]", "ScalarList"), plain("False"), nothing()), "dim_IntList"),
        ("cat", (Argument("TensorList", ((2, 3), (4, 3)), ((3, 1), (3, 1)), ""), plain("0")), "default"),
        ("gelu", (tensor(2), nothing()), "default"),
    ],
)
def test_overload_is_the_first_that_accepts_all_arguments(name, arguments, overload):
    found, _ = schemas.overload(signature(name, *arguments))
    assert found._overloadname == overload
    built(name, *arguments)()


@pytest.mark.parametrize(
    ("call", "refused", "allowed"),
    [
        # a vector of 4 GB, of which torch makes one number
        (signature("sum", tensor(10**9), nothing()), 3e9, 20e9),
        # two vectors of 40 kB make a matrix of 400 MB
        (signature("outer", tensor(10_000), tensor(10_000)), 300e6, 2e9),
    ],
    ids=["inputs", "results"],
)
def test_inputs_and_results_count_for_the_memory_that_is_needed(call, refused, allowed):
    with pytest.raises(schemas.UnmatchedError, match="needs"):
        inputs.check_memory(call, refused)
    inputs.check_memory(call, allowed)


def test_calls_inside_the_outermost_call_are_part_of_that_call(tmp_path):
    given = {"Input_Dims": [[4, 4]] * 2, "Input_type": ["float"] * 2, "Concrete_Inputs": ["", ""]}
    outer, inner = testing.op("aten::matmul", 0, 90, **given), testing.op("aten::mm", 10, 80, **given)
    found = select_calls(recorded.load_calls(Tables(read(testing.write_trace(tmp_path / "t.json", [outer, inner])))))
    assert [group.signature.name for group in found.groups] == ["aten::matmul"]


@pytest.mark.parametrize("written", ["True", "true", "1", "False", "false", "0"])
def test_flag_is_read_in_all_recorded_forms(written):
    _, values = schemas.overload(signature("sum", tensor(2), plain("[0]", "ScalarList"), plain(written), nothing()))
    assert values["keepdim"] is (written in ("True", "true", "1"))


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("c10d::allreduce_", (), "a collective needs the other ranks"),
        ("mine::op", (), "an operator of mine, which is not torch's own"),
        ("aten::nothing_like_it", (), "this torch has no such operator"),
        ("aten::mm", (tensor(2, 2), plain("1")), "this torch has no overload for the recorded arguments"),
        ("aten::from_file", (plain("/etc/passwd"), nothing(), nothing(), nothing(), nothing(), nothing(), nothing()),
         "its schema does not guarantee that it only computes tensors"),
        ("aten::resize_", (tensor(2), plain("[3]", "ScalarList"), nothing()),
         "its schema does not guarantee that it only computes tensors"),
        ("aten::item", (tensor(1),), "its schema does not guarantee that it only computes tensors"),
        ("aten::cat", (Argument("TensorList", (), (), ""), plain("0")),
         "torch does not record the shapes of lists of more than 30 tensors"),
        ("AddBackward0", (), "autograd's own work between operators"),
    ],
)  # fmt: skip
def test_operator_that_cannot_run_again_has_a_reason(name, arguments, reason):
    with pytest.raises(schemas.UnmatchedError, match=reason):
        schemas.overload(Signature(name, arguments))


def test_call_with_an_unrecorded_argument_is_skipped():
    with pytest.raises(schemas.UnmatchedError, match="not recorded"):
        schemas.overload(Signature("aten::mm", None))


@pytest.mark.parametrize(
    ("call", "place", "low", "high"),
    [
        (
            ("embedding", tensor(7, 3), tensor(99, kind="long int"), plain("-1"), plain("False"), plain("False")),
            1,
            0,
            6,
        ),
        (("gather", tensor(5, 9), plain("1"), tensor(5, 99, kind="long int"), plain("False")), 2, 0, 8),
        (
            ("nll_loss_forward", tensor(99, 4), tensor(99, kind="long int"), nothing(), plain("1"), plain("-100")),
            1,
            0,
            3,
        ),
        (("bernoulli", tensor(99), nothing()), 0, 0, 1),
        (("log", tensor(99)), 0, 0.5, 1.5),
    ],
)
def test_inputs_have_valid_values(call, place, low, high):
    made = built(*call)
    values = made.arguments[place]
    assert low <= values.min() < values.max() <= high
    assert made() is not None


# --- what is timed ---


class Machine:
    """A clock that only work moves on, with noise as a machine has it: neighbours in time resemble each other."""

    def __init__(self, seed=0, slow=0.0, fast=0.0):
        self.now = 0.0
        self._random = np.random.default_rng(seed)
        self._slow, self._fast, self._drift = slow, fast, 0.0

    def clock(self):
        return self.now

    def work(self, seconds):
        self._drift = 0.9 * self._drift + self._slow * self._random.normal() * math.sqrt(1 - 0.9**2)
        self.now += seconds * math.exp(self._drift + self._fast * self._random.normal())

    def call(self, seconds):
        return ready.PreparedCall(lambda: self.work(seconds), ())


def beside(machine, first, second, **limits):
    """Two calls timed in turn by a machine's clock."""
    return timing.time_interleaved(timing.Blocks(first, machine.clock), timing.Blocks(second, machine.clock), **limits)


def totals(done):
    return {name: trial.Saving.sum(savings).least for name, savings in done.saved().items()}


def test_variant_without_effect_is_the_same_in_99_of_100():
    outcomes = Counter()
    for seed in range(100):
        machine = Machine(seed, slow=0.05, fast=0.02)
        outcomes[beside(machine, machine.call(1e-3), machine.call(1e-3)).outcome] += 1
    assert outcomes["same"] >= 99
    assert not outcomes["faster"] + outcomes["slower"]


@pytest.mark.parametrize(("ratio", "outcome"), [(0.5, "faster"), (0.9, "faster"), (1.0, "same"), (1.2, "slower")])
def test_difference_of_results_has_its_size(ratio, outcome):
    machine = Machine(7, slow=0.05, fast=0.02)
    found = beside(machine, machine.call(1e-3), machine.call(ratio * 1e-3))
    assert found.outcome == outcome
    assert found.low <= ratio <= found.high
    assert found.ratio == pytest.approx(ratio, rel=0.03)


def test_slow_calls_end_at_the_time_limit_without_a_verdict():
    machine = Machine()
    found = beside(machine, machine.call(1.0), machine.call(0.5), longest=5.0)
    assert (found.outcome, found.ratio) == ("undecided", 0.5)
    assert found.low < 1e-3
    assert found.high > 1e3
    assert len(found.a) < 20
    assert machine.now < 12


@pytest.mark.parametrize(("given_s", "longest_s"), [(0.0, bench.SHORTEST_S), (1.0, 0.5), (1e6, timing.LONGEST_S)])
def test_variant_is_timed_for_half_of_its_time_limit(monkeypatch, given_s, longest_s):
    """The other half goes into building it, and into holding results against each other."""
    limits = []
    in_turn = timing.time_interleaved
    monkeypatch.setattr(
        timing, "time_interleaved", lambda *calls, **given: limits.append(given) or in_turn(*calls, **given)
    )
    machine = Machine()
    with Costs(machine, bytes_and_layout):
        wish = bench.TrialOptions(device=CPU, clock=machine.clock, variants=("bf16",))
        assert bench.Bench([MM], wish).tried(0, 0, given_s) is not None
    assert limits == [{"seconds": min(timing.SECONDS, longest_s), "longest": longest_s}]


@pytest.mark.parametrize(("seconds", "taken"), [(1e6, 2.0), (0.0, 9.0)])
def test_time_of_a_single_call_is_the_median_of_blocks(monkeypatch, seconds, taken):
    """The first one is slow, of whatever the call needs once."""
    times = iter([9.0, *[2.0] * 1000])
    monkeypatch.setattr(bench, "Blocks", lambda *_: SimpleNamespace(seconds=lambda: next(times)))
    assert bench.Bench([MM], bench.TrialOptions(device=CPU)).alone(0, seconds).ms == 1e3 * taken


def test_drift_of_the_machine_favours_no_variant():
    machine = Machine()

    def work():
        machine.now += 1e-3 * (1 + machine.now)  # every call is slower than the one before

    both = [ready.PreparedCall(work, ()), ready.PreparedCall(work, ())]
    found = beside(machine, *both)
    assert found.outcome == "same"
    assert found.ratio == pytest.approx(1, abs=1e-3)


def test_block_takes_a_millisecond_and_restores_its_inputs():
    machine, values = Machine(), torch.ones(3, dtype=torch.float64)
    seen = []

    def halve():
        values.mul_(0.5)
        seen.append(float(values[0]))
        machine.work(1e-6)

    blocks = timing.Blocks(ready.PreparedCall(halve, (), written=(values,)), machine.clock)
    assert blocks.number * 1e-6 >= 1e-3
    assert blocks.seconds() == pytest.approx(1e-6)
    assert min(seen) >= 0.5**256
    assert seen.count(0.5) > 4


def test_clock_that_does_not_advance_is_rejected():
    """It took 20 GB of memory for the pieces of what changes its inputs."""
    calls = ready.PreparedCall(int, (), written=(torch.ones(3),))
    with pytest.raises(OptionError, match="clock must advance"):
        timing.Blocks(calls, lambda: 0.0)


class Costs(TorchDispatchMode):
    """Moves a clock on by what operators would cost on a machine where memory and layout are all that counts."""

    def __init__(self, machine, cost):
        super().__init__()
        self._machine, self._cost = machine, cost

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        flat = [each for each in args if torch.is_tensor(each)]
        self._machine.now += self._cost(func._schema.name, flat)
        return func(*args, **(kwargs or {}))


RATE = 1e-7
"""Seconds a byte: a call of 64 x 64 takes more than a millisecond, so that one call is a block."""


def bytes_and_layout(name, tensors):
    """Copies are free: they belong to nobody who is timed."""
    if name == "aten::copy_":
        return 0.0
    return RATE * sum(each.nbytes * (1 if each.is_contiguous() else 4) for each in tensors)


def run_with(costs, offered, **wishes):
    machine = Machine()
    wish = bench.TrialOptions(device=CPU, clock=machine.clock, **wishes)
    with Costs(machine, costs):
        return trial.run(offered, 100.0, wish, Circumstances())


def test_planted_slow_layout_and_float64_are_found():
    wide = 64 * 64 * 4 * RATE * 1e3  # milliseconds for one matrix of float32
    turned = signature("add", tensor(64, 64, strides=(1, 64)), tensor(64, 64, strides=(1, 64)), plain("1"))
    double = signature("mm", tensor(64, 64, kind="double"), tensor(64, 64, kind="double"))
    offered = offer((turned, 8 * wide, 100), (double, 4 * wide, 10))
    done = run_with(bytes_and_layout, offered, variants=("contiguous", "float32"))
    tried = {(row.group.signature.name, each.variant): (row, each) for row in done.rows for each in row.tried}
    assert set(tried) == {("aten::add", "contiguous"), ("aten::mm", "float32")}
    row, layout = tried["aten::add", "contiguous"]
    assert (layout.timing.outcome, layout.difference) == ("faster", 0.0)
    assert layout.timing.times == pytest.approx(4)
    assert row.saving(layout).least == pytest.approx(0.75 * 100 * 8 * wide)
    row, double = tried["aten::mm", "float32"]
    assert double.timing.times == pytest.approx(2)
    assert 0 < double.difference < 1e-5
    assert row.saving(double).most == pytest.approx(0.5 * 10 * 4 * wide)
    assert totals(done) == pytest.approx({"contiguous": 600 * wide, "float32": 20 * wide})
    table = written.table(done)
    assert table["saved_percent"].to_list() == pytest.approx(table["saved_ms"].to_list())  # of a step of 100 ms
    assert any("contiguous" in line and "(1 operator)" in line for line in written.sentences(done))


@pytest.mark.parametrize(
    ("recorded_ms", "saved", "said"),
    [
        (10, (90, 90), "bf16: 90 ms, 90% (1 operator)"),
        (100, (90, 900), "bf16: 90 ms to 900 ms, 90% to 900% (1 operator, 1 of them uncertain)"),
        (1, (0.9, 9), "bf16: 0.9 ms to 9 ms, 0.9% to 9% (1 operator, 1 of them uncertain)"),
    ],
)
def test_incomparable_operator_has_a_range_of_gains(recorded_ms, saved, said):
    """A tenth of 10 ms alone; never counted as nothing, and what the page shows is the same range."""

    def cost(name, tensors):
        return 0.0 if name != "aten::mm" else 1e-2 if tensors[0].dtype == torch.float32 else 1e-3

    done = run_with(cost, offer((MM, recorded_ms, 10)), variants=("bf16",))
    (row,), (each,) = done.rows, done.rows[0].tried
    is_sure = saved[0] == saved[1]
    assert row.saving(each) == pytest.approx(saved)
    assert ("not comparable" in written.verdict(row, each)) != is_sure
    assert any(said in line for line in written.sentences(done)), written.sentences(done)
    assert any("so only a range is known for each saving" in line for line in written.sentences(done)) != is_sure
    assert (written.table(done)["saved_ms"][0] is None) != is_sure
    (shown,) = (one for one in written.advice_results(done) if one.rule == "float32-products")
    assert (shown.saved_ms, shown.most.saved_ms if shown.most else shown.saved_ms) == pytest.approx(saved)


class Wrong:
    """Fast, and off by a tenth."""

    name, tolerance = "wrong", 1e-3

    def suits(self, call):
        return True

    def changed(self, call):
        made = call.with_tensors(lambda each: each.to(torch.bfloat16))
        made.arguments[0].mul_(1.1)
        return made


def test_faster_and_wrong_is_shown_as_wrong(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", (Wrong(),))
    done = run_with(bytes_and_layout, offer((MM, 3.2, 10)))
    (each,) = done.rows[0].tried
    assert each.timing.outcome == "faster"
    assert each.difference == pytest.approx(0.1, rel=0.3)
    assert each.is_wrong
    assert written.table(done)["verdict"].to_list() == ["faster, WRONG"]
    draw({"tried": written.terminal_table(done)}, console=Console(width=70, file=(shown := io.StringIO())))
    assert "faster, WRONG" in shown.getvalue(), "a narrow terminal has room for the verdict"
    assert totals(done) == {}


def test_results_of_earlier_trials_for_other_findings_remain(tmp_path):
    def told(rule, variant="x"):
        return TriedAdvice(
            rule=rule, variant=variant, times=2.0, saved_ms=1.0, saved_percent=1.0, operators=1, device="cpu"
        )

    publish_json(tmp_path / TRIED, TriedFile(format=TRIED_FORMAT, measured=[told("other"), told("float32-products")]))
    done = run_with(bytes_and_layout, offer((MM, 3.2, 10)), variants=("bf16",))
    assert written.save_advice(done, tmp_path)
    found = [(each.rule, each.variant) for each in read_tried(tmp_path / TRIED)]
    assert found == [("other", "x"), ("float32-products", "bf16")]


def test_random_results_are_not_compared():
    call = built("bernoulli_", tensor(9), plain("0.5"), nothing())
    assert difference(call, call.with_tensors(torch.clone)) is None


def test_comparing_results_does_not_change_inputs():
    call = built("mul_", tensor(9), tensor(9))
    other = call.with_tensors(lambda each: each.double())
    before = call.arguments[0].clone()
    assert 0 <= difference(call, other) < 1e-6
    assert torch.equal(call.arguments[0], before)
    assert other.written[0] is other.arguments[0]
    assert other.arguments[0] is not call.arguments[0]


@pytest.mark.parametrize("strides", [(1, 8), (0, 1), (0, 0), (16, 2)])
def test_converted_inputs_have_the_recorded_layout(strides):
    call = built("mm", tensor(8, 8, kind="double", strides=strides), tensor(8, 8, kind="double"))
    changed = BY_NAME["float32"].changed(call)
    first = changed.arguments[0]
    assert (first.stride(), first.dtype) == (strides, torch.float32)
    assert torch.equal(first, call.arguments[0].float())


# --- variants ---

CONV = signature(
    "conv2d", tensor(2, 4, 8, 8), tensor(4, 4, 3, 3), nothing(),
    *(plain(each, "ScalarList") for each in ("[1, 1]", "[1, 1]", "[1, 1]")), plain("1"),
)  # fmt: skip
GROUPED = [plain("False")][: len(torch.ops.aten.scaled_dot_product_attention.default._schema.arguments) - 7]
"""The argument that torch 2.5 brought."""
ATTENTION = signature(
    "scaled_dot_product_attention", *[tensor(2, 2, 8, 8)] * 3, nothing(), plain("0."), plain("True"), nothing(),
    *GROUPED,
)  # fmt: skip
ODD = signature("addmm", tensor(7), tensor(5, 3), tensor(3, 7, strides=(1, 3)), plain("1"), plain("1"))
TURNED = signature("add", tensor(8, 8, strides=(1, 8)), tensor(8, 8), plain("1"))
UPDATE = Update("Adam", (("float", (3, 4)), ("float", (5,))), (), "for-loop")
CASES = {
    "float32": signature("mm", tensor(8, 8, kind="double"), tensor(8, 8, kind="double")),
    "bf16": MM,
    "fp16": MM,
    "channels_last": CONV,
    "contiguous": TURNED,
    "padding": ODD,
    "foreach": UPDATE,
    "fused": UPDATE,
    "attention-math": ATTENTION,
    "attention-flash": ATTENTION,
    "no-onednn": CONV,
    "threads": MM,
}


@pytest.mark.parametrize("name", CASES)
def test_variant_results_are_within_its_tolerance(name):
    variant = BY_NAME[name]
    with safe.preserve_state():
        torch.set_num_threads(2)
        call = inputs.build(CASES[name], CPU)
        assert variant.suits(call) or name == "fp16"
        changed = variant.changed(call)
        apart = difference(call, changed)
        assert apart <= variant.tolerance
        assert variant.changed(changed) is None or name.startswith(("attention", "threads"))  # nothing is left to do


def test_padding_does_not_change_the_number_of_products():
    call = inputs.build(signature("bmm", tensor(3, 5, 7), tensor(3, 7, 9)), CPU)
    padded = BY_NAME["padding"].changed(call)
    assert [tuple(each.shape) for each in padded.tensors()] == [(3, 8, 8), (3, 8, 16)]


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda each: each.name)
def test_a_variant_that_makes_no_sense_is_not_tried(variant):
    integers = built("add", tensor(4, kind="long int"), tensor(4, kind="long int"), plain("1"))
    assert not variant.suits(integers) or variant.name == "threads"
    if variant.name not in ("threads", "compile", "onednn", "no-onednn"):
        assert variant.changed(integers) is None


def test_device_variants_do_not_apply_to_cpu_calls():
    call = built(CONV.name.removeprefix("aten::"), *CONV.arguments)
    assert [BY_NAME[name].changed(call) for name in ("tf32", "cudnn-benchmark")] == [None, None]
    assert not BY_NAME["fp16"].suits(call)


def test_threads_variant_changes_the_number_only_for_its_run():
    with safe.preserve_state():
        torch.set_num_threads(2)
        call = ready.PreparedCall(torch.get_num_threads, ())
        assert (call(), BY_NAME["threads"].changed(call)(), torch.get_num_threads()) == (2, 1, 2)


@pytest.mark.parametrize(("cores", "wanted"), [(3, 3), (1, None), (None, None)])
def test_call_of_one_thread_is_tried_with_all_cpus(monkeypatch, cores, wanted):
    """Its own setting counts, and not how many this process has."""
    monkeypatch.setattr(variants.Circumstances, "current", lambda: Circumstances(cores=cores))
    with safe.preserve_state():
        torch.set_num_threads(2)
        call = ready.PreparedCall(torch.get_num_threads, (), setting=lambda: safe.override_flags({safe.THREADS: 1}))
        changed = BY_NAME["threads"].changed(call)
        assert (changed and changed()) == wanted


def test_each_call_is_compiled_separately_and_completely(monkeypatch):
    """torch compiles no more than eight different calls of one code object, and runs the ninth as it is."""
    seen = []

    def fake(function, **options):
        seen.append((function.__code__, options))
        return function

    monkeypatch.setattr(torch, "compile", fake)
    calls = [built("mm", tensor(size, size), tensor(size, size)) for size in range(2, 12)]
    for call in calls:
        assert difference(call, BY_NAME["compile"].changed(call)) == 0
    assert len({id(code) for code, _ in seen}) == len(calls)
    assert all(options == {"dynamic": False, "fullgraph": True} for _, options in seen)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (
            "InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None,)",
            "torch.compile needs a C++ compiler: install g++",
        ),
        ("Unsupported: it has a graph break", "Unsupported: it has a graph break"),
    ],
)
def test_missing_compiler_has_its_own_message(monkeypatch, cause, said):
    def fails(*_):
        raise RuntimeError(cause)

    monkeypatch.setattr(torch, "compile", lambda *_, **__: fails)
    done = run_with(bytes_and_layout, offer((MM, 3.2, 10)), variants=("compile",))
    assert said in done.rows[0].tried[0].problem
    assert ("install" in done.rows[0].tried[0].problem) == ("install" in said)


def test_onednn_is_tried_if_the_training_disabled_it():
    with safe.preserve_state(), safe.recorded_settings(Circumstances(onednn=False)):
        call = built("conv2d", *CONV.arguments)
        assert BY_NAME["no-onednn"].changed(call) is None
        changed = BY_NAME["onednn"].changed(call)
        with changed.setting():
            assert torch.backends.mkldnn.enabled
        assert not torch.backends.mkldnn.enabled
        assert difference(call, changed) < 1e-5


# --- updates ---


@pytest.mark.parametrize("name", ["resnet", "gpt"])
def test_update_runs_again_with_the_recorded_parameters(calls, name):
    optimizer, _ = MODELS[name]()
    (group,) = (each for each in select_calls(calls(name)).groups if isinstance(each.signature, Update))
    update = group.signature
    assert (update.optimizer, update.implementation, group.calls) == (type(optimizer).__name__, "for-loop", 1)
    shapes = Counter(tuple(each.shape) for group in optimizer.param_groups for each in group["params"])
    assert Counter(dims for _, dims in update.parameters) == shapes
    assert dict(update.options) == ({"momentum": 0.9} if name == "resnet" else {})


@pytest.mark.parametrize(("name", "options"), [("SGD", ()), ("SGD", (("momentum", 0.9),)), ("Adam", ())])
def test_implementations_of_a_later_update_have_equal_results(name, options):
    """What an optimizer has seen so far, as momentum, goes over to the variant that it is held against."""
    seen = Update(name, UPDATE.parameters, options, "for-loop")
    call = inputs.build(seen, "cpu")
    for _ in range(20):
        call()
    for implementation in ("foreach", "fused"):
        assert difference(call, call.remade(implementation)) < 1e-6


@pytest.mark.parametrize("way", ["for-loop", "foreach", "fused"])
def test_update_uses_the_named_implementation(way, monkeypatch):
    given = []
    make = torch.optim.SGD.__init__
    monkeypatch.setattr(torch.optim.SGD, "__init__", lambda *args, **named: given.append(named) or make(*args, **named))
    inputs.build(Update("SGD", UPDATE.parameters, (), way), "cpu")()
    said = {name: given[-1].get(name) for name in ("foreach", "fused")}
    wanted = {"for-loop": (False, None), "foreach": (True, None), "fused": (None, True)}[way]
    assert tuple(said.values()) == wanted


def recorded_updates(path, parameters, step):
    """The updates that can be made again, of three steps."""
    with Profiler(
        schedule="wait=1 warmup=1 active=3 repeat=1", record_shapes=True, background=False, out=path.parent
    ) as profiler:
        for _ in range(5):
            step()
            for each in parameters:
                each.grad = None
            profiler.step()
    profiler.export_chrome_trace(str(path))
    groups = select_calls(recorded.load_calls(Tables(read(path, strides=True)))).groups
    return [group.signature for group in groups if isinstance(group.signature, Update)]


def lost(*parameters):
    sum(each.sigmoid().sum() for each in parameters).backward()


@pytest.fixture
def parameters():
    return [torch.nn.Parameter(torch.randn(size, 2)) for size in (3, 4, 4, 5)]


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.RAdam])
def test_update_after_accumulation_uses_one_backward_pass(optimizer, foreach, parameters, tmp_path):
    updating = optimizer(parameters, foreach=foreach)

    def step():
        for _ in range(3):
            lost(*parameters)
        updating.step()

    (update,) = recorded_updates(tmp_path / "t.json", parameters, step)
    assert (update.optimizer, update.implementation) == (optimizer.__name__, "foreach" if foreach else "for-loop")
    assert [dims for _, dims in update.parameters] == [(3, 2), (4, 2), (4, 2), (5, 2)]


def test_update_with_unknown_parameters_does_not_run_again(parameters, tmp_path):
    """Two optimizers share a pass; two passes have parameters of their own."""
    first, second = torch.optim.SGD(parameters[:2]), torch.optim.SGD(parameters[3:])

    def shared():
        lost(*parameters)
        first.step()
        second.step()

    def apart():
        lost(*parameters[:1])
        lost(*parameters[1:])
        every.step()

    every = torch.optim.SGD(parameters)
    assert recorded_updates(tmp_path / "shared.json", parameters, shared) == []
    assert recorded_updates(tmp_path / "apart.json", parameters, apart) == []


# --- what is left behind, and what is refused ---


class Vandal:
    """Changes what can be changed, and then somebody presses Ctrl-C."""

    name, tolerance = "vandal", 1

    def suits(self, call):
        return True

    def changed(self, call):
        torch.manual_seed(1)
        torch.backends.mkldnn.enabled = not torch.backends.mkldnn.enabled
        torch.backends.cudnn.benchmark = True
        if call.name == "aten::add":
            os.kill(os.getppid(), signal.SIGINT)
            signal.pause()
        return call.with_tensors(torch.clone)


def test_ctrl_c_shows_results_and_restores_the_state(monkeypatch):
    monkeypatch.setattr(variants, "VARIANTS", (Vandal(),))
    before = torch.get_rng_state(), torch.get_num_threads(), torch.backends.mkldnn.enabled
    flag = torch.backends.cudnn.benchmark
    done = run_with(bytes_and_layout, offer((MM, 3.2, 10), (TURNED, 0.1, 10), (CONV, 1, 1)))
    assert done.is_interrupted
    assert [len(row.tried) for row in done.rows] == [1, 0]
    assert done.rows[0].tried[0].timing.outcome == "same"
    assert "Interrupted" in written.sentences(done)[0]
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (torch.get_num_threads(), torch.backends.mkldnn.enabled) == before[1:]
    assert torch.backends.cudnn.benchmark == flag


def test_call_beyond_the_memory_limit_does_not_run():
    large = signature("mm", tensor(1 << 20, 1 << 20), tensor(1 << 20, 1 << 20))
    done = trial.run(offer((large, 1, 1)), 1.0, bench.TrialOptions(device=CPU, memory=1), Circumstances())
    assert done.rows[0].problem.startswith("needs ")
    assert "--memory" in written.table(done)["verdict"][0]


def test_failing_operator_does_not_affect_other_operators():
    broken = signature("mm", tensor(2, 3), tensor(2, 3))
    done = run_with(bytes_and_layout, offer((broken, 1, 1), (MM, 3.2, 10)), variants=("bf16",))
    assert "must have same reduction dim" in done.rows[0].problem
    assert done.rows[1].tried


ON_CPU = "--device cpu runs the operators on this CPU, with little meaning for the device"
NO_GPU = "No CUDA GPUs are available"
NO_DRIVER = "Found no NVIDIA driver on your system"
NO_MPS = "Could not run 'aten::empty.memory_format' with arguments from the 'MPS' backend"


@pytest.mark.parametrize(
    ("device", "error", "said"),
    [
        (None, NO_GPU, f"the recorded device 'cuda' is not available: {NO_GPU}. {ON_CPU}"),
        ("cuda:1", NO_GPU, f"device 'cuda:1' is not available: {NO_GPU}. Use --device cpu"),
        ("nowhere", NO_GPU, "device must be a device of torch, for example cpu or cuda:1, got 'nowhere'"),
        ("meta", NO_GPU, "device 'meta' computes nothing .* Use --device cpu"),
        # what torch says is cut to one sentence
        ("cuda", f"{NO_DRIVER}. Please check that you have one from http://www.nvidia.com/x",
         f"device 'cuda' is not available: {NO_DRIVER}. Use --device cpu"),
        ("cuda", "Torch not compiled with XPU enabled",
         "device 'cuda' is not available: Torch not compiled with XPU enabled. Use --device cpu"),
        ("cuda", f"{NO_MPS}. This could be because", f"device 'cuda' is not available: {NO_MPS}. Use --device cpu"),
        ("cuda", "", "device 'cuda' is not available: RuntimeError. Use --device cpu"),
    ],
)  # fmt: skip
def test_missing_device_is_rejected_with_a_remedy(monkeypatch, device, error, said):
    def absent(*_, **__):
        raise RuntimeError(error)

    monkeypatch.setattr(safe.torch, "empty", absent)
    with pytest.raises(OptionError, match=f"^{said}$"):
        safe.select_device(device, on_device=device in (None, "cuda:1", "nowhere"))


def test_unknown_variant_or_finding_is_rejected_with_the_list():
    with pytest.raises(OptionError, match=r"channels_last.*got 'nhwc'"):
        variants.select_variants(["nhwc"])
    with pytest.raises(OptionError, match=r"optimizer-loop.*got 'host-bound'"):
        variants.advice_for("host-bound")


# --- what comes of it ---


def test_trial_measures_the_operators_of_its_finding():
    def cost(name, tensors):
        return RATE * sum(each.nbytes for each in tensors) if name == "aten::mm" else 0.0

    double = signature("mm", tensor(64, 64, kind="double"), tensor(64, 64, kind="double"))
    done = run_with(cost, offer((double, 64 * 64 * 16 * RATE * 1e3, 100)), variants=("float32",))
    (found,) = written.advice_results(done)
    assert (found.rule, found.variant, found.operators) == ("float64-products", "float32", 1)
    assert found.times == pytest.approx(2)
    assert found.saved_ms == pytest.approx(0.5 * 100 * 64 * 64 * 16 * RATE * 1e3)
