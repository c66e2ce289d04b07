"""The tree of modules: what each ``nn.Module`` cost, forward and backward, on the host and on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks import labels
from perfhooks.trace.kinds import Kind
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import autograd, device, host
from perfhooks.trace.nesting.grouping import summed
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import once

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags


_MOST: Final = 16 << 20
_MOST_PER_SLICE: Final = 300
"""Letters that the paths of all modules may have together, and how many more for each slice of the trace. A network
of 10,000 modules, 10 deep, has 2 million; calls that nest 100,000 deep would have 10^10."""

_FORWARD: Final = ("forward_ms", "forward_self_ms", "forward_device_ms")
_BACKWARD: Final = ("backward_ms", "backward_device_ms")
_SCHEMA: Final = {
    "path": pl.String,
    "name": pl.String,
    "qualified_name": pl.String,
    **dict.fromkeys(("depth", "calls"), pl.Int64),
    **dict.fromkeys((*_FORWARD, *_BACKWARD), pl.Float64),
}


class ModuleTree(NamedTuple):
    """The modules of a trace as nodes of a tree, and which of them each entry of `host.tree` belongs to."""

    parents: Ints
    names: list[str]
    paths: list[str]
    call: Flags
    """Which entries are calls of modules."""
    forward: Ints
    """The innermost module in whose forward pass an entry lies, or -1."""
    backward: Ints
    """The module whose backward pass it belongs to, or -1."""
    node: Ints
    """The innermost autograd node that belongs to a module and holds the entry, or is it; an entry, or -1."""


def table(trace: Trace) -> pl.DataFrame:
    """Say what each module cost, the modules that it called included: one row for each place in the tree of modules.

    Modules are the ``nn.Module: Linear_3`` frames that ``with_stack=True`` records; without them there are no rows.
    Rows are in the order of the tree, modules that one module calls by their first call. ``path`` names all modules
    from the outermost (``Net_0/Block_1/Linear_3``), ``depth`` counts those around it, ``calls`` counts its calls.
    ``qualified_name`` is what the model calls the module (``blocks.1.linear``), see `qualified_names`; null where that
    is not known.

    ``forward_ms`` is the time of its calls on the host and ``forward_self_ms`` what is left without the modules that it
    called, so that the self times of a module and of all below it sum to its ``forward_ms``, to the nanosecond;
    ``forward_device_ms`` sums the durations of the device work that was launched in them.

    ``backward_ms`` sums the time of the autograd nodes that its forward operators made, on whatever thread they ran,
    and ``backward_device_ms`` the device work they launched. A node belongs to the module in which its forward operator
    ran: by the forward-backward link of the trace, else by its sequence number (the last operator before it that has
    the same, as Kineto does). ``AccumulateGrad`` has neither; autograd runs it straight after the node that made the
    gradient, so it belongs where that node does, with the hooks of DDP in it. Time between nodes, and nodes whose
    operator ran in no module (the loss), belong to none: over the outermost modules the sum is at most autograd's time.

    A module that runs inside the backward pass is recomputed there (activation checkpoints): that is no call, but part
    of the backward time of the module that asked for it.

    Backward columns are null if no autograd node was recorded, device columns if the trace shows no device.
    """
    found = find(trace)
    count = len(found.names)
    known = qualified_names(trace)
    columns: dict[str, object] = {"path": found.paths, "name": found.names, "depth": host.depths(found.parents)}
    columns["qualified_name"] = [known.get(name) for name in found.names]
    columns |= {name: values * MS for name, values in _times(trace, found, count).items()}
    columns["calls"] = np.bincount(found.forward[found.call], minlength=count)
    absent = [None] * count
    if not autograd.named(trace, ranges.NODE).any():
        columns |= dict.fromkeys(_BACKWARD, absent)
    if not trace.is_device_traced:
        columns |= {"forward_device_ms": absent, "backward_device_ms": absent}
    order = _in_tree_order(found.parents, _first_calls(trace, found, count))
    return pl.DataFrame({name: columns[name] for name in _SCHEMA}, schema=_SCHEMA)[order]


@once
def qualified_names(trace: Trace) -> dict[str, str]:
    """What the model calls the modules of a trace that perfhooks recorded: ``Conv2d_3`` is ``layer1.0.conv2``.

    The recorder numbers the modules of each class in the order of their first calls; the metadata of the trace has
    their names in that order. A class of which the trace shows other numbers than there are names has none here: a call
    that nobody saw would have shifted them all.
    """
    said = trace.metadata.get(labels.MODULE_NAMES)
    calls = [name.removeprefix(ranges.MODULE).rpartition("_") for name in trace.names if name.startswith(ranges.MODULE)]
    numbers: dict[str, set[str]] = {}
    for kind, _, number in calls:
        numbers.setdefault(kind, set()).add(number)
    found: dict[str, str] = {}
    for kind, names in said.items() if isinstance(said, dict) else ():
        shown = numbers.get(kind, set())
        if isinstance(names, list) and shown == {str(place) for place in range(len(names))}:
            found |= {f"{kind}_{place}": name for place, name in enumerate(names) if isinstance(name, str) and name}
    return found


@once
def find(trace: Trace) -> ModuleTree:
    """The modules of a trace."""
    tree, nodes = host.tree(trace), autograd.find(trace)
    names = trace.name[tree.row]
    call = autograd.named(trace, ranges.MODULE)[names] & (trace.kind[tree.row] == Kind.PYTHON) & (nodes.inside < 0)
    shown = [name.removeprefix(ranges.MODULE) for name in trace.names]
    found = host.paths(tree.nesting, names, ~call)
    kept = _writable(trace, found, shown)
    if not kept.all():
        call &= kept
        found = host.paths(tree.nesting, names, ~call)
    forward = np.where(nodes.inside < 0, found.node, -1)
    owner = _owners(trace, nodes, forward)
    node = inherited(tree.nesting.parent, np.where(owner >= 0, np.arange(len(owner)), -1))
    mine = [shown[frame] for frame in found.frames.tolist()]
    return ModuleTree(
        found.parents,
        mine,
        host.joined(found.parents, mine, "/"),
        call,
        forward,
        np.append(owner, -1)[node],
        node,
    )


def _writable(trace: Trace, found: host.Paths, shown: list[str]) -> Flags:
    """Which entries lie in no module that is nested too deep to be written; what is, belongs to those around it."""
    lengths = np.array([*map(len, shown), 0], np.int64)[found.frames]
    depth = host.depths(found.parents)
    deepest = host.writable_depth(found.parents, depth, lengths, _MOST + _MOST_PER_SLICE * len(trace))
    return ~np.append(depth > deepest, False)[found.node]


def of_slices(trace: Trace) -> tuple[list[str], Ints]:
    """The paths of all modules, and for each slice the place among them of the module it belongs to, or -1.

    Forward or backward; device work belongs where it was launched.
    """
    found, tree = find(trace), host.tree(trace)
    both = np.append(np.where(found.backward >= 0, found.backward, found.forward), -1)
    place = np.full(len(trace), -1, np.int64)
    place[tree.row] = both[:-1]
    place[trace.device_rows] = both[host.launchers(trace)]
    return found.paths, place


def _owners(trace: Trace, nodes: autograd.Nodes, forward: Ints) -> Ints:
    """The module of each autograd node, one value for each entry; -1 for nodes of no module and for other entries."""
    owner: Ints = np.append(forward, -1)[nodes.source]
    tree, entry = host.tree(trace), nodes.entry
    if not len(entry):
        return owner
    leaf = autograd.named(trace, f"{ranges.NODE}{ranges.LEAF}")[trace.name[tree.row[entry]]]
    before = np.maximum.accumulate(np.where(leaf, -1, np.arange(len(entry))))
    follows = leaf & (before >= 0) & (tree.thread[entry] == tree.thread[entry[before]])
    owner[entry[follows]] = owner[entry[before[follows]]]
    return owner


def _times(trace: Trace, found: ModuleTree, count: int) -> dict[str, Ints]:
    """The time columns, in nanoseconds."""
    tree = host.tree(trace)
    span = tree.nesting.end - trace.start[tree.row]
    total = summed(found.forward[found.call], span[found.call], count)
    own = total.copy()
    inner = found.parents >= 0
    np.subtract.at(own, found.parents[inner], total[inner])
    launcher = host.launchers(trace)
    work = device.own_times(trace)
    backward = np.append(found.backward, -1)[launcher]
    forward = np.where(backward >= 0, -1, np.append(found.forward, -1)[launcher])
    spent = summed(found.backward, _node_times(found, tree.nesting.parent, span), count)
    return {
        "forward_ms": total,
        "forward_self_ms": own,
        "forward_device_ms": host.summed_down(found.parents, summed(forward, work, count)),
        "backward_ms": host.summed_down(found.parents, spent),
        "backward_device_ms": host.summed_down(found.parents, summed(backward, work, count)),
    }


def _node_times(found: ModuleTree, parent: Ints, span: Ints) -> Ints:
    """The time of each autograd node of a module without other such nodes inside; 0 for all other entries."""
    nodes = np.flatnonzero(found.node == np.arange(len(span)))
    own = np.zeros(len(span) + 1, np.int64)
    own[nodes] = span[nodes]
    around = np.append(found.node, -1)[parent[nodes]]
    np.subtract.at(own, around, span[nodes])
    return own[:-1]


def _first_calls(trace: Trace, found: ModuleTree, count: int) -> Ints:
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, found.forward[found.call], trace.start[host.tree(trace).row[found.call]])
    return first


def _in_tree_order(parents: Ints, first: Ints) -> list[int]:
    """The nodes, each before those below it, siblings by their first call."""
    children: dict[int, list[int]] = {}
    by_call = np.argsort(first, kind="stable")
    for node, parent in zip(by_call.tolist(), parents[by_call].tolist(), strict=True):
        children.setdefault(parent, []).append(node)
    order: list[int] = []
    waiting = children.get(-1, [])[::-1]
    while waiting:
        order.append(waiting.pop())
        waiting += children.get(order[-1], [])[::-1]
    return order
