"""Arithmetic that is dearer than it need be: its precision, its kernels, the layout of its images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from perfhooks.findings.evidence import ms
from perfhooks.trace.kinds import Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perfhooks.findings.evidence import Tables
    from perfhooks.findings.finding import Finding
    from perfhooks.trace.model import Ints

SAVED: Final = 0.5
"""Of the time of products that move to a faster precision or kernel, so much is counted as gained. A careful figure: on
an A100 TF32 has eight times the peak of float32, on a CPU float32 twice that of float64; memory takes its share."""
HEAVY: Final = 0.05
"""Of the step, for operators that are to be moved: below it, half of their time is within what a step varies by."""
TENSOR_CORES: Final = 7
"""The compute capability from which NVIDIA's devices have tensor cores (Volta)."""
TF32: Final = 8
"""The compute capability from which tensor cores take float32 as TF32 (Ampere)."""

# Kernels of cuBLAS and cuDNN that multiply float32 on plain cores, and words of those that use tensor cores.
_PLAIN: Final = r"sgemm|scudnn|simt_s|_f32f32_f32f32_f32|(?:dgrad|wgrad)\w*<float|implicit_convolve"
_TENSOR: Final = r"tf32|tensorop|wmma|tensor\d|[sh](?:884|1688|16816|161616)|[hsi]mma|bf16|_f16|half|fp16|16f"
_FLOAT32: Final = rf"^(?!.*(?:{_TENSOR})).*(?:{_PLAIN})"

_PRODUCTS: Final = (
    r"^aten::(?:mm|addmm|bmm|baddbmm|mv|addmv|linear|conv[123]d|convolution|convolution_backward"
    r"|_convolution|thnn_conv2d|_slow_conv2d_\w+|slow_conv\w+|mkldnn_convolution|cudnn_convolution\w*|matmul)$"
)
_SLOW: Final = r"^aten::(?:thnn_conv2d|_slow_conv2d_\w+|slow_conv3d\w*|slow_conv_dilated\w+|slow_conv_transpose\w+)$"
_LAYOUT: Final = r"nchwToNhwc|nhwcToNchw|nchw2nhwc|nhwc2nchw|^batched_transpose_\d+x\d+"

_USE_TF32: Final = """\
torch.set_float32_matmul_precision("high")
torch.backends.cudnn.allow_tf32 = True
# or: with torch.autocast("cuda", dtype=torch.bfloat16): loss = ..."""
_USE_FLOAT16: Final = """\
scaler = torch.amp.GradScaler("cuda")
with torch.autocast("cuda", dtype=torch.float16):
    loss = ..."""


def float32_products(tables: Tables) -> Iterator[Finding]:
    """Kernels that multiply float32 on plain cores take 5% of the step or more, on a device that has tensor cores.

    Source: `HEAVY`, `SAVED`; the kernels by their names, the device by its compute capability. Devices of other makers
    than NVIDIA tell neither.
    """
    if tables.gpu is None or tables.gpu[1] < TENSOR_CORES:
        return
    rows = tables.work_named(_FLOAT32, Kind.KERNEL)
    spent = tables.device_ms(rows)
    gain = min(SAVED * spent, tables.device_limit_ms)
    if tables.share(spent) < HEAVY or not tables.is_worth(gain):
        return
    name, major = tables.gpu
    has_tf32 = major >= TF32
    yield tables.finding(
        "float32-products",
        gain,
        title=f"Matrix products in float32 take {ms(spent)} in a {tables.unit} while the tensor cores idle.",
        estimate=(
            f"Half of the time of these kernels (a careful figure for {'TF32' if has_tf32 else 'float16'}), and no "
            "more "
            "than the host waits for the device."
        ),
        evidence=[
            f"{name} has tensor cores (compute capability {major}.x)",
            f"{tables.often(rows)} kernels in a {tables.unit} do not use them",
            *tables.by_name(rows),
        ],
        advice=(
            "Let float32 products run as TF32: the tensor cores take them with the range of float32 and 10 bits of "
            "mantissa, which training hardly ever notices. Mixed precision goes further, and halves memory."
            if has_tf32
            else "Train with automatic mixed precision: products run in float16 on the tensor cores, and a gradient "
            "scaler keeps small gradients from vanishing."
        ),
        code=_USE_TF32 if has_tf32 else _USE_FLOAT16,
    )


