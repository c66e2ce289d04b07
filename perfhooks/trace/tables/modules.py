"""The tree of modules: what each ``nn.Module`` cost, forward and backward, on the host and on devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from perfhooks.core import labels
from perfhooks.trace.kinds import HOST, Kind
from perfhooks.trace.limits import rates
from perfhooks.trace.names import ranges
from perfhooks.trace.nesting import autograd, device, host
from perfhooks.trace.nesting.grouping import distinct, summed
from perfhooks.trace.nesting.intervals import MS
from perfhooks.trace.nesting.slices import inherited
from perfhooks.trace.once import cached_per_trace
from perfhooks.trace.tables import categories

if TYPE_CHECKING:
    from perfhooks.trace.model import Ints, Trace
    from perfhooks.trace.nesting.intervals import Flags


_MOST: Final = 16 << 20
_MOST_PER_SLICE: Final = 300
"""Letters that the paths of all modules may have together, and how many more for each slice of the trace. A network
of 10,000 modules, 10 deep, has 2 million; calls that nest 100,000 deep would have 10^10. Regions of CUDA graphs may
have as many again, and stand below no module where that is not enough."""

MODEL: Final = 0.75
"""Of the time, that a module holds which is the model."""
_MODELS: Final = 3
_ON_HOST: Final = ("forward_ms", "backward_ms")
_ON_DEVICE: Final = ("forward_device_ms", "backward_device_ms")

_FORWARD: Final = ("forward_ms", "forward_self_ms", "forward_device_ms")
_BACKWARD: Final = ("backward_ms", "backward_device_ms")
_SCHEMA: Final = {
    "path": pl.String,
    "name": pl.String,
    "qualified_name": pl.String,
    **dict.fromkeys(("depth", "calls"), pl.Int64),
    **dict.fromkeys((*_FORWARD, *_BACKWARD), pl.Float64),
    **rates.COLUMNS,
}


class ModuleTree(NamedTuple):
    """The modules of a trace, and the regions of CUDA graphs, as nodes of a tree, and what belongs to which of them."""

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
    work: Ints
    """For each of `Trace.device_rows` the region or module that it belongs to, or -1."""
    backward_work: Flags
    """And whether it is work of the backward pass."""
    regions: int
    """How many nodes, the last ones, are regions: the host knows nothing of them."""


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

    What ``torch.cuda.graph_annotations`` names in a CUDA graph (`device.regions`) is a row below the module that
    replayed the graph, or below none, with device columns alone; ``autograd_phase`` says which of them.

    How fast its operators were, forward and backward, and how far from the limit, say the columns of `rates.columns`.

    Backward columns are null if no autograd node was recorded, device columns if the trace shows no device.
    """
    found = find(trace)
    count = len(found.names)
    known = qualified_names(trace)
    is_called = np.arange(count) < count - found.regions
    columns: dict[str, object] = {"path": found.paths, "name": found.names, "depth": host.depths(found.parents)}
    columns["qualified_name"] = [known.get(name) for name in found.names]
    columns |= {name: values * MS for name, values in _times(trace, found, count).items()}
    columns |= rates.columns(_rates(trace, found, count))
    columns["calls"] = np.bincount(found.forward[found.call], minlength=count)
    absent = [None] * count
    if not autograd.named(trace, ranges.NODE).any():
        columns["backward_ms"] = absent
        columns |= {} if found.backward_work.any() else {"backward_device_ms": absent}
    if not trace.is_device_traced:
        columns |= dict.fromkeys(_ON_DEVICE, absent)
    order = _in_tree_order(found.parents, _first_calls(trace, found, count))
    table = pl.DataFrame({name: columns[name] for name in _SCHEMA}, schema=_SCHEMA)
    return table.with_columns(pl.when(pl.Series(is_called)).then(pl.col("calls", *_ON_HOST, "forward_self_ms")))[order]


def model(trace: Trace, modules: pl.DataFrame) -> str | None:
    """The class of the model: the outermost module that holds `MODEL` of the time; None where none does.

    Of several that do so only together, as a generator and a discriminator, all, at most `_MODELS`. What frameworks and
    torch.compile put around a model is none (`ranges.AROUND_MODELS`). Time is that of devices, forward and backward, of
    all that they computed but updates; where that names none, as while graphs are captured, that of the host, of all
    that was recorded there; without a device that of the host, of all modules.

    Args:
        trace: any trace.
        modules: its table.
    """
    modules = modules.filter(pl.col("calls").is_not_null())
    if not trace.is_device_traced:
        return _holding(modules, _ON_HOST, None)
    reached = trace.rows(*HOST)
    recorded = float(trace.end[reached].max() - trace.start[reached].min()) * MS if len(reached) else 0.0
    return _holding(modules, _ON_DEVICE, _computed(trace)) or _holding(modules, _ON_HOST, recorded)


