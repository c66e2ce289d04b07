"""Variants of a recorded call; see docs/try.md."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from perfhooks.core.errors import OptionError
from perfhooks.run.circumstances import Circumstances
from perfhooks.trace.names import operators, ranges
from perfhooks.trials import safe
from perfhooks.trials.ready import same_layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from perfhooks.trials.ready import PreparedCall

    Change = Callable[[PreparedCall], PreparedCall | None]
    Test = Callable[[PreparedCall], bool]

_EXACT: Final = 1e-3
"""Maximum relative difference of results if call and variant have the same precision. TF32 or another order of
summation causes smaller differences.
"""
_ROUNDED: Final = 0.05
"""Maximum relative difference of results if the variant has a mantissa of 7 or 10 bits. Errors of 1% to 2% are usual
for bf16.
"""
_OTHER_WAY: Final = 5 * _EXACT
_ALIGNED_SIZE: Final = 8
"""Number of float16 values in 16 bytes. Tensor cores need sizes that are multiples of 8 (NVIDIA, Matrix Multiplication
Background).
"""

_LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_NO_COMPILER: Final = "No working C++ compiler"
"""Beginning of torch's error if there is no compiler."""


@dataclass(frozen=True)
class Variant:
    name: str
    suits: Test
    changed: Change
    """Function that changes a call, and returns None if the change is impossible or has no effect."""
    tolerance: float = _EXACT


def _is_on_cuda(call: PreparedCall) -> bool:
    return any(tensor.is_cuda for tensor in call.tensors())


def _is_named(pattern: str, *, on_cuda: bool | None = None) -> Test:
    names = re.compile(pattern)
    return lambda call: bool(names.fullmatch(call.name)) and on_cuda in (None, _is_on_cuda(call))


# variants with converted inputs; the conversion is not timed


def _with_inputs(convert: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    def changed(call: PreparedCall) -> PreparedCall | None:
        if call.remade is not None or all(convert(tensor) is tensor for tensor in call.tensors()):
            return None
        return call.with_tensors(convert)

    return changed


def _cast(source: torch.dtype, target: torch.dtype) -> Change:
    return _with_inputs(lambda tensor: same_layout(tensor, target) if tensor.dtype == source else tensor)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    layout = _LAYOUTS.get(tensor.dim())
    return tensor if layout is None else tensor.contiguous(memory_format=layout)


def _is_scattered(call: PreparedCall) -> bool:
    layouts = ((tensor, _LAYOUTS.get(tensor.dim(), torch.contiguous_format)) for tensor in call.tensors())
    return any(
        not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=layout) for tensor, layout in layouts
    )


def _has_float64(call: PreparedCall) -> bool:
    return any(tensor.dim() for tensor in call.tensors() if tensor.dtype == torch.float64)


def _is_odd(call: PreparedCall) -> bool:
    factors = [call.arguments[place] for place in operators.FACTORS.get(call.name, ())]
    return any(size % _ALIGNED_SIZE for factor in factors for size in factor.shape[-2:])


def _padded(call: PreparedCall) -> PreparedCall | None:
    if not _is_odd(call):
        return None
    factor_a, factor_b = (call.arguments[index] for index in operators.FACTORS[call.name])
    rows, columns = factor_a.shape[-2], factor_b.shape[-1]
    padded = [_with_margins(argument, argument is factor_a or argument is factor_b) for argument in call.arguments]
    return replace(call, arguments=tuple(padded), result=lambda product: product[..., :rows, :columns])


def _with_margins(argument: Any, is_factor: bool) -> Any:
    if not isinstance(argument, torch.Tensor):
        return argument
    # a size of 1 in the added matrix is a broadcast and stays 1
    margins = [0 if size == 1 and not is_factor else -size % _ALIGNED_SIZE for size in reversed(argument.shape[-2:])]
    if not any(margins):
        return argument
    padded = torch.nn.functional.pad(argument, [width for margin in margins for width in (0, margin)])
    return (
        padded.mT.contiguous().mT if argument.dim() > 1 and argument.stride(-2) == 1 != argument.stride(-1) else padded
    )


def _while(setting: Callable[[], AbstractContextManager[None]], can: Test) -> Change:
    return lambda call: replace(call, setting=setting) if can(call) else None


def _flags(values: Mapping[safe.Flag, Any], can: Test) -> Change:
    def changes(call: PreparedCall) -> bool:
        with call.setting():
            return can(call) and any(flag.value != value for flag, value in values.items())

    return _while(lambda: safe.override_flags(values), changes)


def _attention(kernel: str, backend: Any, *, has_cpu: bool) -> Variant:
    suits = _is_named(operators.ATTENTION) if has_cpu else _is_named(operators.ATTENTION, on_cuda=True)
    change = _while(
        lambda: sdpa_kernel([backend]), lambda call: call.name == operators.ATTENTION and backend is not None
    )
    return Variant(f"attention-{kernel}", suits, change, _OTHER_WAY)