def float64_products(tables: Tables) -> Iterator[Finding]:
    """Matrix products and convolutions of float64 tensors take 5% of the step or more.

    Source: `HEAVY`, `SAVED`; the types of inputs, which ``record_shapes`` records. Numbers (tensors without
    dimensions) do not count.
    """
    rows = _in_float64(tables, tables.named(_PRODUCTS, Kind.OP))
    if not len(rows):
        return
    spent, limit = tables.cost(rows)
    gain = min(SAVED * spent, limit)
    if tables.share(spent) < HEAVY or not tables.is_worth(gain):
        return
    slow = len(tables.named(_SLOW, Kind.OP)) > 0
    yield tables.finding(
        "float64-products",
        gain,
        title=f"Matrix products and convolutions in float64 take {ms(spent)} in a {tables.unit}.",
        estimate="Half of their time: float64 is at best half as fast as float32, and on most devices far slower.",
        evidence=[
            *tables.by_name(tables.outermost(rows)),
            *(["convolutions in float64 have no fast path here: they run as _slow_conv2d"] if slow else []),
            *tables.by_line(tables.outermost(rows)),
        ],
        advice=(
            "Somewhere a tensor is float64, usually because NumPy made it, and everything it touches becomes so. Cast "
            "data where it is loaded, and the model once, to float32; keep float64 only where a sum needs it."
        ),
        code="model = model.float()\nbatch = torch.as_tensor(array, dtype=torch.float32)",
    )


def slow_convolution(tables: Tables) -> Iterator[Finding]:
    """Convolutions by unfolding (``_slow_conv2d``, ``thnn_conv2d``, ...) take 5% of the step or more.

    Source: `HEAVY`, `SAVED`. That is what torch falls back to without cuDNN or oneDNN. In float64 it has nothing else
    on a CPU, which is `float64_products`.
    """
    rows = tables.named(_SLOW, Kind.OP)
    rows = np.setdiff1d(rows, _in_float64(tables, rows))
    if not len(rows):
        return
    spent, limit = tables.cost(rows)
    gain = min(SAVED * spent, limit)
    if tables.share(spent) < HEAVY or not tables.is_worth(gain):
        return
    on_device = len(tables.launched_by(rows)) > 0
    library = "cuDNN" if on_device else "oneDNN"
    backend = "cudnn" if on_device else "mkldnn"
    yield tables.finding(
        "slow-convolution",
        gain,
        title=f"Convolutions take torch's slow path, for {ms(spent)} in a {tables.unit}: {library} is not used.",
        estimate=f"Half of the time of these operators, a careful figure for what {library} gains.",
        evidence=[*tables.by_name(tables.outermost(rows)), *tables.by_line(tables.outermost(rows))],
        advice=(
            f"torch runs a convolution by unfolding the image and multiplying matrices only where {library} is "
            "switched "
            "off, is not there, or does not know the case. Look for a line or an environment that switches it off, ask "
            "the library whether it is available, and install a build of torch that has it."
        ),
        code=f"torch.backends.{backend}.enabled = True\nprint(torch.backends.{backend}.is_available())",
    )


def layout_conversions(tables: Tables) -> Iterator[Finding]:
    """Kernels that turn images between NCHW and NHWC take 1% of the step or more.

    Source: `tables.NOTABLE`; the kernels of cuDNN and MIOpen, by their names. Tensor cores want channels last.
    """
    rows = tables.work_named(_LAYOUT, Kind.KERNEL)
    spent = tables.device_ms(rows)
    gain = min(spent, tables.device_limit_ms)
    if not tables.is_worth(gain):
        return
    yield tables.finding(
        "layout-conversions",
        gain,
        title=f"Images are turned between two memory layouts for {ms(spent)} in a {tables.unit}.",
        estimate="The whole time of these kernels, and no more than the host waits for the device.",
        evidence=[f"{tables.often(rows)} kernels in a {tables.unit} only convert", *tables.by_name(rows)],
        advice=(
            "The convolutions compute with channels last, but the tensors lie with channels first, so the library "
            "turns "
            "them before and after. Keep model and images in channels-last memory; shapes and results stay the same. "
            "On "
            "ROCm set PYTORCH_MIOPEN_SUGGEST_NHWC=1 in the environment as well."
        ),
        code=(
            "model = model.to(memory_format=torch.channels_last)\nimages = images.to(memory_format=torch.channels_last)"
        ),
    )


def _in_float64(tables: Tables, rows: Ints) -> Ints:
    """The operators among some slices that take a tensor of float64 with any dimensions."""
    trace = tables.trace
    types, dims = trace.argument("types")[rows], trace.argument("dims")[rows]
    pairs = set(zip(types.tolist(), dims.tolist(), strict=True))
    doubles = {pair for pair in pairs if _has_float64(trace.text(pair[0]), trace.text(pair[1]))}
    chosen = [pair in doubles for pair in zip(types.tolist(), dims.tolist(), strict=True)]
    found: Ints = rows[np.array(chosen, np.bool_)]
    return found


def _has_float64(types: object, dims: object) -> bool:
    if not isinstance(types, list) or not isinstance(dims, list):
        return False
    return any(kind == "double" and bool(shape) for kind, shape in zip(types, dims, strict=False))
