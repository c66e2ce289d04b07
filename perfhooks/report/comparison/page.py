"""A comparison as one page: both runs side by side, the way from one step to the other, and every table."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perfhooks.report.comparison.opening import data
from perfhooks.report.page.page import document

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfhooks.analysis.comparison.comparison import Comparison

MOST_NODES: Final = 2500
"""Of one picture: a page of two graphs then has some 300 kB of them."""

_NUMBER: Final = re.compile(r"\(\d+\): ")

DEFINITIONS: Final = {
    "verdict": {
        "step": (
            "The mean of the steps that nobody recorded, without the first ones and those with validation or "
            "checkpoints; of several runs the geometric mean. The typical step is the median one."
        ),
        "interval": (
            "Contains the true ratio in 99 of 100 comparisons, by how blocks of steps differ and by how processes do: "
            "by 1%, joined with what several runs of a side show. Of what is the same it is that of 90%."
        ),
        "undecided": "The interval reaches over the tolerance: both answers are possible.",
    },
    "rows": {
        "contribution": (
            "B less A, of one recorded step. Each moment of a step is in exactly one row, so the rows sum to the "
            "difference of the recorded steps. Recording makes steps longer, so this is not the difference of the "
            "verdict."
        ),
        "order": (
            "What surely differs comes first: calls that are new, gone, or more often, and what became dearer by more "
            "than twice the spread of the calls that did not change. Of the others the largest come first."
        ),
        "by calls, by price": "(calls of B - calls of A) times the price of A's calls; and what is left.",
        "host": (
            "Moments of the step's own thread by the innermost operator, module and line that is open; a reason is "
            "named after the outermost operator, which the program called."
        ),
        "device": (
            "Moments of the step by what devices did: compute before communication before copies; else idle, by what "
            "the host did meanwhile. Used where devices are busy for half of both steps or more."
        ),
        "renamed": "Modules and lines that are called otherwise, and contain the same operators, are one row.",
    },
}
"""What the numbers on the page mean."""


def render(made: Comparison) -> str:
    """Make the page of a comparison.

    Args:
        made: What was compared.

    Returns:
        An HTML document that needs nothing else.
    """
    return document("perfhooks compare", page_data(made), DEFINITIONS, ["comparison.js"])


def page_data(made: Comparison) -> dict[str, Any]:
    """What the page shows: what `opening.data` tells, with both flame graphs in one."""
    told = data(made)
    drawn = told.pop("flames")
    merged = both_ways(drawn["a"], drawn["b"], made.a.flame_steps, made.b.flame_steps)
    return told | {"flames": merged}


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
        a: By ``host`` and ``device`` what `perfhooks.analysis.flames.tree` made of one window.
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
