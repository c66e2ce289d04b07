"""Names of operators for rules and formulas. Texts that begin with ``^`` are regular expressions."""

from __future__ import annotations

import re
from typing import Final

NAMESPACE: Final = "aten::"
FOREACH: Final = "_foreach_"
"""Prefix of operators on lists of tensors, after ``aten::``."""

FACTORS: Final = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""GEMMs whose operations torch counts, each with the indices of its two matrices."""
SCALED_GEMM: Final = "aten::_scaled_mm"
ACTIVATED_GEMM: Final = "aten::_addmm_activation"
LAYER_GEMMS: Final = {"aten::mm": (0, 1), "aten::addmm": (1, 2), SCALED_GEMM: (0, 1), ACTIVATED_GEMM: (1, 2)}
"""GEMMs of linear layers, each with the indices of the input and the weight."""
BATCHED_GEMMS: Final = r"^aten::(?:bmm|baddbmm)(?:\.out)?$"
"""Batched matrix products, which also compute attention without a fused kernel."""
_UNFOLDING: Final = r"(?:\w*slow_conv\w+|thnn_conv2d)"
UNFOLDING: Final = rf"^aten::{_UNFOLDING}$"
"""Convolutions that unfold the image and call one GEMM, without a library for convolutions."""
CONVOLUTIONS: Final = rf"^aten::(?:conv(?:_transpose)?[123]d|\w*convolution\w*|{_UNFOLDING})$"
LIBRARY_CONVOLUTIONS: Final = r"^aten::(?:mkldnn|cudnn|miopen)_convolution"
SEARCHED_CONVOLUTIONS: Final = r"^aten::(?:cudnn|miopen)_convolution|^aten::convolution_backward$"
"""Convolutions for which a library may try several kernels."""
GEMMS: Final = rf"{CONVOLUTIONS}|^aten::(?:mm|addmm_?|bmm|baddbmm|mv|addmv|linear|linear_backward|matmul|einsum)$"
"""Dense GEMMs and convolutions, whose speed depends on the precision."""
BETWEEN_ATTENTION: Final = r"^aten::(?:mm|addmm|_scaled_mm|convolution|convolution_backward|_flash_attention\w*)$"
"""Operators that never run between the two batched GEMMs of one attention."""
RANDOM_MASK: Final = r"^aten::(?:bernoulli_|native_dropout)$"
TANH: Final = r"^aten::tanh(?:_|_backward)?$"
ACTIVATIONS: Final = r"^aten::(?:leaky_relu|relu|elu|gelu|silu|sigmoid|softplus|prelu)(?:_|_backward)?$"
FIRST: Final = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::embedding", "aten::matmul")
CONV2D: Final = "aten::conv2d"
CALLED_BY_MODELS: Final = (
    *("aten::linear", "aten::matmul", "aten::conv1d", CONV2D, "aten::conv3d", "aten::conv_transpose2d"),
    *("aten::scaled_dot_product_attention", "aten::bilinear", "aten::einsum"),
)
"""Operators that only a forward pass calls, never the gradient formulas of torch."""
DISPATCHERS: Final = ("PythonDispatchMode", "PythonSubclass")
"""Names of ranges that torch writes around the calls of a dispatch mode, and of a tensor subclass."""
COUNTED_ELEMENTWISE: Final = ("aten::mul", "aten::add")
GENERAL_CONVOLUTIONS: Final = ("aten::convolution", "aten::_convolution")
PADDING_OF_CONVOLUTIONS: Final = {
    "aten::cudnn_convolution": 2,
    "aten::miopen_convolution": 3,
    "aten::mkldnn_convolution": 3,
}
"""Index of the argument ``padding`` for each operator, before the arguments stride and dilation."""
ALLOW_TF32: Final = {"aten::_convolution": 12, "aten::cudnn_convolution": 8, "aten::cudnn_convolution_transpose": 9}
"""Index of the last argument, ``allow_tf32``, for each operator."""
CONVOLUTION_BACKWARD: Final = "aten::convolution_backward"

ATTENTION: Final = "aten::scaled_dot_product_attention"
ANY_ATTENTION: Final = "attention"
"""Part of the name of each operator that computes attention in one call, or its gradient."""
SOFTMAX: Final = r"^aten::_softmax$"
SOFTMAX_BACKWARD: Final = r"^aten::_softmax_backward_data$"
FUSED_ATTENTION: Final = tuple(
    f"aten::_scaled_dot_product_{name}"
    for name in (
        *("flash_attention", "flash_attention_for_cpu", "efficient_attention", "cudnn_attention"),
        "fused_attention_overrideable",
    )
)
"""Operators that `ATTENTION` calls, one for each backend. Gradient operators add the suffix ``_backward``."""
FLASH: Final = "aten::_flash_attention"
EFFICIENT: Final = "aten::_efficient_attention"
IMAGES: Final = r"^.*(?:conv|pool|batch_norm|upsample|interpolate|group_norm|instance_norm).*$"
"""Operators whose speed depends on the memory format of images (channels first or last)."""

LOSSES: Final = r"^aten::(?:nll_loss(?:2d)?_forward|mse_loss|smooth_l1_loss|huber_loss|binary_cross_entropy)$"
MANY_TENSORS: Final = r"^aten::_(?:foreach|fused)_|multi_tensor"
IN_PLACE: Final = r"^aten::\w+_$"
MOMENTUM: Final = r"^aten::mul_$"
ZERO: Final = r"^aten::(?:_foreach_)?zero_$"
MAKING_STATE: Final = r"^aten::zeros_like$"
"""Operator that creates the state of a parameter at its first update."""
ADDING: Final = r"^aten::add_$"
READERS: Final = ("aten::item", "aten::_local_scalar_dense", "aten::nonzero")
"""Operators whose result the host needs, so they wait for the device."""
ALLOCATORS: Final = re.compile(r"aten::(?:new_)?empty(?:_strided|_like|_permuted|_quantized)?|aten::resize_(?:as_)?")
"""Operators that only allocate memory. Reports name the caller of such an operator instead."""
DATA_PARALLEL: Final = r"^(?:Broadcast|Scatter|Gather)(?:Backward)?$"

CALLED: Final = r"^(?!.*autograd::).*\w::\w"
"""Operators that a program calls, in contrast to nodes of autograd."""
AUTOGRAD: Final = r"^(?:(?:torch::)?autograd::|(?!.*::))"
FOREIGN: Final = r"^(?!aten::)(?P<namespace>.*?)::"
OPERATOR: Final = r"\w+::|.*Backward\d*$|Optimizer\."
"""Stack frames that are operators, or that reports show as operators."""