def _with_other_threads(call: PreparedCall) -> PreparedCall | None:
    """Return the call with one thread, or with all CPUs if the call had one thread; None if there is only one CPU."""
    with call.setting():
        number = 1 if safe.THREADS.value > 1 else Circumstances.current().cores or 1
    return _flags({safe.THREADS: number}, _is_on_cpu)(call)


def _remade(implementation: str) -> Change:
    return lambda call: None if call.remade is None else call.remade(implementation)


def _compiled(call: PreparedCall) -> PreparedCall | None:
    if call.remade is not None:
        return None

    def run(*arguments: Any, **keywords: Any) -> Any:
        return call.operator(*arguments, **keywords)

    # torch caches at most eight compilations per code object, so each call needs a separate code object
    function = FunctionType(run.__code__.replace(), globals(), run.__name__, None, run.__closure__)
    compiled_function = torch.compile(function, dynamic=False, fullgraph=True)

    def compiled(*arguments: Any, **keywords: Any) -> Any:
        try:
            return compiled_function(*arguments, **keywords)
        except Exception as error:
            if _NO_COMPILER in str(error):
                raise RuntimeError("torch.compile needs a C++ compiler: install g++, or set CXX") from error
            raise

    return replace(call, operator=compiled)


def _is_update(call: PreparedCall) -> bool:
    return call.remade is not None


_DENSE: Final = f"{operators.GEMMS}|{operators.ATTENTION}"
_is_product = _is_named(_DENSE)
_is_product_on_cuda = _is_named(_DENSE, on_cuda=True)
_is_product_on_cpu = _is_named(_DENSE, on_cuda=False)
_is_convolution_on_cuda = _is_named(operators.CONVOLUTIONS, on_cuda=True)
_is_convolution_on_cpu = _is_named(operators.CONVOLUTIONS, on_cuda=False)
_is_on_cpu = _is_named(".*", on_cuda=False)


def _has_float32_on_cuda(call: PreparedCall) -> bool:
    return any(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in call.tensors())


def _can_have_onednn(call: PreparedCall) -> bool:
    return safe.has_onednn() and _is_on_cpu(call)


_ALLOWING_TF32: Final = _flags(dict.fromkeys(safe.TF32, True), _has_float32_on_cuda)
_SEARCHING: Final = _flags({safe.SEARCHING: True}, _is_convolution_on_cuda)

VARIANTS: Final = (
    Variant("float32", _has_float64, _cast(torch.float64, torch.float32)),
    Variant("bf16", _is_product, _cast(torch.float32, torch.bfloat16), _ROUNDED),
    Variant("fp16", _is_product_on_cuda, _cast(torch.float32, torch.float16), _ROUNDED),
    Variant("tf32", _is_product_on_cuda, _ALLOWING_TF32, _OTHER_WAY),
    Variant("channels_last", _is_named(operators.IMAGES), _with_inputs(_channels_last)),
    Variant("contiguous", _is_scattered, _with_inputs(torch.Tensor.contiguous)),
    Variant("padding", _is_odd, _padded),
    Variant("foreach", _is_update, _remade("foreach")),
    Variant("fused", _is_update, _remade("fused")),
    _attention("math", SDPBackend.MATH, has_cpu=True),
    _attention("flash", SDPBackend.FLASH_ATTENTION, has_cpu=True),
    _attention("efficient", SDPBackend.EFFICIENT_ATTENTION, has_cpu=False),
    _attention("cudnn", getattr(SDPBackend, "CUDNN_ATTENTION", None), has_cpu=False),
    Variant("onednn", _is_product_on_cpu, _flags({safe.ONEDNN: True}, _can_have_onednn)),
    Variant("no-onednn", _is_convolution_on_cpu, _flags({safe.ONEDNN: False}, _can_have_onednn)),
    Variant("cudnn-benchmark", _is_convolution_on_cuda, _SEARCHING, _OTHER_WAY),
    Variant("threads", _is_on_cpu, _with_other_threads),
    Variant(
        "compile", lambda _: False, _compiled, _OTHER_WAY
    ),  # not a default variant: compilation takes seconds, and mainly gains by fusing several calls
)
BY_NAME: Final = {variant.name: variant for variant in VARIANTS}


def select_variants(names: Sequence[str]) -> tuple[Variant, ...]:
    for name in names:
        if name not in BY_NAME:
            raise OptionError(f"variant must be one of {', '.join(BY_NAME)}, got {name!r}")
    return tuple(BY_NAME[name] for name in dict.fromkeys(names)) or VARIANTS


class Advice(NamedTuple):
    operators: str
    variants: tuple[str, ...]


ADVICE: Final = {
    "float32-products": Advice(operators.GEMMS, ("tf32", "bf16")),
    "float64-products": Advice(operators.GEMMS, ("float32",)),
    "slow-convolution": Advice(operators.CONVOLUTIONS, ("onednn",)),
    "layout-conversions": Advice(operators.CONVOLUTIONS, ("channels_last",)),
    "optimizer-loop": Advice(rf"{ranges.UPDATE}.*", ("fused", "foreach")),
}


def advice_for(rule: str) -> Advice:
    if rule not in ADVICE:
        raise OptionError(f"finding must be one of {', '.join(ADVICE)}, got {rule!r}")
    return ADVICE[rule]
