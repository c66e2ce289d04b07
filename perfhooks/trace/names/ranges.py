"""Names of what torch writes around its own work: ranges, nodes of autograd, modules, phases of compiling.

A name that begins with a word is found by `Trace.named`; a text in ``^(...)`` is a regular expression.
"""

from __future__ import annotations

import re
from typing import Final

from perfhooks.core.labels import STEP_MARK

UPDATE: Final = "Optimizer.step#"
"""An update; the class of the optimizer follows: ``Optimizer.step#AdamW.step``."""
ZERO_GRAD: Final = "Optimizer.zero_grad#"
LOADER: Final = "enumerate(DataLoader)#"
"""A fetch of PyTorch's DataLoader; the class of its iterator follows."""
LOADER_WITH_WORKERS: Final = f"{LOADER}_MultiProcessing"
LOADER_ALONE: Final = f"{LOADER}_SingleProcess"
WRAPPERS: Final = ("DistributedDataParallel.forward", "FullyShardedDataParallel.forward")
"""The forward pass of a model that several ranks train."""

NODE: Final = "autograd::engine::evaluate_function: "
"""A node of autograd, on whatever thread it runs."""
LEAF: Final = "torch::autograd::AccumulateGrad"
"""The operator that keeps the gradient of a parameter, or adds to it. Its node is `NODE` and this."""
BACKWARD_CLASS: Final = r"([A-Z]\w*?)Backward\d*$"
"""What a node is called after: ``AddmmBackward0`` is that of ``addmm``."""

CHECKPOINT: Final = "CheckpointFunctionBackward"
"""The node of torch's own checkpoint of activations, which computes the forward pass again (``use_reentrant=True``)."""

MODULE: Final = "nn.Module: "
"""The call of a module, where stacks were recorded; its class and a number follow."""

AROUND_MODELS: Final = frozenset(
    (
        *("OptimizedModule", "GraphModule", "DataParallel", "DistributedDataParallel", "FullyShardedDataParallel"),
        *("DeepSpeedEngine", "DistributedModelParallel", "ShardedDataParallel", "FlattenParamsWrapper"),
        *("CheckpointWrapper", "AveragedModel", "Float16Module", "_FabricModule", "_LightningModuleWrapperBase"),
        *("LightningDistributedModule", "MMDistributedDataParallel", "MMFullyShardedDataParallel", "MMDataParallel"),
    )
)
"""Modules that torch, torch.compile and frameworks put around a model: the model is what they call."""
SHARDED: Final = "FSDP"
"""What ``fully_shard`` puts before the name of a class."""


def class_of_module(name: str) -> str:
    """The class of a module as the recorder numbers it: ``Linear_3`` is a ``Linear``."""
    return name.rpartition("_")[0] or name


GARBAGE: Final = "Python GC"
"""A collection of garbage, which torch writes as if it were a frame where ``record_python_gc_info`` asks for it."""

COMPILED_REGION: Final = "Torch-Compiled Region"
"""A call of what torch.compile made, from the outside: it holds all that follows in `COMPILED`, forward only."""
COMPILED: Final = rf"^(?:{COMPILED_REGION}|CompiledFunction)|CompiledFxGraph"
"""All that torch writes around compiled code. A trace may have some and not the others: the function is there only with
gradients, the graph only where inductor compiled."""

CAPTURING: Final = r"^CUDAGraphNode\.record\b.* \(dynamo_timed\)$"
"""torch.compile records a CUDA graph: timed as the phases of compiling are, and none of them."""
COMPILING: Final = r"^(?!CUDAGraphNode\.record\b).* \(dynamo_timed\)$"
"""A phase of compiling."""

LIGHTNING: Final = "[pl][profile]"
"""How the labels of Lightning's ``PyTorchProfiler`` begin; the last word is the hook."""
LIGHTNING_HOOKS: Final = r"^\[(?:Callback|LightningDataModule|LightningModule|Strategy|_\w+)\]"
"""Labels of hooks and loops that Lightning 2.6 writes without the beginning above."""
_BEGINNINGS: Final = (STEP_MARK, "Optimizer.", "enumerate(DataLoader)", COMPILED_REGION, "##", "[pl]")
AROUND_OPERATORS: Final = f"^(?:{'|'.join(map(re.escape, _BEGINNINGS))})"
"""Ranges around operators, which old traces write as if they were operators."""

_LABELS: Final = (STEP_MARK, "Optimizer.", LOADER, "## ", LIGHTNING)
NOT_OPERATORS: Final = rf"(?:{'|'.join(map(re.escape, _LABELS))})"
"""Labels that some recorders write as operators: torch before 1.10, Ascend's, and torch's legacy export."""

MEMORY: Final = "[memory]"
"""Memory that was allocated or released: the instant in a trace, and the row of torch's table for what happened while
nothing that was recorded ran."""
FORWARD_BACKWARD: Final = "fwdbwd"
"""The category of the links from an operator to the node that computes its gradient."""
HIDDEN: Final = frozenset(
    {
        *(MEMORY, "[OutOfMemory]"),
        *(f"profiler::_record_function_{edge}" for edge in ("enter", "enter_new", "exit")),
        *("aten::is_leaf", "aten::output_nr", "aten::_version"),
    }
)
"""Events that torch's table leaves out, as if they had never been."""
