"""Names of ranges that torch writes around its own work.

Plain texts are prefixes for `Trace.named`. Texts in ``^(...)`` are regular expressions.
"""

from __future__ import annotations

import re
from typing import Final

from perfhooks.core.labels import STEP_MARK

UPDATE: Final = "Optimizer.step#"
"""The class of the optimizer follows: ``Optimizer.step#AdamW.step``."""
ZERO_GRAD: Final = "Optimizer.zero_grad#"
LOADER: Final = "enumerate(DataLoader)#"
"""The class of the iterator follows."""
LOADER_WITH_WORKERS: Final = f"{LOADER}_MultiProcessing"
LOADER_ALONE: Final = f"{LOADER}_SingleProcess"
WRAPPERS: Final = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")

NODE: Final = "autograd::engine::evaluate_function: "
"""A node of autograd, on any thread."""
LEAF: Final = "torch::autograd::AccumulateGrad"
"""Stores the gradient of a parameter, or adds to it."""
BACKWARD_CLASS: Final = r"([A-Z]\w*?)Backward\d*$"
"""``AddmmBackward0`` is the node of ``addmm``."""

CHECKPOINT: Final = "CheckpointFunctionBackward"
"""The node of activation checkpointing with ``use_reentrant=True``."""

MODULE: Final = "nn.Module: "
"""The class and a number follow."""

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
"""The outermost range of compiled code. In the forward pass it contains all other ranges of `COMPILED`."""
COMPILED: Final = rf"^(?:{COMPILED_REGION}|CompiledFunction)|CompiledFxGraph"
"""A trace may have only some: the function needs gradients, and the graph needs inductor."""

CAPTURING: Final = r"^CUDAGraphNode\.record\b.* \(dynamo_timed\)$"
"""Capturing a CUDA graph. torch times it like the phases of compilation, but it is none."""
COMPILING: Final = r"^(?!CUDAGraphNode\.record\b).* \(dynamo_timed\)$"

LIGHTNING: Final = "[pl][profile]"
"""Lightning's ``PyTorchProfiler``. The last word of a label is the hook."""
LIGHTNING_HOOKS: Final = r"^\[(?:Callback|LightningDataModule|LightningModule|Strategy|_\w+)\]"
"""Labels that Lightning 2.6 writes without `LIGHTNING`."""
_BEGINNINGS: Final = (STEP_MARK, "Optimizer.", "enumerate(DataLoader)", COMPILED_REGION, "##", "[pl]")
AROUND_OPERATORS: Final = f"^(?:{'|'.join(map(re.escape, _BEGINNINGS))})"
"""Old traces write these ranges as operators."""

_LABELS: Final = (STEP_MARK, "Optimizer.", LOADER, "## ", LIGHTNING)
NOT_OPERATORS: Final = rf"(?:{'|'.join(map(re.escape, _LABELS))})"
"""Labels that torch before 1.10, Ascend, and torch's legacy export write as operators."""

MEMORY: Final = "[memory]"
"""An allocation or release, and torch's row for memory outside of all operators."""
FORWARD_BACKWARD: Final = "fwdbwd"
"""Flows from an operator to the node that computes its gradient."""
HIDDEN: Final = frozenset(
    {
        *(MEMORY, "[OutOfMemory]"),
        *(f"profiler::_record_function_{edge}" for edge in ("enter", "enter_new", "exit")),
        *("aten::is_leaf", "aten::output_nr", "aten::_version"),
    }
)
