"""The rules about devices: planted in synthetic traces of a training that is otherwise well, and silent on that one."""

import logging
from dataclasses import replace

import pytest

from perfhooks import testing
from perfhooks.analysis import findings
from perfhooks.analysis.findings import Evidence
from perfhooks.analysis.findings.finding import estimate
from perfhooks.core import words
from perfhooks.run.capture import Capture, Cost
from perfhooks.run.circumstances import Circumstances
from perfhooks.testing import PID, annotation, kernel, launch, op, python_frame, slice_event, step_mark
from perfhooks.trace import read

US = 1000
MS = 1_000_000
STEP = 10 * MS
STEPS = 3
WHOLE = Capture(first=0, last=STEPS - 1, reached=STEPS)
A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100", "computeMajor": 8}]}
WHOLE_A100 = {"deviceProperties": [{"id": 0, "name": "NVIDIA A100-SXM4-40GB", "computeMajor": 8, "numSms": 108}]}
V100 = {"deviceProperties": [{"id": 0, "name": "Tesla V100", "computeMajor": 7}]}
P100 = {"deviceProperties": [{"id": 0, "name": "Tesla P100", "computeMajor": 6}]}
MI300 = {"deviceProperties": [{"id": 0, "name": "AMD Instinct MI300X", "computeMajor": 9}]}

FAST = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4"
PLAIN = "ampere_sgemm_128x64_tn"


def find(capture, trace):
    """What is found but for a part of the step without a name: these trainings have no labels, and this has tests."""
    return [finding for finding in findings.find(capture, trace) if finding.rule != "unnamed-time"]


class Training:
    """Steps whose kernels follow each other without a gap; the host launches ahead until the queue is full."""

    def __init__(self):
        self.events = []
        self._correlation = 0

    def work(self, launched, start, end, *, call="cudaLaunchKernel", call_us=10, launch_args=(), **options):
        """One piece of work with its launch."""
        self._correlation += 1
        self.events.append(launch(self._correlation, launched, launched + call_us * US, name=call, **dict(launch_args)))
        self.events.append(kernel(self._correlation, start, end, **options))

    def call(self, name, start, end):
        """A call into the runtime that launches nothing."""
        self._correlation += 1
        self.events.append(launch(self._correlation, start, end, name=name))

    def step(self, number, *, kernels=9, name=FAST, begin=60 * US, waits=True, at=None, length=STEP):
        """A step whose kernels take it up, from a while after its begin; gives the time at which it began.

        The queue is full after all but one of them, so that the host waits to launch the last.
        """
        at = number * STEP if at is None else at
        self.events.append(step_mark(number, at, at + length))
        span = (length - begin) // kernels
        for place in range(kernels):
            start = at + begin + place * span
            launched = at + begin - 20 * US + place * US
            held = (start - launched) // US - 10 if waits and place == kernels - 1 else 1
            self.work(launched, start, start + span, name=name, call_us=held)
        return at


def steps(plant=None, **options):
    """A training, and what is planted in each of its steps."""
    made = Training()
    for number in range(STEPS):
        at = made.step(number, **options)
        if plant:
            plant(made, at)
    return made.events


def pageable_copies(training, at, *, source="Pageable", size=20_000_000, stream=7):
    """A batch copied from memory that is not pinned, before anything computes."""
    name = f"Memcpy HtoD ({source} -> Device)"
    place = {"category": "gpu_memcpy", "name": name, "bytes": size, "stream": stream}
    start = at + 10 * US if stream == 7 else at + 3 * MS
    training.work(at, start, start + 2 * MS, call="cudaMemcpyAsync", **place)


