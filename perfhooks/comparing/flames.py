"""Two flame graphs as one: what each frame cost in both runs."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

MOST_NODES: Final = 2500
"""Of one picture: a page of two graphs then has some 300 kB of them."""

_NUMBER: Final = re.compile(r"\(\d+\): ")


@dataclass
class _Node:
    name: str
    kind: int
    a: float = 0.0
    b: float = 0.0
    children: dict[str, _Node] = field(default_factory=dict)


def both_ways(a: Mapping[str, Any], b: Mapping[str, Any], steps_a: int, steps_b: int) -> dict[str, Any]:
    """The flame graphs of both runs, merged: as wide as B's time, and as wide as A's, where one sees what is gone.

    Frames are the same if they have the same name, line numbers aside, and lie in the same frames.

    Args:
        a: By ``host`` and ``device`` what `perfhooks.report.tree.tree` made of one window.
        b: And of the other.
        steps_a: How many steps the window of A has.
        steps_b: And that of B.

    Returns:
        Graphs as the page draws them; ``value`` is the width and ``before`` what it is compared with, of one step.
    """
    found: dict[str, Any] = {}
    for measure in [name for name in a if name in b]:
        root = _Node("all", 0)
        _grow(root, a[measure], "a", steps_a)
        _grow(root, b[measure], "b", steps_b)
        found[f"{measure}, B"] = _listed(root, "b", "a")
        found[f"{measure}, A"] = _listed(root, "a", "b")
    return found


def _grow(root: _Node, graph: Mapping[str, Any], side: str, steps: int) -> None:
    places: list[_Node] = []
    for parent, frame, value in zip(graph["parent"], graph["frame"], graph["value"], strict=True):
        name = graph["names"][frame]
        key = _NUMBER.sub("(): ", name)
        node = root if parent < 0 else places[parent].children.setdefault(key, _Node(name, graph["kinds"][frame]))
        setattr(node, side, getattr(node, side) + value / max(steps, 1))
        places.append(node)


def _listed(root: _Node, width: str, other: str) -> dict[str, Any]:
    names: dict[tuple[str, int], int] = {}
    made: dict[str, list[Any]] = {name: [] for name in ("parent", "frame", "value", "before")}
    waiting = [(-1, root)]
    while waiting and len(made["parent"]) < MOST_NODES:
        parent, node = waiting.pop(0)
        place = len(made["parent"])
        made["parent"].append(parent)
        made["frame"].append(names.setdefault((node.name, node.kind), len(names)))
        made["value"].append(round(getattr(node, width)))
        made["before"].append(round(getattr(node, other)))
        children = [child for child in node.children.values() if getattr(child, width) > 0]
        waiting += [(place, child) for child in sorted(children, key=lambda child: -getattr(child, width))]
    return made | {"names": [name for name, _ in names], "kinds": [kind for _, kind in names]}