def _holding(modules: pl.DataFrame, columns: tuple[str, ...], whole: float | None) -> str | None:
    """The outermost modules that hold `MODEL` of the whole, or of all modules, by some columns."""
    rows = modules.with_columns(pl.sum_horizontal(*columns).alias("cost")).sort("cost", descending=True)
    outermost = rows.filter(pl.col("depth") == 0)
    least = MODEL * (float(outermost["cost"].sum()) if whole is None else whole)
    found: list[str | None] = []
    held = 0.0
    for path, cost in outermost.select("path", "cost").head(_MODELS).iter_rows():
        if cost <= 0 or held >= least:
            break
        found.append(_unwrapped(rows, path, cost))
        held += cost
    named = [each for each in found if each]
    is_known = held >= least and len(named) == len(found)
    return ", ".join(dict.fromkeys(named)) or None if is_known else None


def _computed(trace: Trace) -> float:
    """Milliseconds in which devices did what models do: no communication, copies or updates."""
    around = [categories.COMMUNICATION, categories.COPIES, categories.OPTIMIZER]
    return float(device.own_times(trace)[~np.isin(categories.of_work(trace), around)].sum() * MS)


def _unwrapped(rows: pl.DataFrame, path: str, cost: float) -> str | None:
    """The class of a module, or of the one in it that it is around; None where that is not recorded."""
    while (name := ranges.class_of_module(path.rpartition("/")[2])) in ranges.AROUND_MODELS:
        inner = rows.filter(pl.col("path").str.starts_with(f"{path}/") & (pl.col("depth") == path.count("/") + 1))
        if not inner.height or inner["cost"][0] < MODEL * cost:
            return None
        path, cost = inner["path"][0], inner["cost"][0]
    return name.removeprefix(ranges.SHARDED) if name[len(ranges.SHARDED) :][:1].isupper() else name


@cached_per_trace
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


@cached_per_trace
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
    backward = np.append(owner, -1)[node]
    launcher, regions = host.launchers(trace), device.regions(trace)
    work = np.append(backward, -1)[launcher]
    backward_work = (work >= 0) | regions.backward
    work = np.where(work >= 0, work, np.append(forward, -1)[launcher])
    mine = [shown[frame] for frame in found.frames.tolist()]
    paths = host.joined(found.parents, mine, "/")
    inside, count = np.flatnonzero(regions.place >= 0), len(regions.names)
    around = work[inside] + 1
    if np.array([0, *map(len, paths)])[around].sum() > _MOST + _MOST_PER_SLICE * len(trace):
        around[:] = 0
    pairs, place = distinct(around * count + regions.place[inside])
    work[inside] = place + len(mine)
    for pair in pairs.tolist():
        module, region = divmod(pair, count)
        mine.append(regions.names[region])
        paths.append(f"{paths[module - 1]}/{mine[-1]}" if module else mine[-1])
    parents = np.append(found.parents, pairs // max(count, 1) - 1)
    return ModuleTree(parents, mine, paths, call, forward, backward, node, work, backward_work, len(pairs))


def _writable(trace: Trace, found: host.Paths, shown: list[str]) -> Flags:
    """Which entries lie in no module that is nested too deep to be written; what is, belongs to those around it."""
    lengths = np.array([*map(len, shown), 0], np.int64)[found.frames]
    depth = host.depths(found.parents)
    deepest = host.writable_depth(found.parents, depth, lengths, _MOST + _MOST_PER_SLICE * len(trace))
    return ~np.append(depth > deepest, False)[found.node]


def of_slices(trace: Trace) -> tuple[list[str], Ints]:
    """The paths of all modules, and for each slice the place among them of the module it belongs to, or -1.

    Forward or backward; device work belongs to its region of a CUDA graph, else where it was launched.
    """
    found, tree = find(trace), host.tree(trace)
    both = np.append(np.where(found.backward >= 0, found.backward, found.forward), -1)
    place = np.full(len(trace), -1, np.int64)
    place[tree.row] = both[:-1]
    place[trace.device_rows] = found.work
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
    work = device.own_times(trace)
    of_pass = [np.where(found.backward_work == wanted, work, 0) for wanted in (False, True)]
    forward, backward = (host.summed_down(found.parents, summed(found.work, spent, count)) for spent in of_pass)
    spent = summed(found.backward, _node_times(found, tree.nesting.parent, span), count)
    return {
        "forward_ms": total,
        "forward_self_ms": own,
        "forward_device_ms": forward,
        "backward_ms": host.summed_down(found.parents, spent),
        "backward_device_ms": backward,
    }


def _rates(trace: Trace, found: ModuleTree, count: int) -> dict[str, Ints]:
    """What `rates.columns` needs of each module, with those that it called."""
    calls = rates.calls(trace)
    entry = host.tree(trace).entry[calls.row]
    module = np.where(found.backward >= 0, found.backward, found.forward)[entry]
    module[calls.outer >= 0] = -1  # part of another call
    sums = rates.of_calls(trace)
    return {name: host.summed_down(found.parents, summed(module, sums[name], count)) for name in rates.SUMS}


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
    inside = found.work >= count - found.regions
    np.minimum.at(first, found.work[inside], trace.start[trace.device_rows[inside]])
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
