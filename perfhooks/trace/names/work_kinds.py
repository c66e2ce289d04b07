"""Classification of kernels and operators into kinds of work, by patterns in their names.

Sources are recorded traces (``tests/data/kernel_kinds.tsv``), torch, and twelve libraries of kernels.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from perfhooks.trace.names import communication

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

KINDS: Final = (
    *("gemms", "convolution", "attention", "normalisation", "elementwise", "reduction", "indexing", "quantisation"),
    *("moe", "ssm", "communication", "copies", "optimizer", "other"),
)

TRITON: Final = r"^triton_"
_FUSED: Final = rf"{TRITON}[a-z]{{2,4}}_fused_"
"""Fused kernels of torch.compile. The letters in the names mean pointwise, reduction, persistent reduction and so on.
"""
_NUMBER: Final = r"\d*(?:_[\dcde]+)?$"

# Operators that only move numbers or change shapes, or that are a separate call (a matrix product).
_MOVES: Final = (
    r"(?:copy|clone|cat|stack|zeros(?:_like)?|constant_pad_nd|slice|view|unsafe_view|reshape|permute|transpose|t|"
    r"unsqueeze|squeeze|expand|select|split(?:_with_sizes)?|unbind|as_strided|contiguous|repeat|alias|mm|bmm|moe_forward|"
    r"scaled_dot_product_[a-z]+_attention)"
)
_LOOKS_UP: Final = r"(?:embedding|index(?:_select|_put|_add)?|unsafe_index(?:_put)?|gather|scatter(?:_add)?|arange)"
_NORM: Final = r"(?:batch|layer|group|instance|rms|qk|l2|weight|spectral)_?norm"
_FUSIONS: Final = (
    ("attention", r"^triton_tem_\w*attention"),
    ("convolution", r"^triton_tem_\w*conv"),
    ("gemms", r"^triton_tem_"),
    ("normalisation", rf"{_FUSED}\w*(?:{_NORM}|mean_(?:\w+_)?rsqrt)"),
    ("reduction", r"^triton_(?:red|per|spl)_"),
    ("copies", rf"{_FUSED}(?:_?{_MOVES}_)+{_NUMBER}"),
    ("indexing", rf"{_FUSED}(?:_?(?:{_MOVES}|{_LOOKS_UP})_)+{_NUMBER}"),
    ("elementwise", _FUSED),
)
_ROUTES: Final = (
    r"moe|expert|rout(?:er|ing)|top_?k_?(?:softmax|gating)|(?:grouped|biased)_?top_?k|token_?permut|unpermute|"
    r"expand_to_fused|fused_mapping|aux_fi"
)
_RECURS: Final = (
    r"mamba|selective_?(?:scan|state)|state_passing|delta_?rule|gated_?delta|(?<![a-z])r?wkv\d?|lightning_attn|linear_attn|"
    r"chunk_(?:state|scan|cumsum|local_cumsum|scaled_dot|fwd|bwd|gla|kda|retention|simple_gla)|recurrent_\w*(?:fwd|bwd)|"
    r"recompute_w_u|solve_tril|(?<![a-z])gdn"
)
_ATTENDS: Final = r"attn|attention|sdpa|fmha"
_CACHE: Final = (
    r"(?:store|append|write|set|save|update|reshape|concat)_?(?:and_)?(?:paged_?|mla_)?(?:(?:kv?|v)_?)?cache|kv_buffer"
)
_INTERPOLATES: Final = r"upsampl|interp(?:olat|_)|grid_?sampl|roi_(?:align|pool)"
_POINTWISE: Final = (
    r"add|sub|mul|div|realdiv|neg|abs|exp|log|sqrt|rsqrt|pow|sin|cos|tanh|sigmoid|eq|ne|lt|le|gt|ge|where|fill|cast|"
    r"lerp|addcmul|addcdiv|amp|mse|bce|searchsorted|bucketize"
)
_LINEAR: Final = (
    r"(?<![a-z])(?:linear(?!_?(?:interp|to_|quant|cross|index|scale|ramp|space))|mlp|ffn|(?:qkv|gate|up|down|out)_?proj|"
    r"b?mm|addmm|mat_?vec)(?![a-z]*(?:index|space))"
)
_QUANTISES: Final = (
    r"quant(?!ile|ity)|per_(?:token|channel|tensor|block|group)_cast|cast_(?:back|to_fp\d|transpose)|"
    r"cvt_\w*to_(?:fp[48]|mx)"
)


class Clue(NamedTuple):
    kind: str
    pattern: str
    of: Literal["name", "own"] = "name"
    """Text to search: the full name, or only the name of the function, because words such as ``copy`` occur in
    template arguments.
    """


KERNELS: Final = (
    *(Clue(*fusion) for fusion in _FUSIONS),
    Clue("optimizer", r"(?:fused|multi_tensor)\w*(?:adam|sgd|adagrad|lamb(?!da)|lion)"),
    Clue("optimizer", r"(?:adam|sgd|adagrad|lamb|lion)w?_?functor|(?<![a-z])k(?:precondition)?optimizer"),
    Clue("indexing", _CACHE),
    Clue("moe", rf"{_ROUTES}|bitmatrix|matmul_ogs|finalize_matmul|writeback_idx|get_dispatch_layout"),
    Clue("ssm", _RECURS),
    Clue("reduction", r"l[2p]_?norm_?functor|vector_norm"),
    Clue("normalisation", rf"{_NORM}|\bbn_(?:fw|bw)|\bln_(?:fwd|bwd)|welford(?!ops)|rowwise_?moments|gamma_?beta"),
    Clue("normalisation", r"compute(?:internalgradients|(?:backward)?fusedparams)"),
    Clue("attention", rf"flash(?!infer)|{_ATTENDS}|(?<![a-z])(?:mha|mla|sage)_|fwd_(?:grouped_)?kernel_stage"),
    Clue("attention", r"flashinfer::\w*(?:prefill|decode)|merge_?states?"),
    Clue(
        "convolution", r"conv(?!ert)|[wd]grad|fprop|winograd|igemm_(?:fwd|bwd|wrw)|implicit_?gemm|bwd_(?:weight|data)"
    ),
    Clue("convolution", r"[sh]cudnn|cask\w*cudnn|subtensorop|im2d?2?col|col2im|fft[12]d_[rc]2[rc]|sum_complex"),
    Clue("convolution", r"nchwtonhwc|nhwctonchw|^batched_transpose_\d+x\d+|transpose_\w*nchw|flip_filter"),
    Clue("reduction", r"top_?k|top_?p(?![a-z])|sampling|(?<![a-z])sort|radix_?sort|bitonic_?sort|unique", "own"),
    Clue("copies", r"(?<![a-z])(?<!index_)copy(?![a-z])", "own"),
    Clue("elementwise", r"rotary|(?<![a-z])rope(?![a-z])|tri[ul]_|arange|_range(?![a-z])|position", "own"),
    Clue("indexing", r"(?<!with_)index(?!ed)|gather|scatter|embedding|_embs?(?![a-z])|_eb_|indices|token_ids", "own"),
    Clue("indexing", r"alloc_(?:decode|extend)", "own"),  # slots of tokens in SGLang
    Clue("indexing", rf"sparse|dense_representation|permute_\w*(?:data|lengths)|{_INTERPOLATES}", "own"),
    Clue("indexing", r"(?<![a-z_])compute_cuda_kernel", "own"),  # of repeat_interleave
    Clue("copies", r"catarray|\w_copy_kernel|^dma_"),
    Clue("copies", r"copy|mem(?:cpy|set)|(?<!cast_)(?<!and_)transpose|roll_|flip|chunk_cat", "own"),
    Clue("copies", r"concat|transdata|tensormove|fill_?buffer", "own"),
    Clue("gemms", r"(?<!fb)gemm|gemv|cijk_|nvjet|xmma|matmul|cublas|rocblas|(?<![a-z])bmm_|dot_kernel|splitkreduce"),
    Clue("gemms", r"(?<!kernel_)cutlass(?!::(?:t?b?float|half|u?int))|marlin|machete|^fc\b"),
    Clue("reduction", r"(?<![a-z])reduce(?:sum|mean|max|min|prod|all|any)?d?(?![a-z])|reduce_?kernel|_kernel_agent"),
    Clue(
        "reduction", r"device_?(?:reduce|scan|compact|segmented|select|merge|histogram)|rocprim|scan_|cum(?:sum|prod)"
    ),
    Clue("reduction", r"soft_?max|arg_?(?:max|min)|(?:min|max)_dim|_pool(?!ed)|pooling"),
    Clue("reduction", r"nll_?(?:loss|criterion)|cross_?entropy|ctc_loss"),
    Clue("gemms", _LINEAR, "own"),
    Clue("elementwise", r"elem(?:ent)?_?wise|pointwise|multi_tensor_apply|fillfunctor|^fused_\w*_\d{8,}$"),
    Clue("elementwise", r"dropout|[gr]elu|silu|swish|glu(?![a-z])|act_and_mul|rescale|scalepacked|clamp"),
    Clue("quantisation", rf"{_QUANTISES}|cast_and_transpose|scaled_fp8|fp8_?rowwise|qparam"),
    Clue("elementwise", rf"(?<![a-z])(?:{_POINTWISE})(?![a-z])", "own"),
)

OPERATORS: Final = (
    Clue("communication", communication.OPERATORS),
    Clue("communication", r"^(?:broadcast|scatter|gather)$"),  # of nn.DataParallel
    *(Clue(*fusion) for fusion in _FUSIONS),
    Clue("optimizer", r"_fused_?(?:adamw?|sgd|adagrad|lamb|lion)"),
    Clue("indexing", _CACHE),
    Clue("moe", rf"::\w*(?:{_ROUTES})"),
    Clue("ssm", _RECURS),
    Clue("attention", _ATTENDS),
    Clue("normalisation", rf"{_NORM}|local_response_norm"),
    Clue("convolution", r"conv(?!ert)|im2col|col2im|::unfold_backward"),
    Clue("indexing", rf"::\w*(?:(?<!rotary_)embedding|permute_\w*(?:data|lengths)|bounds_check|{_INTERPOLATES})"),
    Clue("reduction", r"::_*(?:\w+_)?(?:max|avg)_pool|::_*(?:nll_loss|cross_entropy|unique)|::\w*sampling"),
    Clue("elementwise", r"::_*(?:bitwise|logical|special)_|::\w*_and_mul"),
    Clue("gemms", r"(?<!fb)gemm|gemv|matmul|_mm$|::_*(?:\w+_)?(?:bi)?linear|einsum|cublas|marlin"),
    Clue("quantisation", rf"::\w*(?:{_QUANTISES}|choose_qparams)"),
)
"""Patterns of operator names for each kind of work. The first match decides; `STEMS` covers other names."""

# elementwise: torch.Tag.pointwise, losses, dropout, random numbers and fills
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
        "amp_update_scale add_relu swiglu divide multiply subtract bce_with_logits bucketize searchsorted tril triu "
        "tril_indices triu_indices arange linspace eye full ones zeros rand randn randint randperm normal uniform "
        "bernoulli exponential geometric cauchy log_normal random"
    ),
    "reduction": (
        "all any amax amin aminmax argmax argmin argsort bincount count_nonzero cumsum cumprod cummax cummin "
        "logcumsumexp logsumexp max min mean median mode nanmean nanmedian nansum norm linalg_vector_norm prod std "
        "std_mean sum trace var var_mean softmax log_softmax safe_softmax masked_softmax ctc_loss sort topk kthvalue "
        "histc multinomial"
    ),
    "gemms": (
        "mm bmm addmm baddbmm addbmm addmv addr mv dot vdot outer ger inner tensordot int_mm scaled_mm grouped_mm "
        "scaled_grouped_mm addmm_activation sparse_mm"
    ),
    "indexing": (
        "embedding embedding_dense embedding_renorm index index_select index_put index_put_impl index_add index_copy "
        "index_fill index_reduce unsafe_index unsafe_index_put gather scatter scatter_add scatter_reduce take "
        "take_along_dim put masked_select masked_scatter nonzero repeat_interleave one_hot"
    ),
    "copies": (
        "copy copy_from to_copy to clone contiguous cat stack to_dense item local_scalar_dense is_nonzero repeat tile "
        "roll flip rot90 pad constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
        "chunk_cat split_with_sizes_copy"
    ),
}

_BY_STEM: Final = {stem: kind for kind, stems in STEMS.items() for stem in stems.split()}
_ENDS: Final = re.compile(r"(?:_(?:backward|backward_data|double_backward|out|jvp|scalar|tensor|list))*_?$")
_FOREACH: Final = "foreach_"
_ANONYMOUS: Final = "(anonymous namespace)::"
_END_OF_OWN: Final = re.compile(r"[<(]")
_DTYPE: Final = re.compile(r"-dtype_.*$")
"""Suffix of kernel names on MTIA devices. Without the suffix, the names are names of operators."""


@functools.lru_cache(maxsize=2048)
def of_kernel(name: str) -> str:
    plain = _beginning(name).replace(_ANONYMOUS, "")
    return _first_match(plain, _searches(KERNELS)) or _of_operator(f"::{_DTYPE.sub('', plain)}")


@functools.lru_cache(maxsize=2048)
def of_operator(name: str) -> str:
    return _of_operator(_beginning(name))


def _beginning(name: str) -> str:
    return name[:600].lower()


def _of_operator(name: str) -> str:
    return _first_match(name, _searches(OPERATORS)) or _BY_STEM.get(stem(name), "other")


def _first_match(name: str, searches: Iterable[tuple[Clue, Callable[[str], object]]]) -> str | None:
    texts = {"name": name, "own": _END_OF_OWN.split(name, maxsplit=1)[0]}
    return next((rule.kind for rule, search in searches if search(texts[rule.of])), None)


@functools.cache
def _searches(rules: tuple[Clue, ...]) -> list[tuple[Clue, Callable[[str], object]]]:
    return [(rule, re.compile(rule.pattern).search) for rule in rules]


def stem(name: str) -> str:
    own_name = name.rpartition("::")[2].rpartition(": ")[2].partition(".")[0].lstrip("_").removeprefix(_FOREACH)
    return _ENDS.sub("", own_name)
