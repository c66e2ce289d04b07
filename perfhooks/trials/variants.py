"""What is tried with a recorded call, as a table, and which of it a finding advises; docs/try.md says it to users."""

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

    from perfhooks.trials.ready import Ready

    Change = Callable[[Ready], Ready | None]
    Test = Callable[[Ready], bool]

_EXACT: Final = 1e-3
"""How far results may be apart where both compute with the same precision: sums in another order, and TF32's products
rounded to 10 bits of mantissa."""
_ROUNDED: Final = 0.05
"""And where one has 7 or 10 bits of mantissa: an error of 1% to 2% of the largest value is usual for bf16."""
_OTHER_WAY: Final = 5 * _EXACT
"""And where another kernel computes the same."""
_MULTIPLE: Final = 8
"""Elements: 16 bytes of float16, which tensor cores want (NVIDIA, Matrix Multiplication Background); a CPU's registers
hold 8 or 16 float32."""

_LAYOUTS: Final = {4: torch.channels_last, 5: torch.channels_last_3d}
_NO_COMPILER: Final = "No working C++ compiler"
"""What torch says where it finds none, in a sentence that names its own configuration."""


@dataclass(frozen=True)
class Variant:
    """Another way to run a call."""

    name: str
    """One word, as ``--variant`` takes it."""
    suits: Test
    """Whether it makes sense to try it where nobody asked for it by name."""
    changed: Change
    """The call in this way; None where it would be the same call, or cannot be."""
    tolerance: float = _EXACT
    """How far its results may be from those of the call; beyond it they are wrong."""


def _on_cuda(call: Ready) -> bool:
    """Whether it runs on a device that torch calls so."""
    return any(tensor.is_cuda for tensor in call.tensors())


def _named(pattern: str, *, on_cuda: bool | None = None) -> Test:
    """Calls of some operators; None is everywhere, else on a device or on a CPU."""
    names = re.compile(pattern)
    return lambda call: bool(names.fullmatch(call.name)) and on_cuda in (None, _on_cuda(call))


# --- inputs as if they had come in another way: making them so is not timed ---


def _inputs(turned: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """The call with each input turned; None for updates, and where no input would change."""

    def changed(call: Ready) -> Ready | None:
        if call.remade is not None or all(turned(tensor) is tensor for tensor in call.tensors()):
            return None
        return call.with_tensors(turned)

    return changed


def _cast(given: torch.dtype, wanted: torch.dtype) -> Change:
    return _inputs(lambda tensor: same_layout(tensor, wanted) if tensor.dtype == given else tensor)


def _channels_last(tensor: torch.Tensor) -> torch.Tensor:
    layout = _LAYOUTS.get(tensor.dim())
    return tensor if layout is None else tensor.contiguous(memory_format=layout)


def _is_scattered(call: Ready) -> bool:
    """Whether an input lies in memory in another order, unless its channels are last on purpose."""
    layouts = ((tensor, _LAYOUTS.get(tensor.dim(), torch.contiguous_format)) for tensor in call.tensors())
    return any(not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=last) for tensor, last in layouts)


def _has_float64(call: Ready) -> bool:
    return any(tensor.dim() for tensor in call.tensors() if tensor.dtype == torch.float64)


def _is_odd(call: Ready) -> bool:
    """Whether it is a product of matrices of which a size is no multiple."""
    factors = [call.arguments[place] for place in operators.FACTORS.get(call.name, ())]
    return any(size % _MULTIPLE for factor in factors for size in factor.shape[-2:])


def _padded(call: Ready) -> Ready | None:
    """Both factors padded with zeros, and what is added to them."""
    if not _is_odd(call):
        return None
    left, right = (call.arguments[place] for place in operators.FACTORS[call.name])
    rows, columns = left.shape[-2], right.shape[-1]
    made = [_with_margins(given, given is left or given is right) for given in call.arguments]
    return replace(call, arguments=tuple(made), result=lambda product: product[..., :rows, :columns])


def _with_margins(given: Any, is_factor: bool) -> Any:
    if not isinstance(given, torch.Tensor):
        return given
    # what is added may be one number for all columns or rows, and stays so
    margins = [0 if size == 1 and not is_factor else -size % _MULTIPLE for size in reversed(given.shape[-2:])]
    if not any(margins):
        return given
    padded = torch.nn.functional.pad(given, [end for margin in margins for end in (0, margin)])
    # a factor that lay turned in memory lies so still
    return padded.mT.contiguous().mT if given.dim() > 1 and given.stride(-2) == 1 != given.stride(-1) else padded


# --- the same call while something is set ---


def _while(setting: Callable[[], AbstractContextManager[None]], can: Test) -> Change:
    return lambda call: replace(call, setting=setting) if can(call) else None


def _flags(wanted: Mapping[safe.Flag, Any], can: Test) -> Change:
    """The call while flags are set; None where they are so already."""

    def changes(call: Ready) -> bool:
        with call.setting():
            return can(call) and any(flag.value != value for flag, value in wanted.items())

    return _while(lambda: safe.switched(wanted), changes)


def _attention(kernel: str, backend: Any, *, has_cpu: bool) -> Variant:
    suits = _named(operators.ATTENTION) if has_cpu else _named(operators.ATTENTION, on_cuda=True)
    change = _while(
        lambda: sdpa_kernel([backend]), lambda call: call.name == operators.ATTENTION and backend is not None
    )
    return Variant(f"attention-{kernel}", suits, change, _OTHER_WAY)


