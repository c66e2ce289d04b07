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


def _change(name: str, *rules: str, **fields: Any) -> TrainingChange:
    return TrainingChange(name=name, rules=rules, **fields)


_loader = functools.partial(_change, calls=("torch.utils.data.DataLoader.__init__",))
_optimizer = functools.partial(_change, calls=("torch.optim.*.__init__",), group="optimizer")
_numeric = functools.partial(_change, is_numeric=True)
CHANGES: Final = (
    _loader("workers", _WAITING, arguments={"num_workers": 1, "persistent_workers": True}),
    _loader("prefetch", _WAITING, needs="num_workers", arguments={"prefetch_factor": 4}),
    _loader("persistent_workers", _WAITING, needs="num_workers", arguments={"persistent_workers": True}),
    _loader("pin_memory", _WAITING, "blocking-copies", needs_device=True, arguments={"pin_memory": True}),
    _change("non_blocking", "blocking-copies", calls=_COPIES, arguments={"non_blocking": True}),
    _optimizer("fused", "optimizer-loop", _HOST_BOUND, arguments={"fused": True}),
    _optimizer("foreach", "optimizer-loop", _HOST_BOUND, arguments={"foreach": True}),
    _change("set_to_none", "zeroed-gradients", calls=_ZERO_GRAD, arguments={"set_to_none": True}),
    _numeric("fused_attention", _WRITTEN_OUT, calls=_ATTENTION, arguments={"need_weights": False}),
    _change("item", "synchronisation", calls=_READERS),
    _numeric(
        "cudnn_benchmark", "kernels-below-limit", needs_device=True, setting="torch.backends.cudnn.benchmark = True"
    ),
    _numeric("matmul_precision", "float32-products", setting='torch.set_float32_matmul_precision("high")'),
    _numeric("channels_last", "layout-conversions", model="{model}.to(memory_format=torch.channels_last)"),
    _numeric(
        *("bf16", "float32-products"),
        model='{model}.forward = torch.autocast("{device}", dtype=torch.bfloat16)({model}.forward)',
    ),
    _numeric("compile", "fusable-chains", _HOST_BOUND, _WRITTEN_OUT, model="{model}.compile()"),
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
