from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.changes import TrainingChange
from perfhooks.trace.names import ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

_COPIES: Final = ("torch.Tensor.to", "torch.Tensor.cuda")
_ZERO_GRAD: Final = (f"torch.optim.{ranges.ZERO_GRAD[:-1]}", "torch.nn.Module.zero_grad")
_ATTENTION: Final = ("torch.nn.MultiheadAttention.forward",)
_READERS: Final = tuple(f"torch.Tensor.{name}" for name in ("item", "tolist", "__float__", "__int__", "__bool__"))
_WAITING, _WRITTEN_OUT, _HOST_BOUND = "waiting-for-data", "written-out-attention", "host-bound"


def _call(
    *names: str, calls: tuple[str, ...], group: str = "", needs: str = "", is_numeric: bool = False, **arguments: Any
) -> TrainingChange:
    return TrainingChange(
        name=names[0],
        rules=names[1:],
        calls=calls,
        group=group,
        needs=needs,
        needs_device="pin_memory" in arguments,
        is_numeric=is_numeric,
        arguments=arguments,
    )


def _statement(name: str, *rules: str, setting: str = "", model: str = "", on_device: bool = False) -> TrainingChange:
    return TrainingChange(name=name, rules=rules, setting=setting, model=model, is_numeric=True, needs_device=on_device)


_loader = functools.partial(_call, calls=("torch.utils.data.DataLoader.__init__",))
_optimizer = functools.partial(_call, calls=("torch.optim.*.__init__",), group="optimizer")
CHANGES: Final = (
    _loader("workers", _WAITING, num_workers=1, persistent_workers=True),
    _loader("prefetch", _WAITING, needs="num_workers", prefetch_factor=4),
    _loader("persistent_workers", _WAITING, needs="num_workers", persistent_workers=True),
    _loader("pin_memory", _WAITING, "blocking-copies", pin_memory=True),
    _call("non_blocking", "blocking-copies", calls=_COPIES, non_blocking=True),
    _optimizer("fused", "optimizer-loop", _HOST_BOUND, fused=True),
    _optimizer("foreach", "optimizer-loop", _HOST_BOUND, foreach=True),
    _call("set_to_none", "zeroed-gradients", calls=_ZERO_GRAD, set_to_none=True),
    _call("fused_attention", _WRITTEN_OUT, calls=_ATTENTION, is_numeric=True, need_weights=False),
    _call("item", "synchronisation", calls=_READERS),
    _statement(
        "cudnn_benchmark", "kernels-below-limit", on_device=True, setting="torch.backends.cudnn.benchmark = True"
    ),
    _statement("matmul_precision", "float32-products", setting='torch.set_float32_matmul_precision("high")'),
    _statement("channels_last", "layout-conversions", model="{model}.to(memory_format=torch.channels_last)"),
    _statement(
        *("bf16", "float32-products"),
        model='{model}.forward = torch.autocast("{device}", dtype=torch.bfloat16)({model}.forward)',
    ),
    _statement("compile", "fusable-chains", _HOST_BOUND, _WRITTEN_OUT, model="{model}.compile()"),
)
"""All changes that ``perfhooks tune`` tries. Statements that change the model run in this order."""


def select(fixes: Mapping[str, str], cores: int, *, all_changes: bool) -> list[TrainingChange]:
    """Return the changes for findings. ``fixes`` maps rules to example code."""
    plan = {
        name: int(value)
        for name, value in re.findall(r"(num_workers|prefetch_factor)=(\d+)", "\n".join(fixes.values()))
    }
    plan = {"num_workers": cores, **({"prefetch_factor": 4} if all_changes else {}), **plan}
    order, selected = list(fixes), list[tuple[int, TrainingChange]]()
    for change in CHANGES:
        places = [order.index(rule) for rule in change.rules if rule in fixes]
        if (places or all_changes) and ("prefetch_factor" in plan or "prefetch_factor" not in change.arguments):
            arguments = {name: plan.get(name, value) for name, value in change.arguments.items()}
            selected.append((min(places, default=len(order)), msgspec.structs.replace(change, arguments=arguments)))
    return [change for _, change in sorted(selected, key=lambda item: item[0])]
