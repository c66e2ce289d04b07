"""Flame graphs as data: folded stacks as a tree of few nodes, in columns."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perfhooks.report import json_values as plain

if TYPE_CHECKING:
    from collections.abc import Mapping

OTHER: Final = "(other)"
"""The node of what is too small to be seen."""

KINDS: Final = ("code", "library", "module", "operator", "runtime", "label", "kernel", "other")
"""What a frame can be: one's own Python code, installed Python code, an ``nn.Module``, an operator, a call into the
runtime of a device, a label, work of a device."""

_INSTALLED: Final = frozenset(sys.stdlib_module_names) | {
    *("torch", "torchvision", "torchaudio", "torchtext", "torchmetrics", "functorch", "triton", "perfhooks"),
    *(
        "lightning",
        "pytorch_lightning",
        "lightning_fabric",
        "lightning_utilities",
        "jsonargparse",
        "perfhooks_lightning",
    ),
    *(
        "mmengine",
        "mmcv",
        "mmdet",
        "mmpretrain",
        "mmseg",
        "perfhooks_mmengine",
        "transformers",
        "accelerate",
        "datasets",
    ),
    *("deepspeed", "timm", "apex", "xformers", "vllm", "numpy", "scipy", "pandas", "PIL", "cv2", "albumentations"),
    *(
        "tqdm",
        "rich",
        "tensorboard",
        "tensorboardX",
        "wandb",
        "mlflow",
        "fsspec",
        "huggingface_hub",
        "typing_extensions",
    ),
}
"""Packages that nobody profiles as their own: the recorder cuts the folder they are installed in off their paths."""

_PLACE: Final = re.compile(r"(\w+)[/.].*\(\d+\): ")

_KIND_OF: Final = (
    ("other", re.compile(r"\((?:other|skipped|unknown|outside)\)$")),
    ("module", re.compile(r"nn\.Module: ")),
    ("library", re.compile(r"<|(?:.*/)?(?:site-packages|dist-packages|python3\.\d+)/")),
    ("code", re.compile(r".+\(\d+\): ")),
    ("runtime", re.compile(r"(?:cuda|hip|cu|hsa_|ze|musa|mu|cnrt|acl|rt)[A-Z_]\w*$")),
    ("operator", re.compile(r"\w+::|.*Backward\d*$|Optimizer\.")),
)


@dataclass
class _Node:
    name: str
    total: int = 0
    children: dict[str, _Node] = field(default_factory=dict)


def kind(name: str) -> str:
    """What a frame is, by its name; a name that tells nothing is a label's."""
    place = _PLACE.match(name)
    if place and place[1] in _INSTALLED:
        return "library"
    return next((found for found, pattern in _KIND_OF if pattern.match(name)), "label")


def tree(stacks: Mapping[str, int], *, share: float = 0.001, nodes: int = 1500, leaves: str = "") -> dict[str, Any]:
    """Make a flame graph's data from folded stacks.

    Nodes below a share of the whole are summed in a node ``(other)`` of their parent, so that a node's value is what
    it cost by itself and the sum of its children's.

    Args:
        stacks: What `perfhooks.trace.stacks.folded` gives.
        share: The least share of the whole that a node has.
        nodes: The greatest number of nodes; where there are more, the share is raised.
        leaves: The kind of all leaves, where they are of one.

    Returns:
        ``names`` and ``kinds`` (an index into `KINDS`) of the distinct frames; ``parent`` (-1 for the root), ``frame``
        and ``value`` of the nodes, parents before their children, siblings by value.
    """
    root = _grown(stacks)
    lines: list[tuple[int, _Node]] = []
    while not lines or len(lines) > nodes:
        lines = _listed(root, root.total * share)
        share *= 1.5
    inner = {parent for parent, _ in lines}
    names: dict[tuple[str, str], int] = {}
    frame = []
    for place, (_, node) in enumerate(lines):
        found = kind(node.name)
        found = leaves if leaves and place not in inner and found != "other" else found
        frame.append(names.setdefault((node.name, found), len(names)))
    return {
        "names": [plain.text(name) for name, _ in names],
        "kinds": [KINDS.index(found) for _, found in names],
        "parent": [parent for parent, _ in lines],
        "frame": frame,
        "value": [node.total for _, node in lines],
    }


def _grown(stacks: Mapping[str, int]) -> _Node:
    root = _Node("all")
    for stack, value in stacks.items():
        root.total += value
        node = root
        for name in stack.split(";"):
            node = node.children.setdefault(name, _Node(name))
            node.total += value
    return root


def _listed(root: _Node, least: float) -> list[tuple[int, _Node]]:
    """The nodes that are large enough, each after its parent, of which it has the place."""
    lines: list[tuple[int, _Node]] = []
    waiting = [(-1, root)]
    while waiting:
        parent, node = waiting.pop()
        place = len(lines)
        lines.append((parent, node))
        kept = [child for child in node.children.values() if child.total >= least]
        rest = sum(child.total for child in node.children.values()) - sum(child.total for child in kept)
        kept += [_Node(OTHER, rest)] if rest else []
        waiting += [(place, child) for child in sorted(kept, key=lambda child: child.total)]
    return lines
