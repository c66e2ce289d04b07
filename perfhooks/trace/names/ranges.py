"""Names of ranges that torch writes around its own work.

Plain texts are prefixes for `Trace.named`. Texts in ``^(...)`` are regular expressions.
"""

from __future__ import annotations

import re
from typing import Final

from perfhooks.core.labels import STEP_MARK

UPDATE: Final = "Optimizer.step#"
"""Prefix of ranges around optimizer updates, for example ``Optimizer.step#AdamW.step``."""
ZERO_GRAD: Final = "Optimizer.zero_grad#"
LOADER: Final = "enumerate(DataLoader)#"
"""Prefix of ranges around DataLoader fetches, before the class of the iterator."""
LOADER_WITH_WORKERS: Final = f"{LOADER}_MultiProcessing"
LOADER_ALONE: Final = f"{LOADER}_SingleProcess"
WRAPPERS: Final = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")

NODE: Final = "autograd::engine::evaluate_function: "
"""Prefix of the ranges of autograd nodes."""
LEAF: Final = "torch::autograd::AccumulateGrad"
"""Node of autograd that stores the gradient of a parameter, or adds to it."""
BACKWARD_CLASS: Final = r"([A-Z]\w*?)Backward\d*$"
"""Class of an autograd node: ``AddmmBackward0`` is the node of ``addmm``."""

CHECKPOINT: Final = "CheckpointFunctionBackward"
"""Node of activation checkpointing with ``use_reentrant=True``."""

MODULE: Final = "nn.Module: "
"""Prefix of the Python frames of modules, before class and number."""

AROUND_MODELS: Final = frozenset(
    (
        *("OptimizedModule", "GraphModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
        *("DeepSpeedEngine", "DistributedModelParallel", "ShardedDataParallel", "FlattenParamsWrapper"),
        *("CheckpointWrapper", "AveragedModel", "Float16Module", "_FabricModule", "_LightningModuleWrapperBase"),
        *("LightningDistributedModule", "MMDistributedDataParallel", "MMFullyShardedDataParallel", "MMDataParallel"),
    )
)
SHARDED: Final = "FSDP"


def class_of_module(name: str) -> str:
    return name.rpartition("_")[0] or name


GARBAGE: Final = "Python GC"
"""Python frame of a garbage collection, recorded with ``record_python_gc_info``."""

COMPILED_REGION: Final = "Torch-Compiled Region"
"""Outermost range of compiled code. In the forward pass, this range contains all other ranges of `COMPILED`."""
COMPILED: Final = rf"^(?:{COMPILED_REGION}|CompiledFunction)|CompiledFxGraph"
"""Ranges of compiled code. Some ranges exist only if the function has gradients, or if inductor compiled it."""

CAPTURING: Final = r"^CUDAGraphNode\.record\b.* \(dynamo_timed\)$"
"""Range of a CUDA graph capture, which torch names like the phases of compilation."""
COMPILING: Final = r"^(?!CUDAGraphNode\.record\b).* \(dynamo_timed\)$"

LIGHTNING: Final = "[pl][profile]"
"""Prefix of labels of Lightning's ``PyTorchProfiler``, which end with the name of a hook."""
LIGHTNING_HOOKS: Final = r"^\[(?:Callback|LightningDataModule|LightningModule|Strategy|_\w+)\]"
"""Labels of hooks that Lightning 2.6 writes without the prefix `LIGHTNING`."""
_BEGINNINGS: Final = (STEP_MARK, "Optimizer.", "enumerate(DataLoader)", COMPILED_REGION, "##", "[pl]")
AROUND_OPERATORS: Final = f"^(?:{'|'.join(map(re.escape, _BEGINNINGS))})"

_LABELS: Final = (STEP_MARK, "Optimizer.", LOADER, "## ", LIGHTNING)
NOT_OPERATORS: Final = rf"(?:{'|'.join(map(re.escape, _LABELS))})"
"""Labels that torch before 1.10, Ascend, and torch's legacy export write as operators."""

MEMORY: Final = "[memory]"
"""Name of an allocation or release, and of torch's row for memory outside of all operators."""
FORWARD_BACKWARD: Final = "fwdbwd"
"""Category of the flows from an operator to the node that computes its gradient."""
HIDDEN: Final = frozenset(
    {
        *(MEMORY, "[OutOfMemory]"),
        *(f"profiler::_record_function_{edge}" for edge in ("enter", "enter_new", "exit")),
        *("aten::is_leaf", "aten::output_nr", "aten::_version"),
    }
)
