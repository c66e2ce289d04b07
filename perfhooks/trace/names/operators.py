"""Which operators are GEMMs, convolutions, attention, updates and so on: the one place that lists them.

A text that begins with ``^`` is a regular expression for a whole name, or its beginning, as it is written in a trace.
"""

from __future__ import annotations

import re
from typing import Final

from perfhooks.trace.names import communication, device_work

NAMESPACE: Final = "aten::"
FOREACH: Final = "_foreach_"
"""How operators on many tensors at once begin, after their namespace."""

FACTORS: Final = {"aten::mm": (0, 1), "aten::bmm": (0, 1), "aten::addmm": (1, 2), "aten::baddbmm": (1, 2)}
"""GEMMs that torch counts the operations of, and which of their arguments are the matrices."""
SCALED_GEMM: Final = "aten::_scaled_mm"
"""Of float8."""
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
"""Dense products and convolutions: what a change of precision changes. Not all `CATEGORIES` calls so: those have outer
and sparse products as well."""
BETWEEN_ATTENTION: Final = r"^aten::(?:mm|addmm|_scaled_mm|convolution|convolution_backward|_flash_attention\w*)$"
"""GEMMs that are not batched, innermost ones only (``linear`` holds ``addmm``), and fused attention: what two batched
ones of one attention never have between them."""
FIRST: Final = ("aten::linear", "aten::conv1d", "aten::conv2d", "aten::conv3d", "aten::embedding", "aten::matmul")
"""What a model does with its input first."""
CONV2D: Final = "aten::conv2d"
COUNTED_ELEMENTWISE: Final = ("aten::mul", "aten::add")
"""What torch counts the operations of, with `FACTORS` and `CONV2D`."""
GENERAL_CONVOLUTIONS: Final = ("aten::convolution", "aten::_convolution")
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

MANY_TENSORS: Final = r"^aten::_(?:foreach|fused)_|multi_tensor"
"""Updates many tensors at once."""
IN_PLACE: Final = r"^aten::\w+_$"
MOMENTUM: Final = r"^aten::mul_$"
"""Of the operators of SGD, the one that only momentum brings."""
ZERO: Final = r"^aten::(?:_foreach_)?zero_$"
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

# Elementwise are those that torch itself tags as pointwise (torch.Tag.pointwise), with losses, dropout and fused ones.
STEMS: Final = {
    "elementwise": (
        "abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh ceil celu clamp clamp_max clamp_min clip "
        "conj_physical copysign cos cosh deg2rad digamma div elu eq equal erf erfc erfinv exp exp2 expm1 float_power "
        "floor floor_divide fmax fmin fmod frac frexp gcd ge gelu glu gt hardshrink hardsigmoid hardswish hardtanh "
        "heaviside hypot i0 igamma igammac isfinite isinf isnan isneginf isposinf lcm ldexp le leaky_relu lerp lgamma "
        "log log10 log1p log2 log_sigmoid logaddexp logaddexp2 logit lt masked_fill maximum minimum mish mul mvlgamma "
        "nan_to_num ne neg nextafter polygamma positive pow prelu rad2deg reciprocal relu relu6 remainder round rrelu "
        "rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus softshrink sqrt square sub tan tanh "
        "threshold true_divide trunc where xlogy fill zero dropout native_dropout fused_dropout feature_dropout "
        "alpha_dropout mse_loss l1_loss smooth_l1_loss huber_loss binary_cross_entropy "
        "binary_cross_entropy_with_logits kl_div rotary_embedding amp_foreach_non_finite_check_and_unscale "
        "add_relu swiglu silu_and_mul gelu_and_mul"
    ),
    "reduction": (
        "all any amax amin aminmax argmax argmin argsort bincount count_nonzero cumsum cumprod cummax cummin "
        "logcumsumexp logsumexp max min mean median mode nanmean nanmedian nansum norm linalg_vector_norm prod std "
        "std_mean sum trace var var_mean softmax log_softmax safe_softmax masked_softmax ctc_loss sort topk kthvalue "
        "histc"
    ),
    "gemms": (
        "mm bmm addmm baddbmm addbmm addmv addr mv dot vdot outer ger inner tensordot int_mm scaled_mm grouped_mm "
        "scaled_grouped_mm addmm_activation sparse_mm"
    ),
    "copies": "copy copy_from to_copy to clone contiguous cat stack to_dense item local_scalar_dense is_nonzero",
}
"""What kind of work an operator is, by the stem of its name (`stem`)."""

CATEGORIES: Final = (
    ("communication", communication.OPERATORS),
    ("optimizer", r"_fused_?(?:adamw?|sgd|adagrad|lamb|lion)"),
    ("attention", r"attention|attn|fmha|sdpa"),
    ("normalisation", r"(?:batch|layer|group|instance|rms|weight|spectral)_?norm|local_response_norm"),
    ("convolution", r"conv(?!ert)|im2col|col2im|::unfold_backward"),
    (
        "reduction",
        rf"{device_work.TRITON}(?:red|per)_|::_*(?:\w+_)?(?:max|avg)_pool|::_*(?:nll_loss|cross_entropy|unique)",
    ),
    ("elementwise", rf"{device_work.TRITON}poi_|::_*(?:bitwise|logical|special)_"),
    (
        "gemms",
        rf"{device_work.TRITON}tem_|(?<!fb)gemm|gemv|matmul|_mm$|::_*(?:\w+_)?(?:bi)?linear|einsum|cublas",
    ),
)
"""The same, searched for in small letters; the first that is found decides, before the stem does."""

_ENDS: Final = re.compile(r"(?:_(?:backward|backward_data|double_backward|out|jvp|scalar|tensor|list))*_?$")


def stem(name: str) -> str:
    """What an operator does, of its name: ``aten::_foreach_add_`` and ``add_backward`` are ``add``."""
    own = name.rpartition("::")[2].rpartition(": ")[2].lstrip("_").removeprefix(FOREACH.lstrip("_"))
    return _ENDS.sub("", own)
