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

MODEL: Final = 0.75
"""Minimum fraction of the time for a module to count as the model. Losses and metrics also take time."""
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
    """Tree of modules, and of named regions in CUDA graphs. Index -1 means no module."""

    parents: Ints
    names: list[str]
    paths: list[str]
    call: Flags
    forward: Ints
    backward: Ints
    node: Ints
    """Innermost autograd node of a module around each entry of `host.tree`, or -1. A node contains itself."""
    work: Ints
    """Index of the region or module of each of `Trace.device_rows`."""
    backward_work: Flags
    regions: int


def table(trace: Trace) -> pl.DataFrame:
    """Return the cost of each module, including the modules that it calls: one row for each node of the module tree.

    Modules are the ``nn.Module: Linear_3`` frames of ``with_stack=True``. ``qualified_name`` is the name in the model,
    see `qualified_names`.

    ``backward_ms`` sums the time of the autograd nodes created by forward operators of the module
    (`perfhooks.trace.nesting.autograd`). An ``AccumulateGrad`` node counts for the module of the previous node. Time
    between nodes, and nodes of the loss, belong to no module. Modules recomputed in the backward pass (activation
    checkpointing) add to the backward time of their caller.

    A region that ``torch.cuda.graph_annotations`` names in a CUDA graph has a row with device columns only.
    """
    tree = find(trace)
    count = len(tree.names)
    qualified = qualified_names(trace)
    is_called = np.arange(count) < count - tree.regions
    columns: dict[str, object] = {"path": tree.paths, "name": tree.names, "depth": host.depths(tree.parents)}
    columns["qualified_name"] = [qualified.get(name) for name in tree.names]
    columns |= {name: values * MS for name, values in _time_columns(trace, tree, count).items()}
    columns |= rates.columns(_rate_sums(trace, tree, count))
    columns["calls"] = np.bincount(tree.forward[tree.call], minlength=count)
    absent = [None] * count
    if not autograd.named(trace, ranges.NODE).any():
        columns["backward_ms"] = absent
        columns |= {} if tree.backward_work.any() else {"backward_device_ms": absent}
    if not trace.is_device_traced:
        columns |= dict.fromkeys(_ON_DEVICE, absent)
    order = _in_tree_order(tree.parents, _first_calls(trace, tree, count))
    table = pl.DataFrame({name: columns[name] for name in _SCHEMA}, schema=_SCHEMA)
    return table.with_columns(pl.when(pl.Series(is_called)).then(pl.col("calls", *_ON_HOST, "forward_self_ms")))[order]


def model(trace: Trace, modules: pl.DataFrame) -> str | None:
    """Return the class of the outermost module with at least 75% of the time, without wrappers such as DDP, or None.

    Up to three modules that only together reach 75%, for example a generator and a discriminator, are all named.
    """
    modules = modules.filter(pl.col("calls").is_not_null())
    if not trace.is_device_traced:
        return _dominant_modules(modules, _ON_HOST, None)
    host_rows = trace.rows(*HOST)
    recorded_ms = float(trace.end[host_rows].max() - trace.start[host_rows].min()) * MS if len(host_rows) else 0.0
    return _dominant_modules(modules, _ON_DEVICE, _computation_ms(trace)) or _dominant_modules(
        modules, _ON_HOST, recorded_ms
    )


def _dominant_modules(modules: pl.DataFrame, columns: tuple[str, ...], total_ms: float | None) -> str | None:
    rows = modules.with_columns(pl.sum_horizontal(*columns).alias("cost")).sort(
        "cost", descending=True, maintain_order=True
    )
    outermost = rows.filter(pl.col("depth") == 0)
    threshold_ms = MODEL * (float(outermost["cost"].sum()) if total_ms is None else total_ms)
    classes: list[str | None] = []
    covered_ms = 0.0
    for path, cost in outermost.select("path", "cost").head(3).iter_rows():
        if cost <= 0 or covered_ms >= threshold_ms:
            break
        classes.append(_unwrapped_class(rows, path, cost))
        covered_ms += cost
    named_classes = [class_name for class_name in classes if class_name]
    is_known = covered_ms >= threshold_ms and len(named_classes) == len(classes)
    return ", ".join(dict.fromkeys(named_classes)) or None if is_known else None


