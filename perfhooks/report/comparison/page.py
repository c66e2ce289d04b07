from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfhooks.report.comparison.opening import data
from perfhooks.report.page.definitions import read
from perfhooks.report.page.page import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.analysis.comparison.comparison import Comparison

MOST_NODES: Final = 2500
"""Maximum nodes of a flame graph, to limit the size of the page: two graphs have 300 kB."""

_LINE_NUMBER: Final = re.compile(r"\(\d+\): ")

DEFINITIONS: Final = read(Path(__file__).with_name("definitions.md"))


def render(result: Comparison) -> str:
    return document("perfhooks compare", page_data(result), DEFINITIONS, ["comparison.js"])


def page_data(result: Comparison) -> dict[str, Any]:
    content = data(result)
    graphs = content.pop("flames")
    merged = merge_flames(graphs["a"], graphs["b"], result.a.flame_steps, result.b.flame_steps)
    return content | {"flames": merged}


@dataclass
class _Node:
    name: str
    kind: int
    a: float = 0.0
    b: float = 0.0
    children: dict[str, _Node] = field(default_factory=dict)


def merge_flames(a: Mapping[str, Any], b: Mapping[str, Any], steps_a: int, steps_b: int) -> dict[str, Any]:
    """Compare the flame graphs of A and B: return one graph with the widths of B, and one with the widths of A.

    Only the second graph shows removed frames. Frames match without line numbers. ``before`` is the value per step of a
    frame on the other side.
    """
    graphs: dict[str, Any] = {}
    for measure in [name for name in a if name in b]:
        root = _Node("all", 0)
        _add_graph(root, a[measure], "a", steps_a)
        _add_graph(root, b[measure], "b", steps_b)
        graphs[f"{measure}, B"] = _to_columns(root, "b", "a")
        graphs[f"{measure}, A"] = _to_columns(root, "a", "b")
    return graphs


def _add_graph(root: _Node, graph: Mapping[str, Any], side: str, steps: int) -> None:
    nodes: list[_Node] = []
    for parent, frame, value in zip(graph["parent"], graph["frame"], graph["value"], strict=True):
        name = graph["names"][frame]
        key = _LINE_NUMBER.sub("(): ", name)
        node = root if parent < 0 else nodes[parent].children.setdefault(key, _Node(name, graph["kinds"][frame]))
        setattr(node, side, getattr(node, side) + value / max(steps, 1))
        nodes.append(node)


def _to_columns(root: _Node, width: str, other: str) -> dict[str, Any]:
    names: dict[tuple[str, int], int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in ("parent", "frame", "value", "before")}
    queue = [(-1, root)]
    while queue and len(columns["parent"]) < MOST_NODES:
        parent, node = queue.pop(0)
        index = len(columns["parent"])
        columns["parent"].append(parent)
        columns["frame"].append(names.setdefault((node.name, node.kind), len(names)))
        columns["value"].append(round(getattr(node, width)))
        columns["before"].append(round(getattr(node, other)))
        children = [child for child in node.children.values() if getattr(child, width) > 0]
        queue += [(index, child) for child in sorted(children, key=lambda child: -getattr(child, width))]
    return columns | {"names": [name for name, _ in names], "kinds": [kind for _, kind in names]}
