"""The rules about devices: planted in synthetic traces of a training that is otherwise well, beside silent twins."""

import difflib
import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

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
HALF = "cutlass_80_tensorop_f16_s16816gemm_f16_256x128_32x3_nn_align"
ALIGNED = f"{HALF}8"
DOUBLE = "cutlass_80_tensorop_d884gemm_64x64_16x3_nn_align1"
SUM = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>"
REDUCE = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float>>"
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
TURNING = "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>"
CONVOLUTION = "aten::cudnn_convolution"
NODE = "autograd::engine::evaluate_function: AddmmBackward0"
LOADER = "enumerate(DataLoader)#_{}DataLoaderIter.__next__"
MIB = 1 << 20


class Case(NamedTuple):
    """A trace and what is known of its device and window."""

    events: list
    metadata: dict = A100
    capture: Capture = WHOLE


class Training:
    """Steps whose kernels follow each other without a gap; the host launches ahead until the queue is full."""

    def __init__(self):
        self.events = []
        self._correlation = 0

    def work(self, launched, start, end, *, call="cudaLaunchKernel", call_us=10, **options):
        """One piece of work with its launch."""
        self._correlation += 1
        self.events.append(launch(self._correlation, launched, launched + call_us * US, name=call))
        self.events.append(kernel(self._correlation, start, end, **options))

    def call(self, name, start, end):
        """A call into the runtime that launches nothing."""
        self._correlation += 1
        self.events.append(launch(self._correlation, start, end, name=name))

    def op(self, name, start, end, **arguments):
        self.events.append(op(name, start, end, **arguments))

    def mark(self, at):
        self.events.append(step_mark(at // STEP, at, at + STEP))

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


def steps(plant=None, *, kernels=9, name=FAST, begin=60 * US, waits=True, **how):
    """A training, and what is planted in each of its steps."""
    made = Training()
    for number in range(STEPS):
        at = made.step(number, kernels=kernels, name=name, begin=begin, waits=waits)
        if plant:
            plant(made, at, **how)
    return made.events


def made_of(step, **how):
    made = Training()
    for number in range(STEPS):
        step(made, number * STEP, **how)
    return made.events


# --- what is planted in a step ---


def pageable_copies(training, at, *, source="Pageable", size=20_000_000, stream=7):
    """A batch copied from memory that is not pinned, before anything computes."""
    name = f"Memcpy HtoD ({source} -> Device)"
    place = {"category": "gpu_memcpy", "name": name, "bytes": size, "stream": stream}
    start = at + 10 * US if stream == 7 else at + 3 * MS
    training.work(at, start, start + 2 * MS, call="cudaMemcpyAsync", **place)


def many_launches(training, at, *, ahead=False, updates=False):
    """A hundred kernels of 10 us, launched every 90 us."""
    training.mark(at)
    for place in range(100):
        launched = at + place * (10 if ahead else 90) * US
        start = max(at + 20 * US + place * (90 if ahead else 0) * US, launched + 15 * US)
        training.work(launched, start, start + (88 if ahead else 10) * US, call_us=5, name=FAST)
    if updates:
        training.events.append(annotation("Optimizer.step#AdamW.step", at + 9 * MS, at + 9500 * US))


def replayable(made, at, *, wait=None, event=False, other=None):
    """The hundred kernels with something that a CUDA graph may not contain: a wait for a value, or other kernels."""
    many_launches(made, at)
    if wait:
        made.op("aten::item", at + wait, at + wait + 40 * US)
        made.call("cudaStreamSynchronize", at + wait + 5 * US, at + wait + 35 * US)
    if event:  # DistributedDataParallel times its steps so
        made.call("cudaEventSynchronize", at + 4040 * US, at + 4050 * US)
    if other and at < STEP * 2:
        name = f"a kernel for {at // STEP}" if other == "name" else FAST
        made.work(at + 9500 * US, at + 9600 * US, at + 9610 * US, call_us=5, name=name)


def launching(count, percent):
    """So many kernels in a step, before each of which the device idles for such a part until it is launched."""
    period = (STEP - 100 * US) // count

    def step(made, at):
        made.mark(at)  # of each wait 3 us are latency
        for place in range(count):
            end = at + 100 * US + (place + 1) * period
            start = end - period * (100 - percent) // 100
            made.work(start - 8 * US, start, end, call_us=5, name=FAST)

    return made_of(step)


def launched_early(made, at):
    """Work that was launched at once begins late; no record says why."""
    made.mark(at)
    for number in range(60):
        made.work(at + number * US, at + (number + 1) * 160 * US, at + (number + 1) * 160 * US + 10 * US, name=FAST)


def replaying(made, at):
    """One launch in 10 ms is not many, but the device idles for 3 of them until it is made."""
    made.mark(at)
    made.events.append(python_frame("decode.py(7): prepare", at, at + 3 * MS))
    for number in range(5):
        begin = at + 3 * MS + number * MS
        made.work(at + 3 * MS - 20 * US, begin, begin + MS, call="cudaGraphLaunch", name=FAST)


def reading_values(training, at, *, gap=3 * MS, nested=False, again=False):
    """``loss.item()`` in the middle of a step, and the host launches again only after a while."""
    training.mark(at)
    half = 3 * MS
    training.events.append(python_frame("train.py(12): step", at, at + STEP - 1))
    training.op("aten::item", at + 300 * US, at + half + 300 * US)
    training.work(at + 50 * US, at + 100 * US, at + half, name=FAST)
    training.call("cudaStreamSynchronize", at + 310 * US, at + half + 20 * US)
    training.work(at + half + gap - 20 * US, at + half + gap, at + half + gap + half, name=FAST)
    if nested:  # as a library's call and the driver's in it
        training.call("cuStreamSynchronize", at + 320 * US, at + 3 * MS)
    if again:
        training.call("cudaStreamSynchronize", at + 6 * MS, at + 6 * MS + 100 * US)
        training.work(at + 9 * MS, at + 9 * MS + 50 * US, at + 9 * MS + 500 * US, name=FAST)


def waiting_shortly(made, at, *, wait=400 * US):
    """Five short kernels, each followed by a wait that outlasts it and by work of the host."""
    made.mark(at)
    for place in range(5):
        begin = at + place * 2 * MS
        made.work(begin + 5 * US, begin + 17 * US, begin + 77 * US, name=FAST, call_us=6)
        made.call("cudaStreamSynchronize", begin + 30 * US, begin + 30 * US + wait)
        made.op("aten::cat", begin + 40 * US + wait, begin + 1900 * US)


def operator(made, at, what, *, first=30 * US, last=STEP - 20 * US, **arguments):
    """An operator that launches all kernels of the step."""
    made.op(what, at + first, at + last, **arguments)


def typed(dtype, *shapes):
    return {"Input_type": [dtype] * len(shapes), "Input_Dims": [list(shape) for shape in shapes]}


def double_products(training, at, *, dtype="double", shape=(64, 64), unfolded=False):
    """A product whose inputs are float64, with half of the step's kernels."""
    operator(training, at, "aten::mm", **typed(dtype, shape, shape))
    if unfolded:
        unfolding(training, at, first=5 * US, last=15 * US, dtype="double")


def unfolding(training, at, *, what="aten::_slow_conv2d_forward", dtype="float", **span):
    """A convolution without cuDNN."""
    operator(training, at, what, **typed(dtype, (8, 3, 32, 32)), **span)


def slow_products(training, at, *, count=1, size=1024, length=2 * MS):
    """Half precision, in kernels that take a hundred times as long as their operations need."""
    for place in range(count):
        start = (200 + 31 * place) * US
        training.op("aten::mm", at + start, at + start + 30 * US, **typed("c10::Half", (size, size), (size, size)))
        began = at + 7 * MS - 200 * US + start
        training.work(at + start + 10 * US, began, began + length, name=ALIGNED, stream=9)


def own_product(training, at, *, what="matmul_kernel", around=None, call="cudaLaunchKernel", length=2 * MS):
    """A product of matrices of no library, or of an operator or a graph."""
    training.op(around or "aten::detach", at + 200 * US, at + (230 if around else 205) * US)
    training.work(at + 210 * US, at + 7 * MS, at + 7 * MS + length, name=what, stream=9, call=call)


def products(
    made, at, *, dims=((1, 4096), (4096, 4096)), around="aten::mm", length=40 * US, count=60, dtype="c10::Half",
    what="gemvNSP_kernel", node=False,
):  # fmt: skip
    """Products of some rows with a matrix of 4096 x 4096 in half precision, 33.5 MB: 21.6 us on an A100."""
    for place in range(count):
        launched, began = at + (200 + 31 * place) * US, at + 3 * MS + place * length
        made.events += [op(NODE, launched, launched + 30 * US)] * node
        made.op(around, launched + US, launched + 29 * US, **typed(dtype, *dims))
        made.work(launched + 10 * US, began, began + length, name=what, stream=9)


def two_products(made, at, *, what, around):
    """A product on plain cores, and another that shows whether TF32 is on."""
    made.events += [op(around, at + 30 * US, at + 45 * US), op(around, at + 47 * US, at + 60 * US)]
    made.work(at + 32 * US, at + 7 * MS, at + 9 * MS, name=PLAIN, stream=9)
    made.work(at + 50 * US, at + 6 * MS, at + 7 * MS, name=what, stream=9)


def one_kernel(made, at, *, what):
    made.work(at + 50 * US, at + 6 * MS, at + 8 * MS, name=what, stream=9)


def taking(name, microseconds, *, pieces=1, rest=FAST, **place):
    """Work of a name that takes so long in each step before all else, on a stream of its own if one is named."""

    def plant(made, at):
        each = microseconds * US // pieces
        for piece in range(pieces):
            start = at + 200 * US + piece * each
            made.work(at + 20 * US + piece * 500, start, start + each, name=name, **place)

    return steps(plant, begin=(200 + microseconds) * US, name=rest)


def chain(*names, each=MS, idle=0):
    """Kernels of these names one after the other, each 1 ms; then the device idles until the usual work."""

    def plant(training, at):
        for place, name in enumerate(names):
            start = at + 200 * US + place * each
            training.work(at + 20 * US + place * 500, start, start + each, name=name)

    return steps(plant, begin=200 * US + len(names) * each + idle)


def allocations(training, at, *, what="cudaMalloc", late=0):
    """Memory asked of the device while it idles."""
    training.call(what, at + late + 150 * US, at + late + 650 * US)


def loading_modules(training, at):
    if at == 0:
        allocations(training, at, what="cudaFree", late=-140 * US)


def overflowing(training, at):
    """A kernel on plain cores, for the whole step by its record; it ends where the next one begins."""
    training.work(at + 30 * US, at + 50 * US, at + 2 * STEP, name=PLAIN)


def releasing(training, at, *, starts):
    """Memory is released in each step, in some of them after an initialization, as by cuDNN's search of algorithms."""
    if at // STEP in starts:
        starting(training, at, at_steps=starts)
        training.call("cudaFree", at + 6200 * US, at + 6450 * US)
    else:
        allocations(training, training.step(at // STEP, begin=700 * US), what="cudaFree")


def reducing(size, operation="allreduce"):
    place = {"stream": 20, "Collective_name": operation, "dtype": "Float", "Group_size": 2}
    return place | {"In_msg_nelems": size // 4, "Out_msg_nelems": size // 4, "Process_Group_Name": "0"}


def gathering(training, at, *, exposed=True, count=1, size=100_000_000, operation="allreduce", node=None):
    """Collectives, alone or beside the kernels, perhaps from a node of autograd in these microseconds."""
    each = 2 * MS // count
    for place in range(count):
        start = at + (200 * US if exposed else 3 * MS) + place * each
        training.work(at + 20 * US, start, start + each, name=NCCL, **reducing(size, operation))
    if node:
        training.op(NODE, at + node[0] * US, at + node[1] * US)


def own_collectives(made, at, *, around):
    """A collective of a library, below operators of such names."""
    made.events += [op(name, at + (5 + n) * US, at + (45 - n) * US) for n, name in enumerate(around.split())]
    made.work(at + 20 * US, at + 200 * US, at + 2200 * US, name="ncclDevKernel_Generic_2", stream=20)


def one_process_for_all(training, at, *, devices=2):
    """The model is sent to every device before the step computes."""
    for place, name in enumerate(("Scatter", "Broadcast", "Gather")):
        training.op(name, at + place * 400 * US, at + (place + 1) * 400 * US)
    if devices > 1:
        training.work(at + 100 * US, at + 2 * MS, at + 3 * MS, device=1, name=FAST)


def preprocessing(made, at, *, label=False):
    """The host works for 6 ms on something that torch has no name for."""
    make, name = (annotation, "augment") if label else (python_frame, "train.py(12): augment")
    made.events.append(make(name, at + 100 * US, at + 6200 * US))


def viewing(made, at):
    """As DistributedDataParallel flattens all buffers of a model before each forward pass."""
    for place in range(1, 61):
        made.op("aten::view", at + place * 100 * US, at + (place + 1) * 100 * US)


def fetching(made, at, *, kind, last, first=0):
    made.events.append(annotation(LOADER.format(kind), at + first, at + last))


def reading_results(training, at, *, copied=True, busy=False, call="cudaMemcpyAsync", pausing=False, small=False):
    """A large result is read into memory that is not pinned; the next work is launched right after it."""
    training.mark(at)
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
    if pausing:  # as in SGLang's decoding: launched before the call, and nothing says why it begins so late
        training.work(at + 15 * US, at + 6 * MS - 10 * US, at + 6 * MS - 6 * US, name=FAST)
    for place in range(150 * small):  # between two kernels lie some microseconds, or a copy of its own
        copies = {"category": "gpu_memcpy", "name": "Memcpy DtoD (Device -> Device)"} if place % 2 else {"name": FAST}
        training.work(at + 15 * US, at + 3 * MS + place * 20 * US, at + 3 * MS + (place * 20 + 15) * US, **copies)


def attention(
    training, at, *, between="aten::_softmax", around=None, first="aten::addmm", then="aten::div", shape=None, more=None
):
    """The products and the softmax that launch the step's kernels."""
    if around:
        training.op(around, at + 36 * US, at + 60 * US)
    for place, name in enumerate((first, "aten::bmm", then, between, "aten::bmm")):
        shapes = {"Input Dims": [shape, []]} if shape and name == between else {}
        training.op(name, at + (37 + 2 * place) * US, at + (39 + 2 * place) * US - 200, **shapes)
    if more:
        training.op(more, at + 41 * US, at + 42 * US)


BACKWARD = ("aten::bmm", "aten::bmm", "aten::_softmax_backward_data", "aten::bmm", "aten::bmm")


def attention_gradients(made, at, *, names=BACKWARD, varying=False):
    """Each product has two gradients, or one if a factor needs none, as at both ends of a model."""
    kept = [slice(1, 5), slice(5), slice(4)][at // STEP] if varying else slice(9)
    for place, name in enumerate(names[kept]):
        made.op(name, at + (40 + place) * US - 200, at + (40 + place) * US + 700)


def updating(made, at):
    """An optimizer that calls an operator for each parameter."""
    made.events.append(annotation("Optimizer.step#Adam.step", at + 30 * US, at + STEP - 20 * US))
    for place in range(80):
        made.op("aten::add_", at + (40 + place) * US - 200, at + (40 + place) * US + 700)


def starting(training, at, *, at_steps=(0,), how="launch", ahead=False):
    """In some steps a launch takes 6 ms while the device idles, or TorchDynamo compiles for as long."""
    starts = at // STEP in at_steps
    training.step(at // STEP, begin=6500 * US if starts else 60 * US, waits=not starts)
    if starts and how == "launch":
        training.work(at + 100 * US, at + (110 if ahead else 6200) * US, at + 6450 * US, call_us=6000, name=FAST)
    elif starts:
        training.op("inductor_compile (dynamo_timed)", at + 100 * US, at + 6200 * US)


def compiling(microseconds, *, first=0):
    """The first of three steps compiles for so long."""
    made = made_of(lambda made, at: made.step(at // STEP, begin=60 * US if at else microseconds * US + 400 * US))
    made.append(op("inductor_compile (dynamo_timed)", 100 * US, (100 + microseconds) * US))
    for number, mark in enumerate(event for event in made if event["name"].startswith("ProfilerStep")):
        mark["name"] = f"ProfilerStep#{first + number}"
    return made


def preparing(training, at, *, own="own_kernel_{}", gap=700 * US, blocks=6, length=STEP):
    """Blocks of three kernels that run without a gap, and one before which the device idles until its launch."""
    training.events += [step_mark(at // length, at, at + length), annotation("block", at, at + STEP)]
    begin = at + 30 * US
    for block in range(blocks):
        for place in range(3):
            start = begin + place * 200 * US
            training.work(begin - 20 * US + place * US, start, start + 200 * US, name=FAST)
        begin += 600 * US + gap
        training.work(begin - 12 * US, begin, begin + 200 * US, name=own.format(block), call="cuLaunchKernelEx")
        begin += 200 * US


def long_preparing(training, at):
    preparing(training, at * 3, gap=6 * MS, blocks=3, length=3 * STEP)


def delaying(training, at, *, delay=1900 * US, call="cudaLaunchKernel", between=None):
    """Three kernels that are launched at once and begin late on an idle device."""
    training.mark(at)
    if between:
        training.call(between, at + 5 * US, at + 8 * US)
    end = at + 40 * US
    for place in range(3):
        training.work(at + (10 + place * 12) * US, end + delay, end + delay + MS, name=f"kernel_{place}", call=call)
        end += delay + MS


def copying(training, at, *, kind="Memcpy HtoD (Pinned -> Device)", kernel=False, lost=False):
    """A copy of 9 ms, with or without a kernel after it, or with a launch whose kernel was lost."""
    place = {"category": "gpu_memcpy", "name": kind, "bytes": 200_000_000}
    training.mark(at)
    training.work(at + 10 * US, at + 20 * US, at + 9 * MS, call="cudaMemcpyAsync", **place)
    if kernel:
        training.work(at + 30 * US, at + 9 * MS, at + STEP - 10 * US, name=FAST)
    if lost:
        training.call("cudaLaunchKernel", at + 5 * US, at + 8 * US)


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


def blocking(made, at, *, record=True):
    """Launches that wait for room in the queue while the device works, each in a record of the driver."""
    made.mark(at)
    for place in range(10):
        begin = at + place * MS
        made.work(begin + 10 * US, begin + 900 * US, begin + 1890 * US, name=FAST, call_us=880)
        if record:
            full = slice_event("overhead", "Command Buffer Full", begin + 20 * US, begin + 880 * US, pid=-1)
            made.events.append(full)


ODD_CALL = slice_event("privateuse1_runtime", "aclrtSynchronizeStream", 0, 5 * MS, pid="NPU", tid="x")


def sampled(number):
    """One in so many operators was recorded, so the device may have worked for the others."""
    kept = [op("aten::mm", 100 * place, 100 * place + 50, external=1 + number * place) for place in range(20)]
    return [*made_of(delaying), *kept]


def is_mark(event):
    return event["name"].startswith("ProfilerStep")


def unmarked(events):
    """A recording without steps."""
    return [event for event in events if not is_mark(event)]


def is_work(event):
    return event.get("cat") in ("kernel", "gpu_memcpy")


def on_another_clock(events):
    """The device counts its time from another moment."""
    return [event | ({"ts": event["ts"] + 7.2e9} if is_work(event) else {}) for event in events]


def without_kernels(events):
    """All work of the device was lost."""
    return [event for event in events if not is_work(event)]


def with_lost_kernels(events):
    """One record in ten was lost."""
    work = [event for event in events if is_work(event)]
    lost = {id(event) for event in work[:: min(10, max(len(work) // (2 * STEPS), 1))]}
    return [event for event in events if id(event) not in lost]


# --- the tables ---

PLANTED = {
    "allocator-churn": Case(steps(allocations, begin=700 * US)),
    "blocking-copies": Case(steps(pageable_copies, begin=2100 * US)),
    "data-parallel": Case(steps(one_process_for_all, begin=1200 * US)),
    "device-pauses": Case(steps(preprocessing, begin=6500 * US, waits=False)),
    "exposed-communication": Case(steps(gathering, begin=2200 * US)),
    "float32-products": Case(steps(name=PLAIN)),
    "fusable-chains": Case(steps(name=SUM)),
    "held-by-copies": Case(made_of(reading_results)),
    "host-bound": Case(made_of(many_launches)),
    "kernels-below-limit": Case(steps(slow_products), WHOLE_A100),
    "launch-preparation": Case(made_of(preparing)),
    "layout-conversions": Case(steps(name=TURNING)),
    "lowered-clock": Case(slowed(1400)),
    "only-copies": Case(made_of(copying), WHOLE_A100),
    "own-products": Case(steps(own_product, what="matmul_k(float*, float*, int)")),
    "recorded-start": Case(made_of(starting)),
    "shared-device": Case(made_of(delaying)),
    "small-collectives": Case(steps(gathering, begin=2200 * US, count=40, size=1024)),
    "synchronisation": Case(made_of(reading_values)),
    "unaligned-products": Case(steps(name=f"{HALF}2")),
    "weight-bound-products": Case(steps(products), WHOLE_A100),
    "written-out-attention": Case(steps(attention)),
}
"""Rules that need a device: a trace in which each finds something, with the properties of the device."""
ALSO = {"small-collectives": {"exposed-communication"}, "data-parallel": set()}
"""What else such a trace has: small collectives that take a fifth of the step are exposed communication as well."""
OTHERS = {
    "slow-convolution": Case(steps(unfolding, name="im2col_kernel<float>"), WHOLE_A100),
    "float64-products": Case(steps(double_products, name=DOUBLE), WHOLE_A100),
}
"""Rules of the host, on a device."""
OF_THE_HOST = {"allocator-churn"}
"""Rules that need no time of the device."""
MEASURED = {"waiting-for-data", *OTHERS}
"""Rules whose fix was measured, on a CPU."""

EXPERTS, SHARDS = "all_to_all", "_allgather_base"
COPIES = ("DtoH (Device -> Pinned)", "DtoD (Device -> Device)", "HtoD (Pageable -> Device)", "PtoP (Device -> Device)")
COPIES = (*(f"Memcpy {kind}" for kind in COPIES), "CopyHostToDevice", "CopyDeviceToDevice")
AROUND = ("vllm::all_reduce", "sgl_kernel::reduce_scatter_tensor mine::launch", "mylib::exchange_tokens", "")
MATRICES = {
    "a matrix": {"what": "aten::mm", **typed("c10::Half", (64, 768), (768, 30522))},
    "a row": {"what": "aten::mm", **typed("c10::Half", (1, 768), (768, 30522))},  # a vector, which nobody pads
    "a bias": {"what": "aten::addmm", **typed("c10::Half", (999,), (64, 768), (768, 30522), (), ())},
}
DOUBLES = {"what": "aten::mm", "first": 39 * US, **typed("double", (64, 64), (64, 64))}
SLOW_RECORDER, FASTER = (replace(WHOLE, cost=Cost(idle_step_ms=ms, recorded_step_ms=10.0)) for ms in (2.0, 8.0))
LAUNCHED = replace(WHOLE, circumstances=Circumstances(is_launched=True))
LIGHTNING = replace(WHOLE, circumstances=Circumstances(framework="Lightning"))

VARIANTS = {
    "allocator-churn": {
        "released, without marks of steps": Case(unmarked(steps(allocations, what="hipFree", begin=700 * US))),
        "after an initialization": Case(made_of(releasing, starts=(0,))),
        "without times of the device": Case(without_kernels(steps(allocations, begin=700 * US))),
    },
    "blocking-copies": {"of unknown size": Case(steps(pageable_copies, begin=2100 * US, size=-1))},
    "device-pauses": {
        "in a label": Case(steps(preprocessing, begin=6500 * US, waits=False, label=True)),
        "in views of DistributedDataParallel": Case(steps(viewing, begin=6500 * US, waits=False)),
    },
    "exposed-communication": {
        "of experts": Case(steps(gathering, begin=2200 * US, operation=EXPERTS)),
        "of sharded parameters": Case(steps(gathering, begin=2200 * US, operation=SHARDS)),
        "of gradients": Case(steps(gathering, begin=2200 * US, node=(0, 50))),
        "of a split layer": Case(steps(gathering, begin=2200 * US, node=(100, 150))),
        "with a host that never waits": Case(steps(gathering, kernels=3, begin=5 * MS, waits=False)),
        **{
            f"below {names or 'no operator'}": Case(steps(own_collectives, begin=2200 * US, around=names))
            for names in AROUND
        },
    },
    "float32-products": {
        "without TF32": Case(steps(name=PLAIN), V100),
        "in GEMMs": Case(steps(operator, what="aten::mm", name="volta_sgemm_64x64_nt"), V100),
        "in convolutions": Case(steps(operator, what=CONVOLUTION, name="volta_sgemm_64x64_nt"), V100),
    },
    "float64-products": {
        "with a slow convolution": Case(steps(double_products, name=DOUBLE, unfolded=True)),
        # of nine kernels that share 9.94 ms
        "in two kernels": Case(steps(operator, last=42 * US + 100, **DOUBLES)),
        "in five kernels": Case(steps(operator, last=45 * US + 100, **DOUBLES)),
    },
    "fusable-chains": {
        "of two kinds": Case(chain(SUM, REDUCE, SUM)),
        # fused, it reads and writes no less: two kernels of the same length become one of them at best
        "of two kernels": Case(taking(SUM, 3000, pieces=2)),
    },
    "held-by-copies": {
        "without a copy": Case(made_of(reading_results, copied=False)),
        "with a device that pauses": Case(made_of(reading_results, copied=False, pausing=True)),
    },
    "host-bound": {
        "with an optimizer": Case(made_of(many_launches, updates=True)),
        "replaying graphs": Case(made_of(replaying)),
        "with waits between kernels": Case(made_of(replayable, wait=4 * MS + 40 * US)),
        "with waits after the last kernel": Case(made_of(replayable, wait=9900 * US)),
        "with waits for events": Case(made_of(replayable, event=True)),
        "with other names of kernels in each step": Case(made_of(replayable, other="name")),
        "with other numbers of kernels": Case(made_of(replayable, other="number")),
        "while the recorder is slow": Case(made_of(many_launches), A100, SLOW_RECORDER),
        "with an unprofiled step of 8 ms": Case(made_of(many_launches), A100, FASTER),
    },
    "kernels-below-limit": {"larger": Case(steps(slow_products, size=4096), WHOLE_A100)},
    # each pause is longer than a slow launch makes it
    "launch-preparation": {"in long pauses": Case(made_of(long_preparing))},
    "only-copies": {
        **{kind: Case(made_of(copying, kind=kind), WHOLE_A100) for kind in COPIES},
        "of an unknown device": Case(made_of(copying), {}),
    },
    "recorded-start": {
        "compiles": Case(compiling(3100)),
        "at step 30": Case(compiling(3100, first=30), A100, Capture(first=30, last=32, reached=33)),
        "launched": Case(compiling(3100), A100, LAUNCHED),
        "Lightning": Case(compiling(3100), A100, LIGHTNING),
        "compiles for 6 ms": Case(made_of(starting, how="compile")),
        "compiles later, while the device pauses": Case(made_of(starting, how="compile", at_steps=(1,))),
        "compiles twice": Case(made_of(starting, how="compile", at_steps=(1, 2))),
    },
    "small-collectives": {
        "of 1 KiB": Case(taking(NCCL, 900, pieces=20, **reducing(1024))),
        "of unknown size": Case(taking(NCCL, 980, pieces=20, stream=20)),
    },
    "synchronisation": {
        "nested": Case(made_of(reading_values, nested=True)),
        # one wait of 3 ms after which the device goes on at once, and one of 0.1 ms before a pause of 3 ms
        "that costs its own time at most": Case(made_of(reading_values, gap=60 * US, again=True)),
    },
    "unaligned-products": {
        **{name: Case(steps(operator, name=f"{HALF}2", **how)) for name, how in MATRICES.items()},
        # a kernel for attention as a whole takes any length: only the others are unaligned
        "beside attention": Case(steps(attention, name=f"{HALF}2")),
    },
    "waiting-for-data": {"alone": Case(steps(fetching, kind="SingleProcess", last=6 * MS, begin=6100 * US))},
    "written-out-attention": {"with gradients": Case(steps(attention_gradients, varying=True))},
}
"""Other traces with findings of a rule; the golden file has the difference of each from the planted one."""


def of_weights(**how):
    return Case(steps(products, name=ALIGNED, **how), WHOLE_A100)


def allowing(tf32):
    inputs = ["", "", "[0, 0]", "[1, 1]", "[1, 1]", "1", "False", "False", tf32]
    return Case(steps(operator, what=CONVOLUTION, name=PLAIN, Concrete_Inputs=inputs))


def beside(what, around="aten::mm"):
    return Case(steps(two_products, what=what, around=around, name=ALIGNED))


TENSOR = "cutlass_80_tensorop_s1688gemm_256x64_16x4_nt_align4"
TF32_CONVOLUTION = "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw"
MEMORY = {"length": 80 * US, "count": 30}
CHAIN = {"each": 1500 * US}

FOUND = {
    "device-pauses": {"memory released during initializations": Case(made_of(releasing, starts=(0, 1, 2)))},
    "exposed-communication": {
        "1.1 ms": Case(taking(NCCL, 1100, stream=20)),
        "collectives of 55 us": Case(taking(NCCL, 1100, pieces=20, stream=20)),
    },
    "float32-products": {
        "0.55 ms": Case(taking(PLAIN, 550, rest=ALIGNED)),
        # a library may choose plain cores for some sizes all the same
        "TF32 of convolutions only": beside(TF32_CONVOLUTION),
        "TF32 of GEMMs only": beside(TENSOR, CONVOLUTION),
        "no TF32": beside(ALIGNED),
        "TF32 is not allowed": allowing("False"),
    },
    "fusable-chains": {
        "2.1 ms": Case(taking(SUM, 2100, pieces=2)),
        "two kernels": Case(taking(SUM, 3000, pieces=2)),
        "an idle device for less": Case(chain(SUM, SUM, idle=1500 * US, **CHAIN)),
    },
    "host-bound": {"25% idle": Case(launching(100, 25)), "51 launches": Case(launching(51, 40))},
    "kernels-below-limit": {
        "11% of the step": Case(steps(slow_products, size=16, length=1100 * US), WHOLE_A100),
        "kernels of 11 us": Case(steps(slow_products, size=16, count=120, length=11 * US), WHOLE_A100),
    },
    "layout-conversions": {"0.12 ms": Case(taking(TURNING, 120))},
    "own-products": {"a node": Case(steps(own_product, around="MatMulBackward"))},
    "recorded-start": {"3.1 ms": Case(compiling(3100))},
    "shared-device": {"all operators": Case(sampled(1))},
    "small-collectives": {
        "twenty": Case(taking(NCCL, 800, pieces=20, **reducing(1024))),
        "below 1 MiB": Case(taking(NCCL, 800, pieces=20, **reducing(MIB - 4))),
        "45 us": Case(taking(NCCL, 900, pieces=20, stream=20)),
    },
    "unaligned-products": {"0.55 ms": Case(taking(f"{HALF}2", 550))},
    "weight-bound-products": {
        "one row": of_weights(),
        "eight rows": of_weights(dims=[[8, 4096], [4096, 4096]]),
        "a layer with a bias": of_weights(around="aten::addmm", dims=[[4096], [1, 4096], [4096, 4096]]),
        "a column": of_weights(dims=[[4096, 4096], [4096, 1]]),
        "an operator for vectors": of_weights(around="aten::mv", dims=[[4096, 4096], [4096]]),
        # a row of float32 times a matrix, on plain cores, at 70% of the bandwidth of memory
        "float32": of_weights(dtype="float", count=40, length=60 * US, what=PLAIN),
    },
    "written-out-attention": {
        "of activations": Case(steps(attention, first="aten::relu")),
        "masked": Case(steps(attention, then="aten::masked_fill")),
        "of a matrix": Case(steps(attention, shape=[8, 4, 128, 128])),
        "gradients of products": Case(steps(attention_gradients, names=(*BACKWARD, "aten::mul"))),
    },
}
"""Traces with findings of exactly this rule."""

SILENT = {
    "": {
        **{str(device): Case(steps(), device) for device in (A100, V100, MI300, {})},
        "of odd names": Case([*steps(), ODD_CALL, op("Scatter", 0, MS, tid=PID + 1)]),
        "without length": Case([event | ({"dur": 0.0} if is_mark(event) else {}) for event in made_of(copying)]),
    },
    "allocator-churn": {
        "another call": Case(steps(allocations, what="cudaFuncGetAttributes", begin=700 * US)),
        "while the device works": Case(steps(allocations, late=2 * MS)),
        # a recording without marks may be just the start of a program
        "without marks": Case(unmarked(steps(allocations, begin=700 * US))),
        "hipMalloc without marks": Case(unmarked(steps(allocations, what="hipMalloc", begin=700 * US))),
        "while cuDNN loads its modules": Case(unmarked(steps(loading_modules, begin=700 * US))),
    },
    "blocking-copies": {
        "pinned": Case(steps(pageable_copies, source="Pinned", begin=2100 * US)),
        "small": Case(steps(pageable_copies, size=64 * 1024, begin=2100 * US)),
        "hidden": Case(steps(pageable_copies, stream=9)),
    },
    "data-parallel": {"one device": Case(steps(one_process_for_all, devices=1, begin=1200 * US))},
    "device-pauses": {
        "shorter": Case(steps(preprocessing, begin=4500 * US, waits=False)),
        "hidden": Case(steps(preprocessing)),
    },
    "exposed-communication": {
        "hidden": Case(steps(gathering, exposed=False)),
        "0.9 ms": Case(taking(NCCL, 900, **reducing(MIB))),
    },
    "float32-products": {
        **{str(device): Case(steps(name=PLAIN), device) for device in (P100, MI300, {}, {"deviceProperties": ["?"]})},
        "0.45 ms": Case(taking(PLAIN, 450, rest=ALIGNED)),
        "TF32 of GEMMs": beside(TENSOR),
        "TF32 of convolutions": beside(TF32_CONVOLUTION, CONVOLUTION),
        "TF32 is allowed": allowing("True"),
        # half of the kernels' time could go, and the step would be as long as before
        "a host that never waits": Case(steps(name=PLAIN, kernels=3, begin=7 * MS, waits=False)),
        "a kernel that overflowed": Case(steps(overflowing, begin=2 * MS, name=ALIGNED)),
    },
    "float64-products": {
        "float32": Case(steps(double_products, dtype="float")),
        "numbers": Case(steps(double_products, shape=())),
    },
    "fusable-chains": {
        "a device that mostly idles": Case(steps(name=SUM, begin=4500 * US, waits=False)),
        "compiled": Case(steps(operator, what="CompiledFxGraph 1", first=1, last=9 * MS, name=SUM)),
        "compiled without a backend": Case(steps(operator, what="CompiledFunction", first=1, last=9 * MS, name=SUM)),
        "1.9 ms": Case(taking(SUM, 1900, pieces=2)),
        "one kernel": Case(taking(SUM, 3000, pieces=1)),
        "an idle device": Case(chain(SUM, SUM, idle=2500 * US, **CHAIN)),
    },
    "held-by-copies": {
        "a busy device": Case(made_of(reading_results, busy=True)),
        "another call": Case(made_of(reading_results, copied=False, call="cudaFuncSetAttribute")),
        "behind small queued work": Case(made_of(reading_results, copied=False, small=True)),
    },
    "host-bound": {
        "launched ahead": Case(made_of(many_launches, ahead=True)),
        "22% idle": Case(launching(100, 22)),
        "49 launches": Case(launching(49, 40)),
        # the work was launched at once; something that was not recorded keeps it from beginning
        "a late begin": Case(steps(waits=False)),
        "late begins": Case(made_of(launched_early)),
        "a full queue": Case(made_of(blocking, record=False)),
        "a recorded full queue": Case(made_of(blocking)),
    },
    "kernels-below-limit": {
        "at 69%": Case(steps(slow_products, size=6000), WHOLE_A100),
        "an unknown device": Case(steps(slow_products)),
        "9% of the step": Case(steps(slow_products, size=16, length=900 * US), WHOLE_A100),
        "kernels of 9 us": Case(steps(slow_products, size=16, count=120, length=9 * US), WHOLE_A100),
    },
    "launch-preparation": {
        "usual kernels": Case(made_of(preparing, own=FAST)),
        "several kernels": Case(made_of(preparing, own=FAST.replace("cutlass", "c{}"))),
        "short": Case(made_of(preparing, gap=100 * US)),
    },
    "layout-conversions": {"0.09 ms": Case(taking(TURNING, 90))},
    "lowered-clock": {
        "a quarter lower": Case(slowed(1500)),
        "a tenth lower": Case(slowed(1800)),  # that does not take 40% longer
        "with more work": Case(slowed(1400, kernels=13)),
        "a device that waits": Case(slowed(1400, begin=4 * MS)),
        "two steps": Case(slowed(1400, count=2)),  # none of them is the usual one
    },
    "only-copies": {
        "with a kernel": Case(made_of(copying, kernel=True)),
        "beside lost kernels": Case(made_of(copying, lost=True), WHOLE_A100),
    },
    "optimizer-loop": {"hidden": Case(steps(updating))},
    "own-products": {
        "an operator of a namespace": Case(steps(own_product, around="mine::matmul")),
        "a graph": Case(steps(own_product, call="cudaGraphLaunch")),
        "short": Case(steps(own_product, length=900 * US)),
    },
    "recorded-start": {"launched ahead": Case(made_of(starting, ahead=True)), "2.9 ms": Case(compiling(2900))},
    "shared-device": {
        "short": Case(made_of(delaying, delay=900 * US)),
        "a graph": Case(made_of(delaying, call="cudaGraphLaunch")),
        "a function of the host": Case(made_of(delaying, between="cudaLaunchHostFunc_v10000")),
        "a wait for a value": Case(made_of(delaying, between="cuStreamWaitValue32_v2")),
        "a launch of Ascend": Case(made_of(delaying, between="AscendCL@aclnnAdd")),
        "one operator in a hundred": Case(sampled(100)),
    },
    "slow-convolution": {"by cuDNN": Case(steps(unfolding, what=CONVOLUTION))},
    "small-collectives": {
        "hidden": Case(steps(gathering, exposed=False, count=40, size=1024)),
        "nineteen": Case(taking(NCCL, 800, pieces=19, **reducing(1024))),
        "1 MiB": Case(taking(NCCL, 800, pieces=20, **reducing(MIB))),
    },
    "synchronisation": {"short": Case(made_of(reading_values, gap=60 * US))},
    "unaligned-products": {"0.45 ms": Case(taking(f"{HALF}2", 450))},
    "waiting-for-data": {"hidden": Case(steps(fetching, kind="MultiProcessing", first=500 * US, last=4990 * US))},
    "weight-bound-products": {
        # at 54% of the bandwidth of memory or more, but of inputs
        "in a backward pass": of_weights(node=True),
        "inputs times a narrow weight": of_weights(dims=[[8192, 4096], [4096, 16]], **MEMORY),
        "a narrow matrix times inputs": of_weights(dims=[[16, 8192], [8192, 4096]], node=True, **MEMORY),
        "two vectors": of_weights(dims=[[8192, 1], [1, 4096]], length=60 * US, count=30),
        "scores of an attention": of_weights(around="aten::bmm", dims=[[32, 1, 128], [32, 128, 4096]]),
        "a batch of products": of_weights(around="aten::bmm", dims=[[1, 1, 4096], [1, 4096, 4096]]),
        "all rows": of_weights(dims=[[4096, 4096]] * 2, length=500 * US, count=4, what=ALIGNED),
        "few": of_weights(count=20),
    },
    "written-out-attention": {
        "without softmax": Case(steps(attention, between="aten::mul")),
        "as a whole": Case(steps(attention, around="aten::scaled_dot_product_attention")),
        "additive": Case(steps(attention, first="aten::tanh")),
        "of a graph": Case(steps(attention, then="aten::leaky_relu")),
        "one query": Case(steps(attention, shape=[8, 1, 128])),
        "one squeezed query": Case(steps(attention, shape=[8, 128])),
        "with a product between": Case(steps(attention, more="aten::addmm")),
        # the scores come first in the forward pass, and last in the backward pass
        "gradients of additive scores": Case(steps(attention_gradients, names=(*BACKWARD, "aten::tanh_backward"))),
    },
}
"""Traces that are almost the planted ones, without any finding."""

BY_NAME = {
    "all": lambda what: Case(steps(name=what)),
    "all on V100": lambda what: Case(steps(name=what), V100),
    "one": lambda what: Case(steps(one_kernel, what=what, name=ALIGNED)),
    "own": lambda what: Case(steps(own_product, what=what)),
    "beside float32": beside,
}
"""Trainings in which the name of a kernel decides what is found, see data/finding_kernels.tsv."""


def kernel_names():
    text = (Path(__file__).parent / "data/finding_kernels.tsv").read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]


def rows(table):
    """The cases of a table with their rules."""
    return [
        pytest.param(rule, case, id=f"{rule}: {name}") for rule, cases in table.items() for name, case in cases.items()
    ]


SENTENCE = re.compile(r"(?<=\.) ")
TRAINS = ("training", "backward", "gradient", "optimizer", "loss")


# --- the tests ---


def find(capture, trace):
    """What is found but for a part of the step without a name: these trainings have no labels, and this has tests."""
    return [finding for finding in findings.find(capture, trace) if finding.rule != "unnamed-time"]


def found_in(tmp_path, events, metadata=A100, capture=WHOLE):
    return find(capture, read(testing.write_trace(tmp_path / "t.json", events, **metadata)))


def rules(found):
    return [finding.rule for finding in found]


@pytest.fixture(autouse=True)
def no_rule_fails(caplog):
    with caplog.at_level(logging.DEBUG, "perfhooks"):
        yield
    assert "failed" not in caplog.text


def described(found):
    for finding in found:
        amount = "unknown" if finding.gain_ms is None else f"{finding.gain_ms:.6g} ms, {finding.gain_percent:.6g}%"
        yield f"{finding.rule}: {finding.title}"
        yield f"  gain {'at most ' if finding.is_bound else ''}{amount}"
        yield from (f"  - {line}" for line in finding.lines)
        yield from (f"  {line}" for text in (estimate(vars(finding)), finding.advice) for line in SENTENCE.split(text))
        yield from (f"      {line}".rstrip() for line in finding.code.splitlines())


def sections(described_cases):
    """The first case as a whole, then the difference of each other case from it."""
    first, parts = None, []
    for name, lines in described_cases:
        changed = [line for line in difflib.ndiff(first, lines) if line[0] in "+-"] if first and lines else lines
        changed = changed or ["no finding" if not lines else "no difference"]
        first = first or lines
        parts += [f"=== {name}", *changed, ""]
    return "\n".join(parts)


@pytest.mark.parametrize("rule", sorted({*OTHERS, *PLANTED, *VARIANTS}))
def test_planted_problem_has_exactly_its_findings(rule, tmp_path, golden):
    described_cases = []
    planted = {"planted": case} if (case := {**PLANTED, **OTHERS}.get(rule)) else {}
    for name, case in {**planted, **VARIANTS.get(rule, {})}.items():
        trace = read(testing.write_trace(tmp_path / "t.json", case.events, **case.metadata))
        found = find(case.capture, trace)
        if name == "planted":
            assert set(rules(found)) == {rule} | ALSO.get(rule, set())
        tables = Evidence(case.capture, trace)
        for finding in found:
            assert finding.is_bound or finding.gain_ms is None or rule in MEASURED, "no fix on a device was measured"
            assert finding.gain_ms is None or 0 < finding.gain_percent <= 100
            times = [value.value for value in finding.values.values() if value.unit == "ms"]
            assert finding.gain_ms is None or max(times, default=0) <= tables.unprofiled_ms + 1e-6, finding.title
            # of these two the whole is said, and how much of it is gained is not
            if name == "planted" and finding.rule not in ("unaligned-products", "fusable-chains"):
                assert (finding.gain_ms or 0) <= max(tables.host_limit_ms, tables.device_limit_ms) + 1e-6
        lines = list(described(found))
        if name == "planted" or case.metadata is V100:
            text = "\n".join(lines).lower().replace("grad_enabled", "")
            assert not [word for word in TRAINS if word in text], "this trace may be of an inference"
        described_cases.append((name, lines))
    golden(f"findings/{rule}.txt", sections(described_cases))


@pytest.mark.parametrize(("rule", "case"), rows(FOUND))
def test_similar_problem_is_found_by_the_same_rule(rule, case, tmp_path):
    assert rules(found_in(tmp_path, *case)) == [rule]


@pytest.mark.parametrize(("how", "rule", "name"), kernel_names())
def test_name_of_a_kernel_decides_the_finding(how, rule, name, tmp_path):
    assert rules(found_in(tmp_path, *BY_NAME[how](name))) == [rule] * (rule != "none")


@pytest.mark.parametrize(("rule", "case"), rows(SILENT))
def test_silent_twin_has_no_findings(rule, case, tmp_path):
    assert rules(found_in(tmp_path, *case)) == []


@pytest.mark.parametrize("doubt", [on_another_clock, without_kernels, with_lost_kernels])
@pytest.mark.parametrize("name", [*PLANTED, *OTHERS, "optimizer-loop"])
def test_no_finding_uses_times_of_the_device_that_are_in_doubt(tmp_path, name, doubt):
    case = {**PLANTED, **OTHERS}.get(name, SILENT["optimizer-loop"]["hidden"])
    trace = read(testing.write_trace(tmp_path / "t.json", doubt(case.events), **case.metadata))
    if name != "only-copies" or doubt is not with_lost_kernels:  # a lost copy leaves no launch without a kernel
        assert not Evidence(WHOLE, trace).is_device_traced
        assert set(rules(find(WHOLE, trace))) <= OF_THE_HOST


@pytest.mark.parametrize("name", PLANTED)
def test_one_time_work_is_used_by_no_other_finding(tmp_path, name):
    """A graph is captured in all of the steps."""
    capturing = op("CUDAGraphNode.record (dynamo_timed)", -US, STEPS * STEP + US)
    found = found_in(tmp_path, [*PLANTED[name].events, capturing], PLANTED[name].metadata)
    assert set(rules(found)) <= {"recorded-start", "lowered-clock"}


def test_time_of_a_start_has_a_name(tmp_path):
    """A context is made outside of any operator: that is why the device waits, and no time that nobody can name."""
    made = Training()
    made.call("cudaFree", 0, 90 * MS)
    made.op("torch::autograd::AccumulateGrad", 90 * MS, 91 * MS)
    made.work(90 * MS, 91 * MS, 99 * MS)
    trace = read(testing.write_trace(tmp_path / "t.json", made.events, **A100))
    assert rules(findings.find(Capture(last=0), trace)) == ["recorded-start"]


@pytest.mark.parametrize("wait", [400 * US, 900 * US])
def test_title_evidence_and_gain_of_waits_have_one_basis(tmp_path, wait):
    found = found_in(tmp_path, made_of(waiting_shortly, wait=wait))
    (finding,) = [each for each in found if each.rule == "synchronisation"]
    spent = words.ms(finding.gain_ms)
    assert finding.gain_ms == pytest.approx(14 / 3 * wait / MS), "after the last one nothing is launched"
    assert finding.title == f"The device idles for {spent} of a step after the host has waited for it."
    assert finding.lines[0] == f"5 waits in a step, {words.ms(5 * wait / MS)} of host time together"
    assert finding.lines[-1] == f"cudaStreamSynchronize: {spent}"


def test_gain_below_a_limit_is_the_time_beyond_it(tmp_path):
    """2 ms for 2 * 1024^3 operations, which 312 TFLOP/s do in 6.9 us."""
    (finding,) = found_in(tmp_path, *PLANTED["kernels-below-limit"][:2])
    assert finding.gain_ms == pytest.approx(2 - 2 * 1024**3 / 312e9, rel=1e-6)


def test_a_call_waits_for_the_device_that_works_all_the_while(tmp_path):
    """One that the device works half through is itself what takes the time."""
    made = Training()
    made.mark(0)
    made.work(10 * US, 100 * US, 4 * MS)
    made.call("cudaMalloc", MS, 2 * MS)
    made.call("cudaMalloc", 3500 * US, 4500 * US)
    seen = Evidence(Capture(first=0, last=0, reached=1), read(testing.write_trace(tmp_path / "t.json", made.events)))
    assert seen.device_limit_ms == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("case", "checks"),
    [
        ("float32-products: a kernel that overflowed", {"overflowed-kernels"}),
        ("host-bound: a recorded full queue", set()),
    ],
)
def test_full_queue_is_no_doubt_and_an_overflow_is_one(tmp_path, case, checks):
    rule, _, name = case.partition(": ")
    evidence = Evidence(WHOLE, read(testing.write_trace(tmp_path / "t.json", SILENT[rule][name].events, **A100)))
    assert set(evidence.tables.checks["name"]) == checks
    assert evidence.device_limit_ms > 7


def held_copies(stretch=1):
    """Two steps of 30 ms: a call waits for a copy of 10 ms, then the host starts 50 small kernels."""
    for step in range(2):
        begin, call = 30 * stretch * step * MS, 1000 * step + 1
        yield step_mark(step, begin, begin + 30 * stretch * MS)
        yield launch(call, begin, begin + 10 * MS, name="cudaMemcpyAsync")
        copied = {"name": "Memcpy HtoD (Pageable -> Device)", "category": "gpu_memcpy", "bytes": 100_000_000}
        yield kernel(call, begin, begin + 10 * MS, **copied)
        for number in range(50):
            at = begin + 10 * MS + number * (30 * stretch - 10) * MS // 50
            yield launch(call + 1 + number, at, at + 5000)
            yield kernel(call + 1 + number, at + 6000, at + 106_000)


@pytest.mark.parametrize(("stretch", "unprofiled_ms", "gain_ms"), [(1, 30.0, 10), (2, 20.0, 10)])
def test_gain_of_pinned_copies_is_at_most_their_time_and_waits(tmp_path, stretch, unprofiled_ms, gain_ms):
    capture = Capture(first=0, last=1, reached=2, cost=Cost(idle_step_ms=unprofiled_ms))
    trace = read(testing.write_trace(tmp_path / "rank0.trace.json", list(held_copies(stretch))))
    (finding,) = [row for row in findings.find(capture, trace) if row.rule == "blocking-copies"]
    assert finding.gain_ms == pytest.approx(gain_ms, rel=0.01)