def _computation_ms(trace: Trace) -> float:
    around = [categories.COMMUNICATION, categories.COPIES, categories.OPTIMIZER]
    return float(device.own_times(trace)[~np.isin(categories.of_work(trace), around)].sum() * MS)


def _unwrapped_class(rows: pl.DataFrame, path: str, cost: float) -> str | None:
    while (name := ranges.class_of_module(path.rpartition("/")[2])) in ranges.AROUND_MODELS:
        inner = rows.filter(pl.col("path").str.starts_with(f"{path}/") & (pl.col("depth") == path.count("/") + 1))
        if not inner.height or inner["cost"][0] < MODEL * cost:
            return None
        path, cost = inner["path"][0], inner["cost"][0]
    return name.removeprefix(ranges.SHARDED) if name[len(ranges.SHARDED) :][:1].isupper() else name


@cached_per_trace
def qualified_names(trace: Trace) -> dict[str, str]:
    """Map recorded modules to their names in the model, for example ``Conv2d_3`` to ``layer1.0.conv2``.

    Only traces of perfhooks contain the names of the model. A class with other numbers in the trace than in the model
    is omitted, because a missed call shifts all numbers.
    """
    names_by_class = trace.metadata.get(labels.MODULE_NAMES)
    calls = [name.removeprefix(ranges.MODULE).rpartition("_") for name in trace.names if name.startswith(ranges.MODULE)]
    numbers: dict[str, set[str]] = {}
    for kind, _, number in calls:
        numbers.setdefault(kind, set()).add(number)
    qualified: dict[str, str] = {}
    for kind, names in names_by_class.items() if isinstance(names_by_class, dict) else ():
        shown = numbers.get(kind, set())
        if isinstance(names, list) and shown == {str(index) for index in range(len(names))}:
            qualified |= {f"{kind}_{index}": name for index, name in enumerate(names) if isinstance(name, str) and name}
    return qualified