def many_launches(training, at, *, ahead=False):
    """A hundred kernels of 10 us, launched every 90 us."""
    training.events.append(step_mark(at // STEP, at, at + STEP))
    for place in range(100):
        launched = at + place * (10 if ahead else 90) * US
        start = max(at + 20 * US + place * (90 if ahead else 0) * US, launched + 15 * US)
        training.work(launched, start, start + (88 if ahead else 10) * US, call_us=5, name=FAST)


def reading_values(training, at, *, gap=3 * MS):
    """``loss.item()`` in the middle of a step, and the host launches again only after a while."""
    training.events.append(step_mark(at // STEP, at, at + STEP))
    half = 3 * MS
    training.events.append(python_frame("train.py(12): step", at, at + STEP - 1))
    training.events.append(op("aten::item", at + 300 * US, at + half + 300 * US))
    training.work(at + 50 * US, at + 100 * US, at + half, name=FAST)
    training.call("cudaStreamSynchronize", at + 310 * US, at + half + 20 * US)
    training.work(at + half + gap - 20 * US, at + half + gap, at + half + gap + half, name=FAST)


def double_products(training, at, *, dtype="double", shape=(64, 64)):
    """A product whose inputs are float64, with half of the step's kernels."""
    inputs = {"Input_type": [dtype, dtype], "Input_Dims": [list(shape)] * 2}
    training.events.append(op("aten::mm", at + 30 * US, at + STEP - 20 * US, **inputs))


def slow_product(training, at, *, size=1024, length=2 * MS, start=200 * US):
    """Half precision, in kernels that take a hundred times what its operations need."""
    inputs = {"Input_type": ["c10::Half"] * 2, "Input_Dims": [[size, size]] * 2}
    training.events.append(op("aten::mm", at + start, at + start + 30 * US, **inputs))
    began = at + 7 * MS - 200 * US + start
    training.work(at + start + 10 * US, began, began + length, name=f"{HALF}8", stream=9)


def slow_products(training, at, *, count, length):
    """Several of one size, one after the other, each in a kernel of its own."""
    for place in range(count):
        slow_product(training, at, size=16, length=length, start=(200 + 31 * place) * US)


def own_product(training, at, name, *, operator=None, call="cudaLaunchKernel", length=2 * MS):
    """A product of matrices that nobody's library made, or that an operator or a graph launched."""
    training.events.append(op(operator or "aten::detach", at + 200 * US, at + (230 if operator else 205) * US))
    training.work(at + 210 * US, at + 7 * MS, at + 7 * MS + length, name=name, stream=9, call=call)


def unfolding(training, at, *, name="aten::_slow_conv2d_forward"):
    """A convolution without cuDNN, with all of the step's kernels."""
    inputs = {"Input_type": ["float"], "Input_Dims": [[8, 3, 32, 32]]}
    training.events.append(op(name, at + 30 * US, at + STEP - 20 * US, **inputs))


def allocations(training, at, *, name="cudaMalloc"):
    """Memory asked of the device while it idles."""
    training.call(name, at + 150 * US, at + 650 * US)


def gathering(training, at, *, exposed=True, count=1, size=100_000_000, operation="allreduce"):
    """Collectives, alone or beside the kernels."""
    each = 2 * MS // count
    for place in range(count):
        start = at + (200 * US if exposed else 3 * MS) + place * each
        training.work(
            at + 20 * US,
            start,
            start + each,
            name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
            stream=20,
            Collective_name=operation,
            dtype="Float",
            In_msg_nelems=size // 4,
            Out_msg_nelems=size // 4,
            Group_size=2,
            Process_Group_Name="0",
        )


def one_process_for_all(training, at, *, devices=2):
    """The model is sent to every device before the step computes."""
    for place, name in enumerate(("Scatter", "Broadcast", "Gather")):
        training.events.append(op(name, at + place * 400 * US, at + (place + 1) * 400 * US))
    if devices > 1:
        training.work(at + 100 * US, at + 2 * MS, at + 3 * MS, device=1, name=FAST)


def preprocessing(made, at):
    """The host works for 6 ms on something that torch has no name for."""
    made.events.append(python_frame("train.py(12): augment", at + 100 * US, at + 6200 * US))


def reading_results(training, at, *, copied=True, busy=False, call="cudaMemcpyAsync"):
    """A large result is read into memory that is not pinned; the next work is launched right after it."""
    training.events.append(step_mark(at // STEP, at, at + STEP))
    training.events.append(python_frame("train.py(30): save", at, at + STEP - 1))
    training.work(at + 10 * US, at + 20 * US, at + 3 * MS, name=FAST)
    begin, end = at + 3 * MS - 20 * US, at + 6 * MS
    if copied:
        place = {"category": "gpu_memcpy", "name": "Memcpy DtoH (Device -> Pageable)", "bytes": 40_000_000}
        training.work(begin, at + 3 * MS, end - 5 * US, call=call, call_us=(end - begin) // US, **place)
    else:
        training.call(call, begin, end)
    if busy:
        training.work(at + 30 * US, at + 3 * MS, at + 6 * MS, name=FAST, stream=9)
    training.work(end + 5 * US, end + 10 * US, at + STEP, name=FAST)


def attention(
    training, at, *, between="aten::_softmax", around=None, first="aten::addmm", then="aten::div", shape=None
):
    """The products and the softmax that launch the step's kernels."""
    if around:
        training.events.append(op(around, at + 36 * US, at + 60 * US))
    names = (first, "aten::bmm", then, between, "aten::bmm")
    for place, name in enumerate(names):
        shapes = {"Input Dims": [shape, []]} if shape and name == between else {}
        training.events.append(op(name, at + (37 + 2 * place) * US, at + (39 + 2 * place) * US - 200, **shapes))


def starting(training, at, *, steps=(0,), how="launch", ahead=False):
    """In some steps a launch takes 6 ms while the device idles, or TorchDynamo compiles for as long."""
    starts = at // STEP in steps
    training.step(at // STEP, begin=6500 * US if starts else 60 * US, waits=not starts)
    if starts and how == "launch":
        training.work(at + 100 * US, at + (110 if ahead else 6200) * US, at + 6450 * US, call_us=6000, name=FAST)
    elif starts:
        training.events.append(op("inductor_compile (dynamo_timed)", at + 100 * US, at + 6200 * US))


def preparing(training, at, *, own="own_kernel_{}", gap=700 * US, blocks=6):
    """Blocks of three kernels that run without a gap, and one before which the device idles until its launch."""
    training.events += [step_mark(at // STEP, at, at + STEP), annotation("block", at, at + STEP)]
    begin = at + 30 * US
    for block in range(blocks):
        for place in range(3):
            training.work(
                begin - 20 * US + place * US, begin + place * 200 * US, begin + (place + 1) * 200 * US, name=FAST
            )
        begin += 600 * US + gap
        training.work(begin - 12 * US, begin, begin + 200 * US, name=own.format(block), call="cuLaunchKernelEx")
        begin += 200 * US


def delaying(training, at, *, delay=1900 * US, call="cudaLaunchKernel", between=()):
    """Three kernels that are launched at once and begin late on an idle device."""
    training.events.append(step_mark(at // STEP, at, at + STEP))
    for name in between:
        training.call(name, at + 5 * US, at + 8 * US)
    end = at + 40 * US
    for place in range(3):
        training.work(at + (10 + place * 12) * US, end + delay, end + delay + MS, name=f"kernel_{place}", call=call)
        end += delay + MS


def copying(training, at, *, kind="Memcpy HtoD (Pinned -> Device)", size=200_000_000, kernel=False):
    """A copy of 9 ms, with or without a kernel after it."""
    place = {"category": "gpu_memcpy", "name": kind, "bytes": size}
    training.events.append(step_mark(at // STEP, at, at + STEP))
    training.work(at + 10 * US, at + 20 * US, at + 9 * MS, call="cudaMemcpyAsync", **place)
    if kernel:
        training.work(at + 30 * US, at + 9 * MS, at + STEP - 10 * US, name=FAST)


def products(training, at, *, rows=1, length=40 * US, count=60, name="gemvNSP_kernel", operator="aten::mm", batch=()):
    """Products of some rows with a matrix of 4096 x 4096 in half precision, 33.5 MB: 21.6 us on an A100."""
    inputs = {"Input_type": ["c10::Half"] * 2, "Input_Dims": [[*batch, rows, 4096], [*batch, 4096, 4096]]}
    for place in range(count):
        launched, began = at + (200 + 31 * place) * US, at + 3 * MS + place * length
        training.events.append(op(operator, launched, launched + 30 * US, **inputs))
        training.work(launched + 10 * US, began, began + length, name=name, stream=9)


HALF = "cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align"
ALIGNED = f"{HALF}8"
SUM = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"

REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>"


def slowed(clock, count=3, **options):
    """Three steps or fewer, of which the middle one takes 14 ms and not 10, with the clock in each."""
    made, at = Training(), 0
    for number, (length, mhz) in enumerate([(10, 1980), (14, clock), (10, 1980)][:count]):
        made.step(number, at=at, length=length * MS, **(options if number == 1 else {}))
        for moment in (at, at + length * MS - US):
            sample = {"ph": "C", "name": "Clock (MHz)", "pid": 0, "ts": moment / 1000, "args": {"": mhz}}
            made.events.append(sample)
        at += length * MS
    return made.events


PLANTED = {
    "held-by-copies": (lambda: made_of(reading_results), A100),
    "written-out-attention": (lambda: steps(attention), A100),
    "unaligned-products": (lambda: steps(name=f"{HALF}2"), A100),
    "fusable-chains": (lambda: steps(name=SUM), A100),
    "kernels-below-limit": (lambda: steps(slow_product), WHOLE_A100),
    "launch-preparation": (lambda: made_of(preparing), A100),
    "shared-device": (lambda: made_of(delaying), A100),
    "only-copies": (lambda: made_of(copying), WHOLE_A100),
    "weight-bound-products": (lambda: steps(products), WHOLE_A100),
    "own-products": (lambda: steps(lambda made, at: own_product(made, at, "matmul_k(float*, float*, int)")), A100),
    "recorded-start": (lambda: made_of(starting), A100),
    "blocking-copies": (lambda: steps(pageable_copies, begin=2100 * US), A100),
    "host-bound": (lambda: made_of(many_launches), A100),
    "synchronisation": (lambda: made_of(reading_values), A100),
    "float32-products": (lambda: steps(name=PLAIN), A100),
    "layout-conversions": (
        lambda: steps(name="void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"),
        A100,
    ),
    "allocator-churn": (lambda: steps(allocations, begin=700 * US), A100),
    "exposed-communication": (lambda: steps(gathering, begin=2200 * US), A100),
    "small-collectives": (
        lambda: steps(lambda made, at: gathering(made, at, count=40, size=1024), begin=2200 * US),
        A100,
    ),
    "data-parallel": (lambda: steps(one_process_for_all, begin=1200 * US), A100),
    "lowered-clock": (lambda: slowed(1400), A100),
    "device-pauses": (lambda: steps(preprocessing, begin=6500 * US, waits=False), A100),
}
"""Rules that need a device: a trace in which each finds something, with the properties of the device."""

ALSO = {"small-collectives": {"exposed-communication"}, "data-parallel": set()}
"""What else such a trace has: small collectives that take a fifth of the step are exposed communication as well."""


def made_of(step):
    made = Training()
    for number in range(STEPS):
        step(made, number * STEP)
    return made.events


def found_in(tmp_path, events, metadata=A100, capture=WHOLE):
    return find(capture, read(testing.write_trace(tmp_path / "t.json", events, **metadata)))


def rules(found):
    return [finding.rule for finding in found]


@pytest.fixture(autouse=True)
def no_rule_fails(caplog):
    with caplog.at_level(logging.DEBUG, "perfhooks"):
        yield
    assert "failed" not in caplog.text


@pytest.mark.parametrize("name", PLANTED)
def test_exactly_the_planted_problem_is_found(name, tmp_path):
    make, metadata = PLANTED[name]
    found = found_in(tmp_path, make(), metadata)
    assert set(rules(found)) == {name} | ALSO.get(name, set())
    for finding in found:
        assert finding.is_bound or finding.gain_ms is None, "nothing that a device does was measured"
        assert finding.gain_ms is None or 0 < finding.gain_ms <= STEP / MS
        assert finding.gain_ms is None or 0 < finding.gain_percent <= 100
        assert finding.lines


def test_lowered_clock_is_a_finding_unless_the_device_waited(tmp_path):
    (found,) = found_in(tmp_path, slowed(1400))
    said = "step 1: 14 ms with Clock (MHz) at 1400; the median step takes 10 ms with 1980"
    assert (found.title, found.lines) == (
        "Step 1 took 4 ms longer at a lower device clock.", (said,)
    )  # fmt: skip
    assert found.gain_ms == pytest.approx(4 / 3)
    assert "lowered-clock" not in rules(found_in(tmp_path, slowed(1400, begin=4 * MS)))
    assert "lowered-clock" not in rules(found_in(tmp_path, slowed(1800))), "a tenth lower is not what takes 40% longer"
    assert "lowered-clock" not in rules(found_in(tmp_path, slowed(1400, count=2))), "of two steps none is the usual one"


@pytest.mark.parametrize("metadata", [A100, V100, MI300, {}], ids=["A100", "V100", "MI300", "unknown"])
def test_harmless_traces_have_no_findings(metadata, tmp_path):
    assert found_in(tmp_path, steps(), metadata) == []


@pytest.mark.parametrize(
    ("is_own", "name", "how"),
    [
        (True, "matmul_k(float*, float*, float*, int, int, int)", {}),
        (True, "_my_gemm_kernel", {}),
        (True, "matmul_kernel", {"operator": "MatMulBackward"}),
        (False, "matmul_kernel", {"operator": "mine::matmul"}),
        (False, "matmul_kernel", {"call": "cudaGraphLaunch"}),
        (False, "matmul_kernel", {"length": 900 * US}),
        (False, "scale_rows(float*, int)", {}),
        *(
            (False, name, {})
            for name in (
                *("nvjet_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", "ampere_sgemm_128x64_nn", "sgemm_32x32x32_NN_vec"),
                *("sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n", "Cijk_Alik_Bljk_HHS_BH_MT128x96x32"),
                *("void gemmk1_kernel<int, float, 256, 5>", "triton_tem_fused_mm_3", "magma_sgemmEx_kernel"),
                *("void ours::matmul<float>(float*)", "cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align8"),
            )
        ),
    ],
)
def test_custom_product_kernels_differ_from_library_kernels(tmp_path, is_own, name, how):
    found = found_in(tmp_path, steps(lambda made, at: own_product(made, at, name, **how)))
    assert ("own-products" in rules(found)) == is_own


def test_kernels_far_below_a_known_limit_are_a_finding(tmp_path):
    """2 ms for 2 * 1024^3 operations, which 312 TFLOP/s do in 6.9 us; at 4096 it is 22%, at 6000 69%."""
    (found,) = found_in(tmp_path, steps(slow_product), WHOLE_A100)
    assert found.title.startswith("Kernels at 0.3% of the device's peak take 2 ms of a step")
    assert found.lines[1].startswith("aten::mm 1024 x 1024 and 1024 x 1024: 1 times, 2 ms, 0.3% of the limit")
    assert found.lines[-1].endswith("datasheet")
    assert found.gain_ms == pytest.approx(2 - 2 * 1024**3 / 312e9, rel=1e-6), "what is beyond the limit"
    for size, is_far in ((4096, True), (6000, False)):
        made = steps(lambda training, at: slow_product(training, at, size=size))  # noqa: B023 -- called at once
        assert bool(found_in(tmp_path, made, WHOLE_A100)) == is_far
    assert found_in(tmp_path, steps(slow_product), A100) == []


@pytest.mark.parametrize(
    ("below", "above"),
    [
        ({"count": 1, "length": 900 * US}, {"count": 1, "length": 1100 * US}),
        ({"count": 120, "length": 9 * US}, {"count": 120, "length": 11 * US}),
    ],
    ids=["a tenth of the step", "short"],
)
def test_long_kernels_below_their_limit_are_a_finding(tmp_path, below, above):
    """One below 10 us takes what any kernel takes, however many there are."""
    made = [steps(lambda training, at: slow_products(training, at, **how)) for how in (below, above)]  # noqa: B023
    assert [rules(found_in(tmp_path, events, WHOLE_A100)) for events in made] == [[], ["kernels-below-limit"]]


def test_chain_is_detected_by_the_kinds_of_its_kernels(tmp_path):
    def chain(training, at):
        for place, name in enumerate((SUM, REDUCE, SUM)):
            start = at + (200 + 1000 * place) * US
            training.work(at + 20 * US + place * 500, start, start + MS, name=name)

    (found,) = found_in(tmp_path, steps(chain, begin=3200 * US))
    assert found.title.endswith("take 3 ms of a step.")
    assert found.lines[0] == "3 such kernels in a step: elementwise 2 ms, reduction 1 ms"


@pytest.mark.parametrize(("idle_us", "is_said"), [(2500, False), (1500, True)])
def test_chain_is_no_finding_on_an_idle_device(tmp_path, idle_us, is_said):
    def chain(training, at):
        for place in range(2):
            start = at + (200 + 1500 * place) * US
            training.work(at + 20 * US + place * 500, start, start + 1500 * US, name=SUM)

    found = found_in(tmp_path, steps(chain, begin=(3200 + idle_us) * US))
    assert ("fusable-chains" in rules(found)) == is_said


@pytest.mark.slow
def test_problems_hidden_behind_device_work_are_no_findings(tmp_path):
    """Each of the planted problems in its harmless form: hidden, small, or of another device."""
    harmless = [
        made_of(lambda made, at: reading_results(made, at, busy=True)),
        made_of(lambda made, at: reading_results(made, at, copied=False, call="cudaFuncSetAttribute")),
        steps(lambda made, at: attention(made, at, between="aten::mul")),
        steps(lambda made, at: attention(made, at, around="aten::scaled_dot_product_attention")),
        steps(name=f"{HALF}8"),
        steps(name=SUM, begin=4500 * US, waits=False),
        steps(lambda made, at: made.events.append(op("CompiledFxGraph 1", at + 1, at + 9 * MS)), name=SUM),
        steps(lambda made, at: made.events.append(op("CompiledFunction", at + 1, at + 9 * MS)), name=SUM),
        made_of(lambda made, at: starting(made, at, ahead=True)),
        steps(preprocessing, begin=4500 * US, waits=False),
        steps(preprocessing),
        steps(lambda made, at: pageable_copies(made, at, source="Pinned"), begin=2100 * US),
        steps(lambda made, at: pageable_copies(made, at, size=64 * 1024), begin=2100 * US),
        steps(lambda made, at: pageable_copies(made, at, stream=9)),
        made_of(lambda made, at: many_launches(made, at, ahead=True)),
        made_of(lambda made, at: reading_values(made, at, gap=60 * US)),
        steps(lambda made, at: gathering(made, at, exposed=False)),
        steps(lambda made, at: gathering(made, at, exposed=False, count=40, size=1024)),
        steps(lambda made, at: allocations(made, at, name="cudaFuncGetAttributes"), begin=700 * US),
        steps(lambda made, at: allocations(made, at + 2 * MS)),
        steps(lambda made, at: one_process_for_all(made, at, devices=1), begin=1200 * US),
        steps(lambda made, at: double_products(made, at, dtype="float")),
        steps(lambda made, at: double_products(made, at, shape=())),
        steps(lambda made, at: unfolding(made, at, name="aten::cudnn_convolution")),
        slowed(1500),
        slowed(1400, kernels=13),
        made_of(lambda made, at: preparing(made, at, own=FAST)),
        made_of(lambda made, at: preparing(made, at, own=FAST.replace("cutlass", "c{}"))),
        made_of(lambda made, at: preparing(made, at, gap=100 * US)),
        made_of(lambda made, at: delaying(made, at, delay=900 * US)),
        made_of(lambda made, at: delaying(made, at, call="cudaGraphLaunch")),
        made_of(lambda made, at: delaying(made, at, between=["cudaLaunchHostFunc_v10000"])),
        made_of(lambda made, at: delaying(made, at, between=["cuStreamWaitValue32_v2"])),
        made_of(lambda made, at: delaying(made, at, between=["AscendCL@aclnnAdd"])),
        made_of(lambda made, at: copying(made, at, kernel=True)),
        steps(lambda made, at: products(made, at, rows=4096, length=500 * US, count=4, name=f"{HALF}8")),
        steps(lambda made, at: products(made, at, operator="aten::bmm", batch=(1,))),
        steps(lambda made, at: products(made, at, count=20)),
    ]
    assert [rules(found_in(tmp_path, events)) for events in harmless] == [[]] * len(harmless)
    assert [rules(found_in(tmp_path, events, WHOLE_A100)) for events in harmless[-3:]] == [[]] * 3


def taking(name, microseconds, *, pieces=1, rest=FAST, **place):
    """Work of a name that takes so long in each step before all else, on a stream of its own if one is named."""

    def plant(made, at):
        each = microseconds * US // pieces
        for piece in range(pieces):
            start = at + 200 * US + piece * each
            made.work(at + 20 * US + piece * 500, start, start + each, name=name, **place)

    return steps(plant, begin=(200 + microseconds) * US, name=rest)


def reducing(size):
    place = {"stream": 20, "Collective_name": "allreduce", "dtype": "Float", "Group_size": 2}
    return place | {"In_msg_nelems": size // 4, "Out_msg_nelems": size // 4, "Process_Group_Name": "0"}


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
TURNING = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
MIB = 1 << 20


def compiling(microseconds):
    """The first of three steps compiles for so long."""
    name = "inductor_compile (dynamo_timed)"
    made = made_of(lambda made, at: made.step(at // STEP, begin=60 * US if at else microseconds * US + 400 * US))
    return [*made, op(name, 100 * US, (100 + microseconds) * US)]


def launching(count, percent):
    """So many kernels in a step, before each of which the device idles for such a part until it is launched."""
    period = (STEP - 100 * US) // count

    def step(made, at):
        made.events.append(step_mark(at // STEP, at, at + STEP))  # of each wait 3 us are latency
        for place in range(count):
            end = at + 100 * US + (place + 1) * period
            start = end - period * (100 - percent) // 100
            made.work(start - 8 * US, start, end, call_us=5, name=FAST)

    return made_of(step)


def renumbered(events, by):
    """The same steps, so many later."""
    for event in events:
        head, _, number = event["name"].partition("#")
        yield event | ({"name": f"{head}#{int(number) + by}"} if head == "ProfilerStep" else {})


@pytest.mark.parametrize(
    ("rule", "below", "above"),
    [
        ("exposed-communication", lambda: taking(NCCL, 900, **reducing(MIB)), lambda: taking(NCCL, 1100, stream=20)),
        ("float32-products", lambda: taking(PLAIN, 450, rest=ALIGNED), lambda: taking(PLAIN, 550, rest=ALIGNED)),
        ("unaligned-products", lambda: taking(f"{HALF}2", 450), lambda: taking(f"{HALF}2", 550)),
        ("layout-conversions", lambda: taking(TURNING, 90), lambda: taking(TURNING, 120)),
        ("fusable-chains", lambda: taking(SUM, 1900, pieces=2), lambda: taking(SUM, 2100, pieces=2)),
        ("fusable-chains", lambda: taking(SUM, 3000, pieces=1), lambda: taking(SUM, 3000, pieces=2)),
        ("recorded-start", lambda: compiling(2900), lambda: compiling(3100)),
        (
            "small-collectives",
            lambda: taking(NCCL, 800, pieces=19, **reducing(1024)),
            lambda: taking(NCCL, 800, pieces=20, **reducing(1024)),
        ),
        (
            "small-collectives",
            lambda: taking(NCCL, 800, pieces=20, **reducing(MIB)),
            lambda: taking(NCCL, 800, pieces=20, **reducing(MIB - 4)),
        ),
        (
            "small-collectives",
            lambda: taking(NCCL, 1100, pieces=20, stream=20),
            lambda: taking(NCCL, 900, pieces=20, stream=20),
        ),
        ("host-bound", lambda: launching(100, 22), lambda: launching(100, 25)),
        ("host-bound", lambda: launching(49, 40), lambda: launching(51, 40)),
    ],
)
def test_rules_report_from_their_threshold_on(rule, below, above, tmp_path):
    """In steps of 10 ms; a rule that speaks of what steps vary by anyway is one that nobody reads."""
    spoken = [rule in rules(found_in(tmp_path, make())) for make in (below, above)]
    assert spoken == [False, True]


@pytest.mark.parametrize(
    ("place", "each"), [(reducing(1024), "1024 B each on average"), ({"stream": 20}, "50 us each on average")]
)
def test_small_collectives_are_detected_by_bytes_or_time(place, each, tmp_path):
    found = found_in(tmp_path, taking(NCCL, 1000, pieces=20, **place))
    (finding,) = [one for one in found if one.rule == "small-collectives"]
    assert finding.lines[0] == each


def test_recorded_start_suggests_a_later_window(tmp_path):
    """At step 10 or later, and after the last step in which the start was seen."""
    for number, wait in ((0, 10), (30, 31)):
        capture = Capture(first=number, last=number + STEPS - 1, reached=number + STEPS)
        (finding,) = found_in(tmp_path, renumbered(compiling(3100), number), capture=capture)
        assert f"torch.profiler.schedule(wait={wait}, warmup=2, active=3, repeat=1)" in finding.code


@pytest.mark.parametrize("told", [{"is_launched": True}, {"framework": "Lightning"}])
def test_advice_for_frameworks_does_not_mention_torch_profiler(tmp_path, told):
    """Nobody calls that one there."""
    capture = replace(WHOLE, circumstances=Circumstances(**told))
    (finding,) = found_in(tmp_path, compiling(3100), capture=capture)
    assert "wait=10 warmup=2" in finding.code
    assert "torch.profiler" not in finding.code


# --- rules that a CPU shows too, on a device ---


def test_float64_costs_kernels_and_not_launches(tmp_path):
    (finding,) = found_in(tmp_path, steps(double_products, name="cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1"))
    assert finding.rule == "float64-products"
    assert 0.5 * 9.94 < finding.gain_ms <= 9.94


@pytest.mark.parametrize("is_unfolded", [False, True])
def test_float64_finding_names_convolutions_without_a_fast_path(tmp_path, is_unfolded):
    def plant(training, at):
        double_products(training, at)
        if is_unfolded:
            inputs = {"Input_type": ["double"], "Input_Dims": [[8, 3, 32, 32]]}
            training.events.append(op("aten::_slow_conv2d_forward", at + 5 * US, at + 15 * US, **inputs))

    (finding,) = found_in(tmp_path, steps(plant, name="cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1"))
    assert any("no fast path" in line for line in finding.lines) == is_unfolded


@pytest.mark.parametrize(("count", "cost"), [(2, "2.21 ms"), (5, "5.52 ms")])
def test_product_costs_only_the_kernels_that_it_launched(tmp_path, count, cost):
    """Of nine that share 9.94 ms."""

    def plant(made, at):
        inputs = {"Input_type": ["double"] * 2, "Input_Dims": [[64, 64]] * 2}
        made.events.append(op("aten::mm", at + 39 * US, at + 40 * US + count * US + 100, **inputs))

    (finding,) = found_in(tmp_path, steps(plant))
    assert finding.rule == "float64-products"
    assert finding.title.endswith(f" in float64 take {cost} of a step.")


def test_a_slow_convolution_on_a_device_is_cudnn_switched_off(tmp_path):
    (finding,) = found_in(tmp_path, steps(unfolding, name="im2col_kernel<float>"))
    assert finding.rule == "slow-convolution"
    assert "cuDNN" in finding.title
    assert "torch.backends.cudnn.enabled = True" in finding.code


def test_wait_for_data_hidden_by_the_device_is_no_finding(tmp_path):
    loader = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"

    def plant(made, at):
        made.events.append(annotation(loader, at + 500 * US, at + 990 * US + 4 * MS))

    assert found_in(tmp_path, steps(plant)) == []


def test_loop_that_prepares_graph_replays_is_host_bound(tmp_path):
    """One launch in 10 ms is not many, but the device idles for 3 of them until it is made."""

    def plant(made, at):
        made.events += [step_mark(at // STEP, at, at + STEP), python_frame("decode.py(7): prepare", at, at + 3 * MS)]
        for number in range(5):
            begin = at + 3 * MS + number * MS
            made.work(at + 3 * MS - 20 * US, begin, begin + MS, call="cudaGraphLaunch", name=FAST)

    (finding,) = found_in(tmp_path, made_of(plant))
    assert (finding.rule, finding.gain_ms) == ("host-bound", pytest.approx(4.98, rel=0.01))
    assert any(line.startswith("decode.py(7): prepare: 2.98 ms") for line in finding.lines)
    assert "graph.replay()" in finding.code


def test_idle_time_without_a_late_launch_is_not_host_bound(tmp_path):
    """The work was launched at once; something that was not recorded keeps it from beginning."""
    assert found_in(tmp_path, made_of(lambda made, at: made.step(at // STEP, waits=False))) == []

    def plant(made, at):
        made.events.append(step_mark(at // STEP, at, at + STEP))
        for number in range(60):
            made.work(at + number * US, at + (number + 1) * 160 * US, at + (number + 1) * 160 * US + 10 * US, name=FAST)

    assert found_in(tmp_path, made_of(plant)) == []


def test_wait_for_batches_suggests_workers_and_pinned_memory(tmp_path):
    loader = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    events = steps(lambda made, at: made.events.append(annotation(loader, at, at + 6 * MS)), begin=6100 * US)
    (finding,) = found_in(tmp_path, events)
    assert finding.rule == "waiting-for-data"
    assert finding.gain_ms == pytest.approx(6.0, rel=0.05)
    assert "num_workers=2" in finding.code
    assert "pin_memory=True" in finding.code


# --- what the evidence and the estimates say ---


def test_wait_names_the_line_that_read_the_value(tmp_path):
    (finding,) = found_in(tmp_path, made_of(reading_values))
    assert any(line.startswith("train.py(12): step: ") for line in finding.lines)
    assert finding.gain_ms == pytest.approx(2.7, abs=0.03), "no more than the wait itself"


def test_wait_costs_at_most_its_own_duration(tmp_path):
    """One wait of 3 ms after which the device goes on at once, and one of 0.1 ms before a pause of 3 ms."""

    def step(training, at):
        reading_values(training, at, gap=60 * US)
        training.call("cudaStreamSynchronize", at + 6 * MS, at + 6 * MS + 100 * US)
        training.work(at + 9 * MS, at + 9 * MS + 50 * US, at + 9 * MS + 500 * US, name=FAST)

    (finding,) = found_in(tmp_path, made_of(step))
    assert (finding.rule, finding.gain_ms) == ("synchronisation", pytest.approx(0.06 + 0.1, rel=0.01))


@pytest.mark.parametrize(
    ("metadata", "expected", "code"),
    [
        (A100, ["float32-products"], "set_float32_matmul_precision"),
        (V100, ["float32-products"], "torch.float16"),
        (P100, [], ""),
        (MI300, [], ""),
        ({}, [], ""),
        ({"deviceProperties": ["?"]}, [], ""),
    ],
)
def test_float32_is_a_finding_only_with_tensor_cores(metadata, expected, code, tmp_path):
    found = found_in(tmp_path, steps(name=PLAIN), metadata)
    assert rules(found) == expected
    assert all(code in finding.code for finding in found)


@pytest.mark.parametrize(
    "name",
    [
        "cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_32x3_nn_align8",
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize128x128x16_g1_tensor16x8x8",
        "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_warpgroupsize1x1x1",
        "volta_fp16_s884gemm_fp16_128x128_ldg8_f2f_nn",
        "volta_h884gemm_256x64_ldg8_nn",
        "turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn",
        "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_nn",
        "nvjet_tst_64x64_64x16_2x1_2cta_v_bz_bias_TNT",
        "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64, 128, 128, 4>>",
        "void cudnn::cnn::conv2d_grouped_direct_kernel<false, true, false, false, 0, 0, int, float, float>",
    ],
)
def test_kernels_on_tensor_cores_are_no_finding(name, tmp_path):
    assert found_in(tmp_path, steps(name=name)) == []


@pytest.mark.parametrize(
    "name",
    [
        "volta_sgemm_64x64_nt",
        "cudnn_infer_volta_scudnn_128x64_relu_medium_nn_v1",
        "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nn_align1>",
        "void cudnn::detail::dgrad_engine<float, 512, 6, 5, 3, 3, 3, false>(int, int, int)",
        "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_warpsize2x2x1_ffma_aligna4_alignc4",
        "void implicit_convolve_sgemm<float, float, 128, 5, 5, 3, 3, 3, 1, true, false, true>(int, int, int)",
    ],
)
def test_float32_kernels_on_plain_cores_are_known_by_name(name, tmp_path):
    assert rules(found_in(tmp_path, steps(name=name), V100)) == ["float32-products"]


@pytest.mark.parametrize(
    ("operator", "said"),
    [("aten::mm", "GEMMs"), ("aten::cudnn_convolution", "Convolutions")],
    ids=["mm", "convolution"],
)
def test_float32_products_have_their_own_noun(operator, said, tmp_path):
    """A convolution computes as a GEMM, by kernels that are called so."""

    def plant(made, at):
        made.events.append(op(operator, at + 30 * US, at + STEP - 20 * US))

    (finding,) = found_in(tmp_path, steps(plant, name="volta_sgemm_64x64_nt"), V100)
    assert finding.title.startswith(f"{said} in float32 take ")


def test_longest_kernel_of_a_chain_remains(tmp_path):
    """Fused, it reads and writes no less; so two kernels of the same length become one of them at best."""
    (finding,) = found_in(tmp_path, taking(SUM, 3000, pieces=2))
    assert finding.rule == "fusable-chains"
    assert (finding.title.split(" take ")[1], finding.gain_ms) == ("3 ms of a step.", pytest.approx(1.5, rel=0.02))


def test_inference_gets_no_advice_about_an_optimizer(tmp_path):
    def updating(made, at):
        many_launches(made, at)
        made.events.append(annotation("Optimizer.step#AdamW.step", at + 9 * MS, at + 9500 * US))

    for make, is_training in ((many_launches, False), (updating, True)):
        (finding,) = (each for each in found_in(tmp_path, made_of(make)) if each.rule == "host-bound")
        assert ("optimizer" in finding.advice) == ("AdamW" in finding.code) == is_training
        assert "reduce-overhead" in finding.code


def test_pauses_in_operators_are_no_preprocessing(tmp_path):
    """As where DistributedDataParallel flattens and cuts up all buffers of a model before each forward pass."""

    def plant(made, at):
        for place in range(60):
            begin = at + 100 * US + place * 100 * US
            made.events.append(op("aten::view", begin, begin + 100 * US))

    (finding,) = found_in(tmp_path, steps(plant, begin=6500 * US, waits=False))
    assert finding.rule == "device-pauses"
    assert "broadcast_buffers=False" in finding.advice
    assert "preprocessing" in found_in(tmp_path, steps(preprocessing, begin=6500 * US, waits=False))[0].advice


def test_time_of_a_start_has_a_name(tmp_path):
    """A context is made outside of any operator: that is why the device waits, and no time that nobody can name."""

    def rules_with(call):
        made = Training()
        made.call(call, 0, 90 * MS)
        made.events.append(op("torch::autograd::AccumulateGrad", 90 * MS, 91 * MS))
        made.work(90 * MS, 91 * MS, 99 * MS)
        trace = read(testing.write_trace(tmp_path / "t.json", made.events, **A100))
        return rules(findings.find(Capture(last=0), trace))

    assert rules_with("cudaFree") == ["recorded-start"]


def test_device_savings_are_no_gain_if_the_host_never_waits(tmp_path):
    """Half of the kernels' time could go, and the step would be as long as before."""
    found = rules(found_in(tmp_path, steps(name=PLAIN, kernels=3, begin=7 * MS, waits=False)))
    assert "float32-products" not in found


def test_allocations_belong_to_the_start_of_a_program(tmp_path):
    """A recording without marks may be just that."""
    events = [event for event in steps(allocations, begin=700 * US) if not event["name"].startswith("ProfilerStep")]
    assert rules(found_in(tmp_path, events)) == []


@pytest.mark.parametrize(("name", "expected"), [("hipFree", ["allocator-churn"]), ("hipMalloc", [])])
def test_memory_released_without_step_marks_is_no_start(tmp_path, name, expected):
    """What is only taken is: it is worth trying, for nobody knows what a step is."""
    planted = steps(lambda made, at: allocations(made, at, name=name), begin=700 * US)
    events = [event for event in planted if not event["name"].startswith("ProfilerStep")]
    found = found_in(tmp_path, events)
    assert rules(found) == expected
    for finding in found:
        assert finding.is_bound
        assert finding.gain_ms == pytest.approx(1.0, rel=0.01), "less what lies before the first work"


def test_memory_released_before_the_program_runs_is_start_up(tmp_path):
    """As cuDNN does while its modules are loaded."""
    planted = steps(lambda made, at: at or allocations(made, -140 * US, name="cudaFree"), begin=700 * US)
    assert found_in(tmp_path, [event for event in planted if not event["name"].startswith("ProfilerStep")]) == []


@pytest.mark.parametrize(("starts", "expected"), [((0, 1, 2), False), ((0,), True)])
def test_memory_released_during_a_start_is_no_churn(tmp_path, starts, expected):
    """As cuDNN does while it tries convolutions, and torch while it captures a graph."""

    def plant(made, at):
        if at // STEP in starts:
            starting(made, at, steps=starts)
            made.call("cudaFree", at + 6200 * US, at + 6450 * US)
        else:
            allocations(made, made.step(at // STEP, begin=700 * US), name="cudaFree")

    assert ("allocator-churn" in rules(found_in(tmp_path, made_of(plant)))) is expected


def test_blocking_copies_are_named_with_line_and_size(tmp_path):
    (finding,) = found_in(tmp_path, made_of(reading_results))
    assert finding.gain_ms == pytest.approx(3.0, rel=0.01)
    assert any("Memcpy DtoH (Device -> Pageable), 38.1 MiB" in line for line in finding.lines)
    assert any(line.startswith("train.py(30): save") for line in finding.lines)


def test_copy_followed_by_an_idle_device_blocks_the_host(tmp_path):
    (finding,) = found_in(tmp_path, made_of(lambda made, at: reading_results(made, at, copied=False)))
    assert finding.rule == "held-by-copies"
    assert "during 2.99 ms of it the device was idle, even without a copy" in finding.lines
    assert "reuse the buffer" in finding.advice


def test_copy_that_waits_for_a_pausing_device_is_not_the_cause(tmp_path):
    """As in SGLang's decoding: a kernel launched before the call does not begin for long, and nothing says why."""

    def plant(made, at):
        reading_results(made, at, copied=False)
        made.work(at + 15 * US, at + 6 * MS - 10 * US, at + 6 * MS - 6 * US, name=FAST)

    (finding,) = found_in(tmp_path, made_of(plant))
    assert finding.rule == "shared-device"
    assert finding.title.startswith("Launched work waits for 2.98 ms of a step on an idle device")


def test_copy_behind_small_queued_work_is_not_the_cause(tmp_path):
    """The device works off what was launched: between two kernels lie some microseconds, or a copy of its own."""

    def plant(made, at):
        reading_results(made, at, copied=False)
        for place in range(150):
            begin = at + 3 * MS + place * 20 * US
            copies = {"category": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)"} if place % 2 else {}
            made.work(at + 15 * US, begin, begin + 15 * US, **({"name": FAST} | copies))

    assert "held-by-copies" not in rules(found_in(tmp_path, made_of(plant)))


@pytest.mark.parametrize(("size", "is_said"), [(20_000_000, True), (-1, False)])
def test_copies_with_known_sizes_have_volume_and_speed(size, is_said, tmp_path):
    """20,000,000 bytes in 2 ms."""
    (finding,) = found_in(tmp_path, steps(lambda made, at: pageable_copies(made, at, size=size), begin=2100 * US))
    assert finding.rule == "blocking-copies"
    assert ("19.1 MiB in a step at 10 GB/s" in finding.lines) == is_said
    assert any("GB/s" in line for line in finding.lines) == is_said


def test_gradients_of_attention_are_included(tmp_path):
    """Each product has two, or one where a factor needs none, as here at both ends; the time is that of all."""
    kept = iter([slice(1, 5), slice(5), slice(4)])

    def plant(made, at):
        names = ("aten::bmm", "aten::bmm", "aten::_softmax_backward_data", "aten::bmm", "aten::bmm")
        for place, name in enumerate(names[next(kept)]):
            begin = at + 40 * US + place * US
            made.events.append(op(name, begin - 200, begin + 700))

    (finding,) = found_in(tmp_path, steps(plant))
    assert finding.rule == "written-out-attention"
    assert finding.gain_ms == pytest.approx((4 + 5 + 4) / 3 / 9 * 9.94, rel=0.01)


@pytest.mark.parametrize(("after", "is_found"), [("aten::tanh_backward", False), ("aten::mul", True)])
def test_gradients_of_additive_attention_are_excluded(tmp_path, after, is_found):
    """What the scores were made of comes first in the forward pass, and last in the backward pass."""

    def plant(made, at):
        products = ("aten::bmm", "aten::bmm")
        for place, name in enumerate((*products, "aten::_softmax_backward_data", *products, after)):
            begin = at + 40 * US + place * US
            made.events.append(op(name, begin - 200, begin + 700))

    assert ("written-out-attention" in rules(found_in(tmp_path, steps(plant)))) == is_found


@pytest.mark.parametrize(
    ("planted", "is_found"),
    [
        ({"first": "aten::tanh"}, False),
        ({"then": "aten::leaky_relu"}, False),
        ({"shape": [8, 1, 128]}, False),
        ({"shape": [8, 128]}, False),
        ({"first": "aten::relu"}, True),
        ({"then": "aten::masked_fill"}, True),
        ({"shape": [8, 4, 128, 128]}, True),
    ],
    ids=["additive", "of a graph", "one query", "one squeezed query", "of activations", "masked", "of a matrix"],
)
def test_additive_and_single_query_attention_are_excluded(tmp_path, planted, is_found):
    found = found_in(tmp_path, steps(lambda made, at: attention(made, at, **planted)))
    assert (rules(found) == ["written-out-attention"]) == is_found


def test_a_product_between_is_no_attention(tmp_path):
    def plant(made, at):
        attention(made, at)
        made.events.append(op("aten::addmm", at + 41 * US, at + 42 * US))

    assert found_in(tmp_path, steps(plant)) == []


@pytest.mark.parametrize("rows", [64, 1])
def test_unaligned_sizes_are_named_with_aligned_sizes(tmp_path, rows):
    """A single row is a vector, which nobody pads."""
    inputs = {"Input_Dims": [[rows, 768], [768, 30522]], "Input_type": ["c10::Half", "c10::Half"]}
    events = steps(
        lambda made, at: made.events.append(op("aten::mm", at + 30 * US, at + STEP - 20 * US, **inputs)),
        name=f"{HALF}2",
    )
    (finding,) = found_in(tmp_path, events)
    assert finding.rule == "unaligned-products"
    expected = f"aten::mm {rows} x 768 and 768 x 30522, pad 30522 to 30528: "
    assert any(expected in line for line in finding.lines)


def test_a_bias_and_numbers_are_no_sizes_of_a_product(tmp_path):
    inputs = {"Input_Dims": [[999], [64, 768], [768, 30522], [], []], "Input_type": ["c10::Half"] * 3 + ["Scalar"] * 2}
    events = steps(
        lambda made, at: made.events.append(op("aten::addmm", at + 30 * US, at + STEP - 20 * US, **inputs)),
        name=f"{HALF}2",
    )
    (finding,) = found_in(tmp_path, events)
    assert any("aten::addmm 64 x 768 and 768 x 30522, pad 30522 to 30528: " in line for line in finding.lines)


def test_products_of_written_out_attention_need_no_padding(tmp_path):
    """The kernel that does attention as a whole takes any length: what is unaligned beside it is named alone."""
    found = found_in(tmp_path, steps(attention, name=f"{HALF}2"))
    assert rules(found) == ["written-out-attention", "unaligned-products"]
    assert sum(finding.gain_ms for finding in found) == pytest.approx(9.94, rel=0.01)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align1", ["unaligned-products"]),
        ("cutlass_80_tensorop_s1688gemm_128x64_32x6_nt_align4", []),
        ("cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_32x32_128x2_tn_align8", []),
        ("cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128_64x3_tn_align4", ["unaligned-products"]),
        ("cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1", []),
    ],
)
def test_alignment_depends_on_the_precision(tmp_path, name, expected):
    assert rules(found_in(tmp_path, steps(name=name))) == expected


def test_first_compilation_is_a_start(tmp_path):
    found = found_in(tmp_path, made_of(lambda made, at: starting(made, at, how="compile")))
    (finding,) = found
    assert finding.rule == "recorded-start"
    assert 'schedule="wait=10 warmup=2 active=3 repeat=1"' in finding.code
    again = found_in(tmp_path, made_of(lambda made, at: starting(made, at, how="compile", steps=(1, 2))))
    assert "recompilation" in rules(again)
    assert "recorded-start" not in rules(again)


def test_device_that_pauses_during_a_start_is_no_finding(tmp_path):
    """As while vLLM captures its graphs."""
    assert rules(found_in(tmp_path, made_of(lambda made, at: starting(made, at, how="compile", steps=(1,))))) == [
        "recorded-start"
    ]


def test_communication_with_unknown_gain_comes_last(tmp_path):
    """The host is never seen waiting for the device: perhaps it is what is slow."""
    events = steps(gathering, kernels=3, begin=5 * MS, waits=False)
    (finding,) = found_in(tmp_path, events)
    assert finding.rule == "exposed-communication"
    assert finding.gain_ms is finding.gain_percent is None


def test_nested_waits_count_once(tmp_path):
    """As a library's call and the driver's in it."""
    made = Training()
    for number in range(STEPS):
        reading_values(made, number * STEP)
        made.call("cuStreamSynchronize", number * STEP + 320 * US, number * STEP + 3 * MS)
    (found,) = found_in(tmp_path, made.events)
    assert found.rule == "synchronisation"
    assert found.lines[0].startswith("1 waits in a step")


@pytest.mark.parametrize(
    ("options", "node", "advised"),
    [
        ({"operation": "all_to_all"}, None, "Distribute experts or embedding tables"),
        ({"operation": "_allgather_base"}, None, "With sharded parameters"),
        ({}, (0, 50), "Overlap communication with the backward pass"),
        ({}, (100, 150), "Split layers only over ranks with a fast link"),
        ({}, None, "Start each collective early"),
    ],
)
def test_advice_about_communication_depends_on_its_kind(tmp_path, options, node, advised):
    """Gradients are sent from the nodes of autograd; without any, no advice mentions a backward pass."""

    def plant(training, at):
        gathering(training, at, **options)
        if node is not None:
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            training.events.append(op(name, at + node[0] * US, at + node[1] * US))

    (finding,) = found_in(tmp_path, steps(plant, begin=2200 * US))
    assert finding.rule == "exposed-communication"
    assert finding.advice.startswith(advised)
    assert finding.advice.endswith("the others wait in the collective.")


def test_recording_itself_is_not_the_host_being_slow(tmp_path):
    slowed = replace(WHOLE, cost=Cost(idle_step_ms=2.0, recorded_step_ms=10.0))
    assert rules(found_in(tmp_path, made_of(many_launches), capture=slowed)) == ["profiler-overhead"]


@pytest.mark.slow
def test_gain_is_at_most_the_time_of_its_evidence(tmp_path):
    for make, metadata in PLANTED.values():
        trace = read(testing.write_trace(tmp_path / "t.json", make(), **metadata))
        tables = Evidence(WHOLE, trace)
        for finding in find(WHOLE, trace):
            # of these two the whole is said, and how much of it is gained is not
            if finding.rule not in ("unaligned-products", "fusable-chains"):
                said = finding.gain_ms or 0
                assert said <= max(tables.host_limit_ms, tables.device_limit_ms) + 1e-6


def test_other_threads_and_devices_of_odd_names_are_no_failure(tmp_path):
    odd = slice_event("privateuse1_runtime", "aclrtSynchronizeStream", 0, 5 * MS, pid="NPU", tid="x")
    assert found_in(tmp_path, [*steps(), odd, op("Scatter", 0, MS, tid=PID + 1)]) == []


def test_a_call_waits_for_the_device_that_works_all_the_while(tmp_path):
    """One that the device works half through is itself what takes the time."""
    made = Training()
    made.events.append(step_mark(0, 0, STEP))
    made.work(10 * US, 100 * US, 4 * MS)
    made.call("cudaMalloc", MS, 2 * MS)
    made.call("cudaMalloc", 3500 * US, 4500 * US)
    seen = Evidence(Capture(first=0, last=0, reached=1), read(testing.write_trace(tmp_path / "t.json", made.events)))
    assert seen.device_limit_ms == pytest.approx(1.0)


# --- a doubt has consequences ---


def on_another_clock(events):
    """The device counts its time from another moment."""
    for event in events:
        is_work = event.get("cat") in ("kernel", "gpu_memcpy")
        yield event | ({"ts": event["ts"] + 7.2e9} if is_work else {})


def without_kernels(events):
    """All work of the device was lost."""
    return [event for event in events if event.get("cat") not in ("kernel", "gpu_memcpy")]


def with_lost_kernels(events):
    """One record in ten was lost."""
    work = [event for event in events if event.get("cat") in ("kernel", "gpu_memcpy")]
    lost = {id(event) for event in work[:: min(10, max(len(work) // (2 * STEPS), 1))]}
    return [event for event in events if id(event) not in lost]


def unfolding_on_a_device():
    return steps(unfolding, name="im2col_kernel<float>")


def doubles_on_a_device():
    return steps(double_products, name="cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1")


def updating_on_a_device():
    def plant(made, at):
        made.events.append(annotation("Optimizer.step#Adam.step", at + 30 * US, at + STEP - 20 * US))
        for place in range(80):
            begin = at + 40 * US + place * US
            made.events.append(op("aten::add_", begin - 200, begin + 700))

    return steps(plant)


OTHERS = {"unfolding": unfolding_on_a_device, "doubles": doubles_on_a_device, "updating": updating_on_a_device}
OF_THE_HOST = {"allocator-churn"}
"""Rules that need no time of the device."""


@pytest.mark.parametrize("doubt", [on_another_clock, without_kernels, with_lost_kernels])
@pytest.mark.parametrize("name", [*PLANTED, *OTHERS])
def test_no_finding_uses_times_of_the_device_that_are_in_doubt(tmp_path, name, doubt):
    make, metadata = PLANTED.get(name) or (OTHERS[name], WHOLE_A100)
    trace = read(testing.write_trace(tmp_path / "t.json", list(doubt(make())), **metadata))
    if name != "only-copies" or doubt is not with_lost_kernels:  # a lost copy leaves no launch without a kernel
        assert not Evidence(WHOLE, trace).is_device_traced
        assert set(rules(find(WHOLE, trace))) <= OF_THE_HOST


def test_no_finding_uses_a_kernel_that_overflowed(tmp_path):
    """On plain cores, for the whole step by its record; it ends where the next one begins."""

    def plant(made, at):
        made.work(at + 30 * US, at + 50 * US, at + 2 * STEP, name=PLAIN)

    trace = read(testing.write_trace(tmp_path / "t.json", steps(plant, begin=2 * MS, name=ALIGNED), **A100))
    assert "overflowed-kernels" in set(Evidence(WHOLE, trace).tables.checks["name"])
    assert rules(find(WHOLE, trace)) == []


def test_allocation_finding_mentions_unknown_device_time(tmp_path):
    events = without_kernels(steps(allocations, begin=700 * US))
    (finding,) = found_in(tmp_path, events)
    assert finding.estimate.startswith("The time of these calls: the times of device work are unknown.")


# --- one-time work belongs to one finding ---


@pytest.mark.parametrize("name", PLANTED)
def test_one_time_work_is_used_by_no_other_finding(tmp_path, name):
    """A graph is captured in all of the steps."""
    make, metadata = PLANTED[name]
    capturing = op("CUDAGraphNode.record (dynamo_timed)", -US, STEPS * STEP + US)
    assert set(rules(found_in(tmp_path, [*make(), capturing], metadata))) <= {"recorded-start", "lowered-clock"}


# --- what is on already, and what bounds a product ---

TENSOR = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4"
TF32_CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw"


@pytest.mark.parametrize(
    ("operator", "other", "is_advised"),
    [
        ("aten::mm", TENSOR, False),
        ("aten::mm", TF32_CONVOLUTION, True),
        ("aten::cudnn_convolution", TF32_CONVOLUTION, False),
        ("aten::cudnn_convolution", TENSOR, True),
        ("aten::mm", ALIGNED, True),
    ],
    ids=["GEMMs are on", "only convolutions are on", "convolutions are on", "only GEMMs are on", "none is on"],
)
def test_tf32_is_not_advised_if_the_trace_uses_tf32(tmp_path, operator, other, is_advised):
    """A library may choose plain cores for some sizes all the same."""

    def plant(made, at):
        made.events.append(op(operator, at + 30 * US, at + 45 * US))
        made.work(at + 32 * US, at + 7 * MS, at + 9 * MS, name=PLAIN, stream=9)
        made.work(at + 50 * US, at + 6 * MS, at + 7 * MS, name=other, stream=9)

    found = rules(found_in(tmp_path, steps(plant, name=ALIGNED)))
    assert ("float32-products" in found) == is_advised


TF32_KERNELS = (
    "sm80_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x16_stage4_warpsize2x2x1_tensor16x8x8_kernel",
    "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_256x128_16x3_nn_align4>(Params)",
    "void cutlass::device_kernel<cutlass3x_sm100_tensorop_s256x128x8gemm_tf32_tf32_f32_f32_f32_tnn_align4>",
    "nvjet_sm120_sss_tf32_mma_32x64x32_splitK_TNNN",
    "_matmul_kernel_TF32",
)
OTHER_TENSOR_CORES = (
    "cutlass_75_tensorop_s1688gemm_f16_256x128_32x2_nn_align8",
    "ampere_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn",
    "cutlass_80_tensorop_bf16_s16816gemm_bf16_128x64_nn_align8",
    "nvjet_tst_128x256_64x4_2x1_v_bz_TNT",
)


@pytest.mark.parametrize("name", [*TF32_KERNELS, *OTHER_TENSOR_CORES])
def test_tf32_kernels_of_all_libraries_show_that_it_is_on(tmp_path, name):
    """Half precision on tensor cores does not show it."""

    def plant(made, at):
        made.events += [op("aten::mm", at + 30 * US, at + 45 * US), op("aten::mm", at + 47 * US, at + 60 * US)]
        made.work(at + 32 * US, at + 7 * MS, at + 9 * MS, name=PLAIN, stream=9)
        made.work(at + 50 * US, at + 6 * MS, at + 7 * MS, name=name, stream=9)

    assert ("float32-products" in rules(found_in(tmp_path, steps(plant, name=ALIGNED)))) == (name in OTHER_TENSOR_CORES)


@pytest.mark.parametrize(("allowed", "is_advised"), [("True", False), ("False", True)])
def test_tf32_is_not_advised_if_an_operator_allows_tf32(tmp_path, allowed, is_advised):
    inputs = ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", allowed]

    def plant(made, at):
        made.events.append(op("aten::cudnn_convolution", at + 30 * US, at + STEP - 20 * US, Concrete_Inputs=inputs))

    assert ("float32-products" in rules(found_in(tmp_path, steps(plant, name=PLAIN)))) == is_advised


def test_products_bound_by_weights_are_no_matter_of_tf32(tmp_path):
    """A row of float32 times a matrix, on plain cores, at 70% of the bandwidth of memory."""

    def plant(made, at):
        inputs = {"Input_type": ["float"] * 2, "Input_Dims": [[1, 4096], [4096, 4096]]}
        for place in range(40):
            launched, began = at + (200 + 31 * place) * US, at + 3 * MS + place * 60 * US
            made.events.append(op("aten::mm", launched, launched + 30 * US, **inputs))
            made.work(launched + 10 * US, began, began + 60 * US, name=PLAIN, stream=9)

    assert rules(found_in(tmp_path, steps(plant, name=ALIGNED), WHOLE_A100)) == ["weight-bound-products"]


GEMVS = (
    "gemvNSP_kernel<float, 1>",
    "void gemv2T_kernel_val<int, int, float>",
    "void gemvx::kernel<int, int, __nv_bfloat16>",
    "void rocblas_gemvn_kernel<256, 4, float>",
    "void (anonymous namespace)::mul_mat_vec_q<8, 1>",
    "_matvec_kernel",
)
VECTORS = "cublasGemvTensorStridedBatched<float const>"
NO_GEMVS = (
    f"void dot_kernel<float, 128, 0, cublasDotParams<{VECTORS}, {VECTORS}> >",
    f"void reduce_1Block_kernel<float, 128, 7, {VECTORS}, {VECTORS} >",
    f"void gemmk1_kernel<float, 256, 5, false, false, false, false, {VECTORS}>",
)
"""Products of two vectors."""


@pytest.mark.parametrize("name", [*GEMVS, *NO_GEMVS])
def test_gemvs_without_shapes_are_detected_by_name(tmp_path, name):
    def plant(made, at):
        made.work(at + 50 * US, at + 6 * MS, at + 8 * MS, name=name, stream=9)

    titles = [finding.title for finding in found_in(tmp_path, steps(plant, name=ALIGNED))]
    assert titles == ["Matrix products limited by reading weights take 2 ms of a step."] * (name in GEMVS)


PRODUCTS = {
    "one row": ({}, True),
    "eight rows": ({"dims": [[8, 4096], [4096, 4096]]}, True),
    "a layer with a bias": ({"operator": "aten::addmm", "dims": [[4096], [1, 4096], [4096, 4096]]}, True),
    "a column": ({"dims": [[4096, 4096], [4096, 1]]}, True),
    "an operator for vectors": ({"operator": "aten::mv", "dims": [[4096, 4096], [4096]]}, True),
    "in a backward pass": ({"node": True}, False),
    "inputs times a narrow weight": ({"dims": [[8192, 4096], [4096, 16]], "length": 80 * US, "count": 30}, False),
    "a narrow matrix times inputs": (
        {"dims": [[16, 8192], [8192, 4096]], "length": 80 * US, "count": 30, "node": True},
        False,
    ),
    "two vectors": ({"dims": [[8192, 1], [1, 4096]], "length": 60 * US, "count": 30}, False),
    "scores of an attention": ({"operator": "aten::bmm", "dims": [[32, 1, 128], [32, 128, 4096]]}, False),
}
"""Products at 54% of the bandwidth of memory or more, and whether they mostly read weights."""


@pytest.mark.parametrize("case", PRODUCTS)
def test_weight_bound_products_read_mostly_weights(tmp_path, case):
    how, is_found = PRODUCTS[case]

    def plant(made, at, *, dims=((1, 4096), (4096, 4096)), operator="aten::mm", length=40 * US, count=60, node=False):
        inputs = {"Input_type": ["c10::Half"] * len(dims), "Input_Dims": [list(shape) for shape in dims]}
        for place in range(count):
            launched, began = at + (200 + 31 * place) * US, at + 3 * MS + place * length
            around = [op("autograd::engine::evaluate_function: MmBackward0", launched, launched + 30 * US)] * node
            made.events += [*around, op(operator, launched + US, launched + 29 * US, **inputs)]
            made.work(launched + 10 * US, began, began + length, name="gemvNSP_kernel", stream=9)

    found = rules(found_in(tmp_path, steps(lambda made, at: plant(made, at, **how), name=ALIGNED), WHOLE_A100))
    assert found == ["weight-bound-products"] * is_found


def test_weight_bound_products_name_shape_and_rate(tmp_path):
    (finding,) = found_in(tmp_path, steps(products), WHOLE_A100)
    shape = "aten::mm 1 x 4096 and 4096 x 4096: 60 times, 2.4 ms, 54% of the limit"
    assert finding.lines == ("60 kernels in a step read a whole matrix for few rows", shape)


# --- another process, and copies alone ---


def test_late_kernels_are_named_with_their_delay(tmp_path):
    (finding,) = found_in(tmp_path, made_of(delaying))
    assert finding.title.startswith("Launched work waits for 5.")
    assert "another process" in finding.title
    assert finding.lines[0].startswith("3 kernels and copies in a step begin late, the latest 1.91 ms after its launch")


def test_late_kernels_of_a_sampled_recording_are_no_finding(tmp_path):
    """One in a hundred operators was kept, so the device may have worked."""
    events = made_of(delaying)
    sample = [op("aten::mm", 100 * place, 100 * place + 50, external=1 + 100 * place) for place in range(20)]
    assert rules(found_in(tmp_path, [*events, *sample])) == []
    whole = [op("aten::mm", 100 * place, 100 * place + 50, external=1 + place) for place in range(20)]
    assert rules(found_in(tmp_path, [*events, *whole])) == ["shared-device"]


@pytest.mark.parametrize(
    ("kind", "metadata", "rate"),
    [
        ("Memcpy HtoD (Pinned -> Device)", WHOLE_A100, "22.3 GB/s, 70% of its bus"),
        ("Memcpy DtoH (Device -> Pinned)", WHOLE_A100, "22.3 GB/s, 70% of its bus"),
        ("Memcpy DtoD (Device -> Device)", WHOLE_A100, "22.3 GB/s, 2.9% of its memory"),
        ("Memcpy HtoD (Pinned -> Device)", {}, "22.3 GB/s"),
        ("Memcpy HtoD (Pageable -> Device)", WHOLE_A100, "22.3 GB/s, 70% of its bus"),
        ("CopyHostToDevice", WHOLE_A100, "22.3 GB/s, 70% of its bus"),
        ("CopyDeviceToDevice", WHOLE_A100, "22.3 GB/s, 2.9% of its memory"),
        ("Memcpy PtoP (Device -> Device)", WHOLE_A100, "22.3 GB/s"),
    ],
)
def test_copies_without_kernels_are_compared_with_the_bus(tmp_path, kind, metadata, rate):
    (finding,) = found_in(tmp_path, made_of(lambda made, at: copying(made, at, kind=kind)), metadata)
    assert finding.title == f"The device only copies: 191 MiB in a step at {rate}."


def test_copies_beside_lost_kernels_are_not_only_copies(tmp_path):
    """The kernels were lost, so their times are unknown."""

    def step(made, at):
        copying(made, at)
        made.call("cudaLaunchKernel", at + 5 * US, at + 8 * US)

    assert "only-copies" not in rules(found_in(tmp_path, made_of(step), WHOLE_A100))


# --- one kernel that is prepared for long ---


def test_prepared_kernel_replaces_other_advice(tmp_path):
    (finding,) = found_in(tmp_path, made_of(preparing))
    assert finding.title == "The device idles for 4.19 ms of a step before launches of own_kernel."
    assert finding.lines[0] == "6 launches of this kernel in a step follow idle time of 0.698 ms each"
    assert any(line.startswith("block: 4.") for line in finding.lines)
    assert "compile" not in finding.code


def test_long_pauses_before_one_kernel_name_the_kernel(tmp_path):
    """Each is longer than what slow launches make."""

    made = Training()
    for number in range(STEPS):
        at = number * 3 * STEP
        made.events.append(step_mark(number, at, at + 3 * STEP))
        inner = Training()
        inner._correlation = made._correlation
        preparing(inner, at, gap=6 * MS, blocks=3)
        made._correlation = inner._correlation
        made.events += [event for event in inner.events if "ProfilerStep" not in event["name"]]
    found = found_in(tmp_path, made.events)
    assert rules(found) == ["launch-preparation"]
    assert found[0].title.endswith("before launches of own_kernel.")


# --- pauses, and the recorder in them ---


@pytest.mark.parametrize("has_stacks", [False, True])
def test_pauses_mention_the_cost_of_recorded_stacks(tmp_path, has_stacks):
    def plant(made, at):
        if has_stacks:
            preprocessing(made, at)
        else:
            made.events.append(annotation("augment", at + 100 * US, at + 6200 * US))

    (finding,) = found_in(tmp_path, steps(plant, begin=6500 * US, waits=False))
    assert finding.rule == "device-pauses"
    assert any("recorded stacks" in line for line in finding.lines) == has_stacks


# --- one basis, and names ---


def waiting_shortly(made, at, *, wait=400 * US, work="aten::cat"):
    """Five short kernels, each followed by a wait that outlasts it and by work of the host."""
    made.events.append(step_mark(at // STEP, at, at + STEP))
    for place in range(5):
        begin = at + place * 2 * MS
        made.work(begin + 5 * US, begin + 17 * US, begin + 77 * US, name=FAST, call_us=6)
        made.call("cudaStreamSynchronize", begin + 30 * US, begin + 30 * US + wait)
        made.events.append(op(work, begin + 40 * US + wait, begin + 1900 * US))


@pytest.mark.parametrize("wait", [400 * US, 900 * US])
def test_title_evidence_and_gain_of_waits_have_one_basis(tmp_path, wait):
    found = found_in(tmp_path, made_of(lambda made, at: waiting_shortly(made, at, wait=wait)))
    (finding,) = [each for each in found if each.rule == "synchronisation"]
    spent = words.ms(finding.gain_ms)
    assert finding.gain_ms == pytest.approx(14 / 3 * wait / MS), "after the last one nothing is launched"
    assert finding.title == f"The device idles for {spent} of a step after the host has waited for it."
    assert finding.lines[0] == f"5 waits in a step, {words.ms(5 * wait / MS)} of host time together"
    assert finding.lines[-1] == f"cudaStreamSynchronize: {spent}"


def test_gain_names_the_unprofiled_step(tmp_path):
    cost = Cost(idle_step_ms=8.0, recorded_step_ms=10.0)
    (finding,) = found_in(tmp_path, made_of(many_launches), capture=replace(WHOLE, cost=cost))
    assert finding.title.startswith("The device idles for 8 ms of a step")
    assert finding.gain_ms == pytest.approx(6, rel=0.02)
    said = "Title and gain are for an unprofiled step of 8 ms; the evidence is for profiled steps of 10 ms."
    assert finding.basis == said
    assert estimate(vars(finding)).endswith(f". {said}")
    (finding,) = found_in(tmp_path, made_of(many_launches))
    assert finding.basis == ""


@pytest.mark.parametrize(
    ("around", "label"),
    [
        (["vllm::all_reduce"], "all_reduce"),
        (["sgl_kernel::reduce_scatter_tensor", "mine::launch"], "reduce_scatter"),
        (["mylib::exchange_tokens"], "mylib::exchange_tokens"),
        ([], "ncclDevKernel_Generic_2"),
    ],
)
def test_collectives_are_named_by_the_operator_around_the_launch(tmp_path, around, label):
    def plant(made, at):
        made.events += [op(name, at + (5 + n) * US, at + (45 - n) * US) for n, name in enumerate(around)]
        made.work(at + 20 * US, at + 200 * US, at + 2200 * US, name="ncclDevKernel_Generic_2", stream=20)

    (finding,) = found_in(tmp_path, steps(plant, begin=2200 * US))
    assert finding.rule == "exposed-communication"
    assert finding.lines[-1] == f"{label}: 2 ms"


def test_evidence_of_exposed_collectives_sums_to_the_title(tmp_path):
    """Evidence sums to the title."""
    (finding,) = found_in(tmp_path, steps(gathering, begin=2200 * US))
    assert finding.title == "Communication without concurrent computation takes 2 ms of a step."
    assert finding.lines[-1] == "all_reduce Float: 2 ms"


TRAINS = ("training", "backward", "gradient", "optimizer", "loss")


@pytest.mark.parametrize("name", [*PLANTED, *OTHERS])
def test_texts_for_other_traces_mention_no_training(tmp_path, name):
    make, metadata = PLANTED.get(name) or (OTHERS[name], WHOLE_A100)
    is_optimizer = name == "updating"
    for properties in (metadata, V100):
        for finding in found_in(tmp_path, make(), properties):
            text = " ".join((finding.title, *finding.lines, finding.advice, finding.code, finding.estimate)).lower()
            said = [word for word in TRAINS if word in text.replace("grad_enabled", "")]
            assert not said or is_optimizer, (finding.rule, said)


# --- a full queue ---


def blocking(made, at, *, record=True):
    """Launches that wait for room in the queue while the device works, each in a record of the driver."""
    made.events.append(step_mark(at // STEP, at, at + STEP))
    for place in range(10):
        begin = at + place * MS
        made.work(begin + 10 * US, begin + 900 * US, begin + 1890 * US, name=FAST, call_us=880)
        if record:
            made.events.append(
                slice_event("overhead", "Command Buffer Full", begin + 20 * US, begin + 880 * US, pid=-1)
            )


@pytest.mark.parametrize("record", [False, True])
def test_full_queue_is_no_overhead_and_no_finding(tmp_path, record):
    events = made_of(lambda made, at: blocking(made, at, record=record))
    trace = read(testing.write_trace(tmp_path / "t.json", events, **A100))
    assert rules(find(WHOLE, trace)) == []
    assert not Evidence(WHOLE, trace).tables.checks.height
    assert Evidence(WHOLE, trace).device_limit_ms > 7


def test_steps_without_length_have_no_finding(tmp_path):
    events = made_of(copying)
    for event in events:
        if event["name"].startswith("ProfilerStep"):
            event["dur"] = 0.0
    assert found_in(tmp_path, events) == []
