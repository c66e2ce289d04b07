"""Which operators are GEMMs, convolutions, attention, updates and so on, where a rule or a formula needs them by name.

What kind of work any operator is says `perfhooks.trace.names.work_kinds`.

A text that begins with ``^`` is a regular expression for a whole name, or its beginning, as it is written in a trace.
"""

from __future__ import annotations

import re
from typing import Final

NAMESPACE: Final = "aten::"
FOREACH: Final = "_foreach_"
"""How operators on many tensors at once begin, after their namespace."""

FACTORS: Final = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""GEMMs that torch counts the operations of, and which of their arguments are the matrices."""
SCALED_GEMM: Final = "aten::_scaled_mm"
"""Of float8."""
ACTIVATED_GEMM: Final = "aten::_addmm_activation"
BATCHED_GEMMS: Final = r"^aten::(?:bmm|baddbmm)(?:\.out)?$"
"""As attention that is written out consists of."""
_UNFOLDING: Final = r"(?:\w*slow_conv\w+|thnn_conv2d)"
UNFOLDING: Final = rf"^aten::{_UNFOLDING}$"
"""Convolutions by unfolding the image and one GEMM, torch's path where it has no library."""
CONVOLUTIONS: Final = rf"^aten::(?:conv(?:_transpose)?[123]d|\w*convolution\w*|{_UNFOLDING})$"
LIBRARY_CONVOLUTIONS: Final = r"^aten::(?:mkldnn|cudnn|miopen)_convolution"
SEARCHED_CONVOLUTIONS: Final = r"^aten::(?:cudnn|miopen)_convolution|^aten::convolution_backward$"
"""Those in which a library may try out several kernels: oneDNN tries none, and the backward pass is one operator."""
GEMMS: Final = rf"{CONVOLUTIONS}|^aten::(?:mm|addmm_?|bmm|baddbmm|mv|addmv|linear|linear_backward|matmul|einsum)$"
"""Dense GEMMs and convolutions: what a change of precision changes. The kind of work has outer and sparse products as
well."""
BETWEEN_ATTENTION: Final = r"^aten::(?:mm|addmm|_scaled_mm|convolution|convolution_backward|_flash_attention\w*)$"
"""GEMMs that are not batched, innermost ones only (``linear`` holds ``addmm``), and fused attention: what two batched
ones of one attention never have between them."""
TANH: Final = r"^aten::tanh(?:_|_backward)?$"
ACTIVATIONS: Final = r"^aten::(?:leaky_relu|relu|elu|gelu|silu|sigmoid|softplus|prelu)(?:_|_backward)?$"
FIRST: Final = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::embedding", "aten::matmul")
"""What a model does with its input first."""
CONV2D: Final = "aten::conv2d"
CALLED_BY_MODELS: Final = (
    *("aten::linear", "aten::matmul", "aten::conv1d", CONV2D, "aten::conv3d", "aten::conv_transpose2d"),
    *("aten::scaled_dot_product_attention", "aten::bilinear", "aten::einsum"),
)
"""What a forward pass calls and no formula of a gradient."""
DISPATCHERS: Final = ("PythonDispatchMode", "PythonSubclass")
"""What torch records around the calls of a dispatch mode, and of a subclass of tensors."""
COUNTED_ELEMENTWISE: Final = ("aten::mul", "aten::add")
"""What torch counts the operations of, with `FACTORS` and `CONV2D`."""
GENERAL_CONVOLUTIONS: Final = ("aten::convolution", "aten::_convolution")
PADDING_OF_CONVOLUTIONS: Final = {
    "aten::cudnn_convolution": 2,
    "aten::miopen_convolution": 3,
    "aten::mkldnn_convolution": 3,
}
"""Convolutions of libraries, and from which argument on they are given padding, stride and dilation."""
ALLOW_TF32: Final = {"aten::_convolution": 12, "aten::cudnn_convolution": 8, "aten::cudnn_convolution_transpose": 9}
"""Convolutions that are told whether they may run as TF32, and the place of that argument, the last one."""
CONVOLUTION_BACKWARD: Final = "aten::convolution_backward"

ATTENTION: Final = "aten::scaled_dot_product_attention"
ANY_ATTENTION: Final = "attention"
"""In the name of every operator that is attention as a whole, or its gradient."""
SOFTMAX: Final = r"^aten::_softmax$"
SOFTMAX_BACKWARD: Final = r"^aten::_softmax_backward_data$"
FUSED_ATTENTION: Final = tuple(
    f"aten::_scaled_dot_product_{name}"
    for name in (
        *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
        "fused_attention_overrideable",
    )
)
"""What `ATTENTION` calls; ``_backward`` follows in those of gradients."""
FLASH: Final = "aten::_flash_attention"
EFFICIENT: Final = "aten::_efficient_attention"
"""Kernels below these; ``_forward`` or ``_backward`` follows."""
IMAGES: Final = r"^.*(?:conv|pool|batch_norm|upsample|interpolate|group_norm|instance_norm).*$"
"""Operators to whom it matters whether channels are first or last."""

_WITH_BACKWARD: Final = "mse_loss|smooth_l1_loss|huber_loss|binary_cross_entropy"
LOSSES: Final = rf"^aten::(?:nll_loss(?:2d)?_forward|{_WITH_BACKWARD})$"
LOSSES_BACKWARD: Final = rf"^aten::(?:nll_loss(?:2d)?|{_WITH_BACKWARD})_backward$"
"""Losses that have a backward pass of their own; of others, none could be told from none."""
MANY_TENSORS: Final = r"^aten::_(?:foreach|fused)_|multi_tensor"
"""Updates many tensors at once."""
IN_PLACE: Final = r"^aten::\w+_$"
MOMENTUM: Final = r"^aten::mul_$"
"""Of the operators of SGD, the one that only momentum brings."""
ZERO: Final = r"^aten::(?:_foreach_)?zero_$"
MAKING_STATE: Final = r"^aten::zeros_like$"
"""In an update: an optimizer makes what it keeps for each parameter when it first needs it."""
ADDING: Final = r"^aten::add_$"
"""Adds up gradients."""
READERS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")
"""Their result is needed by the host, so that on a device's tensor they wait."""
ALLOCATORS: Final = re.compile(r"aten::(?:new_)?empty(?:_strided|_like|_permuted|_quantized)?|aten::resize_(?:as_)?")
"""They only hand out memory: whoever called them is more worth knowing."""
DATA_PARALLEL: Final = r"^(?:Broadcast|Scatter|Gather)(?:Backward)?$"
"""What ``nn.DataParallel`` copies a batch and a model with."""

CALLED: Final = r"^(?!.*autograd::).*\w::\w"
"""An operator that a program calls: ``aten::mm``, and not a node of autograd."""
AUTOGRAD: Final = r"^(?:(?:torch::)?autograd::|(?!.*::))"
"""autograd's own work between operators."""
FOREIGN: Final = r"^(?!aten::)(?P<namespace>.*?)::"
"""An operator that is not torch's own."""
OPERATOR: Final = r"\w+::|.*Backward\d*$|Optimizer\."
"""The beginning of a frame of stacks that is an operator, or is shown as one."""