@cached_per_trace
def find(trace: Trace) -> ModuleTree:
    tree, nodes = host.tree(trace), autograd.find(trace)
    names = trace.name[tree.row]
    call = autograd.named(trace, ranges.MODULE)[names] & (trace.kind[tree.row] == Kind.PYTHON) & (nodes.inside < 0)
    shown = [name.removeprefix(ranges.MODULE) for name in trace.names]
    paths_of_calls = host.paths(tree.nesting, names, ~call)
    is_kept = _is_writable(trace, paths_of_calls, shown)
    if not is_kept.all():
        call &= is_kept
        paths_of_calls = host.paths(tree.nesting, names, ~call)
    forward = np.where(nodes.inside < 0, paths_of_calls.node, -1)
    owner = _node_modules(trace, nodes, forward)
    node = inherited(tree.nesting.parent, np.where(owner >= 0, np.arange(len(owner)), -1))
    backward = np.append(owner, -1)[node]
    launcher, regions = host.launchers(trace), device.regions(trace)
    work = np.append(backward, -1)[launcher]
    backward_work = (work >= 0) | regions.backward
    work = np.where(work >= 0, work, np.append(forward, -1)[launcher])
    node_names = [shown[frame] for frame in paths_of_calls.frames.tolist()]
    joined_paths = host.joined(paths_of_calls.parents, node_names, "/")
    inside, count = np.flatnonzero(regions.place >= 0), len(regions.names)
    around = work[inside] + 1
    if np.array([0, *map(len, joined_paths)])[around].sum() > host.max_letters(trace):
        around[:] = 0
    pairs, index = distinct(around * count + regions.place[inside])
    work[inside] = index + len(node_names)
    for pair in pairs.tolist():
        module, region = divmod(pair, count)
        node_names.append(regions.names[region])
        joined_paths.append(f"{joined_paths[module - 1]}/{node_names[-1]}" if module else node_names[-1])
    parents = np.append(paths_of_calls.parents, pairs // max(count, 1) - 1)
    return ModuleTree(parents, node_names, joined_paths, call, forward, backward, node, work, backward_work, len(pairs))


def _is_writable(trace: Trace, paths: host.Paths, shown: list[str]) -> Flags:
    lengths = np.array([*map(len, shown), 0], np.int64)[paths.frames]
    depth = host.depths(paths.parents)
    deepest = host.writable_depth(paths.parents, depth, lengths, host.max_letters(trace))
    return ~np.append(depth > deepest, False)[paths.node]


def of_slices(trace: Trace) -> tuple[list[str], Ints]:
    """Return the paths of all modules, and the index of each slice's module (or region of a CUDA graph), or -1."""
    modules, tree = find(trace), host.tree(trace)
    module = np.append(np.where(modules.backward >= 0, modules.backward, modules.forward), -1)
    index = np.full(len(trace), -1, np.int64)
    index[tree.row] = module[:-1]
    index[trace.device_rows] = modules.work
    return modules.paths, index


def _node_modules(trace: Trace, nodes: autograd.Nodes, forward: Ints) -> Ints:
    owner: Ints = np.append(forward, -1)[nodes.source]
    tree, entry = host.tree(trace), nodes.entry
    if not len(entry):
        return owner
    leaf = autograd.named(trace, f"{ranges.NODE}{ranges.LEAF}")[trace.name[tree.row[entry]]]
    before = np.maximum.accumulate(np.where(leaf, -1, np.arange(len(entry))))
    follows = leaf & (before >= 0) & (tree.thread[entry] == tree.thread[entry[before]])
    owner[entry[follows]] = owner[entry[before[follows]]]
    return owner


def _time_columns(trace: Trace, modules: ModuleTree, count: int) -> dict[str, Ints]:
    tree = host.tree(trace)
    span = tree.nesting.end - trace.start[tree.row]
    total = summed(modules.forward[modules.call], span[modules.call], count)
    own = total.copy()
    inner = modules.parents >= 0
    np.subtract.at(own, modules.parents[inner], total[inner])
    work = device.own_times(trace)
    of_pass = [np.where(modules.backward_work == is_backward, work, 0) for is_backward in (False, True)]
    forward, backward = (
        host.summed_down(modules.parents, summed(modules.work, backward_host, count)) for backward_host in of_pass
    )
    backward_host = summed(modules.backward, _node_times(modules, tree.nesting.parent, span), count)
    return {
        "forward_ms": total,
        "forward_self_ms": own,
        "forward_device_ms": forward,
        "backward_ms": host.summed_down(modules.parents, backward_host),
        "backward_device_ms": backward,
    }


def _rate_sums(trace: Trace, modules: ModuleTree, count: int) -> dict[str, Ints]:
    calls = rates.calls(trace)
    entry = host.tree(trace).entry[calls.row]
    module = np.where(modules.backward >= 0, modules.backward, modules.forward)[entry]
    module[calls.outer >= 0] = -1
    sums = rates.of_calls(trace)
    return {name: host.summed_down(modules.parents, summed(module, sums[name], count)) for name in rates.SUMS}


def _node_times(modules: ModuleTree, parent: Ints, span: Ints) -> Ints:
    nodes = np.flatnonzero(modules.node == np.arange(len(span)))
    own = np.zeros(len(span) + 1, np.int64)
    own[nodes] = span[nodes]
    around = np.append(modules.node, -1)[parent[nodes]]
    np.subtract.at(own, around, span[nodes])
    return own[:-1]


def _first_calls(trace: Trace, modules: ModuleTree, count: int) -> Ints:
    first = np.full(count, np.iinfo(np.int64).max)
    np.minimum.at(first, modules.forward[modules.call], trace.start[host.tree(trace).row[modules.call]])
    inside = modules.work >= count - modules.regions
    np.minimum.at(first, modules.work[inside], trace.start[trace.device_rows[inside]])
    return first


def _in_tree_order(parents: Ints, first: Ints) -> list[int]:
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