def _with_other_threads(call: Ready) -> Ready | None:
    """One thread where there are several, and all processors where there is one; None where there is but one."""
    with call.setting():
        wanted = 1 if safe.THREADS.value > 1 else Circumstances.current().cores or 1
    return _flags({safe.THREADS: wanted}, _is_on_cpu)(call)


# --- the same by other code ---


def _remade(way: str) -> Change:
    """The same update by another implementation of its optimizer."""
    return lambda call: None if call.remade is None else call.remade(way)


def _compiled(call: Ready) -> Ready | None:
    """The single call, compiled when it first runs; None for updates."""
    if call.remade is not None:
        return None

    def run(*arguments: Any, **keywords: Any) -> Any:
        return call.operator(*arguments, **keywords)

    # torch keeps what it compiled by the code object, no more than eight for each, and then no longer compiles
    own = FunctionType(run.__code__.replace(), globals(), run.__name__, None, run.__closure__)
    made = torch.compile(own, dynamic=False, fullgraph=True)

    def compiled(*arguments: Any, **keywords: Any) -> Any:
        try:
            return made(*arguments, **keywords)
        except Exception as error:
            if _NO_COMPILER in str(error):
                raise RuntimeError("torch.compile needs a C++ compiler: install g++, or name another in CXX") from error
            raise

    return replace(call, operator=compiled)


def _is_update(call: Ready) -> bool:
    return call.remade is not None


_DENSE: Final = f"{operators.GEMMS}|{operators.ATTENTION}"
_is_product = _named(_DENSE)
_is_product_on_cuda = _named(_DENSE, on_cuda=True)
_is_product_on_cpu = _named(_DENSE, on_cuda=False)
_is_convolution_on_cuda = _named(operators.CONVOLUTIONS, on_cuda=True)
_is_convolution_on_cpu = _named(operators.CONVOLUTIONS, on_cuda=False)
_is_on_cpu = _named(".*", on_cuda=False)


def _has_float32_on_cuda(call: Ready) -> bool:
    return any(tensor.is_cuda and tensor.dtype == torch.float32 for tensor in call.tensors())


def _can_have_onednn(call: Ready) -> bool:
    return safe.has_onednn() and _is_on_cpu(call)


_ALLOWING_TF32: Final = _flags(dict.fromkeys(safe.TF32, True), _has_float32_on_cuda)
_SEARCHING: Final = _flags({safe.SEARCHING: True}, _is_convolution_on_cuda)

VARIANTS: Final = (
    Variant("float32", _has_float64, _cast(torch.float64, torch.float32)),
    Variant("bf16", _is_product, _cast(torch.float32, torch.bfloat16), _ROUNDED),
    Variant("fp16", _is_product_on_cuda, _cast(torch.float32, torch.float16), _ROUNDED),
    Variant("tf32", _is_product_on_cuda, _ALLOWING_TF32, _OTHER_WAY),
    Variant("channels_last", _named(operators.IMAGES), _inputs(_channels_last)),
    Variant("contiguous", _is_scattered, _inputs(torch.Tensor.contiguous)),
    Variant("padding", _is_odd, _padded),
    Variant("foreach", _is_update, _remade("foreach")),
    Variant("fused", _is_update, _remade("fused")),
    _attention("math", SDPBackend.MATH, has_cpu=True),
    _attention("flash", SDPBackend.FLASH_ATTENTION, has_cpu=True),
    _attention("efficient", SDPBackend.EFFICIENT_ATTENTION, has_cpu=False),
    _attention("cudnn", getattr(SDPBackend, "CUDNN_ATTENTION", None), has_cpu=False),  # torch 2.4 has none
    Variant("onednn", _is_product_on_cpu, _flags({safe.ONEDNN: True}, _can_have_onednn)),
    Variant("no-onednn", _is_convolution_on_cpu, _flags({safe.ONEDNN: False}, _can_have_onednn)),  # torch has its own
    Variant("cudnn-benchmark", _is_convolution_on_cuda, _SEARCHING, _OTHER_WAY),
    Variant("threads", _is_on_cpu, _with_other_threads),
    Variant("compile", lambda _: False, _compiled, _OTHER_WAY),  # it takes seconds, and gains between calls
)
"""Every variant, in the order in which they are tried."""
BY_NAME: Final = {variant.name: variant for variant in VARIANTS}


def chosen(names: Sequence[str]) -> tuple[Variant, ...]:
    """Variants by name; all of them where none is named.

    Raises:
        OptionError: There is none of that name.
    """
    for name in names:
        if name not in BY_NAME:
            raise OptionError(f"variant must be one of {', '.join(BY_NAME)}; got {name!r}")
    return tuple(BY_NAME[name] for name in dict.fromkeys(names)) or VARIANTS


class Advice(NamedTuple):
    """How the advice of a finding is tried."""

    operators: str
    """A regular expression for the whole name."""
    variants: tuple[str, ...]


ADVICE: Final = {
    "float32-products": Advice(operators.GEMMS, ("tf32", "bf16")),
    "float64-products": Advice(operators.GEMMS, ("float32",)),
    "slow-convolution": Advice(operators.CONVOLUTIONS, ("onednn",)),
    "layout-conversions": Advice(operators.CONVOLUTIONS, ("channels_last",)),
    "optimizer-loop": Advice(rf"{ranges.UPDATE}.*", ("fused", "foreach")),
}
"""By the name of the rule."""


def advised(rule: str) -> Advice:
    """How to try a finding.

    Raises:
        OptionError: It cannot be tried.
    """
    if rule not in ADVICE:
        raise OptionError(f"finding must be one that can be tried, of {', '.join(ADVICE)}; got {rule!r}")
    return ADVICE[rule]
