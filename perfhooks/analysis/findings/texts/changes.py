from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from perfhooks.core.changes import TrainingChange
from perfhooks.trace.names import ranges

if TYPE_CHECKING:
    from collections.abc import Mapping

_LOADER: Final = ("torch.utils.data.DataLoader.__init__",)
_OPTIMIZERS: Final = ("torch.optim.*.__init__",)


def _loader(
    name: str, *rules: str, needs: str = "num_workers", on_device: bool = False, **arguments: Any
) -> TrainingChange:
    return TrainingChange(
        name=name, rules=rules, calls=_LOADER, arguments=arguments, needs=needs, needs_device=on_device
    )


def _optimizer(name: str) -> TrainingChange:
    rules = ("optimizer-loop", "host-bound")
    return TrainingChange(name=name, rules=rules, calls=_OPTIMIZERS, arguments={name: True}, group="optimizer")


def _call(name: str, *rules: str, calls: tuple[str, ...], is_numeric: bool = False, **arguments: Any) -> TrainingChange:
    return TrainingChange(name=name, rules=rules, calls=calls, arguments=arguments, is_numeric=is_numeric)


def _statement(name: str, *rules: str, setting: str = "", model: str = "", on_device: bool = False) -> TrainingChange:
    return TrainingChange(name=name, rules=rules, setting=setting, model=model, is_numeric=True, needs_device=on_device)


_WAITING: Final = "waiting-for-data"
CHANGES: Final = (
    _loader("workers", _WAITING, needs="", num_workers=1, persistent_workers=True),
    _loader("prefetch", _WAITING, prefetch_factor=4),
    _loader("persistent_workers", _WAITING, persistent_workers=True),
    _loader("pin_memory", _WAITING, "blocking-copies", needs="", on_device=True, pin_memory=True),
    _call("non_blocking", "blocking-copies", calls=("torch.Tensor.to", "torch.Tensor.cuda"), non_blocking=True),
    _optimizer("fused"),
    _optimizer("foreach"),
    _call(
        *("set_to_none", "zeroed-gradients"),
        calls=(f"torch.optim.{ranges.ZERO_GRAD[:-1]}", "torch.nn.Module.zero_grad"),
        set_to_none=True,
    ),
    _call(
        *("fused_attention", "written-out-attention"),
        calls=("torch.nn.MultiheadAttention.forward",),
        is_numeric=True,
        need_weights=False,
    ),
    _statement(
        "cudnn_benchmark", "kernels-below-limit", on_device=True, setting="torch.backends.cudnn.benchmark = True"
    ),
    _statement("matmul_precision", "float32-products", setting='torch.set_float32_matmul_precision("high")'),
    _statement("channels_last", "layout-conversions", model="{model}.to(memory_format=torch.channels_last)"),
    _statement(
        *("bf16", "float32-products"),
        model='{model}.forward = torch.autocast("{device}", dtype=torch.bfloat16)({model}.forward)',
    ),
    _statement("compile", "fusable-chains", "host-bound", "written-out-attention", model="{model}.compile()"),
)
"""All changes that ``perfhooks tune`` tries. Statements that change the model run in this order."""


def select(fixes: Mapping[str, str], cores: int, *, all_changes: bool) -> list[TrainingChange]:
    """Return the changes for findings. ``fixes`` maps rules to example code."""
    plan = {
        name: int(value)
        for name, value in re.findall(r"(num_workers|prefetch_factor)=(\d+)", "\n".join(fixes.values()))
    }
    defaults = {"num_workers": cores, **({"prefetch_factor": 4} if all_changes else {})}
    order, selected = list(fixes), list[tuple[int, TrainingChange]]()
    for change in CHANGES:
        values = {name: (defaults | plan)[name] for name in change.arguments if name in defaults | plan}
        is_planned = bool(values) or not {"num_workers", "prefetch_factor"} & set(change.arguments)
        places = [order.index(rule) for rule in change.rules if rule in fixes]
        if is_planned and (places or all_changes):
            selected.append(
                (min(places, default=len(order)), msgspec.structs.replace(change, arguments=change.arguments | values))
            )
    return [change for _, change in sorted(selected, key=lambda item: item[0])]
